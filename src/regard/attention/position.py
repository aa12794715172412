"""Where is a token?  Position enters beside the token, inside q and k, or on the score (and the value).

Sinusoidal()                               beside: added to the embedding, by the model
Rotary()                                   inside: turns q and k
Alibi(heads=8)                             on the score
Sinusoidal() + RelativeVectors(Clipped(4), head=64)      schemes add up
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange
from torch import Tensor, nn

from regard.attention.tree import Tree


class Position(ABC):  # noqa: B024 (its verbs belong to the three places below)
    """Abstract: each scheme is one of Beside, Inside and OnScore; `+` uses two of them together."""

    def __add__(self, other: "Position") -> "Position":
        return Together((*self.parts(), *other.parts())) if isinstance(other, Position) else NotImplemented

    def parts(self) -> tuple["Position", ...]:
        return (self,)

    def misfit(self, heads: int, head: int, places: int) -> str | None:
        """Why it does not fit so many heads, queries of this width (as the score folds them) or places; or None."""
        return None

    @property
    def batches(self) -> int:
        """For how many sentences the scheme holds data; 1 when it is the same for all."""
        return 1

    def given(self, tree: Tree) -> "Position":
        """The same scheme, told the trees of this batch; most do not ask."""
        return self


@dataclass(frozen=True)
class NoPosition(Position):
    """Attention that does not know order: "man eats dinosaur" is "dinosaur eats man"."""

    def parts(self):
        return ()


@dataclass(frozen=True)
class Together(Position):
    schemes: tuple[Position, ...]

    def parts(self):
        return self.schemes

    def given(self, tree):
        return Together(tuple(scheme.given(tree) for scheme in self.schemes))

    def __repr__(self):
        return " + ".join(map(repr, self.schemes)) or "NoPosition()"


# --- beside the token ---


class Beside(Position):
    """Abstract: a vector for each place, added to the token's own. `at` is (t) or (b, t)."""

    @abstractmethod
    def table(self, at: Tensor, model: int) -> Tensor: ...

    def embed(self, x: Tensor, at: Tensor) -> Tensor:
        if self.batches not in (1, len(x)):
            raise ValueError(f"{self} holds data for {self.batches} sentences, x for {len(x)}")
        return x + self.table(at, x.shape[-1]).to(x.dtype)


@dataclass(frozen=True)
class Sinusoidal(Beside):
    """PE(pos, 2i) = sin(pos / θ^(2i/d)), PE(pos, 2i + 1) = cos(same): stripes of ever slower waves."""

    theta: float = 10_000.0

    def __post_init__(self):
        if not self.theta > 0:
            raise ValueError(f"{self}: theta must be positive; the slowest wave is about theta places long")

    def table(self, at, model):
        pair = torch.arange(0, model, 2, device=at.device, dtype=torch.float64)
        angle = at[..., None].double() * self.theta ** (-pair / model)
        waves = torch.stack((angle.sin(), angle.cos()), -1)
        return rearrange(waves, "... pair two -> ... (pair two)")[..., :model]


@dataclass(eq=False)
class Learned(nn.Module, Beside):
    """A learned vector for each of the first `longest` places."""

    longest: int
    model: int

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.longest, self.model) * self.model**-0.5)

    def table(self, at, model):
        if at.shape[-1] > self.longest or (at.device.type == "cpu" and at.max() >= self.longest):
            raise ValueError(f"{self} knows places 0 to {self.longest - 1}; this text is longer: raise `longest`")
        return self.weight[at]


# --- inside q and k ---


class Inside(Position):
    """Abstract: changes q and k, each knowing its own place. x is (b, h, t, d), `at` is (t) or (b, t)."""

    @abstractmethod
    def turn(self, x: Tensor, at: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Rotary(Inside):
    """Turns each pair of features by an angle proportional to the place, so q · k depends on i - j alone.

    A pair is two adjacent features (Su et al. 2021) or one from each half (Llama): the same thing, reordered.
    """

    theta: float = 10_000.0
    pairs: Literal["adjacent", "halves"] = "adjacent"

    def __post_init__(self):
        if self.pairs not in ("adjacent", "halves") or not self.theta > 0:
            raise ValueError(f"{self}: theta must be positive, and pairs 'adjacent' or 'halves'")

    def turn(self, x, at):
        if x.shape[-1] % 2:
            raise ValueError(f"Rotary turns pairs of features; a head of width {x.shape[-1]} is odd")
        split = {"adjacent": "b h t (pair two)", "halves": "b h t (two pair)"}[self.pairs]
        pair = torch.arange(0, x.shape[-1], 2, device=x.device, dtype=torch.float64)
        angle = at[..., None].double() * self.theta ** (-pair / x.shape[-1])
        angle = angle[:, None] if at.dim() == 2 else angle
        sin, cos = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
        one, other = rearrange(x, f"{split} -> two b h t pair", two=2)
        turned = torch.stack((one * cos - other * sin, one * sin + other * cos))
        return rearrange(turned, f"two b h t pair -> {split}")


# --- on the score ---


class OnScore(Position):
    """Abstract: something is added for each pair of places, to the score and perhaps to the value."""

    @abstractmethod
    def on_score(self, q: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """What is added to the scores; q is the query as the score folds it. Indices broadcast to (b, h, i, j)."""

    def on_value(self, weights: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor | None:
        """What is added to the outputs, if anything."""
        return None


class Bias(OnScore):
    """Abstract: a number for each pair, whatever the query says: all that a fused kernel can add."""

    @abstractmethod
    def bias(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor: ...

    def on_score(self, q, b, h, i, j):
        return self.bias(b, h, i, j).to(q.dtype)


@dataclass(frozen=True)
class Alibi(Bias):
    """-m |i - j|: far keys are dimmed, each head by a slope m of its own (Press et al. 2022)."""

    heads: int

    def __post_init__(self):
        if not isinstance(self.heads, int) or self.heads < 1:
            raise ValueError(f"{self}: there must be a head to have a slope")

    def misfit(self, heads, head, places):
        return None if heads == self.heads else f"{self} has slopes for {self.heads} heads, not {heads}"

    def slope(self, h: Tensor) -> Tensor:
        # the paper's rule: for a power of two a geometric series; otherwise the rest comes from every other term of
        # the series for the next power
        power = 2 ** (self.heads.bit_length() - 1)
        h = h.double()
        return torch.exp2(-torch.where(h < power, h + 1, h - power + 0.5) * 8 / power)

    def slopes(self) -> Tensor:
        return self.slope(torch.arange(self.heads))

    def bias(self, b, h, i, j):
        return -self.slope(h) * (i - j).abs()
