"""Additive attention as Triton kernels: softmax of Bahdanau's scores, forward and backward, and their launches.

Softmax, a row of scores at a time:

    p_j = e^{s_j} / Σ e^s,        g_j = p_j (∂L/∂p_j − Σ p ∂L/∂p / Σ p).

Σ p is 1 but for rounding, since p is kept as it was used; dividing by it makes Σ g = 0 all the same. A hidden key
weighs 0 and has no gradient, whatever its value, and so does every key of a row that sees none.

Scores: −2 Σ_d v_d / (1 + e^{2a} e^{2b}) for every query and key. With x = 1 + e^{2a} e^{2b}, tanh(a + b) = 1 − 2/x: no
tanh. Reciprocals are the scarcer unit (16 a cycle and multiprocessor, against 128 multiply-adds), so four triples share
one. Dividing e^{2a} and the 1 by v beforehand leaves three instructions a triple: with y = x/v, that is one
multiply-add, and

    1/y₀ + 1/y₁ + … = num/den,        num ← num · y + den,   den ← den · y.

Range. v is measured against the head's largest, and kept from falling below 2⁻²⁰ of it: that moves a score by less than
rounding the largest term of a sum of that many does. y is scaled by 2⁻³¹ and den, a product of four, must stay within
2⁻¹²⁴ and 2¹²⁶: so a + b may reach 21 where v is largest and 14 where it is least. e^{2a} and its multiples are normal
while |a| ≤ 30. A head whose numbers do not allow that takes r = 1/(1 + e^{2(a+b)}), right for all numbers, which costs
an exponential and a division a triple. The device decides, so nobody waits.

Two neighbouring widths lie side by side as one word of 64 bits, tokens next to each other. A word fills an even
register and the odd one after it, and three operands that are all even or all odd take a cycle more: so a word of keys
has its odd width first, or every y would (91 of 441 instructions did, 12 do). Every thread of `scores_forward` owns a
rectangle of queries and keys, a warp's threads different keys. Triton lays a tile out like its first load. An index
times `unit`, which is 1 without the compiler knowing, makes that threads along the first axis, warps along the second,
and the rest within a thread.

Gradients of the scores, of e^{2a}, b and g = ∂L/∂s: Σ g (r − r²) over each side. With r = 1/(1 + e^{2a} e^{2b}),
one r serves a, b and v: seven instructions a triple (r, two of which share a reciprocal, r − r², and a multiply-add
into each of the three sums).

A thread owns one width or two and some pairs of keys, whose sums stay in its registers, and goes over the queries.
What a query gets from those keys it adds to that query's sum in memory. So that no two warps of a program do so at
once, they take turns: in each phase every warp has a chunk of queries of its own, and they wait for each other
before they pass on. No atomics, and the same order every time. Programs that share a head and its widths have a sum
each, which the first to reach a query writes and the others add to: nobody needs to clear it before.

What a thread holds fills its registers, so that little can be loaded long before it is needed. Hence the sum for v is
one number a width, not one a key, which leaves space for loads a quarter of the loop ahead; and each warp touches the g
of its next turn, which nobody in the program has read, a turn before (AHEAD): then it comes from the nearest cache.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import triton
import triton.language as tl
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.backends.additive import AdditiveEngine, Visible


@triton.jit
def softmax_forward(s, out, high, wide, stride, WIDE: tl.constexpr):
    n, i = tl.program_id(1).to(tl.int64), tl.program_id(0)
    s += (n * high + i) * wide
    out += n * stride + i.to(tl.int64) * wide
    top, total = tl.max(tl.full([WIDE], float("-inf"), tl.float32), 0), 0.0
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        x = tl.load(s + j, j < wide, float("-inf"))
        new = tl.maximum(top, tl.max(x, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base), 0)
        top = new
    base, total = tl.where(top == float("-inf"), 0.0, top), tl.where(total == 0.0, 1.0, total)
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        x = tl.load(s + j, j < wide, float("-inf"))
        tl.store(out + j, tl.exp(x - base) / total, j < wide)


@triton.jit
def softmax_backward(p, upstream, g, high, wide, stride, WIDE: tl.constexpr):
    n, i = tl.program_id(1).to(tl.int64), tl.program_id(0)
    p += n * stride + i.to(tl.int64) * wide
    upstream += (n * high + i) * wide
    g += (n * high + i) * wide
    dot, whole = 0.0, 0.0
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        weight = tl.load(p + j, j < wide, 0.0).to(tl.float32)
        slope = tl.load(upstream + j, j < wide, 0.0).to(tl.float32)
        dot += tl.sum(tl.where(weight == 0.0, 0.0, weight * slope), 0)
        whole += tl.sum(weight, 0)
    mean = dot / tl.where(whole == 0.0, 1.0, whole)
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        weight = tl.load(p + j, j < wide, 0.0).to(tl.float32)
        slope = tl.load(upstream + j, j < wide, 0.0).to(tl.float32)
        tl.store(g + j, tl.where(weight == 0.0, 0.0, weight * (slope - mean)), j < wide)


# --- scores ---


LARGEST = tl.constexpr(30.0)
HIGHEST = tl.constexpr(62.5)
TWO_LOG2_E = tl.constexpr(2.8853900817779268)
SMALLEST_WEIGHT = tl.constexpr(2.0**-20)
SCALE = tl.constexpr(2.0**-31)
FARTHEST = tl.constexpr(2.0**31)  # y where there is no width any more: as good as infinite


@triton.jit
def reciprocal(x, APPROXIMATE: tl.constexpr):
    """1/x to one unit in the last place, in one instruction; a division proper takes eight."""
    if APPROXIMATE:
        r = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        r = 1.0 / x
    return r


@triton.jit
def halves(word):
    """Two numbers from one word: they already lie in two registers, so this costs nothing."""
    low = (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return low, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def largest(x, tokens, d, c, TOKENS: tl.constexpr, DEEP: tl.constexpr):
    """Of some widths over all tokens: the largest number, and whether all are in range (not if one is NaN)."""
    top, small = tl.full([DEEP], float("-inf"), tl.float32), tl.full([DEEP], 1, tl.int32)
    for first in range(0, tokens, TOKENS):
        t = first + tl.arange(0, TOKENS)
        inside = (t < tokens)[:, None] & (c < d)[None, :]
        tile = tl.load(x + t[:, None] * d + c[None, :], inside, 0.0).to(tl.float32)
        small = tl.minimum(small, tl.min((tl.abs(tile) <= LARGEST).to(tl.int32), 0))
        top = tl.maximum(top, tl.max(tl.where(inside, tile, float("-inf")), 0))
    return top, small


@triton.jit
def exponent_limits(
    a, b, v, fits, ones, factors, heads, queries, keys, d,
    PADDED: tl.constexpr, WHOLE: tl.constexpr, TOKENS: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """For some widths of a head: do they fit, 1/v with the scale, and the factor from sums of 1/y to scores."""
    n, z = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c, whole = z * DEEP + tl.arange(0, DEEP), tl.arange(0, WHOLE)
    top_a, small_a = largest(a + n * queries * d, queries, d, c, TOKENS, DEEP)  # type: ignore[misc]
    top_b, small_b = largest(b + n * keys * d, keys, d, c, TOKENS, DEEP)  # type: ignore[misc]
    v += (n % heads) * d
    most = tl.max(tl.abs(tl.load(v + whole, whole < d, 0.0)), 0)
    weight = tl.load(v + c, c < d, 0.0) / tl.where(most > 0.0, most, 1.0)
    size = 1.0 / tl.maximum(tl.abs(weight), SMALLEST_WEIGHT)
    # log₂ y, but for its scale: 1 + e^{2(a+b)} is less than twice the larger of the two
    high = (top_a + top_b) * TWO_LOG2_E + 1.0 + tl.log2(size)
    good = ((high <= HIGHEST) | (c >= d)).to(tl.int32) * small_a * small_b
    tl.store(fits + n * tl.num_programs(1) + z, tl.min(good, 0))
    size *= SCALE
    y = tl.where(c < d, tl.where(weight < 0.0, -size, size), FARTHEST)
    tl.store(ones + n * PADDED + c, y, c < PADDED)
    tl.store(factors + n, most * (-2.0 * SCALE))


@triton.jit
def scores_exponentials(
    x, fits, ones, out, stride, tokens, d, padded,
    PAIRS: tl.constexpr, FOLD: tl.constexpr, TOKENS: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """e^{2x} where that is in range (over v, to FOLD it in), else x itself, in pairs of widths, tokens last."""
    n = tl.program_id(0).to(tl.int64)
    t, c = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS), tl.program_id(2) * DEEP + tl.arange(0, DEEP)
    low, high = (2 * c < d)[:, None], (2 * c + 1 < d)[:, None]
    inside = (t < tokens)[None, :]
    spot = x + n * stride + t[None, :] * d + 2 * c[:, None]
    even = tl.load(spot, inside & low, 0.0).to(tl.float32)
    odd = tl.load(spot + 1, inside & high, 0.0).to(tl.float32)
    if tl.load(fits + n) != 0:
        even, odd = tl.where(low, tl.exp(2.0 * even), 0.0), tl.where(high, tl.exp(2.0 * odd), 0.0)
        if FOLD:
            over = ones + n * 2 * PAIRS + 2 * c
            even *= tl.load(over, c < PAIRS, 0.0)[:, None]
            odd *= tl.load(over + 1, c < PAIRS, 0.0)[:, None]
    if not FOLD:  # keys
        even, odd = odd, even
    word = odd.to(tl.int32, bitcast=True).to(tl.int64) << 32
    word |= even.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.store(out + (n * PAIRS + c[:, None]) * padded + t[None, :], word, (c < PAIRS)[:, None] & (t < padded)[None, :])


@triton.jit(do_not_specialize=["unit"])
def scores_forward(
    a, b, v, ones, factors, fits, live, out, heads, high, wide, here, there, unit,
    D: tl.constexpr, PAIRS: tl.constexpr, WARPS: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    SHARE: tl.constexpr, SOME: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    n, y, x = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    seen = 1
    if SOME:
        seen = tl.load(live + (n * tl.num_programs(1) + y) * tl.num_programs(2) + x)
    if seen != 0:
        i = y * (WARPS * DOWN) + tl.arange(0, WARPS)[:, None] * DOWN + tl.arange(0, DOWN)[None, :]
        j = x * (32 * ACROSS) + tl.arange(0, 32)[:, None] + 32 * tl.arange(0, ACROSS)[None, :]
        rows, cols = a + n * PAIRS * here + i, b + n * PAIRS * there + j
        # 0, but said so that the compiler lays the sum out as the head of this file says
        total = tl.load(out + (i * unit)[None, :, :, None] + (j * unit)[:, None, None, :], unit < 0, 0.0)
        if tl.load(fits + n) != 0:
            factor = tl.load(factors + n)
            ones += n * PAIRS
            for _ in range(0, PAIRS, SHARE // 2):
                a0, a1 = halves(tl.load(rows))  # type: ignore[misc]
                b1, b0 = halves(tl.load(cols))  # type: ignore[misc]
                w0, w1 = halves(tl.load(ones))  # type: ignore[misc]
                y0 = a0[None, :, :, None] * b0[:, None, None, :] + w0
                y1 = a1[None, :, :, None] * b1[:, None, None, :] + w1
                num, den = y0 + y1, y0 * y1
                if SHARE == 4:
                    a2, a3 = halves(tl.load(rows + here))  # type: ignore[misc]
                    b3, b2 = halves(tl.load(cols + there))  # type: ignore[misc]
                    w2, w3 = halves(tl.load(ones + 1))  # type: ignore[misc]
                    y2 = a2[None, :, :, None] * b2[:, None, None, :] + w2
                    num, den = num * y2 + den, den * y2
                    y3 = a3[None, :, :, None] * b3[:, None, None, :] + w3
                    num, den = num * y3 + den, den * y3
                total += num * reciprocal(den, APPROXIMATE)
                ones += SHARE // 2
                rows += SHARE // 2 * here
                cols += SHARE // 2 * there
        else:
            factor = tl.load(factors + n) * 0.0 - 2.0
            weights = v + (n % heads) * D
            for d in range(0, D, 2):
                a0, a1 = halves(tl.load(rows))  # type: ignore[misc]
                b1, b0 = halves(tl.load(cols))  # type: ignore[misc]
                v0, v1 = tl.load(weights + d), tl.load(weights + d + 1, d + 1 < D, 0.0)
                total += v0 / (1.0 + tl.exp(2.0 * (a0[None, :, :, None] + b0[:, None, None, :])))
                total += v1 / (1.0 + tl.exp(2.0 * (a1[None, :, :, None] + b1[:, None, None, :])))
                rows += here
                cols += there
        spot = out + n * high * wide + (i * wide)[None, :, :, None] + (j * unit)[:, None, None, :]
        tl.store(spot, factor * total, (i < high)[None, :, :, None] & (j < wide)[:, None, None, :])


# --- gradients of the scores ---


@triton.jit
def query_backward(y, word, even, odd, of_even, of_odd, plain, ALONE: tl.constexpr, APPROXIMATE: tl.constexpr):
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
    slope0, slope1 = r0 - r0 * r0, r1 - r1 * r1
    of_even += g0 * slope0
    of_odd += g1 * slope1
    plain += tl.sum(g0 * r0, 3) + tl.sum(g1 * r1, 3)
    return tl.sum(g0 * slope0, 3) + tl.sum(g1 * slope1, 3), of_even, of_odd, plain


@triton.jit
def query_backward_far(y, word, even, odd, of_even, of_odd, plain):
    """The same for numbers whose exponentials are out of range."""
    g0, g1 = halves(word)  # type: ignore[misc]
    g0, g1 = g0[None, :, None, :], g1[None, :, None, :]
    r0 = 1.0 / (1.0 + tl.exp(2.0 * (even + y[:, :, :, None])))
    r1 = 1.0 / (1.0 + tl.exp(2.0 * (odd + y[:, :, :, None])))
    slope0, slope1 = r0 - r0 * r0, r1 - r1 * r1
    plain += tl.sum(g0 * r0 + g1 * r1, 3)
    return tl.sum(g0 * slope0 + g1 * slope1, 3), of_even + g0 * slope0, of_odd + g1 * slope1, plain


@triton.jit(do_not_specialize=["unit"])
def scores_backward(
    queries, keys, g, fits, live, of_queries, of_keys, sums, rows, count, wide, each, unit,
    D: tl.constexpr, PADDED: tl.constexpr, PAIRS: tl.constexpr, WARPS: tl.constexpr, DEPTH: tl.constexpr,
    CHUNK: tl.constexpr, ALONE: tl.constexpr, AHEAD: tl.constexpr, SOME: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
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
                        fetched = tl.load(ahead + row * wide + tile * (2 * PAIRS * WARPS), row < rows, 0)
                    if near:
                        for _ in range(0, CHUNK, 2):
                            y0, y1 = tl.load(y), tl.load(y + PADDED)
                            out0, out1 = tl.load(out, begun, 0.0), tl.load(out + PADDED, begun, 0.0)
                            g0, g1 = tl.load(words), tl.load(words + wide // 2)
                            t0, of_even, of_odd, plain = query_backward(
                                y0, g0, even, odd, of_even, of_odd, plain, ALONE=False, APPROXIMATE=APPROXIMATE
                            )
                            t1, of_even, of_odd, plain = query_backward(
                                y1, g1, even, odd, of_even, of_odd, plain, ALONE=ALONE, APPROXIMATE=APPROXIMATE
                            )
                            tl.store(out, out0 + t0)
                            tl.store(out + PADDED, out1 + t1)
                            y += 2 * PADDED
                            out += 2 * PADDED
                            words += wide
                    else:
                        for _ in range(CHUNK):
                            t0, of_even, of_odd, plain = query_backward_far(
                                tl.load(y), tl.load(words), even, odd, of_even, of_odd, plain
                            )
                            tl.store(out, tl.load(out, begun, 0.0) + t0)
                            y += PADDED
                            out += PADDED
                            words += wide // 2
                    if AHEAD:
                        tl.store(ahead, fetched, unit < 0)  # never; but what is not used is not loaded
                    tl.debug_barrier()
        tl.store(spot, of_even)
        tl.store(spot + PADDED, of_odd)
    spot = sums + (part * tl.num_programs(0) + n) * PADDED + lane
    tl.store(spot, tl.load(spot) + tl.sum(plain, 1))


@triton.jit
def backward_exponentials(
    x, fits, out, stride, tokens, padded, D: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr
):
    """e^{2x} where that is in range, else x itself; 0 beyond the last token and width."""
    n = tl.program_id(0).to(tl.int64)
    t, c = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS), tl.program_id(2) * 32 + tl.arange(0, 32)
    inside = (t < tokens)[:, None] & (c < D)[None, :]
    tile = tl.load(x + n * stride + t[:, None] * D + c[None, :], inside, 0.0).to(tl.float32)
    if tl.load(fits + n) != 0:
        tile = tl.where(inside, tl.exp(2.0 * tile), 0.0)
    tl.store(out + (n * padded + t[:, None]) * PADDED + c[None, :], tile, (t < padded)[:, None])


@triton.jit
def sum_partial_gradients(
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


# --- launches: how the work is cut is a matter of speed alone ---


TOKENS, DEEP, LANES = 64, 32, 32


@dataclass(frozen=True)
class ScoreTileShape:
    """How `scores_forward` is cut.

    Args:
        down: queries of a thread.
        across: keys of a thread.
        share: triples that one reciprocal serves, 2 or 4.
        registers: of a thread, at most.
    """

    down: int = 16
    across: int = 2
    share: int = 4
    warps: int = 4
    registers: int | None = 128

    @property
    def high(self) -> int:
        return self.down * self.warps

    @property
    def wide(self) -> int:
        return self.across * LANES

    def fit(self, queries: int, keys: int) -> "ScoreTileShape":
        """Not so large that most of a tile would be empty."""
        shape = self
        while shape.warps > 1 and shape.high >= 2 * queries:
            shape = replace(shape, warps=shape.warps // 2)
        while shape.across > 1 and (shape.wide >= 2 * keys or shape.across >= shape.warps):
            shape = replace(shape, across=shape.across // 2)
        return shape


@dataclass(frozen=True)
class GradientTileShape:
    """How `scores_backward` is cut.

    Args:
        pairs: pairs of keys of a thread.
        deep: widths of a thread.
        chunk: queries of a turn.
        alone: whether every other query shares no reciprocals.
        registers: of a thread, at most.
        together: warps that fill the machine. Programs with the same widths need a sum each: the more keys a program
            has, the less memory.
        ahead: whether g is fetched into the cache a turn ahead.
    """

    pairs: int = 8
    deep: int = 2
    warps: int = 16
    chunk: int = 16
    alone: bool = True
    registers: int | None = 128
    together: int = 2048
    ahead: bool = True

    @property
    def high(self) -> int:
        return self.chunk * self.warps

    @property
    def wide(self) -> int:
        return 2 * self.pairs * self.warps

    def fit(self, queries: int, keys: int) -> "GradientTileShape":
        shape = self
        while shape.warps > 1 and (shape.wide >= 2 * keys or shape.high >= 2 * queries):
            shape = replace(shape, warps=shape.warps // 2)
        while shape.pairs > 4 and shape.wide >= 2 * keys:
            shape = replace(shape, pairs=shape.pairs // 2)
        return shape


@dataclass(frozen=True)
class AdditiveTileShapes:
    scoring: ScoreTileShape = ScoreTileShape()
    gradients: GradientTileShape = GradientTileShape()


@dataclass(frozen=True, eq=False)
class TritonAdditive(AdditiveEngine):
    """The kernels on one call's tensors, batch and heads side by side."""

    a: Float[Tensor, "n i d"]
    b: Float[Tensor, "n j d"]
    v: Float[Tensor, "h d"]
    limits: "ExponentLimits"
    shape: AdditiveTileShapes

    @staticmethod
    def of(
        a: Tensor,
        b: Tensor,
        v: Tensor,
        *,
        shape: AdditiveTileShapes = AdditiveTileShapes(),
        limits: "ExponentLimits | None" = None,
    ) -> "TritonAdditive":
        queries, keys = a.shape[2], b.shape[2]
        a, b = (rearrange(x, "b h t d -> (b h) t d").contiguous() for x in (a, b))
        v = v.float().contiguous()
        fitted = AdditiveTileShapes(shape.scoring.fit(queries, keys), shape.gradients.fit(queries, keys))
        return TritonAdditive(a, b, v, limits or ExponentLimits.of(a, b, v), fitted)

    def rebuild(self, pairs_of):
        return partial(pairs_of, limits=self.limits)

    @property
    def heads(self) -> int:
        return len(self.v)

    @cached_property
    def keys(self) -> Int[Tensor, "n pairs padded"]:
        return self.prepare(self.b, self.shape.scoring.wide, fold=False)

    def prepare(self, x: Float[Tensor, "n t d"], tile: int, *, fold: bool) -> Int[Tensor, "n pairs padded"]:
        (n, tokens, d), pairs = x.shape, self.limits.ones.shape[1] // 2
        padded = whole(tokens, tile)
        out = torch.empty(n, pairs, padded, dtype=torch.int64, device=x.device)
        scores_exponentials[n, parts(padded, TOKENS), parts(pairs, DEEP // 2)](
            *(x, self.limits.fits, self.limits.ones, out, x.stride(0), tokens, d, padded),
            **options(PAIRS=pairs, FOLD=fold, TOKENS=TOKENS, DEEP=DEEP // 2),
        )
        return out

    def live_tiles(self, rows: slice, visible: Visible, tile: tuple[int, int]) -> Int[Tensor, "*tiles"]:
        """Which tiles someone sees, found on the device; not looked up if all see everything."""
        if visible is None:
            return self.limits.fits
        (high, wide), n = tile, len(self.a)
        filled = pad(visible, (0, -self.b.shape[1] % wide, 0, -(rows.stop - rows.start) % high))
        some = rearrange(filled, "b h (y s) (x t) -> b h y x s t", s=high, t=wide).any(-1).any(-1)
        some = some.expand(n // self.heads, self.heads, -1, -1)
        return rearrange(some, "b h y x -> (b h) y x").to(torch.int32).contiguous()

    def scores(self, rows, visible):
        shape, (n, wide, d), high = self.shape.scoring, self.b.shape, rows.stop - rows.start
        a = self.prepare(self.a[:, rows], shape.high, fold=True)
        s = torch.empty(n, high, wide, dtype=torch.float32, device=a.device)
        scores_forward[n, parts(high, shape.high), parts(wide, shape.wide)](
            *(a, self.keys, self.v, self.limits.ones.view(torch.int64), self.limits.factors, self.limits.fits),
            *(self.live_tiles(rows, visible, (shape.high, shape.wide)), s),
            *(self.heads, high, wide, a.shape[2], self.keys.shape[2], 1),
            **options(D=d, PAIRS=a.shape[1], DOWN=shape.down, ACROSS=shape.across, SHARE=shape.share),
            **loops(shape, some=visible is not None),
        )
        return rearrange(s, "(b h) i j -> b h i j", h=self.heads)

    def weigh(self, s, visible, out):
        wide = s.shape[3]
        softmax_forward[s.shape[2], len(self.a)](
            *(s, out, s.shape[2], wide, self.a.shape[1] * wide), **options(WIDE=across(wide))
        )

    def score_gradients(self, p, upstream):
        n, (_, _, high, wide) = len(self.a), p.shape
        g = torch.empty(upstream.shape, dtype=torch.float32, device=p.device)
        stride = (high if p.is_contiguous() else self.a.shape[1]) * wide
        softmax_backward[high, n](p, upstream.contiguous(), g, high, wide, stride, **options(WIDE=across(wide)))
        return g

    def gradients(self, bands):
        shape, (n, keys, d) = self.shape.gradients, self.b.shape
        padded, wide = whole(d, LANES * shape.deep), whole(keys, shape.wide)
        blocks, tiles = padded // (LANES * shape.deep), max(1, wide // shape.wide)
        each = parts(tiles, max(1, min(tiles, shape.together // (n * blocks * shape.warps))))
        split = parts(tiles, each)  # so that no part is empty: nobody would write its sums
        empty, zeros = (partial(make, dtype=torch.float32, device=self.b.device) for make in (torch.empty, torch.zeros))
        of_keys, sums = zeros(n, wide, padded), zeros(split, n, padded)
        da = torch.empty_like(self.a) if keys else torch.zeros_like(self.a)
        for rows, band, visible in bands:
            high = rows.stop - rows.start
            g = pad_to_tiles(rearrange(band, "b h i j -> (b h) i j"), shape.high, shape.wide)
            of_rows = (empty if visible is None else zeros)(split, n, g.shape[1], padded)
            scores_backward[n, blocks, split](
                *(self.exponents(rows, g.shape[1], padded), self.b, g.view(torch.int64), self.limits.fits),
                *(self.live_tiles(rows, visible, (shape.high, shape.wide)), of_rows, of_keys, sums),
                *(g.shape[1], keys, wide, each, 1),
                **options(D=d, PADDED=padded, PAIRS=shape.pairs, DEPTH=shape.deep, CHUNK=shape.chunk),
                **options(ALONE=shape.alone, AHEAD=shape.ahead),
                **loops(shape, some=visible is not None),
            )
            del g, band  # before the sums are finished, and the next band takes as much
            self.finish(of_rows, da[:, rows], high)
            del of_rows
        db = torch.empty_like(self.b)
        self.finish(of_keys[None], db, keys)
        dv = rearrange(sums, "s (b h) d -> s b h d", h=self.heads).sum((0, 1))[:, :d]
        da, db = (rearrange(x, "(b h) t d -> b h t d", h=self.heads) for x in (da, db))
        return da, db, dv.mul_(-2)

    def exponents(self, rows: slice, high: int, padded: int) -> Float[Tensor, "n high padded"]:
        x = self.a[:, rows]
        out = torch.empty(len(x), high, padded, dtype=torch.float32, device=x.device)
        backward_exponentials[len(x), parts(high, TOKENS), padded // LANES](
            *(x, self.limits.fits, out, x.stride(0), x.shape[1], high),
            **options(D=x.shape[2], PADDED=padded, TOKENS=TOKENS),
        )
        return out

    def finish(self, sums: Float[Tensor, "s n padded deep"], out: Float[Tensor, "n t d"], tokens: int) -> None:
        count, n, high, padded = sums.shape
        sum_partial_gradients[n, parts(tokens, TOKENS), padded // LANES](
            *(sums, self.v, out, self.heads, count, high, tokens, out.stride(0)),
            **options(D=out.shape[2], PADDED=padded, TOKENS=TOKENS),
        )


@dataclass(frozen=True, eq=False)
class ExponentLimits:
    """For each head: do its numbers allow the short way, and what that way needs of v."""

    fits: Int[Tensor, "n"]
    ones: Float[Tensor, "n padded"]
    factors: Float[Tensor, "n"]

    @staticmethod
    def of(a: Float[Tensor, "n i d"], b: Float[Tensor, "n j d"], v: Float[Tensor, "h d"]) -> "ExponentLimits":
        (n, queries, d), keys, padded = a.shape, b.shape[1], whole(a.shape[2], 4)
        blocks = parts(padded, DEEP)
        ones, factors = (torch.empty(size, dtype=torch.float32, device=a.device) for size in ((n, padded), (n,)))
        if not a.numel() or not b.numel():
            return ExponentLimits(torch.ones(n, dtype=torch.int32, device=a.device), ones, factors)
        fits = torch.empty(n, blocks, dtype=torch.int32, device=a.device)
        exponent_limits[n, blocks](
            *(a, b, v, fits, ones, factors, len(v), queries, keys, d),
            **options(PADDED=padded, WHOLE=int(triton.next_power_of_2(d)), TOKENS=256, DEEP=DEEP),
        )
        return ExponentLimits(fits.amin(1), ones, factors)


def options(**constants: int) -> dict[str, Any]:
    """A kernel's constants."""
    return constants


def loops(shape: ScoreTileShape | GradientTileShape, *, some: bool) -> dict[str, Any]:
    """Constants of the two long loops and compiler options; without products of matrices there is no pipeline."""
    known = options(WARPS=shape.warps, SOME=some, APPROXIMATE=is_compiled(), num_warps=shape.warps, num_stages=1)
    return known if shape.registers is None else known | options(maxnreg=shape.registers)


def is_compiled() -> bool:
    """Is this the compiler, which knows the machine's instructions, or the interpreter, which does not?"""
    return isinstance(scores_forward, triton.JITFunction)


def pad_to_tiles(g: Float[Tensor, "n i j"], high: int, wide: int) -> Float[Tensor, "n high wide"]:
    """With zeros up to whole tiles."""
    missing = (0, -g.shape[2] % wide, 0, -g.shape[1] % high)
    return (pad(g, missing) if any(missing) else g).contiguous()


def across(wide: int) -> int:
    """How much of a row is taken at once."""
    return min(4096, int(triton.next_power_of_2(wide)))


def parts(length: int, size: int) -> int:
    return -(-length // size)


def whole(length: int, size: int) -> int:
    return parts(length, size) * size
