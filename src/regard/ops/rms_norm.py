"""RMS norm: features divided by their root mean square; while training on a GPU, one pass over the rows each way.

    y = n · w,    n = x / r,    r = √(mean(x²) + ε)        of the last axis, in float32 whatever x is
    dx = (g − n · mean(g · n)) / r,    g = dy · w          dw = Σ dy · n over all rows

The backward pass reads x again and finds r anew, so that nothing but x is kept (Zhang & Sennrich 2019).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import has_torch_function_unary

from regard.ops import dispatch

MAX_WIDTH = 8192  # of a row, which one program has in its registers


def rms_norm(
    x: Float[Tensor, "*rows width"], weight: Float[Tensor, " width"] | None, eps: float | None
) -> Float[Tensor, "*rows width"]:
    """Without a number ε is the smallest that changes 1, as in torch."""
    if not use_fused(x):
        return torch.rms_norm(x, x.shape[-1:], weight, eps)
    from regard.ops.rms_norm_triton import RMSNormFunction  # only here is Triton needed

    eps = torch.finfo(dispatch.accumulation_dtype(x)).eps if eps is None else eps
    return RMSNormFunction.apply(x, weight, eps)  # type: ignore[return-value]


def norm_rows(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(x), by the op where it is torch's RMS norm."""
    return rms_norm(x, norm.weight, norm.eps) if type(norm) is nn.RMSNorm else norm(x)


def use_fused(x: Tensor) -> bool:
    """Where a backward pass may follow: torch's forward pass alone is one kernel as well, and launched sooner.

    A compiler fuses the plain form by itself, and whoever watches torch's functions is to see it.
    """
    if not (dispatch.use_fused(x) and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return False
    return 0 < x.shape[-1] <= MAX_WIDTH and x.dim() <= 4 and x.numel() > 0 and not has_torch_function_unary(x)
