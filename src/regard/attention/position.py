"""Position schemes: added to the embedding, applied to q and k, or added to the score (and the value).

Sinusoidal()                               added to the embedding, by the model
Rotary()                                   rotates q and k
Alibi(heads=8)                             added to the score
Sinusoidal() + RelativeVectors(Clipped(4), head=64)      schemes add up
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor

from regard.ops.rotary import FrequencyScaling, Pairs, rotate_fused, use_fused

if TYPE_CHECKING:
    from regard.attention.position_variants import DependencyTree


class Position(ABC):  # noqa: B024 (its verbs belong to the three kinds below)
    """Abstract: each scheme is an EmbeddingPosition, QueryKeyPosition or ScorePosition; `+` uses two together.

    Examples:
        >>> position = Sinusoidal() + Alibi(heads=8)
        >>> position, isinstance(position, Position)
        (Sinusoidal(theta=10000.0) + Alibi(heads=8), True)
        >>> Recipe(position=position).score_positions
        (Alibi(heads=8),)
    """

    def __add__(self, other: "Position") -> "Position":
        return PositionSum((*self.parts(), *other.parts())) if isinstance(other, Position) else NotImplemented

    def parts(self) -> tuple["Position", ...]:
        return (self,)

    def shape_error(self, heads: int, head: int, length: int) -> str | None:
        """Why it does not fit so many heads, queries of this width (as the score folds them) or positions; or None."""
        return None

    @property
    def batches(self) -> int:
        """For how many batch elements the scheme holds data; 1 when it is the same for all."""
        return 1

    def with_tree(self, tree: "DependencyTree") -> "Position":
        """The same scheme with the trees of this batch; most ignore them."""
        return self


@dataclass(frozen=True)
class NoPosition(Position):
    """Attention that does not know order: "man eats dinosaur" is "dinosaur eats man".

    Examples:
        >>> x = torch.randn(1, 1, 5, 8)
        >>> attend(x.flip(2), x.flip(2), x.flip(2)).allclose(attend(x, x, x).flip(2), atol=1e-6)
        True
        >>> (NoPosition() + Rotary()).parts()
        (Rotary(theta=10000.0, pairs='adjacent'),)
    """

    def parts(self):
        return ()


@dataclass(frozen=True)
class PositionSum(Position):
    schemes: tuple[Position, ...]

    def parts(self):
        return self.schemes

    def with_tree(self, tree):
        return PositionSum(tuple(scheme.with_tree(tree) for scheme in self.schemes))

    def __repr__(self):
        return " + ".join(map(repr, self.schemes)) or "NoPosition()"


# --- added to the embedding ---


class EmbeddingPosition(Position):
    """Abstract: a vector for each position, added to the token's own. `positions` is (t) or (b, t).

    Examples:
        >>> class Parity(EmbeddingPosition):  # 0 for even positions, 1 for odd ones
        ...     def table(self, positions, model):
        ...         return (positions % 2)[..., None].expand(*positions.shape, model)
        >>> Recipe(position=Parity()).embed(torch.zeros(1, 3, 2), torch.arange(3))
        tensor([[[0., 0.],
                 [1., 1.],
                 [0., 0.]]])
    """

    @abstractmethod
    def table(self, positions: Tensor, model: int) -> Tensor: ...

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.batches not in (1, x.shape[0]):
            raise ValueError(f"{self} holds data for {self.batches} sentences, x for {len(x)}")
        return x + self.table(positions, x.shape[-1]).to(x.dtype)


# --- applied to q and k ---


class QueryKeyPosition(Position):
    """Abstract: changes q and k by their own positions. x is (b, h, t, d), `positions` is (t) or (b, t).

    Examples:
        >>> class Growing(QueryKeyPosition):  # later queries and keys are longer vectors
        ...     def rotate(self, x, positions):
        ...         return x * (1 + positions[:, None])
        >>> q = torch.ones(1, 1, 3, 1)
        >>> steps(q, q, q, Recipe(position=Growing())).scores[0, 0]
        tensor([[1., 2., 3.],
                [2., 4., 6.],
                [3., 6., 9.]])
    """

    @abstractmethod
    def rotate(self, x: Tensor, positions: Tensor) -> Tensor: ...

    def rotate_keys(self, k: Tensor, positions: Tensor) -> Tensor:
        """The same of keys, where they are not changed as queries are."""
        return self.rotate(k, positions)


@dataclass(frozen=True, repr=False)
class Rotary(QueryKeyPosition):
    """Rotates each pair of features by an angle proportional to the position, so q · k depends on i - j alone.

    A pair is two adjacent features (Su et al. 2021) or one from each half (Llama): the same thing, reordered. Of a head
    only the first `fraction` of its features may be rotated (partial rotary; GPT-NeoX, Qwen3-Next).

    Examples:
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
        >>> rotated = Rotary().rotate(x, torch.arange(3))[0, 0]
        >>> rotated  # by 0, 1 and 2 radians
        tensor([[ 1.0000,  0.0000],
                [ 0.5403,  0.8415],
                [-0.4161,  0.9093]])
        >>> rotated @ rotated.T  # the same along each diagonal
        tensor([[ 1.0000,  0.5403, -0.4161],
                [ 0.5403,  1.0000,  0.5403],
                [-0.4161,  0.5403,  1.0000]])
    """

    theta: float = 10_000.0
    pairs: Pairs = "adjacent"
    scaling: FrequencyScaling | None = None
    fraction: float = 1.0

    def __post_init__(self):
        if self.pairs not in ("adjacent", "halves") or not self.theta > 0 or not 0 < self.fraction <= 1:
            raise ValueError(f"{self}: theta must be positive, pairs 'adjacent' or 'halves', and 0 < fraction ≤ 1")

    def __repr__(self):
        scaling = "" if self.scaling is None else f", scaling={self.scaling!r}"
        fraction = "" if self.fraction == 1 else f", fraction={self.fraction!r}"
        return f"Rotary(theta={self.theta!r}, pairs={self.pairs!r}{scaling}{fraction})"

    def rotate(self, x, positions):
        width = int(x.shape[-1] * self.fraction)
        if width % 2:
            raise ValueError(f"{self} rotates pairs of features; a head of width {width} is odd")
        frequency = self.theta ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
        frequency = frequency if self.scaling is None else self.scaling.scale(frequency)
        magnitude = 1.0 if self.scaling is None else self.scaling.magnitude
        if x.is_cuda and use_fused(x):
            return rotate_fused(x, positions, frequency, pairs=self.pairs, magnitude=magnitude)
        rotated = rotate_pairs(x[..., :width], positions[..., None].double() * frequency, self.pairs) * magnitude
        return rotated if self.fraction == 1 else torch.cat((rotated, x[..., width:]), -1)


def rotate_pairs(x: Tensor, angle: Tensor, pairs: Pairs) -> Tensor:
    """Each pair of features rotated; angles are (t, pair) or (b, t, pair)."""
    split = {"adjacent": "b h t (pair two)", "halves": "b h t (two pair)"}[pairs]
    angle = angle[:, None] if angle.dim() == 3 else angle
    sin, cos = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
    one, other = rearrange(x, f"{split} -> two b h t pair", two=2)
    rotated = torch.stack((one * cos - other * sin, one * sin + other * cos))
    return rearrange(rotated, f"two b h t pair -> {split}")


# --- added to the score ---


class ScorePosition(Position):
    """Abstract: something is added for each pair of positions, to the score and perhaps to the value."""

    @abstractmethod
    def score_term(self, q: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """What is added to the scores; q is the query as the score folds it. Indices broadcast to (b, h, i, j)."""

    def contextual_term(
        self, q: Tensor, scores: Tensor, visible: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor
    ) -> Tensor:
        """The same, where it depends on the scores of the keys that a query sees as well."""
        return self.score_term(q, b, h, i, j)

    @property
    def is_contextual(self) -> bool:
        """Does it depend on which keys are visible?"""
        return False

    def value_term(self, weights: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor | None:
        """What is added to the outputs, if anything."""
        return None


class Bias(ScorePosition):
    """Abstract: a number for each pair, whatever the query says: all that a fused kernel can add.

    Examples:
        >>> class Distance(Bias):  # -log(1 + |i - j|): a power law
        ...     def bias(self, b, h, i, j):
        ...         return -(1 + (i - j).abs()).log()
        >>> q = torch.zeros(1, 1, 3, 4)
        >>> steps(q, q, q, Recipe(position=Distance())).weights[0, 0, 1]
        tensor([0.2500, 0.5000, 0.2500])
    """

    @abstractmethod
    def bias(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor: ...

    def score_term(self, q, b, h, i, j):
        return self.bias(b, h, i, j).to(q.dtype)
