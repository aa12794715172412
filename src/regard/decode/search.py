"""Search: translates a batch by a search strategy; its requests, constraints and hypotheses."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from jaxtyping import Int
from torch import Tensor

from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.models.seq2seq import DecodableModel, inference_mode
from regard.models.transformer import Transformer

Ids = Sequence[int]  # plain ones, as a tokeniser's `encode` gives them: the search adds BOS and EOS
NOT_FINITE = "the model's probabilities are not finite: its weights hold NaN or infinity; load another checkpoint"


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


def make_requests(sources: Sequence[Ids], prefixes: Sequence[Ids] | None = None) -> list[DecodingRequest]:
    prefixes = [()] * len(sources) if prefixes is None else prefixes
    if len(prefixes) != len(sources):
        raise ValueError(f"{len(prefixes)} prefixes for {len(sources)} sources; give one each, () where none is forced")
    return [
        DecodingRequest(tuple(source), tuple(prefix), index)
        for index, (source, prefix) in enumerate(zip(sources, prefixes, strict=True))
    ]


def check_plain_ids(ids: Ids, name: str) -> None:
    if framed := {PAD, BOS, EOS} & set(ids):
        raise ValueError(f"{name} holds the special token {min(framed)} already; give plain ids, without BOS, EOS, PAD")


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
class Constraints:
    """Which tokens may come next. PAD and BOS never may.

    Args:
        banned: tokens that are never produced.
        min_length: how many tokens come before EOS may.
        allowed_next: from the tokens so far, all that may follow, EOS included where it may.
        stop: tokens that end the text of a language model; they are not part of it.

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
    stop: frozenset[int] = frozenset()


def token_index(tokens: Collection[int], vocabulary: int, device: torch.device) -> Int[Tensor, " tokens"]:
    """The tokens as an index tensor; all must be in the vocabulary."""
    if strange := [token for token in tokens if not 0 <= token < vocabulary]:
        raise ValueError(f"token {strange[0]} is not in the vocabulary of {vocabulary}")
    return torch.tensor(sorted(set(tokens)), dtype=torch.long, device=device)


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


def translate(
    model: DecodableModel,
    sources: Sequence[Ids],
    search: Search,
    *,
    prefixes: Sequence[Ids] | None = None,
    constraints: Constraints = Constraints(),
) -> list[list[Hypothesis]]:
    """All sources as one batch; of each its hypotheses, best first (samples in the order in which they are drawn).

    Args:
        model: a model, or one that `prepare` has made faster, which pays for more than one batch.
        sources: plain ids, as a tokeniser's `encode` gives them.
        search: Greedy, Beam or Sampling.
        prefixes: for every source the ids that its translations must begin with.
        constraints: which tokens are allowed.

    Examples:
        >>> translator = regard.load("run")
        >>> source, prefix = translator.source.encode("the cat sleeps"), translator.target.encode("le chat")
        >>> ((found,),) = translate(translator.model, [source], Beam(4), prefixes=[prefix])
        >>> translator.target.decode(found.ids[:2])
        'le chat'
    """
    requests = make_requests(sources, prefixes)
    return search_batch(model, requests, search, constraints) if requests else []


def search_batch(
    model: DecodableModel, requests: Sequence[DecodingRequest], search: Search, constraints: Constraints
) -> list[list[Hypothesis]]:
    """The hypotheses of every request; a prepared model is in eval mode for good."""
    frozen = isinstance(model, Transformer) and model.prepared and not model.training
    with torch.no_grad() if frozen else inference_mode(model):
        return search.run(model, requests, constraints)
