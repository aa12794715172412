"""Fused embedding with dropout: Triton kernels of the forward and the backward pass.

With m = mask / (1 − p) and g, g′ the two gradients of the same states:

    x = m (√width · table[token] + positions[position])        dtable[token] += √width · m (g + g′)

One pass over memory each. The gradients of the same token are summed by torch, in a fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.column_sum_triton import accumulation_type
from regard.ops.dropout_triton import keep_mask

ROWS, WARPS = 4, 4


@triton.jit
def apply_dropout(x, seed, index, keep_scale, CUT: tl.constexpr):
    if CUT > 0:
        x = tl.where(keep_mask(seed, index, CUT), x * keep_scale, 0.0)
    return x


@triton.jit
def embedding_forward_kernel(
    table, tokens, position_ids, positions, seed, out, rows, scale, keep_scale,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WW)
    token = tl.load(tokens + row, mask=row < rows, other=0)
    position = tl.load(position_ids + row, mask=row < rows, other=0)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    x = tl.load(table + token[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(WIDE) * scale
    x += tl.load(positions + position[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(WIDE)
    index = row[:, None].to(tl.int64) * WIDTH + column[None, :]
    x = apply_dropout(x, seed, index, keep_scale, CUT)
    tl.store(out + index, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def embedding_backward_kernel(
    grad, more, seed, out, begin, rows, scale, keep_scale,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """For one side's rows, which are rows `begin` and on among both sides'."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WW)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    row_index = row[:, None].to(tl.int64) * WIDTH + column[None, :]
    g = tl.load(grad + row_index, mask=inside, other=0.0).to(WIDE) + tl.load(
        more + row_index, mask=inside, other=0.0
    ).to(WIDE)
    index = row_index + begin * WIDTH
    g = apply_dropout(g * scale, seed, index, keep_scale, CUT)
    tl.store(out + index, g.to(out.dtype.element_ty), mask=inside)


def constants(width: int, p: float, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "WIDTH": width,
        "WW": triton.next_power_of_2(width),
        "ROWS": ROWS,
        "CUT": round(p * 2**24),
        "WIDE": accumulation_type(dtype),
        "num_warps": WARPS,
    }


def launch_forward(
    table: Tensor, tokens: Tensor, position_ids: Tensor, positions: Tensor, seed: Tensor, p: float
) -> Tensor:
    """The states of these tokens, one row each."""
    rows, width = len(tokens), table.shape[1]
    out = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    if rows:
        args = (
            table.contiguous(),
            tokens,
            position_ids,
            positions.contiguous(),
            seed,
            out,
            rows,
            width**0.5,
            1 / (1 - p),
        )
        embedding_forward_kernel[(-(-rows // ROWS),)](*args, **constants(width, p, table.dtype))
    return out


def launch_backward(pairs: tuple[tuple[Tensor, Tensor], ...], seed: Tensor, p: float) -> Tensor:
    """The gradient of each row's vector, from the sum of each pair; the rows of both pairs concatenated."""
    like, width = pairs[0][0], pairs[0][0].shape[-1]
    counts = [one.numel() // width for one, _ in pairs]
    out, begin = torch.empty((sum(counts), width), dtype=like.dtype, device=like.device), 0
    for (one, more), rows in zip(pairs, counts, strict=True):
        if rows:
            args = one, more, seed, out, begin, rows, width**0.5, 1 / (1 - p)
            embedding_backward_kernel[(-(-rows // ROWS),)](*args, **constants(width, p, like.dtype))
        begin += rows
    return out
