"""Additive attention on a GPU: lays out memory for the kernels of `kernels.py`, cuts the work and launches them.

How the work is cut is a matter of speed alone.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import triton
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.backends.additive import AdditiveEngine, Visible
from regard.attention.kernels.additive.kernels import (
    backward_exponentials,
    exponent_limits,
    scores_backward,
    scores_exponentials,
    scores_forward,
    softmax_backward,
    softmax_forward,
    sum_partial_gradients,
)

TOKENS, DEEP, LANES = 64, 32, 32


@dataclass(frozen=True)
class ScoreTileShape:
    """`scores_forward`: queries and keys a thread, triples a reciprocal serves (2 or 4), warps, registers at most."""

    down: int = 16
    across: int = 2
    share: int = 4
    warps: int = 4
    registers: int | None = 128

    @property
    def high(self) -> int:
        return self.down * self.warps

    @property
    def wide(self) -> int:
        return self.across * LANES

    def fit(self, queries: int, keys: int) -> "ScoreTileShape":
        """Not so large that most of a tile would be empty."""
        shape = self
        while shape.warps > 1 and shape.high >= 2 * queries:
            shape = replace(shape, warps=shape.warps // 2)
        while shape.across > 1 and (shape.wide >= 2 * keys or shape.across >= shape.warps):
            shape = replace(shape, across=shape.across // 2)
        return shape


@dataclass(frozen=True)
class GradientTileShape:
    """`scores_backward`: pairs of keys and widths a thread, warps, queries a turn, whether every other query shares no
    reciprocals, registers at most, warps that fill the machine (programs with the same widths need a sum each: the
    more keys a program has, the less memory), whether g is fetched into the cache a turn ahead."""

    pairs: int = 8
    deep: int = 2
    warps: int = 16
    chunk: int = 16
    alone: bool = True
    registers: int | None = 128
    together: int = 2048
    ahead: bool = True

    @property
    def high(self) -> int:
        return self.chunk * self.warps

    @property
    def wide(self) -> int:
        return 2 * self.pairs * self.warps

    def fit(self, queries: int, keys: int) -> "GradientTileShape":
        shape = self
        while shape.warps > 1 and (shape.wide >= 2 * keys or shape.high >= 2 * queries):
            shape = replace(shape, warps=shape.warps // 2)
        while shape.pairs > 4 and shape.wide >= 2 * keys:
            shape = replace(shape, pairs=shape.pairs // 2)
        return shape


@dataclass(frozen=True)
class AdditiveTileShapes:
    scoring: ScoreTileShape = ScoreTileShape()
    gradients: GradientTileShape = GradientTileShape()


@dataclass(frozen=True, eq=False)
class TritonAdditive(AdditiveEngine):
    """The kernels on one call's tensors, batch and heads side by side."""

    a: Float[Tensor, "n i d"]
    b: Float[Tensor, "n j d"]
    v: Float[Tensor, "h d"]
    limits: "ExponentLimits"
    shape: AdditiveTileShapes

    @staticmethod
    def of(
        a: Tensor,
        b: Tensor,
        v: Tensor,
        *,
        shape: AdditiveTileShapes = AdditiveTileShapes(),
        limits: "ExponentLimits | None" = None,
    ) -> "TritonAdditive":
        queries, keys = a.shape[2], b.shape[2]
        a, b = (rearrange(x, "b h t d -> (b h) t d").contiguous() for x in (a, b))
        v = v.float().contiguous()
        fitted = AdditiveTileShapes(shape.scoring.fit(queries, keys), shape.gradients.fit(queries, keys))
        return TritonAdditive(a, b, v, limits or ExponentLimits.of(a, b, v), fitted)

    def rebuild(self, pairs_of):
        return partial(pairs_of, limits=self.limits)

    @property
    def heads(self) -> int:
        return len(self.v)

    @cached_property
    def keys(self) -> Int[Tensor, "n pairs padded"]:
        return self.prepare(self.b, self.shape.scoring.wide, fold=False)

    def prepare(self, x: Float[Tensor, "n t d"], tile: int, *, fold: bool) -> Int[Tensor, "n pairs padded"]:
        (n, tokens, d), pairs = x.shape, self.limits.ones.shape[1] // 2
        padded = whole(tokens, tile)
        out = torch.empty(n, pairs, padded, dtype=torch.int64, device=x.device)
        scores_exponentials[n, parts(padded, TOKENS), parts(pairs, DEEP // 2)](
            *(x, self.limits.fits, self.limits.ones, out, x.stride(0), tokens, d, padded),
            **options(PAIRS=pairs, FOLD=fold, TOKENS=TOKENS, DEEP=DEEP // 2),
        )
        return out

    def live_tiles(self, rows: slice, visible: Visible, tile: tuple[int, int]) -> Int[Tensor, "*tiles"]:
        """Which tiles someone sees, found on the device; if all see everything, nobody asks."""
        if visible is None:
            return self.limits.fits
        (high, wide), n = tile, len(self.a)
        filled = pad(visible, (0, -self.b.shape[1] % wide, 0, -(rows.stop - rows.start) % high))
        some = rearrange(filled, "b h (y s) (x t) -> b h y x s t", s=high, t=wide).any(-1).any(-1)
        some = some.expand(n // self.heads, self.heads, -1, -1)
        return rearrange(some, "b h y x -> (b h) y x").to(torch.int32).contiguous()

    def scores(self, rows, visible):
        shape, (n, wide, d), high = self.shape.scoring, self.b.shape, rows.stop - rows.start
        a = self.prepare(self.a[:, rows], shape.high, fold=True)
        s = torch.empty(n, high, wide, dtype=torch.float32, device=a.device)
        scores_forward[n, parts(high, shape.high), parts(wide, shape.wide)](
            *(a, self.keys, self.v, self.limits.ones.view(torch.int64), self.limits.factors, self.limits.fits),
            *(self.live_tiles(rows, visible, (shape.high, shape.wide)), s),
            *(self.heads, high, wide, a.shape[2], self.keys.shape[2], 1),
            **options(D=d, PAIRS=a.shape[1], DOWN=shape.down, ACROSS=shape.across, SHARE=shape.share),
            **loops(shape, some=visible is not None),
        )
        return rearrange(s, "(b h) i j -> b h i j", h=self.heads)

    def weigh(self, s, visible, out):
        wide = s.shape[3]
        softmax_forward[s.shape[2], len(self.a)](
            *(s, out, s.shape[2], wide, self.a.shape[1] * wide), **options(WIDE=across(wide))
        )

    def score_gradients(self, p, upstream):
        n, (_, _, high, wide) = len(self.a), p.shape
        g = torch.empty(upstream.shape, dtype=torch.float32, device=p.device)
        stride = (high if p.is_contiguous() else self.a.shape[1]) * wide
        softmax_backward[high, n](p, upstream.contiguous(), g, high, wide, stride, **options(WIDE=across(wide)))
        return g

    def gradients(self, bands):
        shape, (n, keys, d) = self.shape.gradients, self.b.shape
        padded, wide = whole(d, LANES * shape.deep), whole(keys, shape.wide)
        blocks, tiles = padded // (LANES * shape.deep), max(1, wide // shape.wide)
        each = parts(tiles, max(1, min(tiles, shape.together // (n * blocks * shape.warps))))
        split = parts(tiles, each)  # so that no part is empty: nobody would write its sums
        empty, zeros = (partial(make, dtype=torch.float32, device=self.b.device) for make in (torch.empty, torch.zeros))
        of_keys, sums = zeros(n, wide, padded), zeros(split, n, padded)
        da = torch.empty_like(self.a) if keys else torch.zeros_like(self.a)
        for rows, band, visible in bands:
            high = rows.stop - rows.start
            g = pad_to_tiles(rearrange(band, "b h i j -> (b h) i j"), shape.high, shape.wide)
            of_rows = (empty if visible is None else zeros)(split, n, g.shape[1], padded)
            scores_backward[n, blocks, split](
                *(self.exponents(rows, g.shape[1], padded), self.b, g.view(torch.int64), self.limits.fits),
                *(self.live_tiles(rows, visible, (shape.high, shape.wide)), of_rows, of_keys, sums),
                *(g.shape[1], keys, wide, each, 1),
                **options(D=d, PADDED=padded, PAIRS=shape.pairs, DEPTH=shape.deep, CHUNK=shape.chunk),
                **options(ALONE=shape.alone, AHEAD=shape.ahead),
                **loops(shape, some=visible is not None),
            )
            del g, band  # before the sums are finished, and the next band takes as much
            self.finish(of_rows, da[:, rows], high)
            del of_rows
        db = torch.empty_like(self.b)
        self.finish(of_keys[None], db, keys)
        dv = rearrange(sums, "s (b h) d -> s b h d", h=self.heads).sum((0, 1))[:, :d]
        da, db = (rearrange(x, "(b h) t d -> b h t d", h=self.heads) for x in (da, db))
        return da, db, dv.mul_(-2)

    def exponents(self, rows: slice, high: int, padded: int) -> Float[Tensor, "n high padded"]:
        x = self.a[:, rows]
        out = torch.empty(len(x), high, padded, dtype=torch.float32, device=x.device)
        backward_exponentials[len(x), parts(high, TOKENS), padded // LANES](
            *(x, self.limits.fits, out, x.stride(0), x.shape[1], high),
            **options(D=x.shape[2], PADDED=padded, TOKENS=TOKENS),
        )
        return out

    def finish(self, sums: Float[Tensor, "s n padded deep"], out: Float[Tensor, "n t d"], tokens: int) -> None:
        count, n, high, padded = sums.shape
        sum_partial_gradients[n, parts(tokens, TOKENS), padded // LANES](
            *(sums, self.v, out, self.heads, count, high, tokens, out.stride(0)),
            **options(D=out.shape[2], PADDED=padded, TOKENS=TOKENS),
        )


@dataclass(frozen=True, eq=False)
class ExponentLimits:
    """For each head: do its numbers allow the short way, and what that way needs of v."""

    fits: Int[Tensor, "n"]
    ones: Float[Tensor, "n padded"]
    factors: Float[Tensor, "n"]

    @staticmethod
    def of(a: Float[Tensor, "n i d"], b: Float[Tensor, "n j d"], v: Float[Tensor, "h d"]) -> "ExponentLimits":
        (n, queries, d), keys, padded = a.shape, b.shape[1], whole(a.shape[2], 4)
        blocks = parts(padded, DEEP)
        ones, factors = (torch.empty(size, dtype=torch.float32, device=a.device) for size in ((n, padded), (n,)))
        if not a.numel() or not b.numel():
            return ExponentLimits(torch.ones(n, dtype=torch.int32, device=a.device), ones, factors)
        fits = torch.empty(n, blocks, dtype=torch.int32, device=a.device)
        exponent_limits[n, blocks](
            *(a, b, v, fits, ones, factors, len(v), queries, keys, d),
            **options(PADDED=padded, WHOLE=int(triton.next_power_of_2(d)), TOKENS=256, DEEP=DEEP),
        )
        return ExponentLimits(fits.amin(1), ones, factors)


def options(**constants: int) -> dict[str, Any]:
    """A kernel's constants."""
    return constants


def loops(shape: ScoreTileShape | GradientTileShape, *, some: bool) -> dict[str, Any]:
    """Constants of the two long loops and compiler options; without products of matrices there is no pipeline."""
    known = options(WARPS=shape.warps, SOME=some, APPROXIMATE=is_compiled(), num_warps=shape.warps, num_stages=1)
    return known if shape.registers is None else known | options(maxnreg=shape.registers)


def is_compiled() -> bool:
    """Is this the compiler, which knows the machine's instructions, or the interpreter, which does not?"""
    return isinstance(scores_forward, triton.JITFunction)


def pad_to_tiles(g: Float[Tensor, "n i j"], high: int, wide: int) -> Float[Tensor, "n high wide"]:
    """With zeros up to whole tiles."""
    missing = (0, -g.shape[2] % wide, 0, -g.shape[1] % high)
    return (pad(g, missing) if any(missing) else g).contiguous()


def across(wide: int) -> int:
    """How much of a row is taken at once."""
    return min(4096, int(triton.next_power_of_2(wide)))


def parts(length: int, size: int) -> int:
    return -(-length // size)


def whole(length: int, size: int) -> int:
    return parts(length, size) * size
