"""Queries, keys and values of packed rows in; each word's look at its own text out, by one tile a row, on every device.

On a GPU by the kernels of `packed_kernel`, elsewhere by the same steps in plain torch, noise of dropout included: which
weights it leaves is a function of a seed and of the weight's place, so nothing is kept of it for the way back. They are
operations of torch's own kind, which compilers and recordings take as they are.
"""

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Bool, Float
from torch import Tensor

LONGEST = 128  # words in a row: more do not fit into one tile
LOW = 2**32 - 1


@torch.library.custom_op("regard::row_look", mutates_args=())
def row_look(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    asking: Tensor,
    asked: Tensor,
    seed: Tensor,
    head: int,
    causal: bool,  # noqa: FBT001 (an operation's arguments are all by place)
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √head) v over the words of the same text, heads side by side; 0 for what fills up a row.

    Behind it what the kernels' way back needs; elsewhere nothing.
    """
    out, sums = torch.empty(q.shape, dtype=q.dtype, device=q.device), sums_of(q, k, head)
    if not q.is_cuda:
        return out.copy_(looked(q, k, v, asking, asked, seed, head, causal, dropout)), sums
    from regard.layers.packed_kernel import look_forward

    how = {"head": head, "causal": causal, "dropout": dropout}
    look_forward(close(q), close(k), close(v), out, sums, asking, asked, seed, **how)
    return out, sums


@torch.library.custom_op("regard::row_look_back", mutates_args=())
def row_look_back(
    grad: Tensor,
    out: Tensor,
    sums: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    asking: Tensor,
    asked: Tensor,
    seed: Tensor,
    head: int,
    causal: bool,  # noqa: FBT001
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    back_into((dq, dk, dv), (grad, out, sums), q, k, v, asking, asked, seed, head, causal, dropout)
    return dq, dk, dv


@torch.library.custom_op("regard::row_look_at_itself", mutates_args=())
def row_look_at_itself(
    qkv: Tensor,
    text: Tensor,
    seed: Tensor,
    heads: int,
    head: int,
    causal: bool,  # noqa: FBT001
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The same for queries, keys and values side by side, as one product of matrices leaves them."""
    return row_look._init_fn(*parted(qkv, heads, head), text, text, seed, head, causal, dropout)


@torch.library.custom_op("regard::row_look_at_itself_back", mutates_args=())
def row_look_at_itself_back(
    grad: Tensor,
    out: Tensor,
    sums: Tensor,
    qkv: Tensor,
    text: Tensor,
    seed: Tensor,
    heads: int,
    head: int,
    causal: bool,  # noqa: FBT001
    dropout: float,
) -> Tensor:
    """Side by side again, where the gradient of that product wants them."""
    found = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    into, given = parted(found, heads, head), parted(qkv, heads, head)
    back_into(into, (grad, out, sums), *given, text, text, seed, head, causal, dropout)
    return found


def sums_of(q: Tensor, k: Tensor, head: int) -> Tensor:
    """Room for a number for each query of each head, in whole tiles; plain torch finds the weights anew instead."""
    shape = (len(q), q.shape[2] // head, tile_size(q.shape[1], k.shape[1])) if q.is_cuda else (0,)
    return torch.empty(shape, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)


def tile_size(queries: int, keys: int) -> int:
    return max(16, 1 << (max(queries, keys) - 1).bit_length())


def parted(qkv: Tensor, heads: int, head: int) -> tuple[Tensor, Tensor, Tensor]:
    keys = (qkv.shape[2] - heads * head) // 2
    q, k, v = qkv.split([heads * head, keys, keys], 2)
    return q, k, v


def close(x: Tensor) -> Tensor:
    """With each word's numbers side by side."""
    return x if x.stride(2) == 1 else x.contiguous()


# --- the way back, and what a compiler may know ---


Grown = tuple[Tensor, Tensor, Tensor]  # the gradient of what was found, that itself, and what was kept beside it


def back_into(found: tuple[Tensor, Tensor, Tensor], grown: Grown, q: Tensor, k: Tensor, v: Tensor, *how) -> None:
    (grad, out, sums), (asking, asked, seed, head, causal, dropout) = grown, how
    if q.is_cuda:
        from regard.layers.packed_kernel import look_backward

        given = {"head": head, "causal": causal, "dropout": dropout}
        look_backward(close(grad), close(q), close(k), close(v), out, sums, found, asking, asked, seed, **given)
        return
    made = looked_back(grad, q, k, v, *how)
    for into, each in zip(found, made, strict=True):
        into.copy_(each)


def keep(ctx, inputs, output) -> None:
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # or zeros would be made for it
    ctx.how = [x for x in inputs if not isinstance(x, Tensor)]


def go_back(ctx, grad: Tensor | None, _):
    if grad is None:
        return (None,) * 9
    return (*row_look_back(grad, *ctx.saved_tensors, *ctx.how), *[None] * 6)


def go_back_to_itself(ctx, grad: Tensor | None, _):
    if grad is None:
        return (None,) * 7
    return (row_look_at_itself_back(grad, *ctx.saved_tensors, *ctx.how), *[None] * 6)


def fake_look(q: Tensor, k: Tensor, v: Tensor, asking: Tensor, asked: Tensor, seed: Tensor, head: int, *rest):
    return q.new_empty(q.shape), sums_of(q, k, head)


def fake_look_at_itself(qkv: Tensor, text: Tensor, seed: Tensor, heads: int, head: int, *rest):
    return fake_look(*parted(qkv, heads, head), text, text, seed, head)


row_look.register_autograd(go_back, setup_context=keep)
row_look.register_fake(fake_look)
row_look_back.register_fake(lambda grad, out, sums, q, k, v, *rest: tuple(x.new_empty(x.shape) for x in (q, k, v)))
row_look_at_itself.register_autograd(go_back_to_itself, setup_context=keep)
row_look_at_itself.register_fake(fake_look_at_itself)
row_look_at_itself_back.register_fake(lambda grad, out, sums, qkv, *rest: qkv.new_empty(qkv.shape))


# --- the same in plain torch ---


def weighed(
    q: Float[Tensor, "n h i d"], k: Float[Tensor, "n h j d"], asking: Tensor, asked: Tensor, *, causal: bool
) -> Float[Tensor, "n h i j"]:
    """Wide, whatever q and k are."""
    seen = rearrange(asking, "n i -> n 1 i 1") == rearrange(asked, "n j -> n 1 1 j")
    seen = seen & rearrange(asking > 0, "n i -> n 1 i 1")
    if causal:  # within a text, words stand in the row as they do in the text
        seen = seen.tril()
    scores = wide(q @ k.mT) * q.shape[3] ** -0.5
    # a row that sees nothing: softmax of anything finite, then nothing of it
    return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1).where(seen, 0.0)


def looked(q: Tensor, k: Tensor, v: Tensor, *how) -> Float[Tensor, "n i hd"]:
    asking, asked, seed, head, causal, dropout = how
    q, k, v = in_heads(q, k, v, head)
    weights = weighed(q, k, asking, asked, causal=causal)
    weights = weights * left(seed, weights, dropout) if dropout else weights
    return rearrange(weights.to(v.dtype) @ v, "n h t d -> n t (h d)")


def looked_back(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *how) -> list[Tensor]:
    """The equations at the head of `packed_kernel`."""
    asking, asked, seed, head, causal, dropout = how
    groups = k.shape[2] // head
    grad, (q, k, v) = rearrange(grad, "n t (h d) -> n h t d", d=head), in_heads(q, k, v, head)
    weights = weighed(q, k, asking, asked, causal=causal)
    noise = left(seed, weights, dropout) if dropout else torch.ones_like(weights)
    dv = (weights * noise).to(v.dtype).mT @ grad
    dweights = wide(grad @ v.mT) * noise
    ds = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) * head**-0.5
    dq, dk = ds.to(k.dtype) @ k, ds.to(q.dtype).mT @ q
    dk, dv = (reduce(x, "n (g share) t d -> n g t d", "sum", g=groups) for x in (dk, dv))
    return [rearrange(x, "n h t d -> n t (h d)") for x in (dq, dk, dv)]


def in_heads(q: Tensor, k: Tensor, v: Tensor, head: int) -> list[Tensor]:
    share = q.shape[2] // k.shape[2]
    times = ((q, 1), (k, share), (v, share))
    return [repeat(x, "n t (g d) -> n (g share) t d", d=head, share=share) for x, share in times]


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def left(seed: Tensor, weights: Float[Tensor, "n h i j"], dropout: float) -> Float[Tensor, "n h i j"]:
    """What each weight is multiplied by."""
    return kept(seed, weights, dropout).to(weights.dtype) / (1 - dropout)


def kept(seed: Tensor, weights: Float[Tensor, "n h i j"], dropout: float) -> Bool[Tensor, "n h i j"]:
    """As the kernel's: a hash of the seed and the weight's place in its tile."""
    n, h, i, j = weights.shape
    tile = tile_size(i, j)
    at = [torch.arange(size, device=weights.device) for size in (n * h, i, j)]
    first = rearrange(at[0], "(n h) -> n h 1 1", n=n) * tile**2
    low = seed & LOW
    x = (first + low + rearrange(at[1], "i -> i 1") * tile + at[2]) & LOW
    return (mixed(x, mixed((low + 0x5BD1E995) & LOW, low)) >> 8) >= round(dropout * 2**24)


def mixed(x: Tensor, key: Tensor) -> Tensor:
    x = x ^ x >> 16
    x = (x * 0x21F0AAAD & LOW) ^ key
    x = x ^ x >> 15
    x = x * 0x735A2D97 & LOW
    return x ^ x >> 15
