"""Linear layers for inference, swapped for a model's own: prepacked for oneDNN, and the output layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.decode.quantized_linear import Int8Linear

Linear = Callable[[Tensor], Tensor]  # x Wᵀ + b


class OutputLinear(nn.Module):
    """x Wᵀ + b in float32 at least, whatever the precision of W, so that logits keep their differences."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.bias = weight.detach(), bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x) + self.bias

    def multiply(self, x: Tensor) -> Tensor:
        """Without the bias."""
        if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
            rows = torch.mm(x.flatten(0, -2), self.weight.t(), out_dtype=torch.float32)
            return rows.unflatten(0, x.shape[:-1])
        return x @ self.weight.t()


class MkldnnLinear(nn.Module):
    """The weight prepacked for oneDNN: with few rows several times as fast as `linear`."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self.bias, self.op = bias.detach(), torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x, self.weight, self.bias, "none", [], "")

    __call__ = forward  # without hooks, which take a tenth of a small model's step


def build_linear(weight: Tensor, bias: Tensor, precision: str) -> nn.Module:
    """The fastest for this device and precision; `weight` is (out, in)."""
    if precision == "int8":
        return Int8Linear(weight, bias)
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return MkldnnLinear(weight, bias)
    linear = nn.Linear(weight.shape[1], len(weight), device="meta")
    linear.weight, linear.bias = (nn.Parameter(part.detach(), requires_grad=False) for part in (weight, bias))
    return linear.eval()
