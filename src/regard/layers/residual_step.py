"""States and what a sub-layer made of them in; the residual path's next states out, twice: norm(x + drop(f + b)).

Twice the same numbers, because two read them: the next sub-layer, and the path around it. So the way back gets two
gradients, and adds them as it reads them. The sub-layer's last bias is added here, where its gradient costs nothing.
On a GPU by the kernels of `residual_kernel`, elsewhere by the same steps in plain torch, noise of dropout included.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import Function

from regard.layers.hashed_dropout import hashed_dropout, too_many
from regard.layers.linear_summed import product_type

X = Float[Tensor, "*batch model"]


@dataclass(frozen=True, eq=False)
class Noise:
    """What dropout drops: which share, and by which two numbers (see `hashed_dropout`)."""

    share: float
    seed: Int[Tensor, " 2"]


def added_and_normed(x: X, f: X, bias: Float[Tensor, " model"], norm: nn.LayerNorm, noise: Noise) -> tuple[X, X]:
    """norm(x + drop(f + bias)), twice."""
    return Step.apply(x, f, bias, norm.weight, norm.bias, noise, norm.eps, x.dtype)


def added(x: X, f: X, bias: Float[Tensor, " model"], noise: Noise) -> tuple[X, X]:
    """x + drop(f + bias), twice."""
    return Step.apply(x, f, bias, None, None, noise, 0.0, x.dtype)


def normed(x: X, norm: nn.LayerNorm) -> X:
    """norm(x), in the precision of products, which are all that read it."""
    silent, narrow = Noise(0.0, torch.empty(2, dtype=torch.int32, device=x.device)), product_type(x)
    return Step.apply(x, None, None, norm.weight, norm.bias, silent, norm.eps, narrow)[0]


class Step(Function):
    """In terms of two operations that compilers and recordings take as they are."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        f: Tensor | None,
        bias: Tensor | None,
        weight: Tensor | None,
        shift: Tensor | None,
        noise: Noise,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        if noise.share:
            too_many(x)
        x, f = x.contiguous(), None if f is None else f.contiguous()
        out, stats = residual_step(x, f, bias, weight, shift, noise.seed, noise.share, eps, dtype)
        ctx.save_for_backward(x, f, bias, weight, noise.seed, stats)
        ctx.share = noise.share
        ctx.set_materialize_grads(False)
        return out, out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, more: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, f, bias, weight, seed, stats = ctx.saved_tensors
        met = [each.contiguous() for each in (grad, more) if each is not None]
        if not met:
            return (None,) * 8
        dx, df, sums = residual_step_back(
            met[0], met[1] if len(met) > 1 else None, x, f, bias, weight, seed, stats, ctx.share
        )
        dweight, dshift, dbias = sums.unbind()
        branch = (None, None) if f is None or bias is None else (df, dbias.to(bias.dtype))
        norm = (None, None) if weight is None else (dweight, dshift)
        return dx, *branch, *norm, None, None, None


@torch.library.custom_op("regard::residual_step", mutates_args=())
def residual_step(
    x: Tensor,
    f: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None,
    shift: Tensor | None,
    seed: Tensor,
    share: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """norm(x + drop(f + bias)), and each row's mean and 1 / √(variance + ε). Without f there is nothing to add;
    without a weight, no norm."""
    out, stats = empty_step(x, weight, dtype)
    if x.is_cuda:
        from regard.layers.residual_kernel import Given, step_forward

        step_forward(Given(x, f, bias, weight, seed, share), shift, eps, out, stats)
        return out, stats
    s = summed(x, f, bias, seed, share)
    if weight is None or shift is None:
        return out.copy_(s), stats
    mean, far = s.mean(-1), s - s.mean(-1, keepdim=True)
    scale = (far.square().mean(-1) + eps).rsqrt()
    stats[0], stats[1] = mean.flatten(), scale.flatten()
    return out.copy_(far * rearrange(scale, "... -> ... 1") * weight + shift), stats


@torch.library.custom_op("regard::residual_step_back", mutates_args=())
def residual_step_back(
    grad: Tensor,
    more: Tensor | None,
    x: Tensor,
    f: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None,
    seed: Tensor,
    stats: Tensor,
    share: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and f, and one below the other those of weight, shift and bias."""
    dx, df, sums = empty_back(x, f, bias, weight)
    if x.is_cuda:
        from regard.layers.residual_kernel import Given, step_backward

        given = Given(x, f, bias, weight, seed, share)
        return dx, df, step_backward(given, grad, more, stats, (dx, None if f is None else df))
    g = wide(grad) if more is None else wide(grad) + wide(more)
    sums.zero_()
    if weight is not None:
        mean, scale = (part.view(*x.shape[:-1], 1) for part in stats)
        near = (summed(x, f, bias, seed, share) - mean) * scale
        sums[0], sums[1] = over_rows(g * near), over_rows(g)
        g = g * weight
        g = (g - g.mean(-1, keepdim=True) - near * (g * near).mean(-1, keepdim=True)) * scale
    dx.copy_(g)
    if f is not None:
        g = hashed_dropout(g, share, seed)
        df.copy_(g)
        sums[2] = over_rows(g)
    return dx, df, sums


def empty_step(x: Tensor, weight: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows = 0 if weight is None else x.numel() // x.shape[-1]
    return torch.empty_like(x, dtype=dtype), torch.empty((2, rows), dtype=wide_type(x), device=x.device)


def empty_back(
    x: Tensor, f: Tensor | None, bias: Tensor | None, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    df = x.new_empty(0) if f is None else torch.empty_like(f)
    like = next(part for part in (weight, bias, x) if part is not None)
    return torch.empty_like(x), df, torch.empty((3, x.shape[-1]), dtype=like.dtype, device=x.device)


residual_step.register_fake(lambda x, f, bias, weight, shift, seed, share, eps, dtype: empty_step(x, weight, dtype))
residual_step_back.register_fake(
    lambda grad, more, x, f, bias, weight, seed, stats, share: empty_back(x, f, bias, weight)
)


def summed(x: Tensor, f: Tensor | None, bias: Tensor | None, seed: Tensor, share: float) -> Tensor:
    return wide(x) if f is None or bias is None else wide(x) + hashed_dropout(wide(f) + wide(bias), share, seed)


def over_rows(x: Tensor) -> Tensor:
    return rearrange(x, "... model -> (...) model").sum(0)


def wide(x: Tensor) -> Tensor:
    return x.to(wide_type(x))


def wide_type(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
