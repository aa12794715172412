"""Parts of foreign attention in a recipe: a given scale, softcapped scores, softmax with a sink, and named masks."""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention import BooleanMask, Causal, Full, InnerProduct, Pattern, ScaledDot, Score, Window
from regard.attention.learned_parts import HeadNormaliser


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


def mask_pattern(visible: Bool[Tensor, "b h i j"], first: int = 0, window: int | None = None) -> Pattern:
    """What a mask shows, by its name where it has one: all, the past, or a window of the past. Its first row belongs to
    the query at `first`."""
    n_q, n_k = visible.shape[-2:]
    i, j = torch.arange(first, first + n_q, device=visible.device)[:, None], torch.arange(n_k, device=visible.device)
    for pattern in (Full(), Causal(), *([] if window is None else [Causal() & Window(window)])):
        if bool((visible == pattern.sees(i.new_zeros(()), i.new_zeros(()), i, j)).all()):
            return pattern
    return BooleanMask(visible, first)
