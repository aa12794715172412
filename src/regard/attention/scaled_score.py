"""Scaled scores: a scale that is given or learned (temperature), and a soft cap on another score."""

from dataclasses import dataclass, replace

import torch
from einops import rearrange
from torch import nn

from regard.attention.score import InnerProduct, ScaledDot, Score


@dataclass(frozen=True)
class GivenScale(InnerProduct):
    """scale · q · k, by a scale that is given: Gemma's follows from its configuration, Whisper's is 1.

    Examples:
        >>> q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 4.0]]]])
        >>> GivenScale(0.5).compare(q, k)  # 0.5 · 11
        tensor([[[[5.5000]]]])
    """

    scale: float

    def fold_q(self, q):
        return q * self.scale

    def fold_k(self, k):
        return k


def score_with_scale(scale: float, width: int) -> Score:
    """The recipe's own score where the scale is 1 / √d."""
    return ScaledDot() if scale == width**-0.5 else GivenScale(scale)


@dataclass(eq=False, init=False)
class LogitScale(nn.Module, InnerProduct):
    """exp(t_h) s(q, k): each head learns its temperature exp(-t_h), and begins at 1.

    With `Cosine(1.0)` the attention of QK-norm (Henry et al. 2020) and of Swin v2 (Liu et al. 2022). It is applied to
    the query, so that every backend for inner products runs it.

    Examples:
        >>> score = LogitScale(heads=2, score=Cosine(1.0))
        >>> score.log_scale.data = torch.tensor([0.0, 2.0]).exp().log()  # the first head ×1, the second ×e²
        >>> x = torch.tensor([3.0, 4.0]).expand(1, 2, 1, 2)
        >>> score.compare(x, x).flatten().data  # cos 0 = 1
        tensor([1.0000, 7.3891])
    """

    heads: int
    score: InnerProduct

    def __init__(self, heads: int, score: InnerProduct = ScaledDot()):
        super().__init__()
        if not isinstance(score, InnerProduct):
            raise ValueError(f"LogitScale scales the query of an inner product, which {score!r} is not; put it inside")
        self.heads, self.score = heads, score
        self.log_scale = nn.Parameter(torch.zeros(heads))

    @property
    def overflows(self):
        return self.score.overflows

    def shape_error(self, d, c):
        return self.score.shape_error(d, c)

    def fold_q(self, q):
        if q.shape[1] != self.heads:
            raise ValueError(f"{self} has temperatures for {self.heads} heads, not {q.shape[1]}")
        return self.score.fold_q(q) * rearrange(self.log_scale.exp().to(q.dtype), "h -> 1 h 1 1")

    def fold_k(self, k):
        return self.score.fold_k(k)

    def for_heads(self, heads):
        some = LogitScale(len(heads), self.score.for_heads(heads))  # type: ignore[arg-type]
        some.log_scale = nn.Parameter(self.log_scale[heads.start : heads.stop])
        return some


@dataclass(frozen=True)
class SoftCap(Score):
    """cap · tanh(s / cap): no score of `score` is larger than the cap (Gemma 2, 2024).

    Examples:
        >>> q, k = torch.tensor([[[[2.0]]]]), torch.tensor([[[[1.0], [100.0]]]])
        >>> SoftCap(4.0, Dot()).compare(q, k)  # 4 tanh(2 / 4), 4 tanh(200 / 4)
        tensor([[[[1.8485, 4.0000]]]])
    """

    cap: float
    score: Score = ScaledDot()

    def __post_init__(self):
        if not self.cap > 0:
            raise ValueError(f"SoftCap({self.cap}): the cap must be positive")

    def shape_error(self, d, c):
        return self.score.shape_error(d, c)

    def compare(self, q, k):
        return self.cap * torch.tanh(self.score.compare(q, k) / self.cap)

    def for_heads(self, heads):
        return replace(self, score=self.score.for_heads(heads))


def split_cap(score: Score) -> tuple[Score, float | None]:
    """The score below a soft cap, which is applied to each score by itself, and the cap."""
    return (score.score, score.cap) if isinstance(score, SoftCap) else (score, None)


def is_scaled_product(score: Score) -> bool:
    """Is it q · k, but for a scale and a cap?"""
    return isinstance(split_cap(score)[0], ScaledDot | GivenScale)
