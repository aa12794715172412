"""Parts of foreign attention: a given scale, softcapped scores and softmax with a sink, as parts of a recipe."""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from regard.attention import InnerProduct, ScaledDot, Score
from regard.attention.head_normaliser import HeadNormaliser


@dataclass(frozen=True)
class GivenScale(InnerProduct):
    """scale · q · k, by a scale that the model gives: Gemma's follows from its configuration, Whisper's is 1."""

    scale: float

    def fold_q(self, q):
        return q * self.scale

    def fold_k(self, k):
        return k


@dataclass(frozen=True)
class Softcap(Score):
    """cap · tanh(scale · q · k / cap): no score is larger than the cap (Gemma 2)."""

    scale: float
    cap: float

    def compare(self, q, k):
        return self.cap * torch.tanh(einsum(q * self.scale, k, "b h i d, b h j d -> b h i j") / self.cap)


def scaled_score(scale: float, width: int) -> Score:
    """The recipe's own score where the scale is 1 / √d."""
    return ScaledDot() if scale == width**-0.5 else GivenScale(scale)


@dataclass(frozen=True, eq=False)
class SinkSoftmax(HeadNormaliser):
    """exp(s) / (exp(sink) + Σ exp(s)): a head's learned sink takes a share and gives nothing (gpt-oss)."""

    sinks: Float[Tensor, " h"]

    def weigh(self, scores, visible):
        sinks = rearrange(self.sinks.to(scores), "h -> 1 h 1 1").expand(*scores.shape[:3], 1)
        weights = torch.cat([scores.masked_fill(~visible, -torch.inf), sinks], -1).softmax(-1)[..., :-1]
        return torch.where(visible, weights, 0.0)

    def for_heads(self, heads):
        return SinkSoftmax(self.sinks[heads.start : heads.stop])

    def __repr__(self) -> str:
        return f"SinkSoftmax({len(self.sinks)} sinks)"
