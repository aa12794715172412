"""Gradient noise: variance and bias of a stochastic estimate of the gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.train.config import Loss


@dataclass(frozen=True)
class GradientNoise:
    """Of a gradient estimated many times at the same weights on the same batch.

    Args:
        norm: of the mean gradient.
        variance: the mean squared distance of an estimate from the mean: the trace of the covariance.
        bias: the distance of the mean from the true gradient, divided by the true one's norm.
        bias_error: the `bias` expected of an unbiased estimate, because the draws are finite.
        cosine: between the mean and the true gradient.
    """

    norm: float
    variance: float
    bias: float
    bias_error: float
    cosine: float

    @property
    def relative(self) -> float:
        """The variance in units of the squared mean: at 1 a step is as much noise as signal."""
        return self.variance / self.norm**2 if self.norm else inf

    @staticmethod
    def of(estimates: Float[Tensor, "draws weights"], true: Float[Tensor, " weights"]) -> "GradientNoise":
        if len(estimates) < 2:
            raise ValueError(f"{len(estimates)} draws have no variance; draw at least 2")
        estimates, true = estimates.double(), true.double()
        mean = estimates.mean(0)
        variance = (estimates - mean).square().sum() / (len(estimates) - 1)
        # the squared norm of a noisy mean is too large by the variance of the mean
        norm = (mean.square().sum() - variance / len(estimates)).clamp(min=0).sqrt()
        return GradientNoise(
            norm=norm.item(),
            variance=variance.item(),
            bias=((mean - true).norm() / true.norm()).item(),
            bias_error=((variance / len(estimates)).sqrt() / true.norm()).item(),
            cosine=torch.cosine_similarity(mean, true, dim=0).item(),
        )


def compute_gradient(
    model: nn.Module, loss: Loss, batch: Any, weights: Sequence[nn.Parameter]
) -> Float[Tensor, " weights"]:
    """Of the mean loss, for these weights, in one row; those the loss does not touch have 0."""
    summed, count = loss(model, batch)
    parts = torch.autograd.grad(summed / count, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def draw_gradients(
    model: nn.Module, loss: Loss, batch: Any, weights: Sequence[nn.Parameter], *, draws: int
) -> Float[Tensor, "draws weights"]:
    """So many estimates, in the model's current mode."""
    return torch.stack([compute_gradient(model, loss, batch, weights) for _ in range(draws)])
