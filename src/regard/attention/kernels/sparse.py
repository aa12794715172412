"""Softmax attention over the tiles that a pattern shows: q, k, v and `Tiles` in, the output with its gradients out.

The kernels and their mathematics are in `sparse_rows`; here is how they are cut and called. Time grows with the visible
tiles, memory with the tokens: the inputs, the output and one number per query are kept for the backward pass. No two
programs add to one place, and another length compiles nothing anew.
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

from regard.attention.kernels.sparse_rows import FILL, LEVELS, row_forward, row_keys, row_queries
from regard.attention.kernels.sparse_tiles import Band, Lists, Tiles

NARROW = 1536  # keys across: a window of 512 to both sides, and some more


@dataclass(frozen=True)
class Shape:
    """How one kernel is cut: its own tokens a tile, the other side's, and what the compiler is told. Speed alone."""

    own: int
    other: int
    warps: int
    stages: int
    parts: int = 1  # 3: masked and whole tiles in loops of their own; 1: one loop that asks
    bulk: bool = False  # tiles that are walked over come by the bulk copy engine
    registers: int | None = None  # at most so many a thread, for more programs side by side

    def fitted(self, tiles: Tiles, *walked: Tensor, dropping: "Dropping | None") -> "Shape":
        """What these tiles allow: lists are walked over in one loop, in steps no larger than theirs; the copy engine
        wants even rows; and where names or masks are looked up or hashed, few registers would spill."""
        always, bulk = tiles.always, self.bulk and all(even(x) for x in walked)
        if isinstance(always, Band):
            plain = tiles.names is None and dropping is None
            if bulk == self.bulk and plain:
                return self
            return replace(self, bulk=bulk, registers=self.registers if plain else None)
        own, other = min(self.own, always.size), min(self.other, always.size)
        return replace(self, own=own, other=other, parts=1, bulk=bulk, registers=None)


@dataclass(frozen=True)
class Shapes:
    """The three kernels: forwards, for dq, and for dk and dv.

    Of a narrow band a large tile sees most keys in vain: half the queries are better then.
    """

    forward: Shape
    queries: Shape
    keys: Shape

    @staticmethod
    def of(width: int, dtype: torch.dtype, across: int = 2**30) -> "Shapes":
        """For heads so wide, where a query may see so many keys across."""
        if dtype.itemsize > 2:
            small = Shape(64, 32, 4, 2) if width <= 64 else Shape(32, 32, 4, 1)
            return Shapes(small, small, small)
        if width <= 64 and across <= NARROW:
            return Shapes(
                Shape(64, 64, 4, 3, bulk=True),
                Shape(64, 64, 4, 2, bulk=True),
                Shape(64, 64, 4, 2, bulk=True, registers=168),
            )
        if width <= 64:
            return Shapes(
                Shape(128, 64, 4, 3, bulk=True, registers=168),
                Shape(128, 64, 8, 2, bulk=True, registers=128),
                Shape(64, 64, 4, 2, bulk=True, registers=168),
            )
        if width <= 128:
            return Shapes(
                Shape(128, 64, 8, 3, bulk=True), Shape(128, 64, 8, 2, bulk=True), Shape(64, 64, 8, 2, bulk=True)
            )
        return Shapes(Shape(64, 32, 8, 2), Shape(64, 32, 8, 2), Shape(32, 32, 8, 2))


def sparse(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    v: Float[Tensor, "b g j e"],
    tiles: Tiles,
    *,
    scale: float,
    dropout: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
    shapes: Shapes | None = None,
) -> Float[Tensor, "b h i e"]:
    """softmax(scale q kᵀ) v over the visible keys; 0 for a query that sees none.

    Args:
        dropout: the rate at which weights are dropped.
        seed: names which; on the device, so that a CUDA graph can draw it. Default: one from torch's generator.
    """
    if scale <= 0:
        raise ValueError(f"scale={scale}: the running maximum needs a positive one; put the sign into q")
    chosen = shapes or Shapes.of(max(q.shape[3], v.shape[3]), q.dtype, across(tiles))
    dropping = None
    if cut := min(round(dropout * LEVELS.value), LEVELS.value - 1):
        dropping = Dropping(cut, torch.randint(2**63 - 1, (), device=q.device) if seed is None else seed)
    out = OverTiles.apply(*map(packed, (q, k, v)), tiles, scale, chosen, dropping)
    assert isinstance(out, Tensor)
    return out


def across(tiles: Tiles) -> int:
    """How many keys a query may see; lists of tiles are as if there were no end."""
    return tiles.always.most - tiles.always.least + 1 if isinstance(tiles.always, Band) else 2**30


def packed(x: Tensor) -> Tensor:
    """Each token's numbers side by side; heads and tokens may lie in any order."""
    return x if x.stride(3) == 1 else x.contiguous()


def even(x: Tensor) -> bool:
    """Does every row begin at a multiple of 16 bytes and fill its tile, as the bulk copy engine likes best?"""
    steps = (step * x.itemsize for step in x.stride()[:3])
    return x.data_ptr() % 16 == 0 and x.shape[3] == power(x.shape[3]) and all(s > 0 and s % 16 == 0 for s in steps)


def walked_over(shape: Shape, *tensors: Tensor) -> list[Any]:
    """The tensors of the side that is walked over: as they are, or described to the bulk copy engine."""
    if not shape.bulk:
        return list(tensors)
    blocks = ([1, 1, shape.other, power(x.shape[3])] for x in tensors)
    return [
        TensorDescriptor(x, list(x.shape), list(x.stride()), block) for x, block in zip(tensors, blocks, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Dropping:
    """How many of 2²⁴ weights are dropped, and the seed that says which."""

    cut: int
    seed: Int[Tensor, ""]


class OverTiles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, tiles: Tiles, scale: float, shapes: Shapes, dropping: Dropping | None
    ) -> Tensor:
        (batch, heads, n_q, _), n_k = q.shape, k.shape[2]
        out = torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty(batch, heads, n_q, v.shape[3])
        filled = batch, heads, -(-n_q // FILL.value) * FILL.value
        sums = torch.full(filled, torch.inf, dtype=wide(q), device=q.device)
        ctx.tiles, ctx.scale, ctx.shapes, ctx.dropping = tiles, scale, shapes, dropping
        # a batch's own data are saved as well, so that torch tells when somebody writes to them before the backward
        ctx.save_for_backward(q, k, v, out, sums, *tiles.data())
        if not out.numel() or not n_k:
            return out.zero_()
        shape = shapes.forward.fitted(tiles, k, v, dropping=dropping)
        given: list[Any] = [
            q,
            *walked_over(shape, k, v),
            out,
            sums,
            *strides(q, k, v, out),
            *reading(tiles, shape, of_keys=False),
        ]
        given += [*common(q, k, tiles, scale), dropping and dropping.seed]
        row_forward[blocks(n_q, shape) * batch * heads,](*given, **constants(q, v, tiles, shape, dropping))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):  # type: ignore[override]
        (q, k, v, out, sums, *_), tiles, scale, dropping = ctx.saved_tensors, ctx.tiles, ctx.scale, ctx.dropping
        (batch, heads, n_q, _), (groups, n_k) = q.shape, k.shape[1:3]
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        if not out.numel() or not n_k:
            return dq.zero_(), dk.zero_(), dv.zero_(), None, None, None, None
        upstream, delta = packed(upstream), torch.zeros_like(sums)
        shape = ctx.shapes.queries.fitted(tiles, k, v, dropping=dropping)
        given: list[Any] = [
            q,
            *walked_over(shape, k, v),
            out,
            upstream,
            sums,
            delta,
            dq,
            *strides(q, k, v, out, upstream, dq),
        ]
        given += [*reading(tiles, shape, of_keys=False), *common(q, k, tiles, scale), scale, dropping and dropping.seed]
        row_queries[blocks(n_q, shape) * batch * heads,](*given, **constants(q, v, tiles, shape, dropping))
        shape = ctx.shapes.keys.fitted(tiles, q, upstream, dropping=dropping)
        q_walked, upstream_walked = walked_over(shape, q, upstream)
        given = [q_walked, k, v, upstream_walked, sums, delta, dk, dv, *strides(q, k, v, upstream, dk, dv)]
        given += [*reading(tiles, shape, of_keys=True), *common(q, k, tiles, scale), scale, dropping and dropping.seed]
        row_keys[blocks(n_k, shape) * batch * groups,](*given, **constants(q, v, tiles, shape, dropping))
        return dq, dk, dv, None, None, None, None


def blocks(tokens: int, shape: Shape) -> int:
    return -(-tokens // shape.own)


def power(width: int) -> int:
    """What products of matrices want: a power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def strides(*tensors: Tensor) -> list[Any]:
    return [x.stride(axis) for x in tensors for axis in range(3)]


def wide(q: Tensor) -> torch.dtype:
    """What sums are kept in; float64 only where the interpreter is asked for it."""
    return torch.promote_types(q.dtype, torch.float32)


def reading(tiles: Tiles, shape: Shape, *, of_keys: bool) -> list[Any]:
    """Which tiles, and a batch's own data; None for what this pattern does not hold."""
    always, lengths, names = tiles.always, tiles.lengths, tiles.names
    found: list[Any] = [None] * 4
    if isinstance(always, Lists):
        rows = always.of_keys if of_keys else always.of_queries
        # without a mask there is no place in memory to look one up, not even for the tiles at the edges
        found = [rows.firsts, rows.columns, rows.masks, always.masks if len(always.masks) else None]
    sizes = shape.own, shape.other
    reach = None if names is None else names.reached(*sizes) if of_keys else names.reach(*sizes)
    data = lengths, names and names.queries, names and names.keys, reach
    return [*found, *data, *(0 if x is None or len(x) == 1 else x.stride(0) for x in data)]


def common(q: Tensor, k: Tensor, tiles: Tiles, scale: float) -> list[Any]:
    heads, share = q.shape[1], q.shape[1] // k.shape[1]
    ends = (tiles.always.least, tiles.always.most) if isinstance(tiles.always, Band) else (0, 0)
    return [heads, share, q.shape[2], k.shape[2], tiles.start, *ends, scale / log(2)]


def constants(q: Tensor, v: Tensor, tiles: Tiles, shape: Shape, dropping: Dropping | None) -> dict[str, Any]:
    d, e = q.shape[3], v.shape[3]
    precise = {torch.float32: "tf32x3", torch.float64: "ieee"}
    of_heads = {"D": d, "DD": power(d), "E": e, "EE": power(e)}
    of_numbers = {
        "WIDE": tl.float64 if q.dtype == torch.float64 else tl.float32,
        "PRECISION": precise.get(q.dtype, "tf32"),
        "CUT": 0 if dropping is None else dropping.cut,
    }
    of_tiles = {"OWN": shape.own, "TILE": shape.other, "PARTS": shape.parts, "BULK": shape.bulk}
    of_tiles |= {"SIZE": tiles.always.size if isinstance(tiles.always, Lists) else 1}
    told = {"num_warps": shape.warps, "num_stages": shape.stages, "maxnreg": shape.registers}
    return of_heads | of_numbers | of_tiles | told
