"""Tiles of q kᵀ in, the log-sum-exp and the entropy of every row out: a probe's pass over rows, as a Triton kernel.

`sum_rows` holds a block of queries and walks over keys, in the units of probe_tiles, by the running maximum m:

    L ← α L + Σ_j 2^(s − m'),   E ← α (E + L (m − m')) + Σ_j 2^(s − m') (s − m'),   α = 2^(m − m'),
    ℓ = m + log₂ L,   H = ln 2 · (log₂ L − E / L).
"""

import triton
import triton.language as tl

from regard.attention.kernels.probe_tiles import LEAST, LENGTHS, LN_2, scored, spans


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
