"""How a program of the block-sparse kernels walks: which tiles follow one another, their numbers, and who sees whom.

Rows past an end repeat the last row there is (or are 0, by the bulk copy engine), which needs no mask to load; they are
hidden wherever it matters.
"""

import triton
import triton.language as tl


@triton.jit
def place_of(n, OWN: tl.constexpr, LISTED: tl.constexpr, BACKWARDS: tl.constexpr):
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
def rows_of(
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
def put_rows(x, first, stride, end, tile, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    r, c = tl.arange(0, ROWS), tl.arange(0, PADDED)
    spots = x + tl.cast(first, tl.int64) * stride + r[:, None] * stride + c[None, :]
    tl.store(spots, tile.to(x.dtype.element_ty), mask=(first + r < end)[:, None] & (c < WIDTH)[None, :])


@triton.jit
def keys_of(lengths, sentence, stride, n_k):
    """How many keys the sentence has."""
    end = n_k
    if lengths is not None:
        end = tl.minimum(end, tl.load(lengths + sentence * stride).to(tl.int32))
    return end


@triton.jit
def among(distance, count):
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
def run_of(low, high, sure_low, sure_high, n, reach, TILE: tl.constexpr):
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
def entry(e, columns, kinds, sure, unsure, end, NAMED: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr):
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
def piece(part: tl.constexpr, PARTS: tl.constexpr, first, stop, sure, unsure):
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
