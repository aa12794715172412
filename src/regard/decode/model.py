"""What decoding asks of a model: the verbs of a sequence-to-sequence model, and the state it must be in."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.text.vocabulary import BOS, EOS, PAD


@runtime_checkable
class Pickable(Protocol):
    """A value about several sentences, one to a row: the encoded sources, or how far the decoder has read."""

    def pick(self, rows: Tensor) -> "Pickable":
        """These rows in this order; a row may be left out or come twice."""
        ...


@runtime_checkable
class Looked(Protocol):
    """Where the model looked."""

    @property
    def weights(self) -> Mapping[str, Tensor]: ...


@runtime_checkable
class Model(Protocol):
    """`encode` the sources once, `start` a state, and `step` it over target tokens, one or many at a time."""

    def encode(self, source: Tensor, lengths: Tensor) -> Pickable: ...
    def start(self, memory: Any) -> Pickable: ...
    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Pickable]: ...
    def look(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Pickable, Looked]: ...
    def eval(self) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...  # noqa: FBT001, FBT002  (torch's own)


@dataclass
class Resting:
    """How many let a part rest at the moment, of those that trained before the first of them came."""

    parts: WeakKeyDictionary[nn.Module, int] = field(default_factory=WeakKeyDictionary)
    lock: Lock = field(default_factory=Lock)

    def begin(self, model: Model | nn.Module) -> list[nn.Module]:
        with self.lock:
            tired = [part for part in model.modules() if part.training or part in self.parts]
            for part in tired:
                self.parts[part] = self.parts.get(part, 0) + 1
                part.training = False
            return tired

    def end(self, tired: list[nn.Module]) -> None:
        with self.lock:
            for part in tired:
                self.parts[part] -= 1
                if not self.parts[part]:
                    del self.parts[part]
                    part.training = True


RESTING = Resting()  # of the process: whether a part trains is one switch for all its threads


@contextmanager
def at_rest(model: Model | nn.Module) -> Iterator[None]:
    """No dropout and no gradients; when the last of those who ask for it at once has left, every part trains again
    that did before the first."""
    tired = RESTING.begin(model)
    try:
        # not inference_mode: a table that the model makes now and keeps could never be trained through
        with torch.no_grad():
            yield
    finally:
        RESTING.end(tired)


def device_of(model: Model) -> torch.device:
    return next(model.parameters()).device


def encoded(model: Model, sources: Sequence[Sequence[int]]) -> tuple[Pickable, Int[Tensor, " b"]]:
    """The memory of the sources, and how many tokens each has: its own and the end."""
    lengths = torch.tensor([len(source) + 1 for source in sources], device=device_of(model))
    rows = [torch.tensor([*source, EOS]) for source in sources]
    return model.encode(pad_sequence(rows, batch_first=True, padding_value=PAD).to(lengths.device), lengths), lengths


def target_in(targets: Sequence[Sequence[int]]) -> Int[Tensor, "b t"]:
    """What the decoder reads to predict the targets."""
    rows = [torch.tensor([BOS, *target]) for target in targets]
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


def log_probabilities(logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows v"]:
    """The model's own log-probabilities: in 32 bits at least, however little precision the model runs in."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return logits.log_softmax(-1)
