"""Dispatch: whether an op runs its fused form (Triton kernels on a GPU) or the plain torch form."""

import torch
from torch import Tensor

FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def use_fused(x: Tensor) -> bool:
    """On a GPU, unless the model is exported to a runtime that knows none of our ops."""
    return x.is_cuda and x.dtype in FUSED_DTYPES and not is_exporting()


def is_exporting() -> bool:
    return torch.jit.is_tracing() or torch.compiler.is_exporting()  # type: ignore[reportPrivateImportUsage]
