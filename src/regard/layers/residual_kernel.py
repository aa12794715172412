"""States and what a sub-layer made of them in; the residual path's next states, and the way back, out. Triton kernels.

One pass over memory for all that stands between two products, dropout's noise included, which is made again on the way
back. With m = mask / (1 − share), x̂ = (s − mean s) / √(var s + ε) and g the gradients of y, whoever sent them:

    s = x + m (f + b)        y = x̂ w + v        dw = Σ g x̂        dv = Σ g        h = g w
    ds = (h − mean h − x̂ mean (h x̂)) / √(var s + ε)        dx = ds        df = m ds        db = Σ df

ADD without NORM is y = s, and NORM without ADD is s = x. The sums over rows are made as in `column_kernel`: parts of
them by programs that walk over the rows, in a fixed order.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.attention.kernels.dropout_hash import mixed, passes
from regard.layers.column_kernel import add_parts, wide_type


@dataclass(frozen=True)
class Walk:
    """How rows are walked over: so many at a time, by so many programs on the way back. Speed alone."""

    rows: int = 2
    warps: int = 4
    programs: int = 528
    stages: int = 1


FORWARD, BACKWARD = Walk(1, 1), Walk(2, 2, 792)
USUAL = 512  # numbers in a row; of more, a thread is to hold no more of them


@triton.jit
def left(seed, place, CUT: tl.constexpr):
    """Which numbers dropout leaves: as `hashed_dropout` has it."""
    x = place.to(tl.uint32) + tl.load(seed).to(tl.uint32)
    return passes(mixed(x, tl.load(seed + 1).to(tl.uint32)), CUT)


@triton.jit
def row_numbers(x, at, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """One vector, the same for all rows."""
    return tl.load(x + at, mask=at < WIDTH, other=0.0).to(WIDE)[None, :]


@triton.jit
def summed(
    x, f, b, seed, place, inside, grown, CUT: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    s = tl.load(x + place, mask=inside, other=0.0).to(WIDE)
    if ADD:
        made = tl.load(f + place, mask=inside, other=0.0).to(WIDE) + b
        if CUT > 0:
            made = tl.where(left(seed, place, CUT), made * grown, 0.0)
        s += made
    return s


@triton.jit(do_not_specialize_on_alignment=["seed"])
def residual_forward(
    x, f, bias, weight, shift, seed, out, means, scales, rows, eps, grown,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, CUT: tl.constexpr,
    ADD: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row, at = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, WW)
    inside = (row < rows)[:, None] & (at < WIDTH)[None, :]
    place = row[:, None] * WIDTH + at[None, :]
    s = summed(x, f, row_numbers(bias, at, WIDTH, WIDE), seed, place, inside, grown, CUT, ADD, WIDE)
    if NORM:
        mean = tl.sum(tl.where(inside, s, 0.0), 1) / WIDTH
        far = tl.where(inside, s - mean[:, None], 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(far * far, 1) / WIDTH + eps)
        tl.store(means + row, mean, mask=row < rows)
        tl.store(scales + row, scale, mask=row < rows)
        s = far * scale[:, None] * row_numbers(weight, at, WIDTH, WIDE) + row_numbers(shift, at, WIDTH, WIDE)
    tl.store(out + place, s.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["seed"])
def residual_backward(
    grad, more, x, f, bias, weight, seed, means, scales, dx, df, parts, rows, grown,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, CUT: tl.constexpr, MORE: tl.constexpr,
    ADD: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    at, many = tl.arange(0, WW), tl.num_programs(0)
    b, w = row_numbers(bias, at, WIDTH, WIDE), row_numbers(weight, at, WIDTH, WIDE)
    dw, dv, db = tl.zeros((ROWS, WW), WIDE), tl.zeros((ROWS, WW), WIDE), tl.zeros((ROWS, WW), WIDE)
    for first in tl.range(tl.program_id(0) * ROWS, rows, many * ROWS, num_stages=STAGES):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & (at < WIDTH)[None, :]
        place = row[:, None] * WIDTH + at[None, :]
        g = tl.load(grad + place, mask=inside, other=0.0).to(WIDE)
        if MORE:
            g += tl.load(more + place, mask=inside, other=0.0).to(WIDE)
        if NORM:
            mean = tl.load(means + row, mask=row < rows, other=0.0)[:, None]
            scale = tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
            s = summed(x, f, b, seed, place, inside, grown, CUT, ADD, WIDE)
            near = tl.where(inside, (s - mean) * scale, 0.0)
            dw += g * near
            dv += g
            g *= w
            g = (g - tl.sum(g, 1)[:, None] / WIDTH - near * (tl.sum(g * near, 1)[:, None] / WIDTH)) * scale
        tl.store(dx + place, g.to(dx.dtype.element_ty), mask=inside)
        if ADD:
            if CUT > 0:
                g = tl.where(left(seed, place, CUT), g * grown, 0.0)
            g = tl.where(inside, g, 0.0)
            tl.store(df + place, g.to(df.dtype.element_ty), mask=inside)
            db += g
    here = parts + tl.program_id(0) * (3 * WIDTH) + at
    tl.store(here, tl.sum(dw, 0), mask=at < WIDTH)
    tl.store(here + WIDTH, tl.sum(dv, 0), mask=at < WIDTH)
    tl.store(here + 2 * WIDTH, tl.sum(db, 0), mask=at < WIDTH)


@dataclass(frozen=True, eq=False)
class Given:
    """x and f lie row behind row; what is None is not there, and the step is the smaller for it."""

    x: Tensor
    f: Tensor | None
    bias: Tensor | None
    weight: Tensor | None
    seed: Tensor
    share: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.numel() // self.x.shape[-1], self.x.shape[-1]

    def constants(self, walk: Walk) -> dict[str, Any]:
        assert all(part is None or part.is_contiguous() for part in (self.x, self.f, self.bias, self.weight))
        width = self.shape[1]
        wide = triton.next_power_of_2(width)
        return {
            "WIDTH": width,
            "WW": wide,
            "ROWS": walk.rows,
            "CUT": round(self.share * 2**24),
            "ADD": self.f is not None,
            "NORM": self.weight is not None,
            "WIDE": wide_type(self.x.dtype),
            "num_warps": min(16, walk.warps * max(1, wide // USUAL)),
        }


def step_forward(
    given: Given, shift: Tensor | None, eps: float, out: Tensor, stats: Tensor, walk: Walk = FORWARD
) -> None:
    """Into `out`, and into `stats` each row's mean and what its distance from the mean is multiplied by."""
    (rows, _), x = given.shape, given.x
    if rows:
        f, bias, weight, shift = (x if part is None else part for part in (given.f, given.bias, given.weight, shift))
        residual_forward[(-(-rows // walk.rows),)](
            x, f, bias, weight, shift, given.seed, out, stats[0], stats[1], rows, eps, 1 / (1 - given.share),
            **given.constants(walk),
        )  # fmt: skip


def step_backward(
    given: Given, grad: Tensor, more: Tensor | None, stats: Tensor, found: tuple[Tensor, Tensor | None],
    walk: Walk = BACKWARD,
) -> Tensor:  # fmt: skip
    """Into `found`: the gradients of x and f. The sums over all rows: of w's, v's and b's."""
    (rows, width), x = given.shape, given.x
    like = next(part for part in (given.weight, given.bias, x) if part is not None)
    wide = torch.promote_types(x.dtype, torch.float32)
    many = min(walk.programs, -(-rows // walk.rows))
    if not rows:
        return torch.zeros((3, width), dtype=like.dtype, device=x.device)
    parts = torch.empty((many, 3, width), dtype=wide, device=x.device)
    f, bias, weight = (x if part is None else part for part in (given.f, given.bias, given.weight))
    dx, df = found
    how = given.constants(walk) | {"MORE": more is not None, "STAGES": walk.stages}
    residual_backward[(many,)](
        grad, grad if more is None else more, x, f, bias, weight, given.seed, stats[0], stats[1],
        dx, dx if df is None else df, parts, rows, 1 / (1 - given.share), **how,
    )  # fmt: skip
    return add_parts(parts, like.dtype)
