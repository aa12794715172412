"""Linear layers for inference, swapped for a model's own: int8, prepacked for oneDNN, and the output layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

Linear = Callable[[Tensor], Tensor]  # x Wᵀ + b
PRECISIONS = {
    "float32": "as the model is",
    "bfloat16": "half the memory; for a GPU",
    "int8": "whole numbers of 8 bits; for a CPU",
}
INT8_BATCH_TOLERANCE = 0.1  # in int8, of a log-probability; 0.019 is the largest difference in 700 sentences
CHUNK = 128  # tokens whose maximum is taken first; only the chunks of the best maxima are read
SLICE = 64 * CHUNK  # tokens
ZERO_POINT = 128  # oneDNN multiplies unsigned activations by signed weights


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


class Int8Linear(nn.Module):
    """8 bits on both sides: y = (x̂ Ŵᵀ) sₓ s_w + b, where x̂ = round(x / sₓ) and sₓ is a row's largest |x| over 127.

    One scale per row of x, not one per batch, so that a result does not depend on the other rows. One exception:
    padding changes the order in which attention sums in float32, and with it last bits, of which one in thousands
    changes a rounding to 8 bits. So in another batch a log-probability may differ by up to INT8_BATCH_TOLERANCE, and of
    two hypotheses that score as close the other may come first. (Attention in float64 would remove that, and a tenth to
    a quarter of the speed.)
    """

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        weight = weight.detach()
        self.scale = weight.abs().amax(1).clamp_min(1e-12) / 127
        whole = (weight / self.scale[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zero = torch.zeros(len(weight), dtype=torch.long)
        self.bias, self.quantizer = bias.detach(), RowQuantizer.create()
        self.op = torch.ops.onednn.qlinear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply_quantized(*self.quantizer.quantize(x))

    __call__ = forward

    def multiply_quantized(self, whole: Tensor, size: Tensor, out: Tensor | None = None) -> Tensor:
        """y from x̂ and its row scales, written to `out` if it is given."""
        y = self.op(
            whole, 1 / 127, ZERO_POINT, self.weight, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return torch.addcmul(self.bias, y, size, out=y if out is None else out)


class ChunkedVocabLinear(nn.Module):
    """The output layer in one piece, fastest for few rows, and once more in slices of the vocabulary, for many.

    Args:
        rows: tokens of each slice; the last may have fewer, but whole chunks: it is padded with tokens of bias -∞.
    """

    def __init__(self, whole: Int8Linear, parts: Sequence[Int8Linear], rows: int):
        super().__init__()
        self.whole, self.parts, self.rows = whole, tuple(parts), rows

    @staticmethod
    def of(weight: Tensor, bias: Tensor, rows: int = SLICE) -> "ChunkedVocabLinear":
        missing = -len(weight) % CHUNK
        padded, never = pad(weight.detach(), (0, 0, 0, missing)), pad(bias.detach(), (0, missing), value=-torch.inf)
        pairs = zip(padded.split(rows), never.split(rows), strict=True)
        return ChunkedVocabLinear(Int8Linear(weight, bias), [Int8Linear(*pair) for pair in pairs], rows)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x)


def build_linear(weight: Tensor, bias: Tensor, precision: str) -> nn.Module:
    """The fastest for this device and precision; `weight` is (out, in)."""
    if precision == "int8":
        return Int8Linear(weight, bias)
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return MkldnnLinear(weight, bias)
    linear = nn.Linear(weight.shape[1], len(weight), device="meta")
    linear.weight, linear.bias = (nn.Parameter(part.detach(), requires_grad=False) for part in (weight, bias))
    return linear.eval()
