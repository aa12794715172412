"""Quantised and prepacked linear layers for inference: int8, oneDNN, fused ReLU, and without bias."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

PRECISIONS = {
    "float32": "as the model is",
    "bfloat16": "half the memory; for a GPU",
    "int8": "whole numbers of 8 bits; for a CPU",
}
INT8_BATCH_TOLERANCE = 0.1  # in int8, of a log-probability; 0.019 is the largest difference in 700 sentences
ZERO_POINT = 128  # oneDNN multiplies unsigned activations by signed weights


class Linear(ABC):
    """Abstract: x Wᵀ + b, for x of (rows, in)."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class TorchLinear(Linear):
    """torch's own linear: on a GPU, and in float64."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x):
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class LinearReLU(Linear):
    """max(0, x Wᵀ + b): on a GPU the ReLU is fused into the product."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x):
        return torch.ops.aten._addmm_activation(self.bias, x, self.weight.t())


@dataclass(frozen=True, eq=False)
class LinearNoBias(Linear):
    """x Wᵀ in float32 whatever the precision of W, so that logits keep their differences; the caller adds the bias."""

    weight: Tensor

    def __call__(self, x):
        if x.dtype in (torch.bfloat16, torch.float16):
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return x @ self.weight.t()


@dataclass(frozen=True, eq=False)
class MkldnnLinear(Linear):
    """The weight prepacked for oneDNN: with few rows several times as fast as `linear`."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def of(weight: Tensor, bias: Tensor) -> "MkldnnLinear":
        return MkldnnLinear(torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous()), bias.detach())

    def __call__(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


@dataclass(frozen=True, eq=False)
class RowQuantizer:
    """Quantises rows to 8 bits. Its constants are tensors, which torch would otherwise create at every call."""

    eps: Tensor
    levels: Tensor
    zero_point: Tensor

    @staticmethod
    def create() -> "RowQuantizer":
        return RowQuantizer(torch.tensor(1e-30), torch.tensor(127.0), torch.tensor(ZERO_POINT, dtype=torch.uint8))

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """round(127 x / size) + 128 in 8 bits, and each row's scale, its largest |x|."""
        size = x.abs().amax(-1, keepdim=True).add_(self.eps)
        # torch vectorises the conversion to int8, but not to uint8; flipping the sign bit adds 128
        whole = (x * torch.div(self.levels, size)).round_().to(torch.int8)
        return whole.view(torch.uint8).bitwise_xor_(self.zero_point), size


@dataclass(frozen=True, eq=False)
class Int8Linear(Linear):
    """8 bits on both sides: y = (x̂ Ŵᵀ) sₓ s_w + b, where x̂ = round(x / sₓ) and sₓ is a row's largest |x| over 127.

    One scale per row of x, not one per batch, so that a result does not depend on the other rows. One exception:
    padding changes the order in which attention sums in float32, and with it last bits, of which one in thousands
    changes a rounding to 8 bits. So in another batch a log-probability may differ by up to INT8_BATCH_TOLERANCE, and of
    two hypotheses that score as close the other may come first. (Attention in float64 would remove that, and a tenth to
    a quarter of the speed.)
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor
    quantizer: RowQuantizer

    @staticmethod
    def of(weight: Tensor, bias: Tensor) -> "Int8Linear":
        weight = weight.detach()
        scale = weight.abs().amax(1).clamp_min(1e-12) / 127
        whole = (weight / scale[:, None]).round().to(torch.int8)
        zero = torch.zeros(len(weight), dtype=torch.long)
        return Int8Linear(
            torch.ops.onednn.qlinear_prepack(whole, None), scale, zero, bias.detach(), RowQuantizer.create()
        )

    def __call__(self, x):
        return self.multiply_quantized(*self.quantizer.quantize(x))

    def multiply_quantized(self, whole: Tensor, size: Tensor, out: Tensor | None = None) -> Tensor:
        """y from x̂ and its row scales, written to `out` if it is given."""
        y = torch.ops.onednn.qlinear_pointwise(
            whole, 1 / 127, ZERO_POINT, self.weight, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return torch.addcmul(self.bias, y, size, out=y if out is None else out)


def build_linear(weight: Tensor, bias: Tensor, precision: str) -> Linear:
    """`weight` is (out, in)."""
    if precision == "int8":
        return Int8Linear.of(weight, bias)
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return MkldnnLinear.of(weight, bias)
    return TorchLinear(weight.detach(), bias.detach())
