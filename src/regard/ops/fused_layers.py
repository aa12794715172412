"""Fused layers: several projections by one product, linear layers with relu or dropout, and embeddings with dropout.

Linear layers. Where the weights of several projections, such as those of queries, keys and values, lie one behind the
other, as those of an optimiser's one buffer do, nothing is copied for the product, nor where the gradients of the
outputs lie side by side. On a GPU the product of a linear layer with relu applies relu as it writes, and one kernel of
its backward pass masks the gradient and sums it for the bias. torch sums columns at a quarter of the memory's
bandwidth, a compiler's kernels at a half; on a GPU it is done by the kernels of `linear_triton`, elsewhere by torch.

Dropout. The residual connection norm(x + dropout(f + b)) is that of states x and a sub-layer's output f with its bias
b, which is added here, where its gradient costs nothing. The embedding is dropout(√width · table[token] +
positions[position]). Each result is returned twice, because two read it: the next sub-layer, and the residual path
around that. So the backward pass gets two gradients, and adds them as it reads them. On a GPU by the kernels of
`dropout_triton`, elsewhere by the same steps in plain torch, with the same dropout mask.

All are custom ops, so that compilers and CUDA graphs take them as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn.functional import linear, relu

from regard.ops import dispatch
from regard.ops.dispatch import accumulation_dtype, cast_for_matmul, implementation, matmul_dtype, widen
from regard.ops.dropout import Dropout, check_index_range, hashed_dropout
from regard.ops.rms_norm import norm_rows

# --- column sums ---


@torch.library.custom_op("regard::column_sum", mutates_args=())
def column_sum(x: Tensor) -> Tensor:
    """Σ over the rows of x."""
    if not x.is_cuda or not x.numel():
        return x.sum(0)
    from regard.ops.linear_triton import sum_columns

    return sum_columns(x if x.stride(1) == 1 else x.contiguous())


@torch.library.custom_op("regard::relu_backward_sum", mutates_args=())
def relu_backward_sum(x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of relu, x where its output is above 0 and else 0, and the sum of its columns."""
    if not x.is_cuda or not x.numel():
        left = torch.where(output > 0, x, 0.0)
        return left, left.sum(0)
    from regard.ops import linear_triton

    return linear_triton.relu_backward_sum(x if x.stride(1) == 1 else x.contiguous(), output.contiguous())


column_sum.register_fake(lambda x: x.new_empty(x.shape[1:]))
relu_backward_sum.register_fake(
    lambda x, output: (torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(x.shape[1:]))
)


# --- several projections at once ---


def has_bias(part: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is torch's own linear layer, with a bias: what the fused operations take."""
    return type(part) is nn.Linear and part.bias is not None


def fused_qkv_linear(
    x: Float[Tensor, "... i"], weights: Sequence[Float[Tensor, "_ i"]], biases: Sequence[Float[Tensor, " _"]]
) -> tuple[Tensor, ...]:
    """`linear` by each of them, side by side in one tensor; under autocast too."""
    parts = *cast_for_matmul(*weights), *cast_for_matmul(*biases)
    return FusedLinearFunction.apply(*cast_for_matmul(x), len(weights), *parts)


class FusedLinearFunction(Function):
    """By two ops, which compilers and CUDA graphs take as they are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parts: Tensor) -> tuple[Tensor, ...]:
        weights, biases = list(parts[:count]), list(parts[count:])
        ctx.save_for_backward(x, *weights)
        return fused_linear_op(x, weights, biases).split([len(weight) for weight in weights], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, *weights = ctx.saved_tensors
        dx, dweight, dbias = fused_linear_backward(list(grads), x, weights)
        sizes = [len(weight) for weight in weights]
        return dx, None, *dweight.split(sizes), *dbias.split(sizes)


@torch.library.custom_op("regard::fused_linear", mutates_args=())
def fused_linear_op(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    return linear(x, concatenate_views(weights), concatenate_views(biases))


@torch.library.custom_op("regard::fused_linear_backward", mutates_args=())
def fused_linear_backward(
    grads: Sequence[Tensor], x: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, and of all weights and biases, concatenated."""
    grad, states = (rearrange(part, "... width -> (...) width") for part in (concatenate_columns(grads), x))
    return (grad @ concatenate_views(weights)).view(x.shape), grad.T @ states, column_sum._init_fn(grad)


fused_linear_op.register_fake(lambda x, weights, biases: x.new_empty((*x.shape[:-1], sum(map(len, weights)))))
fused_linear_backward.register_fake(
    lambda grads, x, weights: (
        x.new_empty(x.shape),
        x.new_empty((sum(map(len, weights)), x.shape[-1])),
        x.new_empty((sum(map(len, weights)),)),
    )
)


def concatenate_views(parts: Sequence[Tensor]) -> Tensor:
    """Concatenated; a view, if they lie one behind the other in memory."""
    first = parts[0]
    end, home = first.data_ptr(), first.untyped_storage().data_ptr()
    for part in parts:
        if not part.is_contiguous() or part.data_ptr() != end or part.untyped_storage().data_ptr() != home:
            return torch.cat(list(parts))
        end += part.numel() * part.itemsize
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def concatenate_columns(parts: Sequence[Tensor]) -> Tensor:
    """Side by side; a view, if they are columns of one tensor."""
    if not are_columns(*parts):
        return torch.cat(list(parts), -1)
    first, width = parts[0], sum(part.shape[-1] for part in parts)
    even = all(first.stride(n) == first.shape[n + 1] * first.stride(n + 1) for n in range(first.dim() - 2))
    if first.stride(-2) < width or not even:
        return torch.cat(list(parts), -1)
    return first.as_strided((*first.shape[:-1], width), first.stride())


def are_columns(*parts: Tensor) -> bool:
    """Do they lie side by side in one tensor?"""
    first = parts[0]
    end, home = first.data_ptr(), first.untyped_storage().data_ptr()
    for part in parts:
        if part.stride() != first.stride() or part.data_ptr() != end or part.untyped_storage().data_ptr() != home:
            return False
        end += part.shape[-1] * part.itemsize
    return first.stride(-1) == 1


# --- linear layer with relu ---


def linear_relu(
    x: Float[Tensor, "... i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"]
) -> Float[Tensor, "... o"]:
    return implementation(linear_relu_op)(*cast_for_matmul(x, weight, bias))


@torch.library.custom_op("regard::linear_relu", mutates_args=())
def linear_relu_op(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if not x.is_cuda:
        return relu(linear(x, weight, bias))
    found = torch.ops.aten._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.T)
    return found.view(*x.shape[:-1], len(weight))


def setup_linear_relu(ctx, inputs, output) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def linear_relu_backward(ctx, grad: Tensor):
    x, weight, output = ctx.saved_tensors
    rows, outputs, states = (rearrange(part, "... width -> (...) width") for part in (grad, output, x))
    grad_rows, total = relu_backward_sum(rows, outputs)
    return (grad_rows @ weight).view(x.shape), grad_rows.T @ states, total


linear_relu_op.register_autograd(linear_relu_backward, setup_context=setup_linear_relu)
linear_relu_op.register_fake(lambda x, weight, bias: x.new_empty((*x.shape[:-1], len(weight))))


# --- residual connections ---


X = Float[Tensor, "*batch model"]


@dataclass(frozen=True, eq=False)
class DropoutNoise:
    """Dropout: its probability, and the seed of its mask (see `hashed_dropout`)."""

    p: float
    seed: Int[Tensor, " 2"]


def draw_noise(dropout: Dropout, device: torch.device) -> DropoutNoise:
    if dropout.training and dropout.p:
        return DropoutNoise(dropout.p, draw_seed(device))
    return DropoutNoise(0.0, torch.empty(2, dtype=torch.int32, device=device))  # nobody reads it


def draw_seed(device: torch.device) -> Int[Tensor, " 2"]:
    return torch.randint(2**31 - 1, (2,), dtype=torch.int32, device=device)


def linear_dropout_add_norm(
    residual: X, y: Float[Tensor, "*batch width"], project: nn.Linear, dropout: Dropout, norm: nn.Module | None
) -> tuple[X, X]:
    """norm(residual + dropout(project(y))), twice; without a norm the sum itself."""
    noise = draw_noise(dropout, residual.device)
    y = linear(y, project.weight)
    if isinstance(norm, nn.LayerNorm):
        return dropout_add_layernorm(residual, y, project.bias, norm, noise)
    x, again = dropout_add(residual, y, project.bias, noise)
    return (x, again) if norm is None else (normed := norm_rows(x, norm), normed)


def dropout_add_layernorm(
    x: X, f: X, bias: Float[Tensor, " model"], norm: nn.LayerNorm, noise: DropoutNoise
) -> tuple[X, X]:
    """norm(x + dropout(f + bias)), twice."""
    return DropoutAddLayerNormFunction.apply(x, f, bias, norm.weight, norm.bias, noise, norm.eps, x.dtype)


def dropout_add(x: X, f: X, bias: Float[Tensor, " model"], noise: DropoutNoise) -> tuple[X, X]:
    """x + dropout(f + bias), twice."""
    return DropoutAddLayerNormFunction.apply(x, f, bias, None, None, noise, 0.0, x.dtype)


def layernorm(x: X, norm: nn.LayerNorm) -> X:
    """norm(x), in the dtype of matrix products, which alone read it."""
    no_dropout, dtype = DropoutNoise(0.0, torch.empty(2, dtype=torch.int32, device=x.device)), matmul_dtype(x)
    return DropoutAddLayerNormFunction.apply(x, None, None, norm.weight, norm.bias, no_dropout, norm.eps, dtype)[0]


class DropoutAddLayerNormFunction(Function):
    """In terms of two custom ops, which compilers and CUDA graphs take as they are."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        f: Tensor | None,
        bias: Tensor | None,
        weight: Tensor | None,
        shift: Tensor | None,
        noise: DropoutNoise,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        if noise.p:
            check_index_range(x)
        x, f = x.contiguous(), None if f is None else f.contiguous()
        out, stats = dispatch.implementation(dropout_add_layernorm_op)(
            x, f, bias, weight, shift, noise.seed, noise.p, eps, dtype
        )
        ctx.save_for_backward(x, f, bias, weight, noise.seed, stats)
        ctx.p = noise.p
        ctx.set_materialize_grads(False)
        return out, out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, more: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, f, bias, weight, seed, stats = ctx.saved_tensors
        grads = [each.contiguous() for each in (grad, more) if each is not None]
        if not grads:
            return (None,) * 8
        dx, df, sums = dropout_add_layernorm_backward(
            grads[0], grads[1] if len(grads) > 1 else None, x, f, bias, weight, seed, stats, ctx.p
        )
        dweight, dshift, dbias = sums.unbind()
        branch = (None, None) if f is None or bias is None else (df, dbias.to(bias.dtype))
        norm = (None, None) if weight is None else (dweight, dshift)
        return dx, *branch, *norm, None, None, None


@torch.library.custom_op("regard::dropout_add_layernorm", mutates_args=())
def dropout_add_layernorm_op(
    x: Tensor,
    f: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None,
    shift: Tensor | None,
    seed: Tensor,
    p: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """norm(x + dropout(f + bias)), and each row's mean and 1 / √(variance + ε). Without f nothing is added; without a
    weight there is no norm."""
    out, stats = empty_forward(x, weight, dtype)
    if x.is_cuda:
        from regard.ops.dropout_triton import ResidualInputs, launch_residual_forward

        launch_residual_forward(ResidualInputs(x, f, bias, weight, seed, p), shift, eps, out, stats)
        return out, stats
    s = residual_sum(x, f, bias, seed, p)
    if weight is None or shift is None:
        return out.copy_(s), stats
    mean, centred = s.mean(-1), s - s.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1) + eps).rsqrt()
    stats[0], stats[1] = mean.flatten(), scale.flatten()
    return out.copy_(centred * rearrange(scale, "... -> ... 1") * weight + shift), stats


@torch.library.custom_op("regard::dropout_add_layernorm_backward", mutates_args=())
def dropout_add_layernorm_backward(
    grad: Tensor,
    more: Tensor | None,
    x: Tensor,
    f: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None,
    seed: Tensor,
    stats: Tensor,
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and f, and, stacked, those of weight, shift and bias."""
    dx, df, sums = empty_backward(x, f, bias, weight)
    if x.is_cuda:
        from regard.ops.dropout_triton import ResidualInputs, launch_residual_backward

        inputs = ResidualInputs(x, f, bias, weight, seed, p)
        return dx, df, launch_residual_backward(inputs, grad, more, stats, (dx, None if f is None else df))
    g = widen(grad) if more is None else widen(grad) + widen(more)
    sums.zero_()
    if weight is not None:
        mean, scale = (part.view(*x.shape[:-1], 1) for part in stats)
        normed = (residual_sum(x, f, bias, seed, p) - mean) * scale
        sums[0], sums[1] = sum_rows(g * normed), sum_rows(g)
        g = g * weight
        g = (g - g.mean(-1, keepdim=True) - normed * (g * normed).mean(-1, keepdim=True)) * scale
    dx.copy_(g)
    if f is not None:
        g = hashed_dropout(g, p, seed)
        df.copy_(g)
        sums[2] = sum_rows(g)
    return dx, df, sums


def empty_forward(x: Tensor, weight: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows = 0 if weight is None else x.numel() // x.shape[-1]
    return torch.empty_like(x, dtype=dtype), torch.empty((2, rows), dtype=accumulation_dtype(x), device=x.device)


def empty_backward(
    x: Tensor, f: Tensor | None, bias: Tensor | None, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    df = x.new_empty(0) if f is None else torch.empty_like(f)
    like = next(part for part in (weight, bias, x) if part is not None)
    return torch.empty_like(x), df, torch.empty((3, x.shape[-1]), dtype=like.dtype, device=x.device)


dropout_add_layernorm_op.register_fake(
    lambda x, f, bias, weight, shift, seed, p, eps, dtype: empty_forward(x, weight, dtype)
)
dropout_add_layernorm_backward.register_fake(
    lambda grad, more, x, f, bias, weight, seed, stats, p: empty_backward(x, f, bias, weight)
)


def residual_sum(x: Tensor, f: Tensor | None, bias: Tensor | None, seed: Tensor, p: float) -> Tensor:
    return widen(x) if f is None or bias is None else widen(x) + hashed_dropout(widen(f) + widen(bias), p, seed)


def sum_rows(x: Tensor) -> Tensor:
    return rearrange(x, "... model -> (...) model").sum(0)


# --- embeddings ---


EmbeddedSides = tuple[Tensor, Tensor, Tensor, Tensor]  # the first side's states, twice, and the second's


def embedding_dropout(
    table: Float[Tensor, "v width"],
    tokens: tuple[Int[Tensor, "n s"], Int[Tensor, "n t"]],
    positions: Float[Tensor, "longest width"],
    position_ids: tuple[Int[Tensor, "n s"], Int[Tensor, "n t"]],
    noise: DropoutNoise,
) -> EmbeddedSides:
    """Both sides by one table, whose gradient is dense, however few the tokens. Positions are not learned."""
    assert not positions.requires_grad
    both = (torch.cat([part.flatten() for part in parts]) for parts in (tokens, position_ids))
    return EmbeddingDropoutFunction.apply(table, *both, positions, noise, *(part.shape for part in tokens))


class EmbeddingDropoutFunction(Function):
    """In terms of two custom ops, which compilers and CUDA graphs take as they are."""

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        tokens: Tensor,
        position_ids: Tensor,
        positions: Tensor,
        noise: DropoutNoise,
        *shapes: torch.Size,
    ) -> EmbeddedSides:
        if noise.p:
            check_index_range(table.new_empty((len(tokens), table.shape[1]), device="meta"))
        both = embedding_dropout_op(table, tokens, position_ids, positions, noise.seed, noise.p)
        ctx.save_for_backward(tokens, noise.seed)
        ctx.p, ctx.size = noise.p, len(table)
        one, other = (
            part.view(*shape, -1) for part, shape in zip(both.split([s.numel() for s in shapes]), shapes, strict=True)
        )
        return one, one.view_as(one), other, other.view_as(other)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        tokens, seed = ctx.saved_tensors
        rows = embedding_dropout_backward(*(grad.contiguous() for grad in grads), seed, ctx.p)
        dtable = torch.ops.aten.embedding_dense_backward(rows, tokens, ctx.size, -1, False)  # noqa: FBT003
        return dtable, None, None, None, None, None, None


@torch.library.custom_op("regard::embedding_dropout", mutates_args=())
def embedding_dropout_op(
    table: Tensor, tokens: Tensor, position_ids: Tensor, positions: Tensor, seed: Tensor, p: float
) -> Tensor:
    if table.is_cuda:
        from regard.ops.dropout_triton import launch_embedding_forward

        return launch_embedding_forward(table, tokens, position_ids, positions, seed, p)
    x = widen(table)[tokens] * table.shape[1] ** 0.5 + widen(positions)[position_ids]
    return hashed_dropout(x, p, seed).to(table.dtype)


@torch.library.custom_op("regard::embedding_dropout_backward", mutates_args=())
def embedding_dropout_backward(
    one: Tensor, more: Tensor, other: Tensor, rest: Tensor, seed: Tensor, p: float
) -> Tensor:
    """The gradient of each token's vector, both sides concatenated, before those of the same token are summed."""
    width, pairs = one.shape[-1], ((one, more), (other, rest))
    if one.is_cuda:
        from regard.ops.dropout_triton import launch_embedding_backward

        return launch_embedding_backward(pairs, seed, p)
    grads = torch.cat([(widen(a) + widen(b)).view(-1, width) for a, b in pairs])
    return (hashed_dropout(grads, p, seed) * width**0.5).to(one.dtype)


embedding_dropout_op.register_fake(lambda table, tokens, *rest: table.new_empty((len(tokens), table.shape[1])))
embedding_dropout_backward.register_fake(
    lambda one, more, other, rest, *how: one.new_empty(
        (one.numel() // one.shape[-1] + other.numel() // one.shape[-1], one.shape[-1])
    )
)
