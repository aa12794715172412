"""Column sums: the gradient of a bias, and that of a bias before relu, by one pass over memory.

torch sums columns at a quarter of the memory's bandwidth, a compiler's kernels at a half. On a GPU it is done by the
kernels of `column_sum_triton`, elsewhere by torch. Custom ops, so that compilers and CUDA graphs take them as they are.
"""

import torch
from torch import Tensor


@torch.library.custom_op("regard::column_sum", mutates_args=())
def column_sum(x: Tensor) -> Tensor:
    """Σ over the rows of x."""
    if not x.is_cuda or not x.numel():
        return x.sum(0)
    from regard.ops.column_sum_triton import sum_columns

    return sum_columns(x if x.stride(1) == 1 else x.contiguous())


@torch.library.custom_op("regard::relu_backward_sum", mutates_args=())
def relu_backward_sum(x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of relu, x where its output is above 0 and else 0, and the sum of its columns."""
    if not x.is_cuda or not x.numel():
        left = torch.where(output > 0, x, 0.0)
        return left, left.sum(0)
    from regard.ops import column_sum_triton

    return column_sum_triton.relu_backward_sum(x if x.stride(1) == 1 else x.contiguous(), output.contiguous())


column_sum.register_fake(lambda x: x.new_empty(x.shape[1:]))
relu_backward_sum.register_fake(
    lambda x, output: (torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(x.shape[1:]))
)
