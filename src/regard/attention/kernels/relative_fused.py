"""q, k, v and the learned numbers of each distance in, the output with gradients out: runs the kernels of relative.py.

A table has a column for each distance j − i from −reach to reach; whatever is farther reads the outermost one.
"""

from dataclasses import dataclass
from math import e as EULER
from math import log2
from typing import Any

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.kernels import relative, relative_back, relative_diagonals
from regard.attention.kernels.relative_vectors import added, asked, precision, summed

PROGRAMS = 1024  # of the walk down the diagonals: enough for every multiprocessor


@dataclass(frozen=True)
class Shape:
    """How a kernel's work is cut: queries and keys a tile, warps a program, tiles under way. It changes speed alone.

    A careful tile takes only `near` of the side that is walked along, so that its many addresses find registers.
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
class Shapes:
    forward: Shape
    queries: Shape
    keys: Shape
    side: int = 64

    @staticmethod
    def of(q: Tensor, *, vectors: bool) -> "Shapes":
        if q.dtype == torch.float32:
            return Shapes(Shape(64, 32, 4, 2), Shape(64, 32, 4, 2), Shape(32, 64, 4, 2), side=32)
        if q.shape[-1] > 64:
            return Shapes(Shape(128, 64, 8, 3), Shape(128, 64, 8, 2), Shape(64, 128, 8, 2))
        if vectors:  # rows of numbers of their own take more addresses
            return Shapes(Shape(128, 64, 4, 3), Shape(64, 64, 4, 3, 32, 168), Shape(128, 64, 4, 2))
        return Shapes(Shape(128, 64, 8, 3, 32, 128), Shape(128, 64, 8, 3, 32, 128), Shape(64, 64, 4, 3, 32, 168))


@dataclass(frozen=True, eq=False)
class Plan:
    """All that is not learned: where the first query stands, who sees whom, the score's scale, the reach."""

    start: int
    causal: bool
    lengths: Int[Tensor, "b"] | None
    scale: float
    reach: int
    shapes: Shapes

    @property
    def width(self) -> int:
        return 2 * self.reach + 1


@dataclass(frozen=True, eq=False)
class Launch:
    """One call's tensors, contiguous, sentences and heads side by side, and what every kernel is told about them."""

    plan: Plan
    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b g j d"]
    v: Float[Tensor, "b g j e"]
    vectors: bool

    @property
    def heads(self) -> int:
        return self.q.shape[0] * self.q.shape[1]

    def lengths(self) -> Tensor:
        """The kernels do not look at what stands in for lengths that are not given."""
        return self.q if self.plan.lengths is None else self.plan.lengths

    def told(self, cut: dict[str, Any]) -> dict[str, Any]:
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
        relative.forward[(self.heads * tiles(i, shape.high),)](
            *(self.q, self.k, self.v, bias, self.lengths(), out, total, band if self.vectors else total),
            **self.told(shape.options(vectors=self.vectors)),
        )
        return out, total, band

    def prepare(self, out: Tensor, grad: Tensor, total: Tensor, bias: Tensor, by_value: Tensor) -> tuple[Tensor, ...]:
        b, h, i, width = out.shape
        totals, deltas = self.new(b, h, 3, i), self.new(b, h, 3, i)
        constants: dict[str, Any] = {"E": width, "WIDTH": self.plan.width, "VECTORS": self.vectors, "HIGH": 64}
        relative.prepare[(self.heads * tiles(i, 64),)](
            *(out, grad, total, bias, by_value, totals, deltas, i, h), **constants
        )
        return totals, deltas

    def back_to_queries(self, grad: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of q, and of the outer distances (with vectors: of all), a row for each query."""
        (b, h, i, d), shape = self.q.shape, self.plan.shapes.queries
        of_q = self.new(b, h, i, d, dtype=torch.float32 if self.vectors else self.q.dtype)
        of_band = self.new(b, h, i, self.plan.width).zero_() if self.vectors else self.new(b, h, i, 2)
        bias, by_value, totals, deltas = learned
        relative_back.for_queries[(self.heads * tiles(i, shape.high),)](
            *(self.q, self.k, self.v, grad, bias, by_value, self.lengths(), totals, deltas, of_q, of_band),
            **self.told(shape.options(vectors=self.vectors)),
        )
        return of_q, of_band

    def back_to_keys(self, grad: Tensor, *learned: Tensor) -> tuple[Tensor, ...]:
        """Gradients of k and v."""
        (b, h, _, d), (_, g, j, e), shape = self.q.shape, self.v.shape, self.plan.shapes.keys
        dtype = self.q.dtype if g == h else torch.float32
        of_k, of_v = self.new(b, h, j, d, dtype=dtype), self.new(b, h, j, e, dtype=dtype)
        bias, by_value, totals, deltas = learned
        relative_back.for_keys[(self.heads * tiles(j, shape.wide),)](
            *(self.q, self.k, self.v, grad, bias, by_value, self.lengths(), totals, deltas, of_k, of_v),
            **self.told(shape.options(vectors=self.vectors)),
        )
        if g == h:
            return of_k, of_v
        return tuple(reduce(x, "b (g s) j d -> b g j d", "sum", g=g).to(self.q.dtype) for x in (of_k, of_v))

    def near(self, grad: Tensor, bias: Tensor, totals: Tensor, deltas: Tensor) -> Float[Tensor, "h distances"]:
        (b, h, i, _), side = self.q.shape, self.plan.shapes.side
        slots = relative_diagonals.slots(self.plan.reach, side)
        each = -(-tiles(i, side) // max(1, PROGRAMS // (self.heads * slots)))
        chunks = tiles(tiles(i, side), each)
        sums = self.new(b, h, slots, chunks, side, side)
        relative_diagonals.diagonals[(self.heads * slots * chunks,)](
            *(self.q, self.k, self.v, grad, bias, self.lengths(), totals, deltas, sums),
            **self.told(
                {"chunks": chunks, "each": each, "SLOTS": slots, "SIDE": side, "num_warps": 4, "num_stages": 2}
            ),
        )
        return relative_diagonals.by_distance(sums, self.plan.reach)


class Numbers(torch.autograd.Function):
    """T5: a number for each head and distance."""

    @staticmethod
    def forward(ctx, plan, q, k, v, table):
        bias = table.float().mul(log2(EULER)).contiguous()
        launch = Launch(plan, q.contiguous(), k.contiguous(), v.contiguous(), vectors=False)
        out, total, _ = launch.forward(bias)
        ctx.save_for_backward(launch.q, launch.k, launch.v, bias, out, total)
        ctx.call = plan, table.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, bias, out, total), (plan, dtype) = ctx.saved_tensors, ctx.call
        launch, grad = Launch(plan, q, k, v, vectors=False), grad.contiguous()
        totals, deltas = launch.prepare(out, grad, total, bias, bias)
        of_q, outer = launch.back_to_queries(grad, bias, bias, totals, deltas)
        of_k, of_v = launch.back_to_keys(grad, bias, bias, totals, deltas)
        before, after = reduce(outer, "b h i side -> side h 1", "sum")
        of_table = torch.cat((before, launch.near(grad, bias, totals, deltas), after), 1)
        return None, of_q, of_k, of_v, of_table.to(dtype)


class Vectors(torch.autograd.Function):
    """Shaw: a key and a value for each distance. What is asked of them is asked once for each query and distance."""

    @staticmethod
    def forward(ctx, plan, q, k, v, keys, values):
        launch = Launch(plan, q.contiguous(), k.contiguous(), v.contiguous(), vectors=True)
        bias = asked(flat(launch.q), keys, plan.scale * log2(EULER))
        out, total, band = launch.forward(bias)
        out = added(flat(out), flat(band), total.flatten(), values, 1.0, q.dtype).view(out.shape)
        ctx.save_for_backward(launch.q, launch.k, launch.v, keys, values, bias, out, total, band)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, keys, values, bias, out, total, band), plan = ctx.saved_tensors, ctx.plan
        launch, grad = Launch(plan, q, k, v, vectors=True), grad.contiguous()
        by_value = asked(flat(grad), values, 1.0)
        totals, deltas = launch.prepare(out, grad, total, bias, by_value)
        of_q, of_band = launch.back_to_queries(grad, bias, by_value, totals, deltas)
        of_k, of_v = launch.back_to_keys(grad, bias, by_value, totals, deltas)
        of_q = added(flat(of_q), flat(of_band), None, keys, plan.scale, q.dtype).view(q.shape)
        of_keys = summed(flat(of_band), None, flat(q), plan.scale)
        of_values = summed(flat(band), total.flatten(), flat(grad), 1.0)
        return None, of_q, of_k, of_v, of_keys, of_values


def flat(x: Float[Tensor, "b h i d"]) -> Float[Tensor, "rows d"]:
    return rearrange(x, "b h i d -> (b h i) d")


def tiles(length: int, size: int) -> int:
    return -(-length // size)
