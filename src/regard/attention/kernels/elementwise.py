"""Elementwise attention (ReLU, sigmoid) as Triton kernels: output and gradients over an interval of keys.

Three kernels, each with its own tile in registers and going over the other side's; the formulas are at the head of
`backends/elementwise.py`. `row_out` and `row_dq` own queries and go over keys, `row_dkv` owns keys and goes over
queries. No two programs write to one address, so there are no atomics and the gradients are the same every time.

A pass has three parts: tiles at whose edge visibility begins, tiles seen whole (no mask, nothing but products), and
tiles at whose edge it ends. Tiles that nobody sees are not visited. Weights are rounded to the values' precision for
the second product, as everywhere; sums are kept in float32.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from einops import rearrange
from torch import Tensor

from regard.attention.backends.elementwise import ElementwiseEngine
from regard.attention.backends.tiles import Interval
from regard.attention.normaliser import Normaliser, ReLU, Sigmoid


@dataclass(frozen=True)
class TileShape:
    """How the work is cut, a matter of speed alone.

    Args:
        own: tokens that a program owns.
        other: tokens of the other side in a step.
        stages: steps in flight.
    """

    own: int = 128
    other: int = 64
    warps: int = 8
    stages: int = 3

    def options(self) -> dict[str, int]:
        return {"OWN": self.own, "OTHER": self.other, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class ElementwiseTileShapes:
    """One for each kernel."""

    out: TileShape = TileShape()
    dq: TileShape = TileShape()
    dkv: TileShape = TileShape(stages=2)

    @staticmethod
    def of(q: Tensor, v: Tensor) -> "ElementwiseTileShapes":
        """What fits into the registers and the shared memory of one multiprocessor."""
        if q.dtype == torch.float32:
            return ElementwiseTileShapes(*[TileShape(32, 32, 4, 1)] * 3)
        widest = max(q.shape[3], v.shape[3])
        return ElementwiseTileShapes() if widest <= 64 else ElementwiseTileShapes(*[SMALL[widest <= 128]] * 3)


SMALL = {True: TileShape(64, 64, 4, 2), False: TileShape(64, 32, 8, 1)}  # by: are heads at most 128 wide?


@dataclass(frozen=True, eq=False)
class TritonElementwise(ElementwiseEngine):
    """The kernels below, on one call's tensors, batch and heads side by side.

    Args:
        interval: which keys a query sees.
        start: the index of the first query.
        shapes: how the work is cut. Default: by dtype and width.
    """

    normaliser: Normaliser
    interval: Interval
    start: int
    shapes: ElementwiseTileShapes | None = None

    def forward(self, q, k, v):
        out = torch.empty(*q.shape[:3], v.shape[3], dtype=v.dtype, device=v.device)
        self.run(row_out, (self.shapes or ElementwiseTileShapes.of(q, v)).out, q.shape[2], q, k, v, out)
        return out

    def backward(self, q, k, v, grad):
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        shapes, grad = self.shapes or ElementwiseTileShapes.of(q, v), grad.contiguous()
        self.run(row_dq, shapes.dq, q.shape[2], q, k, v, grad, dq)
        self.run(row_dkv, shapes.dkv, k.shape[2], q, k, v, grad, dk, dv)
        return dq, dk, dv

    def run(self, kernel: Any, shape: TileShape, owned: int, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> None:
        (batch, heads, n_q, d), (n_k, e) = q.shape, v.shape[2:]
        q, k, v = (rearrange(x, "b h t d -> (b h) t d").contiguous() for x in (q, k, v))
        if owned and batch * heads:
            ends = self.interval.ends(batch, n_k, q.device)
            kernel[tile_count(owned, shape.own) * batch * heads,](
                *(q, k, v, ends, *others, heads, n_q, n_k, self.start, self.interval.low, self.interval.high),
                **widths(d, e),
                **shape.options(),
                WEIGH=WEIGH[self.normaliser],
                PRECISION=precision(q),
            )


def widths(d: int, e: int) -> dict[str, Any]:
    """Of keys and of values, and the powers of two that hold them."""
    return {"D": d, "DP": triton.next_power_of_2(max(16, d)), "E": e, "EP": triton.next_power_of_2(max(16, e))}


def precision(x: Tensor) -> str:
    """Of products in float32: by three of the matrix unit's own, all but exact, unless torch's setting allows less."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def tile_count(length: int, size: int) -> int:
    return -(-length // size)


# --- f and its slope ---


@triton.jit
def relu(s):
    return tl.where(s <= 0.0, 0.0, s), tl.where(s > 0.0, 1.0, 0.0)


@triton.jit
def sigmoid(s):
    w = 1.0 / (1.0 + tl.exp(-s))
    return w, w * (1.0 - w)


WEIGH: dict[Normaliser, Any] = {ReLU(): relu, Sigmoid(): sigmoid}


# --- visibility ---


@triton.jit
def tile_range(i0, i1, low, high, stop, OTHER: tl.constexpr):
    """Of what i0 … i1 see, the first tile, the first seen whole, the one after the last seen whole, and the end.

    So part n of a pass goes from the n-th of them to the next, and only part 1 needs no mask.
    """
    first = tl.maximum(i0 - high, 0) // OTHER
    end = tl.maximum((tl.maximum(tl.minimum(i1 - low + 1, stop), 0) + OTHER - 1) // OTHER, first)
    whole = tl.minimum(tl.maximum((tl.maximum(i1 - high, 0) + OTHER - 1) // OTHER, first), end)
    part = tl.maximum(tl.minimum(tl.maximum(tl.minimum(i0 - low + 1, stop), 0) // OTHER, end), whole)
    return first, whole, part, end


@triton.jit
def query_tile(ends, heads, n_q, start, low, high, OWN: tl.constexpr, OTHER: tl.constexpr):
    """A program's head, its queries, the end of their keys, and the parts of a pass over these."""
    count = tl.cdiv(n_q, OWN)
    n = (tl.program_id(0) // count).to(tl.int64)
    r0 = (count - 1 - tl.program_id(0) % count) * OWN  # the last see most when the pattern is causal
    stop = tl.load(ends + n // heads)
    parts = tile_range(start + r0, start + tl.minimum(r0 + OWN, n_q) - 1, low, high, stop, OTHER)
    return n, r0 + tl.arange(0, OWN), stop, parts


@triton.jit
def key_tile(ends, heads, n_q, n_k, start, low, high, OWN: tl.constexpr, OTHER: tl.constexpr):
    """A program's head, its keys, their end, and the parts of a pass over queries."""
    count = tl.cdiv(n_k, OWN)
    n = (tl.program_id(0) // count).to(tl.int64)
    j0 = tl.program_id(0) % count * OWN
    stop = tl.load(ends + n // heads)
    # seen from the keys, queries are an interval too; nobody sees a tile that is nothing but padding
    rows = tl.where(j0 < stop, n_q, 0)
    parts = tile_range(j0 - start, tl.minimum(j0 + OWN, n_k) - 1 - start, 0 - high, 0 - low, rows, OTHER)
    return n, j0 + tl.arange(0, OWN), stop, parts


@triton.jit
def is_visible(i, j, low, high, stop):
    return (i - j >= low) & (i - j <= high) & (j < stop)


@triton.jit
def load_block(x, t, stop, WIDTH: tl.constexpr, POWER: tl.constexpr, MASKED: tl.constexpr):
    """Tokens t of x, with 0 from `stop` on and beyond the width."""
    c = tl.arange(0, POWER)
    spot = x + t[:, None] * WIDTH + c[None, :]
    if MASKED:
        tile = tl.load(spot, (t < stop)[:, None] & (c < WIDTH)[None, :], 0.0)
    elif WIDTH != POWER:
        tile = tl.load(spot, (t >= 0)[:, None] & (c < WIDTH)[None, :], 0.0)
    else:
        tile = tl.load(spot)
    return tile


@triton.jit
def load_keys_values(
    k, v, n, tile, n_k, stop, D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr, EP: tl.constexpr,
    OTHER: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    j = tile * OTHER + tl.arange(0, OTHER)
    return j, load_block(k + n * n_k * D, j, stop, D, DP, MASKED), load_block(v + n * n_k * E, j, stop, E, EP, MASKED)


@triton.jit
def store_block(x, t, stop, tile, WIDTH: tl.constexpr, POWER: tl.constexpr):
    c = tl.arange(0, POWER)
    spot = x + t[:, None] * WIDTH + c[None, :]
    tl.store(spot, tile.to(x.dtype.element_ty), (t < stop)[:, None] & (c < WIDTH)[None, :])


# --- the kernels ---

# one compiled kernel for all lengths: their size and divisibility are of no use to it
NUMBERS = ["heads", "n_q", "n_k", "start", "low", "high"]


@triton.jit(do_not_specialize=NUMBERS)
def row_out(q, k, v, ends, out, heads, n_q, n_k, start, low, high, D: tl.constexpr, DP: tl.constexpr,
            E: tl.constexpr, EP: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, WEIGH: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    n, r, stop, parts = query_tile(ends, heads, n_q, start, low, high, OWN, OTHER)  # type: ignore[misc]
    mine = load_block(q + n * n_q * D, r, n_q, D, DP, MASKED=True)
    total = tl.zeros([OWN, EP], tl.float32)
    for part in tl.static_range(3):
        for tile in range(parts[part], parts[part + 1]):
            j, keys, values = load_keys_values(k, v, n, tile, n_k, stop, D, DP, E, EP, OTHER, part != 1)  # type: ignore[misc]
            w, _ = WEIGH(tl.dot(mine, tl.trans(keys), input_precision=PRECISION))
            if part != 1:
                w = tl.where(is_visible(start + r[:, None], j[None, :], low, high, stop), w, 0.0)
            total = tl.dot(w.to(values.dtype), values, total, input_precision=PRECISION)
    store_block(out + n * n_q * E, r, n_q, total, E, EP)


@triton.jit(do_not_specialize=NUMBERS)
def row_dq(q, k, v, ends, grad, dq, heads, n_q, n_k, start, low, high, D: tl.constexpr, DP: tl.constexpr,
           E: tl.constexpr, EP: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, WEIGH: tl.constexpr,
           PRECISION: tl.constexpr):  # fmt: skip
    n, r, stop, parts = query_tile(ends, heads, n_q, start, low, high, OWN, OTHER)  # type: ignore[misc]
    mine, upstream = (
        load_block(q + n * n_q * D, r, n_q, D, DP, MASKED=True),
        load_block(grad + n * n_q * E, r, n_q, E, EP, MASKED=True),
    )
    total = tl.zeros([OWN, DP], tl.float32)
    for part in tl.static_range(3):
        for tile in range(parts[part], parts[part + 1]):
            j, keys, values = load_keys_values(k, v, n, tile, n_k, stop, D, DP, E, EP, OTHER, part != 1)  # type: ignore[misc]
            _, slope = WEIGH(tl.dot(mine, tl.trans(keys), input_precision=PRECISION))
            ds = slope * tl.dot(upstream, tl.trans(values), input_precision=PRECISION)
            if part != 1:
                ds = tl.where(is_visible(start + r[:, None], j[None, :], low, high, stop), ds, 0.0)
            total = tl.dot(ds.to(keys.dtype), keys, total, input_precision=PRECISION)
    store_block(dq + n * n_q * D, r, n_q, total, D, DP)


@triton.jit(do_not_specialize=NUMBERS)
def row_dkv(q, k, v, ends, grad, dk, dv, heads, n_q, n_k, start, low, high, D: tl.constexpr, DP: tl.constexpr,
            E: tl.constexpr, EP: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr, WEIGH: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    n, j, stop, parts = key_tile(ends, heads, n_q, n_k, start, low, high, OWN, OTHER)  # type: ignore[misc]
    keys, values = (
        load_block(k + n * n_k * D, j, stop, D, DP, MASKED=True),
        load_block(v + n * n_k * E, j, stop, E, EP, MASKED=True),
    )
    by_k, by_v = tl.zeros([OWN, DP], tl.float32), tl.zeros([OWN, EP], tl.float32)
    for part in tl.static_range(3):
        for tile in range(parts[part], parts[part + 1]):
            r = tile * OTHER + tl.arange(0, OTHER)
            theirs = load_block(q + n * n_q * D, r, n_q, D, DP, part != 1)
            upstream = load_block(grad + n * n_q * E, r, n_q, E, EP, part != 1)
            w, slope = WEIGH(tl.dot(keys, tl.trans(theirs), input_precision=PRECISION))
            ds = slope * tl.dot(values, tl.trans(upstream), input_precision=PRECISION)
            if part != 1:
                seen = is_visible(start + r[None, :], j[:, None], low, high, stop) & (r < n_q)[None, :]
                w, ds = tl.where(seen, w, 0.0), tl.where(seen, ds, 0.0)
            by_v = tl.dot(w.to(upstream.dtype), upstream, by_v, input_precision=PRECISION)
            by_k = tl.dot(ds.to(theirs.dtype), theirs, by_k, input_precision=PRECISION)
    real = (j < stop)[:, None]  # padding beside keys that are seen was 0 above, but f(0) need not be
    store_block(dk + n * n_k * D, j, n_k, tl.where(real, by_k, 0.0), D, DP)
    store_block(dv + n * n_k * E, j, n_k, tl.where(real, by_v, 0.0), E, EP)
