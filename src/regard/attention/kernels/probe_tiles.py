"""Tiles of q kᵀ in, sums and maxima of the attention weights out: the Triton kernels of a probe's one or two passes.

In the units of 2^x, with c = scale · log₂ e and ℓ = lse · log₂ e, a weight is p_ij = 2^(x_ij), x_ij = c q_i·k_j − ℓ_i.

`sum_rows` holds a block of queries and walks over keys: ℓ, and the entropy beside it, by the running maximum m:

    L ← α L + Σ_j 2^(s − m'),   E ← α (E + L (m − m')) + Σ_j 2^(s − m') (s − m'),   α = 2^(m − m'),
    ℓ = m + log₂ L,   H = ln 2 · (log₂ L − E / L).

`walk_columns` knows ℓ, holds a block of keys and walks over a segment of the queries. What is summed over queries
(mass, cells of a map) is added element by element in registers, and exchanged between threads only at the end. What
is summed over keys (−H / ln 2 = Σ_j p x) leaves one number for each query and block, and for the search of the largest
the maxima of four chunks of the block: keys 8m + 2t and 8m + 2t + 1 are those that one thread holds of a row, so a
chunk t has its maximum without any exchange. No two programs write to one place: no atomics, the same bits every time.

A tile that every query sees whole is taken without a mask; queries past the end have ℓ = ∞ and weigh nothing.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(-1e38)  # a hidden score: 2^x is 0, and 0 · x too, as it would not be for -∞
LEAST = tl.constexpr(-1e37)  # the running maximum at first: above a hidden score, below any other
LN_2 = tl.constexpr(0.6931471805599453)
CHUNKS = tl.constexpr(4)  # of a block of keys
GROUP = tl.constexpr(8)  # blocks whose maxima are looked at together

BY_KEY, BY_BLOCK = tl.constexpr(1), tl.constexpr(2)  # how finely peaks are noted; 0 for not at all

# numbers that differ from call to call, none of which is worth a kernel of its own
LENGTHS = ["n_q", "start", "least", "most", "origin", "differences"]
PLACES = [*LENGTHS, "first_head", "first_block", "first_query"]


@triton.jit
def spans(first, stop, low, high, full_low, full_high, WHOLE, SIZE: tl.constexpr):
    """Of first ... stop - 1, in tiles from `low` on: so many tiles in all, and between which two none needs a mask."""
    begin = tl.maximum(first, low)
    tiles = tl.maximum(tl.cdiv(tl.minimum(stop, high) - begin, SIZE), 0)
    after = tl.where(full_high >= stop, tiles, tl.maximum(full_high - begin, 0) // SIZE)
    after = tl.minimum(after, tiles)
    before = tl.minimum(tl.cdiv(tl.maximum(full_low - begin, 0), SIZE), after)
    before = tl.where(WHOLE, before, tiles)
    return begin, tiles, before, tl.where(WHOLE, after, tiles)


@triton.jit
def scored(s, i, j, bounds, c, table, BIASED: tl.constexpr, MASKED: tl.constexpr):
    """c q·k, with its bias, NEVER where hidden; place i sees keys i - most ... i - least."""
    least, most, length = bounds
    s = s * c
    if BIASED:
        s += tl.load(table + i[:, None] - j[None, :])
    if MASKED:
        low, high = i - most, tl.minimum(i - least, length - 1)
        s = tl.where((j[None, :] >= low[:, None]) & (j[None, :] <= high[:, None]), s, NEVER)
    return s


@triton.jit
def online(s, c, m, total, bent, ENTROPY: tl.constexpr):
    """One tile more; c is positive, so the largest can be found before it is scaled."""
    up = tl.maximum(m, tl.max(s, 1) * c)
    x = s * c - up[:, None]
    p = tl.exp2(x)
    alpha = tl.exp2(m - up)
    if ENTROPY:
        bent = alpha * (bent + total * (m - up)) + tl.sum(p * x, 1)
    return up, total * alpha + tl.sum(p, 1), bent


@triton.jit(do_not_specialize=LENGTHS)
def sum_rows(
    q,
    k,
    table,
    lengths,
    lse,
    entropy,
    n_q,
    heads,
    share,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    start,
    least,
    most,
    c,
    differences,
    origin,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    ENTROPY: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
):
    z = tl.program_id(1).to(tl.int64)
    b, h = z // heads, z % heads
    first = tl.program_id(0) * QUERIES
    i, d = first + tl.arange(0, QUERIES), tl.arange(0, WIDE)
    inside = (i < n_q)[:, None] & (d < D)[None, :]
    rows = tl.load(q + b * q_b + h * q_h + i[:, None] * q_t + d[None, :], mask=inside, other=0.0)
    keys = k + b * k_b + (h // share) * k_h
    biases = table + h * differences + origin
    length = tl.load(lengths + b)
    m = tl.full([QUERIES], LEAST, tl.float32)
    total, bent = tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES], tl.float32)
    # keys at these places are seen by some, and by all, of the queries
    low, high = first + start - most, tl.minimum(first + QUERIES, n_q) + start - least
    begin, tiles, before, after = spans(
        0, length, low, high, low + QUERIES - 1, first + start - least + 1, WHOLE=True, SIZE=KEYS
    )
    # a last tile with fewer keys than places needs a mask too
    after = tl.maximum(tl.minimum(after, (length - begin) // KEYS), before)
    for t in range(before + tiles - after if MASKED else 0):
        j = begin + (t + tl.where(t < before, 0, after - before)) * KEYS + tl.arange(0, KEYS)
        spot = (j < length)[None, :] & (d < D)[:, None]
        theirs = tl.load(keys + j[None, :] * k_t + d[:, None], mask=spot, other=0.0)
        s = scored(tl.dot(rows, theirs), i + start, j, (least, most, length), c, biases, BIASED, MASKED=True)
        m, total, bent = online(s, 1.0, m, total, bent, ENTROPY)
    for t in range(before, after):
        j = begin + t * KEYS + tl.arange(0, KEYS)
        if WIDE == D:
            theirs = tl.load(keys + j[None, :] * k_t + d[:, None])
        else:
            theirs = tl.load(keys + j[None, :] * k_t + d[:, None], mask=(d < D)[:, None], other=0.0)
        s = tl.dot(rows, theirs)
        if BIASED:
            s = scored(s, i + start, j, (least, most, length), c, biases, BIASED, MASKED=False)
        m, total, bent = online(s, 1.0 if BIASED else c, m, total, bent, ENTROPY)
    blind = total == 0.0
    some = tl.where(blind, 1.0, total)
    tl.store(lse + z * n_q + i, tl.where(blind, float("-inf"), (m + tl.log2(some)) * LN_2), mask=i < n_q)
    if ENTROPY:
        tl.store(entropy + z * n_q + i, tl.where(blind, 0.0, (tl.log2(some) - bent / some) * LN_2), mask=i < n_q)


@triton.jit(do_not_specialize=[*PLACES, "n_k", "first_cut", "slab"])
def walk_columns(
    q,
    k,
    table,
    lengths,
    lse,
    cuts,
    sums,
    peaks,
    entropies,
    maxima,
    n_q,
    n_k,
    heads,
    share,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    start,
    least,
    most,
    c,
    differences,
    origin,
    first_head,
    first_cut,
    first_block,
    first_query,
    slab,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    MASS: tl.constexpr,
    PEAKS: tl.constexpr,
    ENTROPY: tl.constexpr,
    TOP: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
):
    own, block, z = tl.program_id(1), tl.program_id(0), tl.program_id(2).to(tl.int64)
    b, h = (first_head + z) // heads, (first_head + z) % heads
    length = tl.load(lengths + b)
    first, stop = tl.load(cuts + first_cut + own), tl.load(cuts + first_cut + own + 1)
    key = (first_block + block) * KEYS
    j, d = key + tl.arange(0, KEYS), tl.arange(0, WIDE)
    spot = (j < length)[None, :] & (d < D)[:, None]
    columns = tl.load(k + b * k_b + (h // share) * k_h + j[None, :] * k_t + d[:, None], mask=spot, other=0.0)
    mine, biases = q + b * q_b + h * q_h, table + h * differences + origin
    ells = lse + (first_head + z) * n_q
    # where the numbers of this block's queries go, counted from the slab's first query
    place = (z * tl.num_programs(0) + block) * slab - first_query
    mass = tl.zeros([QUERIES, KEYS], tl.float32)
    largest = tl.full([QUERIES, KEYS if PEAKS == BY_KEY else CHUNKS], NEVER, tl.float32)
    # queries at these places see some, and all, of the keys
    low, high = key + least - start, tl.minimum(key + KEYS, length) + most - start
    high = tl.where(key < length, high, low)
    begin, tiles, before, after = spans(
        first, stop, low, high, low + KEYS - 1, key + most - start + 1, key + KEYS <= length, QUERIES
    )
    for t in range(before + tiles - after if MASKED else 0):
        i = begin + (t + tl.where(t < before, 0, after - before)) * QUERIES + tl.arange(0, QUERIES)
        rows = tl.load(mine + i[:, None] * q_t + d[None, :], mask=(i < stop)[:, None] & (d < D)[None, :], other=0.0)
        s = scored(tl.dot(rows, columns), i + start, j, (least, most, length), c, biases, BIASED, MASKED=True)
        ell = tl.load(ells + i, mask=i < stop, other=-NEVER)
        mass, largest = note(
            *(s, 1.0, ell, i, stop, place, mass, largest, entropies, maxima), MASS, PEAKS, ENTROPY, TOP
        )
    i = begin + before * QUERIES + tl.arange(0, QUERIES)
    ell = tl.load(ells + i, mask=i < stop, other=-NEVER)
    for t in range(before, after):
        i = begin + t * QUERIES + tl.arange(0, QUERIES)
        rows = tl.load(mine + i[:, None] * q_t + d[None, :], mask=(i < stop)[:, None] & (d < D)[None, :], other=0.0)
        # asked for a step ahead, so that nobody waits for so few numbers
        ahead = tl.load(ells + i + QUERIES, mask=i + QUERIES < stop, other=-NEVER)
        s = tl.dot(rows, columns)
        if BIASED:
            s = scored(s, i + start, j, (least, most, length), c, biases, BIASED, MASKED=False)
        mass, largest = note(
            *(s, 1.0 if BIASED else c, ell, i, stop, place, mass, largest, entropies, maxima), MASS, PEAKS, ENTROPY, TOP
        )
        ell = ahead
    column = (z * tl.num_programs(1) + own) * n_k
    if MASS:
        tl.store(sums + column + j, tl.sum(mass, 0), mask=j < n_k)
    if PEAKS == BY_KEY:
        tl.store(peaks + column + j, tl.exp2(tl.max(largest, 0)), mask=j < n_k)
    if PEAKS == BY_BLOCK:
        tl.store(peaks + column + first_block + block, tl.exp2(tl.max(tl.max(largest, 1), 0)))


@triton.jit
def note(
    s,
    c,
    ell,
    i,
    stop,
    place,
    mass,
    largest,
    entropies,
    maxima,
    MASS: tl.constexpr,
    PEAKS: tl.constexpr,
    ENTROPY: tl.constexpr,
    TOP: tl.constexpr,
):
    """What one tile of scores says, c s - ℓ being the exponents of its weights."""
    if TOP or PEAKS == BY_BLOCK:
        QUERIES: tl.constexpr = s.shape[0]
        KEYS: tl.constexpr = s.shape[1]
        parted = tl.reshape(s, (QUERIES, KEYS // (2 * CHUNKS), CHUNKS, 2))
        best = tl.max(tl.max(parted, 3), 1) * c  # c is positive, so it can wait
        if PEAKS == BY_BLOCK:
            largest = tl.maximum(largest, best - ell[:, None])
        if TOP:
            chunk = tl.arange(0, CHUNKS)
            spot = (place + i)[:, None] * CHUNKS + chunk[None, :]
            tl.store(maxima + spot, best, mask=(i < stop)[:, None] & (chunk >= 0)[None, :])
    if MASS or ENTROPY or PEAKS == BY_KEY:
        x = s * c - ell[:, None]
        if PEAKS == BY_KEY:
            largest = tl.maximum(largest, x)
        if MASS or ENTROPY:
            p = tl.exp2(x)
            if MASS:
                mass += p
            if ENTROPY:
                tl.store(entropies + place + i, tl.sum(p * x, 1), mask=i < stop)
    return mass, largest
