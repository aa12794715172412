"""Linear layer with relu: max(0, W x + b) by one kernel on a GPU, where the product applies relu as it writes.

A custom op, so that compilers and CUDA graphs take it as it is. In the backward pass one kernel masks the gradient and
sums it for the bias (see `column_sum`).
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear, relu

from regard.ops import dispatch
from regard.ops.column_sum import relu_backward_sum
from regard.ops.precision import cast_for_matmul


def linear_relu(
    x: Float[Tensor, "... i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"]
) -> Float[Tensor, "... o"]:
    return dispatch.implementation(linear_relu_op)(*cast_for_matmul(x, weight, bias))


@torch.library.custom_op("regard::linear_relu", mutates_args=())
def linear_relu_op(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if not x.is_cuda:
        return relu(linear(x, weight, bias))
    found = torch.ops.aten._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.T)
    return found.view(*x.shape[:-1], len(weight))


def setup_context(ctx, inputs, output) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def backward(ctx, grad: Tensor):
    x, weight, output = ctx.saved_tensors
    rows, outputs, states = (rearrange(part, "... width -> (...) width") for part in (grad, output, x))
    grad_rows, total = relu_backward_sum(rows, outputs)
    return (grad_rows @ weight).view(x.shape), grad_rows.T @ states, total


linear_relu_op.register_autograd(backward, setup_context=setup_context)
linear_relu_op.register_fake(lambda x, weight, bias: x.new_empty((*x.shape[:-1], len(weight))))
