"""Weights and their gradients, each one behind the other, in; the weights one step of AdamW on out. A Triton kernel.

With the mean gradient g, rate η and decay λ (Loshchilov and Hutter 2019, algorithm 2; c and d are 1 − β₁ᵗ and 1 − β₂ᵗ):

    m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²        w ← w (1 − η λ) − (η / c) m / (√(v / d) + ε)

Memory sees everything once: gradients come in as narrow as they were made, and the narrow copy of the weights, which
the next pass reads, is written on the way. A broken step writes nothing.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 8


@triton.jit
def weights_stepped(
    weights, grads, first, second, copies, rate, scale, broken, fixes, size, decay, beta1, beta2, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    lr, kept = tl.load(rate), at < size * (1 - tl.load(broken).to(tl.int32))
    g = tl.load(grads + at, mask=inside, other=0.0).to(tl.float32) / tl.load(scale)
    m = tl.load(first + at, mask=inside, other=0.0)
    v = tl.load(second + at, mask=inside, other=0.0)
    w = tl.load(weights + at, mask=inside, other=0.0)
    m = m + (1.0 - beta1) * (g - m)
    v = beta2 * v + (1.0 - beta2) * g * g
    w = w * (1.0 - lr * decay)
    w = w - (lr / tl.load(fixes)) * m / (tl.sqrt(v / tl.load(fixes + 1)) + eps)
    tl.store(first + at, m, mask=kept)
    tl.store(second + at, v, mask=kept)
    tl.store(weights + at, w, mask=kept)
    tl.store(copies + at, w.to(copies.dtype.element_ty), mask=kept)


def step_weights(
    weights: Tensor, grads: Tensor, first: Tensor, second: Tensor, copies: Tensor, *given: Any, block: int = BLOCK
) -> None:
    """`given`: the rate, what gradients are divided by, 1 if the step is broken, both fixes; λ, β₁, β₂ and ε."""
    rate, scale, broken, fixes, *numbers = given
    size = weights.numel()
    how: dict[str, Any] = {"BLOCK": block, "num_warps": WARPS}
    weights_stepped[(-(-size // block),)](
        weights, grads, first, second, copies, rate, scale, broken, fixes, size, *numbers, **how
    )
