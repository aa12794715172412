"""Training step: gradient accumulation, clipping, loss scaling and the optimiser, without host synchronisation.

A step whose loss or gradient is not finite must leave weights and optimiser as they are. Only the device knows; so it
is the device that skips: the optimiser's own kernel divides the summed gradients by the number of tokens (and by the
clipping factor), and does nothing where `found_inf` is 1.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.ops.flat_adamw import FlatAdamW

MAX_SCALE = 2.0**24
GROWTH_INTERVAL = 2000  # steps

# Of a micro-batch and a loss scale: adds the gradients of the scaled, summed loss to those of the weights, and returns
# that loss and the number of tokens it was summed over.
BackwardFunction = Callable[[Any, Tensor], tuple[Tensor, int]]


@dataclass(frozen=True, eq=False)
class LossScaleState:
    """On the device: how many steps in a row were skipped, and by what the loss is scaled (1 but for float16)."""

    skips: Tensor
    scale: Tensor

    @staticmethod
    def of(skips: int, scale: float, device: torch.device) -> "LossScaleState":
        return LossScaleState(*(torch.tensor(float(each), device=device) for each in (skips, scale)))

    def after(self, skipped: Tensor, step: int, *, scaled: bool) -> "LossScaleState":
        """Loss scaling for float16: halve after an overflow, double every two thousand steps."""
        skips = (self.skips + 1) * skipped
        if not scaled:
            return LossScaleState(skips, self.scale)
        grown = (self.scale * 2).clamp(max=MAX_SCALE) if step % GROWTH_INTERVAL == 0 else self.scale
        return LossScaleState(skips, torch.where(skipped > 0, self.scale / 2, grown))


@dataclass(frozen=True, eq=False)
class StepResult:
    """The figures of a step, on the device: its mean loss, the norm of its gradient, 1 if it was skipped."""

    loss: Tensor
    norm: Tensor
    skipped: Tensor
    tokens: int


def take_step(
    optimiser: torch.optim.Optimizer, batches: Iterable[Any], backward: BackwardFunction, scale: Tensor, *, clip: float
) -> StepResult:
    """Add up the gradients of the batches, and let the optimiser step by their mean over all tokens."""
    total, tokens = torch.zeros_like(scale), 0
    for batch in batches:
        summed, count = backward(batch, scale)
        total, tokens = total + summed, tokens + count
    loss, norm, skipped = apply_update(optimiser, total, torch.full_like(scale, tokens), scale, clip=clip)
    return StepResult(loss, norm, skipped, tokens)


def apply_update(
    optimiser: torch.optim.Optimizer,
    total: Tensor,
    tokens: Tensor,
    scale: Tensor,
    *,
    clip: float,
    skip: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The optimiser's step by the weights' gradients; `skip` is 1 if it must leave all as it is.

    The number of tokens is a tensor, so that a captured step, whose graph is fixed, divides in the same way.
    """
    norm = gradient_norm(gradients_of(optimiser)) / (scale * tokens)
    # ‖g‖ is clipped as torch's clip_grad_norm_ does it
    clip_factor = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
    loss = total / tokens.clamp(min=1)
    skipped = (~(norm.isfinite() & loss.isfinite())).float()
    optimiser.grad_scale = (scale * tokens / clip_factor).float()  # type: ignore[attr-defined]
    optimiser.found_inf = skipped if skip is None else torch.maximum(skipped, skip)  # type: ignore[attr-defined]
    optimiser.step()
    return loss, norm, skipped


def gradients_of(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    if isinstance(optimiser, FlatAdamW):
        return optimiser.gradients
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    return [weight.grad for weight in weights if weight.grad is not None]


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    norms: list[Tensor] = torch._foreach_norm(gradients, dtype=wide)  # type: ignore[reportPrivateImportUsage]
    return torch.linalg.vector_norm(torch.stack(norms))
