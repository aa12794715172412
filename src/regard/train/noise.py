"""A loss that draws at random in; how far its gradient scatters, and how far its mean is from the true one, out."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.tasks.job import Loss


@dataclass(frozen=True)
class Noise:
    """Of a gradient estimated many times at the same weights on the same batch.

    Args:
        norm: of the mean gradient.
        variance: the mean squared distance of an estimate from the mean: the trace of the covariance.
        bias: the distance of the mean from the true gradient, divided by the true one's norm.
        unsure: how large `bias` would be found if there was none, because the draws are not endless.
        cosine: between the mean and the true gradient.
    """

    norm: float
    variance: float
    bias: float
    unsure: float
    cosine: float

    @property
    def relative(self) -> float:
        """The variance in units of the squared mean: at 1 a step is as much noise as signal."""
        return self.variance / self.norm**2 if self.norm else inf

    @staticmethod
    def of(estimates: Float[Tensor, "draws weights"], true: Float[Tensor, " weights"]) -> "Noise":
        if len(estimates) < 2:
            raise ValueError(f"{len(estimates)} draws cannot tell how far they scatter; draw at least 2")
        estimates, true = estimates.double(), true.double()
        mean = estimates.mean(0)
        variance = (estimates - mean).square().sum() / (len(estimates) - 1)
        # the mean of draws that scatter is too long by their scatter
        norm = (mean.square().sum() - variance / len(estimates)).clamp(min=0).sqrt()
        return Noise(
            norm=norm.item(),
            variance=variance.item(),
            bias=((mean - true).norm() / true.norm()).item(),
            unsure=((variance / len(estimates)).sqrt() / true.norm()).item(),
            cosine=torch.cosine_similarity(mean, true, dim=0).item(),
        )


def gradient(model: nn.Module, loss: Loss, batch: Any, weights: Sequence[nn.Parameter]) -> Float[Tensor, " weights"]:
    """Of the mean loss, for these weights, in one row; those the loss does not touch have 0."""
    summed, count = loss(model, batch)
    parts = torch.autograd.grad(summed / count, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def gradients(
    model: nn.Module, loss: Loss, batch: Any, weights: Sequence[nn.Parameter], *, draws: int
) -> Float[Tensor, "draws weights"]:
    """The same again and again, in the mode in which the model is."""
    return torch.stack([gradient(model, loss, batch, weights) for _ in range(draws)])
