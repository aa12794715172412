"""Shaw's products with the few vectors of distances: many rows times a small matrix, as Triton kernels.

    ask      y = factor · x aᵀ            each row's product with each distance's vector: q·a^K and ō·a^V
    add      y = x + factor · m a         what the distances add to each row: Σ_c M_ic a^V_c and Σ_c B̄_ic a^K_c
    sum_up   a = factor · Σ_rows mᵀ y     the gradients of the vectors, in pieces that are added up afterwards

The mass M_ic is kept as log₂ M + L and turned into M where it is read, so that nobody has to write it down. One pass
each: in torch, where half precision must be widened first, the same takes several times the traffic.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

HIGH, PIECE = 64, 256  # rows a tile, and rows a piece of `sum_up`


def asked(x: Float[Tensor, "rows d"], vectors: Float[Tensor, "w d"], factor: float) -> Float[Tensor, "rows w"]:
    rows, width = len(x), len(vectors)
    out = torch.empty(rows, width, dtype=torch.float32, device=x.device)
    told = constants(x, width)
    ask[-(-rows // HIGH), -(-width // told["SOME"])](x, vectors, out, rows, factor, **told)
    return out


def added(
    x: Float[Tensor, "rows d"],
    by_distance: Float[Tensor, "rows w"],
    total: Float[Tensor, "rows"] | None,
    vectors: Float[Tensor, "w d"],
    factor: float,
    dtype: torch.dtype,
) -> Float[Tensor, "rows d"]:
    """x plus what distances add; with `total`, by_distance is the logarithm of a mass."""
    rows, width = len(x), len(vectors)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    told = constants(out, width, LOGARITHM=total is not None)
    add[(-(-rows // HIGH),)](x, by_distance, x if total is None else total, vectors, out, rows, factor, **told)
    return out


def summed(
    by_distance: Float[Tensor, "rows w"], total: Float[Tensor, "rows"] | None, y: Float[Tensor, "rows d"], factor: float
) -> Float[Tensor, "w d"]:
    """Σ over rows of by_distanceᵀ y; with `total`, by_distance is the logarithm of a mass."""
    (rows, d), width = y.shape, by_distance.shape[1]
    pieces, told = -(-rows // PIECE), constants(y, width, LOGARITHM=total is not None, PIECE=PIECE)
    out = torch.empty(pieces, width, d, dtype=torch.float32, device=y.device)
    sum_up[pieces, -(-width // told["SOME"])](by_distance, y if total is None else total, y, out, rows, factor, **told)
    return out.sum(0)


def constants(x: Tensor, width: int, **more: int) -> dict[str, Any]:
    """What every kernel is told. Distances come 16 a tile at least, because products of matrices want that."""
    some = min(64, max(16, 2 ** (width - 1).bit_length()))
    return {"D": x.shape[1], "WIDTH": width, "HIGH": HIGH, "SOME": some, "PRECISION": precision(x), **more}


def precision(x: Tensor) -> str:
    """How products of numbers that came like x are made: for float32 of three in tf32, which lose nothing."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


@triton.jit
def ask(
    x,
    vectors,
    out,
    rows,
    factor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    HIGH: tl.constexpr,
    SOME: tl.constexpr,
    PRECISION: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH)
    c, d = tl.program_id(1) * SOME + tl.arange(0, SOME), tl.arange(0, D)
    mine = tl.load(x + r[:, None] * D + d[None, :], (r < rows)[:, None], 0.0).to(tl.float32)
    theirs = tl.load(vectors + c[:, None] * D + d[None, :], (c < WIDTH)[:, None], 0.0)
    y = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION) * factor
    tl.store(out + r[:, None] * WIDTH + c[None, :], y, (r < rows)[:, None] & (c < WIDTH)[None, :])


@triton.jit
def add(
    x,
    by_distance,
    total,
    vectors,
    out,
    rows,
    factor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    LOGARITHM: tl.constexpr,
    HIGH: tl.constexpr,
    SOME: tl.constexpr,
    PRECISION: tl.constexpr,
):
    r, d = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH), tl.arange(0, D)
    spot = r[:, None] * D + d[None, :]
    y = tl.zeros([HIGH, D], tl.float32)
    for first in tl.range(0, WIDTH, SOME):
        c = first + tl.arange(0, SOME)
        m = read(by_distance, total, r[:, None], c[None, :], rows, WIDTH, LOGARITHM)
        y = tl.dot(m, tl.load(vectors + c[:, None] * D + d[None, :], (c < WIDTH)[:, None], 0.0), y, PRECISION)
    y = y * factor + tl.load(x + spot, (r < rows)[:, None], 0.0)
    tl.store(out + spot, y.to(out.dtype.element_ty), (r < rows)[:, None])


@triton.jit
def sum_up(
    by_distance,
    total,
    y,
    out,
    rows,
    factor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    LOGARITHM: tl.constexpr,
    PIECE: tl.constexpr,
    HIGH: tl.constexpr,
    SOME: tl.constexpr,
    PRECISION: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    c, d = tl.program_id(1) * SOME + tl.arange(0, SOME), tl.arange(0, D)
    a = tl.zeros([SOME, D], tl.float32)
    for first in tl.range(0, PIECE, HIGH):
        r = n * PIECE + first + tl.arange(0, HIGH)
        m = read(by_distance, total, r[:, None], c[None, :], rows, WIDTH, LOGARITHM)
        theirs = tl.load(y + r[:, None] * D + d[None, :], (r < rows)[:, None], 0.0).to(tl.float32)
        a = tl.dot(tl.trans(m), theirs, a, PRECISION)
    tl.store(out + (n * WIDTH + c[:, None]) * D + d[None, :], a * factor, (c < WIDTH)[:, None])


@triton.jit
def read(by_distance, total, r, c, rows, WIDTH: tl.constexpr, LOGARITHM: tl.constexpr):
    inside = (r < rows) & (c < WIDTH)
    m = tl.load(by_distance + r * WIDTH + c, inside, 0.0)
    if LOGARITHM:
        m = tl.where(inside, tl.exp2(m - tl.load(total + r, r < rows, 0.0)), 0.0)
    return m
