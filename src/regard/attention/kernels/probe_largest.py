"""Maxima of blocks and chunks of keys in, the largest weights of each query and their keys out; sums in, cells out.

The k largest scores of a row lie in the k groups of blocks whose maxima are the largest, within these in the k best
blocks, and within these in the k best chunks. `fold_notes` reads what was noted of every block once: the maxima of
groups, and the entropy beside them. `pick_keys` searches groups, blocks and chunks, scores the keys of the k
best chunks again (products of halves are exact in float32) and searches them for the k best. What stands where a query
sees nothing of a block is not read: nobody may have written it. Of equal scores the first is named first.
"""

import triton
import triton.language as tl

from regard.attention.kernels.probe_tiles import GROUP, LANES, LEAST, NEVER, PLACES

SPAN = tl.constexpr(16)  # groups that one program folds


@triton.jit(do_not_specialize=[*PLACES, "rows", "blocks", "many"])
def fold_notes(
    noted,
    groups,
    bent,
    lengths,
    heads,
    start,
    least,
    most,
    first_head,
    first_block,
    first_query,
    rows,
    blocks,
    many,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
    TOP: tl.constexpr,
    ENTROPY: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The largest maximum of each query and group of blocks, and Σ p log₂ p of SPAN groups, from notes of blocks."""
    part, z = tl.program_id(1), tl.program_id(2).to(tl.int64)
    NOTES: tl.constexpr = TOP + ENTROPY
    at = tl.program_id(0) * WIDE + tl.arange(0, WIDE)  # queries and their notes, side by side
    row, note, inside = at // NOTES, at % NOTES, at < rows * NOTES
    i, length = first_query + row + start, tl.load(lengths + (first_head + z) // heads)
    total = tl.zeros([WIDE], tl.float32)
    for group in range(part * SPAN, tl.minimum((part + 1) * SPAN, many)):
        block = group * GROUP + tl.arange(0, GROUP)
        spot = (z * blocks + block)[:, None] * (rows * NOTES) + at[None, :]
        written = (block < blocks)[:, None] & inside[None, :]
        if MASKED:
            written &= looked_at((first_block + block)[:, None] * KEYS, i[None, :], least, most, length, KEYS)
        here = tl.load(noted + spot, mask=written, other=NEVER)
        if TOP:
            tl.store(groups + (z * rows + row) * many + group, tl.max(here, 0), mask=inside & (note == 0))
        if ENTROPY:
            total += tl.sum(tl.where(here > LEAST, here, 0.0), 0)
    if ENTROPY:
        tl.store(bent + (z * tl.num_programs(1) + part) * rows + row, total, mask=inside & (note == NOTES - 1))


@triton.jit
def looked_at(key, i, least, most, length, KEYS: tl.constexpr):
    """Does place i see any key of the block that begins here? Only then has anyone noted something down for sure."""
    return (tl.minimum(key + KEYS, length) > i - most) & (key <= tl.minimum(i - least, length - 1))


@triton.jit
def ordered(bits):
    """Whole numbers in the order of the floats with these bits, and back: a warp compares whole numbers at once."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def ranked(values, MOST: tl.constexpr, ROOM: tl.constexpr):
    """Where the largest stand and what they are, largest first; -1 where there are no more."""
    at, place = tl.arange(0, values.shape[0]), tl.arange(0, ROOM)
    found, best = tl.full([ROOM], -1, tl.int32), tl.full([ROOM], -(2**31), tl.int32)
    order = ordered(values.to(tl.int32, bitcast=True))
    for n in range(MOST):
        top = tl.max(order, 0)
        where = tl.min(tl.where(order == top, at, values.shape[0]), 0)
        found = tl.where(place == n, where, found)
        best = tl.where(place == n, top, best)
        order = tl.where(at == where, -(2**31), order)
    best = tl.where(place < MOST, ordered(best).to(tl.float32, bitcast=True), NEVER)
    return tl.where(best > LEAST, found, -1), best


@triton.jit
def chosen(of, which):
    """of[which]; -1 where that is -1."""
    same = which[:, None] == tl.arange(0, of.shape[0])[None, :]
    return tl.where(which < 0, -1, tl.sum(tl.where(same, of[None, :], 0), 1))


@triton.jit(do_not_specialize=[*PLACES, "rows", "blocks", "many"])
def pick_keys(
    q,
    k,
    table,
    lengths,
    ells,
    noted,
    maxima,
    groups,
    keys,
    weights,
    n_q,
    heads,
    share,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t: tl.constexpr,
    start,
    least,
    most,
    c,
    differences,
    origin,
    first_head,
    first_block,
    first_query,
    rows,
    blocks,
    many,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    KEYS: tl.constexpr,
    CHUNKS: tl.constexpr,
    NOTES: tl.constexpr,
    GROUP_ROOM: tl.constexpr,
    MOST: tl.constexpr,
    ROOM: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
):
    row, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h, i = (first_head + z) // heads, (first_head + z) % heads, first_query + row
    group = tl.arange(0, GROUP_ROOM)
    folded = tl.load(groups + (z * rows + row) * many + group, mask=group < many, other=NEVER)
    group, _ = ranked(folded, MOST, ROOM)  # type: ignore[misc]

    block = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    known = (group >= 0)[:, None] & (block < blocks)
    length = tl.load(lengths + b)
    if MASKED:
        known &= looked_at((first_block + block) * KEYS, i + start, least, most, length, KEYS)
    best = tl.load(noted + ((z * blocks + block) * rows + row) * NOTES, mask=known, other=NEVER)
    block, _ = ranked(tl.reshape(best, (ROOM * GROUP,)), MOST, ROOM)
    block = tl.where(block < 0, -1, chosen(group, block // GROUP) * GROUP + block % GROUP)

    spot = ((z * blocks + block) * rows + row)[:, None] * CHUNKS + tl.arange(0, CHUNKS)[None, :]
    best = tl.load(maxima + spot, mask=(block >= 0)[:, None] & (spot >= 0), other=NEVER)
    chunk, _ = ranked(tl.reshape(best, (ROOM * CHUNKS,)), MOST, ROOM)
    chunk = tl.where(chunk < 0, -1, chosen(block, chunk // CHUNKS) * CHUNKS + chunk % CHUNKS)

    LONG: tl.constexpr = KEYS // CHUNKS
    d, at, place = tl.arange(0, WIDE), tl.arange(0, LONG), tl.arange(0, ROOM)
    mine = tl.load(q + b * q_b + h * q_h + i * q_t + d, mask=d < D, other=0.0).to(tl.float32)
    low, high = i + start - most, tl.minimum(i + start - least, length - 1)
    within = at // 2 * (2 * LANES) + at % 2
    first = first_key(chunk, first_block, KEYS, CHUNKS)
    scores = tl.full([ROOM, LONG], NEVER, tl.float32)
    for n in range(MOST):
        j = tl.sum(tl.where(place == n, first, 0), 0) + within
        seen = (at >= 0) & (tl.sum(tl.where(place == n, chunk, 0), 0) >= 0)
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
        scores = tl.where((place == n)[:, None], tl.where(seen, s, NEVER)[None, :], scores)
    found, s = ranked(tl.reshape(scores, (ROOM * LONG,)), MOST, ROOM)
    j = chosen(first, found // LONG) + found % LONG // 2 * (2 * LANES) + found % LONG % 2
    weight = tl.where(found < 0, 0.0, tl.exp2(s - tl.load(ells + (first_head + z) * n_q + i)))
    to = ((first_head + z) * n_q + i) * MOST + place
    tl.store(keys + to, tl.where(weight > 0, j, -1).to(tl.int64), mask=place < MOST)
    tl.store(weights + to, weight, mask=place < MOST)


@triton.jit
def first_key(chunk, first_block, KEYS: tl.constexpr, CHUNKS: tl.constexpr):
    """Where a chunk begins; 0 if there is no such chunk. Chunks of one thread stand side by side."""
    PARTS: tl.constexpr = CHUNKS // LANES
    within = chunk % CHUNKS
    first = (first_block + chunk // CHUNKS) * KEYS + within % PARTS * (KEYS // PARTS) + within // PARTS * 2
    return tl.where(chunk < 0, 0, first)


@triton.jit(do_not_specialize=["noted", "stride", "first_row", "first_cut", "cuts", "across", "down"])
def pool_cells(
    parts,
    owners,
    out,
    noted,
    stride,
    first_row,
    first_cut,
    cuts,
    across,
    down,
    PEAKS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Add the sums (or maxima) of keys to their cells; row r owns segments owners[r] ... owners[r + 1] - 1."""
    cell, z = tl.program_id(0) % across, tl.program_id(1).to(tl.int64)
    row = first_row + tl.program_id(0) // across
    # key j falls into cell j·C // n, so a cell begins at the first j that is at least cell·n / C
    first, stop = tl.cdiv(cell.to(tl.int64) * noted, across), tl.cdiv((cell + 1).to(tl.int64) * noted, across)
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
