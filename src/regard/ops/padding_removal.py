"""Padding removal: of a padded batch, the tokens that are there are multiplied, and the others are left out.

Linear layers and norms take every token by itself, so they take (1, n, model) instead of (b, t, model). Attention
alone needs the rows: before it tokens are put back to their places, after it they are taken out again.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.ops.fused_qkv_linear import concatenate_columns


@dataclass(frozen=True, eq=False)
class UnpaddedTokens:
    """Which tokens of a batch of b rows are there.

    Args:
        kept: the places of the tokens that are there, of all counted through.
        rows: for every place its token among those that are there; any, if none is.
    """

    batch: int
    kept: Int[Tensor, " n"]
    rows: Int[Tensor, " all"]

    @staticmethod
    def of(kept: Int[Tensor, " n"], batch: int, length: int) -> "UnpaddedTokens":
        rows = torch.zeros(batch * length, dtype=torch.long, device=kept.device)
        return UnpaddedTokens(batch, kept, rows.index_copy_(0, kept, torch.arange(len(kept), device=kept.device)))


def unpad(x: Tensor, tokens: UnpaddedTokens | None) -> Tensor:
    """(b, t, ...) to (1, n, ...)."""
    return x if tokens is None else x.flatten(0, 1).index_select(0, tokens.kept)[None]


def pad(tokens: UnpaddedTokens | None, *parts: Tensor) -> tuple[Tensor, ...]:
    """(1, n, width) to (b, t, width); at places where no token is something stands that nobody may read."""
    if tokens is None:
        return parts
    whole = parts[0] if len(parts) == 1 else concatenate_columns(parts)
    padded = whole[0].index_select(0, tokens.rows).unflatten(0, (tokens.batch, -1))
    return padded.split([part.shape[-1] for part in parts], -1)
