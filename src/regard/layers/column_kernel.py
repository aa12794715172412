"""Rows of gradients in; the sum of each column out, and on the way what relu lets through. Triton kernels.

A bias' gradient is such a sum: memory must see every row once, and that is all the work there is. Each program walks
over every so-manieth block of rows and leaves one part of the sum; a second, small kernel adds the parts. How many
programs there are depends on the shape alone and nothing is added by whoever comes first, so the bits are always the
same.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Walk:
    """How rows are walked over: so many programs, rows and columns at a time. Speed alone."""

    programs: int = 792
    rows: int = 16
    columns: int = 128
    warps: int = 4


@triton.jit
def columns_summed(
    x, met, out, parts, rows, width, x_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RELU: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    at, many = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.num_programs(1)
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for first in range(tl.program_id(1) * ROWS, rows, many * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & (at < width)[None, :]
        g = tl.load(x + row[:, None] * x_row + at[None, :], mask=inside, other=0.0)
        if RELU:
            place = row[:, None] * width + at[None, :]
            g = tl.where(tl.load(met + place, mask=inside, other=0.0) > 0.0, g, 0.0)
            tl.store(out + place, g, mask=inside)
        total += g.to(WIDE)
    tl.store(parts + tl.program_id(1) * width + at, tl.sum(total, 0), mask=at < width)


@triton.jit
def parts_summed(parts, out, many, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for first in range(0, many, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < many)[:, None] & (at < width)[None, :]
        total += tl.load(parts + row[:, None] * width + at[None, :], mask=inside, other=0.0)
    tl.store(out + at, tl.sum(total, 0).to(out.dtype.element_ty), mask=at < width)


def add_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first axis."""
    found = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    width, many = found.numel(), len(parts)
    how: dict[str, Any] = {"ROWS": 128, "COLUMNS": 16, "WIDE": wide_type(parts.dtype), "num_warps": 8}
    parts_summed[(-(-width // 16),)](parts, found, many, width, **how)
    return found


def sum_columns(x: Tensor, walk: Walk = Walk(), *, dtype: torch.dtype | None = None) -> Tensor:
    """Σ over the rows of x; rounded to its own precision, or to another."""
    return add_parts(walked(x, x, x, walk, relu=False), x.dtype if dtype is None else dtype)


def cut_and_sum(x: Tensor, met: Tensor, walk: Walk = Walk()) -> tuple[Tensor, Tensor]:
    """x where `met` is above 0, else 0; and Σ over its rows."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out, add_parts(walked(x, met, out, walk, relu=True), x.dtype)


def walked(x: Tensor, met: Tensor, out: Tensor, walk: Walk, *, relu: bool) -> Tensor:
    """The parts of the sum."""
    rows, width = x.shape
    assert x.stride(1) == 1
    assert not relu or met.is_contiguous()
    blocks = -(-width // walk.columns)
    many = min(-(-walk.programs // blocks), -(-rows // walk.rows))
    wide = torch.promote_types(x.dtype, torch.float32)
    parts = torch.empty((many, width), dtype=wide, device=x.device)
    how: dict[str, Any] = {
        "ROWS": walk.rows,
        "COLUMNS": walk.columns,
        "RELU": relu,
        "WIDE": wide_type(wide),
        "num_warps": walk.warps,
    }
    columns_summed[(blocks, many)](x, met, out, parts, rows, width, x.stride(0), **how)
    return parts


def wide_type(dtype: torch.dtype) -> Any:
    return tl.float64 if dtype == torch.float64 else tl.float32
