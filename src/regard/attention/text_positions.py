"""Text positions: the place of each token in its text, where that is not its index in the row or in the cache.

Patterns are evaluated at indices: the order of tokens in a row of packed texts, or in a KV cache. Position schemes
are evaluated at positions: the place in the text. Where the two differ, these parts translate one into the other.
A layer gets both, and what hides tokens, as a `Context`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.batch_patterns import (
    AdditiveMask,
    BatchPattern,
    Documents,
    UnpaddedTokens,
    batch_row,
    describe_tensor,
)
from regard.attention.gate import NoGate
from regard.attention.pattern import Full, Indices, Pattern
from regard.attention.position import Bias, PositionSum, ScorePosition
from regard.attention.position_variants import DependencyTree
from regard.attention.recipe import Recipe
from regard.attention.sparse_patterns import is_content


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """The positions of queries, (b, i), and of keys, (b, j), by their indices, which begin at the first ones."""

    q: Tensor
    k: Tensor
    first_q: int = 0
    first_k: int = 0

    def at(self, b: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        return self.q[batch_row(b, self.q), i - self.first_q], self.k[batch_row(b, self.k), j - self.first_k]

    @property
    def batches(self) -> int:
        return max(len(self.q), len(self.k))

    def __repr__(self) -> str:
        """By shape, as a pattern of a batch: backends that object name the scheme at every call."""
        return f"TokenPositions({', '.join('×'.join(map(str, x.shape)) for x in (self.q, self.k))})"


def token_positions_of(
    q: Tensor,
    k: Tensor,
    q_index: Indices,
    k_index: Indices,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
) -> TokenPositions | None:
    """The positions that were given apart from the indices, if any were."""
    if q_positions is None and k_positions is None:
        return None
    if isinstance(q_index, Tensor) or isinstance(k_index, Tensor):
        raise ValueError(
            "positions are given by consecutive indices; give q_index and k_index as numbers, or leave them out"
        )
    first_q, first_k, sides = q_index or 0, k_index or 0, []
    for name, positions, x, first in (("q", q_positions, q, first_q), ("k", k_positions, k, first_k)):
        shape = (x.shape[0], x.shape[2])
        here = torch.arange(first, first + shape[1], device=x.device)[None] if positions is None else positions
        if here.is_floating_point() or tuple(here.shape) not in ((1, shape[1]), shape):
            raise ValueError(f"{name}_positions must hold whole numbers shaped {shape}, not {describe_tensor(here)}")
        sides.append(here)
    return TokenPositions(sides[0], sides[1], first_q, first_k)


@dataclass(frozen=True, eq=False)
class ScoreAtPositions(ScorePosition):
    """A scheme that adds to scores, and perhaps to values, evaluated at positions."""

    scheme: ScorePosition
    positions: TokenPositions

    def score_term(self, q, b, h, i, j):
        return self.scheme.score_term(q, b, h, *self.positions.at(b, i, j))

    @property
    def is_contextual(self):
        return self.scheme.is_contextual

    def contextual_term(self, q, scores, visible, b, h, i, j):
        return self.scheme.contextual_term(q, scores, visible, b, h, *self.positions.at(b, i, j))

    def value_term(self, weights, b, h, i, j):
        return self.scheme.value_term(weights, b, h, *self.positions.at(b, i, j))

    def shape_error(self, heads, head, length):
        return self.scheme.shape_error(heads, head, 0)

    @property
    def batches(self):
        return max(self.positions.batches, self.scheme.batches)


@dataclass(frozen=True, eq=False)
class BiasAtPositions(Bias):
    """A bias evaluated at positions."""

    scheme: Bias
    positions: TokenPositions

    def bias(self, b, h, i, j):
        return self.scheme.bias(b, h, *self.positions.at(b, i, j))

    def shape_error(self, heads, head, length):
        return self.scheme.shape_error(heads, head, 0)

    @property
    def batches(self):
        return max(self.positions.batches, self.scheme.batches)


@dataclass(frozen=True, eq=False, repr=False)
class PatternAtPositions(BatchPattern):
    """A pattern evaluated at positions: the first three tokens of each text, not of the row."""

    pattern: Pattern
    q_positions: Tensor
    k_positions: Tensor

    def sees(self, b, h, i, j):
        q = self.q_positions[batch_row(b, self.q_positions), i]
        return self.pattern.sees(b, h, q, self.k_positions[batch_row(b, self.k_positions), j])

    @property
    def depends_on_head(self) -> bool:  # type: ignore[override]
        return self.pattern.depends_on_head

    @property
    def batches(self):
        return max(len(self.q_positions), len(self.k_positions), self.pattern.batches)


def at_positions(recipe: Recipe, positions: TokenPositions) -> Recipe:
    """The recipe, its schemes on the score evaluated at these positions instead of indices; a mask's cells are those
    of indices, as a pattern's."""
    if not recipe.score_positions:
        return recipe
    parts = [
        part
        if not isinstance(part, ScorePosition) or isinstance(part, AdditiveMask)
        else BiasAtPositions(part, positions)
        if isinstance(part, Bias)
        else ScoreAtPositions(part, positions)
        for part in recipe.position.parts()
    ]
    return replace(recipe, position=PositionSum(tuple(parts)))


def with_score_positions(recipe: Recipe, schemes: Iterable[ScorePosition]) -> Recipe:
    """The recipe for q and k that are rotated already, with these schemes instead of its `score_positions`."""
    gate = NoGate() if isinstance(recipe.gate, ScorePosition) else recipe.gate
    return replace(recipe, position=PositionSum(tuple(schemes)), gate=gate)


@dataclass(frozen=True, eq=False)
class Segments:
    """Rows of packed texts: the segment of each token, (b, t), and its position there; those of other keys too.

    Only tokens of one segment attend to each other.

    Examples:
        >>> segments = Segments(ids=torch.tensor([[0, 0, 1, 1]]), positions=torch.tensor([[0, 1, 0, 1]]))
        >>> i, j = torch.arange(4)[:, None], torch.arange(4)
        >>> segments.within(Causal()).sees(torch.tensor(0), 0, i, j).long()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 1]])
    """

    ids: Tensor
    positions: Tensor
    key_ids: Tensor | None = None
    key_positions: Tensor | None = None

    def within(self, pattern: Pattern) -> Pattern:
        """What a pattern of one text means in rows of several: within each of them, as if it stood alone."""
        documents = Documents(self.ids, self.key_ids)
        if is_content(pattern):
            raise ValueError(
                f"{pattern} chooses among all keys of a row, and so among those of several texts; do not pack"
            )
        if pattern == Full():
            return documents
        if self.key_ids is None and pattern.is_toeplitz:  # depends on distances alone, which are the same in the row
            return pattern & documents
        return PatternAtPositions(pattern, self.positions, self.of_keys) & documents

    @property
    def of_keys(self) -> Tensor:
        return self.positions if self.key_positions is None else self.key_positions


# --- the context of a layer ---


@dataclass(frozen=True, eq=False)
class Context:
    """What varies between the uses of one layer: which keys may be attended to, and where the tokens stand.

    Args:
        pattern: met besides the recipe's own: padding, a mask.
        positions: the place of each token in its text, (b, t), where that is not its index.
        tree: the dependency trees of the batch.
        segments: of rows of packed texts.
        bias: added to the scores besides the recipe's own: an additive mask.
        tokens: x holds these tokens of the batch alone, one after the other, (1, n, model).
        captured: the kernels are captured in a CUDA graph.

    Examples:
        >>> x = torch.randn(2, 5, 8)
        >>> layer = MultiHeadAttention(8, heads=2)
        >>> heads = layer.compute_heads(x, context=Context(Padding(torch.tensor([5, 3]))))
        >>> heads.shape, torch.equal(layer.output(heads), layer(x, pattern=Padding(torch.tensor([5, 3]))))
        (torch.Size([2, 5, 8]), True)
    """

    pattern: Pattern | None = None
    positions: Tensor | None = None
    tree: DependencyTree | None = None
    segments: Segments | None = None
    bias: Bias | None = None
    tokens: UnpaddedTokens | None = None
    captured: bool = False

    @property
    def fused(self) -> bool:
        """Packed rows are many tokens in few shapes: worth the fused operations, which cost a CPU more to launch."""
        return self.segments is not None or self.captured

    def unpad(self, x: Tensor) -> Tensor:
        return x if self.tokens is None else self.tokens.unpad(x)

    def pad(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return parts if self.tokens is None else self.tokens.pad(*parts)

    @property
    def token_positions(self) -> dict[str, Tensor | None]:
        if self.segments is not None:
            return {"q_positions": self.segments.positions, "k_positions": self.segments.of_keys}
        return {"q_positions": self.positions, "k_positions": self.positions}
