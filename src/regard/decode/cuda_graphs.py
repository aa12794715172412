"""CUDA graphs of beam search: the encoder, and the decoding step with its selection, captured for every shape of batch.

A step of a Transformer is a hundred small kernels, and to launch them one by one takes longer than to run them. So a
step is captured once for every shape and then replayed. Shapes come in few sizes: sentences and slots in powers of
two, sources in multiples of 16; a search moves to a smaller step when half its sentences are done, and to a wider one
when its slots run out. The host looks one step behind, so the device never waits for it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.decode.beam import Beam, BeamState, advance_beams, backtrack, initial_beam_state
from regard.decode.beam_decoder import select_sentences
from regard.decode.kv_cache import BeamKVCache, TransformerBeams, encode_padded, pad_sources
from regard.decode.search import NOT_FINITE, Constraints, DecodingRequest, Hypothesis, LengthLimit
from regard.layers.transformer_layers import KeysValues
from regard.models.transformer import Transformer
from regard.ops.cuda_graph import GraphCapture

PaddedSources = tuple[Tensor, Tensor]  # ids and mask
Captured = TypeVar("Captured")
MAX_GRAPHS = 16  # kept, of steps and of encoders
MIN_SENTENCES = 32  # with fewer a step is hardly faster
SLOTS = 64
SOURCE_MULTIPLE = 16
NOBODY = DecodingRequest((), index=-1)


@dataclass(frozen=True)
class GraphShape:
    """All that a captured step depends on besides the numbers in its buffers."""

    sentences: int
    beams: int
    best: int
    source: int
    slots: int
    steps: int
    forcing: bool
    shortest: int


@dataclass(frozen=True, eq=False)
class GraphedStep:
    """Buffers, and the step that works on them. A graph knows addresses alone; all that it reads is held here.

    Args:
        status: how many sentences go on, slots in use, whether something is not finite.
    """

    shape: GraphShape
    decoder: TransformerBeams
    beams: BeamState
    status: Tensor
    replay: Callable[[], object]


@dataclass(frozen=True, eq=False)
class GraphedEncoder:
    """Buffers of padded sources, and the encoder that leaves their keys and values in buffers of its own."""

    sources: PaddedSources
    encoded: tuple[KeysValues, ...]
    replay: Callable[[], object]


class CapturedSteps(nn.Module):
    """The captured steps and encoders of a prepared model, by shape; a part of the model, so that they live as long as
    it does.

    Without `capture` they are run kernel by kernel.
    """

    def __init__(self, capture: GraphCapture | None = None):
        super().__init__()
        self.by_shape: dict[GraphShape, GraphedStep] = {}
        self.encoders: dict[torch.Size, GraphedEncoder] = {}
        self.capture = capture

    def of(self, model: Transformer, shape: GraphShape) -> GraphedStep:
        return get_or_capture(self.by_shape, shape, lambda: capture_step(model, shape, self.capture))

    def encode(self, model: Transformer, sources: PaddedSources) -> tuple[KeysValues, ...]:
        """The keys and values of the sources, there until something else is replayed: all graphs share their memory."""
        if self.capture is None or not sources[0].is_cuda:
            return encode_padded(model, *sources)
        key, capture = sources[0].shape, self.capture
        encoder = get_or_capture(self.encoders, key, lambda: capture_encoder(model, sources, capture))
        settle(encoder.sources, sources)
        encoder.replay()
        return encoder.encoded


def get_or_capture(kept: dict[Any, Captured], shape: object, capture: Callable[[], Captured]) -> Captured:
    """What was captured for a shape; beyond MAX_GRAPHS the one that was captured first goes."""
    if shape not in kept:
        while len(kept) >= MAX_GRAPHS:
            kept.pop(next(iter(kept)))
        kept[shape] = capture()
    return kept[shape]


def captured_steps(model: Transformer) -> CapturedSteps:
    """Those of a prepared model; of another nothing is captured, for its weights may change."""
    return next((part for part in model.children() if isinstance(part, CapturedSteps)), CapturedSteps())


def run(
    model: Transformer, beam: Beam, requests: Sequence[DecodingRequest], allowed: Constraints
) -> list[list[Hypothesis]]:
    steps, device = captured_steps(model), model.embeddings.bias.device
    with torch.inference_mode(), mask_kernels(device):
        found, step, left = dict[int, list[Hypothesis]](), *begin(steps, model, beam, requests, allowed)
        status = DelayedStatus(device)
        at = 0
        while True:
            step.replay()
            at += 1
            going, used, broken = status.read(step.status)
            if broken:
                raise ValueError(NOT_FINITE)
            if not going:
                break
            if used + 3 * beam.size > step.shape.slots:
                step = move(steps, step, step.decoder.cache.wider(), step.beams)
            elif MIN_SENTENCES <= going <= step.shape.sentences // 2:
                step, left, gone = shrink(steps, step, left, at)
                found |= gone
        found |= backtrack(step.beams, *real(left, range(len(left))), at)
    return [found[request.index] for request in requests]


def begin(
    steps: CapturedSteps, model: Transformer, beam: Beam, requests: Sequence[DecodingRequest], allowed: Constraints
) -> tuple[GraphedStep, list[DecodingRequest]]:
    """The first step, and whose rows it has: those beyond the requests are nobody's."""
    asked = [*requests, *[NOBODY] * (next_power(len(requests)) - len(requests))]
    length = next_power(max(request.max_length(beam.max_length) for request in asked) + 2)  # the host may be late
    bias = model.embeddings.bias
    beams = initial_beam_state(beam, asked, allowed, len(bias), bias.device, length)
    beams.finished_step[len(requests) :] = 0
    sources = pad_sources([request.source for request in asked], bias, SOURCE_MULTIPLE)
    slots = max(SLOTS, next_power(4 * beam.size))
    step = steps.of(model, shape_of((len(asked), beam.size, slots), sources[1], beams))
    cache = step.decoder.cache
    settle((cache.sources, cache.source_mask, step.beams), (steps.encode(model, sources), sources[1], beams))
    cache.seen.zero_()
    cache.at.zero_()
    return step, asked


def shape_of(seen: Sequence[int], source_mask: Tensor, beams: BeamState) -> GraphShape:
    """Of a cache's `seen` of this shape, its mask, and what belongs to them."""
    sentences, size, slots = seen
    steps, forcing = len(beams.backpointers.tokens), len(beams.forced) > 0
    best, source = beams.best_finished.shape[1], source_mask.shape[-1]
    return GraphShape(sentences, size, best, source, slots, steps, forcing, beams.min_length)


def move(steps: CapturedSteps, step: GraphedStep, cache: BeamKVCache, beams: BeamState) -> GraphedStep:
    """Another step that goes on where this one stands."""
    there = steps.of(step.decoder.model, shape_of(cache.seen.shape, cache.source_mask, beams))
    settle((there.decoder.cache, there.beams), (cache, beams))
    return there


def shrink(
    steps: CapturedSteps, step: GraphedStep, left: list[DecodingRequest], at: int
) -> tuple[GraphedStep, list[DecodingRequest], dict[int, list[Hypothesis]]]:
    """A step for those that go on. It is filled up with some that are done, which are backtracked with the last."""
    done = (step.beams.finished_step >= 0).tolist()
    rows = sorted(range(len(left)), key=lambda row: done[row])
    count = max(next_power(len(rows) - sum(done)), MIN_SENTENCES)
    staying, leaving = rows[:count], rows[count:]
    gone = backtrack(step.beams, *real(left, leaving), at)
    kept = torch.tensor(staying, device=step.status.device)
    there = move(steps, step, copy_rows(step.decoder.cache, kept), select_sentences(step.beams, kept))
    return there, [left[row] for row in staying], gone


def copy_rows(cache: BeamKVCache, rows: Tensor) -> BeamKVCache:
    """As `keep_sentences`, but copied: one kernel to each store, and the host need not wait to know who is moved."""
    sources, past = (tuple((k[rows], v[rows]) for k, v in layers) for layers in (cache.sources, cache.past))
    return BeamKVCache(sources, cache.source_mask[rows], past, cache.seen[rows], cache.at)


def real(left: Sequence[DecodingRequest], rows: Sequence[int]) -> tuple[list[DecodingRequest], list[int]]:
    rows = [row for row in rows if left[row] is not NOBODY]
    return [left[row] for row in rows], rows


def capture_step(model: Transformer, shape: GraphShape, capture: GraphCapture | None) -> GraphedStep:
    """Fresh buffers, and the step captured on them."""
    bias, beam = model.embeddings.bias, Beam(shape.beams, n_best=shape.best, max_length=LengthLimit(0, shape.steps))
    nobody, allowed = [NOBODY] * shape.sentences, Constraints(min_length=shape.shortest)
    beams = initial_beam_state(beam, nobody, allowed, len(bias), bias.device)
    if shape.forcing:
        beams = replace(beams, forced=torch.full((shape.steps, shape.sentences), -1, device=bias.device))
    decoder = TransformerBeams.of(
        model,
        [()] * shape.sentences,
        beams=shape.beams,
        slots=shape.slots,
        steps=shape.steps,
        multiple=shape.source,
    )
    status = torch.zeros(3, dtype=torch.long, device=bias.device)

    def work() -> Tensor:
        at = decoder.cache.at[:, 0].clone()
        states = decoder.step(beams.tokens, beams.parents)
        advance_beams(beams, decoder, states, at, forcing=shape.forcing)
        used = decoder.cache.seen.any(1).sum(-1).max()
        return status.copy_(torch.stack(((beams.finished_step < 0).sum(), used, beams.nonfinite.long())))

    replay = work if capture is None or not bias.is_cuda else capture(work, bias.device)[0]
    return GraphedStep(shape, decoder, beams, status, replay)


def capture_encoder(model: Transformer, sources: PaddedSources, capture: GraphCapture) -> GraphedEncoder:
    """The encoder captured on the sources of a first batch."""
    encoded: list[tuple[KeysValues, ...]] = []

    def work() -> Tensor:
        encoded[:] = [encode_padded(model, *sources)]
        return encoded[0][0][0]

    replay, _ = capture(work, sources[0].device)
    return GraphedEncoder(sources, encoded[0], replay)


def settle(there: Any, here: Any) -> None:
    """Every number of one value into the buffers of another of the same shapes."""
    if isinstance(there, Tensor):
        there.copy_(here)
    elif isinstance(there, tuple):
        for one, other in zip(there, here, strict=True):
            settle(one, other)
    elif is_dataclass(there):
        for field in fields(there):
            settle(getattr(there, field.name), getattr(here, field.name))


def mask_kernels(device: torch.device) -> AbstractContextManager[Any]:
    """Kernels that take a mask and need no plan of their own for every shape."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class DelayedStatus:
    """The status after the step before the last, so that one step is always under way while the host reads."""

    def __init__(self, device: torch.device):
        self.cuda, self.count = device.type == "cuda", 0
        self.kept = [torch.zeros(3, dtype=torch.long, pin_memory=self.cuda) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)] if self.cuda else []

    def read(self, status: Tensor) -> list[int]:
        now, before = self.count % 2, (self.count + 1) % 2
        self.kept[now].copy_(status, non_blocking=True)
        if self.cuda:
            self.events[now].record()
        self.count += 1
        if self.count == 1:
            return [1, 0, 0]
        if self.cuda:
            self.events[before].synchronize()
        return self.kept[before].tolist()


def next_power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
