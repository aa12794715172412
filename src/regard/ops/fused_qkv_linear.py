"""Fused linear projections: several projections of the same states, such as queries, keys and values, by one product.

Where their weights lie one behind the other, as those of an optimiser's one buffer do, nothing is copied for it, nor
where the gradients of the outputs lie side by side. The gradients of the biases are column sums, by a kernel on a GPU
(see `column_sum`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function
from torch.nn.functional import linear

from regard.ops.column_sum import column_sum
from regard.ops.precision import cast_for_matmul


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
