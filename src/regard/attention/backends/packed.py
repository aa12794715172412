"""Packed texts, one tile a row: short rows of several documents, as training on packed batches has them.

    out = softmax(q kᵀ / √d) v        over the keys of the query's own segment, and not behind it if causal

Rows are as long as the longest text, or a little longer, and hold as many whole texts as fit, so attention stays
within a row, dense and small. On a GPU by the Triton kernels of `kernels/packed.py`, elsewhere by the same steps in
plain torch, with the same dropout mask: it is a hash of a seed and of the weight's index, so nothing is stored of it
for the backward pass. Compilers and CUDA graphs take the ops as they are.
"""

from typing import Any

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import Function
from torch.nn.functional import pad

from regard.attention.backends.sdpa import softmax_dropout
from regard.attention.batch_patterns import Documents
from regard.attention.gate import state_objections
from regard.attention.pattern import And, Causal, Pattern, Positions
from regard.attention.recipe import Recipe
from regard.attention.score import ScaledDot
from regard.ops import dispatch
from regard.ops.dispatch import widen
from regard.ops.dropout import mix_bits, shift_right
from regard.ops.fused_layers import are_columns


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


MAX_ROW = 128  # tokens in a row: more do not fit into one tile
MAX_HEAD = 64  # width of a head: of wider ones a tile is slow, or does not fit at all


def packed_attention(
    q: Float[Tensor, "n i hd"],
    k: Float[Tensor, "n j gd"],
    v: Float[Tensor, "n j gd"],
    q_segments: Tensor,
    k_segments: Tensor,
    seed: Tensor,
    *,
    head: int,
    causal: bool,
    dropout: float,
) -> Float[Tensor, "n i hd"]:
    """Heads of width `head` side by side; segments are (n, i) and (n, j), the seed is that of the dropout mask."""
    segments = q_segments.contiguous(), k_segments.contiguous()
    return PackedAttentionFunction.apply(q, k, v, *segments, seed, head, causal, dropout)


class PackedAttentionFunction(Function):
    """Where q, k and v are columns of one product, their gradients are columns of one tensor, too."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        out, sums = packed_attention_op(q, k, v, *rest)
        ctx.save_for_backward(out, sums, q, k, v, *rest[:3])
        ctx.options, ctx.joint = rest[3:], not torch.compiler.is_compiling() and are_columns(q, k, v)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        out, sums, q, k, v, *segments = ctx.saved_tensors
        if ctx.joint:
            grad_qkv = packed_joint_backward(grad, out, sums, q, k, v, *segments, *ctx.options)
            dq, dk, dv = grad_qkv.split([x.shape[2] for x in (q, k, v)], 2)
        else:
            dq, dk, dv = packed_attention_backward(grad, out, sums, q, k, v, *segments, *ctx.options)
        return dq, dk, dv, *[None] * 6


INPUTS = "Tensor q, Tensor k, Tensor v, Tensor q_segments, Tensor k_segments, Tensor seed"
SIGNATURE = f"{INPUTS}, SymInt head, bool causal, float dropout"  # of the op, and behind what it saved of its backward


@torch.library.custom_op("regard::packed_attention", mutates_args=(), schema=f"({SIGNATURE}) -> (Tensor, Tensor)")
def packed_attention_op(q: Tensor, k: Tensor, v: Tensor, *options) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √head) v over the tokens of the same text, heads side by side.

    Returned with it: the log-sum-exp that the kernels' backward pass needs; empty on a CPU.
    """
    q_segments, k_segments, seed, head, causal, dropout = options
    out, sums = torch.empty(q.shape, dtype=q.dtype, device=q.device), empty_logsumexp(q, k, head)
    if not q.is_cuda:
        return out.copy_(packed_attention_torch(q, k, v, *options)), sums
    from regard.attention.kernels.packed import launch_forward

    q, k, v = (with_unit_stride(x) for x in (q, k, v))
    launch_forward(q, k, v, out, sums, q_segments, k_segments, seed, head=head, causal=causal, dropout=dropout)
    return out, sums


SAVED = "Tensor grad, Tensor out, Tensor sums"  # the gradient of the output, the output, and the log-sum-exp
SavedForward = tuple[Tensor, Tensor, Tensor]


@torch.library.custom_op(
    "regard::packed_attention_backward", mutates_args=(), schema=f"({SAVED}, {SIGNATURE}) -> (Tensor, Tensor, Tensor)"
)
def packed_attention_backward(
    grad: Tensor, out: Tensor, sums: Tensor, q: Tensor, k: Tensor, v: Tensor, *options
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    backward_into((dq, dk, dv), (grad, out, sums), q, k, v, *options)
    return dq, dk, dv


@torch.library.custom_op("regard::packed_joint_backward", mutates_args=(), schema=f"({SAVED}, {SIGNATURE}) -> Tensor")
def packed_joint_backward(grad: Tensor, out: Tensor, sums: Tensor, q: Tensor, k: Tensor, v: Tensor, *options) -> Tensor:
    """The same side by side, as the gradient of the product that gave q, k and v needs them."""
    widths = [x.shape[2] for x in (q, k, v)]
    grad_qkv = torch.empty((*q.shape[:2], sum(widths)), dtype=q.dtype, device=q.device)
    dq, dk, dv = grad_qkv.split(widths, 2)
    backward_into((dq, dk, dv), (grad, out, sums), q, k, v, *options)
    return grad_qkv


def empty_logsumexp(q: Tensor, k: Tensor, head: int) -> Tensor:
    """Memory for one number for each query of each head, in whole tiles; plain torch recomputes the weights instead."""
    shape = (len(q), q.shape[2] // head, tile_size(q.shape[1], k.shape[1])) if q.is_cuda else (0,)
    return torch.empty(shape, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)


def tile_size(queries: int, keys: int) -> int:
    return max(16, 1 << (max(queries, keys) - 1).bit_length())


def with_unit_stride(x: Tensor) -> Tensor:
    """With stride 1 in the last axis."""
    return x if x.stride(2) == 1 else x.contiguous()


# --- its backward pass, and what a compiler may know ---


def backward_into(
    grads: tuple[Tensor, Tensor, Tensor], saved: SavedForward, q: Tensor, k: Tensor, v: Tensor, *options
) -> None:
    (grad, out, sums), (q_segments, k_segments, seed, head, causal, dropout) = saved, options
    if q.is_cuda:
        from regard.attention.kernels.packed import launch_backward

        kernel_options = {"head": head, "causal": causal, "dropout": dropout}
        grad, q, k, v = (with_unit_stride(x) for x in (grad, q, k, v))
        launch_backward(grad, q, k, v, out, sums, grads, q_segments, k_segments, seed, **kernel_options)
        return
    computed = packed_attention_torch_backward(grad, q, k, v, *options)
    for into, each in zip(grads, computed, strict=True):
        into.copy_(each)


packed_attention_op.register_fake(
    lambda q, k, v, q_segments, k_segments, seed, head, *rest: (q.new_empty(q.shape), empty_logsumexp(q, k, head))
)
packed_attention_backward.register_fake(
    lambda grad, out, sums, q, k, v, *rest: tuple(x.new_empty(x.shape) for x in (q, k, v))
)
packed_joint_backward.register_fake(
    lambda grad, out, sums, q, k, v, *rest: q.new_empty((*q.shape[:2], sum(x.shape[2] for x in (q, k, v))))
)


# --- the same in plain torch ---


def packed_weights(
    q: Float[Tensor, "n h i d"], k: Float[Tensor, "n h j d"], q_segments: Tensor, k_segments: Tensor, *, causal: bool
) -> Float[Tensor, "n h i j"]:
    """In float32 or wider, whatever q and k are."""
    visible = rearrange(q_segments, "n i -> n 1 i 1") == rearrange(k_segments, "n j -> n 1 1 j")
    if causal:  # within a text, tokens have the same order in the row as in the text
        visible = visible.tril()
    scores = widen(q @ k.mT) * q.shape[3] ** -0.5
    # of a row that sees nothing: softmax of finite numbers, then 0
    return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1).where(visible, 0.0)


def packed_attention_torch(q: Tensor, k: Tensor, v: Tensor, *options) -> Float[Tensor, "n i hd"]:
    q_segments, k_segments, seed, head, causal, dropout = options
    q, k, v = expand_heads(q, k, v, head)
    weights = packed_weights(q, k, q_segments, k_segments, causal=causal)
    weights = weights * dropout_factors(seed, weights, dropout) if dropout else weights
    return rearrange(weights.to(v.dtype) @ v, "n h t d -> n t (h d)")


def packed_attention_torch_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *options) -> list[Tensor]:
    """The equations in `kernels/packed.py`."""
    q_segments, k_segments, seed, head, causal, dropout = options
    groups = k.shape[2] // head
    grad, (q, k, v) = rearrange(grad, "n t (h d) -> n h t d", d=head), expand_heads(q, k, v, head)
    weights = packed_weights(q, k, q_segments, k_segments, causal=causal)
    factors = dropout_factors(seed, weights, dropout) if dropout else torch.ones_like(weights)
    dv = (weights * factors).to(v.dtype).mT @ grad
    dweights = widen(grad @ v.mT) * factors
    ds = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) * head**-0.5
    dq, dk = ds.to(k.dtype) @ k, ds.to(q.dtype).mT @ q
    dk, dv = (reduce(x, "n (g share) t d -> n g t d", "sum", g=groups) for x in (dk, dv))
    return [rearrange(x, "n h t d -> n t (h d)") for x in (dq, dk, dv)]


def expand_heads(q: Tensor, k: Tensor, v: Tensor, head: int) -> list[Tensor]:
    share = q.shape[2] // k.shape[2]
    times = ((q, 1), (k, share), (v, share))
    return [repeat(x, "n t (g d) -> n (g share) t d", d=head, share=share) for x, share in times]


def dropout_factors(seed: Tensor, weights: Float[Tensor, "n h i j"], dropout: float) -> Float[Tensor, "n h i j"]:
    """0 where a weight is dropped, else 1 / (1 − dropout)."""
    return keep_mask(seed, weights, dropout).to(weights.dtype) / (1 - dropout)


def keep_mask(seed: Tensor, weights: Float[Tensor, "n h i j"], dropout: float) -> Bool[Tensor, "n h i j"]:
    """As the kernel's: a hash of the seed and the weight's index in its tile."""
    n, h, i, j = weights.shape
    tile = tile_size(i, j)
    at = [torch.arange(size, device=weights.device) for size in (n * h, i, j)]
    first = rearrange(at[0], "(n h) -> n h 1 1", n=n) * tile**2
    x = (first + seed + rearrange(at[1], "i -> i 1") * tile + at[2]).to(torch.int32)
    seed_low = seed.to(torch.int32)
    bits = mix_bits(x, mix_bits(seed_low + 0x5BD1E995, seed_low))
    return shift_right(bits, 8) >= round(dropout * 2**24)
