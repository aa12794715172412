"""Elementwise attention (ReLU, sigmoid), tile by tile: Σ_j f(q_i·k_j) value_j, f(s) = max(s, 0) for one.

Each key is weighed by itself, so no statistic of a row is needed, nothing waits for the backward pass but the inputs,
and no tile must know of another. With ō the gradient of the output and w = f(s),

    g_ij = ∂L/∂s_ij = f'(s_ij) (ō_i·v_j)
    ∂L/∂q_i = Σ_j g_ij k_j,    ∂L/∂k_j = Σ_i g_ij q_i,    ∂L/∂v_j = Σ_i w_ij ō_i.

Here in plain torch, for every pattern; `kernels/tiles.py` has the Triton kernels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import repeat
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.backends.tiles import Interval, K, Out, Q, ScoreTiles, V, Visible, triton_tile_objections
from regard.attention.block_map import planning_objections
from regard.attention.gate import state_objections
from regard.attention.normaliser import Normaliser, ReLU, Sigmoid
from regard.attention.pattern import Positions
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct
from regard.ops.dispatch import accumulation_dtype

FEWEST = 2**16  # scores: below this the definition is as fast


# --- as a backend ---


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    each = type(recipe.normaliser) in (ReLU, Sigmoid)
    return [
        *([] if q.is_cuda else planning_objections()),  # plain torch reads the block map
        *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *(f"{scheme} adds to single scores, whose gradients are not kept" for scheme in recipe.score_positions),
        *([] if each else [f"{recipe.normaliser} does not weigh each key by itself as ReLU and Sigmoid do"]),
        *state_objections(recipe.gate),
    ]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return [
        *([f"{scores:,} scores are no burden, so nothing is gained"] if scores < FEWEST else []),
        *([f"{q.shape[2]} queries leave a kernel's tile empty"] if q.is_cuda and q.shape[2] < 16 else []),
    ]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    engine = choose_engine(recipe, q, v, positions)
    return elementwise_attention(recipe.score.fold_q(q), recipe.score.fold_k(k), v, engine)


# --- the operation ---


class ElementwiseEngine(ABC):
    """Abstract: who walks over the tiles."""

    @abstractmethod
    def forward(self, q: Q, k: K, v: V) -> Out: ...

    @abstractmethod
    def backward(self, q: Q, k: K, v: V, grad: Out) -> tuple[Q, K, V]: ...


def elementwise_attention(q: Q, k: K, v: V, engine: ElementwiseEngine) -> Out:
    """Σ_j f(q_i·k_j) v_j: what f is, who sees whom and who computes it, the engine knows."""
    return ElementwiseFunction.apply(engine, q, k, v)  # type: ignore[return-value]


def choose_engine(recipe: Recipe, q: Tensor, v: Tensor, positions: Positions) -> ElementwiseEngine:
    if triton_tile_objections(recipe.pattern, positions, q, v):
        return TorchElementwise(recipe.normaliser, ScoreTiles.of(recipe.pattern, positions, *q.shape[:2]))
    from regard.attention.kernels.tiles import TritonElementwise  # only here is Triton needed

    interval = Interval.of(recipe.pattern)
    assert interval is not None  # or it would say why not
    assert positions.start is not None
    return TritonElementwise(recipe.normaliser, interval, positions.start)


class ElementwiseFunction(torch.autograd.Function):
    """Keeps its inputs and nothing else."""

    @staticmethod
    def forward(ctx, engine, q, k, v):
        ctx.engine = engine
        ctx.save_for_backward(q, k, v)
        with torch.autocast(q.device.type, enabled=False):
            return engine.forward(q, k, v)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        with torch.autocast(grad.device.type, enabled=False):
            return None, *ctx.engine.backward(*ctx.saved_tensors, grad)


# --- in plain torch ---

# f(s), and f'(s) from s and w = f(s)
FUNCTIONS: dict[Normaliser, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    ReLU(): (torch.relu, lambda s, w: (s > 0).to(s.dtype)),
    Sigmoid(): (torch.sigmoid, lambda s, w: w * (1 - w)),
}


@dataclass(frozen=True, eq=False)
class TorchElementwise(ElementwiseEngine):
    """Every pattern, on any device."""

    normaliser: Normaliser
    tiles: ScoreTiles

    def forward(self, q, k, v):
        out = v.new_zeros(*q.shape[:3], v.shape[3])
        for rows, seen in self.tiles.bands():
            mine = q[:, :, rows].to(accumulation_dtype(q))
            total = torch.zeros(*mine.shape[:3], v.shape[3], dtype=mine.dtype, device=q.device)
            for cols, visible in seen:
                _, w = self.weigh(mine, k[:, :, cols].to(mine.dtype), visible)
                total += w @ v[:, :, cols].to(w.dtype)
            out[:, :, rows] = total
        return out

    def backward(self, q, k, v, grad):
        _, slope = FUNCTIONS[self.normaliser]
        dq, dk, dv = (torch.zeros_like(x, dtype=accumulation_dtype(x)) for x in (q, k, v))
        for rows, seen in self.tiles.bands():
            mine, upstream = q[:, :, rows].to(dq.dtype), grad[:, :, rows].to(dq.dtype)
            for cols, visible in seen:
                keys, values = k[:, :, cols].to(dk.dtype), v[:, :, cols].to(dv.dtype)
                s, w = self.weigh(mine, keys, visible)
                dv[:, :, cols] += w.mT @ upstream
                ds = zero_hidden(slope(s, w) * (upstream @ values.mT), visible)
                dq[:, :, rows] += ds @ keys
                dk[:, :, cols] += ds.mT @ mine
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    def weigh(self, q: Tensor, k: Tensor, visible: Visible) -> tuple[Tensor, Tensor]:
        s = q @ k.mT
        return s, zero_hidden(FUNCTIONS[self.normaliser][0](s), visible)


def zero_hidden(x: Tensor, visible: Visible) -> Tensor:
    return x if visible is None else torch.where(visible, x, 0.0)
