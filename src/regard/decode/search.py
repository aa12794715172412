"""Search: the protocols of decodable models and search strategies; requests, constraints, hypotheses."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from threading import Lock
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.data.tokenizers.base import BOS, EOS, PAD

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


@dataclass(frozen=True)
class LengthLimit:
    """At most `factor` times the source's tokens and `offset` more, EOS included. `LengthLimit(0, 50)` is absolute.

    Examples:
        >>> LengthLimit(factor=2.0, offset=10).of(7), LengthLimit(0, 50).of(7)
        (24, 50)
    """

    factor: int | float = 2.0
    offset: int = 10

    def __post_init__(self):
        if self.factor < 0 or self.offset < 1:
            raise ValueError(
                f"a limit of {self.factor} × source + {self.offset} leaves no token; give an offset of at least 1"
            )

    def of(self, source: int) -> int:
        return int(self.factor * source) + self.offset


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation, or one that was truncated.

    Args:
        ids: its tokens, without EOS.
        scores: the model's log-probability of every token, and of EOS if it is finished.
        finished: whether the model produced EOS; otherwise it met the length limit, or no token was allowed.
        score: what the search ranked it by; log-probability and score differ where a beam has penalties.

    Examples:
        >>> found = Hypothesis(ids=(5, 6), scores=(-0.5, -0.25, -0.125), finished=True, score=-0.875)
        >>> found.log_probability
        -0.875
    """

    ids: tuple[int, ...]
    scores: tuple[float, ...]
    finished: bool
    score: float

    @property
    def log_probability(self) -> float:
        """log P(exactly these tokens | source), EOS included if it is finished."""
        return reduce(add, self.scores, 0.0)  # as the search adds; from Python 3.12 on `sum` rounds otherwise


@dataclass(frozen=True)
class DecodingRequest:
    """One source to decode, with a forced prefix; samples depend on `index`, its index among all, not on its batch."""

    source: tuple[int, ...]
    prefix: tuple[int, ...] = ()
    index: int = 0

    def __post_init__(self):
        check_plain_ids(self.source, f"source {self.index}")
        check_plain_ids(self.prefix, f"the prefix of source {self.index}")

    def max_length(self, max_length: LengthLimit) -> int:
        """The limit for this source: never below its prefix and EOS."""
        return max(max_length.of(len(self.source)), len(self.prefix) + 1)


def make_requests(
    sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None
) -> list[DecodingRequest]:
    if prefixes is not None and len(prefixes) != len(sources):
        raise ValueError(f"{len(prefixes)} prefixes for {len(sources)} sources; give one each, () where none is forced")
    return [
        DecodingRequest(tuple(source), () if prefixes is None else tuple(prefixes[index]), index)
        for index, source in enumerate(sources)
    ]


def check_plain_ids(ids: Sequence[int], name: str) -> None:
    """Ids as a tokeniser's `encode` gives them: BOS and EOS are added by the search."""
    if framed := {PAD, BOS, EOS} & set(ids):
        raise ValueError(f"{name} holds the special token {min(framed)} already; give plain ids, without BOS, EOS, PAD")


# --- constraints ---


@dataclass(frozen=True)
class Constraints:
    """Which tokens may come next. PAD and BOS never may.

    Args:
        banned: tokens that are never produced.
        min_length: how many tokens come before EOS may.
        allowed_next: from the tokens so far, all that may follow, EOS included where it may.

    Examples:
        >>> translator = regard.load("run")
        >>> source, chat = translator.source.encode("the cat"), translator.target.encode("chat")[0]
        >>> rules = Constraints(min_length=3, allowed_next=lambda tokens: {2, chat})  # 2 is EOS
        >>> ((found,),) = translate(translator.model, [source], Greedy(LengthLimit(0, 4)), constraints=rules)
        >>> translator.target.decode(found.ids[:3])
        'chat chat chat'
    """

    banned: frozenset[int] = frozenset()
    min_length: int = 0
    allowed_next: Callable[[tuple[int, ...]], Collection[int]] | None = None


def token_index(tokens: Collection[int], vocabulary: int, device: torch.device) -> Int[Tensor, " tokens"]:
    """The tokens as an index tensor; all must be in the vocabulary."""
    if strange := [token for token in tokens if not 0 <= token < vocabulary]:
        raise ValueError(f"token {strange[0]} is not in the vocabulary of {vocabulary}")
    return torch.tensor(sorted(set(tokens)), dtype=torch.long, device=device)


# --- search strategies ---


class Search(ABC):
    """Abstract: a search strategy, a frozen value.

    Examples:
        >>> [isinstance(search, Search) for search in (Greedy(), Beam(4), Sampling())]
        [True, True, True]
        >>> Beam(4).width, Sampling(samples=3).width
        (4, 3)
    """

    @property
    @abstractmethod
    def width(self) -> int:
        """How many rows of a batch one sentence may take."""

    @abstractmethod
    def run(
        self, model: DecodableModel, requests: Sequence[DecodingRequest], constraints: Constraints
    ) -> list[list[Hypothesis]]:
        """The hypotheses of every request of one batch, best first, by a model in eval mode; none depends on the
        others."""


# --- penalties ---


MAX_PENALTY = 64.0  # an exponent that float64 can still raise any length to


def length_penalty(length: int, alpha: float) -> float:
    """lp(y) = ((5 + |y|) / 6)^α, where |y| counts EOS."""
    return ((5 + length) / 6) ** alpha


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
