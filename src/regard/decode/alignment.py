"""Word alignment from cross-attention: averages heads, merges subwords into words, and takes argmax links."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from regard.decode.scoring import CrossAttentionMaps

Links = frozenset[tuple[int, int]]  # (source word, target word), both from 0


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
