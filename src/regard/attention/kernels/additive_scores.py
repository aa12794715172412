"""Bahdanau's scores as Triton kernels: a, b and v in, −2 Σ_d v_d / (1 + e^{2a} e^{2b}) for every query and key out.

With x = 1 + e^{2a} e^{2b}, tanh(a + b) = 1 − 2/x: no tanh. Reciprocals are the scarcer unit (16 a cycle and
multiprocessor, against 128 multiply-adds), so four triples share one. Dividing e^{2a} and the 1 by v beforehand leaves
three instructions a triple: with y = x/v, that is one multiply-add, and

    1/y₀ + 1/y₁ + … = num/den,        num ← num · y + den,   den ← den · y.

Range. v is measured against the head's largest, and kept from falling below 2⁻²⁰ of it: that moves a score by less than
rounding the largest term of a sum of that many does. y is scaled by 2⁻³¹ and den, a product of four, must stay within
2⁻¹²⁴ and 2¹²⁶: so a + b may reach 21 where v is largest and 14 where it is least. e^{2a} and its multiples are normal
while |a| ≤ 30. A head whose numbers do not allow that takes r = 1/(1 + e^{2(a+b)}), right for all numbers, which costs
an exponential and a division a triple. The device decides, so nobody waits.

Two neighbouring widths lie side by side as one word of 64 bits, tokens next to each other. A word fills an even
register and the odd one after it, and three operands that are all even or all odd take a cycle more: so a word of keys
has its odd width first, or every y would (91 of 441 instructions did, 12 do). Every thread of `row_scores` owns a
rectangle of queries and keys, a warp's threads different keys. Triton lays a tile out like its first load. An index
times `unit`, which is 1 without the compiler knowing, makes that threads along the first axis, warps along the second,
and the rest within a thread.
"""

import triton
import triton.language as tl

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
def row_limits(
    a,
    b,
    v,
    fits,
    ones,
    factors,
    heads,
    queries,
    keys,
    d,
    PADDED: tl.constexpr,
    WHOLE: tl.constexpr,
    TOKENS: tl.constexpr,
    DEEP: tl.constexpr,
):
    """For some widths of a head: do they fit, 1/v with the scale, and what turns sums of 1/y into scores."""
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
def row_prepare(
    x,
    fits,
    ones,
    out,
    stride,
    tokens,
    d,
    padded,
    PAIRS: tl.constexpr,
    FOLD: tl.constexpr,
    TOKENS: tl.constexpr,
    DEEP: tl.constexpr,
):
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
def row_scores(
    a,
    b,
    v,
    ones,
    factors,
    fits,
    live,
    out,
    heads,
    high,
    wide,
    here,
    there,
    unit,
    D: tl.constexpr,
    PAIRS: tl.constexpr,
    WARPS: tl.constexpr,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    SHARE: tl.constexpr,
    SOME: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
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
