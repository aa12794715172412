"""torch's scaled_dot_product_attention: whatever is softmax of an inner product plus a bias."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.backends.reference import folded
from regard.attention.blocks import tracing
from regard.attention.normaliser import Dropped, Normaliser, Softmax
from regard.attention.pattern import Causal, Full
from regard.attention.places import Cells, Places
from regard.attention.position import Bias
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct

LARGEST_MASK = 2**26  # cells; beyond that a mask is dearer than the attention
SHORT = 256  # tokens: up to here torch's way back in 16 bits takes a CPU several times as long as the one in 32


def objections(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    score = recipe.score
    return [
        *([] if isinstance(score, InnerProduct) else [f"{score} is not an inner product"]),
        *(
            [f"{score} may be ∞, to which it would add -∞"]
            if isinstance(score, InnerProduct) and score.overflows
            else []
        ),
        *(f"{scheme} adds to the values too" for scheme in recipe.on_score if not isinstance(scheme, Bias)),
        *([] if dropout_of(recipe.normaliser) is not None else [f"{recipe.normaliser} is not softmax"]),
    ]


def doubts(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    if maskless(recipe, places) or tracing() or q.shape[2] * k.shape[2] <= LARGEST_MASK:
        return []
    return [f"it would need a {q.shape[2]} × {k.shape[2]} mask"]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    if maskless(recipe, places):
        return fused(recipe, q, k, v, None, is_causal=recipe.pattern == Causal())
    cells = places.cells(*q.shape[:2])
    return over(recipe, q, k, v, cells, cells.visible(recipe.pattern))


def over(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, cells: Cells, visible: Tensor | None) -> Tensor:
    """Attention over given cells; `visible` may leave out axes that do not matter, None hides nothing."""
    if visible is None and not recipe.on_score:
        return fused(recipe, q, k, v, None)
    added, blind = mask(recipe, q, cells, visible)
    out = fused(recipe, q, k, v, added)
    return out if blind is None else out.masked_fill(blind, 0.0)


def mask(recipe: Recipe, q: Tensor, cells: Cells | None, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What to add to the scores, and the rows that see nothing.

    Such a row would be 0/0: it is let see everything, for the caller to put 0 in its place, gradients included.
    """
    bias = torch.zeros((), dtype=q.dtype, device=q.device)
    for scheme in recipe.on_score:
        assert cells is not None  # nothing can be added nowhere
        bias = bias + scheme.on_score(folded(recipe, q), *cells.all())
    if visible is None:
        return bias, None
    blind = ~visible.any(-1, keepdim=True)
    return torch.where(visible | blind, bias, -torch.inf), blind


def fused(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, *, is_causal: bool = False) -> Tensor:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    q, k = recipe.score.fold_q(q), recipe.score.fold_k(k)
    if widened(q, k):
        bias = None if added is None else added.float()
        with torch.autocast("cpu", enabled=False):
            return kernel(recipe, q.float(), k.float(), v.float(), bias, is_causal=is_causal).to(v.dtype)
    return kernel(recipe, q, k, v, added, is_causal=is_causal)


def kernel(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, *, is_causal: bool) -> Tensor:
    return scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=added,
        dropout_p=dropout_of(recipe.normaliser) or 0.0,
        is_causal=is_causal,
        scale=1.0,
        enable_gqa=bool(q.shape[1] != k.shape[1]),  # sizes are tensors under torch.jit.trace
    )


def widened(q: Tensor, k: Tensor) -> bool:
    narrow = q.dtype in (torch.bfloat16, torch.float16)
    if q.device.type != "cpu" or not narrow or not q.requires_grad or tracing():
        return False
    return max(q.shape[2], k.shape[2]) <= SHORT


def maskless(recipe: Recipe, places: Places) -> bool:
    """No mask is formed at all: everybody is seen, or torch's own causal flag says the same as the pattern."""
    return not recipe.on_score and (recipe.pattern == Full() or (recipe.pattern == Causal() and places.start == 0))


def dropout_of(normaliser: Normaliser) -> float | None:
    """The dropout rate of a softmax; None if it is something else."""
    if normaliser == Softmax():
        return 0.0
    return normaliser.rate if isinstance(normaliser, Dropped) and normaliser.then == Softmax() else None
