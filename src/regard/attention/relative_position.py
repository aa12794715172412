"""Relative positions: ALiBi, T5's bias, Shaw's relative keys and values, CoPE, and paths in a dependency tree.

A relation (distance, logarithmic bucket, path through a tree) says which learned numbers a pair of positions reads. In
a dependency tree (Wang et al. 2019) the absolute position is the depth below the root, the relative one the path
through the tree. Such a scheme is written once and gets the trees of each batch:
`recipe.with_tree(tree=DependencyTree.from_governors(governors))`.
"""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, field
from math import log

import torch
from einops import einsum
from torch import Tensor, nn

from regard.attention.position import Bias, ScorePosition
from regard.attention.position_variants import TREE_MISSING, DependencyTree

# --- linear in the distance ---


class LinearBias(Bias):
    """Abstract: -m |i - j|, each head by a slope m of its own, fixed or learned: one multiply-add a score in a kernel.

    Examples:
        >>> class Halving(LinearBias):  # each token further away weighs half as much
        ...     def slope(self, h):
        ...         return torch.full(h.shape, 2.0, device=h.device).log()
        >>> q = torch.zeros(1, 1, 3, 4)
        >>> steps(q, q, q, Recipe(position=Halving(), pattern=Causal())).weights[0, 0, 2]
        tensor([0.1429, 0.2857, 0.5714])
    """

    @abstractmethod
    def slope(self, h: Tensor) -> Tensor:
        """m of heads h."""

    def bias(self, b, h, i, j):
        return -self.slope(h) * (i - j).abs()


def is_linear(scheme: ScorePosition) -> bool:
    """Does it add -m |i - j| and nothing else? What a subclass changed is not."""
    verbs = ("bias", "score_term", "contextual_term", "value_term")
    return isinstance(scheme, LinearBias) and all(getattr(type(scheme), x) is getattr(LinearBias, x) for x in verbs)


@dataclass(frozen=True)
class Alibi(LinearBias):
    """-m |i - j|: far keys are dimmed, each head by a slope m of its own (Press et al. 2022).

    Examples:
        >>> Alibi(heads=4).slopes()
        tensor([0.2500, 0.0625, 0.0156, 0.0039], dtype=torch.float64)
        >>> head, i, j = torch.tensor(0), torch.tensor(3), torch.arange(5)
        >>> Alibi(heads=4).bias(0, head, i, j)
        tensor([-0.7500, -0.5000, -0.2500, -0.0000, -0.2500], dtype=torch.float64)
    """

    heads: int

    def __post_init__(self):
        if not isinstance(self.heads, int) or self.heads < 1:
            raise ValueError(f"{self}: heads must be a whole number, 1 or more")

    def shape_error(self, heads, head, length):
        return None if heads == self.heads else f"{self} has slopes for {self.heads} heads, not {heads}"

    def slope(self, h: Tensor) -> Tensor:
        # the paper's rule: for a power of two a geometric series; otherwise the rest comes from every other term of
        # the series for the next power
        power = 2 ** (self.heads.bit_length() - 1)
        h = h.double()
        return torch.exp2(-torch.where(h < power, h + 1, h - power + 0.5) * 8 / power)

    def slopes(self) -> Tensor:
        return self.slope(torch.arange(self.heads))


# --- relations: which bucket a pair of positions falls into ---


class Relation(ABC):
    """Abstract: the bucket of two positions, a number below `num_buckets`.

    Examples:
        >>> class Side(Relation):  # before, itself or after
        ...     num_buckets = 3
        ...     def bucket(self, b, i, j):
        ...         return (j - i).sign() + 1
        >>> RelativeBias(Side(), heads=8).weight.shape
        torch.Size([8, 3])
    """

    @property
    @abstractmethod
    def num_buckets(self) -> int: ...

    @abstractmethod
    def bucket(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor: ...

    def shape_error(self, length: int) -> str | None:
        """Why it does not cover so many positions; None if it does."""
        return None

    @property
    def batches(self) -> int:
        """For how many batch elements it holds data; 1 when it is the same for all."""
        return 1

    def with_tree(self, tree: DependencyTree) -> "Relation":
        return self


@dataclass(frozen=True)
class Clipped(Relation):
    """The distance j - i, no further than `max_distance` to either side (Shaw et al. 2018).

    Examples:
        >>> relation = Clipped(2)
        >>> relation.bucket(0, 3, torch.arange(7)), relation.num_buckets
        (tensor([0, 0, 1, 2, 3, 4, 4]), 5)
    """

    max_distance: int

    @property
    def num_buckets(self):
        return 2 * self.max_distance + 1

    def bucket(self, b, i, j):
        return (j - i).clamp(-self.max_distance, self.max_distance) + self.max_distance


@dataclass(frozen=True)
class LogBuckets(Relation):
    """T5's buckets: small distances each their own, larger ones shared, logarithmically up to `max_distance`.

    Examples:
        >>> relation = LogBuckets(buckets=8, max_distance=16, bidirectional=False)
        >>> relation.bucket(0, torch.tensor(20), torch.tensor([20, 19, 18, 17, 16, 14, 10, 4]))
        tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    @property
    def num_buckets(self):
        return self.buckets

    def bucket(self, b, i, j):
        ahead = j - i
        buckets = self.buckets // 2 if self.bidirectional else self.buckets
        first = (ahead > 0) * buckets if self.bidirectional else ahead * 0
        distance = ahead.abs() if self.bidirectional else (-ahead).clamp(min=0)
        exact = buckets // 2
        # T5 computes this in float32; a larger type would move the bucket borders
        ratio = torch.log(distance.clamp(min=1).float() / exact) / log(self.max_distance / exact)
        far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(distance < exact, distance, far)


# --- learned by bucket ---


@dataclass(eq=False)
class RelativeBias(nn.Module, Bias):
    """One learned number per head and relation: with LogBuckets, T5 (Raffel et al. 2020).

    Examples:
        >>> position = RelativeBias(Clipped(1), heads=1)
        >>> position.weight.data = torch.tensor([[0.1, 0.5, 0.2]])  # before, itself, after
        >>> i, j = torch.arange(3)[:, None], torch.arange(3)
        >>> position.bias(0, torch.tensor(0), i, j).data
        tensor([[0.5000, 0.2000, 0.2000],
                [0.1000, 0.5000, 0.2000],
                [0.1000, 0.1000, 0.5000]])
    """

    relation: Relation
    heads: int

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.heads, self.relation.num_buckets) * 0.1)

    def shape_error(self, heads, head, length):
        wrong = f"{self} has numbers for {self.heads} heads, not {heads}"
        return wrong if heads != self.heads else self.relation.shape_error(length)

    @property
    def batches(self):
        return self.relation.batches

    def bias(self, b, h, i, j):
        return self.weight[h, self.relation.bucket(b, i, j)]

    def with_tree(self, tree):
        return with_relation(self, self.relation.with_tree(tree))


@dataclass(eq=False)
class RelativeVectors(nn.Module, ScorePosition):
    """One learned key and value per relation: with Clipped, Shaw et al. 2018.

    e_ij = q_i · (k_j + a^K_ij)  (eq. 4)   and   z_i = Σ_j α_ij (v_j + a^V_ij)  (eq. 3), the query scaled as the
    score scales it. Both sums run over the few relations instead of over pairs. All heads share the vectors.

    Examples:
        >>> position = RelativeVectors(Clipped(4), head=16)
        >>> position.keys.shape, position.values.shape
        (torch.Size([9, 16]), torch.Size([9, 16]))
        >>> q = torch.randn(1, 2, 7, 16)
        >>> attend(q, q, q, Recipe(position=position)).shape
        torch.Size([1, 2, 7, 16])
    """

    relation: Relation
    head: int

    def __post_init__(self):
        super().__init__()
        self.keys, self.values = (
            nn.Parameter(torch.randn(self.relation.num_buckets, self.head) * self.head**-0.5) for _ in range(2)
        )

    def shape_error(self, heads, head, length):
        wrong = f"{self} adds to heads of width {self.head}, not {head}"
        return wrong if head != self.head else self.relation.shape_error(length)

    @property
    def batches(self):
        return self.relation.batches

    def score_term(self, q, b, h, i, j):
        per_relation = einsum(q, self.keys, "b h i d, r d -> b h i r")
        relation = self.relation.bucket(b, i, j)
        return per_relation.gather(-1, relation.expand(*q.shape[:3], relation.shape[-1]))

    def value_term(self, weights, b, h, i, j):
        relation = self.relation.bucket(b, i, j).expand_as(weights)
        by_relation = weights.new_zeros(*weights.shape[:3], self.relation.num_buckets).scatter_add(
            -1, relation, weights
        )
        return einsum(by_relation, self.values, "b h i r, r e -> b h i e")

    def with_tree(self, tree):
        return with_relation(self, self.relation.with_tree(tree))


def with_relation(scheme: RelativeBias | RelativeVectors, relation: Relation) -> RelativeBias | RelativeVectors:
    """The same learned numbers read through another relation: a shallow copy, so the parameters are shared."""
    other = copy(scheme)
    other.relation = relation
    return other


# --- positions counted by the content ---


@dataclass(eq=False)
class CoPE(nn.Module, ScorePosition):
    """Contextual position encoding: positions count only the keys that a query lets count (Golovneva et al. 2024).

    The gate σ(s_ij) says how much key j counts, p_ij = Σ_{t ≥ j} σ(s_it) over the visible keys is its position, at most
    max_position, and q_i · e[p_ij] is added to the score, mixed from the two whole positions nearest. All heads share
    the vectors. With `Causal()`, as in the paper, a query counts back from itself.

    Examples:
        >>> position = CoPE(max_position=2, head=1)
        >>> position.vectors.data = torch.tensor([[0.0], [10.0], [20.0]])
        >>> q, k = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 3, 1)  # scores 0, gates ½: positions 1½, 1, ½
        >>> seen = steps(q, k, k, Recipe(position=position))
        >>> (seen.adjusted - seen.scores)[0, 0].data
        tensor([[15., 10.,  5.]])
    """

    max_position: int
    head: int

    def __post_init__(self):
        super().__init__()
        if self.max_position < 1:
            raise ValueError(f"CoPE(max_position={self.max_position}) counts nothing; use 1 or more")
        self.vectors = nn.Parameter(torch.randn(self.max_position + 1, self.head) * self.head**-0.5)

    def shape_error(self, heads, head, length):
        return None if head == self.head else f"{self} adds to heads of width {self.head}, not {head}"

    @property
    def is_contextual(self):
        return True

    def score_term(self, q, b, h, i, j):
        raise ValueError(f"{self} counts the keys by their scores; use contextual_term")

    def contextual_term(self, q, scores, visible, b, h, i, j):
        gates = torch.where(visible, torch.where(visible, scores, 0.0).sigmoid(), 0.0)
        position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.max_position)
        below = position.detach().floor().long()
        per_position = einsum(q, self.vectors.to(q.dtype), "b h i d, p d -> b h i p")
        low, high = (per_position.gather(-1, at.clamp(max=self.max_position)) for at in (below, below + 1))
        return low + (high - low) * (position - below)


# --- dependency trees ---


@dataclass(frozen=True)
class TreePath(Relation):
    """The path through the tree, no longer than `max_distance`; for RelativeVectors and RelativeBias.

    Examples:
        >>> tree = DependencyTree.from_governors(torch.tensor([[2, 3, 0]]))  # the cat sleeps
        >>> TreePath(max_distance=4).with_tree(tree).paths[0]
        tensor([[ 0, -1, -2],
                [ 1,  0, -1],
                [ 2,  1,  0]])
        >>> RelativeVectors(TreePath(max_distance=4), head=16)
        RelativeVectors(relation=TreePath(max_distance=4), head=16)
    """

    max_distance: int
    paths: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def num_buckets(self):
        return 2 * self.max_distance + 1

    def shape_error(self, length):
        if self.paths is None or length <= self.paths.shape[1]:
            return None
        return (
            f"{self} holds trees of {self.paths.shape[1]} tokens, but there are {length}; pass the trees of this batch"
        )

    @property
    def batches(self):
        return 1 if self.paths is None else len(self.paths)

    def with_tree(self, tree: DependencyTree) -> "TreePath":
        return TreePath(self.max_distance, tree.path())

    def bucket(self, b, i, j):
        if self.paths is None:
            raise ValueError(f"{self} {TREE_MISSING}")
        return self.paths[b % len(self.paths), i, j].clamp(-self.max_distance, self.max_distance) + self.max_distance
