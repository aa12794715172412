"""Micro-batches in; weights one step on out. All is told to the device, and nothing is asked of it.

A step whose loss or gradient is no number must leave weights and optimiser as they are. Whether it is one, only the
device knows; so it is the device that skips: the optimiser's own kernel divides the summed gradients by the number of
tokens (and by what clipping asks for), and does nothing where it is told that something was not finite.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.train.flat import FlatAdamW

MOST_SCALE = 2.0**24
DOUBLED_EVERY = 2000  # steps

# A micro-batch and a scale in: the gradients of its summed loss, so much larger, are added to those of the weights.
# That loss, and the number of tokens it was summed over, out.
Backward = Callable[[Any, Tensor], tuple[Tensor, int]]


@dataclass(frozen=True, eq=False)
class Health:
    """On the device: how many steps in a row were skipped, and by what the loss is scaled (1 but for float16)."""

    skips: Tensor
    scale: Tensor

    @staticmethod
    def of(skips: int, scale: float, device: torch.device) -> "Health":
        return Health(*(torch.tensor(float(each), device=device) for each in (skips, scale)))

    def after(self, broken: Tensor, step: int, *, scaled: bool) -> "Health":
        """Loss scaling for float16: halve after an overflow, double every two thousand steps."""
        skips = (self.skips + 1) * broken
        if not scaled:
            return Health(skips, self.scale)
        grown = (self.scale * 2).clamp(max=MOST_SCALE) if step % DOUBLED_EVERY == 0 else self.scale
        return Health(skips, torch.where(broken > 0, self.scale / 2, grown))


@dataclass(frozen=True, eq=False)
class Stepped:
    """What a step found, on the device: its mean loss, the norm of its gradient, 1 if it was broken and skipped."""

    loss: Tensor
    norm: Tensor
    broken: Tensor
    tokens: int


def stepped(
    optimiser: torch.optim.Optimizer, batches: Iterable[Any], backward: Backward, scale: Tensor, *, clip: float
) -> Stepped:
    """Add up the gradients of the batches, and let the optimiser step by their mean over all tokens."""
    total, tokens = torch.zeros_like(scale), 0
    for batch in batches:
        summed, count = backward(batch, scale)
        total, tokens = total + summed, tokens + count
    loss, norm, broken = updated(optimiser, total, torch.full_like(scale, tokens), scale, clip=clip)
    return Stepped(loss, norm, broken, tokens)


def updated(
    optimiser: torch.optim.Optimizer,
    total: Tensor,
    tokens: Tensor,
    scale: Tensor,
    *,
    clip: float,
    held: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The optimiser's step by the gradients that the weights have; `held` is 1 if it must leave all as it is.

    The number of tokens is a tensor, so that a recorded step, which cannot know it, divides in the same way.
    """
    norm = norm_of(gradients_of(optimiser)) / (scale * tokens)
    # ‖g‖ is cut to the clip as torch's clip_grad_norm_ does it
    share = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
    loss = total / tokens.clamp(min=1)
    broken = (~(norm.isfinite() & loss.isfinite())).float()
    optimiser.grad_scale = (scale * tokens / share).float()  # type: ignore[attr-defined]
    optimiser.found_inf = broken if held is None else torch.maximum(broken, held)  # type: ignore[attr-defined]
    optimiser.step()
    return loss, norm, broken


def gradients_of(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    if isinstance(optimiser, FlatAdamW):
        return optimiser.gradients
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    return [weight.grad for weight in weights if weight.grad is not None]


def norm_of(gradients: list[Tensor]) -> Tensor:
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    norms: list[Tensor] = torch._foreach_norm(gradients, dtype=wide)  # type: ignore[reportPrivateImportUsage]
    return torch.linalg.vector_norm(torch.stack(norms))
