"""Our block-sparse kernels: softmax of an inner product over the tiles that a pattern shows, on a GPU.

Better than FlexAttention wherever no bias is wanted: a band (causal, a window, either with padding or packed texts)
costs no block map and no mask but at its edges, nothing is compiled anew for another pattern of the kind or another
length, and a batch's own data never make the GPU wait. Dropout is part of the kernels. FlexAttention takes what this
objects to: biases, and patterns whose every tile is seen in part.
"""

import torch
from torch import Tensor

from regard.attention.backends.sdpa import dropout_of, maskless
from regard.attention.blocks import why_no_plan
from regard.attention.kernels import sparse_tiles
from regard.attention.kernels.sparse_tiles import Lists, Tiles
from regard.attention.places import Places
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct, ScaledDot

SHORTEST = 512  # below this torch's dense kernels with a mask do as well
WIDEST = 256  # of one head: beyond that no tile fits


def objections(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    why = why_no_plan() or [
        *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *(f"{scheme} adds to single scores, which it never shows" for scheme in recipe.on_score),
        *([] if dropout_of(recipe.normaliser) is not None else [f"{recipe.normaliser} is not softmax"]),
        *([] if places.start is not None else ["its tiles need consecutive positions: give q_at as a number"]),
        *([] if q.device.type == "cuda" else ["its kernels run on a GPU"]),
        *([] if q.dtype != torch.float64 else ["its kernels count in float32, which is too coarse for float64"]),
        *([] if k.shape[3] <= WIDEST else [f"heads {k.shape[3]} wide do not fit into its tiles"]),
    ]
    return why or why_no_kernels() or sparse_tiles.objections(recipe.pattern, q.shape[2], k.shape[2], places.start or 0)


def why_no_kernels() -> list[str]:
    try:
        import triton  # noqa: F401
    except ImportError:
        return ["its kernels need Triton, which is not installed: pip install triton"]
    return []


def doubts(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    if maskless(recipe, places):
        return ["without a mask, torch's dense kernels are faster"]
    if min(q.shape[2], k.shape[2]) < SHORTEST:
        return [f"{q.shape[2]} queries and {k.shape[2]} keys are too few for tiles to pay"]
    tiles = Tiles.of(recipe.pattern, q.shape[2], k.shape[2], start=places.start or 0, device=q.device)
    if isinstance(tiles.always, Lists) and tiles.names is not None:
        return [f"{recipe.pattern} is no band, so texts would be compared in tiles that hold none of them"]
    return []


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    from regard.attention.kernels.sparse import sparse  # needs Triton

    score, scale = recipe.score, 1.0
    assert isinstance(score, InnerProduct)  # or it objected
    tiles = Tiles.of(recipe.pattern, q.shape[2], k.shape[2], start=places.start or 0, device=q.device)
    if score == ScaledDot():  # the kernels multiply by themselves
        scale = q.shape[3] ** -0.5
    else:
        q, k = score.fold_q(q), score.fold_k(k)
    return sparse(q, k, v, tiles, scale=scale, dropout=dropout_of(recipe.normaliser) or 0.0)
