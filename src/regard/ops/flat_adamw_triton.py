"""Flat AdamW: the Triton kernel of one step on a flat buffer of weights.

With the mean gradient g, rate η and decay λ (Loshchilov and Hutter 2019, algorithm 2; c and d are 1 − β₁ᵗ and 1 − β₂ᵗ):

    m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²        w ← w (1 − η λ) − (η / c) m / (√(v / d) + ε)

One pass over memory: gradients come in 16 bits, and the 16-bit copy of the weights, which the next forward pass reads,
is written too. A step to be skipped writes nothing.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 8


@triton.jit
def adamw_kernel(
    weights, grads, first, second, copies, rate, scale, skip, corrections, size, decay, beta1, beta2, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    lr, writes = tl.load(rate), at < size * (1 - tl.load(skip).to(tl.int32))
    g = tl.load(grads + at, mask=inside, other=0.0).to(tl.float32) / tl.load(scale)
    m = tl.load(first + at, mask=inside, other=0.0)
    v = tl.load(second + at, mask=inside, other=0.0)
    w = tl.load(weights + at, mask=inside, other=0.0)
    m = m + (1.0 - beta1) * (g - m)
    v = beta2 * v + (1.0 - beta2) * g * g
    w = w * (1.0 - lr * decay)
    w = w - (lr / tl.load(corrections)) * m / (tl.sqrt(v / tl.load(corrections + 1)) + eps)
    tl.store(first + at, m, mask=writes)
    tl.store(second + at, v, mask=writes)
    tl.store(weights + at, w, mask=writes)
    tl.store(copies + at, w.to(copies.dtype.element_ty), mask=writes)


def launch_adamw(
    weights: Tensor, grads: Tensor, first: Tensor, second: Tensor, copies: Tensor, *args: Any, block: int = BLOCK
) -> None:
    """`args`: the rate, the divisor of the gradients, 1 if the step is to be skipped, c and d; λ, β₁, β₂ and ε."""
    rate, scale, skip, corrections, *hyperparameters = args
    size = weights.numel()
    options: dict[str, Any] = {"BLOCK": block, "num_warps": WARPS}
    adamw_kernel[(-(-size // block),)](
        weights, grads, first, second, copies, rate, scale, skip, corrections, size, *hyperparameters, **options
    )
