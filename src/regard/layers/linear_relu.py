"""States in; max(0, W x + b) out by one kernel: on a GPU the product of matrices cuts off what is below 0 as it writes.

An operation of torch's own kind, for compilers and recordings. On the way back one kernel cuts off the gradient and
sums it for the bias (see `linear_summed`).
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear, relu

from regard.layers.block import FeedForward
from regard.layers.linear_summed import cut_and_sum, for_products


def linear_relu(
    x: Float[Tensor, "... i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"]
) -> Float[Tensor, "... o"]:
    return cut_product(*for_products(x, weight, bias))


@torch.library.custom_op("regard::linear_relu", mutates_args=())
def cut_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if not x.is_cuda:
        return relu(linear(x, weight, bias))
    found = torch.ops.aten._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.T)
    return found.view(*x.shape[:-1], len(weight))


def keep(ctx, inputs, output) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def go_back(ctx, grad: Tensor):
    x, weight, output = ctx.saved_tensors
    rows, met, states = (rearrange(part, "... width -> (...) width") for part in (grad, output, x))
    left, total = cut_and_sum(rows, met)
    return (left @ weight).view(x.shape), left.T @ states, total


cut_product.register_autograd(go_back, setup_context=keep)
cut_product.register_fake(lambda x, weight, bias: x.new_empty((*x.shape[:-1], len(weight))))


def hidden(feed_forward: FeedForward, x: Float[Tensor, "b t model"]) -> Float[Tensor, "b t hidden"]:
    """What the feed-forward layer makes of x before its last product."""
    if feed_forward.activation is not relu:
        return feed_forward.activation(feed_forward.up(x))
    return linear_relu(x, feed_forward.up.weight, feed_forward.up.bias)


def fused(feed_forward: FeedForward, x: Float[Tensor, "b t model"]) -> Float[Tensor, "b t model"]:
    """What the feed-forward layer makes of x."""
    return feed_forward.down(hidden(feed_forward, x))
