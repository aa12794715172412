"""Tile by tile over an interval of keys, as Triton kernels: elementwise attention (ReLU, sigmoid), and hard attention.

Each kernel has its own tile in registers and goes over the other side's; the formulas are at the heads of
`backends/elementwise.py` and `backends/hard.py`. No two programs write to one address, so there are no atomics and the
gradients are the same every time. A pass has three parts: tiles at whose edge visibility begins, tiles seen whole (no
mask, nothing but products), and tiles at whose edge it ends. Tiles that nobody sees are not visited. Weights are
rounded to the values' precision for the second product, as everywhere; sums are kept in float32.

Elementwise: `row_out` and `row_dq` own queries and go over keys, `row_dkv` owns keys and goes over queries.

Hard: `choose_kernel` selects one key per query. It owns queries and goes over groups of keys with one product a tile;
the candidate's scores are in registers, so that the selected key's own score is at hand in the end. `log_p_dq` and
`log_p_dk` are the backward pass of log p, `dv_kernel` that of the output: keys own the queries that selected them,
which a sort has put side by side, and add them up by a product with a matrix of zeros and ones.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from einops import rearrange
from torch import Tensor

from regard.attention.backends.elementwise import ElementwiseEngine
from regard.attention.backends.hard import GROUP, ROUNDS, HardEngine
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


# --- hard attention ---


@dataclass(frozen=True)
class HardTileShapes:
    """One for each kernel; of the first, only what a program owns is free."""

    choose: TileShape = TileShape(64, GROUP, 4, 3)
    dq: TileShape = TileShape()
    dk: TileShape = TileShape()
    dv: TileShape = TileShape(64, 64, 4, 2)

    @staticmethod
    def of(q: Tensor) -> "HardTileShapes":
        """What fits into the registers and the shared memory of one multiprocessor."""
        if q.dtype == torch.float32:
            return HardTileShapes(TileShape(32, GROUP, 4, 1), *[TileShape(32, 32, 4, 1)] * 3)
        if q.shape[3] <= 64:
            return HardTileShapes()
        small = SMALL[q.shape[3] <= 128]
        return HardTileShapes(TileShape(64, GROUP, 4, 1), small, small, TileShape(64, 32, 4, 1))


@dataclass(frozen=True, eq=False)
class TritonHard(HardEngine):
    """The kernels below, on one call's tensors, batch and heads side by side. Without a seed nothing is sampled."""

    interval: Interval
    start: int
    seed: Tensor | None
    shapes: HardTileShapes | None = None

    def choose(self, q, k, v):
        out = torch.empty(*q.shape[:3], v.shape[3], dtype=v.dtype, device=v.device)
        key = torch.empty(q.shape[:3], dtype=torch.int32, device=q.device)
        log_p, lse = (torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) for _ in range(2))
        seed = torch.zeros((), dtype=torch.int64, device=q.device) if self.seed is None else self.seed
        arguments = (flat(v), seed, out, key, log_p, lse)
        constants = {"SAMPLED": self.seed is not None, "ROUNDS": ROUNDS, **widths(q.shape[3], v.shape[3])}
        self.run(choose_kernel, (self.shapes or HardTileShapes.of(q)).choose, q.shape[2], q, k, *arguments, **constants)
        return out, key.long(), log_p, lse

    def scores_backward(self, q, k, key, lse, grad):
        shapes = self.shapes or HardTileShapes.of(q)
        dq, dk = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
        arguments = key.to(torch.int32), lse, grad.float().contiguous()
        constants = {name: size for name, size in widths(q.shape[3], 1).items() if name in ("D", "DP")}
        self.run(log_p_dq, shapes.dq, q.shape[2], q, k, *arguments, dq, **constants)
        self.run(log_p_dk, shapes.dk, k.shape[2], q, k, *arguments, dk, **constants)
        return dq, dk

    def run(
        self, kernel: Any, shape: TileShape, owned: int, q: Tensor, k: Tensor, *others: Tensor, **constants: Any
    ) -> None:
        (batch, heads, n_q, _), n_k = q.shape, k.shape[2]
        if owned and batch * heads:
            ends = self.interval.ends(batch, n_k, q.device)
            kernel[tile_count(owned, shape.own) * batch * heads,](
                *(flat(q), flat(k), ends, *others, heads, n_q, n_k, self.start, self.interval.low, self.interval.high),
                **constants,
                **shape.options(),
                PRECISION=precision(q),
            )

    def values_backward(self, key, grad, v):
        (n_k, e), shape = v.shape[2:], (self.shapes or HardTileShapes.of(grad)).dv
        dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        if not v.numel():
            return dv
        keys, order = rearrange(key, "b h i -> (b h) i").sort(stable=True)
        edges = torch.arange(0, n_k + shape.own, shape.own, device=key.device).clamp(max=n_k)
        edges = torch.searchsorted(keys, edges.expand(len(keys), -1).contiguous()).to(torch.int32)
        constants: dict[str, Any] = {name: size for name, size in widths(1, e).items() if name in ("E", "EP")}
        constants |= {**shape.options(), "PRECISION": precision(grad)}
        dv_kernel[tile_count(n_k, shape.own) * len(keys),](
            *(grad.contiguous(), keys.to(torch.int32), order.to(torch.int32), edges, dv, key.shape[2], n_k),
            **constants,
        )
        return dv


def flat(x: Tensor) -> Tensor:
    return rearrange(x, "b h t d -> (b h) t d").contiguous()


@triton.jit
def gumbel(bits):
    """−log E with E = −log(1 − u): small E win, so near u = 0, where 1 − u would round, a series is used instead."""
    u = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    series = u * (1.0 + u * (0.5 + u * (0.33333333 + u * 0.25)))
    return -tl.log(tl.where(u < 0.03125, series, -tl.log(1.0 - u)))


@triton.jit
def add_logs(x, y):
    """log(e^x + e^y), also of −∞."""
    top = tl.maximum(x, y)
    safe = tl.where(top == float("-inf"), 0.0, top)
    return tl.where(top == float("-inf"), top, safe + tl.log(tl.exp(x - safe) + tl.exp(y - safe)))


@triton.jit(do_not_specialize=NUMBERS)
def choose_kernel(q, k, ends, v, seed, out, key, log_p, lse, heads, n_q, n_k, start, low, high, D: tl.constexpr,
               DP: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr,
               SAMPLED: tl.constexpr, ROUNDS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    n, r, stop, parts = query_tile(ends, heads, n_q, start, low, high, OWN, OTHER)  # type: ignore[misc]
    mine, named = load_block(q + n * n_q * D, r, n_q, D, DP, MASKED=True), tl.load(seed)
    best, total = tl.full([OWN], float("-inf"), tl.float32), tl.full([OWN], float("-inf"), tl.float32)
    group, held = tl.full([OWN], -1, tl.int32), tl.full([OWN, OTHER], float("-inf"), tl.float32)
    head = tl.zeros([OWN], tl.int32) + n.to(tl.int32)
    for part in tl.static_range(3):
        for tile in range(parts[part], parts[part + 1]):
            j = tile * OTHER + tl.arange(0, OTHER)
            keys = load_block(k + n * n_k * D, j, stop, D, DP, part != 1)
            s = tl.dot(mine, tl.trans(keys), input_precision=PRECISION)
            if part != 1:
                s = tl.where(is_visible(start + r[:, None], j[None, :], low, high, stop), s, float("-inf"))
            top = tl.max(s, 1)
            safe = top
            if part != 1:
                safe = tl.where(top == float("-inf"), 0.0, top)
            # e^x is 2^(x log₂ e), and here the product and the difference are one instruction
            sums = tl.sum(tl.exp2(s * 1.4426950408889634 - (safe * 1.4426950408889634)[:, None]), 1)
            weight = tl.where(top == float("-inf"), top, safe + tl.log(tl.maximum(sums, 1e-30)))
            total = add_logs(total, weight)
            race = top
            if SAMPLED:
                bits, _, _, _ = tl.philox(named, r * 0 + tile, r, head, r * 0, ROUNDS)  # type: ignore[misc]
                race = weight + gumbel(bits)
            better = race > best
            best, group = tl.where(better, race, best), tl.where(better, tile, group)
            held = tl.where(better[:, None], s, held)
    at = tl.arange(0, OTHER)
    race = held
    if SAMPLED:
        fours, zero = (
            group[:, None] * (OTHER // 4) + tl.arange(0, OTHER // 4)[None, :],
            tl.zeros([OWN, OTHER // 4], tl.int32),
        )
        a, b, c, d = tl.philox(named, fours, zero + r[:, None], zero + head[:, None], zero + 1, ROUNDS)  # type: ignore[misc]
        race += gumbel(tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [OWN, OTHER]))
    chosen = tl.argmax(race, 1)
    score = tl.sum(tl.where(at[None, :] == chosen[:, None], held, 0.0), 1)
    found, inside = group >= 0, r < n_q
    index = tl.where(found, group * OTHER + chosen, -1)
    tl.store(key + n * n_q + r, index, inside)
    tl.store(log_p + n * n_q + r, tl.where(found, tl.minimum(score - total, 0.0), 0.0), inside)
    tl.store(lse + n * n_q + r, tl.where(found, total, 0.0), inside)
    c = tl.arange(0, EP)
    spot = v + n * n_k * E + index[:, None] * E + c[None, :]
    store_block(out + n * n_q * E, r, n_q, tl.load(spot, (found & inside)[:, None] & (c < E)[None, :], 0.0), E, EP)


@triton.jit(do_not_specialize=NUMBERS)
def log_p_dq(q, k, ends, key, lse, grad, dq, heads, n_q, n_k, start, low, high, D: tl.constexpr, DP: tl.constexpr,
           OWN: tl.constexpr, OTHER: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    n, r, stop, parts = query_tile(ends, heads, n_q, start, low, high, OWN, OTHER)  # type: ignore[misc]
    mine = load_block(q + n * n_q * D, r, n_q, D, DP, MASKED=True)
    chosen = tl.load(key + n * n_q + r, r < n_q, -1)
    shift = tl.load(lse + n * n_q + r, r < n_q, 0.0) * 1.4426950408889634
    pulled = tl.load(grad + n * n_q + r, r < n_q, 0.0)
    total = tl.zeros([OWN, DP], tl.float32)
    for part in tl.static_range(3):
        for tile in range(parts[part], parts[part + 1]):
            j = tile * OTHER + tl.arange(0, OTHER)
            keys = load_block(k + n * n_k * D, j, stop, D, DP, part != 1)
            p = tl.exp2(tl.dot(mine, tl.trans(keys), input_precision=PRECISION) * 1.4426950408889634 - shift[:, None])
            if part != 1:
                p = tl.where(is_visible(start + r[:, None], j[None, :], low, high, stop), p, 0.0)
            # g multiplies in the end, in float32
            ds = tl.where(chosen[:, None] == j[None, :], 1.0 - p, 0.0 - p)
            total = tl.dot(ds.to(keys.dtype), keys, total, input_precision=PRECISION)
    store_block(dq + n * n_q * D, r, n_q, total * pulled[:, None], D, DP)


@triton.jit(do_not_specialize=NUMBERS)
def log_p_dk(q, k, ends, key, lse, grad, dk, heads, n_q, n_k, start, low, high, D: tl.constexpr, DP: tl.constexpr,
           OWN: tl.constexpr, OTHER: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    n, j, stop, parts = key_tile(ends, heads, n_q, n_k, start, low, high, OWN, OTHER)  # type: ignore[misc]
    keys = load_block(k + n * n_k * D, j, stop, D, DP, MASKED=True)
    total = tl.zeros([OWN, DP], tl.float32)
    for part in tl.static_range(3):
        for tile in range(parts[part], parts[part + 1]):
            r = tile * OTHER + tl.arange(0, OTHER)
            theirs = load_block(q + n * n_q * D, r, n_q, D, DP, part != 1)
            chosen = tl.load(key + n * n_q + r, r < n_q, -1)
            shift = tl.load(lse + n * n_q + r, r < n_q, 0.0) * 1.4426950408889634
            pulled = tl.load(grad + n * n_q + r, r < n_q, 0.0)
            p = tl.exp2(tl.dot(keys, tl.trans(theirs), input_precision=PRECISION) * 1.4426950408889634 - shift[None, :])
            if part != 1:
                p = tl.where(is_visible(start + r[None, :], j[:, None], low, high, stop), p, 0.0)
            ds = tl.where(chosen[None, :] == j[:, None], 1.0 - p, 0.0 - p) * pulled[None, :]
            total = tl.dot(ds.to(theirs.dtype), theirs, total, input_precision=PRECISION)
    store_block(dk + n * n_k * D, j, n_k, tl.where((j < stop)[:, None], total, 0.0), D, DP)


@triton.jit(do_not_specialize=["n_q", "n_k"])
def dv_kernel(grad, keys, order, edges, dv, n_q, n_k, E: tl.constexpr, EP: tl.constexpr, OWN: tl.constexpr,
               OTHER: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    count = tl.cdiv(n_k, OWN)
    n, x = (tl.program_id(0) // count).to(tl.int64), tl.program_id(0) % count
    j, c = x * OWN + tl.arange(0, OWN), tl.arange(0, EP)
    begin, until = tl.load(edges + n * (count + 1) + x), tl.load(edges + n * (count + 1) + x + 1)
    total = tl.zeros([OWN, EP], tl.float32)
    for step in range(begin, until, OTHER):
        t = step + tl.arange(0, OTHER)
        chosen = tl.load(keys + n * n_q + t, t < until, -1)
        r = tl.load(order + n * n_q + t, t < until, 0)
        spot = grad + n * n_q * E + r[:, None] * E + c[None, :]
        pulled = tl.load(spot, (t < until)[:, None] & (c < E)[None, :], 0.0)
        hit = (chosen[None, :] == j[:, None]).to(pulled.dtype)
        total = tl.dot(hit, pulled, total, input_precision=PRECISION)
    store_block(dv + n * n_k * E, j, n_k, total, E, EP)
