"""Hypothesis strategies for patterns, and patterns as matrices."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import (
    Block,
    Causal,
    Documents,
    Edges,
    Full,
    Global,
    Padding,
    Pattern,
    Prefix,
    Random,
    StrictCausal,
    Strided,
    Window,
)
from regard.attention.backends.block_sparse import WHOLE, Band, BlockSparseTiles, TileLists, TileRows
from regard.attention.pattern import And, Not, Or

leaves = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.just(StrictCausal()),
    st.integers(1, 6).map(Window),
    st.integers(1, 4).map(Strided),
    st.integers(0, 6).map(Prefix),
    st.integers(0, 3).map(Global),
    st.builds(Random, st.integers(1, 3), st.integers(0, 5)),
)
coarse = st.builds(Block, st.integers(1, 4), leaves)
patterns = st.recursive(
    leaves | coarse, lambda p: st.one_of(st.builds(And, p, p), st.builds(Or, p, p), st.builds(Not, p)), max_leaves=5
)

B, N = 2, 9  # sentences and tokens of the patterns below
batches = st.one_of(
    st.lists(st.integers(0, N), min_size=B, max_size=B).map(lambda x: Padding(torch.tensor(x))),
    st.lists(st.integers(0, 2), min_size=B * N, max_size=B * N).map(lambda x: Documents(torch.tensor(x).view(B, N))),
    st.lists(st.integers(0, N - 1), min_size=8, max_size=8).map(lambda x: Edges(torch.tensor(x).view(2, 4))),
)
of_a_batch = st.recursive(
    patterns | batches, lambda p: st.one_of(st.builds(And, p, p), st.builds(Or, p, p), st.builds(Not, p)), max_leaves=4
)


def cells_of(n_q: int, n_k: int, *, start: int = 0, k_start: int = 0) -> tuple[Tensor, ...]:
    b = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    return (
        b,
        b,
        torch.arange(start, start + n_q).view(1, 1, -1, 1),
        torch.arange(k_start, k_start + n_k).view(1, 1, 1, -1),
    )


def dense(pattern: Pattern, n_q: int, n_k: int | None = None, *, start: int = 0) -> Tensor:
    n_k = n_q if n_k is None else n_k
    return pattern.sees(*cells_of(n_q, n_k, start=start)).expand(1, 1, n_q, n_k)


def put_together(found: TileLists, rows: TileRows, n: int, m: int, *, transposed: bool = False) -> Tensor:
    """The mask that these rows of tiles describe, padded to whole tiles and cut."""
    size, high, wide = found.size, -(-n // found.size), -(-m // found.size)
    seen = torch.zeros(high * size, wide * size, dtype=torch.bool)
    for r in range(len(rows.firsts) - 1):
        for e in range(int(rows.firsts[r]), int(rows.firsts[r + 1])):
            c, number = int(rows.columns[e]), int(rows.masks[e])
            mask = torch.ones(size, size) if number == WHOLE else found.masks[number]
            seen[r * size : (r + 1) * size, c * size : (c + 1) * size] = (mask.T if transposed else mask) != 0
    return seen[:n, :m]


def tiled(tiles: BlockSparseTiles, n: int) -> Tensor:
    """The mask that tiles describe for each sentence, (b, n, n)."""
    i, j = torch.arange(n)[:, None], torch.arange(n)
    if isinstance(tiles.static, Band):
        seen = (i - j >= tiles.static.least) & (i - j <= tiles.static.most)
    else:
        seen = put_together(tiles.static, tiles.static.of_queries, n, n)
    if tiles.lengths is not None:
        seen = seen & (j < tiles.lengths[:, None, None])
    if tiles.segment_ids is not None:
        first, stop = tiles.segment_ids.reach(1)[..., :2, None].unbind(2)
        same = tiles.segment_ids.queries[:, :, None] == tiles.segment_ids.keys[:, None]
        seen = seen & same & (j >= first) & (j < stop)
    return seen if seen.dim() == 3 else seen[None]
