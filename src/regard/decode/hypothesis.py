"""Hypotheses: what is requested of a search, the partial and finished hypotheses, and the length limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.data.tokenizers.base import BOS, EOS, PAD


@dataclass(frozen=True)
class LengthLimit:
    """At most `factor` times the source's tokens and `offset` more, EOS included. `LengthLimit(0, 50)` is absolute."""

    factor: float = 2.0
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
        return sum(self.scores)


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
