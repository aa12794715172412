"""Score functions: how well query i matches key j, one number per (i, j) and head."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import log

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import elu, normalize, relu


class Score(ABC):
    """Abstract: one number for every query and key. Queries and keys may differ in width where the score says so.

    Examples:
        >>> class Closeness(Score):  # 1 / (1 + ‖q - k‖)
        ...     def compare(self, q, k):
        ...         return 1 / (1 + torch.cdist(q, k))
        >>> q = torch.tensor([[[[0.0], [3.0]]]])
        >>> steps(q, q, q, Recipe(score=Closeness())).scores[0, 0]
        tensor([[1.0000, 0.2500],
                [0.2500, 1.0000]])
    """

    @abstractmethod
    def compare(self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b h j c"]) -> Float[Tensor, "b h i j"]: ...

    def shape_error(self, d: int, c: int) -> str | None:
        """Why queries of width d cannot be compared with keys of width c; None if they can."""
        return None if d == c else f"{self} compares queries and keys of one width, not {d} and {c}"

    def for_heads(self, heads: range) -> "Score":
        """The same for some of its heads alone, if it holds numbers for each."""
        return self


class InnerProduct(Score):
    """Abstract: a plain dot product once q and k are mapped, each by itself: all that a fused kernel can do.

    Examples:
        >>> class Squared(InnerProduct):  # q² · k², elementwise
        ...     def fold_q(self, q):
        ...         return q**2
        ...     def fold_k(self, k):
        ...         return k**2
        >>> Squared().compare(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 1.0]]]]))
        tensor([[[[13.]]]])
    """

    @abstractmethod
    def fold_q(self, q: Tensor) -> Tensor: ...

    @abstractmethod
    def fold_k(self, k: Tensor) -> Tensor: ...

    @property
    def overflows(self) -> bool:
        """May finite q and k of ordinary size score ∞? Then nothing may be added to hide it: ∞ - ∞ is NaN."""
        return False

    def compare(self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b h j c"]) -> Float[Tensor, "b h i j"]:
        return einsum(self.fold_q(q), self.fold_k(k), "b h i d, b h j d -> b h i j")


@dataclass(frozen=True)
class Dot(InnerProduct):
    """q · k

    Examples:
        >>> q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 4.0], [5.0, 6.0]]]])
        >>> Dot().compare(q, k)
        tensor([[[[11., 17.]]]])
    """

    def fold_q(self, q):
        return q

    def fold_k(self, k):
        return k


@dataclass(frozen=True)
class ScaledDot(InnerProduct):
    """q · k / √d, so that the scores' spread does not grow with the width (Vaswani et al. 2017, eq. 1).

    Examples:
        >>> q, k = torch.full((1, 1, 1, 16), 1.0), torch.full((1, 1, 1, 16), 3.0)
        >>> ScaledDot().compare(q, k), Dot().compare(q, k)
        (tensor([[[[12.]]]]), tensor([[[[48.]]]]))
    """

    def fold_q(self, q):
        return q * q.shape[-1] ** -0.5

    def fold_k(self, k):
        return k


@dataclass(frozen=True)
class Cosine(InnerProduct):
    """τ cos(q, k): only the direction matters.

    Examples:
        >>> q, k = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([[[[30.0, 40.0], [4.0, 3.0]]]])
        >>> Cosine(temperature=10.0).compare(q, k)  # 10 cos 0, 10 · 24/25
        tensor([[[[10.0000,  9.6000]]]])
    """

    temperature: float = 10.0

    def fold_q(self, q):
        return self.temperature * normalize(q, dim=-1)

    def fold_k(self, k):
        return normalize(k, dim=-1)


# All positive, so that the scores can be divided by their sum. elu + 1 is Katharopoulos et al. 2020, eq. 7.
FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "elu+1": lambda x: elu(x) + 1,
    "relu": relu,
    # never ∞, since a hidden key's gradient is 0, and 0 · ∞ is NaN; half the largest number leaves room to round
    "exp": lambda x: x.clamp(max=log(torch.finfo(x.dtype).max / 2)).exp(),
}


@dataclass(frozen=True)
class Feature(InnerProduct):
    """φ(q) · φ(k): the score of linear attention.

    Examples:
        >>> q, k = torch.tensor([[[[0.0, 1.0]]]]), torch.tensor([[[[1.0, 2.0]]]])
        >>> Feature("elu+1").compare(q, k)  # (0 + 1)(1 + 1) + (1 + 1)(2 + 1)
        tensor([[[[8.]]]])
    """

    map: str = "elu+1"

    def __post_init__(self):
        if self.map not in FEATURES:
            raise ValueError(f"no feature map is called {self.map!r}; there are {', '.join(FEATURES)}")

    @property
    def overflows(self):
        return self.map == "exp"

    def fold_q(self, q):
        return FEATURES[self.map](q)

    def fold_k(self, k):
        return FEATURES[self.map](k)


@dataclass(eq=False)
class Bilinear(nn.Module, InnerProduct):
    """qᵀ W k: Luong et al. 2015's "general". All heads share W.

    Examples:
        >>> score = Bilinear(1, key=2)
        >>> score.weight.data = torch.tensor([[10.0, 1.0]])
        >>> score.compare(torch.tensor([[[[2.0]]]]), torch.tensor([[[[3.0, 4.0], [5.0, 6.0]]]])).data
        tensor([[[[ 68., 112.]]]])
    """

    query: int
    key: int | None = None

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.query, self.key or self.query) * self.query**-0.5)

    def shape_error(self, d, c):
        fits = (d, c) == tuple(self.weight.shape)
        return None if fits else f"{self} compares widths {tuple(self.weight.shape)}, not {d} and {c}"

    def fold_q(self, q):
        return q @ self.weight

    def fold_k(self, k):
        return k


@dataclass(eq=False)
class Additive(nn.Module, Score):
    """vᵀ tanh(W q + U k): Bahdanau et al. 2015. A small network takes q and k together, so nothing folds.

    Examples:
        >>> score = Additive(query=2, hidden=3, key=4)
        >>> score.compare(torch.randn(1, 1, 5, 2), torch.randn(1, 1, 7, 4)).shape
        torch.Size([1, 1, 5, 7])
        >>> {name: tuple(weight.shape) for name, weight in score.named_parameters()}
        {'v': (3,), 'W.weight': (3, 2), 'U.weight': (3, 4)}
    """

    query: int
    hidden: int
    key: int | None = None

    def __post_init__(self):
        super().__init__()
        self.W = nn.Linear(self.query, self.hidden, bias=False)
        self.U = nn.Linear(self.key or self.query, self.hidden, bias=False)
        self.v = nn.Parameter(torch.randn(self.hidden) * self.hidden**-0.5)

    def shape_error(self, d, c):
        widths = (self.query, self.key or self.query)
        return None if (d, c) == widths else f"{self} compares widths {widths}, not {d} and {c}"

    def compare(self, q, k):
        pair = rearrange(self.W(q), "b h i m -> b h i 1 m") + rearrange(self.U(k), "b h j m -> b h 1 j m")
        return einsum(torch.tanh(pair), self.v, "b h i j m, m -> b h i j")
