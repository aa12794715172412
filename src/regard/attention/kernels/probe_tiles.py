"""Tiles of q kᵀ and the log-sum-exp in, sums and maxima of the attention weights out: a probe's pass over columns.

In the units of 2^x, with c = scale · log₂ e and ℓ = lse · log₂ e, a weight is p_ij = 2^(x_ij), x_ij = c q_i·k_j − ℓ_i.

`walk_columns` knows ℓ, holds a block of keys and walks over a segment of the queries. What is summed over queries
(mass, cells of a map) is added up in registers, rows i and i + 8 of sixteen in one, since one thread holds both, and
exchanged between threads only at the end. What is summed over keys (−H / ln 2 = Σ_j p x) leaves one number for each
query and block, and the search of the largest leaves the largest x of the block and of each of its chunks: keys 8m + 2t
and 8m + 2t + 1 are those that one thread holds of a row, so the keys of one t, or of one t in each 64, have their
maximum without any exchange. No two programs write to one place: no atomics, the same bits every time.

A tile that every query sees whole is taken without a mask; queries past the end have ℓ = ∞ and weigh nothing. Where
segments are made of whole tiles (`EVEN`) there are none.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(-1e38)  # a hidden score: 2^x is 0, and 0 · x too, as it would not be for -∞
LEAST = tl.constexpr(-1e37)  # the running maximum at first: above a hidden score, below any other
LN_2 = tl.constexpr(0.6931471805599453)
LANES = tl.constexpr(4)  # threads that share a row
PAIR = tl.constexpr(8)  # rows apart that one thread holds
GROUP = tl.constexpr(8)  # blocks whose maxima are looked at together

WITHOUT, WITH = tl.constexpr(1), tl.constexpr(2)  # only programs without, or with, a mask; 0 for all
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
    noted,
    maxima,
    n_q,
    n_k,
    heads,
    share,
    q_b,
    q_h,
    q_t: tl.constexpr,
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
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    MASS: tl.constexpr,
    PEAKS: tl.constexpr,
    ENTROPY: tl.constexpr,
    TOP: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
    ONLY: tl.constexpr,
):
    own, block, z = tl.program_id(1), tl.program_id(0), tl.program_id(2).to(tl.int64)
    b, h = (first_head + z) // heads, (first_head + z) % heads
    length = tl.load(lengths + b)
    first, stop = tl.load(cuts + first_cut + own), tl.load(cuts + first_cut + own + 1)
    key = (first_block + block) * KEYS
    # queries at these places see some, and all, of the keys
    low, high = key + least - start, tl.minimum(key + KEYS, length) + most - start
    high = tl.where(key < length, high, low)
    begin, tiles, before, after = spans(  # type: ignore[misc]
        first, stop, low, high, low + KEYS - 1, key + most - start + 1, key + KEYS <= length, QUERIES
    )
    if ONLY == WITHOUT and (tiles == 0 or before + tiles > after):
        return
    if ONLY == WITH and before + tiles == after:
        return
    j, d = key + tl.arange(0, KEYS), tl.arange(0, WIDE)
    spot = (j < length)[None, :] & (d < D)[:, None]
    columns = tl.load(k + b * k_b + (h // share) * k_h + j[None, :] * k_t + d[:, None], mask=spot, other=0.0)
    mine, biases = q + b * q_b + h * q_h, table + h * differences + origin
    ells = lse + (first_head + z) * n_q
    # where the numbers of this block's queries go, counted from the slab's first query
    place = (z * tl.num_programs(0) + block) * slab - first_query
    into = noted + place * (TOP + ENTROPY), maxima + place * CHUNKS
    mass = tl.zeros([QUERIES // 2 // PAIR, PAIR, KEYS], tl.float32)
    if PEAKS == BY_KEY:
        largest = tl.full([QUERIES // 2 // PAIR, PAIR, KEYS], NEVER, tl.float32)
    else:
        largest = tl.full([QUERIES, LANES], NEVER, tl.float32)
    for t in range(before + tiles - after if MASKED else 0):
        i = begin + (t + tl.where(t < before, 0, after - before)) * QUERIES + tl.arange(0, QUERIES)
        rows = read_rows(mine, i, d, stop, q_t, D, EVEN)
        s = scored(tl.dot(rows, columns), i + start, j, (least, most, length), c, biases, BIASED, MASKED=True)
        ell = read_ells(ells, i, stop, EVEN)
        mass, largest = note(s, 1.0, ell, i, stop, mass, largest, into, CHUNKS, EVEN, MASS, PEAKS, ENTROPY, TOP)
    i = begin + before * QUERIES + tl.arange(0, QUERIES)
    ell = tl.load(ells + i, mask=i < stop, other=-NEVER)
    for t in range(before, after):
        i = begin + t * QUERIES + tl.arange(0, QUERIES)
        rows = read_rows(mine, i, d, stop, q_t, D, EVEN)
        # asked for a step ahead, so that nobody waits for so few numbers; `ells` is a tile longer than it need be
        ahead = read_ells(ells, i + QUERIES, stop, EVEN)
        s = tl.dot(rows, columns)
        if BIASED:
            s = scored(s, i + start, j, (least, most, length), c, biases, BIASED, MASKED=False)
        scale = 1.0 if BIASED else c
        mass, largest = note(s, scale, ell, i, stop, mass, largest, into, CHUNKS, EVEN, MASS, PEAKS, ENTROPY, TOP)
        ell = ahead
    column = (z * tl.num_programs(1) + own) * n_k
    if MASS:
        tl.store(sums + column + j, tl.sum(tl.sum(mass, 0), 0), mask=j < n_k)
    if PEAKS == BY_KEY:
        tl.store(peaks + column + j, tl.exp2(tl.max(tl.max(largest, 0), 0)), mask=j < n_k)
    if PEAKS == BY_BLOCK:
        tl.store(peaks + column + first_block + block, tl.exp2(tl.max(tl.max(largest, 1), 0)))


@triton.jit
def read_rows(mine, i, d, stop, q_t: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr):
    at = mine + i[:, None] * q_t + d[None, :]
    if EVEN and d.shape[0] == D:
        return tl.load(at)
    return tl.load(at, mask=(i < stop)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def read_ells(ells, i, stop, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(ells + i)
    return tl.load(ells + i, mask=i < stop, other=-NEVER)


@triton.jit
def note(
    s,
    c,
    ell,
    i,
    stop,
    mass,
    largest,
    into,
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    MASS: tl.constexpr,
    PEAKS: tl.constexpr,
    ENTROPY: tl.constexpr,
    TOP: tl.constexpr,
):
    """What one tile of scores says, x = c s - ℓ being the exponents of its weights."""
    noted, maxima = into
    QUERIES: tl.constexpr = s.shape[0]
    KEYS: tl.constexpr = s.shape[1]
    WEIGHED: tl.constexpr = MASS or ENTROPY or PEAKS == BY_KEY
    PARTS: tl.constexpr = CHUNKS // LANES
    NOTES: tl.constexpr = TOP + ENTROPY
    lane, chunk = tl.arange(0, LANES)[None, :], tl.arange(0, CHUNKS)[None, :]
    kept = (i < stop)[:, None] | EVEN
    notes = tl.zeros([QUERIES, LANES], tl.float32)
    x = s * c - ell[:, None] if WEIGHED else s
    if TOP or PEAKS == BY_BLOCK:
        parted = tl.reshape(x, (QUERIES, PARTS, KEYS // PARTS // 2 // LANES, LANES, 2))
        parts = tl.max(tl.max(parted, 4), 2)
        if not WEIGHED:
            parts = parts * c - ell[:, None, None]  # c is positive, so it can wait
        best = tl.max(parts, 1)
        if PEAKS == BY_BLOCK:
            largest = tl.maximum(largest, best)
        if TOP:
            parts = tl.reshape(tl.permute(parts, (0, 2, 1)), (QUERIES, CHUNKS))
            tl.store(maxima + i[:, None] * CHUNKS + chunk, parts, mask=kept & (chunk >= 0))
            notes += tl.max(best, 1)[:, None]
    if PEAKS == BY_KEY:
        pairs = tl.reshape(x, (QUERIES // 2 // PAIR, 2, PAIR, KEYS))
        largest = tl.maximum(largest, tl.max(pairs, 1))
    if MASS or ENTROPY:
        p = tl.exp2(x)
        if MASS:
            mass += tl.sum(tl.reshape(p, (QUERIES // 2 // PAIR, 2, PAIR, KEYS)), 1)
        if ENTROPY:
            notes = tl.where(lane == NOTES - 1, tl.sum(p * x, 1)[:, None], notes)
    if NOTES:
        tl.store(noted + i[:, None] * NOTES + lane, notes, mask=kept & (lane < NOTES))
    return mass, largest
