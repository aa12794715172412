"""Dropout in Triton kernels: the hashed mask, norm(x + dropout(f + b)), and embedding with dropout.

Whether an element is kept is a hash of its index and a seed. Such a mask is never stored: the backward pass computes it
again, in whatever order its tiles come. A dozen instructions an element, where Philox takes a hundred.

The fused residual connection is one pass over memory for all that stands between two products. With m = mask / (1 − p),
x̂ = (s − mean s) / √(var s + ε) and g the sum of the gradients of y:

    s = x + m (f + b)        y = x̂ w + v        dw = Σ g x̂        dv = Σ g        h = g w
    ds = (h − mean h − x̂ mean (h x̂)) / √(var s + ε)        dx = ds        df = m ds        db = Σ df

ADD without NORM is y = s, and NORM without ADD is s = x. The sums over rows are computed as in `linear_triton`:
partial sums by programs that take blocks of rows, in a fixed order.

The fused embedding, with g and g′ the two gradients of the same states, is one pass over memory each way:

    x = m (√width · table[token] + positions[position])        dtable[token] += √width · m (g + g′)

The gradients of the same token are summed by torch, in a fixed order.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.linear_triton import accumulation_type, sum_partials


@triton.jit
def mix_bits(x, key):
    """32 bits that look random, of a counter and a key: a finaliser of two rounds, keyed in between."""
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= key
    x ^= x >> 15
    x *= 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def hash_key(low):
    """The key, from the lower half of a seed."""
    return mix_bits(low + 0x5BD1E995, low)


@triton.jit
def is_kept(bits, CUT: tl.constexpr):
    """CUT / 2²⁴ is the probability of being dropped."""
    return (bits >> 8).to(tl.int32) >= CUT


@triton.jit
def first_counters(seed, row):
    """The first counter of each query of each head: a matrix of weights may have more entries than 32 bits count."""
    low = tl.load(seed).to(tl.uint32)
    return mix_bits(row.to(tl.uint32) + low, hash_key(low))


@triton.jit
def weight_keep_mask(seed, first, j, CUT: tl.constexpr):
    """Which attention weights of these keys are kept; queries and keys broadcast, either way round."""
    return is_kept(mix_bits(first + j.to(tl.uint32), hash_key(tl.load(seed).to(tl.uint32))), CUT)


@triton.jit
def keep_mask(seed, index, CUT: tl.constexpr):
    """Which elements are kept: as in `hashed_dropout`."""
    x = index.to(tl.uint32) + tl.load(seed).to(tl.uint32)
    return is_kept(mix_bits(x, tl.load(seed + 1).to(tl.uint32)), CUT)


# --- residual connection ---


@dataclass(frozen=True)
class ResidualLaunch:
    """Launch options, which affect speed alone.

    Args:
        rows: of a tile.
        programs: of the backward pass, which share the rows.
        stages: of a program's loop over rows.
    """

    rows: int = 2
    warps: int = 4
    programs: int = 528
    stages: int = 1


FORWARD, BACKWARD = ResidualLaunch(1, 1), ResidualLaunch(2, 2, 792)
ROW = 512  # elements of a row that the warps of a launch suit; wider rows get more warps


@triton.jit
def load_row(x, at, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """A vector that all rows share."""
    return tl.load(x + at, mask=at < WIDTH, other=0.0).to(WIDE)[None, :]


@triton.jit
def residual_sum_tile(
    x, f, b, seed, index, inside, keep_scale, CUT: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    s = tl.load(x + index, mask=inside, other=0.0).to(WIDE)
    if ADD:
        branch = tl.load(f + index, mask=inside, other=0.0).to(WIDE) + b
        if CUT > 0:
            branch = tl.where(keep_mask(seed, index, CUT), branch * keep_scale, 0.0)
        s += branch
    return s


@triton.jit(do_not_specialize_on_alignment=["seed"])
def dropout_add_layernorm_forward_kernel(
    x, f, bias, weight, shift, seed, out, means, scales, rows, eps, keep_scale,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, CUT: tl.constexpr,
    ADD: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row, at = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, WW)
    inside = (row < rows)[:, None] & (at < WIDTH)[None, :]
    index = row[:, None] * WIDTH + at[None, :]
    s = residual_sum_tile(x, f, load_row(bias, at, WIDTH, WIDE), seed, index, inside, keep_scale, CUT, ADD, WIDE)
    if NORM:
        mean = tl.sum(tl.where(inside, s, 0.0), 1) / WIDTH
        centred = tl.where(inside, s - mean[:, None], 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
        tl.store(means + row, mean, mask=row < rows)
        tl.store(scales + row, scale, mask=row < rows)
        s = centred * scale[:, None] * load_row(weight, at, WIDTH, WIDE) + load_row(shift, at, WIDTH, WIDE)
    tl.store(out + index, s.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["seed"])
def dropout_add_layernorm_backward_kernel(
    grad, more, x, f, bias, weight, seed, means, scales, dx, df, partials, rows, keep_scale,
    WIDTH: tl.constexpr, WW: tl.constexpr, ROWS: tl.constexpr, CUT: tl.constexpr, MORE: tl.constexpr,
    ADD: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    at, programs = tl.arange(0, WW), tl.num_programs(0)
    b, w = load_row(bias, at, WIDTH, WIDE), load_row(weight, at, WIDTH, WIDE)
    dw, dv, db = tl.zeros((ROWS, WW), WIDE), tl.zeros((ROWS, WW), WIDE), tl.zeros((ROWS, WW), WIDE)
    for first in tl.range(tl.program_id(0) * ROWS, rows, programs * ROWS, num_stages=STAGES):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & (at < WIDTH)[None, :]
        index = row[:, None] * WIDTH + at[None, :]
        g = tl.load(grad + index, mask=inside, other=0.0).to(WIDE)
        if MORE:
            g += tl.load(more + index, mask=inside, other=0.0).to(WIDE)
        if NORM:
            mean = tl.load(means + row, mask=row < rows, other=0.0)[:, None]
            scale = tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
            s = residual_sum_tile(x, f, b, seed, index, inside, keep_scale, CUT, ADD, WIDE)
            normed = tl.where(inside, (s - mean) * scale, 0.0)
            dw += g * normed
            dv += g
            g *= w
            g = (g - tl.sum(g, 1)[:, None] / WIDTH - normed * (tl.sum(g * normed, 1)[:, None] / WIDTH)) * scale
        tl.store(dx + index, g.to(dx.dtype.element_ty), mask=inside)
        if ADD:
            if CUT > 0:
                g = tl.where(keep_mask(seed, index, CUT), g * keep_scale, 0.0)
            g = tl.where(inside, g, 0.0)
            tl.store(df + index, g.to(df.dtype.element_ty), mask=inside)
            db += g
    here = partials + tl.program_id(0) * (3 * WIDTH) + at
    tl.store(here, tl.sum(dw, 0), mask=at < WIDTH)
    tl.store(here + WIDTH, tl.sum(dv, 0), mask=at < WIDTH)
    tl.store(here + 2 * WIDTH, tl.sum(db, 0), mask=at < WIDTH)


@dataclass(frozen=True, eq=False)
class ResidualInputs:
    """The operands; x and f are contiguous. Without f nothing is added, without a weight there is no norm."""

    x: Tensor
    f: Tensor | None
    bias: Tensor | None
    weight: Tensor | None
    seed: Tensor
    p: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.numel() // self.x.shape[-1], self.x.shape[-1]

    def constants(self, launch: ResidualLaunch) -> dict[str, Any]:
        assert all(part is None or part.is_contiguous() for part in (self.x, self.f, self.bias, self.weight))
        width = self.shape[1]
        wide = triton.next_power_of_2(width)
        return {
            "WIDTH": width,
            "WW": wide,
            "ROWS": launch.rows,
            "CUT": round(self.p * 2**24),
            "ADD": self.f is not None,
            "NORM": self.weight is not None,
            "WIDE": accumulation_type(self.x.dtype),
            "num_warps": min(16, launch.warps * max(1, wide // ROW)),
        }


def launch_residual_forward(
    inputs: ResidualInputs,
    shift: Tensor | None,
    eps: float,
    out: Tensor,
    stats: Tensor,
    launch: ResidualLaunch = FORWARD,
) -> None:
    """Into `out`, and into `stats` each row's mean and 1 / √(variance + ε)."""
    (rows, _), x = inputs.shape, inputs.x
    if rows:
        f, bias, weight, shift = (x if part is None else part for part in (inputs.f, inputs.bias, inputs.weight, shift))
        dropout_add_layernorm_forward_kernel[(-(-rows // launch.rows),)](
            x, f, bias, weight, shift, inputs.seed, out, stats[0], stats[1], rows, eps, 1 / (1 - inputs.p),
            **inputs.constants(launch),
        )  # fmt: skip


def launch_residual_backward(
    inputs: ResidualInputs, grad: Tensor, more: Tensor | None, stats: Tensor, grads: tuple[Tensor, Tensor | None],
    launch: ResidualLaunch = BACKWARD,
) -> Tensor:  # fmt: skip
    """Into `grads`: the gradients of x and f. Returns those of w, v and b, the sums over all rows."""
    (rows, width), x = inputs.shape, inputs.x
    like = next(part for part in (inputs.weight, inputs.bias, x) if part is not None)
    wide = torch.promote_types(x.dtype, torch.float32)
    programs = min(launch.programs, -(-rows // launch.rows))
    if not rows:
        return torch.zeros((3, width), dtype=like.dtype, device=x.device)
    partials = torch.empty((programs, 3, width), dtype=wide, device=x.device)
    f, bias, weight = (x if part is None else part for part in (inputs.f, inputs.bias, inputs.weight))
    dx, df = grads
    options = inputs.constants(launch) | {"MORE": more is not None, "STAGES": launch.stages}
    dropout_add_layernorm_backward_kernel[(programs,)](
        grad, grad if more is None else more, x, f, bias, weight, inputs.seed, stats[0], stats[1],
        dx, dx if df is None else df, partials, rows, 1 / (1 - inputs.p), **options,
    )  # fmt: skip
    return sum_partials(partials, like.dtype)


# --- embedding ---


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


def launch_embedding_forward(
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


def launch_embedding_backward(pairs: tuple[tuple[Tensor, Tensor], ...], seed: Tensor, p: float) -> Tensor:
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
