"""SDPA backend: torch's scaled_dot_product_attention, for softmax of an inner product plus a bias.

Sinks need no kernel of their own. With z = log Σ exp(s), which torch's kernels keep for their backward pass, and
z' = log(exp(z) + exp(sink)), the weights are exp(s - z') and the output o' = exp(z - z') o. The backward pass of
softmax forms P = exp(s - z) and P (ō·v - ō·o) from what it is given: given z' and o', it is that of a sink.
"""

from typing import Any

import torch
from einops import repeat
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad, scaled_dot_product_attention

from regard.attention.backends.reference import fold_query
from regard.attention.block_map import is_tracing
from regard.attention.gate import state_objections
from regard.attention.normaliser import AttentionDropout, Normaliser, Softmax
from regard.attention.pattern import Causal, Full, IndexGrid, Positions
from regard.attention.position import Bias
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct, ScaledDot
from regard.attention.softmax_variants import split_sinks
from regard.ops.dispatch import needs_float32

LARGEST_MASK = 2**26  # cells; beyond that a mask is dearer than the attention


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    score, (softmax, sinks) = recipe.score, split_sinks(recipe.normaliser)
    return [
        *([] if isinstance(score, InnerProduct) else [f"{score} is not an inner product"]),
        *(
            [f"{score} may be ∞, to which it would add -∞"]
            if isinstance(score, InnerProduct) and score.overflows
            else []
        ),
        *(f"{scheme} is more than a bias" for scheme in recipe.score_positions if not isinstance(scheme, Bias)),
        *(sink_objections(recipe, q, k, positions) if sinks is not None else []),
        *([] if softmax_dropout(softmax) is not None else [f"{recipe.normaliser} is not softmax"]),
        *state_objections(recipe.gate),
    ]


def sink_objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    """Why torch's kernels cannot run softmax with sinks; empty if they can."""
    return [
        *([] if needs_no_mask(recipe, positions) else [f"{recipe.normaliser} under a mask is not a kernel of torch's"]),
        *([] if split_sinks(recipe.normaliser)[0] == Softmax() else [f"{recipe.normaliser} drops weights"]),
        *(["what its kernels keep is not known while torch traces the call"] if is_tracing() else []),
        *([] if q.shape[2] and k.shape[2] else ["there is nothing to see"]),
        *([] if q.device.type == "cpu" or runs_cudnn(recipe, q, k) else ["cuDNN's kernels do not run this"]),
    ]


def runs_cudnn(recipe: Recipe, q: Tensor, k: Tensor) -> bool:
    """Would torch choose cuDNN's kernels for these queries and keys?"""
    if not q.is_cuda or q.dtype.itemsize > 2 or q.shape[3] != k.shape[3]:
        return False
    keys = k[:, :1].expand(-1, q.shape[1], -1, -1)
    choose: Any = torch._fused_sdp_choice  # type: ignore[reportPrivateImportUsage]
    chosen = choose(q, keys, keys, is_causal=recipe.pattern == Causal(), scale=1.0)
    return chosen == SDPBackend.CUDNN_ATTENTION.value


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    if needs_no_mask(recipe, positions) or is_tracing() or q.shape[2] * k.shape[2] <= LARGEST_MASK:
        return []
    return [f"it would need a {q.shape[2]} × {k.shape[2]} mask"]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    if split_sinks(recipe.normaliser)[1] is not None:
        return attend_with_sinks(recipe, q, k, v)
    if needs_no_mask(recipe, positions):
        return folded_sdpa(recipe, q, k, v, None, is_causal=recipe.pattern == Causal())
    cells = positions.grid(*q.shape[:2])
    return attend_masked(recipe, q, k, v, cells, cells.visible(recipe.pattern))


def attend_masked(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, grid: IndexGrid, visible: Tensor | None) -> Tensor:
    """Attention over an index grid; `visible` may leave out axes that do not matter, None hides nothing."""
    if visible is None and not recipe.score_positions:
        return folded_sdpa(recipe, q, k, v, None)
    added, blind = mask(recipe, q, grid, visible)
    out = folded_sdpa(recipe, q, k, v, added)
    return out if blind is None else out.masked_fill(blind, 0.0)


def mask(recipe: Recipe, q: Tensor, grid: IndexGrid | None, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What to add to the scores, and the rows that see nothing.

    Such a row would be 0/0: it is let see everything, for the caller to replace by 0, gradients included.
    """
    bias = torch.zeros((), dtype=q.dtype, device=q.device)
    for scheme in recipe.score_positions:
        assert grid is not None  # nothing can be added nowhere
        bias = bias + scheme.score_term(fold_query(recipe, q), *grid.all())
    if visible is None:
        return bias, None
    blind = ~visible.any(-1, keepdim=True)
    return torch.where(visible | blind, bias, -torch.inf), blind


def folded_sdpa(
    recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, *, is_causal: bool = False
) -> Tensor:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    q, k = recipe.score.fold_q(q), recipe.score.fold_k(k)
    if needs_float32(q, k):
        bias = None if added is None else added.float()
        with torch.autocast("cpu", enabled=False):
            return call_sdpa(recipe, q.float(), k.float(), v.float(), bias, is_causal=is_causal).to(v.dtype)
    return call_sdpa(recipe, q, k, v, added, is_causal=is_causal)


def call_sdpa(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, *, is_causal: bool) -> Tensor:
    return scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=added,
        dropout_p=softmax_dropout(recipe.normaliser) or 0.0,
        is_causal=is_causal,
        scale=1.0,
        enable_gqa=bool(q.shape[1] != k.shape[1]),  # sizes are tensors under torch.jit.trace
    )


# --- sinks ---


def attend_with_sinks(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    sinks, dtype = split_sinks(recipe.normaliser, q.device)[1], v.dtype
    scale = q.shape[3] ** -0.5 if recipe.score == ScaledDot() else 1.0  # within the kernels
    q, k = (q, k) if scale != 1 else (recipe.score.fold_q(q), recipe.score.fold_k(k))
    if q.shape[1] != k.shape[1]:
        k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    q, k, v = (x.float() for x in (q, k, v)) if needs_float32(q, k) else (q, k, v)
    width = max(q.shape[3], v.shape[3])  # the kernels want one for all, and zeros change nothing
    q, k, padded = (x if x.shape[3] == width else pad(x, (0, width - x.shape[3])) for x in (q, k, v))
    out = SinkFunction.apply(q, k, padded, sinks, recipe.pattern == Causal(), scale)
    assert isinstance(out, Tensor)
    return out[..., : v.shape[3]].to(dtype)


class SinkFunction(torch.autograd.Function):
    """softmax(q kᵀ) v with a sink in each head, by torch's kernels."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, is_causal, scale):
        if q.is_cuda:
            keep = {"compute_log_sumexp": True, "is_causal": is_causal, "scale": scale}
            out, z, *more, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, **keep)
        else:
            run, more = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, ()
            out, z = run(q, k, v, is_causal=is_causal, scale=scale)
        sink = sinks.to(z).view(-1, *(1 for _ in z.shape[2:]))
        total = torch.logaddexp(z, sink)
        out = out * (z - total).exp().view(*z.shape[:3], 1).to(out.dtype)
        ctx.save_for_backward(q, k, v, sinks, out, total)
        ctx.call = is_causal, scale, more
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, sinks, out, total), (is_causal, scale, more) = ctx.saved_tensors, ctx.call
        grad = grad.contiguous()
        if q.is_cuda:
            rest, randomness = more[:4], more[4:]
            of = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
                grad, q, k, v, out, total, *randomness, None, *rest, 0.0, is_causal, scale=scale
            )
        else:
            of = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, q, k, v, out, total, 0.0, is_causal, scale=scale
            )
        # the sink's value is 0: ∂L/∂sink = -Σ_i weight_i (ō_i · o_i)
        weights = (sinks.to(total).view(-1, 1) - total.view(*total.shape[:3])).exp()
        pull = -(weights * (grad.to(total.dtype) * out).sum(-1)).sum((0, 2)).to(sinks.dtype)
        return *of, pull if len(sinks) > 1 else pull.sum(0, keepdim=True), None, None


# --- what it runs without a mask ---


def runs_dense(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> bool:
    """Can torch's dense kernels run it without any mask?"""
    sinks = split_sinks(recipe.normaliser)[1]
    return needs_no_mask(recipe, positions) and (sinks is None or not sink_objections(recipe, q, k, positions))


def needs_no_mask(recipe: Recipe, positions: Positions) -> bool:
    """No mask is formed at all: everybody is seen, or torch's own causal flag says the same as the pattern."""
    return recipe.score_positions == () and (  # torch 2.13 cannot trace `not` of a tuple that holds a bound gate
        recipe.pattern == Full() or (recipe.pattern == Causal() and positions.start == 0)
    )


def softmax_dropout(normaliser: Normaliser) -> float | None:
    """The dropout rate of a softmax; None if it is something else."""
    if normaliser == Softmax():
        return 0.0
    return normaliser.rate if isinstance(normaliser, AttentionDropout) and normaliser.then == Softmax() else None
