"""States in; max(0, W x + b) out by one kernel: on a GPU the product of matrices cuts off what is below 0 as it writes.

An operation of torch's own kind, whose way back is plain: compilers join its parts with what stands around them.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear, relu

from regard.layers.block import FeedForward


@torch.library.custom_op("regard::linear_relu", mutates_args=())
def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if not x.is_cuda:
        return relu(linear(x, weight, bias))
    found = torch.ops.aten._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.T)
    return found.view(*x.shape[:-1], len(weight))


def keep(ctx, inputs, output) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def go_back(ctx, grad: Tensor):
    x, weight, output = ctx.saved_tensors
    grad = torch.where(output > 0, grad, 0.0)
    rows, states = (rearrange(part, "... width -> (...) width") for part in (grad, x))
    return grad @ weight, rows.T @ states, rows.sum(0)


linear_relu.register_autograd(go_back, setup_context=keep)
linear_relu.register_fake(lambda x, weight, bias: x.new_empty((*x.shape[:-1], len(weight))))
linear_relu.register_autocast("cuda", torch.bfloat16)


def fused(feed_forward: FeedForward, x: Float[Tensor, "b t model"]) -> Float[Tensor, "b t model"]:
    """What the feed-forward layer makes of x."""
    if feed_forward.activation is not relu:
        return feed_forward(x)
    return feed_forward.down(linear_relu(x, feed_forward.up.weight, feed_forward.up.bias))
