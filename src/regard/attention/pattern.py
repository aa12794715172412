"""Attention patterns: which keys a query may attend to, a predicate on indices. They combine with &, | and ~.

    Causal() & Window(512)                                   the last 512 tokens
    Window(256) | Global(1)                                  Longformer
    Block(64, Window(2) | Global(1) | Random(3, seed=0))     BigBird, in blocks of 64

`sees` is the definition. `count` lets `blocks` compute which blocks of the mask are empty without forming it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from regard.attention.block_map import (
    BlockMap,
    Bounds,
    Span,
    build_block_map,
    count_toeplitz,
    is_tracing,
    move_to_device,
)


def require_int(part: object, number: int, least: int, what: str) -> None:
    """A pattern is made of whole numbers that make sense."""
    if not isinstance(number, int) or number < least:
        raise ValueError(f"{part}: {what} must be a whole number, at least {least}")


class Pattern(ABC):
    """Abstract: a subclass must define `sees`; the rest has defaults.

    Examples:
        >>> class EveryOther(Pattern):  # keys at an even distance
        ...     def sees(self, b, h, i, j):
        ...         return (i - j) % 2 == 0
        >>> i, j = torch.arange(4)[:, None], torch.arange(4)
        >>> (EveryOther() & Causal()).sees(0, 0, i, j).long()
        tensor([[1, 0, 0, 0],
                [0, 1, 0, 0],
                [1, 0, 1, 0],
                [0, 1, 0, 1]])
    """

    @abstractmethod
    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """True where, in batch element b and head h, the query at i may attend to the key at j. Indices broadcast."""

    def count(self, rows: Span, cols: Span) -> Bounds:
        """At least and at most how many cells of each block are visible. A pattern that knows nothing says so."""
        if self.is_toeplitz:
            return count_toeplitz(self, rows, cols)
        area = rows.sizes[:, None] * cols.sizes
        return torch.zeros_like(area), area

    @property
    def is_toeplitz(self) -> bool:
        """Does `sees` depend on i - j alone?"""
        return False

    @property
    def batches(self) -> int:
        """For how many batch elements the pattern holds data; 1 when it is the same for all."""
        return 1

    def shape_error(self, n_q: int, n_k: int) -> str | None:
        """Why the pattern does not cover so many tokens; None if it does."""
        return None

    def to(self, device: torch.device | str) -> Self:
        """The same pattern, with whatever data it holds on this device."""
        return self

    def plan(self, *call: Any) -> "Pattern":
        """What a content pattern chooses for q and k at positions, after what is past; any other is its own plan."""
        return self

    @property
    def depends_on_head(self) -> bool:
        """Does `sees` differ from head to head? Then its answer spreads along the head axis."""
        one = torch.zeros(1, 1, 1, 1, dtype=torch.long)
        return move_to_device(self, "cpu").sees(one, torch.arange(2).view(1, 2, 1, 1), one, one).numel() > 1

    def blocks(self, n_q: int, n_k: int | None = None, block: int = 128, *, start: int = 0) -> BlockMap:
        """The empty, mixed and full blocks for queries at start, start + 1, ... and keys at 0, 1, ..."""
        if min(n_q, n_q if n_k is None else n_k, block) < 1 or start < 0:
            raise ValueError(f"blocks({n_q}, {n_k}, {block}, start={start}): lengths and block must be at least 1")
        if why := self.shape_error(start + n_q, n_q if n_k is None else n_k):
            raise ValueError(why)
        here = move_to_device(self, "cpu")
        if here.depends_on_head:
            raise ValueError(f"{self} differs from head to head; a block map holds for all of them")
        return build_block_map(here, Span(start, start + n_q, block), Span(0, n_q if n_k is None else n_k, block))

    def __and__(self, other: "Pattern") -> "Pattern":
        return And(self, other) if isinstance(other, Pattern) else NotImplemented

    def __or__(self, other: "Pattern") -> "Pattern":
        return Or(self, other) if isinstance(other, Pattern) else NotImplemented

    def __invert__(self) -> "Pattern":
        return Not(self)


# --- the algebra ---


class BinaryPattern(Pattern):
    """Abstract: two patterns combined."""

    left: Pattern
    right: Pattern

    @property
    def is_toeplitz(self):
        return self.left.is_toeplitz and self.right.is_toeplitz

    @property
    def batches(self):
        return max(self.left.batches, self.right.batches)

    def shape_error(self, n_q, n_k):
        return self.left.shape_error(n_q, n_k) or self.right.shape_error(n_q, n_k)

    @property
    def depends_on_head(self):
        return self.left.depends_on_head or self.right.depends_on_head

    def plan(self, *call):
        left, right = self.left.plan(*call), self.right.plan(*call)
        return self if left is self.left and right is self.right else type(self)(left, right)  # type: ignore[call-arg]

    def to(self, device):
        return type(self)(move_to_device(self.left, device), move_to_device(self.right, device))  # type: ignore[call-arg]


@dataclass(frozen=True)
class And(BinaryPattern):
    left: Pattern
    right: Pattern

    def sees(self, b, h, i, j):
        return self.left.sees(b, h, i, j) & self.right.sees(b, h, i, j)

    def count(self, rows, cols):
        if self.is_toeplitz:
            return count_toeplitz(self, rows, cols)
        (low, high), (low_too, high_too) = self.left.count(rows, cols), self.right.count(rows, cols)
        area = rows.sizes[:, None] * cols.sizes
        return (low + low_too - area).clamp(min=0), high.minimum(high_too)

    def __repr__(self):
        left = f"({self.left})" if isinstance(self.left, Or) else f"{self.left}"
        return f"{left} & ({self.right})" if isinstance(self.right, BinaryPattern) else f"{left} & {self.right}"


@dataclass(frozen=True)
class Or(BinaryPattern):
    left: Pattern
    right: Pattern

    def sees(self, b, h, i, j):
        return self.left.sees(b, h, i, j) | self.right.sees(b, h, i, j)

    def count(self, rows, cols):
        if self.is_toeplitz:
            return count_toeplitz(self, rows, cols)
        (low, high), (low_too, high_too) = self.left.count(rows, cols), self.right.count(rows, cols)
        return low.maximum(low_too), (high + high_too).minimum(rows.sizes[:, None] * cols.sizes)

    def __repr__(self):
        return f"{self.left} | ({self.right})" if isinstance(self.right, Or) else f"{self.left} | {self.right}"


@dataclass(frozen=True)
class Not(Pattern):
    inner: Pattern

    def sees(self, b, h, i, j):
        return ~self.inner.sees(b, h, i, j)

    def count(self, rows, cols):
        (low, high), area = self.inner.count(rows, cols), rows.sizes[:, None] * cols.sizes
        return area - high, area - low

    @property
    def is_toeplitz(self):
        return self.inner.is_toeplitz

    @property
    def batches(self):
        return self.inner.batches

    def shape_error(self, n_q, n_k):
        return self.inner.shape_error(n_q, n_k)

    @property
    def depends_on_head(self):
        return self.inner.depends_on_head

    def plan(self, *call):
        return self if (inner := self.inner.plan(*call)) is self.inner else Not(inner)

    def to(self, device):
        return Not(move_to_device(self.inner, device))

    def __repr__(self):
        return f"~({self.inner})" if isinstance(self.inner, BinaryPattern) else f"~{self.inner}"


# --- patterns of the difference i - j ---


class ToeplitzPattern(Pattern):
    """Abstract: the same picture along every diagonal."""

    @property
    def is_toeplitz(self):
        return True


@dataclass(frozen=True)
class Full(ToeplitzPattern):
    """Everybody sees everybody.

    Examples:
        >>> i, j = torch.arange(2)[:, None], torch.arange(3)
        >>> Full().sees(0, 0, i, j)
        tensor([[True, True, True],
                [True, True, True]])
    """

    def sees(self, b, h, i, j):
        return i - j == i - j


@dataclass(frozen=True)
class Causal(ToeplitzPattern):
    """Itself and the past: the look-ahead mask.

    Examples:
        >>> i, j = torch.arange(4)[:, None], torch.arange(4)
        >>> Causal().sees(0, 0, i, j).long()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 1]])
    """

    def sees(self, b, h, i, j):
        return j <= i


@dataclass(frozen=True)
class StrictCausal(ToeplitzPattern):
    """The past alone, as the second lecture writes it (j < i); the first query sees nothing and gives 0.

    Examples:
        >>> i, j = torch.arange(3)[:, None], torch.arange(3)
        >>> StrictCausal().sees(0, 0, i, j).long()
        tensor([[0, 0, 0],
                [1, 0, 0],
                [1, 1, 0]])
    """

    def sees(self, b, h, i, j):
        return j < i


@dataclass(frozen=True)
class Window(ToeplitzPattern):
    """Keys nearer than `size`: Window(1) sees only itself.

    Examples:
        >>> i, j = torch.arange(4)[:, None], torch.arange(4)
        >>> Window(2).sees(0, 0, i, j).long()
        tensor([[1, 1, 0, 0],
                [1, 1, 1, 0],
                [0, 1, 1, 1],
                [0, 0, 1, 1]])
        >>> (Causal() & Window(2)).sees(0, 0, i, j).long()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]])
    """

    size: int

    def __post_init__(self):
        require_int(self, self.size, 1, "size")

    def sees(self, b, h, i, j):
        return (i - j).abs() < self.size


# --- indices, on which patterns are evaluated ---


Indices = int | Tensor | None  # of tokens: that of the first, or of all, (t) or (b, t)


@dataclass(frozen=True)
class IndexGrid:
    """Indices that broadcast to (b, h, i, j)."""

    b: Tensor
    h: Tensor
    i: Tensor
    j: Tensor

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.b, self.h, self.i, self.j

    def visible(self, pattern: Pattern) -> Tensor:
        """Which keys each query may attend to; the batch and head axes stay 1 where they make no difference."""
        seen = pattern.sees(*self.all())
        return seen.expand(torch.broadcast_shapes(seen.shape, (1, 1, self.i.shape[2], self.j.shape[3])))


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of queries and keys, each shared, (t), or per batch element, (b, t)."""

    q: Tensor
    k: Tensor
    start: int | None  # set if the queries are at start, start + 1, ... and the keys at 0, 1, ...; else None

    @staticmethod
    def of(q: Tensor, k: Tensor, q_index: Indices, k_index: Indices) -> "Positions":
        (at_q, first_q), (at_k, first_k) = token_positions(q, q_index), token_positions(k, k_index)
        return Positions(at_q, at_k, first_q if first_k == 0 else None)

    def grid(self, batch: int, heads: int) -> IndexGrid:
        b, h = (torch.arange(n, device=self.q.device) for n in (batch, heads))
        i, j = (at if at.dim() == 2 else at[None] for at in (self.q, self.k))
        return IndexGrid(b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), i[:, None, :, None], j[:, None, None, :])


def token_positions(x: Tensor, positions: Indices) -> tuple[Tensor, int | None]:
    """The positions of x's tokens, and the first of them if they are consecutive."""
    if not isinstance(positions, Tensor):
        first = positions or 0
        return torch.arange(first, first + x.shape[2], device=x.device), first
    consecutive = is_readable(positions) and positions.dim() == 1 and bool((positions.diff() == 1).all())
    return positions, int(positions[0]) if consecutive else None


def is_readable(positions: Tensor) -> bool:
    """Can the numbers be read? A GPU would have to wait for them, and while torch traces there are none."""
    return positions.device.type == "cpu" and positions.numel() > 0 and not is_tracing()
