"""Sources and forced beginnings in; requests, and translations on their way, out."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Longest
from regard.text.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True)
class Request:
    """One sentence to translate; `index` is its place among all of them, so that batches do not change its draws."""

    source: tuple[int, ...]
    prefix: tuple[int, ...] = ()
    index: int = 0

    def __post_init__(self):
        plain(self.source, f"source {self.index}")
        plain(self.prefix, f"the prefix of source {self.index}")

    def limit(self, longest: Longest) -> int:
        """A limit never cuts what is forced, nor forbids it to end."""
        return max(longest.of(len(self.source)), len(self.prefix) + 1)


def requests(sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None) -> list[Request]:
    if prefixes is not None and len(prefixes) != len(sources):
        raise ValueError(f"{len(prefixes)} prefixes for {len(sources)} sources: give one each, () where none is forced")
    return [
        Request(tuple(source), () if prefixes is None else tuple(prefixes[index]), index)
        for index, source in enumerate(sources)
    ]


def plain(ids: Sequence[int], name: str) -> None:
    """Ids as a tokeniser's `encode` gives them: the frame of a sentence is added here."""
    if framed := {PAD, BOS, EOS} & set(ids):
        raise ValueError(f"{name} holds the special token {min(framed)} already: give plain ids, without bos, eos, pad")


@dataclass(frozen=True)
class Row:
    """A translation on its way: what is written, and the log-probability of each token. `draw` counts samples."""

    request: Request
    draw: int = 0
    written: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    total: float = 0.0

    @property
    def forced(self) -> int | None:
        """The token that must come next, if one must."""
        at = len(self.written)
        return self.request.prefix[at] if at < len(self.request.prefix) else None

    def then(self, token: int, score: float) -> "Row":
        return Row(self.request, self.draw, (*self.written, token), (*self.scores, score), self.total + score)

    def ended(self, end: float, score: float) -> Hypothesis:
        """The model ends it; `end` is the end's own log-probability."""
        return Hypothesis(self.written, (*self.scores, end), finished=True, score=score)

    def cut(self, score: float) -> Hypothesis:
        """It has to stop before the model ends it."""
        return Hypothesis(self.written, self.scores, finished=False, score=score)
