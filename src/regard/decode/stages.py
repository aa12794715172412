"""CUDA graphs of beam search: one captured decoding step for every shape of batch.

A step of a Transformer is a hundred small kernels, and to launch them one by one takes longer than to run them. So a
step is captured once for every shape and then replayed. Shapes come in few sizes: sentences and slots in powers of
two, sources in multiples of 16; a search moves to a smaller stage when half its sentences are done, and to a wider one
when its slots run out. The host looks one step behind, so the device never waits for it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.decode.beam_state import BeamState, SearchRules, advance_beams, backtrack, initial_beam_state
from regard.decode.ready import PreparedModel
from regard.decode.room import BeamKVCache, room_for, step
from regard.decode.search import Constraints, DecodingRequest, Hypothesis

if TYPE_CHECKING:
    from regard.decode.beam import Beam

MOST = 16  # stages kept; the one that was made first goes first
LEAST = 32  # sentences: with fewer a step is hardly faster
SLOTS = 64
MULTIPLE = 16
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
    """Buffers, and the step that works on them. `signs`: how many go on, slots in use, whether something broke."""

    shape: GraphShape
    room: BeamKVCache
    lanes: BeamState
    rules: SearchRules
    signs: Tensor
    places: Tensor  # a graph knows addresses alone; whatever it reads must be held by somebody
    go: Callable[[], None]


def run(
    ready: PreparedModel, beam: "Beam", requests: Sequence[DecodingRequest], allowed: Constraints
) -> list[list[Hypothesis]]:
    with torch.inference_mode(), attending(ready.device):
        found, stage, left = dict[int, list[Hypothesis]](), *begin(ready, beam, requests, allowed)
        watch = Watch(ready.device)
        at = 0
        while True:
            stage.go()
            at += 1
            going, used, broken = watch.look(stage.signs)
            if broken:
                raise ValueError(
                    "the model gives probabilities that are not numbers: its weights are broken (nan or infinite)"
                )
            if not going:
                break
            if used + 3 * beam.size > stage.shape.slots:
                stage = moved(ready, stage, stage.room.wider(2 * stage.shape.slots), stage.lanes)
            elif LEAST <= going <= stage.shape.sentences // 2:
                stage, left, gone = smaller(ready, stage, left, beam, at)
                found |= gone
        found |= backtrack(stage.lanes, *real(left, range(len(left))), beam, at)
    return [found[request.index] for request in requests]


def begin(
    ready: PreparedModel, beam: "Beam", requests: Sequence[DecodingRequest], allowed: Constraints
) -> tuple[GraphedStep, list[DecodingRequest]]:
    """The first stage, and whose rows it has: those beyond the requests are nobody's."""
    asked = [*requests, *[NOBODY] * (power(len(requests)) - len(requests))]
    limits = [request.max_length(beam.max_length) for request in asked]
    steps = power(max(limits) + 2)  # the host may be two steps late
    vocabulary = len(ready.model.embeddings.bias)
    rules = SearchRules.of(beam.length_penalty, allowed, beam.size, steps, vocabulary, ready.device)
    lanes = initial_beam_state(asked, limits, rules, beam.n_best, beam.length_penalty, steps)
    lanes.finished_step[len(requests) :] = 0
    slots = max(SLOTS, power(4 * beam.size))
    room = room_for(ready, [request.source for request in asked], beam.size, slots, multiple=MULTIPLE)
    stage = stage_of(ready, shape_of(room, lanes, rules))
    settle((stage.room, stage.lanes, stage.rules), (room, lanes, rules))
    return stage, asked


def shape_of(room: BeamKVCache, lanes: BeamState, rules: SearchRules) -> GraphShape:
    sentences, beams, slots = room.seen.shape
    steps, forcing = len(lanes.backpointers.tokens), len(lanes.forced) > 0
    best, source = lanes.best_finished.shape[1], room.hidden.shape[-1]
    return GraphShape(sentences, beams, best, source, slots, steps, forcing, rules.min_length)


def moved(ready: PreparedModel, stage: GraphedStep, room: BeamKVCache, lanes: BeamState) -> GraphedStep:
    """Another stage that goes on where this one stands."""
    there = stage_of(ready, shape_of(room, lanes, stage.rules))
    settle((there.room, there.lanes, there.rules), (room, lanes, stage.rules))
    return there


def smaller(
    ready: PreparedModel, stage: GraphedStep, left: list[DecodingRequest], beam: "Beam", steps: int
) -> tuple[GraphedStep, list[DecodingRequest], dict[int, list[Hypothesis]]]:
    """A stage for those that go on. It is filled up with some that are done, which are told with the last."""
    done = (stage.lanes.finished_step >= 0).tolist()
    rows = sorted(range(len(left)), key=lambda row: done[row])
    count = max(power(len(rows) - sum(done)), LEAST)
    staying, leaving = rows[:count], rows[count:]
    gone = backtrack(stage.lanes, *real(left, leaving), beam, steps)
    kept = torch.tensor(staying, device=stage.signs.device)
    there = moved(ready, stage, stage.room.pick(kept), stage.lanes.select(kept))
    return there, [left[row] for row in staying], gone


def real(left: Sequence[DecodingRequest], rows: Sequence[int]) -> tuple[list[DecodingRequest], list[int]]:
    rows = [row for row in rows if left[row] is not NOBODY]
    return [left[row] for row in rows], rows


def stage_of(ready: PreparedModel, shape: GraphShape) -> GraphedStep:
    if shape not in ready.stages:
        while len(ready.stages) >= MOST:
            ready.stages.pop(next(iter(ready.stages)))
        ready.stages[shape] = made(ready, shape)
    return ready.stages[shape]


def made(ready: PreparedModel, shape: GraphShape) -> GraphedStep:
    """Fresh buffers, and the step captured on them."""
    nobody = [NOBODY] * shape.sentences
    bias = ready.model.embeddings.bias
    allowed = Constraints(min_length=shape.shortest)
    rules = SearchRules.of(0.0, allowed, shape.beams, shape.steps, len(bias), ready.device)
    lanes = initial_beam_state(nobody, [shape.steps] * shape.sentences, rules, shape.best, 0.0, shape.steps)
    if shape.forcing:
        lanes = replace(lanes, forced=torch.full((shape.steps, shape.sentences), -1, device=ready.device))
    room = room_for(ready, [()] * shape.sentences, shape.beams, shape.slots, multiple=shape.source)
    places = ready.places(shape.steps)
    signs = torch.zeros(3, dtype=torch.long, device=ready.device)

    def once() -> None:
        at = room.at.clone()
        states = step(ready, room, lanes.tokens, lanes.parents, places.index_select(0, at), width=room.slots)
        advance_beams(lanes, rules, states, ready.words, bias, at, forcing=shape.forcing)
        used = room.seen.any(1).sum(-1).max()
        signs.copy_(torch.stack(((lanes.finished_step < 0).sum(), used, lanes.nonfinite.long())))

    go = captured(once) if ready.device.type == "cuda" else once
    return GraphedStep(shape, room, lanes, rules, signs, places, go)


def captured(once: Callable[[], None]) -> Callable[[], None]:
    """Run twice beside everything else, so that libraries have chosen their kernels; then kept as a graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        once()
        once()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph.replay


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


def attending(device: torch.device) -> AbstractContextManager[Any]:
    """Kernels that take a mask and need no plan of their own for every shape."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class Watch:
    """The signs of the step before the last, so that one step is always under way while the host looks."""

    def __init__(self, device: torch.device):
        self.cuda, self.count = device.type == "cuda", 0
        self.kept = [torch.zeros(3, dtype=torch.long, pin_memory=self.cuda) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)] if self.cuda else []

    def look(self, signs: Tensor) -> list[int]:
        now, before = self.count % 2, (self.count + 1) % 2
        self.kept[now].copy_(signs, non_blocking=True)
        if self.cuda:
            self.events[now].record()
        self.count += 1
        if self.count == 1:
            return [1, 0, 0]
        if self.cuda:
            self.events[before].synchronize()
        return self.kept[before].tolist()


def power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
