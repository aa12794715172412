"""SDPA backend: torch's scaled_dot_product_attention, for softmax of an inner product plus a bias."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.backends.reference import fold_query
from regard.attention.block_map import is_tracing
from regard.attention.gate import state_objections
from regard.attention.normaliser import AttentionDropout, Normaliser, Softmax
from regard.attention.pattern import Causal, Full
from regard.attention.position import Bias
from regard.attention.positions import IndexGrid, Positions
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct
from regard.ops.dispatch import needs_float32

LARGEST_MASK = 2**26  # cells; beyond that a mask is dearer than the attention


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    score = recipe.score
    return [
        *([] if isinstance(score, InnerProduct) else [f"{score} is not an inner product"]),
        *(
            [f"{score} may be ∞, to which it would add -∞"]
            if isinstance(score, InnerProduct) and score.overflows
            else []
        ),
        *(f"{scheme} is more than a bias" for scheme in recipe.score_positions if not isinstance(scheme, Bias)),
        *([] if softmax_dropout(recipe.normaliser) is not None else [f"{recipe.normaliser} is not softmax"]),
        *state_objections(recipe.gate),
    ]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    if needs_no_mask(recipe, positions) or is_tracing() or q.shape[2] * k.shape[2] <= LARGEST_MASK:
        return []
    return [f"it would need a {q.shape[2]} × {k.shape[2]} mask"]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
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


def needs_no_mask(recipe: Recipe, positions: Positions) -> bool:
    """No mask is formed at all: everybody is seen, or torch's own causal flag says the same as the pattern."""
    return not recipe.score_positions and (
        recipe.pattern == Full() or (recipe.pattern == Causal() and positions.start == 0)
    )


def softmax_dropout(normaliser: Normaliser) -> float | None:
    """The dropout rate of a softmax; None if it is something else."""
    if normaliser == Softmax():
        return 0.0
    return normaliser.rate if isinstance(normaliser, AttentionDropout) and normaliser.then == Softmax() else None
