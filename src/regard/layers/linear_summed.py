"""States in; W x + b out, as everywhere, but that b's gradient takes no longer than to read what it is the sum of.

torch sums columns at a quarter of what memory gives, and by a compiler's kernels at a half. On a GPU it is done here by
the kernels of `column_kernel`, elsewhere by torch. Operations of torch's own kind, for compilers and recordings.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear


def summed_linear(
    x: Float[Tensor, "... i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"]
) -> Float[Tensor, "... o"]:
    """`linear`; under autocast, too."""
    return product(*for_products(x, weight, bias))


def for_products(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(product_type(x)) for x in tensors)


def product_type(x: Tensor) -> torch.dtype:
    """The precision of products: autocast's, which leaves float64 alone, or its own."""
    device = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


@torch.library.custom_op("regard::product", mutates_args=())
def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return linear(x, weight, bias)


@torch.library.custom_op("regard::column_sum", mutates_args=())
def column_sum(x: Tensor) -> Tensor:
    """Of rows of numbers, the sum of each column."""
    if not x.is_cuda or not x.numel():
        return x.sum(0)
    from regard.layers.column_kernel import sum_columns

    return sum_columns(x if x.stride(1) == 1 else x.contiguous())


@torch.library.custom_op("regard::cut_and_sum", mutates_args=())
def cut_and_sum(x: Tensor, met: Tensor) -> tuple[Tensor, Tensor]:
    """x where `met` is above 0, else 0; and the sum of each of its columns."""
    if not x.is_cuda or not x.numel():
        left = torch.where(met > 0, x, 0.0)
        return left, left.sum(0)
    from regard.layers import column_kernel

    return column_kernel.cut_and_sum(x if x.stride(1) == 1 else x.contiguous(), met.contiguous())


def keep(ctx, inputs, output) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def go_back(ctx, grad: Tensor):
    x, weight = ctx.saved_tensors
    rows, states = (rearrange(part, "... width -> (...) width") for part in (grad, x))
    return (rows @ weight).view(x.shape), rows.T @ states, column_sum(rows)


product.register_autograd(go_back, setup_context=keep)
product.register_fake(lambda x, weight, bias: x.new_empty((*x.shape[:-1], len(weight))))
column_sum.register_fake(lambda x: x.new_empty(x.shape[1:]))
cut_and_sum.register_fake(
    lambda x, met: (torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(x.shape[1:]))
)
