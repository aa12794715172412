"""Block-sparse softmax attention as Triton kernels: q, k, v and tiles in; the output, then the gradients, out.

With s = scale · q kᵀ and P = softmax(s) over the visible keys, o = P v. Going forwards a program holds one tile of
queries and walks over the tiles of keys it sees, with a running maximum and sum (Milakov & Gimelshein 2018). Kept are o
and L = log₂ Σ 2^s (scores are taken in base 2: scale holds log₂ e). Going backwards (Dao 2023, alg. 2), with
D_i = ō_i·o_i,

    P = 2^(s − L),   dv = Pᵀ ō,   dP = ō vᵀ,   dS = P ∘ (dP − D),   dq = scale dS k,   dk = scale dSᵀ q

by two kernels, one per tile of queries (dq, which also finds D) and one per tile of keys (dk, dv): 7 products of tiles
instead of 5, but no two programs write to one place, so gradients are the same every time.

Dropout multiplies P by m, which is 0 or 1/(1 − rate) by a hash of a weight's place (`dropout_hash`): o = (P ∘ m) v,
dv = (P ∘ m)ᵀ ō, dP = ō vᵀ ∘ m, and the rest as it stands, D included, since ō·o = Σ_j P_ij dP_ij all the same.

A tile that is seen whole runs without any mask; only at the edge of a band, of a sentence or of a text is one made, in
registers, from i − j, lengths and names, or looked up among the listed ones (`sparse_walk`). A row that sees nothing
has L = +∞, so its P is 0 in both passes; so have rows past the last query.
"""

import triton
import triton.language as tl

from regard.attention.kernels.dropout_hash import first_places, left
from regard.attention.kernels.sparse_walk import (
    among,
    entry,
    keys_of,
    listed_run,
    piece,
    place_of,
    put_rows,
    rows_of,
    run_of,
    visible,
)

# no kernel is compiled anew for another length
UNFIXED = ["n_q", "n_k", "start", "least", "most", "heads", "length_b", "q_name_b", "k_name_b", "reach_b"]
LEVELS = tl.constexpr(2**24)  # of a dropout rate
FILL = tl.constexpr(128)  # numbers per query are kept in whole tiles, so that they load without care


@triton.jit(do_not_specialize=UNFIXED)
def row_forward(
    q, k, v, out, lse,
    q_b, q_h, q_i, k_b, k_g, k_j, v_b, v_g, v_j, o_b, o_h, o_i,
    firsts, columns, kinds, masks, lengths, q_names, k_names, reach, length_b, q_name_b, k_name_b, reach_b,
    heads, share, n_q, n_k, start, least, most, scale, seed,
    D: tl.constexpr, DD: tl.constexpr, E: tl.constexpr, EE: tl.constexpr, WIDE: tl.constexpr,
    OWN: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, BULK: tl.constexpr,
    PRECISION: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    tile, at = place_of(n_q, OWN, columns is not None, 1)  # type: ignore[misc]
    b, h = (at // heads).to(tl.int64), (at % heads).to(tl.int64)
    g = h // share
    i0 = tile * OWN
    i = i0 + tl.arange(0, OWN)
    end = keys_of(lengths, b, length_b, n_k)
    if q_names is not None:
        q_names += b * q_name_b
        k_names += b * k_name_b
        reach += b * reach_b + tile * 4
    if columns is None:
        i1 = tl.minimum(i0 + OWN, n_q) - 1 + start
        here = i0 + start
        first, stop, sure, unsure = run_of(here - most, i1 - least + 1, i1 - most, here - least + 1, end, reach, TILE)
        last = tl.minimum(i + start - least, end - 1)
        count = tl.maximum(last - (i + start - most) + 1, 0)
    else:
        first, stop, sure, unsure = listed_run(firsts, tile, OWN, TILE, SIZE)
        last = tl.zeros_like(i) + end - 1
        count = tl.zeros_like(i) + end
    q_tile = rows_of(q, b, h, q_b, q_h, q_i, i0, n_q, OWN, D, DD, 0, 0)
    if CUT > 0:
        places = first_places(seed, at * n_q + i)[:, None]
    top = tl.full([OWN], -float("inf"), WIDE)
    total = tl.zeros([OWN], WIDE)
    acc = tl.zeros([OWN, EE], WIDE)
    for part in tl.static_range(PARTS):
        low, high = piece(part, PARTS, first, stop, sure, unsure)  # type: ignore[misc]
        for e in tl.range(low, high):
            j0, kind, masked = entry(e, columns, kinds, sure, unsure, end, q_names is not None, TILE, SIZE)
            k_tile = rows_of(k, b, g, k_b, k_g, k_j, j0, n_k, TILE, D, DD, PARTS == 3 and part == 1, BULK)
            v_tile = rows_of(v, b, g, v_b, v_g, v_j, j0, n_k, TILE, E, EE, PARTS == 3 and part == 1, BULK)
            s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=WIDE)
            if masked if PARTS == 1 else part != 1:
                j = j0 + tl.arange(0, TILE)
                seen = among(last[:, None] - j[None, :], count[:, None])
                seen = visible(seen, i[:, None], j[None, :], n_q, n_k, q_names, k_names, masks, kind, SIZE)
                s = tl.where(seen, s, -float("inf"))
            new = tl.maximum(top, tl.max(s, 1) * scale)
            finite = tl.where(new == -float("inf"), 0.0, new)
            p = tl.exp2(s * scale - finite[:, None])
            shrink = tl.exp2(top - finite)
            total = total * shrink + tl.sum(p, 1)
            if CUT > 0:
                p = tl.where(left(seed, places, (j0 + tl.arange(0, TILE))[None, :], CUT), p, 0.0)
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * shrink[:, None], input_precision=PRECISION, out_dtype=WIDE)
            top = new
    blind = total == 0.0
    total = tl.where(blind, 1.0, total)
    if CUT > 0:
        acc *= LEVELS / (LEVELS - CUT)
    put_rows(out + b * o_b + h * o_h, i0, o_i, n_q, acc / total[:, None], OWN, E, EE)
    sums = tl.where(blind, float("inf"), top + tl.log2(total))
    tl.store(lse + tl.cast(at, tl.int64) * (tl.cdiv(n_q, FILL) * FILL) + i, sums, mask=i < n_q)


@triton.jit(do_not_specialize=UNFIXED)
def row_queries(
    q, k, v, out, upstream, lse, delta, dq,
    q_b, q_h, q_i, k_b, k_g, k_j, v_b, v_g, v_j, o_b, o_h, o_i, u_b, u_h, u_i, dq_b, dq_h, dq_i,
    firsts, columns, kinds, masks, lengths, q_names, k_names, reach, length_b, q_name_b, k_name_b, reach_b,
    heads, share, n_q, n_k, start, least, most, scale, slope, seed,
    D: tl.constexpr, DD: tl.constexpr, E: tl.constexpr, EE: tl.constexpr, WIDE: tl.constexpr,
    OWN: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, BULK: tl.constexpr,
    PRECISION: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    tile, at = place_of(n_q, OWN, columns is not None, 1)  # type: ignore[misc]
    b, h = (at // heads).to(tl.int64), (at % heads).to(tl.int64)
    g = h // share
    i0 = tile * OWN
    i = i0 + tl.arange(0, OWN)
    end = keys_of(lengths, b, length_b, n_k)
    if q_names is not None:
        q_names += b * q_name_b
        k_names += b * k_name_b
        reach += b * reach_b + tile * 4
    if columns is None:
        i1 = tl.minimum(i0 + OWN, n_q) - 1 + start
        here = i0 + start
        first, stop, sure, unsure = run_of(here - most, i1 - least + 1, i1 - most, here - least + 1, end, reach, TILE)
        last = tl.minimum(i + start - least, end - 1)
        count = tl.maximum(last - (i + start - most) + 1, 0)
    else:
        first, stop, sure, unsure = listed_run(firsts, tile, OWN, TILE, SIZE)
        last = tl.zeros_like(i) + end - 1
        count = tl.zeros_like(i) + end
    q_tile = rows_of(q, b, h, q_b, q_h, q_i, i0, n_q, OWN, D, DD, 0, 0)
    o_tile = rows_of(out, b, h, o_b, o_h, o_i, i0, n_q, OWN, E, EE, 0, 0)
    u_tile = rows_of(upstream, b, h, u_b, u_h, u_i, i0, n_q, OWN, E, EE, 0, 0)
    mine = tl.sum(o_tile.to(WIDE) * u_tile.to(WIDE), 1)
    spots = tl.cast(at, tl.int64) * (tl.cdiv(n_q, FILL) * FILL) + i
    tl.store(delta + spots, mine, mask=i < n_q)
    sums = tl.load(lse + spots, mask=i < n_q, other=float("inf"))
    if CUT > 0:
        places = first_places(seed, at * n_q + i)[:, None]
    acc = tl.zeros([OWN, DD], WIDE)
    for part in tl.static_range(PARTS):
        low, high = piece(part, PARTS, first, stop, sure, unsure)  # type: ignore[misc]
        for e in tl.range(low, high):
            j0, kind, masked = entry(e, columns, kinds, sure, unsure, end, q_names is not None, TILE, SIZE)
            k_tile = rows_of(k, b, g, k_b, k_g, k_j, j0, n_k, TILE, D, DD, PARTS == 3 and part == 1, BULK)
            v_tile = rows_of(v, b, g, v_b, v_g, v_j, j0, n_k, TILE, E, EE, PARTS == 3 and part == 1, BULK)
            s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=WIDE)
            if masked if PARTS == 1 else part != 1:
                j = j0 + tl.arange(0, TILE)
                seen = among(last[:, None] - j[None, :], count[:, None])
                seen = visible(seen, i[:, None], j[None, :], n_q, n_k, q_names, k_names, masks, kind, SIZE)
                s = tl.where(seen, s, -float("inf"))
            p = tl.exp2(s * scale - sums[:, None])
            dp = tl.dot(u_tile, tl.trans(v_tile), input_precision=PRECISION, out_dtype=WIDE)
            if CUT > 0:
                kept = left(seed, places, (j0 + tl.arange(0, TILE))[None, :], CUT)
                dp = tl.where(kept, dp * (LEVELS / (LEVELS - CUT)), 0.0)
            ds = (p * (dp - mine[:, None])).to(k_tile.dtype)
            acc = tl.dot(ds, k_tile, acc, input_precision=PRECISION, out_dtype=WIDE)
    put_rows(dq + b * dq_b + h * dq_h, i0, dq_i, n_q, acc * slope, OWN, D, DD)


@triton.jit(do_not_specialize=UNFIXED)
def row_keys(
    q, k, v, upstream, lse, delta, dk, dv,
    q_b, q_h, q_i, k_b, k_g, k_j, v_b, v_g, v_j, u_b, u_h, u_i, dk_b, dk_g, dk_j, dv_b, dv_g, dv_j,
    firsts, columns, kinds, masks, lengths, q_names, k_names, reach, length_b, q_name_b, k_name_b, reach_b,
    heads, share, n_q, n_k, start, least, most, scale, slope, seed,
    D: tl.constexpr, DD: tl.constexpr, E: tl.constexpr, EE: tl.constexpr, WIDE: tl.constexpr,
    OWN: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, BULK: tl.constexpr,
    PRECISION: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    groups = heads // share
    tile, at = place_of(n_k, OWN, columns is not None, 0)  # type: ignore[misc]
    b, g = (at // groups).to(tl.int64), (at % groups).to(tl.int64)
    j0 = tile * OWN
    j = j0 + tl.arange(0, OWN)
    end = keys_of(lengths, b, length_b, n_k)
    if q_names is not None:
        q_names += b * q_name_b
        k_names += b * k_name_b
        reach += b * reach_b + tile * 4
    if columns is None:
        # seen by all of a tile that ends within its sentence: j0 + most ≥ i and j1 + least ≤ i
        j1 = tl.minimum(j0 + OWN, end) - 1
        some, all_from = tl.where(j1 >= j0, n_q, 0), tl.where(j0 + OWN <= end, j1 + least - start, n_q)
        low, high = j0 + least - start, tl.minimum(j1 + most - start + 1, some)
        first, stop, sure, unsure = run_of(low, high, all_from, j0 + most - start + 1, n_q, reach, TILE)
        start_of, count = j + least - start, tl.where(j < end, tl.maximum(most - least + 1, 0), 0)
    else:
        first, stop, sure, unsure = listed_run(firsts, tile, OWN, TILE, SIZE)
        start_of, count = tl.zeros_like(j), tl.where(j < end, n_q, 0)
    k_tile = rows_of(k, b, g, k_b, k_g, k_j, j0, n_k, OWN, D, DD, 0, 0)
    v_tile = rows_of(v, b, g, v_b, v_g, v_j, j0, n_k, OWN, E, EE, 0, 0)
    k_acc = tl.zeros([OWN, DD], WIDE)
    v_acc = tl.zeros([OWN, EE], WIDE)
    for other in range(share):
        h = g * share + other
        sums_head = (b * heads + h) * (tl.cdiv(n_q, FILL) * FILL)
        for part in tl.static_range(PARTS):
            low, high = piece(part, PARTS, first, stop, sure, unsure)  # type: ignore[misc]
            for e in tl.range(low, high):
                i0, kind, masked = entry(e, columns, kinds, sure, unsure, n_q, q_names is not None, TILE, SIZE)
                i = i0 + tl.arange(0, TILE)
                spots = sums_head + i
                q_tile = rows_of(q, b, h, q_b, q_h, q_i, i0, n_q, TILE, D, DD, PARTS == 3 and part == 1, BULK)
                u_tile = rows_of(upstream, b, h, u_b, u_h, u_i, i0, n_q, TILE, E, EE, PARTS == 3 and part == 1, BULK)
                s = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION, out_dtype=WIDE)
                if (masked | (j0 + OWN > end)) if PARTS == 1 else part != 1:
                    seen = among(i[None, :] - start_of[:, None], count[:, None])
                    seen = visible(seen, i[None, :], j[:, None], n_q, n_k, q_names, k_names, masks, kind, SIZE)
                    s = tl.where(seen, s, -float("inf"))
                p = tl.exp2(s * scale - tl.load(lse + spots)[None, :])
                weights = p
                if CUT > 0:
                    kept = left(seed, first_places(seed, (b * heads + h) * n_q + i)[None, :], j[:, None], CUT)
                    weights = tl.where(kept, p, 0.0)
                v_acc = tl.dot(weights.to(u_tile.dtype), u_tile, v_acc, input_precision=PRECISION, out_dtype=WIDE)
                dp = tl.dot(v_tile, tl.trans(u_tile), input_precision=PRECISION, out_dtype=WIDE)
                if CUT > 0:
                    dp = tl.where(kept, dp * (LEVELS / (LEVELS - CUT)), 0.0)
                ds = (p * (dp - tl.load(delta + spots)[None, :])).to(q_tile.dtype)
                k_acc = tl.dot(ds, q_tile, k_acc, input_precision=PRECISION, out_dtype=WIDE)
    if CUT > 0:
        v_acc *= LEVELS / (LEVELS - CUT)
    put_rows(dk + b * dk_b + g * dk_g, j0, dk_j, n_k, k_acc * slope, OWN, D, DD)
    put_rows(dv + b * dv_b + g * dv_g, j0, dv_j, n_k, v_acc, OWN, E, EE)
