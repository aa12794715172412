"""Positions of queries and keys, and the index grid (b, h, i, j) on which patterns and biases are evaluated."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.block_map import is_tracing
from regard.attention.pattern import Pattern

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
