"""Block-sparse attention on a GPU: chooses tile shapes, launches the kernels, and is an autograd function.

The mathematics is in `kernels.py`. Time grows with the visible tiles, memory with the tokens: the inputs, the output
and one number per query are kept for the backward pass. No two programs add to one address, and another length compiles
nothing anew.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.attention.backends.block_sparse import Band, BlockSparseTiles, TileLists
from regard.attention.kernels.block_sparse.kernels import FILL, LEVELS, dkv_kernel, dq_kernel, forward_kernel

NARROW = 1536  # keys across: a window of 512 to both sides, and some more


@dataclass(frozen=True)
class SparseTileShape:
    """How one kernel is cut: its own tokens a tile, the other side's, and the compiler options. Speed alone."""

    own: int
    other: int
    warps: int
    stages: int
    parts: int = 1  # 3: masked and whole tiles in loops of their own; 1: one loop that asks
    bulk: bool = False  # tiles that are walked over come by the bulk copy engine
    registers: int | None = None  # at most so many a thread, for more programs side by side

    def fit(self, tiles: BlockSparseTiles, *walked: Tensor, dropping: "DropoutSeed | None") -> "SparseTileShape":
        """What these tiles allow: lists are walked over in one loop, in steps no larger than theirs; the copy engine
        wants even rows; and where segment ids or masks are read or hashed, few registers would spill."""
        always, bulk = tiles.static, self.bulk and all(is_aligned(x) for x in walked)
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
    def of(width: int, dtype: torch.dtype, across: int = 2**30) -> "SparseTileShapes":
        """For heads so wide, where a query may see so many keys across."""
        if dtype.itemsize > 2:
            small = SparseTileShape(64, 32, 4, 2) if width <= 64 else SparseTileShape(32, 32, 4, 1)
            return SparseTileShapes(small, small, small)
        if width <= 64 and across <= NARROW:
            return SparseTileShapes(
                SparseTileShape(64, 64, 4, 3, bulk=True),
                SparseTileShape(64, 64, 4, 2, bulk=True),
                SparseTileShape(64, 64, 4, 2, bulk=True, registers=168),
            )
        if width <= 64:
            return SparseTileShapes(
                SparseTileShape(128, 64, 4, 3, bulk=True, registers=168),
                SparseTileShape(128, 64, 8, 2, bulk=True, registers=128),
                SparseTileShape(64, 64, 4, 2, bulk=True, registers=168),
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
    shapes: SparseTileShapes | None = None,
) -> Float[Tensor, "b h i e"]:
    """softmax(scale q kᵀ) v over the visible keys; 0 for a query that sees none.

    Args:
        dropout: the rate at which weights are dropped.
        seed: names which; on the device, so that a CUDA graph can draw it. Default: one from torch's generator.
    """
    if scale <= 0:
        raise ValueError(f"scale={scale}: the running maximum needs a positive one; put the sign into q")
    chosen = shapes or SparseTileShapes.of(max(q.shape[3], v.shape[3]), q.dtype, max_visible_keys(tiles))
    dropping = None
    if cut := min(round(dropout * LEVELS.value), LEVELS.value - 1):
        dropping = DropoutSeed(cut, torch.randint(2**63 - 1, (), device=q.device) if seed is None else seed)
    out = BlockSparseFunction.apply(*map(contiguous_rows, (q, k, v)), tiles, scale, chosen, dropping)
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
    """The tensors of the side that is walked over: as they are, or described to the bulk copy engine."""
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


class BlockSparseFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tiles: BlockSparseTiles,
        scale: float,
        shapes: SparseTileShapes,
        dropping: DropoutSeed | None,
    ) -> Tensor:
        (batch, heads, n_q, _), n_k = q.shape, k.shape[2]
        out = torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty(batch, heads, n_q, v.shape[3])
        filled = batch, heads, -(-n_q // FILL.value) * FILL.value
        sums = torch.full(filled, torch.inf, dtype=accumulation_type(q), device=q.device)
        ctx.tiles, ctx.scale, ctx.shapes, ctx.dropping = tiles, scale, shapes, dropping
        # a batch's own data are saved as well, so that torch notices if they are written to before the backward
        ctx.save_for_backward(q, k, v, out, sums, *tiles.data())
        if not out.numel() or not n_k:
            return out.zero_()
        shape = shapes.forward.fit(tiles, k, v, dropping=dropping)
        arguments: list[Any] = [
            q,
            *streamed_side(shape, k, v),
            out,
            sums,
            *strides(q, k, v, out),
            *tile_arguments(tiles, shape, of_keys=False),
        ]
        arguments += [*common_arguments(q, k, tiles, scale), dropping and dropping.seed]
        forward_kernel[blocks(n_q, shape) * batch * heads,](*arguments, **constants(q, v, tiles, shape, dropping))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):  # type: ignore[override]
        (q, k, v, out, sums, *_), tiles, scale, dropping = ctx.saved_tensors, ctx.tiles, ctx.scale, ctx.dropping
        (batch, heads, n_q, _), (groups, n_k) = q.shape, k.shape[1:3]
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        if not out.numel() or not n_k:
            return dq.zero_(), dk.zero_(), dv.zero_(), None, None, None, None
        upstream, delta = contiguous_rows(upstream), torch.zeros_like(sums)
        shape = ctx.shapes.queries.fit(tiles, k, v, dropping=dropping)
        arguments: list[Any] = [
            q,
            *streamed_side(shape, k, v),
            out,
            upstream,
            sums,
            delta,
            dq,
            *strides(q, k, v, out, upstream, dq),
        ]
        arguments += [
            *tile_arguments(tiles, shape, of_keys=False),
            *common_arguments(q, k, tiles, scale),
            scale,
            dropping and dropping.seed,
        ]
        dq_kernel[blocks(n_q, shape) * batch * heads,](*arguments, **constants(q, v, tiles, shape, dropping))
        shape = ctx.shapes.keys.fit(tiles, q, upstream, dropping=dropping)
        q_walked, upstream_walked = streamed_side(shape, q, upstream)
        arguments = [q_walked, k, v, upstream_walked, sums, delta, dk, dv, *strides(q, k, v, upstream, dk, dv)]
        arguments += [
            *tile_arguments(tiles, shape, of_keys=True),
            *common_arguments(q, k, tiles, scale),
            scale,
            dropping and dropping.seed,
        ]
        dkv_kernel[blocks(n_k, shape) * batch * groups,](*arguments, **constants(q, v, tiles, shape, dropping))
        return dq, dk, dv, None, None, None, None


def blocks(tokens: int, shape: SparseTileShape) -> int:
    return -(-tokens // shape.own)


def padded_width(width: int) -> int:
    """What products of matrices want: a power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def strides(*tensors: Tensor) -> list[Any]:
    return [x.stride(axis) for x in tensors for axis in range(3)]


def accumulation_type(q: Tensor) -> torch.dtype:
    """What sums are kept in; float64 only where the interpreter is asked for it."""
    return torch.promote_types(q.dtype, torch.float32)


def tile_arguments(tiles: BlockSparseTiles, shape: SparseTileShape, *, of_keys: bool) -> list[Any]:
    """Which tiles, and a batch's own data; None for what this pattern does not hold."""
    always, lengths, names = tiles.static, tiles.lengths, tiles.segment_ids
    found: list[Any] = [None] * 4
    if isinstance(always, TileLists):
        rows = always.of_keys if of_keys else always.of_queries
        # without a mask there is no memory to read one from, not even for the tiles at the edges
        found = [rows.firsts, rows.columns, rows.masks, always.masks if len(always.masks) else None]
    sizes = shape.own, shape.other
    reach = None if names is None else names.reached(*sizes) if of_keys else names.reach(*sizes)
    data = lengths, names and names.queries, names and names.keys, reach
    return [*found, *data, *(0 if x is None or len(x) == 1 else x.stride(0) for x in data)]


def common_arguments(q: Tensor, k: Tensor, tiles: BlockSparseTiles, scale: float) -> list[Any]:
    heads, share = q.shape[1], q.shape[1] // k.shape[1]
    ends = (tiles.static.least, tiles.static.most) if isinstance(tiles.static, Band) else (0, 0)
    return [heads, share, q.shape[2], k.shape[2], tiles.start, *ends, scale / log(2)]


def constants(
    q: Tensor, v: Tensor, tiles: BlockSparseTiles, shape: SparseTileShape, dropping: DropoutSeed | None
) -> dict[str, Any]:
    d, e = q.shape[3], v.shape[3]
    precise = {torch.float32: "tf32x3", torch.float64: "ieee"}
    of_heads = {"D": d, "DD": padded_width(d), "E": e, "EE": padded_width(e)}
    of_numbers = {
        "WIDE": tl.float64 if q.dtype == torch.float64 else tl.float32,
        "PRECISION": precise.get(q.dtype, "tf32"),
        "CUT": 0 if dropping is None else dropping.cut,
    }
    of_tiles = {"OWN": shape.own, "TILE": shape.other, "PARTS": shape.parts, "BULK": shape.bulk}
    of_tiles |= {"SIZE": tiles.static.size if isinstance(tiles.static, TileLists) else 1}
    compiler_options = {"num_warps": shape.warps, "num_stages": shape.stages, "maxnreg": shape.registers}
    return of_heads | of_numbers | of_tiles | compiler_options
