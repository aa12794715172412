"""How two places relate, and what is learned about it: T5's bias, Shaw's relative keys and values.

A relation (distance, logarithmic bucket, path through a tree) says which learned numbers a pair of places reads.
"""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from math import log

import torch
from einops import einsum
from torch import Tensor, nn

from regard.attention.position import Bias, OnScore
from regard.attention.tree import Tree


class Relation(ABC):
    """Abstract: names the relation between two places by a number below `kinds`."""

    @property
    @abstractmethod
    def kinds(self) -> int: ...

    @abstractmethod
    def between(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor: ...

    def misfit(self, places: int) -> str | None:
        """Why it cannot be asked about so many places; None if it can."""
        return None

    @property
    def batches(self) -> int:
        """For how many sentences it holds data; 1 when it is the same for all."""
        return 1

    def given(self, tree: Tree) -> "Relation":
        return self


@dataclass(frozen=True)
class Clipped(Relation):
    """The distance j - i, no further than `reach` to either side (Shaw et al. 2018)."""

    reach: int

    @property
    def kinds(self):
        return 2 * self.reach + 1

    def between(self, b, i, j):
        return (j - i).clamp(-self.reach, self.reach) + self.reach


@dataclass(frozen=True)
class LogBuckets(Relation):
    """T5's buckets: small distances each their own, larger ones shared, logarithmically up to `furthest`."""

    buckets: int = 32
    furthest: int = 128
    both_ways: bool = True

    @property
    def kinds(self):
        return self.buckets

    def between(self, b, i, j):
        ahead = j - i
        buckets = self.buckets // 2 if self.both_ways else self.buckets
        first = (ahead > 0) * buckets if self.both_ways else ahead * 0
        distance = ahead.abs() if self.both_ways else (-ahead).clamp(min=0)
        exact = buckets // 2
        # T5 computes this in float32; a larger type would move the bucket borders
        ratio = torch.log(distance.clamp(min=1).float() / exact) / log(self.furthest / exact)
        far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(distance < exact, distance, far)


@dataclass(eq=False)
class RelativeBias(nn.Module, Bias):
    """One learned number per head and relation: with LogBuckets, T5 (Raffel et al. 2020)."""

    relation: Relation
    heads: int

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.heads, self.relation.kinds) * 0.1)

    def misfit(self, heads, head, places):
        wrong = f"{self} has numbers for {self.heads} heads, not {heads}"
        return wrong if heads != self.heads else self.relation.misfit(places)

    @property
    def batches(self):
        return self.relation.batches

    def bias(self, b, h, i, j):
        return self.weight[h, self.relation.between(b, i, j)]

    def given(self, tree):
        return with_relation(self, self.relation.given(tree))


@dataclass(eq=False)
class RelativeVectors(nn.Module, OnScore):
    """One learned key and value per relation: with Clipped, Shaw et al. 2018.

    e_ij = q_i · (k_j + a^K_ij)  (eq. 4)   and   z_i = Σ_j α_ij (v_j + a^V_ij)  (eq. 3), the query scaled as the
    score scales it. Both sums run over the few relations instead of over pairs. All heads share the vectors.
    """

    relation: Relation
    head: int

    def __post_init__(self):
        super().__init__()
        self.keys, self.values = (
            nn.Parameter(torch.randn(self.relation.kinds, self.head) * self.head**-0.5) for _ in range(2)
        )

    def misfit(self, heads, head, places):
        wrong = f"{self} adds to heads of width {self.head}, not {head}"
        return wrong if head != self.head else self.relation.misfit(places)

    @property
    def batches(self):
        return self.relation.batches

    def on_score(self, q, b, h, i, j):
        per_relation = einsum(q, self.keys, "b h i d, r d -> b h i r")
        relation = self.relation.between(b, i, j)
        return per_relation.gather(-1, relation.expand(*q.shape[:3], relation.shape[-1]))

    def on_value(self, weights, b, h, i, j):
        relation = self.relation.between(b, i, j).expand_as(weights)
        by_relation = weights.new_zeros(*weights.shape[:3], self.relation.kinds).scatter_add(-1, relation, weights)
        return einsum(by_relation, self.values, "b h i r, r e -> b h i e")

    def given(self, tree):
        return with_relation(self, self.relation.given(tree))


def with_relation(scheme: RelativeBias | RelativeVectors, relation: Relation) -> RelativeBias | RelativeVectors:
    """The same learned numbers read through another relation: a shallow copy, so the parameters are shared."""
    other = copy(scheme)
    other.relation = relation
    return other
