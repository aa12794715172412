"""Hard attention as Triton kernels: selects one key per query, with log p and the gradients.

What is computed is at the head of `backends/hard.py`, how tiles follow one another at that of
`kernels/elementwise.py`. `choose_kernel` owns queries and goes over groups of keys with one product a tile: it
holds the candidate's scores in registers, so that the selected key's own score is at hand in the end. `row_dq` and
`row_dk` are the backward pass of log p, `dv_kernel` that of the output: keys own the queries that selected them, which
a sort has put side by side, and add them up by a product with a matrix of zeros and ones. No atomics: the gradients are
the same every time.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from einops import rearrange
from torch import Tensor

from regard.attention.backends.hard import GROUP, ROUNDS, HardEngine
from regard.attention.backends.tiles import Interval
from regard.attention.kernels.elementwise import (
    NUMBERS,
    SMALL,
    TileShape,
    is_visible,
    key_tile,
    load_block,
    precision,
    query_tile,
    store_block,
    tile_count,
    widths,
)


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
        self.run(row_dq, shapes.dq, q.shape[2], q, k, *arguments, dq, **constants)
        self.run(row_dk, shapes.dk, k.shape[2], q, k, *arguments, dk, **constants)
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
def row_dq(q, k, ends, key, lse, grad, dq, heads, n_q, n_k, start, low, high, D: tl.constexpr, DP: tl.constexpr,
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
def row_dk(q, k, ends, key, lse, grad, dk, heads, n_q, n_k, start, low, high, D: tl.constexpr, DP: tl.constexpr,
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
