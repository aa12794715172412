"""States in; W x + b out, as everywhere, but that b's gradient takes no longer than to read what it is the sum of.

torch sums columns at a quarter of what memory gives, and by a compiler's kernels at a half. On a GPU it is done here by
the kernels of `column_kernel`, elsewhere by torch. Operations of torch's own kind, for compilers and recordings.

Several projections of the same states are one product. Where their weights lie one behind the other, as those of an
optimiser's one buffer do, nothing is copied for it.
"""

from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear


def summed_linear(
    x: Float[Tensor, "... i"], weights: Sequence[Float[Tensor, "_ i"]], biases: Sequence[Float[Tensor, " _"]]
) -> Float[Tensor, "... o"]:
    """`linear` by all of them, side by side; under autocast, too."""
    return product(*for_products(x), for_products(*weights), for_products(*biases))


def for_products(*tensors: Tensor) -> list[Tensor]:
    return [x.to(product_type(x)) for x in tensors]


def product_type(x: Tensor) -> torch.dtype:
    """The precision of products: autocast's, which leaves float64 alone, or its own."""
    device = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One behind the other; a view of them, if so they lie."""
    first = parts[0]
    end, home = first.data_ptr(), first.untyped_storage().data_ptr()
    for part in parts:
        if not part.is_contiguous() or part.data_ptr() != end or part.untyped_storage().data_ptr() != home:
            return torch.cat(list(parts))
        end += part.numel() * part.itemsize
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


@torch.library.custom_op("regard::product", mutates_args=())
def product(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    return linear(x, joined(weights), joined(biases))


@torch.library.custom_op("regard::product_back", mutates_args=())
def product_back(grad: Tensor, x: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The gradients of x, and of all weights one below the other."""
    rows, states = (rearrange(part, "... width -> (...) width") for part in (grad, x))
    return (rows @ joined(weights)).view(x.shape), rows.T @ states


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
    x, weights, _ = inputs
    ctx.save_for_backward(x, *weights)


def go_back(ctx, grad: Tensor):
    x, *weights = ctx.saved_tensors
    dx, dweight = product_back(grad, x, weights)
    dbias, sizes = column_sum(rearrange(grad, "... width -> (...) width")), [len(weight) for weight in weights]
    return dx, list(dweight.split(sizes)), list(dbias.split(sizes))


product.register_autograd(go_back, setup_context=keep)
product.register_fake(lambda x, weights, biases: x.new_empty((*x.shape[:-1], sum(map(len, weights)))))
product_back.register_fake(lambda grad, x, weights: (x.new_empty(x.shape), x.new_empty((grad.shape[-1], x.shape[-1]))))
column_sum.register_fake(lambda x: x.new_empty(x.shape[1:]))
cut_and_sum.register_fake(
    lambda x, met: (torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(x.shape[1:]))
)
