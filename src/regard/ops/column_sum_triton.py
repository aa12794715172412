"""Column sums: Triton kernels of a bias' gradient, one of which also applies the gradient of relu.

Every row is read once, and that is all the work there is. Each program takes every n-th block of rows and leaves a
partial sum; a second, small kernel adds these. How many programs there are depends on the shape alone and nothing is
added atomically, so the result is deterministic.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class ColumnLaunch:
    """Launch options, which affect speed alone.

    Args:
        programs: that share the rows.
        rows, columns: of a tile.
    """

    programs: int = 792
    rows: int = 16
    columns: int = 128
    warps: int = 4


@triton.jit
def column_sum_kernel(
    x, output, out, partials, rows, width, x_row,
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
            g = tl.where(tl.load(output + place, mask=inside, other=0.0) > 0.0, g, 0.0)
            tl.store(out + place, g, mask=inside)
        total += g.to(WIDE)
    tl.store(partials + tl.program_id(1) * width + at, tl.sum(total, 0), mask=at < width)


@triton.jit
def partial_sum_kernel(partials, out, many, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for first in range(0, many, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < many)[:, None] & (at < width)[None, :]
        total += tl.load(partials + row[:, None] * width + at[None, :], mask=inside, other=0.0)
    tl.store(out + at, tl.sum(total, 0).to(out.dtype.element_ty), mask=at < width)


def sum_partials(partials: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first axis."""
    out = torch.empty(partials.shape[1:], dtype=dtype, device=partials.device)
    width, many = out.numel(), len(partials)
    options: dict[str, Any] = {"ROWS": 128, "COLUMNS": 16, "WIDE": accumulation_type(partials.dtype), "num_warps": 8}
    partial_sum_kernel[(-(-width // 16),)](partials, out, many, width, **options)
    return out


def sum_columns(x: Tensor, launch: ColumnLaunch = ColumnLaunch(), *, dtype: torch.dtype | None = None) -> Tensor:
    """Σ over the rows of x, rounded to its own dtype or to another."""
    return sum_partials(partial_sums(x, x, x, launch, relu=False), x.dtype if dtype is None else dtype)


def relu_backward_sum(x: Tensor, output: Tensor, launch: ColumnLaunch = ColumnLaunch()) -> tuple[Tensor, Tensor]:
    """x where relu's `output` is above 0, else 0; and Σ over its rows."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out, sum_partials(partial_sums(x, output, out, launch, relu=True), x.dtype)


def partial_sums(x: Tensor, output: Tensor, out: Tensor, launch: ColumnLaunch, *, relu: bool) -> Tensor:
    """One partial sum for each program."""
    rows, width = x.shape
    assert x.stride(1) == 1
    assert not relu or output.is_contiguous()
    blocks = -(-width // launch.columns)
    many = min(-(-launch.programs // blocks), -(-rows // launch.rows))
    wide = torch.promote_types(x.dtype, torch.float32)
    partials = torch.empty((many, width), dtype=wide, device=x.device)
    options: dict[str, Any] = {
        "ROWS": launch.rows,
        "COLUMNS": launch.columns,
        "RELU": relu,
        "WIDE": accumulation_type(wide),
        "num_warps": launch.warps,
    }
    column_sum_kernel[(blocks, many)](x, output, out, partials, rows, width, x.stride(0), **options)
    return partials


def accumulation_type(dtype: torch.dtype) -> Any:
    return tl.float64 if dtype == torch.float64 else tl.float32
