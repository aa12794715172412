"""A matrix and a bias in; the fastest way to multiply by them, on their device and at a precision, out."""

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
BATCH_BOUND = 0.1  # in 8 bits, of a log-probability; 0.019 is the most that was seen in 700 sentences
MIDDLE = 128  # oneDNN multiplies numbers without a sign by numbers with one


class Linear(ABC):
    """Abstract: x Wᵀ + b, for x of (rows, in)."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Plain(Linear):
    """As torch does it: on a GPU, and in double precision."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x):
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Cut(Linear):
    """max(0, x Wᵀ + b): on a GPU the product cuts off what is below 0 as it writes."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x):
        return torch.ops.aten._addmm_activation(self.bias, x, self.weight.t())


@dataclass(frozen=True, eq=False)
class Unbiased(Linear):
    """x Wᵀ in 32 bits, however few W has, so that scores far apart stay apart; who reads them adds the bias."""

    weight: Tensor

    def __call__(self, x):
        if x.dtype in (torch.bfloat16, torch.float16):
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return x @ self.weight.t()


@dataclass(frozen=True, eq=False)
class Packed(Linear):
    """The weights in the order in which oneDNN reads them: with few rows several times as fast as `linear`."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def of(weight: Tensor, bias: Tensor) -> "Packed":
        return Packed(torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous()), bias.detach())

    def __call__(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


@dataclass(frozen=True, eq=False)
class Numbers:
    """Whole numbers of rows. What it takes is kept as tensors, which torch would make at every call."""

    least: Tensor
    steps: Tensor
    middle: Tensor

    @staticmethod
    def made() -> "Numbers":
        return Numbers(torch.tensor(1e-30), torch.tensor(127.0), torch.tensor(MIDDLE, dtype=torch.uint8))

    def of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """round(127 x / size) + 128 in 8 bits, and each row's size, its largest |x|."""
        size = x.abs().amax(-1, keepdim=True).add_(self.least)
        # torch turns 16 numbers at once into bytes with a sign, but one by one into bytes without; to flip the sign's
        # bit adds 128
        whole = (x * torch.div(self.steps, size)).round_().to(torch.int8)
        return whole.view(torch.uint8).bitwise_xor_(self.middle), size


@dataclass(frozen=True, eq=False)
class Whole(Linear):
    """8 bits on both sides: y = (x̂ Ŵᵀ) sₓ s_w + b, where x̂ = round(x / sₓ) and sₓ is a row's largest |x| over 127.

    A scale for each row of x, and not one for all, so that nobody's neighbours change what they get. But for this:
    padding changes the order in which attention adds up in float32, and with it last bits, of which one in thousands
    tips a rounding to 8 bits. So beside other sentences a translation's log-probability may differ by up to
    BATCH_BOUND, and of two that score as close another may come first. (Attention in double precision takes that away,
    and a tenth to a quarter of the speed.)
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor
    numbers: Numbers

    @staticmethod
    def of(weight: Tensor, bias: Tensor) -> "Whole":
        weight = weight.detach()
        scale = weight.abs().amax(1).clamp_min(1e-12) / 127
        whole = (weight / scale[:, None]).round().to(torch.int8)
        zero = torch.zeros(len(weight), dtype=torch.long)
        return Whole(torch.ops.onednn.qlinear_prepack(whole, None), scale, zero, bias.detach(), Numbers.made())

    def __call__(self, x):
        return self.times(*self.numbers.of(x))

    def times(self, whole: Tensor, size: Tensor, out: Tensor | None = None) -> Tensor:
        """x̂ and the largest of its rows in; y out, there if a place is given."""
        y = torch.ops.onednn.qlinear_pointwise(
            whole, 1 / 127, MIDDLE, self.weight, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return torch.addcmul(self.bias, y, size, out=y if out is None else out)


def linear_of(weight: Tensor, bias: Tensor, precision: str) -> Linear:
    """`weight` is (out, in)."""
    if precision == "int8":
        return Whole.of(weight, bias)
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return Packed.of(weight, bias)
    return Plain(weight.detach(), bias.detach())
