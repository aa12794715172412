"""Dispatch: whether an op runs its fused form (Triton kernels on a GPU) or the plain torch form."""

from collections.abc import Callable
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
