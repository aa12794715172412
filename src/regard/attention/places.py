"""Where queries and keys stand, and the grid of index cells (b, h, i, j) that patterns and biases are asked about."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.blocks import tracing
from regard.attention.pattern import Pattern


@dataclass(frozen=True)
class Cells:
    """Indices that broadcast to (b, h, i, j)."""

    b: Tensor
    h: Tensor
    i: Tensor
    j: Tensor

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.b, self.h, self.i, self.j

    def visible(self, pattern: Pattern) -> Tensor:
        """Who may look at whom; the axes of sentences and heads stay 1 where they make no difference."""
        seen = pattern.sees(*self.all())
        return seen.expand(torch.broadcast_shapes(seen.shape, (1, 1, self.i.shape[2], self.j.shape[3])))


@dataclass(frozen=True, eq=False)
class Places:
    """The positions of queries and keys, each shared, (t), or per sentence, (b, t)."""

    q: Tensor
    k: Tensor
    start: int | None  # set if the queries stand at start, start + 1, ... and the keys at 0, 1, ...; else None

    @staticmethod
    def of(q: Tensor, k: Tensor, q_at: int | Tensor | None, k_at: int | Tensor | None) -> "Places":
        (at_q, first_q), (at_k, first_k) = standing(q, q_at), standing(k, k_at)
        return Places(at_q, at_k, first_q if first_k == 0 else None)

    def cells(self, batch: int, heads: int) -> Cells:
        b, h = (torch.arange(n, device=self.q.device) for n in (batch, heads))
        i, j = (at if at.dim() == 2 else at[None] for at in (self.q, self.k))
        return Cells(b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), i[:, None, :, None], j[:, None, None, :])


def standing(x: Tensor, at: int | Tensor | None) -> tuple[Tensor, int | None]:
    """The positions of x's tokens, and the first of them if they are consecutive."""
    if not isinstance(at, Tensor):
        first = at or 0
        return torch.arange(first, first + x.shape[2], device=x.device), first
    return at, int(at[0]) if readable(at) and at.dim() == 1 and bool((at.diff() == 1).all()) else None


def readable(at: Tensor) -> bool:
    """Can the numbers be looked at? A GPU would have to wait for them, and while torch traces there are none."""
    return at.device.type == "cpu" and at.numel() > 0 and not tracing()
