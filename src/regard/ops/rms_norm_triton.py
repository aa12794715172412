"""RMS norm as Triton kernels, forward and backward, for rows that lie anywhere in memory, such as those of heads.

A program has several short rows or one long one. Backward, each takes every n-th tile and leaves a partial sum of the
weight's gradient; how many there are depends on the shape alone and nothing is added atomically, so the result is
deterministic.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.linear_triton import accumulation_type, sum_partials

TILE, PROGRAMS = 2048, 792  # numbers of a tile; programs of the backward pass, at most
WITHOUT_VARIANTS = ["rows", "inner", "innermost"]  # sizes, for each of which there is not to be another kernel


@triton.jit
def row_starts(row, inner, innermost, outer_step, inner_step, innermost_step):
    """Where these rows begin, counted through three axes."""
    outer = (row // innermost // inner).to(tl.int64) * outer_step
    return (
        outer + (row // innermost % inner).to(tl.int64) * inner_step + (row % innermost).to(tl.int64) * innermost_step
    )


@triton.jit
def inverse_root(x, eps, WIDTH: tl.constexpr):
    return 1.0 / tl.sqrt(tl.sum(x * x, 1) / WIDTH + eps)[:, None]


@triton.jit(do_not_specialize=WITHOUT_VARIANTS)
def rms_norm_kernel(
    x, weight, out, rows, inner, innermost, x_0, x_1, x_2, o_0, o_1, o_2, eps,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, WEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row, at = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WW)
    inside = (row < rows)[:, None] & (at < WIDTH)[None, :]
    here = row_starts(row, inner, innermost, x_0, x_1, x_2)[:, None] + at[None, :]
    y = tl.load(x + here, inside, 0.0).to(WIDE)
    y *= inverse_root(y, eps, WIDTH)
    if WEIGHT:
        y *= tl.load(weight + at, at < WIDTH, 0.0).to(WIDE)[None, :]
    here = row_starts(row, inner, innermost, o_0, o_1, o_2)[:, None] + at[None, :]
    tl.store(out + here, y.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=WITHOUT_VARIANTS)
def rms_norm_backward_kernel(
    x, grad, weight, out, partials, rows, inner, innermost, x_0, x_1, x_2, g_0, g_1, g_2, o_0, o_1, o_2, eps,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, WEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, WW)
    dw = tl.zeros((ROWS, WW), WIDE)
    w = tl.load(weight + at, at < WIDTH, 0.0).to(WIDE)[None, :]
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (at < WIDTH)[None, :]
        here = row_starts(row, inner, innermost, x_0, x_1, x_2)[:, None] + at[None, :]
        n = tl.load(x + here, inside, 0.0).to(WIDE)
        here = row_starts(row, inner, innermost, g_0, g_1, g_2)[:, None] + at[None, :]
        g = tl.load(grad + here, inside, 0.0).to(WIDE)
        scale = inverse_root(n, eps, WIDTH)
        n *= scale
        if WEIGHT:
            dw += g * n
            g *= w
        g = (g - n * (tl.sum(g * n, 1)[:, None] / WIDTH)) * scale
        here = row_starts(row, inner, innermost, o_0, o_1, o_2)[:, None] + at[None, :]
        tl.store(out + here, g.to(out.dtype.element_ty), inside)
    if WEIGHT:
        tl.store(partials + tl.program_id(0) * WIDTH + at, tl.sum(dw, 0), at < WIDTH)


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        x = with_dense_rows(x)
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return launch_forward(x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return *launch_backward(x, with_dense_rows(grad), weight, ctx.eps), None


def with_dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def launch_forward(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    out = torch.empty_like(x)
    sizes, steps = row_axes(x, x, out)
    options = constants(x, weight)
    given: list[Any] = [x, x if weight is None else weight, out, *sizes, *steps, eps]
    rms_norm_kernel[(-(-sizes[0] // options["ROWS"]),)](*given, **options)
    return out


def launch_backward(x: Tensor, grad: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and of the weight."""
    out, options = torch.empty_like(x), constants(x, weight)
    sizes, steps = row_axes(x, x, grad, out)
    programs = min(PROGRAMS, -(-sizes[0] // options["ROWS"]))
    partials = torch.empty((programs, x.shape[-1]), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    given: list[Any] = [x, grad, x if weight is None else weight, out, partials, *sizes, *steps, eps]
    rms_norm_backward_kernel[(programs,)](*given, **options)
    return out, None if weight is None else sum_partials(partials, weight.dtype)


def constants(x: Tensor, weight: Tensor | None) -> dict[str, Any]:
    wide = triton.next_power_of_2(x.shape[-1])
    sizes = {"WIDTH": x.shape[-1], "WW": wide, "ROWS": max(1, TILE // wide), "WEIGHT": weight is not None}
    return sizes | {"WIDE": accumulation_type(x.dtype), "num_warps": min(16, max(4, wide // 512))}


def row_axes(x: Tensor, *tensors: Tensor) -> tuple[tuple[int, int, int], list[int]]:
    """How many rows, and how many in the two inner of three axes, x's nearest rows innermost; steps of each tensor."""
    added = 4 - x.dim()
    shape = (*(1,) * added, *x.shape[:-1])
    order = sorted(range(3), key=lambda axis: 0 if axis < added else -x.stride(axis - added))
    _, inner, innermost = (shape[axis] for axis in order)
    steps = [0 if axis < added else y.stride(axis - added) for y in tensors for axis in order]
    return (x.numel() // x.shape[-1], inner, innermost), steps
