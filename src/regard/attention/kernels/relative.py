"""Attention with learned relative positions as Triton kernels: q, k, v and numbers of distances in, outputs out.

The pair (i, j) reads column c = clamp(j − i, −R, R) + R of a small table B, one row for a head (T5: the learned number
itself) or one row for a query (Shaw: B = q·a^K, and D = ō·a^V for the values). With P = softmax,

    S_ij = scale q_i·k_j + B_i,c        P_ij = exp(S_ij − L_i),    L_i = log Σ_j exp S_ij
    O_i  = Σ_j P_ij v_j + Σ_c M_ic a^V_c                           M_ic = Σ of P_ij over the pairs of column c
    G_ij = ∂/∂S_ij = P_ij (ō_i·v_j + D_i,c − Δ_i)                  Δ_i  = ō_i·O_i
    q̄_i = scale Σ_j G_ij k_j,   k̄_j = scale Σ_i G_ij q_i,   v̄_j = Σ_i P_ij ō_i,   B̄_ic = Σ of G_ij over column c.

A tile that lies wholly at distance R or beyond has one column, so its B and D are numbers of the row: they join L and Δ
(`prepare`), and the tile costs what it costs without a bias, but for a row sum of P or G. A `careful` tile near the
diagonal, or at an end of the text, looks its pairs up. There the pairs nearer than R are the only ones of their row and
column: for Shaw, log P and G are stored as they are, and nothing has to be added up. For T5, whose rows of B are shared
by all queries, `diagonals` walks down a diagonal of tiles, which all look alike, and adds up whole tiles of G.

So no place in memory is written twice: there are no atomics and gradients are the same every time. Scores are kept in
units of log 2, since the machine has exp2; B comes in those units.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def forward(
    q,
    k,
    v,
    bias,
    lengths,
    out,
    total,
    band,
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
    """A tile of queries: out, L, and for Shaw log M in `band`."""
    tiles = tl.cdiv(queries, HIGH)
    n, first = (tl.program_id(0) // tiles).to(tl.int64), (tiles - 1 - tl.program_id(0) % tiles) * HIGH
    i, c, d, e = first + tl.arange(0, HIGH), tl.arange(0, NEAR), tl.arange(0, D), tl.arange(0, E)
    real, scale = i < queries, unit * LOG2E
    WIDTH: tl.constexpr = 2 * REACH + 1
    k, v = k + group(n, heads, share) * keys * D, v + group(n, heads, share) * keys * E
    rows = own_rows(bias, n, i, queries, heads, WIDTH, VECTORS)
    mine = tl.load(q + n * queries * D + i[:, None] * D + d[None, :], real[:, None], 0.0)
    limit = seen_keys(lengths, n, keys, heads, first + HIGH + start, CAUSAL, PADDED)
    whole, left, right = sides(first + start - REACH, first + HIGH - 1 + start + REACH, limit // WIDE, WIDE)
    top, sums = tl.full([HIGH], -float("inf"), tl.float32), tl.zeros([HIGH, E], tl.float32)
    extra = tl.load(rows, real, 0.0)
    sums, top, before = far_forward(mine, k, v, 0, left, extra, top, sums, scale, D, E, WIDE, PRECISION)
    then, extra = top, tl.load(rows + WIDTH - 1, real, 0.0)
    sums, top, after = far_forward(mine, k, v, right, whole, extra, top, sums, scale, D, E, WIDE, PRECISION)
    before *= tl.exp2(then - finite(top))
    middle = tl.zeros([HIGH], tl.float32)
    for t in tl.range(0, careful(left, right, whole, limit, WIDE, NEAR), num_stages=1):
        j = place(t, left, right, whole, WIDE, NEAR) + c
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
    mine,
    k,
    v,
    low,
    high,
    extra,
    top,
    sums,
    scale,
    D: tl.constexpr,
    E: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
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
def prepare(
    out,
    grad,
    total,
    bias,
    by_value,
    totals,
    deltas,
    queries,
    heads,
    E: tl.constexpr,
    WIDTH: tl.constexpr,
    VECTORS: tl.constexpr,
    HIGH: tl.constexpr,
):
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
def group(n, heads, share):
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
    """How many of them a tile of queries that ends before place `end` may see."""
    limit = real_keys(lengths, n, keys, heads, PADDED)
    return tl.minimum(limit, tl.maximum(end, 0)) if CAUSAL else limit


@triton.jit
def sides(last, first, whole, SIZE: tl.constexpr):
    """Of `whole` tiles: how many end at place `last` or before, and which is the first to begin at `first` or after."""
    left = tl.minimum(tl.maximum(last + 1, 0) // SIZE, whole)
    return whole, left, tl.minimum(tl.maximum(tl.cdiv(tl.maximum(first, 0), SIZE), left), whole)


@triton.jit
def careful(left, right, whole, end, SIZE: tl.constexpr, NEAR: tl.constexpr):
    """How many narrow tiles it takes from `left` to `right` and from the last whole tile to the end."""
    return (right - left) * (SIZE // NEAR) + tl.cdiv(end - whole * SIZE, NEAR)


@triton.jit
def place(t, left, right, whole, SIZE: tl.constexpr, NEAR: tl.constexpr):
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
