"""Alignments found and alignments annotated in; how well they agree, and which head agrees best, out."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from regard.decode.alignment import Head, all_heads, hard, merge, mixture
from regard.decode.force import Attention, looked
from regard.decode.model import Model

Link = tuple[int, int]


@dataclass(frozen=True)
class Agreement:
    """Counts of links; agreements of several sentences add up. Och & Ney (2003), section 5."""

    found: int = 0
    sure: int = 0
    found_and_sure: int = 0
    found_and_possible: int = 0

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(
            self.found + other.found,
            self.sure + other.sure,
            self.found_and_sure + other.found_and_sure,
            self.found_and_possible + other.found_and_possible,
        )

    @property
    def precision(self) -> float:
        """|A ∩ P| / |A|: of what was found, the part that is possible."""
        return self.found_and_possible / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """|A ∩ S| / |S|: of what is sure, the part that was found."""
        return self.found_and_sure / self.sure if self.sure else 1.0

    @property
    def error(self) -> float:
        """Alignment error rate: 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)."""
        both = self.found + self.sure
        return 1 - (self.found_and_sure + self.found_and_possible) / both if both else 0.0


def agreement(sure: Set[Link], possible: Set[Link], found: Set[Link]) -> Agreement:
    """One sentence. What is sure is possible too, whether `possible` repeats it or not."""
    return Agreement(len(found), len(sure), len(found & sure), len(found & (possible | sure)))


def aer(sure: Set[Link], possible: Set[Link], found: Set[Link]) -> float:
    """The alignment error rate of one sentence; for a corpus add up its agreements and ask for their error."""
    return agreement(sure, possible, found).error


@dataclass(frozen=True)
class Annotated:
    """A sentence pair whose alignment is known: ids, the word each id belongs to, and links (source, target)."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    source_words: tuple[int, ...]
    target_words: tuple[int, ...]
    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()


def agreement_of(heads: Sequence[Head], seen: Sequence[Attention], examples: Sequence[Annotated]) -> Agreement:
    """How well the mean of these heads agrees with the annotation, over all examples."""
    total = Agreement()
    for attention, example in zip(seen, examples, strict=True):
        words = merge(mixture(attention, heads), example.target_words, example.source_words)
        total += agreement(example.sure, example.possible, hard(words))
    return total


def choose_head(model: Model, examples: Sequence[Annotated]) -> Head:
    """The head that agrees best with the annotation; of equals the first."""
    seen = attention_to(model, examples)
    return min(all_heads(seen[0]), key=lambda head: agreement_of([head], seen, examples).error)


def choose_heads(model: Model, examples: Sequence[Annotated]) -> tuple[Head, ...]:
    """A mixture: the best head, and each time the one that helps it most, for as long as one helps."""
    seen = attention_to(model, examples)
    chosen: tuple[Head, ...] = ()
    least = 1.0
    while True:
        errors = {
            head: agreement_of([*chosen, head], seen, examples).error
            for head in all_heads(seen[0])
            if head not in chosen
        }
        best = min(errors, key=lambda head: errors[head], default=None)
        if best is None or (chosen and errors[best] >= least):
            return chosen
        chosen, least = (*chosen, best), errors[best]


def attention_to(model: Model, examples: Sequence[Annotated]) -> list[Attention]:
    if not examples:
        raise ValueError("no head can be chosen without examples whose alignment is known")
    return looked(model, [example.source for example in examples], [example.target for example in examples])
