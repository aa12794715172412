"""Additive attention, tile by tile: Σ_j softmax_j(v·tanh(a_i + b_j)) value_j without its n × m × d tensor.

Never anything of the size queries × keys × width, forward or backward. Queries are taken in bands whose scores fit into
a fixed space. All that needs a triple (i, j, d) is computed by an `AdditiveEngine`: here in plain torch, in cache-sized
tiles; `kernels/additive.py` has the Triton kernels. With r = 1 / (1 + e^{2a} e^{2b}) and hence tanh(a + b) = 1 − 2r,

    s_ij = −2 Σ_d v_d r_ijd        (plus Σ_d v_d, which no softmax feels)
    g_ij = ∂L/∂s_ij = p_ij (ō_i·value_j − Σ_j p_ij ō_i·value_j)
    ∂L/∂a_id = 4 v_d Σ_j g_ij (r − r²),   ∂L/∂b_jd = 4 v_d Σ_i g_ij (r − r²),   ∂L/∂v_d = −2 Σ_ij g_ij r_ijd,

where the last holds because Σ_j g_ij = 0. Between the passes only the output and the log-sum-exp are kept; for a short
sequence the weights instead, as they were used (rounded like the values), since to recompute them is a quarter of all
the work.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.block_map import planning_objections
from regard.attention.gate import state_objections
from regard.attention.normaliser import Softmax
from regard.attention.pattern import Full, IndexGrid, Pattern, Positions
from regard.attention.recipe import Recipe
from regard.attention.score import Additive
from regard.ops.dispatch import accumulation_dtype

CELLS_AT_ONCE, CELLS_ON_A_GPU, CELLS_BACK = (
    2**21,
    2**23,
    2**22,
)  # scores of a band; in the backward pass sums lie beside
CELLS_KEPT = 2**23  # weights that may wait for the backward pass
TRIPLES_AT_ONCE, KEYS_AT_ONCE = 2**17, 32  # of a tile: small enough for the caches of one core
FEWEST = 16  # queries, on a GPU: below this torch's own kernels waste less
# e^{2x} and its product with another stay normal numbers while |x| is below these
LARGEST = {torch.float32: 43.0, torch.float64: 350.0}

Visible = Bool[Tensor, "#b #h r j"] | None  # of a band; None: everything
Band = tuple[slice, Float[Tensor, "b h r j"], Visible]
Gradients = tuple[Float[Tensor, "b h i d"], Float[Tensor, "b h j d"], Float[Tensor, "h d"]]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    assert isinstance(recipe.score, Additive)  # or it objected
    k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    visibility = QueryVisibility(recipe.pattern, positions.grid(*q.shape[:2]))
    return additive_attention(recipe.score.W(q), recipe.score.U(k), recipe.score.v, v, visibility)


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return [
        *([] if q.is_cuda else planning_objections()),  # plain torch reads the block map
        *([] if type(recipe.score) is Additive else [f"{recipe.score} is not v·tanh(W q + U k)"]),
        *(f"{scheme} adds to single scores, whose gradients are not kept" for scheme in recipe.score_positions),
        *([] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]),
        *state_objections(recipe.gate),
        *(triton_additive_objections(q) if q.device.type == "cuda" else []),
    ]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    assert isinstance(recipe.score, Additive)  # or it objected
    triples = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * recipe.score.hidden
    return [
        *([f"{triples:,} numbers fit into one tile, so nothing is gained"] if triples <= TRIPLES_AT_ONCE else []),
        *([f"{q.shape[2]} queries leave a kernel's tile empty"] if q.is_cuda and q.shape[2] < FEWEST else []),
    ]


def triton_additive_objections(q: Tensor) -> list[str]:
    """Why the Triton kernels cannot run; empty if they can."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return ["its kernels need Triton, which is not installed: pip install triton"]
    return ["its kernels count in float32, which is too coarse for float64"] * (q.dtype == torch.float64)


@dataclass(frozen=True, eq=False)
class QueryVisibility:
    """Which keys each query may attend to, a band of queries at a time."""

    pattern: Pattern
    cells: IndexGrid

    @staticmethod
    def of(pattern: Pattern, a: Tensor, b: Tensor, *, q_index: int = 0) -> "QueryVisibility":
        return QueryVisibility(pattern, Positions.of(a, b, q_index, None).grid(*a.shape[:2]))

    def band(self, rows: slice) -> Visible:
        if self.pattern == Full():
            return None
        cells = IndexGrid(self.cells.b, self.cells.h, self.cells.i[:, :, rows], self.cells.j)
        return cells.visible(self.pattern)


class AdditiveEngine(ABC):
    """Abstract: the two questions about every triple (i, j, d), and the two about every pair (i, j)."""

    @abstractmethod
    def scores(self, rows: slice, visible: Visible) -> Float[Tensor, "b h r j"]:
        """−2 Σ_d v_d r_ijd for a band of queries; anything at all where whole tiles are hidden."""

    @abstractmethod
    def gradients(self, bands: Iterable[Band]) -> Gradients:
        """Of a, b and v, from g, band by band."""

    @abstractmethod
    def weigh(self, s: Float[Tensor, "b h r j"], visible: Visible, out: Float[Tensor, "b h r j"]) -> None:
        """softmax, and 0 in a row that sees nothing."""

    @abstractmethod
    def score_gradients(
        self, p: Float[Tensor, "b h r j"], upstream: Float[Tensor, "b h r j"]
    ) -> Float[Tensor, "b h r j"]:
        """g from the weights and their gradients, at least in float32; 0 where the weight is 0."""

    def rebuild(self, pairs_of: Callable[..., "AdditiveEngine"]) -> Callable[..., "AdditiveEngine"]:
        """A constructor of its like for the backward pass; nothing large may be kept."""
        return pairs_of


def additive_attention(
    a: Float[Tensor, "b h i d"],
    b: Float[Tensor, "b h j d"],
    v: Float[Tensor, "d"] | Float[Tensor, "h d"],
    values: Float[Tensor, "b h j e"],
    visibility: QueryVisibility | None = None,
    *,
    pairs: Callable[[Tensor, Tensor, Tensor], AdditiveEngine] | None = None,
) -> Float[Tensor, "b h i e"]:
    """softmax_j(v·tanh(a_i + b_j)) values_j, where queries see what `visibility` lets them (default: everything).

    `pairs` says who computes the triples. Default: the Triton kernels on a GPU, plain torch elsewhere.
    """
    fits = a.shape[:2] == b.shape[:2] and a.shape[3] == b.shape[3] and b.shape[:3] == values.shape[:3]
    if not fits or tuple(v.shape) not in ((a.shape[3],), (a.shape[1], a.shape[3])):
        shapes = ", ".join(f"{tuple(x.shape)}" for x in (a, b, v, values))
        raise ValueError(f"a (b h i d), b (b h j d), v (d) or (h d) and values (b h j e) do not fit: {shapes}")
    return AdditiveFunction.apply(pairs or choose_engine(a), visibility, a, b, v.expand(a.shape[1], -1), values)  # type: ignore[return-value]


def choose_engine(a: Tensor) -> Callable[[Tensor, Tensor, Tensor], AdditiveEngine]:
    if a.device.type != "cuda" or triton_additive_objections(a):
        return TorchAdditive.of
    from regard.attention.kernels.additive import TritonAdditive  # only here is Triton needed

    return TritonAdditive.of


class AdditiveFunction(torch.autograd.Function):
    """The softmax and the values, a band of queries at a time."""

    @staticmethod
    def forward(ctx, pairs_of, visibility, a, b, v, values):
        with torch.autocast(a.device.type, enabled=False):
            pairs = pairs_of(a, b, v)
            if 0 < a.shape[:3].numel() * b.shape[2] <= CELLS_KEPT:
                weights, total = all_weights(pairs, visibility, a, b, values.dtype), None
                out = weights @ values
            else:
                weights, (out, total) = None, all_bands(pairs, visibility, a, b, values)
        ctx.save_for_backward(a, b, v, values, weights, total)
        ctx.call = pairs.rebuild(pairs_of), visibility
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (a, b, v, values, weights, total), (pairs_of, visibility) = ctx.saved_tensors, ctx.call
        pairs = pairs_of(a, b, v)
        of_values = values.new_zeros(values.shape if weights is None else 0, dtype=accumulation_dtype(values))

        def score_gradient_bands() -> Iterator[Band]:
            for rows in bands(a, b, CELLS_BACK):
                seen, upstream = band_visibility(visibility, rows), grad[:, :, rows]
                if weights is not None:
                    p = weights[:, :, rows]
                else:
                    p = hide_scores(pairs.scores(rows, seen), seen).sub_(total[:, :, rows]).exp_()
                    of_values.add_(p.to(values.dtype).mT @ upstream)
                yield rows, pairs.score_gradients(p, upstream @ values.mT), seen

        da, db, dv = pairs.gradients(score_gradient_bands())
        of_values = of_values if weights is None else weights.mT @ grad  # last: not while g needs the memory
        return None, None, da.to(a.dtype), db.to(b.dtype), dv.to(v.dtype), of_values.to(values.dtype)


def all_weights(
    pairs: AdditiveEngine, visibility: QueryVisibility | None, a: Tensor, b: Tensor, dtype: torch.dtype
) -> Tensor:
    """Every weight of a short sequence."""
    weights = torch.empty(*a.shape[:3], b.shape[2], dtype=dtype, device=a.device)
    for rows in bands(a, b, CELLS_ON_A_GPU):
        pairs.weigh(
            hide_scores(pairs.scores(rows, seen := band_visibility(visibility, rows)), seen), seen, weights[:, :, rows]
        )
    return weights


def all_bands(
    pairs: AdditiveEngine, visibility: QueryVisibility | None, a: Tensor, b: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp; weights only a band at a time."""
    out = values.new_zeros(*a.shape[:3], values.shape[3])
    total = torch.zeros(*a.shape[:3], 1, dtype=accumulation_dtype(a), device=a.device)
    for rows in bands(a, b, CELLS_ON_A_GPU):
        s = hide_scores(pairs.scores(rows, seen := band_visibility(visibility, rows)), seen)
        sums = s.logsumexp(-1, keepdim=True)
        sums.masked_fill_(sums == -torch.inf, 0.0)  # of a row that sees nothing: all its weights become 0
        out[:, :, rows], total[:, :, rows] = s.sub_(sums).exp_().to(values.dtype) @ values, sums
        del s  # before the next band takes as much
    return out, total


def bands(a: Tensor, b: Tensor, on_a_gpu: int) -> Iterator[slice]:
    """Queries whose scores fit, in whole tiles of the kernels where possible; none if there is no key to see."""
    cells = a.shape[0] * a.shape[1] * b.shape[2]
    size = max(1, (CELLS_AT_ONCE if a.device.type == "cpu" else on_a_gpu) // max(1, cells))
    size = size // 64 * 64 or size
    return (slice(first, min(first + size, a.shape[2])) for first in range(0, a.shape[2] if cells else 0, size))


def band_visibility(visibility: QueryVisibility | None, rows: slice) -> Visible:
    return None if visibility is None else visibility.band(rows)


def hide_scores(s: Tensor, visible: Visible) -> Tensor:
    return s if visible is None else s.masked_fill_(~visible, -torch.inf)


# --- triples in plain torch ---


@dataclass(frozen=True, eq=False)
class TorchAdditive(AdditiveEngine):
    """Tile by tile in plain torch.

    Args:
        separable: whether the numbers allow a and b to be exponentials: then r takes one reciprocal and no tanh.
    """

    a: Float[Tensor, "b h i d"]
    b: Float[Tensor, "b h j d"]
    v: Float[Tensor, "h d"]
    separable: bool

    @staticmethod
    def of(a: Tensor, b: Tensor, v: Tensor) -> "TorchAdditive":
        a, b, v = (x.to(accumulation_dtype(x)) for x in (a, b, v))
        limit = LARGEST[a.dtype]
        if separable := all(bool((x.abs() <= limit).all()) for x in (a, b)):  # and so not if one is NaN
            a, b = (x.mul(2).exp_() for x in (a, b))
        return TorchAdditive(a, b, v, separable)

    def tile(self, spot: tuple[int, int, slice, slice]) -> Float[Tensor, "r c d"]:
        n, h, rows, cols = spot
        a, b = self.a[n, h, rows, None], self.b[n, h, None, cols]
        if self.separable:
            return torch.addcmul(a.new_ones(()), a, b).reciprocal_()
        return (a + b).mul_(-2).sigmoid_()  # 1 / (1 + e^{2(a + b)})

    def tiles(self, rows: slice, visible: Visible) -> Iterator[tuple[tuple[int, int, slice, slice], Tensor]]:
        """Every tile that someone sees: where it is, and r there."""
        (n, heads, _, d), keys = self.a.shape, self.b.shape[2]
        wide = max(1, min(KEYS_AT_ONCE, keys))
        high = max(1, TRIPLES_AT_ONCE // (wide * max(1, d)))
        visible = None if visible is None else visible.expand(n, heads, -1, -1)
        for at in torch.cartesian_prod(torch.arange(n), torch.arange(heads)).tolist():
            for first in range(rows.start, rows.stop, high):
                across = slice(first, min(first + high, rows.stop))
                for start in range(0, keys, wide):
                    spot = (at[0], at[1], across, slice(start, min(start + wide, keys)))
                    if visible is None or bool(visible[within(spot, rows)].any()):
                        yield spot, self.tile(spot)

    def scores(self, rows, visible):
        s = self.a.new_zeros(*self.a.shape[:2], rows.stop - rows.start, self.b.shape[2])
        for spot, r in self.tiles(rows, visible):
            s[within(spot, rows)] = r @ self.v[spot[1]]
        return s.mul_(-2)

    def gradients(self, bands):
        da, db, dv = (torch.zeros_like(x) for x in (self.a, self.b, self.v))
        for band, g, visible in bands:
            for spot, r in self.tiles(band, visible):
                n, h, rows, cols = spot
                upstream = g[within(spot, band)]
                dv[h] += upstream.flatten() @ r.flatten(0, 1)
                bend = r.addcmul_(r, r, value=-1)
                da[n, h, rows] += torch.bmm(upstream[:, None], bend)[:, 0]
                db[n, h, cols] += torch.bmm(upstream.mT[:, None], bend.transpose(0, 1))[:, 0]
        slope = rearrange(4 * self.v, "h d -> h 1 d")
        return da * slope, db * slope, dv.mul_(-2)

    def weigh(self, s, visible, out):
        p = s.softmax(-1)
        out.copy_(p if visible is None else p.masked_fill_(~visible.any(-1, keepdim=True), 0.0))

    def score_gradients(self, p, upstream):
        p, nothing = p.to(self.a.dtype), p == 0
        upstream, sums = upstream.to(p.dtype).masked_fill(nothing, 0.0), p.sum(-1, keepdim=True)
        return p * (upstream - (p * upstream).sum(-1, keepdim=True) / sums.masked_fill_(sums == 0, 1.0))


def within(spot: tuple[int, int, slice, slice], band: slice) -> tuple[int, int, slice, slice]:
    """A tile's slice of its band."""
    n, h, rows, cols = spot
    return n, h, slice(rows.start - band.start, rows.stop - band.start), cols
