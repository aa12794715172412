"""T5's learned numbers near the diagonal: q, k, v, ō, L and Δ in, the gradient of the number of each distance out.

Along a diagonal all tiles look alike: the pair in one corner always reads the same number. So a program walks down a
piece of such a diagonal and adds up G (see relative.py) tile on tile, without any exchange between threads; at the end
the sums of each program, which are few, are added up along their own diagonals.
"""

import triton
import triton.language as tl
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.kernels.relative import LOG2E, column, group, real_keys


def slots(reach: int, side: int) -> int:
    """How many diagonals of tiles it takes to meet every distance below the reach in every row."""
    return -(-(2 * reach - 2 + side) // side)


def by_distance(tiles: Float[Tensor, "b h slots chunks r c"], reach: int) -> Float[Tensor, "h distances"]:
    """The sums over each distance, from -reach + 1 to reach - 1."""
    side = tiles.shape[-1]
    rows = rearrange(tiles.sum((0, 3)), "h slots r c -> h r (slots c)").flip(1)
    # row r is moved r places on, by reading it with a width that is one less than its own
    width = rows.shape[2] + side - 1
    flat = pad(rows, (0, side)).flatten(1)[:, : side * width]
    return rearrange(flat, "h (r w) -> h r w", w=width).sum(1)[:, side - 1 :][:, : 2 * reach - 1]


@triton.jit
def diagonals(
    q,
    k,
    v,
    grad,
    bias,
    lengths,
    totals,
    deltas,
    sums,
    queries,
    keys,
    start,
    heads,
    share,
    unit,
    chunks,
    each,
    D: tl.constexpr,
    E: tl.constexpr,
    REACH: tl.constexpr,
    CAUSAL: tl.constexpr,
    PADDED: tl.constexpr,
    SLOTS: tl.constexpr,
    SIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """G added up over tiles (i + t, j + t): for SLOTS diagonals, in pieces of `each` tiles."""
    chunk, slot = tl.program_id(0) % chunks, tl.program_id(0) // chunks % SLOTS
    n = (tl.program_id(0) // chunks // SLOTS).to(tl.int64)
    r, d, e = tl.arange(0, SIDE), tl.arange(0, D), tl.arange(0, E)
    shift = slot * SIDE - REACH + 1
    apart = shift + r[None, :] - r[:, None]
    limit = real_keys(lengths, n, keys, heads, PADDED)
    k, v = k + group(n, heads, share) * keys * D, v + group(n, heads, share) * keys * E
    q, grad = q + n * queries * D, grad + n * queries * E
    totals, deltas = totals + n * queries * 3 + 2 * queries, deltas + n * queries * 3 + 2 * queries
    extra = tl.load(bias + n % heads * (2 * REACH + 1) + column(apart, REACH))
    kept = (apart > -REACH) & (apart < REACH)
    if CAUSAL:
        kept &= apart <= 0
    bent = tl.zeros([SIDE, SIDE], tl.float32)
    for t in tl.range(chunk * each, tl.minimum((chunk + 1) * each, tl.cdiv(queries, SIDE))):
        i = t * SIDE + r
        j = i + start + shift
        real, seen = i < queries, (j >= 0) & (j < limit)
        mine = tl.load(q + i[:, None] * D + d[None, :], real[:, None], 0.0)
        pull = tl.load(grad + i[:, None] * E + e[None, :], real[:, None], 0.0)
        key = tl.load(k + j[:, None] * D + d[None, :], seen[:, None], 0.0)
        value = tl.load(v + j[:, None] * E + e[None, :], seen[:, None], 0.0)
        total, delta = tl.load(totals + i, real, float("inf")), tl.load(deltas + i, real, 0.0)
        s = tl.dot(mine, tl.trans(key), input_precision=PRECISION) * (unit * LOG2E) + extra
        g = tl.dot(pull, tl.trans(value), input_precision=PRECISION)
        g = tl.exp2(s - total[:, None]) * (g - delta[:, None])
        bent += tl.where(kept & seen[None, :], g, 0.0)
    tl.store(sums + tl.program_id(0).to(tl.int64) * SIDE * SIDE + r[:, None] * SIDE + r[None, :], bent)
