"""Dispatch: whether an op runs its fused form (Triton kernels on a GPU) or the plain torch form, and in which dtype."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def use_fused(x: Tensor) -> bool:
    """On a GPU, unless the model is exported to a runtime that knows none of our ops."""
    return x.is_cuda and x.dtype in FUSED_DTYPES and not is_exporting()


def implementation(op: Any) -> Callable[..., Any]:
    """The op, or, where nobody differentiates or compiles it, its function alone: to launch an op costs 50 µs more."""
    return op if torch.is_grad_enabled() or torch.compiler.is_compiling() else op._init_fn


def is_exporting() -> bool:
    return torch.jit.is_tracing() or torch.compiler.is_exporting()  # type: ignore[reportPrivateImportUsage]


# --- dtypes of matrix products under autocast, of sums, and of short attention on a CPU ---


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
