"""The backward kernels of relative.py: q, k, v, ō, L and Δ in, the gradients of q, k, v and of the numbers out.

One kernel for q and the numbers, one for k and v; relative_diagonals.py has T5's numbers near the diagonal.
`totals` and `deltas` hold L and Δ three times: for tiles before the diagonal, after it, and careful ones.
"""

import triton
import triton.language as tl

from regard.attention.kernels.relative import (
    LOG2E,
    careful,
    column,
    group,
    own_rows,
    place,
    real_keys,
    seen_keys,
    sides,
)


@triton.jit
def for_queries(
    q,
    k,
    v,
    grad,
    bias,
    by_value,
    lengths,
    totals,
    deltas,
    of_q,
    of_band,
    queries,
    keys,
    start,
    heads,
    share,
    unit,
    D: tl.constexpr,
    E: tl.constexpr,
    REACH: tl.constexpr,
    CAUSAL: tl.constexpr,
    PADDED: tl.constexpr,
    VECTORS: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    NEAR: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of queries: q̄, and B̄: for Shaw all of it, for T5 the two outer columns, a row for each query."""
    tiles = tl.cdiv(queries, HIGH)
    n, first = (tl.program_id(0) // tiles).to(tl.int64), (tiles - 1 - tl.program_id(0) % tiles) * HIGH
    i, c, d, e = first + tl.arange(0, HIGH), tl.arange(0, NEAR), tl.arange(0, D), tl.arange(0, E)
    real, scale = i < queries, unit * LOG2E
    WIDTH: tl.constexpr = 2 * REACH + 1
    k, v = k + group(n, heads, share) * keys * D, v + group(n, heads, share) * keys * E
    mine = tl.load(q + n * queries * D + i[:, None] * D + d[None, :], real[:, None], 0.0)
    pull = tl.load(grad + n * queries * E + i[:, None] * E + e[None, :], real[:, None], 0.0)
    totals, deltas = totals + n * queries * 3 + i, deltas + n * queries * 3 + i
    limit = seen_keys(lengths, n, keys, heads, first + HIGH + start, CAUSAL, PADDED)
    whole, left, right = sides(first + start - REACH, first + HIGH - 1 + start + REACH, limit // WIDE, WIDE)
    sums = tl.zeros([HIGH, D], tl.float32)
    total, delta = tl.load(totals, real, float("inf")), tl.load(deltas, real, 0.0)
    sums, before = far_queries(mine, pull, k, v, 0, left, total, delta, sums, scale, D, E, WIDE, PRECISION)
    total, delta = tl.load(totals + queries, real, float("inf")), tl.load(deltas + queries, real, 0.0)
    sums, after = far_queries(mine, pull, k, v, right, whole, total, delta, sums, scale, D, E, WIDE, PRECISION)
    total, delta = tl.load(totals + 2 * queries, real, float("inf")), tl.load(deltas + 2 * queries, real, 0.0)
    rows = own_rows(bias, n, i, queries, heads, WIDTH, VECTORS)
    for t in tl.range(0, careful(left, right, whole, limit, WIDE, NEAR), num_stages=1):
        j = place(t, left, right, whole, WIDE, NEAR) + c
        key = tl.load(k + j[:, None] * D + d[None, :], (j < limit)[:, None], 0.0)
        value = tl.load(v + j[:, None] * E + e[None, :], (j < limit)[:, None], 0.0)
        apart = j[None, :] - i[:, None] - start
        seen = (j < limit)[None, :] & real[:, None]
        if CAUSAL:
            seen &= apart <= 0
        s = tl.dot(mine, tl.trans(key), input_precision=PRECISION) * scale
        s += tl.load(rows[:, None] + column(apart, REACH), real[:, None], 0.0)
        p = tl.where(seen, tl.exp2(s - total[:, None]), 0.0)
        g = tl.dot(pull, tl.trans(value), input_precision=PRECISION)
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
def far_queries(
    mine,
    pull,
    k,
    v,
    low,
    high,
    total,
    delta,
    sums,
    scale,
    D: tl.constexpr,
    E: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Tiles of one column: Σ G k, and the sum of G in each row."""
    c, d, e = tl.arange(0, WIDE), tl.arange(0, D), tl.arange(0, E)
    bent = tl.zeros_like(total)
    for t in tl.range(low, high):
        j = t * WIDE + c
        key = tl.load(k + j[:, None] * D + d[None, :])
        value = tl.load(v + j[:, None] * E + e[None, :])
        s = tl.dot(mine, tl.trans(key), input_precision=PRECISION)
        g = tl.dot(pull, tl.trans(value), input_precision=PRECISION)
        g = tl.exp2(s * scale - total[:, None]) * (g - delta[:, None])
        bent += tl.sum(g, 1)
        sums = tl.dot(g.to(key.dtype), key, sums, input_precision=PRECISION)
    return sums, bent


@triton.jit
def for_keys(
    q,
    k,
    v,
    grad,
    bias,
    by_value,
    lengths,
    totals,
    deltas,
    of_k,
    of_v,
    queries,
    keys,
    start,
    heads,
    share,
    unit,
    D: tl.constexpr,
    E: tl.constexpr,
    REACH: tl.constexpr,
    CAUSAL: tl.constexpr,
    PADDED: tl.constexpr,
    VECTORS: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    NEAR: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of keys: k̄ and v̄, for each head that reads them. Everything is transposed: keys down, queries across."""
    tiles = tl.cdiv(keys, WIDE)
    n, first = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * WIDE
    j, r, d, e = first + tl.arange(0, WIDE), tl.arange(0, NEAR), tl.arange(0, D), tl.arange(0, E)
    scale = unit * LOG2E
    WIDTH: tl.constexpr = 2 * REACH + 1
    limit = real_keys(lengths, n, keys, heads, PADDED)
    kept = j < limit
    k, v = k + group(n, heads, share) * keys * D, v + group(n, heads, share) * keys * E
    key = tl.load(k + j[:, None] * D + d[None, :], kept[:, None], 0.0)
    value = tl.load(v + j[:, None] * E + e[None, :], kept[:, None], 0.0)
    q, grad = q + n * queries * D, grad + n * queries * E
    totals, deltas = totals + n * queries * 3, deltas + n * queries * 3
    # seen from the queries: those so early that these keys lie after them, and those so late that they lie before
    whole, early, late = sides(first - start - REACH, first + WIDE - 1 - start + REACH, queries // HIGH, HIGH)
    low = 0
    if CAUSAL:
        low = tl.minimum(tl.maximum(first - start, 0) // HIGH, whole)
        early = low
        late = tl.maximum(late, early)
    live = (first < limit).to(tl.int32)
    low, early, late, whole, end = low * live, early * live, late * live, whole * live, queries * live
    of_key, of_value = tl.zeros([WIDE, D], tl.float32), tl.zeros([WIDE, E], tl.float32)
    of_key, of_value = far_keys(
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
    of_key, of_value = far_keys(
        key, value, q, grad, late, whole, totals, deltas, of_key, of_value, scale, D, E, HIGH, PRECISION
    )
    for t in tl.range(0, careful(early, late, whole, end, HIGH, NEAR), num_stages=1):
        i = place(t, early, late, whole, HIGH, NEAR) + r
        real = i < queries
        mine = tl.load(q + i[:, None] * D + d[None, :], real[:, None], 0.0)
        pull = tl.load(grad + i[:, None] * E + e[None, :], real[:, None], 0.0)
        total = tl.load(totals + 2 * queries + i, real, float("inf"))
        delta = tl.load(deltas + 2 * queries + i, real, 0.0)
        apart = j[:, None] - i[None, :] - start
        rows = own_rows(bias, n, i, queries, heads, WIDTH, VECTORS)
        s = tl.dot(key, tl.trans(mine), input_precision=PRECISION) * scale
        s += tl.load(rows[None, :] + column(apart, REACH), real[None, :], 0.0)
        p = tl.exp2(s - total[None, :])
        if CAUSAL:
            p = tl.where(apart <= 0, p, 0.0)
        of_value = tl.dot(p.to(pull.dtype), pull, of_value, input_precision=PRECISION)
        g = tl.dot(value, tl.trans(pull), input_precision=PRECISION)
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
def far_keys(
    key,
    value,
    q,
    grad,
    low,
    high,
    totals,
    deltas,
    of_key,
    of_value,
    scale,
    D: tl.constexpr,
    E: tl.constexpr,
    HIGH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Tiles of one column. Keys that nobody may see get numbers too, which are thrown away."""
    r, d, e = tl.arange(0, HIGH), tl.arange(0, D), tl.arange(0, E)
    for t in tl.range(low, high):  # type: ignore[misc]
        i = t * HIGH + r
        mine = tl.load(q + i[:, None] * D + d[None, :])
        pull = tl.load(grad + i[:, None] * E + e[None, :])
        s = tl.dot(key, tl.trans(mine), input_precision=PRECISION)
        p = tl.exp2(s * scale - tl.load(totals + i)[None, :])
        of_value = tl.dot(p.to(pull.dtype), pull, of_value, input_precision=PRECISION)
        g = tl.dot(value, tl.trans(pull), input_precision=PRECISION)
        g = p * (g - tl.load(deltas + i)[None, :])
        of_key = tl.dot(g.to(mine.dtype), mine, of_key, input_precision=PRECISION)
    return of_key, of_value
