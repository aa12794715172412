"""The triples of Bahdanau's attention as Triton kernels: e^{2a}, e^{2b} and v in, scores and their gradients out.

With x = 1 + e^{2a} e^{2b} and r = 1/x, tanh(a + b) = 1 − 2r, so a triple (i, j, d) costs a multiply-add and a
reciprocal, and no tanh. Reciprocals are the scarcer unit (16 a cycle and multiprocessor, against 128 multiply-adds),
so two triples share one:

    v₀/x₀ + v₁/x₁ = (v₀ x₁ + v₁ x₀) · 1/(x₀ x₁),        r₀ = x₁ · 1/(x₀ x₁),  r₁ = x₀ · 1/(x₀ x₁).

Range: e^{2a} is a normal float32 for |a| ≤ 43, and x₀ x₁ < 2¹²⁷ as long as a + b ≤ 21.8. Each head whose numbers
allow that takes this way; any other takes r = 1/(1 + e^{2(a+b)}), which is right for all numbers (an infinite
exponential gives r = 0) and costs an exponential and a division per triple. The device decides, so nobody waits.
Error: rounding the two exponents moves a + b by at most 2(|a| + |b|) 2⁻²⁴, four times what rounding a and b to float32
does, and tanh by no more than that; the shared reciprocal adds a few units in the last place.

Everything lies with the width first and tokens last: `scores` walks over d and reads one row of a and of b a step;
`pull` holds a tile of (d, own tokens) in registers, walks over the other side's tokens, and so sums over them without
any exchange between threads. It serves both sides, with g transposed for one of them; no two programs write to one
place, so there are no atomics and the gradients are the same every time.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.kernels.additive_tiled import Pairs, Visible

LARGEST, LARGEST_SUM = 43.0, 21.5


@dataclass(frozen=True)
class Shape:
    """How the work is cut: tokens a tile, widths a tile of `pull`, warps a program. A matter of speed alone."""

    tile: int = 64
    deep: int = 32
    warps: int = 4

    def with_options(self, **constants: int) -> dict[str, Any]:
        """A kernel's constants and what the compiler is told; without products of matrices there is no pipeline."""
        return {**constants, "num_warps": self.warps, "num_stages": 1}


@dataclass(frozen=True, eq=False)
class Fused(Pairs):
    """The kernels below, on one call's tensors, sentences and heads side by side."""

    a: Float[Tensor, "n i d"]
    b: Float[Tensor, "n d padded"]
    v: Float[Tensor, "h d"]
    separable: Int[Tensor, "n"]
    heads: int
    keys: int
    shape: Shape

    @staticmethod
    def of(a: Tensor, b: Tensor, v: Tensor, *, shape: Shape = Shape()) -> "Fused":
        heads, (a, b) = a.shape[1], (rearrange(x, "b h t d -> (b h) t d").contiguous() for x in (a, b))
        fits = separable(a, b)
        return Fused(a, prepared(b, fits, shape), v.float().contiguous(), fits, heads, b.shape[1], shape)

    def band(self, rows: slice) -> Float[Tensor, "n d padded"]:
        return prepared(self.a[:, rows], self.separable, self.shape)

    def live(self, rows: slice, visible: Visible) -> Int[Tensor, "n y x"]:
        """Which tiles someone sees, found on the device."""
        tile, high, wide = self.shape.tile, rows.stop - rows.start, self.keys
        grid = len(self.b), tiles(high, tile), tiles(wide, tile)
        if visible is None:
            return torch.ones(grid, dtype=torch.int32, device=self.b.device)
        filled = pad(visible, (0, -wide % tile, 0, -high % tile))
        some = rearrange(filled, "b h (y s) (x t) -> b h y x s t", s=tile, t=tile).any(-1).any(-1)
        some = some.expand(len(self.b) // self.heads, self.heads, -1, -1)
        return rearrange(some, "b h y x -> (b h) y x").to(torch.int32).contiguous()

    def scores(self, rows, visible):
        a, live = self.band(rows), self.live(rows, visible)
        d, high, wide, shape = a.shape[1], rows.stop - rows.start, self.keys, self.shape
        s = torch.empty(len(a), high, wide, dtype=torch.float32, device=a.device)
        row_scores[live.shape](
            *(a, self.b, self.v, self.separable, live, s, self.heads, high, wide),
            **shape.with_options(D=d, TILE=shape.tile, APPROXIMATE=compiled()),
        )
        return rearrange(s, "(b h) i j -> b h i j", h=self.heads)

    def gradients(self, bands):
        (n, d, _), heads = self.b.shape, self.heads
        slope = repeat(4 * self.v, "h d -> (b h) d 1", b=n // heads)
        da, db, dv = torch.zeros_like(self.a), torch.zeros_like(self.b), torch.zeros_like(self.v)
        for rows, band, visible in bands:
            a, live, g = self.band(rows), self.live(rows, visible), self.padded(rearrange(band, "b h i j -> (b h) i j"))
            by_a, by_v = torch.zeros_like(a), a.new_zeros(n, live.shape[1], d)
            self.pull(a, self.b, g.mT.contiguous(), live.mT.contiguous(), by_a, by_v)
            self.pull(self.b, a, g.contiguous(), live, db, None)
            da[:, rows] = rearrange(by_a.mul_(slope)[:, :, : rows.stop - rows.start], "n d i -> n i d")
            dv += rearrange(by_v, "(b h) y d -> b h y d", h=heads).sum((0, 2))
        db = db.mul_(slope)[:, :, : self.keys]
        return (
            rearrange(da, "(b h) i d -> b h i d", h=heads),
            rearrange(db, "(b h) d j -> b h j d", h=heads),
            dv.mul_(-2),
        )

    def padded(self, x: Tensor) -> Tensor:
        """With zeros up to whole tiles."""
        missing = (0, -x.shape[2] % self.shape.tile, 0, -x.shape[1] % self.shape.tile)
        return pad(x, missing) if any(missing) else x

    def pull(self, own: Tensor, other: Tensor, g: Tensor, live: Tensor, out: Tensor, sums: Tensor | None) -> None:
        """Add Σ g (r − r²) over the other side to `out` and, if wanted, Σ g r over the tile to `sums`."""
        (n, d, there), shape = other.shape, self.shape
        row_pull[n, live.shape[2], tiles(d, shape.deep)](
            *(own, other, g, self.separable, live, out, out if sums is None else sums, there),
            **shape.with_options(
                D=d, TILE=shape.tile, DEEP=shape.deep, WITH_SUMS=sums is not None, APPROXIMATE=compiled()
            ),
        )


def separable(a: Float[Tensor, "n i d"], b: Float[Tensor, "n j d"]) -> Int[Tensor, "n"]:
    """For each head: are the exponentials and their products in range? Not if anything is NaN."""
    if not a.numel() or not b.numel():
        return torch.ones(len(a), dtype=torch.int32, device=a.device)
    (low_a, high_a), (low_b, high_b) = (x.aminmax(dim=1) for x in (a, b))
    small = (torch.stack((-low_a, high_a, -low_b, high_b)) <= LARGEST).all(0)
    return (small & (high_a.float() + high_b.float() <= LARGEST_SUM)).all(-1).to(torch.int32)


def prepared(x: Float[Tensor, "n t d"], fits: Int[Tensor, "n"], shape: Shape) -> Float[Tensor, "n d padded"]:
    """e^{2x} where that is in range, else x itself, width first, in whole tiles so that no step needs a mask."""
    n, tokens, d = x.shape
    count = tiles(tokens, shape.tile)
    out = torch.empty(n, d, count * shape.tile, dtype=torch.float32, device=x.device)
    if out.numel():
        grid = n, count, tiles(d, shape.deep)
        row_prepare[grid](
            *(x, fits, out, x.stride(0), tokens, d), **shape.with_options(TILE=shape.tile, DEEP=shape.deep)
        )
    return out


def tiles(length: int, size: int) -> int:
    return -(-length // size)


def compiled() -> bool:
    """Is this the compiler, which knows the machine's instructions, or the interpreter, which does not?"""
    return isinstance(row_scores, triton.JITFunction)


@triton.jit
def reciprocal(x, APPROXIMATE: tl.constexpr):
    """1/x to one unit in the last place, in one instruction; a division proper takes eight."""
    if APPROXIMATE:
        r = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        r = 1.0 / x
    return r


@triton.jit
def row_prepare(x, fits, out, stride, tokens, d, TILE: tl.constexpr, DEEP: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * TILE + tl.arange(0, TILE)
    c = tl.program_id(2) * DEEP + tl.arange(0, DEEP)
    inside = (t < tokens)[:, None] & (c < d)[None, :]
    tile = tl.load(x + n * stride + t[:, None] * d + c[None, :], mask=inside, other=0.0).to(tl.float32)
    if tl.load(fits + n) != 0:
        tile = tl.exp(2.0 * tile)
    padded = tl.num_programs(1) * TILE
    tl.store(out + n * d * padded + c[None, :] * padded + t[:, None], tile, mask=(t >= 0)[:, None] & (c < d)[None, :])


@triton.jit
def row_scores(
    a, b, v, fits, live, out, heads, high, wide, D: tl.constexpr, TILE: tl.constexpr, APPROXIMATE: tl.constexpr
):
    n, y, x = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if tl.load(live + (n * tl.num_programs(1) + y) * tl.num_programs(2) + x) != 0:
        i, j = y * TILE + tl.arange(0, TILE), x * TILE + tl.arange(0, TILE)
        inside = (i < high)[:, None] & (j < wide)[None, :]
        stride_a, stride_b = tl.num_programs(1) * TILE, tl.num_programs(2) * TILE
        rows, cols, weights = a + n * D * stride_a + i, b + n * D * stride_b + j, v + (n % heads) * D
        spot = out + n * high * wide + i[:, None] * wide + j[None, :]
        # 0, but said so that the compiler lays the sum out like the store: a small square to each thread, not a column
        total = tl.load(spot, inside & (wide < 0), 0.0)
        if tl.load(fits + n) != 0:
            for d in tl.range(0, D, 2, loop_unroll_factor=2):  # type: ignore[misc]
                e = tl.minimum(d + 1, D - 1)
                a0, a1 = tl.load(rows + d * stride_a), tl.load(rows + e * stride_a)
                b0, b1 = tl.load(cols + d * stride_b), tl.load(cols + e * stride_b)
                v0, v1 = (
                    tl.load(weights + d),
                    tl.load(weights + e, d + 1 < D, 0.0),
                )  # an odd width ends with half a pair
                x0 = a0[:, None] * b0[None, :] + 1.0
                x1 = a1[:, None] * b1[None, :] + 1.0
                total += (v0 * x1 + v1 * x0) * reciprocal(x0 * x1, APPROXIMATE)
        else:
            for d in range(D):
                a0, b0 = tl.load(rows + d * stride_a), tl.load(cols + d * stride_b)
                total += tl.load(weights + d) / (1.0 + tl.exp(2.0 * (a0[:, None] + b0[None, :])))
        tl.store(spot, -2.0 * total, inside)


@triton.jit
def row_pull(
    own,
    other,
    g,
    fits,
    live,
    out,
    sums,
    there,
    D: tl.constexpr,
    TILE: tl.constexpr,
    DEEP: tl.constexpr,
    WITH_SUMS: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    n, x, z = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    t, d = x * TILE + tl.arange(0, TILE), z * DEEP + tl.arange(0, DEEP)
    inside = (d < D)[:, None] & (t >= 0)[None, :]
    here = tl.num_programs(1) * TILE
    spot = n * D * here + d[:, None] * here + t[None, :]
    mine = tl.load(own + spot, inside, 0.0)
    theirs = other + n * D * there + tl.minimum(d, D - 1) * there
    pulls = g + n * there * here + t
    seen = live + n * (there // TILE) * tl.num_programs(1) + x
    separable = tl.load(fits + n) != 0
    bend, plain = tl.zeros([DEEP, TILE], tl.float32), tl.zeros([DEEP, TILE], tl.float32)
    first = x * 0
    while first < there:
        if tl.load(seen + (first // TILE) * tl.num_programs(1)) != 0:
            if separable:
                for step in tl.range(0, TILE, 2, loop_unroll_factor=4):
                    s = first + step
                    y0, y1 = tl.load(theirs + s), tl.load(theirs + s + 1)
                    g0 = tl.load(pulls + s * here)
                    g1 = tl.load(pulls + (s + 1) * here)
                    x0 = mine * y0[:, None] + 1.0
                    x1 = mine * y1[:, None] + 1.0
                    both = reciprocal(x0 * x1, APPROXIMATE)
                    r0, r1 = both * x1, both * x0
                    bend += g0[None, :] * (r0 - r0 * r0)
                    bend += g1[None, :] * (r1 - r1 * r1)
                    if WITH_SUMS:
                        plain += g0[None, :] * r0
                        plain += g1[None, :] * r1
            else:
                for step in range(TILE):
                    s = first + step
                    y0, g0 = tl.load(theirs + s), tl.load(pulls + s * here)
                    r0 = 1.0 / (1.0 + tl.exp(2.0 * (mine + y0[:, None])))
                    bend += g0[None, :] * (r0 - r0 * r0)
                    if WITH_SUMS:
                        plain += g0[None, :] * r0
        first += TILE
    tl.store(out + spot, tl.load(out + spot, inside, 0.0) + bend, inside)
    if WITH_SUMS:
        tl.store(sums + (n * tl.num_programs(1) + x) * D + d, tl.sum(plain, 1), d < D)
