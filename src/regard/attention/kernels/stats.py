"""Attention statistics as Triton kernels: a pass over columns, a pass over rows, and the search of the largest weights.

In the units of 2^x, with c = scale · log₂ e and ℓ = lse · log₂ e, a weight is p_ij = 2^(x_ij), x_ij = c q_i·k_j − ℓ_i.

`column_pass` knows ℓ, holds a block of keys and goes over a segment of the queries. What is summed over queries
(mass, cells of a map) is added up in registers, rows i and i + 8 of sixteen in one, since one thread holds both, and
exchanged between threads only at the end. What is summed over keys (−H / ln 2 = Σ_j p x) leaves one number for each
query and block, and the search of the largest leaves the largest x of the block and of each of its chunks: keys 8m + 2t
and 8m + 2t + 1 are those that one thread holds of a row, so the keys of one t, or of one t in each 64, have their
maximum without any exchange. No two programs write to one address: no atomics, the same bits every time.

A tile that every query sees whole is taken without a mask; queries past the end have ℓ = ∞ and weigh nothing. Where
segments are made of whole tiles (`EVEN`) there are none.

`row_pass` holds a block of queries and goes over keys, in the same units, by the running maximum m, and leaves the
log-sum-exp and the entropy of every row:

    L ← α L + Σ_j 2^(s − m'),   E ← α (E + L (m − m')) + Σ_j 2^(s − m') (s − m'),   α = 2^(m − m'),
    ℓ = m + log₂ L,   H = ln 2 · (log₂ L − E / L).

The k largest scores of a row lie in the k groups of blocks whose maxima are the largest, within these in the k best
blocks, and within these in the k best chunks. `fold_block_stats` reads the partial results of every block once: the
maxima of groups, and the entropy beside them. `pick_keys` searches groups, blocks and chunks, scores the keys of the k
best chunks again (products of halves are exact in float32) and searches them for the k best. Memory for a block of
which a query sees nothing is not read: nobody may have written it. Of equal scores the first is named first.

The log-sum-exp comes from the forward pass, if it was kept, or from `row_pass`. All else takes one pass, over a slab of
queries of a few heads at a time (`stats_plan.py`), so that the partial results of each block of keys fit into a fixed
space:

    a segment of queries × a key        the sum and the largest of its weights, from which mass, map and peaks
    a query × a block of keys           the largest exponent of a weight, and Σ p log p, from which the entropy
    a query × a chunk of a block        the largest exponent, from which the largest weights and their keys

A segment never crosses the border of a map's row, whatever the map's size; a row's segments add up to it.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from regard.attention.kernels.stats_plan import (
    COLUMNS,
    FAR,
    LOG_2_E,
    LONGEST,
    MARGIN,
    ROWS,
    RequestedStats,
    Slab,
    SlabMemory,
    StatsInputs,
    StatsTileShape,
    default_shape,
    row_owners,
    segments,
    slice_length,
    tile_count,
)

NEVER = tl.constexpr(-1e38)  # a hidden score: 2^x is 0, and 0 · x too, as it would not be for -∞
LEAST = tl.constexpr(-1e37)  # the running maximum at first: above a hidden score, below any other
LN_2 = tl.constexpr(0.6931471805599453)
LANES = tl.constexpr(4)  # threads that share a row
PAIR = tl.constexpr(8)  # rows apart that one thread holds
GROUP = tl.constexpr(8)  # blocks whose maxima are compared together

WITHOUT, WITH = tl.constexpr(1), tl.constexpr(2)  # only programs without, or with, a mask; 0 for all
BY_KEY, BY_BLOCK = tl.constexpr(1), tl.constexpr(2)  # how finely peaks are stored; 0 for not at all

# numbers that differ from call to call, none of which is worth a kernel of its own
LENGTHS = ["n_q", "start", "least", "most", "origin", "differences"]
PLACES = [*LENGTHS, "first_head", "first_block", "first_query"]


@triton.jit
def tile_spans(first, stop, low, high, full_low, full_high, WHOLE, SIZE: tl.constexpr):
    """Of first ... stop - 1, in tiles from `low` on: so many tiles in all, and between which two none needs a mask."""
    begin = tl.maximum(first, low)
    tiles = tl.maximum(tl.cdiv(tl.minimum(stop, high) - begin, SIZE), 0)
    after = tl.where(full_high >= stop, tiles, tl.maximum(full_high - begin, 0) // SIZE)
    after = tl.minimum(after, tiles)
    before = tl.minimum(tl.cdiv(tl.maximum(full_low - begin, 0), SIZE), after)
    before = tl.where(WHOLE, before, tiles)
    return begin, tiles, before, tl.where(WHOLE, after, tiles)


@triton.jit
def masked_scores(s, i, j, bounds, c, table, BIASED: tl.constexpr, MASKED: tl.constexpr):
    """c q·k, with its bias, NEVER where hidden; position i sees keys i - most ... i - least."""
    least, most, length = bounds
    s = s * c
    if BIASED:
        s += tl.load(table + i[:, None] - j[None, :])
    if MASKED:
        low, high = i - most, tl.minimum(i - least, length - 1)
        s = tl.where((j[None, :] >= low[:, None]) & (j[None, :] <= high[:, None]), s, NEVER)
    return s


@triton.jit(do_not_specialize=[*PLACES, "n_k", "first_cut", "slab"])
def column_pass(
    q, k, table, lengths, lse, cuts, sums, peaks, block_stats, maxima, n_q, n_k, heads, share, q_b, q_h,
    q_t: tl.constexpr, k_b, k_h, k_t, start, least, most, c, differences, origin, first_head, first_cut,
    first_block, first_query, slab,
    D: tl.constexpr, WIDE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, CHUNKS: tl.constexpr,
    EVEN: tl.constexpr, MASS: tl.constexpr, PEAKS: tl.constexpr, ENTROPY: tl.constexpr, TOP: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr, ONLY: tl.constexpr,
):  # fmt: skip
    own, block, z = tl.program_id(1), tl.program_id(0), tl.program_id(2).to(tl.int64)
    b, h = (first_head + z) // heads, (first_head + z) % heads
    length = tl.load(lengths + b)
    first, stop = tl.load(cuts + first_cut + own), tl.load(cuts + first_cut + own + 1)
    key = (first_block + block) * KEYS
    # queries at these positions see some, and all, of the keys
    low, high = key + least - start, tl.minimum(key + KEYS, length) + most - start
    high = tl.where(key < length, high, low)
    begin, tiles, before, after = tile_spans(  # type: ignore[misc]
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
    slot = (z * tl.num_programs(0) + block) * slab - first_query
    into = block_stats + slot * (TOP + ENTROPY), maxima + slot * CHUNKS
    mass = tl.zeros([QUERIES // 2 // PAIR, PAIR, KEYS], tl.float32)
    if PEAKS == BY_KEY:
        largest = tl.full([QUERIES // 2 // PAIR, PAIR, KEYS], NEVER, tl.float32)
    else:
        largest = tl.full([QUERIES, LANES], NEVER, tl.float32)
    for t in range(before + tiles - after if MASKED else 0):
        i = begin + (t + tl.where(t < before, 0, after - before)) * QUERIES + tl.arange(0, QUERIES)
        rows = read_rows(mine, i, d, stop, q_t, D, EVEN)
        s = masked_scores(tl.dot(rows, columns), i + start, j, (least, most, length), c, biases, BIASED, MASKED=True)
        ell = read_ells(ells, i, stop, EVEN)
        mass, largest = record_tile(s, 1.0, ell, i, stop, mass, largest, into, CHUNKS, EVEN, MASS, PEAKS, ENTROPY, TOP)
    i = begin + before * QUERIES + tl.arange(0, QUERIES)
    ell = tl.load(ells + i, mask=i < stop, other=-NEVER)
    for t in range(before, after):
        i = begin + t * QUERIES + tl.arange(0, QUERIES)
        rows = read_rows(mine, i, d, stop, q_t, D, EVEN)
        # loaded a step ahead, so that nobody waits for so few numbers; `ells` is a tile longer than it need be
        ahead = read_ells(ells, i + QUERIES, stop, EVEN)
        s = tl.dot(rows, columns)
        if BIASED:
            s = masked_scores(s, i + start, j, (least, most, length), c, biases, BIASED, MASKED=False)
        scale = 1.0 if BIASED else c
        mass, largest = record_tile(
            s, scale, ell, i, stop, mass, largest, into, CHUNKS, EVEN, MASS, PEAKS, ENTROPY, TOP
        )
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
def record_tile(
    s, c, ell, i, stop, mass, largest, into,
    CHUNKS: tl.constexpr, EVEN: tl.constexpr, MASS: tl.constexpr, PEAKS: tl.constexpr, ENTROPY: tl.constexpr,
    TOP: tl.constexpr,
):  # fmt: skip
    """What one tile of scores says, x = c s - ℓ being the exponents of its weights."""
    block_stats, maxima = into
    QUERIES: tl.constexpr = s.shape[0]
    KEYS: tl.constexpr = s.shape[1]
    WEIGHED: tl.constexpr = MASS or ENTROPY or PEAKS == BY_KEY
    PARTS: tl.constexpr = CHUNKS // LANES
    STATS: tl.constexpr = TOP + ENTROPY
    lane, chunk = tl.arange(0, LANES)[None, :], tl.arange(0, CHUNKS)[None, :]
    kept = (i < stop)[:, None] | EVEN
    stats = tl.zeros([QUERIES, LANES], tl.float32)
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
            stats += tl.max(best, 1)[:, None]
    if PEAKS == BY_KEY:
        pairs = tl.reshape(x, (QUERIES // 2 // PAIR, 2, PAIR, KEYS))
        largest = tl.maximum(largest, tl.max(pairs, 1))
    if MASS or ENTROPY:
        p = tl.exp2(x)
        if MASS:
            mass += tl.sum(tl.reshape(p, (QUERIES // 2 // PAIR, 2, PAIR, KEYS)), 1)
        if ENTROPY:
            stats = tl.where(lane == STATS - 1, tl.sum(p * x, 1)[:, None], stats)
    if STATS:
        tl.store(block_stats + i[:, None] * STATS + lane, stats, mask=kept & (lane < STATS))
    return mass, largest


# --- pass over rows ---


@triton.jit
def online(s, c, m, total, entropy_sum, ENTROPY: tl.constexpr):
    """One tile more; c is positive, so the largest can be found before it is scaled."""
    up = tl.maximum(m, tl.max(s, 1) * c)
    x = s * c - up[:, None]
    p = tl.exp2(x)
    alpha = tl.exp2(m - up)
    if ENTROPY:
        entropy_sum = alpha * (entropy_sum + total * (m - up)) + tl.sum(p * x, 1)
    return up, total * alpha + tl.sum(p, 1), entropy_sum


@triton.jit(do_not_specialize=LENGTHS)
def row_pass(
    q, k, table, lengths, lse, entropy, n_q, heads, share, q_b, q_h, q_t, k_b, k_h, k_t, start, least, most, c,
    differences, origin,
    D: tl.constexpr, WIDE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, ENTROPY: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
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
    total, entropy_sum = tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES], tl.float32)
    # keys at these positions are seen by some, and by all, of the queries
    low, high = first + start - most, tl.minimum(first + QUERIES, n_q) + start - least
    begin, tiles, before, after = tile_spans(
        0, length, low, high, low + QUERIES - 1, first + start - least + 1, WHOLE=True, SIZE=KEYS
    )
    # a last tile with fewer keys than slots needs a mask too
    after = tl.maximum(tl.minimum(after, (length - begin) // KEYS), before)
    for t in range(before + tiles - after if MASKED else 0):
        j = begin + (t + tl.where(t < before, 0, after - before)) * KEYS + tl.arange(0, KEYS)
        spot = (j < length)[None, :] & (d < D)[:, None]
        theirs = tl.load(keys + j[None, :] * k_t + d[:, None], mask=spot, other=0.0)
        s = masked_scores(tl.dot(rows, theirs), i + start, j, (least, most, length), c, biases, BIASED, MASKED=True)
        m, total, entropy_sum = online(s, 1.0, m, total, entropy_sum, ENTROPY)
    for t in range(before, after):
        j = begin + t * KEYS + tl.arange(0, KEYS)
        if WIDE == D:
            theirs = tl.load(keys + j[None, :] * k_t + d[:, None])
        else:
            theirs = tl.load(keys + j[None, :] * k_t + d[:, None], mask=(d < D)[:, None], other=0.0)
        s = tl.dot(rows, theirs)
        if BIASED:
            s = masked_scores(s, i + start, j, (least, most, length), c, biases, BIASED, MASKED=False)
        m, total, entropy_sum = online(s, 1.0 if BIASED else c, m, total, entropy_sum, ENTROPY)
    blind = total == 0.0
    some = tl.where(blind, 1.0, total)
    tl.store(lse + z * n_q + i, tl.where(blind, float("-inf"), (m + tl.log2(some)) * LN_2), mask=i < n_q)
    if ENTROPY:
        tl.store(entropy + z * n_q + i, tl.where(blind, 0.0, (tl.log2(some) - entropy_sum / some) * LN_2), mask=i < n_q)


# --- the largest weights ---


SPAN = tl.constexpr(16)  # groups that one program folds


@triton.jit(do_not_specialize=[*PLACES, "rows", "blocks", "many"])
def fold_block_stats(
    block_stats, groups, entropy_sum, lengths, heads, start, least, most, first_head, first_block, first_query,
    rows, blocks, many,
    KEYS: tl.constexpr, WIDE: tl.constexpr, TOP: tl.constexpr, ENTROPY: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The largest maximum of each query and group of blocks, and Σ p log₂ p of SPAN groups, from those of blocks."""
    part, z = tl.program_id(1), tl.program_id(2).to(tl.int64)
    STATS: tl.constexpr = TOP + ENTROPY
    at = tl.program_id(0) * WIDE + tl.arange(0, WIDE)  # queries and their statistics, side by side
    row, stat, inside = at // STATS, at % STATS, at < rows * STATS
    i, length = first_query + row + start, tl.load(lengths + (first_head + z) // heads)
    total = tl.zeros([WIDE], tl.float32)
    for group in range(part * SPAN, tl.minimum((part + 1) * SPAN, many)):
        block = group * GROUP + tl.arange(0, GROUP)
        spot = (z * blocks + block)[:, None] * (rows * STATS) + at[None, :]
        written = (block < blocks)[:, None] & inside[None, :]
        if MASKED:
            written &= sees_block((first_block + block)[:, None] * KEYS, i[None, :], least, most, length, KEYS)
        here = tl.load(block_stats + spot, mask=written, other=NEVER)
        if TOP:
            tl.store(groups + (z * rows + row) * many + group, tl.max(here, 0), mask=inside & (stat == 0))
        if ENTROPY:
            total += tl.sum(tl.where(here > LEAST, here, 0.0), 0)
    if ENTROPY:
        tl.store(entropy_sum + (z * tl.num_programs(1) + part) * rows + row, total, mask=inside & (stat == STATS - 1))


@triton.jit
def sees_block(key, i, least, most, length, KEYS: tl.constexpr):
    """Does position i see any key of the block that begins here? Only then are its partial results written for sure."""
    return (tl.minimum(key + KEYS, length) > i - most) & (key <= tl.minimum(i - least, length - 1))


@triton.jit
def order_bits(bits):
    """Whole numbers in the order of the floats with these bits, and back: a warp compares whole numbers at once."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def top_values(values, MOST: tl.constexpr, SLOTS: tl.constexpr):
    """Indices and values of the largest, largest first; -1 where there are no more."""
    at, slot = tl.arange(0, values.shape[0]), tl.arange(0, SLOTS)
    found, best = tl.full([SLOTS], -1, tl.int32), tl.full([SLOTS], -(2**31), tl.int32)
    order = order_bits(values.to(tl.int32, bitcast=True))
    for n in range(MOST):
        top = tl.max(order, 0)
        where = tl.min(tl.where(order == top, at, values.shape[0]), 0)
        found = tl.where(slot == n, where, found)
        best = tl.where(slot == n, top, best)
        order = tl.where(at == where, -(2**31), order)
    best = tl.where(slot < MOST, order_bits(best).to(tl.float32, bitcast=True), NEVER)
    return tl.where(best > LEAST, found, -1), best


@triton.jit
def take(of, which):
    """of[which]; -1 where that is -1."""
    same = which[:, None] == tl.arange(0, of.shape[0])[None, :]
    return tl.where(which < 0, -1, tl.sum(tl.where(same, of[None, :], 0), 1))


@triton.jit(do_not_specialize=[*PLACES, "rows", "blocks", "many"])
def pick_keys(
    q, k, table, lengths, ells, block_stats, maxima, groups, keys, weights, n_q, heads, share, q_b, q_h, q_t, k_b,
    k_h, k_t: tl.constexpr, start, least, most, c, differences, origin, first_head, first_block, first_query,
    rows, blocks, many,
    D: tl.constexpr, WIDE: tl.constexpr, KEYS: tl.constexpr, CHUNKS: tl.constexpr, STATS: tl.constexpr,
    GROUP_SLOTS: tl.constexpr, MOST: tl.constexpr, SLOTS: tl.constexpr, BIASED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    row, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h, i = (first_head + z) // heads, (first_head + z) % heads, first_query + row
    group = tl.arange(0, GROUP_SLOTS)
    folded = tl.load(groups + (z * rows + row) * many + group, mask=group < many, other=NEVER)
    group, _ = top_values(folded, MOST, SLOTS)  # type: ignore[misc]

    block = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    known = (group >= 0)[:, None] & (block < blocks)
    length = tl.load(lengths + b)
    if MASKED:
        known &= sees_block((first_block + block) * KEYS, i + start, least, most, length, KEYS)
    best = tl.load(block_stats + ((z * blocks + block) * rows + row) * STATS, mask=known, other=NEVER)
    block, _ = top_values(tl.reshape(best, (SLOTS * GROUP,)), MOST, SLOTS)
    block = tl.where(block < 0, -1, take(group, block // GROUP) * GROUP + block % GROUP)

    spot = ((z * blocks + block) * rows + row)[:, None] * CHUNKS + tl.arange(0, CHUNKS)[None, :]
    best = tl.load(maxima + spot, mask=(block >= 0)[:, None] & (spot >= 0), other=NEVER)
    chunk, _ = top_values(tl.reshape(best, (SLOTS * CHUNKS,)), MOST, SLOTS)
    chunk = tl.where(chunk < 0, -1, take(block, chunk // CHUNKS) * CHUNKS + chunk % CHUNKS)

    LONG: tl.constexpr = KEYS // CHUNKS
    d, at, slot = tl.arange(0, WIDE), tl.arange(0, LONG), tl.arange(0, SLOTS)
    mine = tl.load(q + b * q_b + h * q_h + i * q_t + d, mask=d < D, other=0.0).to(tl.float32)
    low, high = i + start - most, tl.minimum(i + start - least, length - 1)
    within = at // 2 * (2 * LANES) + at % 2
    first = first_key(chunk, first_block, KEYS, CHUNKS)
    scores = tl.full([SLOTS, LONG], NEVER, tl.float32)
    for n in range(MOST):
        j = tl.sum(tl.where(slot == n, first, 0), 0) + within
        seen = (at >= 0) & (tl.sum(tl.where(slot == n, chunk, 0), 0) >= 0)
        if MASKED:
            seen &= (j >= low) & (j <= high)
        theirs = k + b * k_b + (h // share) * k_h + j[:, None] * k_t + d[None, :]
        if MASKED or WIDE != D:
            key = tl.load(theirs, mask=seen[:, None] & (d < D)[None, :], other=0.0)
        else:
            key = tl.load(theirs)  # where there is no such chunk, some other one
        s = tl.sum(mine[None, :] * key.to(tl.float32), 1) * c
        if BIASED:
            s += tl.load(table + h * differences + origin + i + start - j, mask=seen, other=0.0)
        scores = tl.where((slot == n)[:, None], tl.where(seen, s, NEVER)[None, :], scores)
    found, s = top_values(tl.reshape(scores, (SLOTS * LONG,)), MOST, SLOTS)
    j = take(first, found // LONG) + found % LONG // 2 * (2 * LANES) + found % LONG % 2
    weight = tl.where(found < 0, 0.0, tl.exp2(s - tl.load(ells + (first_head + z) * n_q + i)))
    to = ((first_head + z) * n_q + i) * MOST + slot
    tl.store(keys + to, tl.where(weight > 0, j, -1).to(tl.int64), mask=slot < MOST)
    tl.store(weights + to, weight, mask=slot < MOST)


@triton.jit
def first_key(chunk, first_block, KEYS: tl.constexpr, CHUNKS: tl.constexpr):
    """Where a chunk begins; 0 if there is no such chunk. Chunks of one thread are adjacent."""
    PARTS: tl.constexpr = CHUNKS // LANES
    within = chunk % CHUNKS
    first = (first_block + chunk // CHUNKS) * KEYS + within % PARTS * (KEYS // PARTS) + within // PARTS * 2
    return tl.where(chunk < 0, 0, first)


@triton.jit(do_not_specialize=["length", "stride", "first_row", "first_cut", "cuts", "across", "down"])
def pool_cells(
    parts, owners, out, length, stride, first_row, first_cut, cuts, across, down,
    PEAKS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add the sums (or maxima) of keys to their cells; row r owns segments owners[r] ... owners[r + 1] - 1."""
    cell, z = tl.program_id(0) % across, tl.program_id(1).to(tl.int64)
    row = first_row + tl.program_id(0) // across
    # key j falls into cell j·C // n, so a cell begins at the first j that is at least cell·n / C
    first, stop = tl.cdiv(cell.to(tl.int64) * length, across), tl.cdiv((cell + 1).to(tl.int64) * length, across)
    begin = tl.maximum(tl.load(owners + row) - first_cut, 0)
    end = tl.minimum(tl.load(owners + row + 1) - first_cut, cuts)
    total = tl.zeros([WIDE], tl.float32)
    for own in range(begin, end):
        for at in range(first, stop, WIDE):
            j = at + tl.arange(0, WIDE)
            part = tl.load(parts + (z * cuts + own) * stride + j, mask=j < stop, other=0.0)
            if PEAKS:
                total = tl.maximum(total, part)
            else:
                total += part
    spot = out + (z * down + row) * across + cell
    if PEAKS:
        tl.store(spot, tl.maximum(tl.load(spot), tl.max(total, 0)))
    else:
        tl.store(spot, tl.load(spot) + tl.sum(total, 0))


# --- launching the kernels ---


FOLDED = 128  # notes of queries that are folded together
VISIBILITY = ("lengths", "heads", "start", "least", "most", "first_head", "first_block", "first_query")


@dataclass(frozen=True, eq=False)
class KernelStats:
    """As in AttentionStats, batch and heads side by side."""

    log_sum_exp: Float[Tensor, "n i"]
    entropy: Float[Tensor, "n i"] | None
    mass: Float[Tensor, "n j"] | None
    map: Float[Tensor, "n r c"] | None
    peaks: Float[Tensor, "n rows columns"] | None
    keys: Tensor | None
    weights: Tensor | None


def compute_stats(
    seen: StatsInputs,
    request: RequestedStats,
    log_sum_exp: Tensor | None,
    *,
    rows: StatsTileShape = ROWS,
    columns: StatsTileShape | None = None,
) -> KernelStats:
    """Everything requested; with a log-sum-exp in one pass, without in two."""
    n_q, n_k, n = seen.q.shape[2], seen.k.shape[2], seen.heads
    entropy = new_output(seen, n, n_q) if request.entropy else None
    known = log_sum_exp is not None
    lse = log_sum_exp.reshape(n, n_q).float() if known else log_sum_exps(seen, entropy, rows)
    found = KernelStats(
        log_sum_exp=lse,
        entropy=entropy,
        mass=new_output(seen, n, n_k).zero_() if request.mass else None,
        map=new_output(seen, n, *request.map).zero_() if request.map else None,
        peaks=new_output(seen, n, *request.peaks).zero_() if request.peaks else None,
        keys=new_output(seen, n, n_q, request.top, dtype=torch.long) if request.top else None,
        weights=new_output(seen, n, n_q, request.top) if request.top else None,
    )
    with_entropy = request.entropy and known
    if with_entropy or request.mass or request.map or request.peaks or request.top:
        ColumnPass(seen, found, columns or default_shape(seen, request), with_entropy=with_entropy).run()
    return found


def new_output(seen: StatsInputs, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(size, dtype=dtype, device=seen.q.device)


def log_sum_exps(seen: StatsInputs, entropy: Tensor | None, shape: StatsTileShape) -> Float[Tensor, "n i"]:
    """The log-sum-exp of every row, and its entropy if a tensor is passed for it."""
    n_q = seen.q.shape[2]
    lse = new_output(seen, seen.heads, n_q)
    launch_kernel(
        row_pass,
        (tile_count(n_q, shape.queries), seen.heads),
        common_arguments(seen) | shape.options(),
        lse=lse,
        entropy=lse if entropy is None else entropy,
        ENTROPY=entropy is not None,
        MASKED=not (seen.sees_all and seen.k.shape[2] % shape.keys == 0),
    )
    return lse


def launch_kernel(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], **more: Any) -> None:
    kernel[grid](**arguments, **more)


def common_arguments(seen: StatsInputs) -> dict[str, Any]:
    """Arguments of every kernel over q and k."""
    (_, heads, n_q, d), biases = seen.q.shape, seen.biases
    strides = zip(("q_b", "q_h", "q_t", "k_b", "k_h", "k_t"), (*seen.q.stride()[:3], *seen.k.stride()[:3]), strict=True)
    return dict(strides) | {
        "q": seen.q,
        "k": seen.k,
        "table": seen.lengths if biases is None else biases * LOG_2_E,
        "lengths": seen.lengths,
        "n_q": n_q,
        "heads": heads,
        "share": heads // seen.k.shape[1],
        "start": seen.start,
        "least": seen.band.least,
        "most": seen.band.most,
        "c": seen.scale * LOG_2_E,
        "differences": n_q + seen.k.shape[2] - 1 + 2 * MARGIN,
        "origin": seen.origin,
        "D": d,
        "WIDE": max(16, triton.next_power_of_2(d)),
        "BIASED": biases is not None,
    }


@dataclass(frozen=True, eq=False)
class ColumnPass:
    """The pass that knows the log-sum-exp, slab by slab."""

    seen: StatsInputs
    found: KernelStats
    shape: StatsTileShape
    with_entropy: bool

    def run(self) -> None:
        seen, device, known = self.seen, self.seen.q.device, self.found.log_sum_exp
        # a blind row has lse -∞, but every key is hidden from it, and 0 serves as well; a tile more, to be read in vain
        ells = new_output(seen, known.numel() + self.shape.queries).zero_()
        ells[: known.numel()] = (known * LOG_2_E).nan_to_num(0.0, 0.0, 0.0).flatten()
        maps = [x for x in (self.found.map, self.found.peaks) if x is not None]
        cuts = segments(seen.q.shape[2], {x.shape[1] for x in maps}, self.shape.queries)
        at = torch.tensor(cuts, dtype=torch.int32, device=device)
        arguments = common_arguments(seen) | {"CHUNKS": self.shape.chunks}
        owners = {x.shape[1]: row_owners(cuts, x.shape[1], device) for x in maps}
        for slab in self.space.slabs(cuts):
            self.run_slab(slab, ells, at, arguments | {"EVEN": self.even(cuts)}, owners)

    def even(self, cuts: list[int]) -> bool:
        """Does every segment, from the first query on that sees a block, hold whole tiles only?"""
        tile, least = self.shape.queries, self.seen.band.least
        whole = least <= -FAR or ((least - self.seen.start) % tile == 0 and self.shape.keys % tile == 0)
        return whole and all(cut % tile == 0 for cut in cuts)

    @property
    def space(self) -> SlabMemory:
        each_query = 4 * (self.with_entropy + (self.found.keys is not None) * (1 + self.shape.chunks))
        return SlabMemory(self.seen, self.shape.keys, each_query, each_key=4 * (self.summed + (self.peaks > 0)))

    @property
    def masked(self) -> bool:
        return not (self.seen.sees_all and self.seen.k.shape[2] % self.shape.keys == 0)

    def launches(self) -> list[tuple[int, bool, StatsTileShape]]:
        """Which programs, with masks or not, how cut: where most need none, they are spared the others' registers."""
        band, shape = self.seen.band, self.shape
        if not self.masked or shape.registers is None or band.most - band.least < LONGEST:
            return [(0, self.masked, shape)]
        quick = shape if self.peaks == BY_KEY.value else replace(shape, registers=COLUMNS.registers)
        return [(WITHOUT.value, False, quick), (WITH.value, True, shape)]

    @property
    def summed(self) -> bool:
        return self.found.mass is not None or self.found.map is not None

    @property
    def peaks(self) -> int:
        """How finely: where blocks nest in cells, a number for each block will do."""
        if self.found.peaks is None:
            return 0
        nests = self.seen.k.shape[2] % (self.found.peaks.shape[2] * self.shape.keys) == 0
        return (BY_BLOCK if nests else BY_KEY).value

    def run_slab(
        self, slab: Slab, ells: Tensor, cuts: Tensor, arguments: dict[str, Any], owners: dict[int, Tensor]
    ) -> None:
        seen, found, shape, n_k = self.seen, self.found, self.shape, self.seen.k.shape[2]
        heads, own, blocks, queries = map(slice_length, (slab.heads, slab.cuts, slab.blocks, slab.queries))
        top, stats = found.keys is not None, self.with_entropy + (found.keys is not None)
        sums, peaks, block_stats, maxima = (
            new_output(seen, *size) if wanted else None
            for size, wanted in (
                ((heads, own, n_k), self.summed),
                ((heads, own, n_k), self.peaks > 0),
                ((heads, blocks, queries, stats), stats > 0),
                ((heads, blocks, queries, shape.chunks), top),
            )
        )
        if not seen.sees_all:  # tiles that nobody sees are skipped; nobody reads their statistics
            for part in (sums, peaks):
                if part is not None:
                    part.zero_()
        here = {"first_head": slab.heads.start, "first_block": slab.blocks.start, "first_query": slab.queries.start}
        for only, masked, cut in self.launches():
            launch_kernel(
                column_pass,
                (blocks, own, heads),
                arguments | here | cut.options(),
                lse=ells,
                cuts=cuts,
                sums=ells if sums is None else sums,  # a pointer that is not used
                peaks=ells if peaks is None else peaks,
                block_stats=ells if block_stats is None else block_stats,
                maxima=ells if maxima is None else maxima,
                n_k=n_k,
                first_cut=slab.cuts.start,
                slab=queries,
                MASS=self.summed,
                PEAKS=self.peaks,
                ENTROPY=self.with_entropy,
                TOP=top,
                MASKED=masked,
                ONLY=only,
            )
        if found.mass is not None and sums is not None:
            found.mass[slab.heads] += sums.sum(1)
        if found.map is not None and sums is not None:
            self.pool(found.map, sums, n_k, slab, owners)
        if found.peaks is not None and peaks is not None:
            self.pool(found.peaks, peaks, n_k // shape.keys if self.peaks == BY_BLOCK.value else n_k, slab, owners)
        if block_stats is not None:
            self.fold(block_stats, maxima, ells, slab, arguments | here)

    def fold(
        self, block_stats: Tensor, maxima: Tensor | None, ells: Tensor, slab: Slab, arguments: dict[str, Any]
    ) -> None:
        """The entropies of the slab's queries, their largest weights, and the keys of these."""
        found, (heads, blocks, queries, stats) = self.found, block_stats.shape
        many = tile_count(blocks, GROUP.value)
        parts = tile_count(many, SPAN.value)
        groups = ells if maxima is None else new_output(self.seen, heads, queries, many)
        entropy_sum = new_output(self.seen, heads, parts, queries) if self.with_entropy else ells
        sizes = {"block_stats": block_stats, "groups": groups, "rows": queries, "blocks": blocks, "many": many}
        grid = tile_count(queries * stats, FOLDED), parts, heads
        kinds = {"TOP": maxima is not None, "ENTROPY": self.with_entropy, "KEYS": self.shape.keys}
        known = {name: arguments[name] for name in VISIBILITY} | {"MASKED": self.masked}
        launch_kernel(fold_block_stats, grid, sizes | kinds | known, entropy_sum=entropy_sum, WIDE=FOLDED, num_warps=1)
        if found.entropy is not None and self.with_entropy:
            found.entropy[slab.heads, slab.queries] = entropy_sum.sum(1) * -log(2)
        if found.keys is None or maxima is None:
            return
        most = found.keys.shape[2]
        at_most = tile_count(
            tile_count(self.seen.k.shape[2], self.shape.keys), GROUP.value
        )  # in any slab: one kernel for all
        launch_kernel(
            pick_keys,
            (queries, heads),
            {name: value for name, value in arguments.items() if name != "EVEN"} | sizes,
            ells=ells,
            maxima=maxima,
            keys=found.keys,
            weights=found.weights,
            KEYS=self.shape.keys,
            STATS=stats,
            MASKED=self.masked,
            GROUP_SLOTS=triton.next_power_of_2(at_most),
            MOST=most,
            SLOTS=triton.next_power_of_2(most),
            num_warps=1 if most <= 16 else 4,
            num_stages=1,
        )

    def pool(self, out: Tensor, parts: Tensor, length: int, slab: Slab, owners: dict[int, Tensor]) -> None:
        """The slab's part of a map, from numbers for each key or, side by side, for each block of keys."""
        (_, down, across), n_q = out.shape, self.seen.q.shape[2]
        first, last = (query * down // n_q for query in (slab.queries.start, slab.queries.stop - 1))
        launch_kernel(
            pool_cells,
            ((last - first + 1) * across, slice_length(slab.heads)),
            {"parts": parts, "owners": owners[down], "out": out[slab.heads]},
            length=length,
            stride=parts.shape[2],
            first_row=first,
            first_cut=slab.cuts.start,
            cuts=slice_length(slab.cuts),
            across=across,
            down=down,
            PEAKS=out is self.found.peaks,
            WIDE=min(1024, max(16, triton.next_power_of_2(tile_count(length, across)))),
            num_warps=1,
        )
