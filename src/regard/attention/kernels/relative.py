"""Relative-position attention as Triton kernels, and the autograd functions that launch them.

The pair (i, j) reads column c = clamp(j − i, −R, R) + R of a small table B, one row for a head (T5: the learned number
itself) or one row for a query (Shaw: B = q·a^K, and D = ō·a^V for the values). With P = softmax,

    S_ij = scale q_i·k_j + B_i,c        P_ij = exp(S_ij − L_i),    L_i = log Σ_j exp S_ij
    O_i  = Σ_j P_ij v_j + Σ_c M_ic a^V_c                           M_ic = Σ of P_ij over the pairs of column c
    G_ij = ∂/∂S_ij = P_ij (ō_i·v_j + D_i,c − Δ_i)                  Δ_i  = ō_i·O_i
    q̄_i = scale Σ_j G_ij k_j,   k̄_j = scale Σ_i G_ij q_i,   v̄_j = Σ_i P_ij ō_i,   B̄_ic = Σ of G_ij over column c.

A tile that lies wholly at distance R or beyond has one column, so its B and D are numbers of the row: they join L and Δ
(`prepare_kernel`), and the tile costs what it costs without a bias, but for a row sum of P or G. A `careful` tile near
the diagonal, or at an end of the sequence, looks its pairs up. There the pairs nearer than R are the only ones of their
row and column: for Shaw, log P and G are stored as they are, and nothing has to be added up. For T5, whose rows of B
are shared by all queries, `diagonals_kernel` goes down a diagonal of tiles, which are all alike, and adds up whole
tiles of G. So no address is written twice: there are no atomics and gradients are the same every time. Scores are kept
in units of log 2, since the machine has exp2; B comes in those units.

Shaw's products with the few vectors of distances, many rows times a small matrix, have kernels of their own:

    dot_vectors_kernel   y = factor · x aᵀ          each row's product with each distance's vector: q·a^K and ō·a^V
    add_vectors_kernel   y = x + factor · m a       what they add to each row: Σ_c M_ic a^V_c and Σ_c B̄_ic a^K_c
    sum_vectors_kernel   a = factor · Σ_rows mᵀ y   the gradients of the vectors, in pieces to be added up

The mass M_ic is kept as log₂ M + L and turned into M where it is read, so that nobody has to write it down. One pass
each: in torch, where half precision must be cast to float32 first, the same takes several times the traffic.
"""

from dataclasses import dataclass
from math import e as EULER
from math import log2
from typing import Any

import torch
import triton
import triton.language as tl
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def forward_kernel(
    q, k, v, bias, lengths, out, total, band, queries, keys, start, heads, share, unit,
    D: tl.constexpr, E: tl.constexpr, REACH: tl.constexpr, CAUSAL: tl.constexpr, PADDED: tl.constexpr,
    VECTORS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of queries: out, L, and for Shaw log M in `band`."""
    tiles = tl.cdiv(queries, HIGH)
    n, first = (tl.program_id(0) // tiles).to(tl.int64), (tiles - 1 - tl.program_id(0) % tiles) * HIGH
    i, c, d, e = first + tl.arange(0, HIGH), tl.arange(0, NEAR), tl.arange(0, D), tl.arange(0, E)
    real, scale = i < queries, unit * LOG2E
    WIDTH: tl.constexpr = 2 * REACH + 1
    k, v = k + key_head(n, heads, share) * keys * D, v + key_head(n, heads, share) * keys * E
    rows = own_rows(bias, n, i, queries, heads, WIDTH, VECTORS)
    mine = tl.load(q + n * queries * D + i[:, None] * D + d[None, :], real[:, None], 0.0)
    limit = seen_keys(lengths, n, keys, heads, first + HIGH + start, CAUSAL, PADDED)
    whole, left, right = unmasked_range(first + start - REACH, first + HIGH - 1 + start + REACH, limit // WIDE, WIDE)
    top, sums = tl.full([HIGH], -float("inf"), tl.float32), tl.zeros([HIGH, E], tl.float32)
    extra = tl.load(rows, real, 0.0)
    sums, top, before = far_forward(mine, k, v, 0, left, extra, top, sums, scale, D, E, WIDE, PRECISION)
    then, extra = top, tl.load(rows + WIDTH - 1, real, 0.0)
    sums, top, after = far_forward(mine, k, v, right, whole, extra, top, sums, scale, D, E, WIDE, PRECISION)
    before *= tl.exp2(then - finite(top))
    middle = tl.zeros([HIGH], tl.float32)
    for t in tl.range(0, masked_tile_count(left, right, whole, limit, WIDE, NEAR), num_stages=1):
        j = masked_tile_start(t, left, right, whole, WIDE, NEAR) + c
        theirs = tl.load(k + j[None, :] * D + d[:, None], (j < limit)[None, :], 0.0)
        apart = j[None, :] - i[:, None] - start
        seen = (j < limit)[None, :] & real[:, None]
        if CAUSAL:
            seen &= apart <= 0
        s = tl.dot(mine, theirs, input_precision=PRECISION) * scale
        s = tl.where(seen, s + tl.load(rows[:, None] + column(apart, REACH), real[:, None], 0.0), -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p, shrink = tl.exp2(s - finite(new)[:, None]), tl.exp2(top - finite(new))
        if VECTORS:
            near = (apart > -REACH) & (apart < REACH)
            spot = band + (n * queries + i[:, None]) * WIDTH + apart + REACH
            tl.store(spot, s, seen & near)
            before = before * shrink + tl.sum(tl.where(apart <= -REACH, p, 0.0), 1)
            after = after * shrink + tl.sum(tl.where(apart >= REACH, p, 0.0), 1)
            middle = middle * shrink + tl.sum(tl.where(near, p, 0.0), 1)
        else:
            before, after = before * shrink, after * shrink
            middle = middle * shrink + tl.sum(p, 1)
        value = tl.load(v + j[:, None] * E + e[None, :], (j < limit)[:, None], 0.0)
        sums = tl.dot(p.to(value.dtype), value, sums * shrink[:, None], input_precision=PRECISION)
        top = new
    mass = before + middle + after
    some, top = mass > 0, finite(top)
    sums = sums / tl.where(some, mass, 1.0)[:, None]
    tl.store(out + n * queries * E + i[:, None] * E + e[None, :], sums.to(out.dtype.element_ty), real[:, None])
    # a row that sees nothing: infinite, so that its weights are found to be 0 again
    tl.store(total + n * queries + i, tl.where(some, top + tl.log2(tl.where(some, mass, 1.0)), float("inf")), real)
    if VECTORS:
        ends = band + (n * queries + i) * WIDTH
        tl.store(ends, top + tl.log2(before), real & (before > 0))
        tl.store(ends + WIDTH - 1, top + tl.log2(after), real & (after > 0))


@triton.jit
def far_forward(
    mine, k, v, low, high, extra, top, sums, scale,
    D: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles of one column: its number goes into the row's maximum. Also the mass of these tiles."""
    c, d, e = tl.arange(0, WIDE), tl.arange(0, D), tl.arange(0, E)
    mass = tl.zeros_like(top)
    for t in tl.range(low, high):
        j = t * WIDE + c
        s = tl.dot(mine, tl.load(k + j[None, :] * D + d[:, None]), input_precision=PRECISION)
        new = tl.maximum(top, tl.max(s, 1) * scale + extra)
        p, shrink = tl.exp2(s * scale - (new - extra)[:, None]), tl.exp2(top - new)
        mass = mass * shrink + tl.sum(p, 1)
        value = tl.load(v + j[:, None] * E + e[None, :])
        sums = tl.dot(p.to(value.dtype), value, sums * shrink[:, None], input_precision=PRECISION)
        top = new
    return sums, top, mass


@triton.jit
def prepare_kernel(
    out, grad, total, bias, by_value, totals, deltas, queries, heads,
    E: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """Δ, and L and Δ as the tiles before, the tiles after and the careful ones want them."""
    tiles = tl.cdiv(queries, HIGH)
    n, first = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * HIGH
    i, e = first + tl.arange(0, HIGH), tl.arange(0, E)
    real, spot = i < queries, n * queries * E + i[:, None] * E + e[None, :]
    o, g = (tl.load(out + spot, real[:, None], 0.0), tl.load(grad + spot, real[:, None], 0.0))
    delta = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    sums = tl.load(total + n * queries + i, real, 0.0)
    rows = own_rows(bias, n, i, queries, heads, WIDTH, VECTORS)
    totals, deltas = totals + n * queries * 3 + i, deltas + n * queries * 3 + i
    tl.store(totals, sums - tl.load(rows, real, 0.0), real)
    tl.store(totals + queries, sums - tl.load(rows + WIDTH - 1, real, 0.0), real)
    tl.store(totals + 2 * queries, sums, real)
    before, after = delta, delta
    if VECTORS:
        rows = own_rows(by_value, n, i, queries, heads, WIDTH, VECTORS)
        before, after = delta - tl.load(rows, real, 0.0), delta - tl.load(rows + WIDTH - 1, real, 0.0)
    tl.store(deltas, before, real)
    tl.store(deltas + queries, after, real)
    tl.store(deltas + 2 * queries, delta, real)


@triton.jit
def key_head(n, heads, share):
    """Whose keys and values query head n reads, where `share` heads share one."""
    return n // heads * (heads // share) + n % heads // share


@triton.jit
def own_rows(table, n, i, queries, heads, WIDTH: tl.constexpr, VECTORS: tl.constexpr):
    """Where each query's numbers begin: a row of its own, or its head's."""
    return table + (n * queries + i) * WIDTH if VECTORS else table + n % heads * WIDTH + i * 0


@triton.jit
def real_keys(lengths, n, keys, heads, PADDED: tl.constexpr):
    """How many keys are no padding."""
    return tl.minimum(keys, tl.maximum(tl.load(lengths + n // heads), 0)) if PADDED else keys


@triton.jit
def seen_keys(lengths, n, keys, heads, end, CAUSAL: tl.constexpr, PADDED: tl.constexpr):
    """How many of them a tile of queries that ends before position `end` may see."""
    limit = real_keys(lengths, n, keys, heads, PADDED)
    return tl.minimum(limit, tl.maximum(end, 0)) if CAUSAL else limit


@triton.jit
def unmasked_range(last, first, whole, SIZE: tl.constexpr):
    """Of `whole` tiles: how many end at `last` or before, and which is the first to begin at `first` or after."""
    left = tl.minimum(tl.maximum(last + 1, 0) // SIZE, whole)
    return whole, left, tl.minimum(tl.maximum(tl.cdiv(tl.maximum(first, 0), SIZE), left), whole)


@triton.jit
def masked_tile_count(left, right, whole, end, SIZE: tl.constexpr, NEAR: tl.constexpr):
    """How many narrow tiles it takes from `left` to `right` and from the last whole tile to the end."""
    return (right - left) * (SIZE // NEAR) + tl.cdiv(end - whole * SIZE, NEAR)


@triton.jit
def masked_tile_start(t, left, right, whole, SIZE: tl.constexpr, NEAR: tl.constexpr):
    """Where the t-th of them begins."""
    middle = (right - left) * (SIZE // NEAR)
    return tl.where(t < middle, left * SIZE + t * NEAR, whole * SIZE + (t - middle) * NEAR)


@triton.jit
def column(apart, REACH: tl.constexpr):
    return tl.minimum(tl.maximum(apart, -REACH), REACH) + REACH


@triton.jit
def finite(top):
    """A maximum to subtract: of a row that has seen nothing yet, 0."""
    return tl.where(top == -float("inf"), 0.0, top)


# --- backward pass: one kernel for q and the numbers, one for k and v ---
# `totals` and `deltas` hold L and Δ three times: for tiles before the diagonal, after it, and careful ones.


@triton.jit
def queries_backward_kernel(
    q, k, v, grad, bias, by_value, lengths, totals, deltas, of_q, of_band, queries, keys, start, heads, share,
    unit,
    D: tl.constexpr, E: tl.constexpr, REACH: tl.constexpr, CAUSAL: tl.constexpr, PADDED: tl.constexpr,
    VECTORS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of queries: q̄, and B̄: for Shaw all of it, for T5 the two outer columns, a row for each query."""
    tiles = tl.cdiv(queries, HIGH)
    n, first = (tl.program_id(0) // tiles).to(tl.int64), (tiles - 1 - tl.program_id(0) % tiles) * HIGH
    i, c, d, e = first + tl.arange(0, HIGH), tl.arange(0, NEAR), tl.arange(0, D), tl.arange(0, E)
    real, scale = i < queries, unit * LOG2E
    WIDTH: tl.constexpr = 2 * REACH + 1
    k, v = k + key_head(n, heads, share) * keys * D, v + key_head(n, heads, share) * keys * E
    mine = tl.load(q + n * queries * D + i[:, None] * D + d[None, :], real[:, None], 0.0)
    upstream = tl.load(grad + n * queries * E + i[:, None] * E + e[None, :], real[:, None], 0.0)
    totals, deltas = totals + n * queries * 3 + i, deltas + n * queries * 3 + i
    limit = seen_keys(lengths, n, keys, heads, first + HIGH + start, CAUSAL, PADDED)
    whole, left, right = unmasked_range(first + start - REACH, first + HIGH - 1 + start + REACH, limit // WIDE, WIDE)
    sums = tl.zeros([HIGH, D], tl.float32)
    total, delta = tl.load(totals, real, float("inf")), tl.load(deltas, real, 0.0)
    sums, before = far_queries_backward(mine, upstream, k, v, 0, left, total, delta, sums, scale, D, E, WIDE, PRECISION)
    total, delta = tl.load(totals + queries, real, float("inf")), tl.load(deltas + queries, real, 0.0)
    sums, after = far_queries_backward(
        mine, upstream, k, v, right, whole, total, delta, sums, scale, D, E, WIDE, PRECISION
    )
    total, delta = tl.load(totals + 2 * queries, real, float("inf")), tl.load(deltas + 2 * queries, real, 0.0)
    rows = own_rows(bias, n, i, queries, heads, WIDTH, VECTORS)
    for t in tl.range(0, masked_tile_count(left, right, whole, limit, WIDE, NEAR), num_stages=1):
        j = masked_tile_start(t, left, right, whole, WIDE, NEAR) + c
        key = tl.load(k + j[:, None] * D + d[None, :], (j < limit)[:, None], 0.0)
        value = tl.load(v + j[:, None] * E + e[None, :], (j < limit)[:, None], 0.0)
        apart = j[None, :] - i[:, None] - start
        seen = (j < limit)[None, :] & real[:, None]
        if CAUSAL:
            seen &= apart <= 0
        s = tl.dot(mine, tl.trans(key), input_precision=PRECISION) * scale
        s += tl.load(rows[:, None] + column(apart, REACH), real[:, None], 0.0)
        p = tl.where(seen, tl.exp2(s - total[:, None]), 0.0)
        g = tl.dot(upstream, tl.trans(value), input_precision=PRECISION)
        if VECTORS:
            spot = (n * queries + i[:, None]) * WIDTH + column(apart, REACH)
            g += tl.load(by_value + spot, real[:, None], 0.0)
        g = p * (g - delta[:, None])
        if VECTORS:
            tl.store(of_band + spot, g, seen & (apart > -REACH) & (apart < REACH))
        before += tl.sum(tl.where(apart <= -REACH, g, 0.0), 1)
        after += tl.sum(tl.where(apart >= REACH, g, 0.0), 1)
        sums = tl.dot(g.to(key.dtype), key, sums, input_precision=PRECISION)
    spot = of_q + n * queries * D + i[:, None] * D + d[None, :]
    tl.store(spot, (sums * unit).to(of_q.dtype.element_ty), real[:, None])
    COLUMNS: tl.constexpr = 2 * REACH + 1 if VECTORS else 2
    ends = of_band + (n * queries + i) * COLUMNS
    tl.store(ends, before, real)
    tl.store(ends + COLUMNS - 1, after, real)


@triton.jit
def far_queries_backward(
    mine, upstream, k, v, low, high, total, delta, sums, scale,
    D: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles of one column: Σ G k, and the sum of G in each row."""
    c, d, e = tl.arange(0, WIDE), tl.arange(0, D), tl.arange(0, E)
    row_sums = tl.zeros_like(total)
    for t in tl.range(low, high):
        j = t * WIDE + c
        key = tl.load(k + j[:, None] * D + d[None, :])
        value = tl.load(v + j[:, None] * E + e[None, :])
        s = tl.dot(mine, tl.trans(key), input_precision=PRECISION)
        g = tl.dot(upstream, tl.trans(value), input_precision=PRECISION)
        g = tl.exp2(s * scale - total[:, None]) * (g - delta[:, None])
        row_sums += tl.sum(g, 1)
        sums = tl.dot(g.to(key.dtype), key, sums, input_precision=PRECISION)
    return sums, row_sums


@triton.jit
def keys_backward_kernel(
    q, k, v, grad, bias, by_value, lengths, totals, deltas, of_k, of_v, queries, keys, start, heads, share,
    unit,
    D: tl.constexpr, E: tl.constexpr, REACH: tl.constexpr, CAUSAL: tl.constexpr, PADDED: tl.constexpr,
    VECTORS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of keys: k̄ and v̄, for each head that reads them. Everything is transposed: keys down, queries across."""
    tiles = tl.cdiv(keys, WIDE)
    n, first = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * WIDE
    j, r, d, e = first + tl.arange(0, WIDE), tl.arange(0, NEAR), tl.arange(0, D), tl.arange(0, E)
    scale = unit * LOG2E
    WIDTH: tl.constexpr = 2 * REACH + 1
    limit = real_keys(lengths, n, keys, heads, PADDED)
    kept = j < limit
    k, v = k + key_head(n, heads, share) * keys * D, v + key_head(n, heads, share) * keys * E
    key = tl.load(k + j[:, None] * D + d[None, :], kept[:, None], 0.0)
    value = tl.load(v + j[:, None] * E + e[None, :], kept[:, None], 0.0)
    q, grad = q + n * queries * D, grad + n * queries * E
    totals, deltas = totals + n * queries * 3, deltas + n * queries * 3
    # seen from the queries: those so early that these keys lie after them, and those so late that they lie before
    whole, early, late = unmasked_range(first - start - REACH, first + WIDE - 1 - start + REACH, queries // HIGH, HIGH)
    low = 0
    if CAUSAL:
        low = tl.minimum(tl.maximum(first - start, 0) // HIGH, whole)
        early = low
        late = tl.maximum(late, early)
    live = (first < limit).to(tl.int32)
    low, early, late, whole, end = low * live, early * live, late * live, whole * live, queries * live
    of_key, of_value = tl.zeros([WIDE, D], tl.float32), tl.zeros([WIDE, E], tl.float32)
    of_key, of_value = far_keys_backward(
        key,
        value,
        q,
        grad,
        low,
        early,
        totals + queries,
        deltas + queries,
        of_key,
        of_value,
        scale,
        D,
        E,
        HIGH,
        PRECISION,
    )
    of_key, of_value = far_keys_backward(
        key, value, q, grad, late, whole, totals, deltas, of_key, of_value, scale, D, E, HIGH, PRECISION
    )
    for t in tl.range(0, masked_tile_count(early, late, whole, end, HIGH, NEAR), num_stages=1):
        i = masked_tile_start(t, early, late, whole, HIGH, NEAR) + r
        real = i < queries
        mine = tl.load(q + i[:, None] * D + d[None, :], real[:, None], 0.0)
        upstream = tl.load(grad + i[:, None] * E + e[None, :], real[:, None], 0.0)
        total = tl.load(totals + 2 * queries + i, real, float("inf"))
        delta = tl.load(deltas + 2 * queries + i, real, 0.0)
        apart = j[:, None] - i[None, :] - start
        rows = own_rows(bias, n, i, queries, heads, WIDTH, VECTORS)
        s = tl.dot(key, tl.trans(mine), input_precision=PRECISION) * scale
        s += tl.load(rows[None, :] + column(apart, REACH), real[None, :], 0.0)
        p = tl.exp2(s - total[None, :])
        if CAUSAL:
            p = tl.where(apart <= 0, p, 0.0)
        of_value = tl.dot(p.to(upstream.dtype), upstream, of_value, input_precision=PRECISION)
        g = tl.dot(value, tl.trans(upstream), input_precision=PRECISION)
        if VECTORS:
            rows = own_rows(by_value, n, i, queries, heads, WIDTH, VECTORS)
            g += tl.load(rows[None, :] + column(apart, REACH), real[None, :], 0.0)
        g = p * (g - delta[None, :])
        of_key = tl.dot(g.to(mine.dtype), mine, of_key, input_precision=PRECISION)
    of_key, of_value = tl.where(kept[:, None], of_key * unit, 0.0), tl.where(kept[:, None], of_value, 0.0)
    inside = (j < keys)[:, None]
    tl.store(of_k + n * keys * D + j[:, None] * D + d[None, :], of_key.to(of_k.dtype.element_ty), inside)
    tl.store(of_v + n * keys * E + j[:, None] * E + e[None, :], of_value.to(of_v.dtype.element_ty), inside)


@triton.jit
def far_keys_backward(
    key, value, q, grad, low, high, totals, deltas, of_key, of_value, scale,
    D: tl.constexpr, E: tl.constexpr, HIGH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles of one column. Keys that nobody may see get numbers too, which are thrown away."""
    r, d, e = tl.arange(0, HIGH), tl.arange(0, D), tl.arange(0, E)
    for t in tl.range(low, high):  # type: ignore[misc]
        i = t * HIGH + r
        mine = tl.load(q + i[:, None] * D + d[None, :])
        upstream = tl.load(grad + i[:, None] * E + e[None, :])
        s = tl.dot(key, tl.trans(mine), input_precision=PRECISION)
        p = tl.exp2(s * scale - tl.load(totals + i)[None, :])
        of_value = tl.dot(p.to(upstream.dtype), upstream, of_value, input_precision=PRECISION)
        g = tl.dot(value, tl.trans(upstream), input_precision=PRECISION)
        g = p * (g - tl.load(deltas + i)[None, :])
        of_key = tl.dot(g.to(mine.dtype), mine, of_key, input_precision=PRECISION)
    return of_key, of_value


# --- the gradients of T5's numbers near the diagonal ---
# Along a diagonal all tiles are alike: the pair in one corner always reads the same number. So a program goes down a
# piece of such a diagonal and adds up G tile on tile, without any exchange between threads; at the end the sums of each
# program, which are few, are added up along their own diagonals.


def slot_count(reach: int, side: int) -> int:
    """How many diagonals of tiles it takes to cover every distance below the reach in every row."""
    return -(-(2 * reach - 2 + side) // side)


def by_distance(tiles: Float[Tensor, "b h slots chunks r c"], reach: int) -> Float[Tensor, "h distances"]:
    """The sums over each distance, from -reach + 1 to reach - 1."""
    side = tiles.shape[-1]
    rows = rearrange(tiles.sum((0, 3)), "h slots r c -> h r (slots c)").flip(1)
    # row r is moved on by r, by reading it with a width that is one less than its own
    width = rows.shape[2] + side - 1
    flat = pad(rows, (0, side)).flatten(1)[:, : side * width]
    return rearrange(flat, "h (r w) -> h r w", w=width).sum(1)[:, side - 1 :][:, : 2 * reach - 1]


@triton.jit
def diagonals_kernel(
    q, k, v, grad, bias, lengths, totals, deltas, sums, queries, keys, start, heads, share, unit, chunks, each,
    D: tl.constexpr, E: tl.constexpr, REACH: tl.constexpr, CAUSAL: tl.constexpr, PADDED: tl.constexpr,
    SLOTS: tl.constexpr, SIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """G added up over tiles (i + t, j + t): for SLOTS diagonals, in pieces of `each` tiles."""
    chunk, slot = tl.program_id(0) % chunks, tl.program_id(0) // chunks % SLOTS
    n = (tl.program_id(0) // chunks // SLOTS).to(tl.int64)
    r, d, e = tl.arange(0, SIDE), tl.arange(0, D), tl.arange(0, E)
    shift = slot * SIDE - REACH + 1
    apart = shift + r[None, :] - r[:, None]
    limit = real_keys(lengths, n, keys, heads, PADDED)
    k, v = k + key_head(n, heads, share) * keys * D, v + key_head(n, heads, share) * keys * E
    q, grad = q + n * queries * D, grad + n * queries * E
    totals, deltas = totals + n * queries * 3 + 2 * queries, deltas + n * queries * 3 + 2 * queries
    extra = tl.load(bias + n % heads * (2 * REACH + 1) + column(apart, REACH))
    kept = (apart > -REACH) & (apart < REACH)
    if CAUSAL:
        kept &= apart <= 0
    row_sums = tl.zeros([SIDE, SIDE], tl.float32)
    for t in tl.range(chunk * each, tl.minimum((chunk + 1) * each, tl.cdiv(queries, SIDE))):
        i = t * SIDE + r
        j = i + start + shift
        real, seen = i < queries, (j >= 0) & (j < limit)
        mine = tl.load(q + i[:, None] * D + d[None, :], real[:, None], 0.0)
        upstream = tl.load(grad + i[:, None] * E + e[None, :], real[:, None], 0.0)
        key = tl.load(k + j[:, None] * D + d[None, :], seen[:, None], 0.0)
        value = tl.load(v + j[:, None] * E + e[None, :], seen[:, None], 0.0)
        total, delta = tl.load(totals + i, real, float("inf")), tl.load(deltas + i, real, 0.0)
        s = tl.dot(mine, tl.trans(key), input_precision=PRECISION) * (unit * LOG2E) + extra
        g = tl.dot(upstream, tl.trans(value), input_precision=PRECISION)
        g = tl.exp2(s - total[:, None]) * (g - delta[:, None])
        row_sums += tl.where(kept & seen[None, :], g, 0.0)
    tl.store(sums + tl.program_id(0).to(tl.int64) * SIDE * SIDE + r[:, None] * SIDE + r[None, :], row_sums)


# --- products with the vectors of distances ---


HIGH, PIECE = 64, 256  # rows a tile, and rows a piece of `sum_up`


def dot_vectors(x: Float[Tensor, "rows d"], vectors: Float[Tensor, "w d"], factor: float) -> Float[Tensor, "rows w"]:
    rows, width = len(x), len(vectors)
    out = torch.empty(rows, width, dtype=torch.float32, device=x.device)
    arguments = constants(x, width)
    dot_vectors_kernel[-(-rows // HIGH), -(-width // arguments["SOME"])](x, vectors, out, rows, factor, **arguments)
    return out


def add_vectors(
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
    arguments = constants(out, width, LOGARITHM=total is not None)
    add_vectors_kernel[(-(-rows // HIGH),)](
        x, by_distance, x if total is None else total, vectors, out, rows, factor, **arguments
    )
    return out


def sum_vectors(
    by_distance: Float[Tensor, "rows w"], total: Float[Tensor, "rows"] | None, y: Float[Tensor, "rows d"], factor: float
) -> Float[Tensor, "w d"]:
    """Σ over rows of by_distanceᵀ y; with `total`, by_distance is the logarithm of a mass."""
    (rows, d), width = y.shape, by_distance.shape[1]
    pieces, arguments = -(-rows // PIECE), constants(y, width, LOGARITHM=total is not None, PIECE=PIECE)
    out = torch.empty(pieces, width, d, dtype=torch.float32, device=y.device)
    sum_vectors_kernel[pieces, -(-width // arguments["SOME"])](
        by_distance, y if total is None else total, y, out, rows, factor, **arguments
    )
    return out.sum(0)


def constants(x: Tensor, width: int, **more: int) -> dict[str, Any]:
    """Constants of every kernel. Distances come 16 a tile at least, because products of matrices want that."""
    some = min(64, max(16, 2 ** (width - 1).bit_length()))
    return {"D": x.shape[1], "WIDTH": width, "HIGH": HIGH, "SOME": some, "PRECISION": precision(x), **more}


def precision(x: Tensor) -> str:
    """How products of numbers that came like x are made: for float32 of three in tf32, which lose nothing."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


@triton.jit
def dot_vectors_kernel(
    x, vectors, out, rows, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, SOME: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH)
    c, d = tl.program_id(1) * SOME + tl.arange(0, SOME), tl.arange(0, D)
    mine = tl.load(x + r[:, None] * D + d[None, :], (r < rows)[:, None], 0.0).to(tl.float32)
    theirs = tl.load(vectors + c[:, None] * D + d[None, :], (c < WIDTH)[:, None], 0.0)
    y = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION) * factor
    tl.store(out + r[:, None] * WIDTH + c[None, :], y, (r < rows)[:, None] & (c < WIDTH)[None, :])


@triton.jit
def add_vectors_kernel(
    x, by_distance, total, vectors, out, rows, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, LOGARITHM: tl.constexpr, HIGH: tl.constexpr, SOME: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    r, d = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH), tl.arange(0, D)
    spot = r[:, None] * D + d[None, :]
    y = tl.zeros([HIGH, D], tl.float32)
    for first in tl.range(0, WIDTH, SOME):
        c = first + tl.arange(0, SOME)
        m = load_weights(by_distance, total, r[:, None], c[None, :], rows, WIDTH, LOGARITHM)
        y = tl.dot(m, tl.load(vectors + c[:, None] * D + d[None, :], (c < WIDTH)[:, None], 0.0), y, PRECISION)
    y = y * factor + tl.load(x + spot, (r < rows)[:, None], 0.0)
    tl.store(out + spot, y.to(out.dtype.element_ty), (r < rows)[:, None])


@triton.jit
def sum_vectors_kernel(
    by_distance, total, y, out, rows, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, LOGARITHM: tl.constexpr, PIECE: tl.constexpr, HIGH: tl.constexpr,
    SOME: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    c, d = tl.program_id(1) * SOME + tl.arange(0, SOME), tl.arange(0, D)
    a = tl.zeros([SOME, D], tl.float32)
    for first in tl.range(0, PIECE, HIGH):
        r = n * PIECE + first + tl.arange(0, HIGH)
        m = load_weights(by_distance, total, r[:, None], c[None, :], rows, WIDTH, LOGARITHM)
        theirs = tl.load(y + r[:, None] * D + d[None, :], (r < rows)[:, None], 0.0).to(tl.float32)
        a = tl.dot(tl.trans(m), theirs, a, PRECISION)
    tl.store(out + (n * WIDTH + c[:, None]) * D + d[None, :], a * factor, (c < WIDTH)[:, None])


@triton.jit
def load_weights(by_distance, total, r, c, rows, WIDTH: tl.constexpr, LOGARITHM: tl.constexpr):
    inside = (r < rows) & (c < WIDTH)
    m = tl.load(by_distance + r * WIDTH + c, inside, 0.0)
    if LOGARITHM:
        m = tl.where(inside, tl.exp2(m - tl.load(total + r, r < rows, 0.0)), 0.0)
    return m


# --- attention ---


PROGRAMS = 1024  # of the pass down the diagonals: enough for every multiprocessor


@dataclass(frozen=True)
class RelativeTileShape:
    """How a kernel's work is cut: queries and keys a tile, warps a program, tiles under way. It changes speed alone.

    A careful tile takes only `near` of the side that is passed over, so that its many addresses find registers.
    """

    high: int
    wide: int
    warps: int
    stages: int
    near: int = 16
    registers: int | None = None  # at most, for each thread

    def options(self, *, vectors: bool) -> dict[str, Any]:
        cut = {"HIGH": self.high, "WIDE": self.wide, "NEAR": self.near, "VECTORS": vectors}
        return cut | {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


@dataclass(frozen=True)
class RelativeTileShapes:
    forward: RelativeTileShape
    queries: RelativeTileShape
    keys: RelativeTileShape
    side: int = 64

    @staticmethod
    def of(q: Tensor, *, vectors: bool) -> "RelativeTileShapes":
        if q.dtype == torch.float32:
            return RelativeTileShapes(
                RelativeTileShape(64, 32, 4, 2),
                RelativeTileShape(64, 32, 4, 2),
                RelativeTileShape(32, 64, 4, 2),
                side=32,
            )
        if q.shape[-1] > 64:
            return RelativeTileShapes(
                RelativeTileShape(128, 64, 8, 3), RelativeTileShape(128, 64, 8, 2), RelativeTileShape(64, 128, 8, 2)
            )
        if vectors:  # rows of numbers of their own take more addresses
            return RelativeTileShapes(
                RelativeTileShape(128, 64, 4, 3),
                RelativeTileShape(64, 64, 4, 3, 32, 168),
                RelativeTileShape(128, 64, 4, 2),
            )
        return RelativeTileShapes(
            RelativeTileShape(128, 64, 8, 3, 32, 128),
            RelativeTileShape(128, 64, 8, 3, 32, 128),
            RelativeTileShape(64, 64, 4, 3, 32, 168),
        )


@dataclass(frozen=True, eq=False)
class RelativePlan:
    """All that is not learned: the position of the first query, the pattern, the score's scale, the reach."""

    start: int
    causal: bool
    lengths: Int[Tensor, "b"] | None
    scale: float
    reach: int
    shapes: RelativeTileShapes

    @property
    def width(self) -> int:
        return 2 * self.reach + 1


@dataclass(frozen=True, eq=False)
class RelativeLaunch:
    """One call's tensors, contiguous, batch and heads side by side, and the arguments of every kernel."""

    plan: RelativePlan
    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b g j d"]
    v: Float[Tensor, "b g j e"]
    vectors: bool

    @property
    def heads(self) -> int:
        return self.q.shape[0] * self.q.shape[1]

    def lengths(self) -> Tensor:
        """The kernels do not read what is passed instead of lengths that are None."""
        return self.q if self.plan.lengths is None else self.plan.lengths

    def launch_arguments(self, cut: dict[str, Any]) -> dict[str, Any]:
        """Sizes, constants and the shape of a kernel's tiles, by name."""
        (_, h, i, d), (_, g, j, e), plan = self.q.shape, self.v.shape, self.plan
        sizes = {"queries": i, "keys": j, "start": plan.start, "heads": h, "share": h // g, "unit": plan.scale}
        seen = {"D": d, "E": e, "REACH": plan.reach, "CAUSAL": plan.causal, "PADDED": plan.lengths is not None}
        return sizes | seen | {"PRECISION": precision(self.q)} | cut

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.q.device)

    def forward(self, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output without the values of distances, L, and for vectors log₂ of the mass of each distance, plus L."""
        (b, h, i, _), shape = self.q.shape, self.plan.shapes.forward
        out = self.new(b, h, i, self.v.shape[-1], dtype=torch.float32 if self.vectors else self.q.dtype)
        total = self.new(b, h, i)
        band = self.new(b, h, i, self.plan.width if self.vectors else 0).fill_(-torch.inf)
        forward_kernel[(self.heads * tile_count(i, shape.high),)](
            *(self.q, self.k, self.v, bias, self.lengths(), out, total, band if self.vectors else total),
            **self.launch_arguments(shape.options(vectors=self.vectors)),
        )
        return out, total, band

    def prepare(self, out: Tensor, grad: Tensor, total: Tensor, bias: Tensor, by_value: Tensor) -> tuple[Tensor, ...]:
        b, h, i, width = out.shape
        totals, deltas = self.new(b, h, 3, i), self.new(b, h, 3, i)
        constants: dict[str, Any] = {"E": width, "WIDTH": self.plan.width, "VECTORS": self.vectors, "HIGH": 64}
        prepare_kernel[(self.heads * tile_count(i, 64),)](
            *(out, grad, total, bias, by_value, totals, deltas, i, h), **constants
        )
        return totals, deltas

    def backward_queries(self, grad: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of q, and of the outer distances (with vectors: of all), a row for each query."""
        (b, h, i, d), shape = self.q.shape, self.plan.shapes.queries
        of_q = self.new(b, h, i, d, dtype=torch.float32 if self.vectors else self.q.dtype)
        of_band = self.new(b, h, i, self.plan.width).zero_() if self.vectors else self.new(b, h, i, 2)
        bias, by_value, totals, deltas = learned
        queries_backward_kernel[(self.heads * tile_count(i, shape.high),)](
            *(self.q, self.k, self.v, grad, bias, by_value, self.lengths(), totals, deltas, of_q, of_band),
            **self.launch_arguments(shape.options(vectors=self.vectors)),
        )
        return of_q, of_band

    def backward_keys(self, grad: Tensor, *learned: Tensor) -> tuple[Tensor, ...]:
        """Gradients of k and v."""
        (b, h, _, d), (_, g, j, e), shape = self.q.shape, self.v.shape, self.plan.shapes.keys
        dtype = self.q.dtype if g == h else torch.float32
        of_k, of_v = self.new(b, h, j, d, dtype=dtype), self.new(b, h, j, e, dtype=dtype)
        bias, by_value, totals, deltas = learned
        keys_backward_kernel[(self.heads * tile_count(j, shape.wide),)](
            *(self.q, self.k, self.v, grad, bias, by_value, self.lengths(), totals, deltas, of_k, of_v),
            **self.launch_arguments(shape.options(vectors=self.vectors)),
        )
        if g == h:
            return of_k, of_v
        return tuple(reduce(x, "b (g s) j d -> b g j d", "sum", g=g).to(self.q.dtype) for x in (of_k, of_v))

    def near_diagonals(
        self, grad: Tensor, bias: Tensor, totals: Tensor, deltas: Tensor
    ) -> Float[Tensor, "h distances"]:
        (b, h, i, _), side = self.q.shape, self.plan.shapes.side
        slots = slot_count(self.plan.reach, side)
        each = -(-tile_count(i, side) // max(1, PROGRAMS // (self.heads * slots)))
        chunks = tile_count(tile_count(i, side), each)
        sums = self.new(b, h, slots, chunks, side, side)
        diagonals_kernel[(self.heads * slots * chunks,)](
            *(self.q, self.k, self.v, grad, bias, self.lengths(), totals, deltas, sums),
            **self.launch_arguments(
                {"chunks": chunks, "each": each, "SLOTS": slots, "SIDE": side, "num_warps": 4, "num_stages": 2}
            ),
        )
        return by_distance(sums, self.plan.reach)


class RelativeBiasFunction(torch.autograd.Function):
    """T5: a number for each head and distance."""

    @staticmethod
    def forward(ctx, plan, q, k, v, table):
        bias = table.float().mul(log2(EULER)).contiguous()
        launch = RelativeLaunch(plan, q.contiguous(), k.contiguous(), v.contiguous(), vectors=False)
        out, total, _ = launch.forward(bias)
        ctx.save_for_backward(launch.q, launch.k, launch.v, bias, out, total)
        ctx.call = plan, table.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, bias, out, total), (plan, dtype) = ctx.saved_tensors, ctx.call
        launch, grad = RelativeLaunch(plan, q, k, v, vectors=False), grad.contiguous()
        totals, deltas = launch.prepare(out, grad, total, bias, bias)
        of_q, outer = launch.backward_queries(grad, bias, bias, totals, deltas)
        of_k, of_v = launch.backward_keys(grad, bias, bias, totals, deltas)
        before, after = reduce(outer, "b h i side -> side h 1", "sum")
        of_table = torch.cat((before, launch.near_diagonals(grad, bias, totals, deltas), after), 1)
        return None, of_q, of_k, of_v, of_table.to(dtype)


class RelativeVectorsFunction(torch.autograd.Function):
    """Shaw: a key and a value for each distance. Their products are computed once for each query and distance."""

    @staticmethod
    def forward(ctx, plan, q, k, v, keys, values):
        launch = RelativeLaunch(plan, q.contiguous(), k.contiguous(), v.contiguous(), vectors=True)
        bias = dot_vectors(flat(launch.q), keys, plan.scale * log2(EULER))
        out, total, band = launch.forward(bias)
        out = add_vectors(flat(out), flat(band), total.flatten(), values, 1.0, q.dtype).view(out.shape)
        ctx.save_for_backward(launch.q, launch.k, launch.v, keys, values, bias, out, total, band)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, keys, values, bias, out, total, band), plan = ctx.saved_tensors, ctx.plan
        launch, grad = RelativeLaunch(plan, q, k, v, vectors=True), grad.contiguous()
        by_value = dot_vectors(flat(grad), values, 1.0)
        totals, deltas = launch.prepare(out, grad, total, bias, by_value)
        of_q, of_band = launch.backward_queries(grad, bias, by_value, totals, deltas)
        of_k, of_v = launch.backward_keys(grad, bias, by_value, totals, deltas)
        of_q = add_vectors(flat(of_q), flat(of_band), None, keys, plan.scale, q.dtype).view(q.shape)
        of_keys = sum_vectors(flat(of_band), None, flat(q), plan.scale)
        of_values = sum_vectors(flat(band), total.flatten(), flat(grad), 1.0)
        return None, of_q, of_k, of_v, of_keys, of_values


def flat(x: Float[Tensor, "b h i d"]) -> Float[Tensor, "rows d"]:
    return rearrange(x, "b h i d -> (b h i) d")


def tile_count(length: int, size: int) -> int:
    return -(-length // size)
