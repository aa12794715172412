"""Decodable models: the protocols that searches decode with, inference mode, and batches by token budget."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.data.tokenizers.base import BOS, EOS, PAD


def batch_by_tokens(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices in batches whose padded size, rows × longest, is at most `tokens`; the longest come first.

    One that is over the budget by itself makes a batch of its own.
    """
    if tokens < 1:
        raise ValueError(f"a budget of {tokens} tokens fits nothing; give at least 1")
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


# --- the protocol ---


@runtime_checkable
class Reorderable(Protocol):
    """A value with one row per sentence: the encoded sources, or the decoder's state (its KV cache)."""

    def pick(self, rows: Tensor) -> "Reorderable":
        """These rows in this order; a row may be left out or repeated."""
        ...


@runtime_checkable
class DecodableModel(Protocol):
    """`encode` the sources once, `start` a state, and `step` it over target tokens, one or many at a time."""

    def encode(self, source: Tensor, lengths: Tensor) -> Reorderable: ...
    def start(self, memory: Any) -> Reorderable: ...
    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Reorderable]: ...
    def eval(self) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...  # noqa: FBT001, FBT002  (torch's own)


@runtime_checkable
class BeamDecoder(Protocol):
    """The hidden states of all beams of all sentences, step by step; its state follows the parents of the beams.

    Attributes:
        vocabulary: how many tokens there are to choose from.
        output: from hidden states to logits.
        bias: of the logits, if `output` leaves it to whoever reads them, as on a GPU; otherwise None.
        covered: the coverage penalty of each beam, if it ended here; None without a coverage penalty.
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def output(self) -> Callable[[Tensor], Tensor]: ...
    @property
    def bias(self) -> Tensor | None: ...
    @property
    def covered(self) -> Tensor | None: ...

    def live(self, goes: Bool[Tensor, "b k"]) -> Int[Tensor, " n"] | None:
        """The flat indices of the beams to compute, of those that go on; None computes all beams."""
        ...

    def step(
        self, tokens: Int[Tensor, "b k"], parents: Int[Tensor, "b k"], live: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n model"]:
        """The hidden states of all (or the live) beams, after the last token of each, which its parent beam went on
        with."""
        ...

    def keep(self, rows: Int[Tensor, " n"]) -> "BeamDecoder":
        """These sentences alone; the decoder of the others is lost."""
        ...

    def ensure_slots(self) -> None:
        """Room for one more token of every beam."""
        ...


@dataclass
class EvalModeCounter:
    """For each module that was in training mode: how many callers hold it in eval mode at the moment."""

    parts: WeakKeyDictionary[nn.Module, int] = field(default_factory=WeakKeyDictionary)
    lock: Lock = field(default_factory=Lock)

    def begin(self, model: DecodableModel | nn.Module) -> list[nn.Module]:
        with self.lock:
            others = bool(self.parts)
            held = [part for part in model.modules() if part.training or (others and part in self.parts)]
            for part in held:
                self.parts[part] = self.parts.get(part, 0) + 1
                part.training = False
            return held

    def end(self, held: list[nn.Module]) -> None:
        with self.lock:
            for part in held:
                self.parts[part] -= 1
                if not self.parts[part]:
                    del self.parts[part]
                    part.training = True


EVAL_MODE = EvalModeCounter()  # of the process: `training` is one flag of a module for all threads


@contextmanager
def inference_mode(model: DecodableModel | nn.Module) -> Iterator[None]:
    """Eval mode and `torch.no_grad`, not `torch.inference_mode`. When the last of several callers leaves, every module
    that was in training mode before the first is so again."""
    held = EVAL_MODE.begin(model)
    try:
        # not torch.inference_mode: a tensor that the model caches now could never take part in training
        with torch.no_grad():
            yield
    finally:
        EVAL_MODE.end(held)


def device_of(model: DecodableModel) -> torch.device:
    return next(model.parameters()).device


def encode_sources(model: DecodableModel, sources: Sequence[Sequence[int]]) -> tuple[Reorderable, Int[Tensor, " b"]]:
    """The encoded sources, and the length of each, its EOS included."""
    lengths = torch.tensor([len(source) + 1 for source in sources], device=device_of(model))
    rows = [torch.tensor([*source, EOS]) for source in sources]
    return model.encode(pad_sequence(rows, batch_first=True, padding_value=PAD).to(lengths.device), lengths), lengths


def decoder_inputs(targets: Sequence[Sequence[int]]) -> Int[Tensor, "b t"]:
    """The targets behind BOS: what the decoder reads to predict them."""
    rows = [torch.tensor([BOS, *target]) for target in targets]
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


def log_probabilities(logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows v"]:
    """Log-softmax in float32 at least, whatever precision the model runs in."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return logits.log_softmax(-1)
