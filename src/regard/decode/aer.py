"""Alignment error rate (AER): compares predicted links with gold ones, and selects the heads that align best."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from regard.decode.alignment import AlignmentHead, all_heads, argmax_links, average_heads, merge_subwords
from regard.decode.model import DecodableModel
from regard.decode.scoring import CrossAttentionMaps, cross_attention_maps

Link = tuple[int, int]


@dataclass(frozen=True)
class AlignmentCounts:
    """Counts of links, which add up over sentences. Och & Ney (2003), section 5."""

    predicted: int = 0
    sure: int = 0
    predicted_and_sure: int = 0
    predicted_and_possible: int = 0

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return AlignmentCounts(
            self.predicted + other.predicted,
            self.sure + other.sure,
            self.predicted_and_sure + other.predicted_and_sure,
            self.predicted_and_possible + other.predicted_and_possible,
        )

    @property
    def precision(self) -> float:
        """|A ∩ P| / |A|: the share of predicted links that are possible."""
        return self.predicted_and_possible / self.predicted if self.predicted else 1.0

    @property
    def recall(self) -> float:
        """|A ∩ S| / |S|: the share of sure links that are predicted."""
        return self.predicted_and_sure / self.sure if self.sure else 1.0

    @property
    def error(self) -> float:
        """Alignment error rate: 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)."""
        both = self.predicted + self.sure
        return 1 - (self.predicted_and_sure + self.predicted_and_possible) / both if both else 0.0


def count_links(sure: Set[Link], possible: Set[Link], predicted: Set[Link]) -> AlignmentCounts:
    """One sentence. What is sure is possible too, whether `possible` repeats it or not."""
    return AlignmentCounts(len(predicted), len(sure), len(predicted & sure), len(predicted & (possible | sure)))


def aer(sure: Set[Link], possible: Set[Link], predicted: Set[Link]) -> float:
    """The alignment error rate of one sentence; for a corpus, add up the counts and take their `error`."""
    return count_links(sure, possible, predicted).error


@dataclass(frozen=True)
class AnnotatedPair:
    """A sentence pair whose alignment is known: ids, the word each id belongs to, and links (source, target)."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    source_words: tuple[int, ...]
    target_words: tuple[int, ...]
    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()


def evaluate_heads(
    heads: Sequence[AlignmentHead], maps: Sequence[CrossAttentionMaps], examples: Sequence[AnnotatedPair]
) -> AlignmentCounts:
    """The link counts of the mean of these heads against the gold alignments, over all examples."""
    total = AlignmentCounts()
    for attention, example in zip(maps, examples, strict=True):
        words = merge_subwords(average_heads(attention, heads), example.target_words, example.source_words)
        total += count_links(example.sure, example.possible, argmax_links(words))
    return total


def choose_head(model: DecodableModel, examples: Sequence[AnnotatedPair]) -> AlignmentHead:
    """The head with the least AER; of ties the first."""
    maps = annotated_attention_maps(model, examples)
    return min(all_heads(maps[0]), key=lambda head: evaluate_heads([head], maps, examples).error)


def choose_heads(model: DecodableModel, examples: Sequence[AnnotatedPair]) -> tuple[AlignmentHead, ...]:
    """Greedy forward selection: the best head, then each time the one that lowers the AER of the mean most."""
    maps = annotated_attention_maps(model, examples)
    selected: tuple[AlignmentHead, ...] = ()
    least = 1.0
    while True:
        errors = {
            head: evaluate_heads([*selected, head], maps, examples).error
            for head in all_heads(maps[0])
            if head not in selected
        }
        best = min(errors, key=lambda head: errors[head], default=None)
        if best is None or (selected and errors[best] >= least):
            return selected
        selected, least = (*selected, best), errors[best]


def annotated_attention_maps(model: DecodableModel, examples: Sequence[AnnotatedPair]) -> list[CrossAttentionMaps]:
    if not examples:
        raise ValueError("no head can be chosen without gold alignments; give at least one annotated pair")
    return cross_attention_maps(
        model, [example.source for example in examples], [example.target for example in examples]
    )
