"""Fused linear layers: several projections by one product, a linear layer with relu, and sums for their biases.

Where the weights of several projections, such as those of queries, keys and values, lie one behind the other, as those
of an optimiser's one buffer do, nothing is copied for the product, nor where the gradients of the outputs lie side by
side. On a GPU the product of a linear layer with relu applies relu as it writes, and one kernel of its backward pass
masks the gradient and sums it for the bias.

torch sums columns at a quarter of the memory's bandwidth, a compiler's kernels at a half. On a GPU it is done by the
kernels of `linear_triton`, elsewhere by torch. All are custom ops, so that compilers and CUDA graphs take them as
they are.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn.functional import linear, relu

from regard.ops.dispatch import cast_for_matmul, implementation

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
