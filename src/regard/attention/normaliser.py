"""Normalisers: scores to weights. A hidden key weighs exactly 0; a row that sees nothing is all 0, never NaN."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import dropout

from regard.ops.dispatch import accumulation_dtype

Scores = Float[Tensor, "b h i j"]
Visible = Bool[Tensor, "b h i j"]


class Normaliser(ABC):
    """Abstract: `weigh` maps the scores of each row to weights.

    Examples:
        >>> class Uniform(Normaliser):  # every visible key weighs the same
        ...     def weigh(self, scores, visible):
        ...         return visible / visible.sum(-1, keepdim=True).clamp(min=1)
        >>> q = torch.randn(1, 1, 3, 8)
        >>> steps(q, q, q, Recipe(pattern=Causal(), normaliser=Uniform())).weights[0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """

    @abstractmethod
    def weigh(self, scores: Scores, visible: Visible) -> Scores: ...

    def log_probability(self, scores: Scores, visible: Visible, weights: Scores) -> Float[Tensor, "b h i"] | None:
        """log p of the keys that `weights` chose, if the normaliser draws keys at all."""
        return None

    @property
    def row_wise(self) -> bool:
        """Is each query weighed by itself, as RowWise declares? If not, blocks and KV caches are out."""
        return False

    @property
    def head_wise(self) -> bool:
        """Is each head weighed by itself, as RowWise declares? If not, no head may be looked at alone."""
        return False

    def for_heads(self, heads: range) -> "Normaliser":
        """The same for some of its heads alone, if it holds numbers for each."""
        return self

    def for_training(self) -> "Normaliser":
        """The normaliser to use instead while a model trains."""
        return self


class RowWise(Normaliser):
    """Abstract: a row's weights depend on the scores of its visible keys alone, and on its head at most.

    Examples:
        >>> class Square(RowWise):  # s² / Σ s²: each row by itself
        ...     def weigh(self, scores, visible):
        ...         return Proportional().weigh(scores**2, visible)
        >>> scores = torch.tensor([[[[1.0, 3.0]]]])
        >>> Square().weigh(scores, scores > 0), Square().row_wise
        (tensor([[[[0.1000, 0.9000]]]]), True)
    """

    @property
    def row_wise(self):
        return True

    @property
    def head_wise(self):
        return True


class Wrapper(Normaliser):
    """Abstract: a dataclass that weighs by another normaliser, `then`, and trains it, row by row if that does."""

    then: Normaliser

    @property
    def row_wise(self):
        return self.then.row_wise

    @property
    def head_wise(self):
        return self.then.head_wise

    def for_heads(self, heads):
        return replace(self, then=self.then.for_heads(heads))  # type: ignore[type-var]

    def for_training(self):
        return replace(self, then=self.then.for_training())  # type: ignore[type-var]


@dataclass(frozen=True)
class Softmax(RowWise):
    """exp(s) / Σ exp(s)

    Examples:
        >>> scores = torch.tensor([[[[1.0, 3.0, 4.0]]]]).log()
        >>> Softmax().weigh(scores, scores < 1.2)
        tensor([[[[0.2500, 0.7500, 0.0000]]]])
    """

    def weigh(self, scores, visible):
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        # a row without a visible key is 0/0 here, hence the second mask
        return torch.where(visible, weights, 0.0)


@dataclass(frozen=True)
class ReLU(RowWise):
    """max(s, 0): "you don't have to use softmax" (fourth lecture). The weights need not sum to 1.

    Examples:
        >>> scores = torch.tensor([[[[-1.0, 3.0, 2.0]]]])
        >>> ReLU().weigh(scores, scores < 2.5)
        tensor([[[[0., 0., 2.]]]])
    """

    def weigh(self, scores, visible):
        return torch.where(visible, scores.relu(), 0.0)


@dataclass(frozen=True)
class Sigmoid(RowWise):
    """1 / (1 + exp(-s)): each key by itself.

    Examples:
        >>> scores = torch.tensor([[[[1.0, 3.0, 9.0]]]]).log()
        >>> Sigmoid().weigh(scores, scores < 2)  # 1 / (1 + 1/1), 1 / (1 + 1/3)
        tensor([[[[0.5000, 0.7500, 0.0000]]]])
    """

    def weigh(self, scores, visible):
        weights = scores.to(accumulation_dtype(scores)).sigmoid()  # 1 - w must not round off
        return torch.where(visible, weights, 0.0).to(scores.dtype)


@dataclass(frozen=True)
class Proportional(RowWise):
    """s / Σ s: with the positive scores of a feature map, the normaliser of linear attention.

    Examples:
        >>> scores = torch.tensor([[[[1.0, 3.0, 6.0]]]])
        >>> Proportional().weigh(scores, scores < 5)
        tensor([[[[0.2500, 0.7500, 0.0000]]]])
    """

    def weigh(self, scores, visible):
        scores = torch.where(visible, scores, 0.0)  # not scores * visible: 0 · nan is nan
        total = scores.sum(-1, keepdim=True, dtype=accumulation_dtype(scores))  # a few thousand keys overflow float16
        return (scores / total.masked_fill(total == 0, 1.0)).to(scores.dtype)


@dataclass(frozen=True)
class AttentionDropout(Wrapper):
    """Dropout on the weights of `then`; always at work, so use it while training alone.

    Examples:
        >>> AttentionDropout(0.1)
        AttentionDropout(rate=0.1, then=Softmax())
        >>> scores = torch.zeros(1, 1, 100, 100)
        >>> AttentionDropout(0.5).weigh(scores, scores == 0).unique()  # 0, or 1/100 divided by 1 - rate
        tensor([0.0000, 0.0200])
    """

    rate: float
    then: Normaliser = Softmax()

    def __post_init__(self):
        if not 0 <= self.rate < 1:
            raise ValueError(f"a dropout rate lies in [0, 1), not {self.rate}")

    def weigh(self, scores, visible):
        return dropout(self.then.weigh(scores, visible), self.rate)

    def log_probability(self, scores, visible, weights):
        # a draw that was dropped changed nothing and may count for nothing: its reward times ∇ log p has mean 0
        return self.then.log_probability(scores, visible, weights)
