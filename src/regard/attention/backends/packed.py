"""Packed texts, one tile a row: short rows of several documents, as training on packed batches has them."""

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.backends.sdpa import softmax_dropout
from regard.attention.batch_patterns import Documents
from regard.attention.gate import state_objections
from regard.attention.pattern import And, Causal, Pattern, Positions
from regard.attention.recipe import Recipe
from regard.attention.score import ScaledDot
from regard.ops import dispatch
from regard.ops.packed_attention import MAX_HEAD, MAX_ROW, packed_attention


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    other = [
        *([] if recipe.score == ScaledDot() else [f"{recipe.score} is not the scaled dot product"]),
        *([] if softmax_dropout(recipe.normaliser) is not None else [f"{recipe.normaliser} is not softmax"]),
        *(f"{scheme} adds to single scores, which it never shows" for scheme in recipe.score_positions),
        *state_objections(recipe.gate),
        *([] if documents_in(recipe.pattern) is not None else [f"{recipe.pattern} is not that of packed texts"]),
        *(["a model that is exported has no lengths to choose by"] if dispatch.is_exporting() else []),
    ]
    # sizes are compared only where it could run: of an exported call, each comparison would be made for all lengths
    return other or size_objections(q, k, positions)


def size_objections(q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    length = max(q.shape[2], k.shape[2])
    return [
        *([] if length <= MAX_ROW else [f"rows of {length} tokens do not fit into one tile of {MAX_ROW}"]),
        *([] if q.shape[3] <= MAX_HEAD else [f"heads of width {q.shape[3]} are wider than {MAX_HEAD}"]),
        *([] if q.numel() and k.numel() else ["there is nothing to attend to"]),
        *([] if positions.start == 0 else ["its tiles need indices from 0 on"]),
        *([] if not q.is_cuda or q.dtype.itemsize < 4 else [f"in {q.dtype} a tile does not fit on a GPU"]),
    ]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return [] if dispatch.use_fused(q) else ["torch's masked attention is faster here"]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    documents, d = documents_in(recipe.pattern), q.shape[3]
    assert documents is not None  # or it objected
    keys = documents.segment_ids if documents.key_segment_ids is None else documents.key_segment_ids
    ids = tuple(part.expand(len(q), -1)[:, :n] for part, n in ((documents.segment_ids, q.shape[2]), (keys, k.shape[2])))
    how = {"head": d, "causal": isinstance(recipe.pattern, And), "dropout": softmax_dropout(recipe.normaliser) or 0.0}
    seed = torch.randint(2**31, (), device=q.device)
    q, k = (concatenate_heads(x.to(v.dtype)) for x in (q, k))
    # a tile is as wide for values as for queries: wider ones take several
    parts = [v] if v.shape[3] == d else [pad(part, (0, d - part.shape[3])) for part in v.split(d, 3)]
    found = [packed_attention(q, k, concatenate_heads(part), ids[0], ids[1], seed, **how) for part in parts]
    heads = [rearrange(part, "b t (h d) -> b h t d", d=d) for part in found]
    return heads[0] if len(heads) == 1 and v.shape[3] == d else torch.cat(heads, 3)[..., : v.shape[3]]


def concatenate_heads(x: Tensor) -> Tensor:
    return rearrange(x, "b h t d -> b t (h d)")


def documents_in(pattern: Pattern) -> Documents | None:
    """The documents of a pattern that demands nothing but causality."""
    match pattern:
        case Documents():
            return pattern
        case And(Documents() as documents, Causal()) | And(Causal(), Documents() as documents):
            return documents
    return None
