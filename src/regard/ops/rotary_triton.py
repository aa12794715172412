"""Rotary positions as one Triton kernel, forward and backward: x is read and written once.

A program has some tokens and all heads of a sentence, so that sines are computed once for all heads. The angle is a
product in float64, from which whole turns are taken before it is rounded to float32: exact at any position.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TOKENS = 32  # of a program


@triton.jit(do_not_specialize=["heads", "tokens", "position_b"])
def rotary_kernel(
    x, out, positions, frequency, heads, tokens, x_b, x_h, x_t, o_b, o_h, o_t, position_b, sign, magnitude,
    PAIRS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr, ADJACENT: tl.constexpr,
    TOKENS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    t, b = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1).to(tl.int64)
    p, r = tl.arange(0, PADDED), tl.arange(0, REST)
    real, there = (t < tokens)[:, None], (t < tokens)[:, None] & (p < PAIRS)[None, :]
    at = tl.load(positions + b * position_b + t, t < tokens, 0).to(tl.float64)
    angle = at[:, None] * tl.load(frequency + p, p < PAIRS, 0.0)[None, :] * 0.15915494309189535
    angle = ((angle - tl.floor(angle)) * 6.283185307179586).to(WIDE)
    cos, sin = tl.cos(angle) * magnitude, tl.sin(angle) * (sign * magnitude)
    one = p[None, :] * (2 if ADJACENT else 1)
    other = one + (1 if ADJACENT else PAIRS)
    x += b * x_b + t.to(tl.int64)[:, None] * x_t
    out += b * o_b + t.to(tl.int64)[:, None] * o_t
    for _ in range(heads):
        first, second = tl.load(x + one, there, 0.0).to(WIDE), tl.load(x + other, there, 0.0).to(WIDE)
        tl.store(out + one, (first * cos - second * sin).to(out.dtype.element_ty), there)
        tl.store(out + other, (first * sin + second * cos).to(out.dtype.element_ty), there)
        if WIDTH > 2 * PAIRS:
            kept = real & (r < WIDTH - 2 * PAIRS)[None, :]
            tl.store(out + 2 * PAIRS + r[None, :], tl.load(x + 2 * PAIRS + r[None, :], kept), kept)
        x += x_h
        out += o_h


class RotaryFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, positions: Tensor, frequency: Tensor, adjacent: bool, magnitude: float) -> Tensor:  # noqa: FBT001
        ctx.save_for_backward(positions, frequency)
        ctx.how = adjacent, magnitude
        return launch(x, positions, frequency, adjacent=adjacent, sign=1.0, magnitude=magnitude)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        grad = grad if grad.stride(3) == 1 else grad.contiguous()
        (positions, frequency), (adjacent, magnitude) = ctx.saved_tensors, ctx.how
        of_x = launch(grad, positions, frequency, adjacent=adjacent, sign=-1.0, magnitude=magnitude)
        return of_x, None, None, None, None


def launch(x: Tensor, positions: Tensor, frequency: Tensor, *, adjacent: bool, sign: float, magnitude: float) -> Tensor:
    (batch, heads, tokens, width), pairs = x.shape, len(frequency)
    positions = positions.contiguous()
    shared = positions.dim() == 1 or len(positions) == 1
    out = torch.empty_like(x)
    sizes: dict[str, Any] = {"PAIRS": pairs, "PADDED": triton.next_power_of_2(pairs), "WIDTH": width}
    sizes |= {"REST": triton.next_power_of_2(max(1, width - 2 * pairs)), "ADJACENT": adjacent, "TOKENS": TOKENS}
    sizes |= {"WIDE": tl.float64 if x.dtype == torch.float64 else tl.float32}
    steps = *x.stride()[:3], *out.stride()[:3], 0 if shared else tokens
    arguments: list[Any] = [x, out, positions, frequency, heads, tokens, *steps, sign, magnitude]
    rotary_kernel[triton.cdiv(tokens, TOKENS), batch](*arguments, **sizes)
    return out
