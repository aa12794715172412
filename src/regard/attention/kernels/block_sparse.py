"""Block-sparse softmax attention as Triton kernels: tiles that a pattern sees, forward and backward pass.

With s = scale · q kᵀ and P = softmax(s) over the visible keys, o = P v. In the forward pass a program holds one tile of
queries and goes over the tiles of keys it sees, with a running maximum and sum (Milakov & Gimelshein 2018). Kept are o
and L = log₂ Σ 2^s (scores are taken in base 2: scale holds log₂ e). In the backward pass (Dao 2023, alg. 2), with
D_i = ō_i·o_i,

    P = 2^(s − L),   dv = Pᵀ ō,   dP = ō vᵀ,   dS = P ∘ (dP − D),   dq = scale dS k,   dk = scale dSᵀ q

by two kernels, one per tile of queries (dq, which also computes D) and one per tile of keys (dk, dv): 7 products of
tiles instead of 5, but no two programs write to one address, so gradients are the same every time.

A bias −m |i − j| with a slope m for each head (ALiBi) costs one multiply-add a score: where no key is ahead of its
query, −m (i − j) = m (j − i₀) − m (i − i₀), of which the first part is a vector of the tile's keys and the second joins
L. It also makes far keys negligible: with B ≥ |s|, all keys further away than R = (2B + log n + 30 log 2) / m weigh
together less than a rounding of the row's sum. R is found on the device (`negligible_from`), and no tile beyond it is
visited. A soft cap takes t = tanh(s / c): s becomes c t, and P in dS is multiplied by 1 − t². Capped scores need no
running maximum where 2^c neither overflows nor vanishes (BOUNDED); with tanh and 2^s for each score the special
function units are what is waited for, so half of 2^s is left to others (`exp2_by_halves`).

Dropout multiplies P by m, which is 0 or 1/(1 − rate) by a hash of a weight's index (`ops/dropout_triton.py`):
o = (P ∘ m) v, dv = (P ∘ m)ᵀ ō, dP = ō vᵀ ∘ m, and the rest as it stands, D included, since ō·o = Σ_j P_ij dP_ij all
the same.

An unmasked tile is seen whole; only at the edge of a band, of a padded sequence or of a document is a mask made, in
registers, from i − j, lengths and segment ids, or looked up among the listed ones. A row that sees nothing has L = +∞,
so its P is 0 in both passes; so have rows past the last query. Rows past an end repeat the last row there is (or are 0,
by the bulk copy engine), which needs no mask to load; they are hidden wherever it matters.

For packed documents two more kernels compute, from segment ids, which tokens of the other side each tile can attend
to, by the equations of `segment_reach` in `backends/block_sparse.py`. Two launches, and nobody waits: cheap enough to
do in every call, so that nothing that follows from a batch's data is ever kept.

Time grows with the visible tiles, memory with the tokens: the inputs, the output and one number per query are kept for
the backward pass. Another length compiles nothing anew.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.attention.backends.block_sparse import Band, BlockSparseTiles, TileLists
from regard.ops.dropout_triton import first_counters, weight_keep_mask


@triton.jit
def program_tile(n, OWN: tl.constexpr, LISTED: tl.constexpr, BACKWARDS: tl.constexpr):
    """Which tile of which head a program has. What takes longest should begin first.

    In a band that is causal the last queries see most, and the first keys are seen by most; in lists the first tokens
    may be global, so they come before any others, of all heads.
    """
    tiles, number = tl.cdiv(n, OWN), tl.program_id(0)
    if LISTED:
        heads = tl.num_programs(0) // tiles
        later, others = tl.maximum(number - heads, 0), tl.maximum(tiles - 1, 1)
        tile = tl.where(number < heads, 0, 1 + later % others)
        at = tl.where(number < heads, number, later // others)
    else:
        tile, at = number % tiles, number // tiles
        if BACKWARDS:
            tile = tiles - 1 - tile
    return tile, at


@triton.jit
def load_rows(
    x, b, h, x_b, x_h, x_t, first, end,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, WHOLE: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    """A tile of x from row `first` on; a tile that is whole needs no care, nor does what the copy engine brings."""
    if BULK:
        tile = tl.reshape(x.load([tl.cast(b, tl.int32), tl.cast(h, tl.int32), first, 0]), [ROWS, PADDED])
    else:
        r, c = tl.arange(0, ROWS), tl.arange(0, PADDED)
        if not WHOLE:
            r = tl.minimum(r, end - 1 - first)
        spots = x + b * x_b + h * x_h + tl.cast(first, tl.int64) * x_t + r[:, None] * x_t + c[None, :]
        tile = tl.load(spots) if WIDTH == PADDED else tl.load(spots, mask=(c < WIDTH)[None, :], other=0.0)
    return tile


@triton.jit
def store_rows(x, first, stride, end, tile, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    r, c = tl.arange(0, ROWS), tl.arange(0, PADDED)
    spots = x + tl.cast(first, tl.int64) * stride + r[:, None] * stride + c[None, :]
    tl.store(spots, tile.to(x.dtype.element_ty), mask=(first + r < end)[:, None] & (c < WIDTH)[None, :])


@triton.jit
def key_count(lengths, element, stride, n_k):
    """How many keys the batch element has."""
    end = n_k
    if lengths is not None:
        end = tl.minimum(end, tl.load(lengths + element * stride).to(tl.int32))
    return end


@triton.jit
def in_range(distance, count):
    """0 ≤ distance < count in one comparison: below 0 an unsigned number is larger than any count."""
    return tl.cast(distance, tl.uint32, bitcast=True) < tl.cast(count, tl.uint32, bitcast=True)


@triton.jit
def visible(seen, i, j, n_q, n_k, q_names, k_names, masks, kind, SIZE: tl.constexpr):
    """Who sees whom in one tile, of those that the band shows; i and j broadcast, either way round."""
    if masks is not None:
        spots = masks + tl.cast(tl.maximum(kind, 0), tl.int64) * (SIZE * SIZE) + (i % SIZE) * SIZE + j % SIZE
        seen = seen & ((tl.load(spots) != 0) | (kind < 0))
    if q_names is not None:
        seen = seen & (tl.load(q_names + tl.minimum(i, n_q - 1)) == tl.load(k_names + tl.minimum(j, n_k - 1)))
    return seen


@triton.jit
def tile_run(low, high, sure_low, sure_high, n, reach, TILE: tl.constexpr):
    """Tokens from low to high may be met, from sure_low to sure_high by all: as tiles, cut to n and to `reach`."""
    low, high, sure_low, sure_high = (
        tl.maximum(low, 0),
        tl.minimum(high, n),
        tl.maximum(sure_low, 0),
        tl.minimum(sure_high, n),
    )
    if reach is not None:
        low, high = tl.maximum(low, tl.load(reach)), tl.minimum(high, tl.load(reach + 1))
        sure_low, sure_high = tl.maximum(sure_low, tl.load(reach + 2)), tl.minimum(sure_high, tl.load(reach + 3))
    first = low // TILE
    stop = tl.where(high > low, (high + TILE - 1) // TILE, first)
    sure = tl.minimum(tl.maximum((sure_low + TILE - 1) // TILE, first), stop)
    unsure = tl.maximum(tl.minimum(tl.maximum(sure_high, 0) // TILE, stop), sure)
    return first, stop, sure, unsure


@triton.jit
def listed_run(firsts, tile, OWN: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr):
    row = firsts + tile // (SIZE // OWN)
    first, stop = tl.load(row) * (SIZE // TILE), tl.load(row + 1) * (SIZE // TILE)
    return first, stop, first, first


@triton.jit
def tile_entry(e, columns, kinds, sure, unsure, end, NAMED: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr):
    """Where the e-th tile of a run begins, the number of its mask, and whether it needs any."""
    if columns is None:
        first = e * TILE
        kind = -1
        masked = (e < sure) | (e >= unsure)
    else:
        first = tl.load(columns + e // (SIZE // TILE)) * SIZE + (e % (SIZE // TILE)) * TILE
        kind = tl.load(kinds + e // (SIZE // TILE))
        masked = (kind >= 0) | (first + TILE > end) | NAMED
    return first, kind, masked


@triton.jit
def soft_cap(x, WIDE: tl.constexpr, APPROXIMATE: tl.constexpr):
    """tanh: by exp2, off by 1e-7 at most, or by the machine's own, whose error is a fourth of bfloat16's."""
    if APPROXIMATE:
        found = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)  # noqa: FBT003
    else:
        found = (1.0 - 2.0 / (1.0 + tl.exp2(x * 2.8853900817779268))).to(WIDE)
    return found


@triton.jit
def exp2_by_halves(s, TILE: tl.constexpr):
    """2^s, of every other key without the special function units, of which a multiprocessor has 16 beside 128 others.

    With n = s rounded and f = s − n, 2^s = 2^f 2^n. 2^f is a polynomial on [−½, ½], off by 8e-5 of itself (bfloat16
    rounds by 4e-3). What 1.5 · 2^23 is added to keeps no fraction, and its last bits are n: 127 more, shifted, are the
    exponent of 2^n. Right for −126 ≤ s ≤ 127, and NaN stays NaN. A thread holds pairs of neighbours, so the
    compiler knows which half each of its scores is in, and computes no other.
    """
    shifted = s + (12582912.0 + 127.0)
    f = s - (shifted - (12582912.0 + 127.0))
    power = ((0.05517167 * f + 0.24261114) * f + 0.69326097) * f + 0.99992806
    whole = (shifted.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    return tl.where((tl.arange(0, TILE) % 2 == 0)[None, :], tl.exp2(s), power * whole)


@triton.jit
def in_base_2(s, scale, cap, slopes):
    """Scores in units of log 2; a cap or a bias needed that before."""
    return s * scale if cap is None and slopes is None else s


@triton.jit
def distances(i, j, origin, AHEAD: tl.constexpr, WIDE: tl.constexpr):
    """|i − j|, or where no key is ahead of its query that of the origin alone, whatever the row."""
    return tl.abs(i.to(WIDE) - j.to(WIDE)) if AHEAD else (origin - j).to(WIDE)


@triton.jit
def band_ends(least, most, farthest, at):
    """The band without what weighs nothing in this head."""
    if farthest is not None:
        far = tl.load(farthest + at)
        least, most = tl.maximum(least, -far), tl.minimum(most, far)
    return least, most


@triton.jit
def run_part(part: tl.constexpr, PARTS: tl.constexpr, first, stop, sure, unsure):
    """A run at once, or in three: masked, whole, masked."""
    low, high = first, stop
    if PARTS == 3:
        if part == 0:
            high = sure
        elif part == 1:
            low, high = sure, unsure
        else:
            low = unsure
    return low, high


# --- forward and backward pass ---


# no kernel is compiled anew for another length
UNSPECIALIZED = ["n_q", "n_k", "start", "least", "most", "heads", "length_b", "q_name_b", "k_name_b", "reach_b"]
UNSPECIALIZED += ["list_rows"]
LEVELS = tl.constexpr(2**24)  # of a dropout rate
FILL = tl.constexpr(128)  # numbers per query are kept in whole tiles, so that they load without care


@triton.jit(do_not_specialize=UNSPECIALIZED)
def forward_kernel(
    q, k, v, out, lse,
    q_b, q_h, q_i, k_b, k_g, k_j, v_b, v_g, v_j, o_b, o_h, o_i,
    firsts, columns, kinds, masks, list_rows, lengths, q_names, k_names, reach, length_b, q_name_b, k_name_b, reach_b,
    heads, share, n_q, n_k, start, least, most, scale, cap, slopes, farthest, seed,
    D: tl.constexpr, DD: tl.constexpr, E: tl.constexpr, EE: tl.constexpr, WIDE: tl.constexpr,
    OWN: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, BULK: tl.constexpr,
    PRECISION: tl.constexpr, CUT: tl.constexpr, AHEAD: tl.constexpr, APPROXIMATE: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    tile, at = program_tile(n_q, OWN, columns is not None, 1)  # type: ignore[misc]
    b, h = (at // heads).to(tl.int64), (at % heads).to(tl.int64)
    g = h // share
    i0 = tile * OWN
    i = i0 + tl.arange(0, OWN)
    end = key_count(lengths, b, length_b, n_k)
    if q_names is not None:
        q_names += b * q_name_b
        k_names += b * k_name_b
        reach += b * reach_b + tile * 4
    if columns is None:
        least, most = band_ends(least, most, farthest, at)
        i1 = tl.minimum(i0 + OWN, n_q) - 1 + start
        here = i0 + start
        first, stop, sure, unsure = tile_run(here - most, i1 - least + 1, i1 - most, here - least + 1, end, reach, TILE)
        last = tl.minimum(i + start - least, end - 1)
        count = tl.maximum(last - (i + start - most) + 1, 0)
    else:
        first, stop, sure, unsure = listed_run(firsts + at * list_rows, tile, OWN, TILE, SIZE)
        last = tl.zeros_like(i) + end - 1
        count = tl.zeros_like(i) + end
    q_tile = load_rows(q, b, h, q_b, q_h, q_i, i0, n_q, OWN, D, DD, 0, 0)
    if CUT > 0:
        counters = first_counters(seed, at * n_q + i)[:, None]
    if slopes is not None:
        slope = tl.load(slopes + h)
    top = tl.full([OWN], 0.0 if BOUNDED else -float("inf"), WIDE)
    total = tl.zeros([OWN], WIDE)
    acc = tl.zeros([OWN, EE], WIDE)
    for part in tl.static_range(PARTS):
        low, high = run_part(part, PARTS, first, stop, sure, unsure)  # type: ignore[misc]
        for e in tl.range(low, high):
            j0, kind, masked = tile_entry(e, columns, kinds, sure, unsure, end, q_names is not None, TILE, SIZE)
            k_tile = load_rows(k, b, g, k_b, k_g, k_j, j0, n_k, TILE, D, DD, PARTS == 3 and part == 1, BULK)
            v_tile = load_rows(v, b, g, v_b, v_g, v_j, j0, n_k, TILE, E, EE, PARTS == 3 and part == 1, BULK)
            s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=WIDE)
            j = j0 + tl.arange(0, TILE)
            if cap is not None:
                s = soft_cap(s * (scale / cap), WIDE, APPROXIMATE) * cap
            if slopes is not None:
                away = distances(i[:, None] + start, j[None, :], i0 + start, AHEAD, WIDE)
                s = (s * scale if cap is None else s) - slope * away
            if BOUNDED:
                p = exp2_by_halves(s, TILE) if q_tile.dtype.primitive_bitwidth == 16 else tl.exp2(s)
                if masked if PARTS == 1 else part != 1:
                    seen = in_range(last[:, None] - j[None, :], count[:, None])
                    seen = visible(seen, i[:, None], j[None, :], n_q, n_k, q_names, k_names, masks, kind, SIZE)
                    p = tl.where(seen, p, 0.0)
                total += tl.sum(p, 1)
            else:
                if masked if PARTS == 1 else part != 1:
                    seen = in_range(last[:, None] - j[None, :], count[:, None])
                    seen = visible(seen, i[:, None], j[None, :], n_q, n_k, q_names, k_names, masks, kind, SIZE)
                    s = tl.where(seen, s, -float("inf"))
                new = tl.maximum(top, in_base_2(tl.max(s, 1), scale, cap, slopes))
                finite = tl.where(new == -float("inf"), 0.0, new)
                p = tl.exp2(in_base_2(s, scale, cap, slopes) - finite[:, None])
                shrink = tl.exp2(top - finite)
                total = total * shrink + tl.sum(p, 1)
                acc *= shrink[:, None]
                top = new
            if CUT > 0:
                p = tl.where(weight_keep_mask(seed, counters, (j0 + tl.arange(0, TILE))[None, :], CUT), p, 0.0)
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION, out_dtype=WIDE)
    blind = total == 0.0
    total = tl.where(blind, 1.0, total)
    if CUT > 0:
        acc *= LEVELS / (LEVELS - CUT)
    store_rows(out + b * o_b + h * o_h, i0, o_i, n_q, acc / total[:, None], OWN, E, EE)
    sums = tl.where(blind, float("inf"), top + tl.log2(total))
    if slopes is not None and not AHEAD:
        sums -= slope * (i - i0).to(WIDE)
    tl.store(lse + tl.cast(at, tl.int64) * (tl.cdiv(n_q, FILL) * FILL) + i, sums, mask=i < n_q)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def dq_kernel(
    q, k, v, out, upstream, lse, delta, dq, of_slopes,
    q_b, q_h, q_i, k_b, k_g, k_j, v_b, v_g, v_j, o_b, o_h, o_i, u_b, u_h, u_i, dq_b, dq_h, dq_i,
    firsts, columns, kinds, masks, list_rows, lengths, q_names, k_names, reach, length_b, q_name_b, k_name_b, reach_b,
    heads, share, n_q, n_k, start, least, most, scale, cap, slopes, farthest, unit, seed,
    D: tl.constexpr, DD: tl.constexpr, E: tl.constexpr, EE: tl.constexpr, WIDE: tl.constexpr,
    OWN: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, BULK: tl.constexpr,
    PRECISION: tl.constexpr, CUT: tl.constexpr, AHEAD: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    tile, at = program_tile(n_q, OWN, columns is not None, 1)  # type: ignore[misc]
    b, h = (at // heads).to(tl.int64), (at % heads).to(tl.int64)
    g = h // share
    i0 = tile * OWN
    i = i0 + tl.arange(0, OWN)
    end = key_count(lengths, b, length_b, n_k)
    if q_names is not None:
        q_names += b * q_name_b
        k_names += b * k_name_b
        reach += b * reach_b + tile * 4
    if columns is None:
        least, most = band_ends(least, most, farthest, at)
        i1 = tl.minimum(i0 + OWN, n_q) - 1 + start
        here = i0 + start
        first, stop, sure, unsure = tile_run(here - most, i1 - least + 1, i1 - most, here - least + 1, end, reach, TILE)
        last = tl.minimum(i + start - least, end - 1)
        count = tl.maximum(last - (i + start - most) + 1, 0)
    else:
        first, stop, sure, unsure = listed_run(firsts + at * list_rows, tile, OWN, TILE, SIZE)
        last = tl.zeros_like(i) + end - 1
        count = tl.zeros_like(i) + end
    q_tile = load_rows(q, b, h, q_b, q_h, q_i, i0, n_q, OWN, D, DD, 0, 0)
    o_tile = load_rows(out, b, h, o_b, o_h, o_i, i0, n_q, OWN, E, EE, 0, 0)
    u_tile = load_rows(upstream, b, h, u_b, u_h, u_i, i0, n_q, OWN, E, EE, 0, 0)
    mine = tl.sum(o_tile.to(WIDE) * u_tile.to(WIDE), 1)
    spots = tl.cast(at, tl.int64) * (tl.cdiv(n_q, FILL) * FILL) + i
    tl.store(delta + spots, mine, mask=i < n_q)
    sums = tl.load(lse + spots, mask=i < n_q, other=float("inf"))
    if CUT > 0:
        counters = first_counters(seed, at * n_q + i)[:, None]
    if slopes is not None:
        slope = tl.load(slopes + h)
        if not AHEAD:
            sums += slope * (i - i0).to(WIDE)
    acc = tl.zeros([OWN, DD], WIDE)
    pull = tl.zeros([OWN], WIDE)
    for part in tl.static_range(PARTS):
        low, high = run_part(part, PARTS, first, stop, sure, unsure)  # type: ignore[misc]
        for e in tl.range(low, high):
            j0, kind, masked = tile_entry(e, columns, kinds, sure, unsure, end, q_names is not None, TILE, SIZE)
            k_tile = load_rows(k, b, g, k_b, k_g, k_j, j0, n_k, TILE, D, DD, PARTS == 3 and part == 1, BULK)
            v_tile = load_rows(v, b, g, v_b, v_g, v_j, j0, n_k, TILE, E, EE, PARTS == 3 and part == 1, BULK)
            s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=WIDE)
            j = j0 + tl.arange(0, TILE)
            if cap is not None:
                capped = soft_cap(s * (scale / cap), WIDE, APPROXIMATE)
                s = capped * cap
            if slopes is not None:
                away = distances(i[:, None] + start, j[None, :], i0 + start, AHEAD, WIDE)
                s = (s * scale if cap is None else s) - slope * away
            p = tl.exp2(in_base_2(s, scale, cap, slopes) - sums[:, None])
            if masked if PARTS == 1 else part != 1:
                seen = in_range(last[:, None] - j[None, :], count[:, None])
                seen = visible(seen, i[:, None], j[None, :], n_q, n_k, q_names, k_names, masks, kind, SIZE)
                p = tl.where(seen, p, 0.0)
            p_slope = p if cap is None else p * (1.0 - capped * capped)
            dp = tl.dot(u_tile, tl.trans(v_tile), input_precision=PRECISION, out_dtype=WIDE)
            if CUT > 0:
                kept = weight_keep_mask(seed, counters, (j0 + tl.arange(0, TILE))[None, :], CUT)
                dp = tl.where(kept, dp * (LEVELS / (LEVELS - CUT)), 0.0)
            dp -= mine[:, None]
            if of_slopes is not None:
                pull += tl.sum(p * dp * distances(i[:, None] + start, j[None, :], 0, 1, WIDE), 1)
            acc = tl.dot((p_slope * dp).to(k_tile.dtype), k_tile, acc, input_precision=PRECISION, out_dtype=WIDE)
    store_rows(dq + b * dq_b + h * dq_h, i0, dq_i, n_q, acc * unit, OWN, D, DD)
    if of_slopes is not None:
        tl.store(of_slopes + spots, pull, mask=i < n_q)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def dkv_kernel(
    q, k, v, upstream, lse, delta, dk, dv,
    q_b, q_h, q_i, k_b, k_g, k_j, v_b, v_g, v_j, u_b, u_h, u_i, dk_b, dk_g, dk_j, dv_b, dv_g, dv_j,
    firsts, columns, kinds, masks, list_rows, lengths, q_names, k_names, reach, length_b, q_name_b, k_name_b, reach_b,
    heads, share, n_q, n_k, start, least, most, scale, cap, slopes, farthest, unit, seed,
    D: tl.constexpr, DD: tl.constexpr, E: tl.constexpr, EE: tl.constexpr, WIDE: tl.constexpr,
    OWN: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, BULK: tl.constexpr,
    PRECISION: tl.constexpr, CUT: tl.constexpr, AHEAD: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    groups = heads // share
    tile, at = program_tile(n_k, OWN, columns is not None, 0)  # type: ignore[misc]
    b, g = (at // groups).to(tl.int64), (at % groups).to(tl.int64)
    j0 = tile * OWN
    j = j0 + tl.arange(0, OWN)
    end = key_count(lengths, b, length_b, n_k)
    if q_names is not None:
        q_names += b * q_name_b
        k_names += b * k_name_b
        reach += b * reach_b + tile * 4
    k_tile = load_rows(k, b, g, k_b, k_g, k_j, j0, n_k, OWN, D, DD, 0, 0)
    v_tile = load_rows(v, b, g, v_b, v_g, v_j, j0, n_k, OWN, E, EE, 0, 0)
    k_acc = tl.zeros([OWN, DD], WIDE)
    v_acc = tl.zeros([OWN, EE], WIDE)
    for other in range(share):
        h = g * share + other
        if columns is None:
            # seen by all of a tile that ends before the padding: j0 + most ≥ i and j1 + least ≤ i
            low_end, high_end = band_ends(least, most, farthest, b * heads + h)  # type: ignore[misc]
            j1 = tl.minimum(j0 + OWN, end) - 1
            some, all_from = tl.where(j1 >= j0, n_q, 0), tl.where(j0 + OWN <= end, j1 + low_end - start, n_q)
            low, high = j0 + low_end - start, tl.minimum(j1 + high_end - start + 1, some)
            first, stop, sure, unsure = tile_run(low, high, all_from, j0 + high_end - start + 1, n_q, reach, TILE)
            start_of, count = j + low_end - start, tl.where(j < end, tl.maximum(high_end - low_end + 1, 0), 0)
        else:
            first, stop, sure, unsure = listed_run(firsts + (b * heads + h) * list_rows, tile, OWN, TILE, SIZE)
            start_of, count = tl.zeros_like(j), tl.where(j < end, n_q, 0)
        if slopes is not None:
            slope = tl.load(slopes + h)
        sums_head = (b * heads + h) * (tl.cdiv(n_q, FILL) * FILL)
        for part in tl.static_range(PARTS):
            low, high = run_part(part, PARTS, first, stop, sure, unsure)  # type: ignore[misc]
            for e in tl.range(low, high):
                i0, kind, masked = tile_entry(e, columns, kinds, sure, unsure, n_q, q_names is not None, TILE, SIZE)
                i = i0 + tl.arange(0, TILE)
                spots = sums_head + i
                q_tile = load_rows(q, b, h, q_b, q_h, q_i, i0, n_q, TILE, D, DD, PARTS == 3 and part == 1, BULK)
                u_tile = load_rows(upstream, b, h, u_b, u_h, u_i, i0, n_q, TILE, E, EE, PARTS == 3 and part == 1, BULK)
                s = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION, out_dtype=WIDE)
                shift = tl.load(lse + spots)
                if cap is not None:
                    capped = soft_cap(s * (scale / cap), WIDE, APPROXIMATE)
                    s = capped * cap
                if slopes is not None:
                    away = distances(i[None, :] + start, j[:, None], j0, AHEAD, WIDE)
                    s = (s * scale if cap is None else s) - slope * away
                    if not AHEAD:
                        shift += slope * (i + start - j0).to(WIDE)
                p = tl.exp2(in_base_2(s, scale, cap, slopes) - shift[None, :])
                if (masked | (j0 + OWN > end)) if PARTS == 1 else part != 1:
                    seen = in_range(i[None, :] - start_of[:, None], count[:, None])
                    seen = visible(seen, i[None, :], j[:, None], n_q, n_k, q_names, k_names, masks, kind, SIZE)
                    p = tl.where(seen, p, 0.0)
                p_slope = p if cap is None else p * (1.0 - capped * capped)
                weights = p
                if CUT > 0:
                    kept = weight_keep_mask(
                        seed, first_counters(seed, (b * heads + h) * n_q + i)[None, :], j[:, None], CUT
                    )
                    weights = tl.where(kept, p, 0.0)
                v_acc = tl.dot(weights.to(u_tile.dtype), u_tile, v_acc, input_precision=PRECISION, out_dtype=WIDE)
                dp = tl.dot(v_tile, tl.trans(u_tile), input_precision=PRECISION, out_dtype=WIDE)
                if CUT > 0:
                    dp = tl.where(kept, dp * (LEVELS / (LEVELS - CUT)), 0.0)
                ds = p_slope * (dp - tl.load(delta + spots)[None, :])
                k_acc = tl.dot(ds.to(q_tile.dtype), q_tile, k_acc, input_precision=PRECISION, out_dtype=WIDE)
    if CUT > 0:
        v_acc *= LEVELS / (LEVELS - CUT)
    store_rows(dk + b * dk_b + g * dk_g, j0, dk_j, n_k, k_acc * unit, OWN, D, DD)
    store_rows(dv + b * dv_b + g * dv_g, j0, dv_j, n_k, v_acc, OWN, E, EE)


# --- packed documents ---


SEGMENT_UNSPECIALIZED = ["n", "runs", "step", "own_b", "other_b"]
CHUNK = 256  # runs compared at once


@triton.jit(do_not_specialize=SEGMENT_UNSPECIALIZED)
def run_min_max(names, least, most, n, runs, own_b, SIZE: tl.constexpr):
    """The smallest and the largest name of each run of SIZE tokens."""
    run, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    name = tl.load(names + b * own_b + tl.minimum(run * SIZE + tl.arange(0, SIZE), n - 1)).to(tl.int64)
    tl.store(least + b * runs + run, tl.min(name, 0))
    tl.store(most + b * runs + run, tl.max(name, 0))


@triton.jit(do_not_specialize=SEGMENT_UNSPECIALIZED)
def tile_segment_reach(
    names, least, most, found, n, runs, step, own_b, other_b, SIZE: tl.constexpr, CHUNK: tl.constexpr
):
    tile, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    name = tl.load(names + b * own_b + tl.minimum(tile * SIZE + tl.arange(0, SIZE), n - 1)).to(tl.int64)
    low, high = tl.min(name, 0), tl.max(name, 0)
    first, stop, sure, unsure = runs, 0, 0, runs
    for start in range(0, runs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        inside = at < runs
        lowest = tl.load(least + b * other_b + at, mask=inside, other=0)
        highest = tl.load(most + b * other_b + at, mask=inside, other=0)
        first = tl.minimum(first, tl.min(tl.where(inside & (highest >= low), at, runs), 0))
        stop = tl.maximum(stop, tl.max(tl.where(inside & (lowest <= high), at + 1, 0), 0))
        sure = tl.maximum(sure, tl.max(tl.where(inside & (lowest < low), at + 1, 0), 0))
        unsure = tl.minimum(unsure, tl.min(tl.where(inside & (highest > low), at, runs), 0))
    into = found + (b * tl.num_programs(0) + tile) * 4
    tl.store(into, first * step)
    tl.store(into + 1, stop * step)
    tl.store(into + 2, tl.where(low == high, sure * step, 0))
    tl.store(into + 3, tl.where(low == high, unsure * step, 0))


def segment_reach_kernel(own: Tensor, other: Tensor, size: int, step: int) -> Tensor:
    """As `segment_reach` of the backend, by two kernels; sizes and steps are powers of two."""
    (rows, n), (other_rows, m), batch = own.shape, other.shape, max(len(own), len(other))
    tiles, runs = -(-n // size), -(-m // step)
    of_runs: dict[str, Any] = {"SIZE": step}
    least, most = torch.empty(2, other_rows, runs, dtype=torch.int64, device=own.device)
    run_min_max[runs, other_rows](other, least, most, m, runs, m, **of_runs)
    found = torch.empty(batch, tiles, 4, dtype=torch.int32, device=own.device)
    strides = n if rows > 1 else 0, runs if other_rows > 1 else 0
    sizes: dict[str, Any] = {"SIZE": size, "CHUNK": CHUNK}
    tile_segment_reach[tiles, batch](own, least, most, found, n, runs, step, *strides, **sizes)
    return found


# --- launches, and the autograd function ---


NARROW_BAND = 1536  # keys across: a window of 512 to both sides, and some more


@dataclass(frozen=True)
class SparseTileShape:
    """How one kernel is cut: its own tokens a tile, the other side's, and the compiler options. Speed alone."""

    own: int
    other: int
    warps: int
    stages: int
    parts: int = 1  # 3: masked and whole tiles in loops of their own; 1: one loop with a branch
    bulk: bool = False  # tiles that are streamed come by the bulk copy engine
    registers: int | None = None  # at most so many a thread, for more programs side by side

    def fit(self, tiles: BlockSparseTiles, *streamed: Tensor, dropping: "DropoutSeed | None") -> "SparseTileShape":
        """What these tiles allow: lists are passed over in one loop, in steps no larger than theirs; the copy engine
        wants even rows; and where segment ids or masks are read or hashed, few registers would spill."""
        always, bulk = tiles.static, self.bulk and all(is_aligned(x) for x in streamed)
        if isinstance(always, Band):
            plain = tiles.segment_ids is None and dropping is None
            if bulk == self.bulk and plain:
                return self
            return replace(self, bulk=bulk, registers=self.registers if plain else None)
        own, other = min(self.own, always.size), min(self.other, always.size)
        return replace(self, own=own, other=other, parts=1, bulk=bulk, registers=None)


@dataclass(frozen=True)
class SparseTileShapes:
    """The three kernels: forwards, for dq, and for dk and dv.

    Of a narrow band a large tile sees most keys in vain: half the queries are better then.
    """

    forward: SparseTileShape
    queries: SparseTileShape
    keys: SparseTileShape

    @staticmethod
    def of(
        width: int,
        dtype: torch.dtype,
        across: int = 2**30,
        listed: int | None = None,
        *,
        dropping: bool = False,
        capped: bool = False,
    ) -> "SparseTileShapes":
        """For heads so wide, where a query may see so many keys across, or lists of tiles of this size."""
        if dtype.itemsize > 2:
            small = SparseTileShape(64, 32, 4, 2) if width <= 64 else SparseTileShape(32, 32, 4, 1)
            return SparseTileShapes(small, small, small)
        if width <= 64 and across <= NARROW_BAND:
            return SparseTileShapes(
                SparseTileShape(64, 64, 4, 3, bulk=True),
                SparseTileShape(64, 64, 4, 2, bulk=True),
                SparseTileShape(64, 64, 4, 2, bulk=True, registers=168),
            )
        if width <= 64 and listed == 64:
            streamed = SparseTileShape(64, 64, 4, 3, bulk=True)
            return SparseTileShapes(streamed, streamed, streamed)
        if width <= 64 and capped and not dropping:
            backward = SparseTileShape(64, 64, 4, 3, 3, bulk=True, registers=168)
            return SparseTileShapes(SparseTileShape(64, 128, 4, 2, 3, bulk=True, registers=168), backward, backward)
        if width <= 64:
            return SparseTileShapes(
                SparseTileShape(64, 128, 4, 3, 3, bulk=True),
                SparseTileShape(64, 64, 4, 3, 3, bulk=True, registers=144 if dropping else 168),
                SparseTileShape(64, 64, 4, 3, 3, bulk=True) if dropping else SparseTileShape(64, 128, 4, 2, bulk=True),
            )
        if width <= 128:
            return SparseTileShapes(
                SparseTileShape(128, 64, 8, 3, bulk=True),
                SparseTileShape(128, 64, 8, 2, bulk=True),
                SparseTileShape(64, 64, 8, 2, bulk=True),
            )
        return SparseTileShapes(
            SparseTileShape(64, 32, 8, 2), SparseTileShape(64, 32, 8, 2), SparseTileShape(32, 32, 8, 2)
        )


def block_sparse_attention(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    v: Float[Tensor, "b g j e"],
    tiles: BlockSparseTiles,
    *,
    scale: float,
    dropout: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
    sinks: Float[Tensor, "#h"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    cap: float | None = None,
    shapes: SparseTileShapes | None = None,
) -> Float[Tensor, "b h i e"]:
    """softmax(scale q kᵀ) v over the visible keys; 0 for a query that sees none.

    Args:
        dropout: the rate at which weights are dropped.
        seed: names which; on the device, so that a CUDA graph can draw it. Default: one from torch's generator.
        sinks: of each head, one more score in the denominator.
        slopes: of each head, m in −m |i − j|, which is added to the scores.
        cap: c in c tanh(s / c), which the scores become before that.
    """
    if scale <= 0:
        raise ValueError(f"scale={scale}: the running maximum needs a positive one; put the sign into q")
    listed = tiles.static.size if isinstance(tiles.static, TileLists) else None
    dropping = None
    if cut := min(round(dropout * LEVELS.value), LEVELS.value - 1):
        dropping = DropoutSeed(cut, torch.randint(2**63 - 1, (), device=q.device) if seed is None else seed)
    width, across = max(q.shape[3], v.shape[3]), max_visible_keys(tiles)
    parts = {"dropping": dropping is not None, "capped": cap is not None}
    chosen = shapes or SparseTileShapes.of(width, q.dtype, across, listed, **parts)
    farthest = None if slopes is None else negligible_from(q, k, tiles, slopes, scale, cap)
    call = BlockSparseCall(tiles, scale, chosen, dropping, cap and cap / log(2), farthest)
    out = BlockSparseFunction.apply(*map(contiguous_rows, (q, k, v)), call, sinks, slopes)
    assert isinstance(out, Tensor)
    return out


def max_visible_keys(tiles: BlockSparseTiles) -> int:
    """How many keys a query may see; lists of tiles are as if there were no end."""
    return tiles.static.most - tiles.static.least + 1 if isinstance(tiles.static, Band) else 2**30


def contiguous_rows(x: Tensor) -> Tensor:
    """Each token's numbers side by side; heads and tokens may lie in any order."""
    return x if x.stride(3) == 1 else x.contiguous()


def is_aligned(x: Tensor) -> bool:
    """Does every row begin at a multiple of 16 bytes and fill its tile, as the bulk copy engine likes best?"""
    steps = (step * x.itemsize for step in x.stride()[:3])
    return (
        x.data_ptr() % 16 == 0 and x.shape[3] == padded_width(x.shape[3]) and all(s > 0 and s % 16 == 0 for s in steps)
    )


def streamed_side(shape: SparseTileShape, *tensors: Tensor) -> list[Any]:
    """The tensors of the side that is streamed: as they are, or described to the bulk copy engine."""
    if not shape.bulk:
        return list(tensors)
    blocks = ([1, 1, shape.other, padded_width(x.shape[3])] for x in tensors)
    return [
        TensorDescriptor(x, list(x.shape), list(x.stride()), block) for x, block in zip(tensors, blocks, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class DropoutSeed:
    """How many of 2²⁴ weights are dropped, and the seed that says which."""

    cut: int
    seed: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class BlockSparseCall:
    """What both passes are launched with, besides tensors that may learn."""

    tiles: BlockSparseTiles
    scale: float
    shapes: SparseTileShapes
    dropping: DropoutSeed | None
    cap: float | None  # in units of log 2, as all scores
    farthest: Int[Tensor, "b h"] | None  # beyond this distance keys weigh nothing

    def fit(self, shape: SparseTileShape, *streamed: Tensor) -> SparseTileShape:
        return shape.fit(self.tiles, *streamed, dropping=self.dropping)

    def is_bounded(self, slopes: Tensor | None) -> bool:
        """Can scores be exponentiated as they are? The sum of all keys must be finite too."""
        return self.cap is not None and self.cap <= MAX_EXPONENT and slopes is None

    def common_arguments(self, q: Tensor, k: Tensor, slopes: Tensor | None) -> list[Any]:
        heads, share, tiles = q.shape[1], q.shape[1] // k.shape[1], self.tiles
        ends = (tiles.static.least, tiles.static.most) if isinstance(tiles.static, Band) else (0, 0)
        slopes = None if slopes is None else (slopes.detach() / log(2)).to(accumulation_type(q)).contiguous()
        numbers = [heads, share, q.shape[2], k.shape[2], tiles.start, *ends, self.scale / log(2)]
        return [*numbers, self.cap, slopes, self.farthest]

    def constants(self, q: Tensor, v: Tensor, shape: SparseTileShape) -> dict[str, Any]:
        d, e, static = q.shape[3], v.shape[3], self.tiles.static
        precise = {torch.float32: "tf32x3", torch.float64: "ieee"}
        of_heads = {"D": d, "DD": padded_width(d), "E": e, "EE": padded_width(e)}
        of_numbers = {
            "WIDE": tl.float64 if q.dtype == torch.float64 else tl.float32,
            "PRECISION": precise.get(q.dtype, "tf32"),
            "CUT": 0 if self.dropping is None else self.dropping.cut,
        }
        of_tiles = {"OWN": shape.own, "TILE": shape.other, "PARTS": shape.parts, "BULK": shape.bulk}
        of_tiles |= {"SIZE": static.size if isinstance(static, TileLists) else 1}
        # asked of a bias alone: without one, every band has the same kernels
        of_tiles |= {"AHEAD": self.farthest is None or not isinstance(static, Band) or static.least < 0}
        of_numbers |= {"APPROXIMATE": q.is_cuda and q.dtype.itemsize == 2}  # the interpreter has no such instruction
        compiler_options = {"num_warps": shape.warps, "num_stages": shape.stages, "maxnreg": shape.registers}
        return of_heads | of_numbers | of_tiles | compiler_options


class BlockSparseFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, call: BlockSparseCall, sinks: Tensor | None, slopes: Tensor | None
    ) -> Tensor:
        (batch, heads, n_q, _), n_k = q.shape, k.shape[2]
        out = torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty(batch, heads, n_q, v.shape[3])
        filled = batch, heads, -(-n_q // FILL.value) * FILL.value
        sums = torch.full(filled, torch.inf, dtype=accumulation_type(q), device=q.device)
        ctx.call = call
        # a batch's own data are saved as well, so that torch notices if they are written to before the backward
        ctx.save_for_backward(q, k, v, out, sums, sinks, slopes, *call.tiles.data())
        if not out.numel() or not n_k:
            return out.zero_()
        shape = call.fit(call.shapes.forward, k, v)
        arguments: list[Any] = [
            q,
            *streamed_side(shape, k, v),
            out,
            sums,
            *strides(q, k, v, out),
            *tile_arguments(call.tiles, shape, of_keys=False),
        ]
        arguments += [*call.common_arguments(q, k, slopes), call.dropping and call.dropping.seed]
        constants = call.constants(q, v, shape) | {"BOUNDED": call.is_bounded(slopes)}
        forward_kernel[blocks(n_q, shape) * batch * heads,](*arguments, **constants)
        if sinks is not None:  # one more score in each sum, which the backward pass then divides by
            total = torch.logaddexp2(sums, sinks.to(sums)[:, None] / log(2))
            kept = torch.where(sums == torch.inf, 0.0, (sums - total).exp2())[..., :n_q, None]
            out.mul_(kept.to(out.dtype))
            sums.copy_(total)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):  # type: ignore[override]
        (q, k, v, out, sums, sinks, slopes, *_), call = ctx.saved_tensors, ctx.call
        (batch, heads, n_q, _), (groups, n_k) = q.shape, k.shape[1:3]
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        if not out.numel() or not n_k:
            learned = (None if x is None else torch.zeros_like(x) for x in (sinks, slopes))
            return dq.zero_(), dk.zero_(), dv.zero_(), None, *learned
        upstream, delta = contiguous_rows(upstream), torch.zeros_like(sums)
        pulls = torch.zeros_like(sums) if ctx.needs_input_grad[5] else None
        common = [*call.common_arguments(q, k, slopes), call.scale, call.dropping and call.dropping.seed]
        shape = call.fit(call.shapes.queries, k, v)
        arguments: list[Any] = [
            q,
            *streamed_side(shape, k, v),
            out,
            upstream,
            sums,
            delta,
            dq,
            pulls,
            *strides(q, k, v, out, upstream, dq),
        ]
        arguments += [*tile_arguments(call.tiles, shape, of_keys=False), *common]
        dq_kernel[blocks(n_q, shape) * batch * heads,](*arguments, **call.constants(q, v, shape))
        shape = call.fit(call.shapes.keys, q, upstream)
        q_streamed, upstream_streamed = streamed_side(shape, q, upstream)
        arguments = [q_streamed, k, v, upstream_streamed, sums, delta, dk, dv, *strides(q, k, v, upstream, dk, dv)]
        arguments += [*tile_arguments(call.tiles, shape, of_keys=True), *common]
        dkv_kernel[blocks(n_k, shape) * batch * groups,](*arguments, **call.constants(q, v, shape))
        d_sinks = d_slopes = None
        if sinks is not None:  # their values are 0: ∂L/∂sink = -Σ_i weight_i (ō_i · o_i)
            weights = (sinks.to(sums)[:, None] / log(2) - sums).exp2()
            d_sinks = -(weights * delta).sum((0, 2)).to(sinks.dtype)
            d_sinks = d_sinks if len(sinks) > 1 else d_sinks.sum(0, keepdim=True)
        if pulls is not None:
            d_slopes = -pulls.sum((0, 2)).to(slopes.dtype)
        return dq, dk, dv, None, d_sinks, d_slopes


MAX_EXPONENT = 80.0  # with 2^40 keys or fewer, 2^80 and their sum are float32 numbers, and 2^-80 is a normal one
NEGLIGIBLE = 30 * log(2)  # what all far keys weigh together is below this many bits of a row's sum


def negligible_from(
    q: Tensor, k: Tensor, tiles: BlockSparseTiles, slopes: Tensor, scale: float, cap: float | None
) -> Int[Tensor, "b h"] | None:
    """The distance from which on keys weigh nothing, in each head, on the device; None where nothing can be said.

    A score is at most B = scale max|q| max|k|, and that of a query's own key, which must be visible, at least −B. So n
    keys no nearer than R weigh together at most n exp(2B − m R) of the row's sum.
    """
    static = tiles.static
    own = isinstance(static, Band) and static.least <= 0 <= static.most and tiles.start + q.shape[2] <= k.shape[2]
    if not own or tiles.lengths is not None or tiles.segment_ids is not None:
        return None
    with torch.no_grad():
        longest = [torch.linalg.vector_norm(x, dim=-1, dtype=accumulation_type(x)).amax(-1) for x in (q, k)]
        bound = scale * longest[0] * longest[1].repeat_interleave(q.shape[1] // k.shape[1], 1)
        bound = bound if cap is None else bound.clamp(max=cap)
        reach = (2 * bound + log(k.shape[2]) + NEGLIGIBLE) / slopes.clamp(min=0)
        return reach.nan_to_num(nan=torch.inf).clamp(max=2.0**30).ceil().to(torch.int32).contiguous()


def blocks(tokens: int, shape: SparseTileShape) -> int:
    return -(-tokens // shape.own)


def padded_width(width: int) -> int:
    """What products of matrices want: a power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def strides(*tensors: Tensor) -> list[Any]:
    return [x.stride(axis) for x in tensors for axis in range(3)]


def accumulation_type(q: Tensor) -> torch.dtype:
    """What sums are kept in; float64 only where the interpreter needs it."""
    return torch.promote_types(q.dtype, torch.float32)


def tile_arguments(tiles: BlockSparseTiles, shape: SparseTileShape, *, of_keys: bool) -> list[Any]:
    """Which tiles, and a batch's own data; None for what this pattern does not hold."""
    always, lengths, names = tiles.static, tiles.lengths, tiles.segment_ids
    found: list[Any] = [None, None, None, None, 0]
    if isinstance(always, TileLists):
        rows = always.of_keys if of_keys else always.of_queries
        # without a mask there is no memory to read one from, not even for the tiles at the edges
        found = [rows.firsts, rows.columns, rows.masks, always.masks if len(always.masks) else None, rows.of_a_head]
    sizes = shape.own, shape.other
    reach = None if names is None else names.reached(*sizes) if of_keys else names.reach(*sizes)
    data = lengths, names and names.queries, names and names.keys, reach
    return [*found, *data, *(0 if x is None or len(x) == 1 else x.stride(0) for x in data)]
