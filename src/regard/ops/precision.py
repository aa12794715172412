"""Precision: the dtype of matrix products under autocast, of sums, and of short attention on a CPU."""

from functools import reduce

import torch
from torch import Tensor

SHORT = 256  # tokens: up to here torch's backward pass in 16 bits takes a CPU several times as long as the one in 32


def matmul_dtype(*operands: Tensor) -> torch.dtype:
    """The dtype of a product: autocast's, which leaves float64 alone, or that of the operands."""
    own, device = reduce(torch.promote_types, (x.dtype for x in operands)), operands[0].device.type
    if own != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return own


def cast_for_matmul(*tensors: Tensor) -> list[Tensor]:
    return [x.to(matmul_dtype(x)) for x in tensors]


def no_autocast(x: Tensor) -> torch.autocast:
    """Inside, autocast does not touch sums in float32."""
    return torch.autocast(x.device.type, enabled=False)


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """float32, or wider if x is."""
    return torch.promote_types(x.dtype, torch.float32)


def widen(x: Tensor) -> Tensor:
    return x.to(accumulation_dtype(x))


def needs_float32(q: Tensor, k: Tensor) -> bool:
    """Is scaled_dot_product_attention faster in float32: short texts in 16 bits that are trained on a CPU?"""
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    if q.device.type != "cpu" or q.dtype not in (torch.bfloat16, torch.float16) or not q.requires_grad or tracing:
        return False
    return max(q.shape[2], k.shape[2]) <= SHORT
