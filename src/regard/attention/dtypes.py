"""Accumulation dtype: the precision that scores and sums are kept in."""

import torch
from torch import Tensor


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """Scores and sums of half precision are kept in single."""
    return torch.promote_types(x.dtype, torch.float32)
