"""Relative-position attention on a GPU: an autograd function that launches the kernels, and Shaw's small products.

A table has a column for each distance j − i from −reach to reach; whatever is farther reads the outermost one.

Shaw's products with the few vectors of distances, many rows times a small matrix, have Triton kernels here:

    dot_vectors_kernel   y = factor · x aᵀ          each row's product with each distance's vector: q·a^K and ō·a^V
    add_vectors_kernel   y = x + factor · m a       what they add to each row: Σ_c M_ic a^V_c and Σ_c B̄_ic a^K_c
    sum_vectors_kernel   a = factor · Σ_rows mᵀ y   the gradients of the vectors, in pieces to be added up

The mass M_ic is kept as log₂ M + L and turned into M where it is read, so that nobody has to write it down. One pass
each: in torch, where half precision must be cast to float32 first, the same takes several times the traffic.
"""

from dataclasses import dataclass
from math import e as EULER
from math import log2
from typing import Any

import torch
import triton
import triton.language as tl
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.kernels import relative_kernels as relative_kernels

HIGH, PIECE = 64, 256  # rows a tile, and rows a piece of `sum_up`


def dot_vectors(x: Float[Tensor, "rows d"], vectors: Float[Tensor, "w d"], factor: float) -> Float[Tensor, "rows w"]:
    rows, width = len(x), len(vectors)
    out = torch.empty(rows, width, dtype=torch.float32, device=x.device)
    arguments = constants(x, width)
    dot_vectors_kernel[-(-rows // HIGH), -(-width // arguments["SOME"])](x, vectors, out, rows, factor, **arguments)
    return out


def add_vectors(
    x: Float[Tensor, "rows d"],
    by_distance: Float[Tensor, "rows w"],
    total: Float[Tensor, "rows"] | None,
    vectors: Float[Tensor, "w d"],
    factor: float,
    dtype: torch.dtype,
) -> Float[Tensor, "rows d"]:
    """x plus what distances add; with `total`, by_distance is the logarithm of a mass."""
    rows, width = len(x), len(vectors)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    arguments = constants(out, width, LOGARITHM=total is not None)
    add_vectors_kernel[(-(-rows // HIGH),)](
        x, by_distance, x if total is None else total, vectors, out, rows, factor, **arguments
    )
    return out


def sum_vectors(
    by_distance: Float[Tensor, "rows w"], total: Float[Tensor, "rows"] | None, y: Float[Tensor, "rows d"], factor: float
) -> Float[Tensor, "w d"]:
    """Σ over rows of by_distanceᵀ y; with `total`, by_distance is the logarithm of a mass."""
    (rows, d), width = y.shape, by_distance.shape[1]
    pieces, arguments = -(-rows // PIECE), constants(y, width, LOGARITHM=total is not None, PIECE=PIECE)
    out = torch.empty(pieces, width, d, dtype=torch.float32, device=y.device)
    sum_vectors_kernel[pieces, -(-width // arguments["SOME"])](
        by_distance, y if total is None else total, y, out, rows, factor, **arguments
    )
    return out.sum(0)


def constants(x: Tensor, width: int, **more: int) -> dict[str, Any]:
    """Constants of every kernel. Distances come 16 a tile at least, because products of matrices want that."""
    some = min(64, max(16, 2 ** (width - 1).bit_length()))
    return {"D": x.shape[1], "WIDTH": width, "HIGH": HIGH, "SOME": some, "PRECISION": precision(x), **more}


def precision(x: Tensor) -> str:
    """How products of numbers that came like x are made: for float32 of three in tf32, which lose nothing."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


@triton.jit
def dot_vectors_kernel(
    x, vectors, out, rows, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, SOME: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH)
    c, d = tl.program_id(1) * SOME + tl.arange(0, SOME), tl.arange(0, D)
    mine = tl.load(x + r[:, None] * D + d[None, :], (r < rows)[:, None], 0.0).to(tl.float32)
    theirs = tl.load(vectors + c[:, None] * D + d[None, :], (c < WIDTH)[:, None], 0.0)
    y = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION) * factor
    tl.store(out + r[:, None] * WIDTH + c[None, :], y, (r < rows)[:, None] & (c < WIDTH)[None, :])


@triton.jit
def add_vectors_kernel(
    x, by_distance, total, vectors, out, rows, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, LOGARITHM: tl.constexpr, HIGH: tl.constexpr, SOME: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    r, d = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH), tl.arange(0, D)
    spot = r[:, None] * D + d[None, :]
    y = tl.zeros([HIGH, D], tl.float32)
    for first in tl.range(0, WIDTH, SOME):
        c = first + tl.arange(0, SOME)
        m = load_weights(by_distance, total, r[:, None], c[None, :], rows, WIDTH, LOGARITHM)
        y = tl.dot(m, tl.load(vectors + c[:, None] * D + d[None, :], (c < WIDTH)[:, None], 0.0), y, PRECISION)
    y = y * factor + tl.load(x + spot, (r < rows)[:, None], 0.0)
    tl.store(out + spot, y.to(out.dtype.element_ty), (r < rows)[:, None])


@triton.jit
def sum_vectors_kernel(
    by_distance, total, y, out, rows, factor,
    D: tl.constexpr, WIDTH: tl.constexpr, LOGARITHM: tl.constexpr, PIECE: tl.constexpr, HIGH: tl.constexpr,
    SOME: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    c, d = tl.program_id(1) * SOME + tl.arange(0, SOME), tl.arange(0, D)
    a = tl.zeros([SOME, D], tl.float32)
    for first in tl.range(0, PIECE, HIGH):
        r = n * PIECE + first + tl.arange(0, HIGH)
        m = load_weights(by_distance, total, r[:, None], c[None, :], rows, WIDTH, LOGARITHM)
        theirs = tl.load(y + r[:, None] * D + d[None, :], (r < rows)[:, None], 0.0).to(tl.float32)
        a = tl.dot(tl.trans(m), theirs, a, PRECISION)
    tl.store(out + (n * WIDTH + c[:, None]) * D + d[None, :], a * factor, (c < WIDTH)[:, None])


@triton.jit
def load_weights(by_distance, total, r, c, rows, WIDTH: tl.constexpr, LOGARITHM: tl.constexpr):
    inside = (r < rows) & (c < WIDTH)
    m = tl.load(by_distance + r * WIDTH + c, inside, 0.0)
    if LOGARITHM:
        m = tl.where(inside, tl.exp2(m - tl.load(total + r, r < rows, 0.0)), 0.0)
    return m


# --- attention ---


PROGRAMS = 1024  # of the pass down the diagonals: enough for every multiprocessor


@dataclass(frozen=True)
class RelativeTileShape:
    """How a kernel's work is cut: queries and keys a tile, warps a program, tiles under way. It changes speed alone.

    A careful tile takes only `near` of the side that is passed over, so that its many addresses find registers.
    """

    high: int
    wide: int
    warps: int
    stages: int
    near: int = 16
    registers: int | None = None  # at most, for each thread

    def options(self, *, vectors: bool) -> dict[str, Any]:
        cut = {"HIGH": self.high, "WIDE": self.wide, "NEAR": self.near, "VECTORS": vectors}
        return cut | {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


@dataclass(frozen=True)
class RelativeTileShapes:
    forward: RelativeTileShape
    queries: RelativeTileShape
    keys: RelativeTileShape
    side: int = 64

    @staticmethod
    def of(q: Tensor, *, vectors: bool) -> "RelativeTileShapes":
        if q.dtype == torch.float32:
            return RelativeTileShapes(
                RelativeTileShape(64, 32, 4, 2),
                RelativeTileShape(64, 32, 4, 2),
                RelativeTileShape(32, 64, 4, 2),
                side=32,
            )
        if q.shape[-1] > 64:
            return RelativeTileShapes(
                RelativeTileShape(128, 64, 8, 3), RelativeTileShape(128, 64, 8, 2), RelativeTileShape(64, 128, 8, 2)
            )
        if vectors:  # rows of numbers of their own take more addresses
            return RelativeTileShapes(
                RelativeTileShape(128, 64, 4, 3),
                RelativeTileShape(64, 64, 4, 3, 32, 168),
                RelativeTileShape(128, 64, 4, 2),
            )
        return RelativeTileShapes(
            RelativeTileShape(128, 64, 8, 3, 32, 128),
            RelativeTileShape(128, 64, 8, 3, 32, 128),
            RelativeTileShape(64, 64, 4, 3, 32, 168),
        )


@dataclass(frozen=True, eq=False)
class RelativePlan:
    """All that is not learned: the position of the first query, the pattern, the score's scale, the reach."""

    start: int
    causal: bool
    lengths: Int[Tensor, "b"] | None
    scale: float
    reach: int
    shapes: RelativeTileShapes

    @property
    def width(self) -> int:
        return 2 * self.reach + 1


@dataclass(frozen=True, eq=False)
class RelativeLaunch:
    """One call's tensors, contiguous, batch and heads side by side, and the arguments of every kernel."""

    plan: RelativePlan
    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b g j d"]
    v: Float[Tensor, "b g j e"]
    vectors: bool

    @property
    def heads(self) -> int:
        return self.q.shape[0] * self.q.shape[1]

    def lengths(self) -> Tensor:
        """The kernels do not read what is passed instead of lengths that are None."""
        return self.q if self.plan.lengths is None else self.plan.lengths

    def launch_arguments(self, cut: dict[str, Any]) -> dict[str, Any]:
        """Sizes, constants and the shape of a kernel's tiles, by name."""
        (_, h, i, d), (_, g, j, e), plan = self.q.shape, self.v.shape, self.plan
        sizes = {"queries": i, "keys": j, "start": plan.start, "heads": h, "share": h // g, "unit": plan.scale}
        seen = {"D": d, "E": e, "REACH": plan.reach, "CAUSAL": plan.causal, "PADDED": plan.lengths is not None}
        return sizes | seen | {"PRECISION": precision(self.q)} | cut

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.q.device)

    def forward(self, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output without the values of distances, L, and for vectors log₂ of the mass of each distance, plus L."""
        (b, h, i, _), shape = self.q.shape, self.plan.shapes.forward
        out = self.new(b, h, i, self.v.shape[-1], dtype=torch.float32 if self.vectors else self.q.dtype)
        total = self.new(b, h, i)
        band = self.new(b, h, i, self.plan.width if self.vectors else 0).fill_(-torch.inf)
        relative_kernels.forward[(self.heads * tile_count(i, shape.high),)](
            *(self.q, self.k, self.v, bias, self.lengths(), out, total, band if self.vectors else total),
            **self.launch_arguments(shape.options(vectors=self.vectors)),
        )
        return out, total, band

    def prepare(self, out: Tensor, grad: Tensor, total: Tensor, bias: Tensor, by_value: Tensor) -> tuple[Tensor, ...]:
        b, h, i, width = out.shape
        totals, deltas = self.new(b, h, 3, i), self.new(b, h, 3, i)
        constants: dict[str, Any] = {"E": width, "WIDTH": self.plan.width, "VECTORS": self.vectors, "HIGH": 64}
        relative_kernels.prepare[(self.heads * tile_count(i, 64),)](
            *(out, grad, total, bias, by_value, totals, deltas, i, h), **constants
        )
        return totals, deltas

    def backward_queries(self, grad: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of q, and of the outer distances (with vectors: of all), a row for each query."""
        (b, h, i, d), shape = self.q.shape, self.plan.shapes.queries
        of_q = self.new(b, h, i, d, dtype=torch.float32 if self.vectors else self.q.dtype)
        of_band = self.new(b, h, i, self.plan.width).zero_() if self.vectors else self.new(b, h, i, 2)
        bias, by_value, totals, deltas = learned
        relative_kernels.queries_backward[(self.heads * tile_count(i, shape.high),)](
            *(self.q, self.k, self.v, grad, bias, by_value, self.lengths(), totals, deltas, of_q, of_band),
            **self.launch_arguments(shape.options(vectors=self.vectors)),
        )
        return of_q, of_band

    def backward_keys(self, grad: Tensor, *learned: Tensor) -> tuple[Tensor, ...]:
        """Gradients of k and v."""
        (b, h, _, d), (_, g, j, e), shape = self.q.shape, self.v.shape, self.plan.shapes.keys
        dtype = self.q.dtype if g == h else torch.float32
        of_k, of_v = self.new(b, h, j, d, dtype=dtype), self.new(b, h, j, e, dtype=dtype)
        bias, by_value, totals, deltas = learned
        relative_kernels.keys_backward[(self.heads * tile_count(j, shape.wide),)](
            *(self.q, self.k, self.v, grad, bias, by_value, self.lengths(), totals, deltas, of_k, of_v),
            **self.launch_arguments(shape.options(vectors=self.vectors)),
        )
        if g == h:
            return of_k, of_v
        return tuple(reduce(x, "b (g s) j d -> b g j d", "sum", g=g).to(self.q.dtype) for x in (of_k, of_v))

    def near_diagonals(
        self, grad: Tensor, bias: Tensor, totals: Tensor, deltas: Tensor
    ) -> Float[Tensor, "h distances"]:
        (b, h, i, _), side = self.q.shape, self.plan.shapes.side
        slots = relative_kernels.slots(self.plan.reach, side)
        each = -(-tile_count(i, side) // max(1, PROGRAMS // (self.heads * slots)))
        chunks = tile_count(tile_count(i, side), each)
        sums = self.new(b, h, slots, chunks, side, side)
        relative_kernels.diagonals[(self.heads * slots * chunks,)](
            *(self.q, self.k, self.v, grad, bias, self.lengths(), totals, deltas, sums),
            **self.launch_arguments(
                {"chunks": chunks, "each": each, "SLOTS": slots, "SIDE": side, "num_warps": 4, "num_stages": 2}
            ),
        )
        return relative_kernels.by_distance(sums, self.plan.reach)


class RelativeBiasFunction(torch.autograd.Function):
    """T5: a number for each head and distance."""

    @staticmethod
    def forward(ctx, plan, q, k, v, table):
        bias = table.float().mul(log2(EULER)).contiguous()
        launch = RelativeLaunch(plan, q.contiguous(), k.contiguous(), v.contiguous(), vectors=False)
        out, total, _ = launch.forward(bias)
        ctx.save_for_backward(launch.q, launch.k, launch.v, bias, out, total)
        ctx.call = plan, table.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, bias, out, total), (plan, dtype) = ctx.saved_tensors, ctx.call
        launch, grad = RelativeLaunch(plan, q, k, v, vectors=False), grad.contiguous()
        totals, deltas = launch.prepare(out, grad, total, bias, bias)
        of_q, outer = launch.backward_queries(grad, bias, bias, totals, deltas)
        of_k, of_v = launch.backward_keys(grad, bias, bias, totals, deltas)
        before, after = reduce(outer, "b h i side -> side h 1", "sum")
        of_table = torch.cat((before, launch.near_diagonals(grad, bias, totals, deltas), after), 1)
        return None, of_q, of_k, of_v, of_table.to(dtype)


class RelativeVectorsFunction(torch.autograd.Function):
    """Shaw: a key and a value for each distance. Their products are computed once for each query and distance."""

    @staticmethod
    def forward(ctx, plan, q, k, v, keys, values):
        launch = RelativeLaunch(plan, q.contiguous(), k.contiguous(), v.contiguous(), vectors=True)
        bias = dot_vectors(flat(launch.q), keys, plan.scale * log2(EULER))
        out, total, band = launch.forward(bias)
        out = add_vectors(flat(out), flat(band), total.flatten(), values, 1.0, q.dtype).view(out.shape)
        ctx.save_for_backward(launch.q, launch.k, launch.v, keys, values, bias, out, total, band)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, keys, values, bias, out, total, band), plan = ctx.saved_tensors, ctx.plan
        launch, grad = RelativeLaunch(plan, q, k, v, vectors=True), grad.contiguous()
        by_value = dot_vectors(flat(grad), values, 1.0)
        totals, deltas = launch.prepare(out, grad, total, bias, by_value)
        of_q, of_band = launch.backward_queries(grad, bias, by_value, totals, deltas)
        of_k, of_v = launch.backward_keys(grad, bias, by_value, totals, deltas)
        of_q = add_vectors(flat(of_q), flat(of_band), None, keys, plan.scale, q.dtype).view(q.shape)
        of_keys = sum_vectors(flat(of_band), None, flat(q), plan.scale)
        of_values = sum_vectors(flat(band), total.flatten(), flat(grad), 1.0)
        return None, of_q, of_k, of_v, of_keys, of_values


def flat(x: Float[Tensor, "b h i d"]) -> Float[Tensor, "rows d"]:
    return rearrange(x, "b h i d -> (b h i) d")


def tile_count(length: int, size: int) -> int:
    return -(-length // size)
