"""Patterns that hold a batch's own data: the lengths of its sentences, its documents, the edges of its graph."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from regard.attention.blocks import Span, exactly, scatter
from regard.attention.pattern import Pattern


class Given(Pattern):
    """Abstract: compares and hashes by the data it holds."""

    def held(self) -> tuple[Tensor, ...]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple(value for value in values if isinstance(value, Tensor))

    @property
    def asks_head(self):
        return False

    def __repr__(self) -> str:
        """By shape: to print the data would make a GPU wait for every sentence about the pattern."""
        return f"{type(self).__name__}({', '.join('×'.join(map(str, x.shape)) for x in self.held())})"

    def to(self, device):
        moved = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in moved.items()}
        return replace(self, **moved)  # type: ignore[type-var]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Given) or type(self) is not type(other):
            return NotImplemented
        return len(self.held()) == len(other.held()) and all(map(same, self.held(), other.held()))

    def __hash__(self) -> int:
        return hash((type(self), tuple(tuple(x.shape) for x in self.held())))


def own(b: Tensor, data: Tensor) -> Tensor:
    """Which row of the data belongs to sentence b: its own, or the only one there is."""
    return b if len(data) > 1 else b * 0


def same(x: Tensor, y: Tensor) -> bool:
    return x is y or (x.device == y.device and torch.equal(x, y))


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Given):
    """Sentence b has lengths[b] keys; what follows them is padding, which nobody sees."""

    lengths: Tensor

    def __post_init__(self):
        if self.lengths.dim() != 1 or self.lengths.is_floating_point():
            raise ValueError(f"Padding wants one whole number per sentence, not {describe(self.lengths)}")

    def sees(self, b, h, i, j):
        return (j < self.lengths[own(b, self.lengths)]) & (i == i)

    def count(self, rows, cols):
        if not len(self.lengths):  # nobody is there to see anything
            return exactly(torch.zeros_like(rows.sizes[:, None] * cols.sizes))
        low, high = (cols.below(int(bound)) for bound in (self.lengths.min(), self.lengths.max()))
        return rows.sizes[:, None] * low, rows.sizes[:, None] * high

    @property
    def batches(self):
        return len(self.lengths)


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Given):
    """Several texts in one row: ids[b, t] names the text of token t; only tokens of one text see each other.

    For cross-attention give the ids of the keys as well.
    """

    ids: Tensor
    keys: Tensor | None = None

    def __post_init__(self):
        for ids in self.held():
            if ids.dim() != 2 or ids.is_floating_point():
                raise ValueError(f"Documents wants whole numbers shaped (batch, tokens), not {describe(ids)}")

    @staticmethod
    def of_lengths(lengths: list[int]) -> "Documents":
        """One row that holds texts of these lengths, one after the other."""
        return Documents(torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None])

    def misfit(self, n_q, n_k):
        known = self.ids.shape[1], (self.ids if self.keys is None else self.keys).shape[1]
        if n_q <= known[0] and n_k <= known[1]:
            return None
        return f"{self} names {known[0]} queries and {known[1]} keys, not {n_q} and {n_k}"

    def sees(self, b, h, i, j):
        keys = self.ids if self.keys is None else self.keys
        return self.ids[own(b, self.ids), i] == keys[own(b, keys), j]

    def count(self, rows, cols):
        (low_i, high_i), (low_j, high_j) = (
            extremes(ids, span)
            for ids, span in ((self.ids, rows), (self.ids if self.keys is None else self.keys, cols))
        )
        apart = (high_i[:, :, None] < low_j[:, None]) | (high_j[:, None] < low_i[:, :, None])
        one = (low_i == high_i)[:, :, None] & (low_j == high_j)[:, None] & ~apart
        area = rows.sizes[:, None] * cols.sizes
        return torch.where(one.all(0), area, 0), torch.where(apart.all(0), 0, area)

    @property
    def batches(self):
        return max(len(ids) for ids in self.held())  # queries may share one row of ids while every sentence has keys


@dataclass(frozen=True, eq=False, repr=False)
class Edges(Given):
    """Attention over a graph: query i sees key j if (i, j) is an edge. Edges are the columns of a 2 x e matrix."""

    pairs: Tensor

    def __post_init__(self):
        if self.pairs.dim() != 2 or len(self.pairs) != 2 or self.pairs.is_floating_point():
            raise ValueError(f"Edges wants whole numbers shaped (2, edges), not {describe(self.pairs)}")
        if self.pairs.numel() and self.pairs.min() < 0:
            raise ValueError(f"Edges: node {int(self.pairs.min())} is negative; nodes are numbered from 0")

    def codes(self) -> Tensor:
        """Each edge as one number, sorted, so that membership is a binary search and no n x n table exists."""
        return (self.pairs[0].long() * 2**31 + self.pairs[1].long()).unique()

    def sees(self, b, h, i, j):
        codes, wanted = self.codes(), i * 2**31 + j
        if not len(codes):
            return wanted < 0
        return codes[torch.searchsorted(codes, wanted).clamp(max=len(codes) - 1)] == wanted

    def count(self, rows, cols):
        codes = self.codes()
        total = torch.zeros(len(rows), len(cols), dtype=torch.int64)
        scatter(total, codes // 2**31, codes % 2**31, rows, cols)
        return exactly(total)


def extremes(ids: Tensor, span: Span) -> tuple[Tensor, Tensor]:
    """The smallest and largest id in each block of the span."""
    here = ids[:, span.start : span.stop]
    filled = torch.cat((here, here[:, -1:].expand(-1, len(span) * span.size - here.shape[1])), 1)
    return filled.view(len(ids), len(span), span.size).aminmax(dim=2)


def describe(x: Tensor) -> str:
    return f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"
