"""Maxima of chunks of scores in, the largest weights of each query and their keys out; sums of keys in, cells out.

The k largest scores of a row lie in the k chunks whose maxima are the largest, and these in the k groups of chunks
whose maxima are the largest: `fold_groups` reads every maximum once, `pick_keys` searches the k best groups for the k
best chunks, scores the keys of these again (products of halves are exact in float32) and searches them for the k best.
Of equal scores any may be named first, always the same one.
"""

import triton
import triton.language as tl

from regard.attention.kernels.probe_tiles import CHUNKS, GROUP, NEVER, PLACES


@triton.jit(do_not_specialize=["rows", "blocks"])
def fold_groups(maxima, groups, rows, blocks, ROWS: tl.constexpr):
    """The largest maximum of each query and group of blocks."""
    group, z = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    block, chunk = group * GROUP + tl.arange(0, GROUP), tl.arange(0, CHUNKS)
    spot = ((z * blocks + block)[:, None, None] * rows + row[None, :, None]) * CHUNKS + chunk[None, None, :]
    inside = (block < blocks)[:, None, None] & (row < rows)[None, :, None] & (chunk >= 0)[None, None, :]
    best = tl.max(tl.max(tl.load(maxima + spot, mask=inside, other=NEVER), 2), 0)
    tl.store(groups + (z * rows + row) * tl.num_programs(1) + group, best, mask=row < rows)


@triton.jit
def ranked(values, MOST: tl.constexpr, ROOM: tl.constexpr):
    """Where the largest stand and what they are, largest first; -1 where there are no more."""
    at, place = tl.arange(0, values.shape[0]), tl.arange(0, ROOM)
    found = tl.full([ROOM], -1, tl.int32)
    best = tl.full([ROOM], NEVER, tl.float32)
    for n in range(MOST):
        top, where = tl.max(values, 0, return_indices=True)  # type: ignore[misc]
        found = tl.where(place == n, tl.where(top > float("-inf"), where, -1), found)
        best = tl.where(place == n, top, best)
        values = tl.where(at == where, float("-inf"), values)
    return found, best


@triton.jit
def chosen(of, which):
    """of[which], where which is not -1."""
    same = which[:, None] == tl.arange(0, of.shape[0])[None, :]
    return tl.sum(tl.where(same, of[None, :], 0), 1)


@triton.jit(do_not_specialize=[*PLACES, "rows", "blocks", "many"])
def pick_keys(
    q,
    k,
    table,
    lengths,
    ells,
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
    k_t,
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
    GROUP_ROOM: tl.constexpr,
    MOST: tl.constexpr,
    ROOM: tl.constexpr,
    BIASED: tl.constexpr,
):
    row, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h, i = (first_head + z) // heads, (first_head + z) % heads, first_query + row
    group = tl.arange(0, GROUP_ROOM)
    folded = tl.load(groups + (z * rows + row) * many + group, mask=group < many, other=float("-inf"))
    group, _ = ranked(folded, MOST, ROOM)  # type: ignore[misc]

    FULL: tl.constexpr = GROUP * CHUNKS
    within = tl.arange(0, FULL)
    block = group[:, None] * GROUP + (within // CHUNKS)[None, :]
    spot = ((z * blocks + block) * rows + row) * CHUNKS + (within % CHUNKS)[None, :]
    best = tl.load(maxima + spot, mask=(group >= 0)[:, None] & (block < blocks), other=float("-inf"))
    chunk, _ = ranked(tl.reshape(best, (ROOM * FULL,)), MOST, ROOM)
    chunk = tl.where(chunk < 0, -1, chosen(group, chunk // FULL) * FULL + chunk % FULL)

    LONG: tl.constexpr = KEYS // CHUNKS
    d, length, at, place = tl.arange(0, WIDE), tl.load(lengths + b), tl.arange(0, LONG), tl.arange(0, ROOM)
    mine = tl.load(q + b * q_b + h * q_h + i * q_t + d, mask=d < D, other=0.0).to(tl.float32)
    scores = tl.full([ROOM, LONG], float("-inf"), tl.float32)
    for n in range(MOST):
        j = key_of(tl.sum(tl.where(place == n, chunk, 0), 0), at, first_block, KEYS)
        seen = (j >= i + start - most) & (j <= tl.minimum(i + start - least, length - 1)) & (j >= 0)
        from_here = k + b * k_b + (h // share) * k_h + j[:, None] * k_t + d[None, :]
        theirs = tl.load(from_here, mask=seen[:, None] & (d < D)[None, :], other=0.0)
        s = tl.sum(mine[None, :] * theirs.to(tl.float32), 1) * c
        if BIASED:
            s += tl.load(table + h * differences + origin + i + start - j, mask=seen, other=0.0)
        scores = tl.where((place == n)[:, None], tl.where(seen, s, float("-inf"))[None, :], scores)
    found, s = ranked(tl.reshape(scores, (ROOM * LONG,)), MOST, ROOM)
    j = key_of(chosen(chunk, found // LONG), found % LONG, first_block, KEYS)
    weight = tl.where(found < 0, 0.0, tl.exp2(s - tl.load(ells + (first_head + z) * n_q + i)))
    to = ((first_head + z) * n_q + i) * MOST + place
    tl.store(keys + to, tl.where(weight > 0, j, -1).to(tl.int64), mask=place < MOST)
    tl.store(weights + to, weight, mask=place < MOST)


@triton.jit
def key_of(chunk, at, first_block, KEYS: tl.constexpr):
    """The key at this place of a chunk; -1 if there is no such chunk."""
    first = (first_block + chunk // CHUNKS) * KEYS + chunk % CHUNKS * 2
    return tl.where(chunk < 0, -1, first + at // 2 * (2 * CHUNKS) + at % 2)


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
