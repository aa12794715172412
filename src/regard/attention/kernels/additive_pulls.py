"""Gradients of Bahdanau's scores as a Triton kernel: e^{2a}, b and g = ∂L/∂s in, Σ g (r − r²) over each side out.

With r = 1/(1 + e^{2a} e^{2b}), one r serves a, b and v: seven instructions a triple (r, two of which share a
reciprocal, r − r², and a multiply-add into each of the three sums).

A thread owns one width or two and some pairs of keys, whose sums stay in its registers, and walks over the queries.
What a query gets from those keys it adds to that query's sum in memory. So that no two warps of a program do so at
once, they walk in turns: in each phase every warp has a chunk of queries of its own, and they wait for each other
before they pass on. No atomics, and the same order every time. Programs that share a head and its widths have a sum
each, which the first to reach a query writes and the others add to: nobody needs to clear it before.

What a thread holds fills its registers, so that little can be loaded long before it is needed. Hence the sum for v is
one number a width, not one a key, which leaves room for loads a quarter of the loop ahead; and each warp touches the g
of its next turn, which nobody in the program has read, a turn before (AHEAD): then it comes from the nearest cache.
"""

import triton
import triton.language as tl

from regard.attention.kernels.additive_scores import halves, reciprocal


@triton.jit
def pulled(y, word, even, odd, of_even, of_odd, plain, ALONE: tl.constexpr, APPROXIMATE: tl.constexpr):
    """One query for each warp: what it gets from the pairs of keys, which keep what they get."""
    g0, g1 = halves(word)  # type: ignore[misc]
    g0, g1 = g0[None, :, None, :], g1[None, :, None, :]
    x0 = even * y[:, :, :, None] + 1.0
    x1 = odd * y[:, :, :, None] + 1.0
    if ALONE:
        r0, r1 = reciprocal(x0, APPROXIMATE), reciprocal(x1, APPROXIMATE)
    else:
        both = reciprocal(x0 * x1, APPROXIMATE)
        r0, r1 = both * x1, both * x0
    bend0, bend1 = r0 - r0 * r0, r1 - r1 * r1
    of_even += g0 * bend0
    of_odd += g1 * bend1
    plain += tl.sum(g0 * r0, 3) + tl.sum(g1 * r1, 3)
    return tl.sum(g0 * bend0, 3) + tl.sum(g1 * bend1, 3), of_even, of_odd, plain


@triton.jit
def pulled_far(y, word, even, odd, of_even, of_odd, plain):
    """The same for numbers whose exponentials are out of range."""
    g0, g1 = halves(word)  # type: ignore[misc]
    g0, g1 = g0[None, :, None, :], g1[None, :, None, :]
    r0 = 1.0 / (1.0 + tl.exp(2.0 * (even + y[:, :, :, None])))
    r1 = 1.0 / (1.0 + tl.exp(2.0 * (odd + y[:, :, :, None])))
    bend0, bend1 = r0 - r0 * r0, r1 - r1 * r1
    plain += tl.sum(g0 * r0 + g1 * r1, 3)
    return tl.sum(g0 * bend0 + g1 * bend1, 3), of_even + g0 * bend0, of_odd + g1 * bend1, plain


@triton.jit(do_not_specialize=["unit"])
def row_pulls(
    queries,
    keys,
    g,
    fits,
    live,
    of_queries,
    of_keys,
    sums,
    rows,
    count,
    wide,
    each,
    unit,
    D: tl.constexpr,
    PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    WARPS: tl.constexpr,
    DEPTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ALONE: tl.constexpr,
    AHEAD: tl.constexpr,
    SOME: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    n, z, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    w, lane = tl.arange(0, WARPS), z * (32 * DEPTH) + tl.arange(0, 32)[:, None] + 32 * tl.arange(0, DEPTH)[None, :]
    # `unit` is 1, which the compiler does not know: threads go along the first axis, warps along the second
    d = z * (32 * DEPTH) + (tl.arange(0, 32) * unit)[:, None] + 32 * tl.arange(0, DEPTH)[None, :]
    pair = w[:, None] * PAIRS + tl.arange(0, PAIRS)[None, :]
    near = tl.load(fits + n) != 0
    plain = tl.zeros([32, WARPS, DEPTH], tl.float32)
    of_queries += (part * tl.num_programs(0) + n) * rows * PADDED
    queries += n * rows * PADDED
    tiles, blocks, first = wide // (2 * PAIRS * WARPS), rows // (CHUNK * WARPS), part * each
    # what a thread touches ahead: a query of the turn, and 32 bytes, the least that is fetched, of its warp's keys
    turn, sector = (tl.arange(0, 32) % CHUNK * unit)[:, None], (tl.arange(0, 32) // CHUNK * 8)[:, None]
    ahead = g.to(tl.pointer_type(tl.int32)) + n * rows * wide + w[None, :] * (2 * PAIRS) + sector % (2 * PAIRS)
    for tile in range(first, tl.minimum(first + each, tiles)):
        j = (tile * (2 * PAIRS * WARPS) + 2 * pair)[None, :, None, :]
        spot, there = keys + n * count * D + j * D + d[:, None, :, None], (lane < D)[:, None, :, None]
        even = tl.load(spot, there & (j < count), 0.0).to(tl.float32)
        odd = tl.load(spot + D, there & (j + 1 < count), 0.0).to(tl.float32)
        if near:
            # beyond the last key 0, not e⁰: it shares its reciprocal with a key that is there
            even, odd = tl.where(j < count, tl.exp(2.0 * even), 0.0), tl.where(j + 1 < count, tl.exp(2.0 * odd), 0.0)
        spot = of_keys + n * wide * PADDED + j * PADDED + d[:, None, :, None]
        of_even, of_odd = tl.load(spot), tl.load(spot + PADDED)
        for block in range(blocks):
            seen = 1
            if SOME:
                seen = tl.load(live + (n * blocks + block) * tiles + tile)
            if seen != 0:
                for phase in range(WARPS):
                    begun = SOME | (tile > first) | (phase > 0)  # before that, what lies there is nobody's
                    i = block * (CHUNK * WARPS) + (w + phase) % WARPS * CHUNK
                    theirs = (i * PADDED)[None, :, None] + d[:, None, :]
                    y, out = queries + theirs, of_queries + theirs
                    words = g + (n * rows * wide // 2 + tile * (PAIRS * WARPS)) + (i * (wide // 2))[:, None] + pair
                    if AHEAD:
                        later = block * WARPS + phase + 1
                        row = (later // WARPS * WARPS + (w + later) % WARPS)[None, :] * CHUNK + turn
                        felt = tl.load(ahead + row * wide + tile * (2 * PAIRS * WARPS), row < rows, 0)
                    if near:
                        for _ in range(0, CHUNK, 2):
                            y0, y1 = tl.load(y), tl.load(y + PADDED)
                            out0, out1 = tl.load(out, begun, 0.0), tl.load(out + PADDED, begun, 0.0)
                            g0, g1 = tl.load(words), tl.load(words + wide // 2)
                            t0, of_even, of_odd, plain = pulled(
                                y0, g0, even, odd, of_even, of_odd, plain, ALONE=False, APPROXIMATE=APPROXIMATE
                            )
                            t1, of_even, of_odd, plain = pulled(
                                y1, g1, even, odd, of_even, of_odd, plain, ALONE=ALONE, APPROXIMATE=APPROXIMATE
                            )
                            tl.store(out, out0 + t0)
                            tl.store(out + PADDED, out1 + t1)
                            y += 2 * PADDED
                            out += 2 * PADDED
                            words += wide
                    else:
                        for _ in range(CHUNK):
                            t0, of_even, of_odd, plain = pulled_far(
                                tl.load(y), tl.load(words), even, odd, of_even, of_odd, plain
                            )
                            tl.store(out, tl.load(out, begun, 0.0) + t0)
                            y += PADDED
                            out += PADDED
                            words += wide // 2
                    if AHEAD:
                        tl.store(ahead, felt, unit < 0)  # never; but what is not used is not loaded
                    tl.debug_barrier()
        tl.store(spot, of_even)
        tl.store(spot + PADDED, of_odd)
    spot = sums + (part * tl.num_programs(0) + n) * PADDED + lane
    tl.store(spot, tl.load(spot) + tl.sum(plain, 1))


@triton.jit
def row_exponents(x, fits, out, stride, tokens, padded, D: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr):
    """e^{2x} where that is in range, else x itself; 0 beyond the last token and width."""
    n = tl.program_id(0).to(tl.int64)
    t, c = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS), tl.program_id(2) * 32 + tl.arange(0, 32)
    inside = (t < tokens)[:, None] & (c < D)[None, :]
    tile = tl.load(x + n * stride + t[:, None] * D + c[None, :], inside, 0.0).to(tl.float32)
    if tl.load(fits + n) != 0:
        tile = tl.where(inside, tl.exp(2.0 * tile), 0.0)
    tl.store(out + (n * padded + t[:, None]) * PADDED + c[None, :], tile, (t < padded)[:, None])


@triton.jit
def row_finish(
    parts, v, out, heads, count, rows, tokens, stride, D: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr
):
    """4 v times the sum of the parts, in their order."""
    n = tl.program_id(0).to(tl.int64)
    t, c = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS), tl.program_id(2) * 32 + tl.arange(0, 32)
    inside = (t < tokens)[:, None] & (c < D)[None, :]
    total = tl.zeros([TOKENS, 32], tl.float32)
    for part in range(count):
        spot = parts + ((part * tl.num_programs(0) + n) * rows + t[:, None]) * PADDED + c[None, :]
        total += tl.load(spot, inside, 0.0)
    slope = 4.0 * tl.load(v + (n % heads) * D + c, c < D, 0.0)
    tl.store(out + n * stride + t[:, None] * D + c[None, :], total * slope[None, :], inside)
