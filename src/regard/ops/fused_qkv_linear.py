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
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn.functional import linear

from regard.ops import dispatch
from regard.ops.column_sum import column_sum
from regard.ops.precision import cast_for_matmul


def project_all(
    x: Float[Tensor, "... i"], projections: Sequence[nn.Module], *, fused: bool = False
) -> tuple[Tensor, ...]:
    """Each projection of x; fused, on a GPU, by one product, of which all are views."""
    if (whole := find_whole(*projections)) is not None:
        return whole.forward(x)
    if not (fused and dispatch.use_fused(x)):
        return tuple([part(x) for part in projections])
    linears = [part for part in projections if type(part) is nn.Linear and part.bias is not None]
    if len(linears) < len(projections):
        return tuple([part(x) for part in projections])
    return fused_qkv_linear(x, [part.weight for part in linears], [part.bias for part in linears])


class FusedLinear(nn.Module):
    """Several projections of the same states as one linear layer, for inference: each is a view of its output.

    Args:
        linear: of all rows of all projections, one behind the other.
        sizes: how many rows each has.
    """

    def __init__(self, linear: nn.Module, sizes: Sequence[int]):
        super().__init__()
        self.linear, self.sizes = linear, list(sizes)
        self.parts = tuple(LinearPart(self, n) for n in range(len(sizes)))  # in a tuple, so none is a child

    def forward(self, x: Float[Tensor, "... i"]) -> tuple[Tensor, ...]:
        return self.linear(x).split_with_sizes(self.sizes, -1)


class LinearPart(nn.Module):
    """One projection of a FusedLinear. Who wants all of them asks `project_all`, which multiplies once."""

    def __init__(self, whole: FusedLinear, index: int):
        super().__init__()
        self.whole, self.index = whole, index

    def forward(self, x: Float[Tensor, "... i"]) -> Tensor:
        return self.whole(x)[self.index]


def find_whole(*projections: nn.Module) -> FusedLinear | None:
    """The FusedLinear that these are all the parts of, if they are."""
    first = projections[0]
    return first.whole if type(first) is LinearPart and first.whole.parts == projections else None


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
