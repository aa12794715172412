"""Word alignment from cross-attention: argmax links between words, their alignment error rate, and the best heads."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from regard.decode.model import DecodableModel
from regard.decode.scoring import CrossAttentionMaps, cross_attention_maps

Link = tuple[int, int]  # (source word, target word), both from 0
Links = frozenset[Link]


@dataclass(frozen=True)
class AlignmentHead:
    """One head of one layer.

    `shift=0` takes the weights with which a token was predicted, `shift=1` those of the next step, when the token is
    the decoder's input: many heads of a Transformer align better so (Chen et al. 2020, "Accurate word alignment
    induction").
    """

    layer: str
    head: int
    shift: int = 0

    @property
    def name(self) -> str:
        """For titles and messages."""
        return f"{self.layer}, head {self.head}{', read one token later' if self.shift else ''}"

    def weights(self, attention: CrossAttentionMaps) -> Float[Tensor, "t s"]:
        """One row per target token, without EOS, which belongs to no word."""
        if self.layer not in attention.layers or not 0 <= self.head < attention.layers[self.layer].shape[0]:
            there = {name: weights.shape[0] for name, weights in attention.layers.items()}
            raise ValueError(f"there is no {self}; the model has these layers with so many heads: {there}")
        rows = attention.layers[self.layer][self.head]
        return rows[self.shift : rows.shape[0] - 1 + self.shift]


def all_heads(attention: CrossAttentionMaps) -> list[AlignmentHead]:
    """Every cross-attention head, read at the step that writes a token and at the step after it."""
    return [
        AlignmentHead(layer, head, shift)
        for layer, weights in attention.layers.items()
        for head in range(weights.shape[0])
        for shift in (0, 1)
    ]


def average_heads(attention: CrossAttentionMaps, heads: Sequence[AlignmentHead]) -> Float[Tensor, "t s"]:
    """The mean of some heads."""
    if not heads:
        raise ValueError("an average needs at least one head; give one")
    return torch.stack([head.weights(attention) for head in heads]).mean(0)


def merge_subwords(
    weights: Float[Tensor, "t s"], target_words: Sequence[int], source_words: Sequence[int]
) -> Float[Tensor, "words source_words_and_end"]:
    """Subwords to words: summed over a source word's pieces, averaged over a target word's.

    `target_words` and `source_words` say for each piece which word it belongs to; the source's EOS, for which no
    word is given, stays as the last column.
    """
    t, s = weights.shape
    if (t, s) != (len(target_words), len(source_words) + 1):
        raise ValueError(
            f"{t} target pieces and {s - 1} source pieces need a word each, "
            f"not {len(target_words)} and {len(source_words)}"
        )
    columns = membership_matrix([*source_words, max(source_words, default=-1) + 1], weights)
    rows = membership_matrix(target_words, weights)
    total = einsum(rows, weights, columns, "t w, t s, s x -> w x")
    return total / rearrange(rows.sum(0).clamp_min(1), "w -> w 1")


def membership_matrix(words: Sequence[int], like: Tensor) -> Float[Tensor, "pieces words"]:
    if any(word < 0 for word in words):
        raise ValueError(f"words are counted from 0, but {min(words)} is among them")
    return one_hot(torch.tensor(words, dtype=torch.long, device=like.device), max(words, default=-1) + 1).to(like.dtype)


def argmax_links(words: Float[Tensor, "w x"]) -> Links:
    """Every target word linked to the source word of its largest weight; EOS, the last column, does not count."""
    if words.shape[1] < 2:
        return frozenset()
    return frozenset((source, target) for target, source in enumerate(words[:, :-1].argmax(-1).tolist()))


def argmax_links_or_null(words: Float[Tensor, "w x"]) -> Links:
    """The same, but a target word whose largest weight is on EOS has no link."""
    end = words.shape[1] - 1
    return frozenset((source, target) for target, source in enumerate(words.argmax(-1).tolist()) if source != end)


# --- alignment error rate (AER) ---


@dataclass(frozen=True)
class AlignmentCounts:
    """Counts of links, which add up over sentences (Och & Ney 2003, section 5).

    Args:
        predicted: links of the model.
        sure: gold links that are not in doubt.
        predicted_and_sure, predicted_and_possible: predicted links that are among the sure, or among all gold links.
    """

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
