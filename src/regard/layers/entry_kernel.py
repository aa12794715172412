"""Word and place numbers in; their vectors, added and a share of them dropped, and the way back, out. Triton kernels.

With m = mask / (1 − share) and g, g′ the gradients of the same states, whoever sent them:

    x = m (√width · table[word] + places[at])        dtable[word] += √width · m (g + g′)

One pass over memory each way. What the way back leaves of each word is summed by torch, in a fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.layers.column_kernel import wide_type
from regard.layers.residual_kernel import left

ROWS, WARPS = 4, 4


@triton.jit
def dropped(x, seed, place, grown, CUT: tl.constexpr):
    if CUT > 0:
        x = tl.where(left(seed, place, CUT), x * grown, 0.0)
    return x


@triton.jit
def words_entered(
    table, words, at, places, seed, out, rows, scale, grown,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WW)
    word = tl.load(words + row, mask=row < rows, other=0)
    spot = tl.load(at + row, mask=row < rows, other=0)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    x = tl.load(table + word[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(WIDE) * scale
    x += tl.load(places + spot[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(WIDE)
    place = row[:, None].to(tl.int64) * WIDTH + column[None, :]
    x = dropped(x, seed, place, grown, CUT)
    tl.store(out + place, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def words_left(
    grad, more, seed, out, begin, rows, scale, grown,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Of rows that begin at another one among both sides'."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WW)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    given = row[:, None].to(tl.int64) * WIDTH + column[None, :]
    g = tl.load(grad + given, mask=inside, other=0.0).to(WIDE) + tl.load(more + given, mask=inside, other=0.0).to(WIDE)
    place = given + begin * WIDTH
    g = dropped(g * scale, seed, place, grown, CUT)
    tl.store(out + place, g.to(out.dtype.element_ty), mask=inside)


def constants(width: int, share: float, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "WIDTH": width,
        "WW": triton.next_power_of_2(width),
        "ROWS": ROWS,
        "CUT": round(share * 2**24),
        "WIDE": wide_type(dtype),
        "num_warps": WARPS,
    }


def enter(table: Tensor, words: Tensor, at: Tensor, places: Tensor, seed: Tensor, share: float) -> Tensor:
    """The states of these words, one row each."""
    rows, width = len(words), table.shape[1]
    out = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    if rows:
        given = table.contiguous(), words, at, places.contiguous(), seed, out, rows, width**0.5, 1 / (1 - share)
        words_entered[(-(-rows // ROWS),)](*given, **constants(width, share, table.dtype))
    return out


def leave(pairs: tuple[tuple[Tensor, Tensor], ...], seed: Tensor, share: float) -> Tensor:
    """What each row of each pair's sum says of its word's vector, one pair's rows behind the other's."""
    like, width = pairs[0][0], pairs[0][0].shape[-1]
    counts = [one.numel() // width for one, _ in pairs]
    out, begin = torch.empty((sum(counts), width), dtype=like.dtype, device=like.device), 0
    for (one, more), rows in zip(pairs, counts, strict=True):
        if rows:
            given = one, more, seed, out, begin, rows, width**0.5, 1 / (1 - share)
            words_left[(-(-rows // ROWS),)](*given, **constants(width, share, like.dtype))
        begin += rows
    return out
