"""A log-probability to the score a beam ranks by: length and coverage penalty (Wu et al. 2016, eq. 14)."""

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.model import Looked

STRONGEST = 64.0  # a power that double precision can still raise any length to
LEAST = 1e-9  # a source token that was never looked at costs much, but not everything


def length_penalty(length: int, alpha: float) -> float:
    """lp(y) = ((5 + |y|) / 6)^α, where |y| counts the end."""
    return ((5 + length) / 6) ** alpha


def highest_score(log_probability: float, limit: int, alpha: float) -> float:
    """No hypothesis with this log-probability so far can score more, whatever follows.

    What follows can only take from the log-probability, which is negative, so it is divided by the most it can be:
    the penalty of the longest translation. Coverage can only take from the score.
    """
    return log_probability / length_penalty(limit, alpha)


def attention_paid(looked: Looked) -> Float[Tensor, "n s"]:
    """How the token just predicted looked at the source: the mean over the heads of the last layer."""
    if not looked.weights:
        raise ValueError("the model has no cross-attention, so nothing is covered: use coverage_penalty=0")
    *_, last = looked.weights.values()
    return reduce(last[:, :, -1], "n h s -> n s", "mean")


def coverage_penalty(coverage: Float[Tensor, "n s"], lengths: Int[Tensor, " n"], beta: float) -> Float[Tensor, " n"]:
    """cp(x, y) = β Σᵢ log min(Σⱼ weightⱼᵢ, 1) over the source tokens i, the end included, and target tokens j."""
    real = torch.arange(coverage.shape[-1], device=coverage.device) < rearrange(lengths, "n -> n 1")
    return beta * torch.where(real, coverage.clamp(LEAST, 1.0).log(), 0.0).sum(-1)
