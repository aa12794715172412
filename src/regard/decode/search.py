"""Search: what is requested, hypotheses, constraints, the abstract search strategy, and Wu's penalties."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import AttentionRecord
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.decode.model import DecodableModel


@dataclass(frozen=True)
class LengthLimit:
    """At most `factor` times the source's tokens and `offset` more, EOS included. `LengthLimit(0, 50)` is absolute."""

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
    """

    ids: tuple[int, ...]
    scores: tuple[float, ...]
    finished: bool
    score: float

    @property
    def log_probability(self) -> float:
        """log P(exactly these tokens | source), EOS included if it is finished."""
        return sum(self.scores, 0.0)


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


@dataclass(frozen=True)
class PartialHypothesis:
    """A hypothesis that is still being extended: its tokens, and the log-probability of each."""

    request: DecodingRequest
    sample_index: int = 0
    tokens: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    total: float = 0.0

    @property
    def forced_token(self) -> int | None:
        """The token that must come next, if one must."""
        step = len(self.tokens)
        return self.request.prefix[step] if step < len(self.request.prefix) else None

    def extend(self, token: int, score: float) -> "PartialHypothesis":
        return PartialHypothesis(
            self.request, self.sample_index, (*self.tokens, token), (*self.scores, score), self.total + score
        )

    def finish(self, end: float, score: float) -> Hypothesis:
        """Finished by EOS, whose log-probability is `end`."""
        return Hypothesis(self.tokens, (*self.scores, end), finished=True, score=score)

    def truncate(self, score: float) -> Hypothesis:
        """Stopped before the model produced EOS."""
        return Hypothesis(self.tokens, self.scores, finished=False, score=score)


# --- constraints ---


@dataclass(frozen=True)
class Constraints:
    """Which tokens may come next. PAD and BOS never may.

    Args:
        banned: tokens that are never produced.
        min_length: how many tokens come before EOS may.
        allowed_next: from the tokens so far, all that may follow, EOS included where it may.
    """

    banned: frozenset[int] = frozenset()
    min_length: int = 0
    allowed_next: Callable[[tuple[int, ...]], Collection[int]] | None = None


def mask_disallowed(
    scores: Float[Tensor, "n v"], rows: Sequence[PartialHypothesis], constraints: Constraints
) -> Float[Tensor, "n v"]:
    """The log-probabilities unchanged where a token is allowed, and -∞ elsewhere."""
    if not scores.amax(-1).isfinite().all():
        raise ValueError(
            "the model's probabilities are not finite: its weights hold NaN or infinity; load another checkpoint"
        )
    banned = {PAD, BOS, *constraints.banned} | ({EOS} if len(rows[0].tokens) < constraints.min_length else set())
    vocabulary, device = scores.shape[-1], scores.device
    masked = scores.index_fill(-1, token_index(banned, vocabulary, device), -torch.inf)
    for n, row in enumerate(rows):
        if row.forced_token is not None:  # even a banned token
            only, values = token_index([row.forced_token], vocabulary, device), scores[n]
        elif constraints.allowed_next is not None:
            only, values = token_index(constraints.allowed_next(row.tokens), vocabulary, device), masked[n]
        else:
            continue
        masked[n] = torch.full_like(values, -torch.inf).index_copy(0, only, values[only])
    return masked


def token_index(tokens: Collection[int], vocabulary: int, device: torch.device) -> Int[Tensor, " tokens"]:
    """The tokens as an index tensor; all must be in the vocabulary."""
    if strange := [token for token in tokens if not 0 <= token < vocabulary]:
        raise ValueError(f"token {strange[0]} is not in the vocabulary of {vocabulary}")
    return torch.tensor(sorted(set(tokens)), dtype=torch.long, device=device)


# --- search strategies ---


class Search(ABC):
    """Abstract: a search strategy, a frozen value."""

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


def stable_topk(scores: Float[Tensor, "n v"], count: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """The `count` best of every row and their ids, best first; of ties the lower id first."""
    count = min(count, scores.shape[-1])
    if count == scores.shape[-1]:
        return torch.sort(scores, dim=-1, descending=True, stable=True)
    values, ids = scores.topk(count, -1)
    # topk orders ties arbitrarily. Inside the list two stable sorts repair that; at its border, where some ties are in
    # and others out, the whole row has to be sorted. Both are rare, and the second is expensive.
    ids, order = ids.sort(-1)
    values, again = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    ids, last = ids.gather(-1, again), values[:, -1:]
    tied = ((scores >= last).sum(-1) > count) & (last[:, 0] > -torch.inf)
    if tied.any():
        sorted_values, sorted_ids = torch.sort(scores[tied], dim=-1, descending=True, stable=True)
        values[tied], ids[tied] = sorted_values[:, :count], sorted_ids[:, :count]
    return values, ids


# --- penalties ---


MAX_PENALTY = 64.0  # an exponent that float64 can still raise any length to
MIN_COVERAGE = 1e-9  # a source token that was never attended to costs much, but not infinity


def length_penalty(length: int, alpha: float) -> float:
    """lp(y) = ((5 + |y|) / 6)^α, where |y| counts EOS."""
    return ((5 + length) / 6) ** alpha


def cross_attention_sites(record: AttentionRecord) -> list[str]:
    """The attentions from target tokens to the source (or a latent) among those that were recorded."""
    return [site.name for site in record.sites if site.queries == "written"]


def mean_cross_attention(record: AttentionRecord) -> Float[Tensor, "n s"]:
    """The cross-attention of the token just predicted: the mean over the heads of the last layer."""
    if not (sites := cross_attention_sites(record)):
        raise ValueError("the model has no cross-attention to compute coverage from; use coverage_penalty=0")
    return reduce(record.weights(sites[-1])[:, :, -1], "n h s -> n s", "mean")


def coverage_penalty(coverage: Float[Tensor, "n s"], lengths: Int[Tensor, " n"], beta: float) -> Float[Tensor, " n"]:
    """cp(x, y) = β Σᵢ log min(Σⱼ weightⱼᵢ, 1) over the source tokens i, EOS included, and target tokens j."""
    real = torch.arange(coverage.shape[-1], device=coverage.device) < rearrange(lengths, "n -> n 1")
    return beta * torch.where(real, coverage.clamp(MIN_COVERAGE, 1.0).log(), 0.0).sum(-1)
