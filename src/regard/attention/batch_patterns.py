"""Batch patterns: patterns that hold data of one batch (padding, documents, edges, masks); batches without padding."""

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention.block_map import Span, exact_bounds, scatter
from regard.attention.pattern import Pattern
from regard.attention.position import Bias
from regard.ops.fused_layers import concatenate_columns


class BatchPattern(Pattern):
    """Abstract: compares and hashes by the data it holds."""

    def tensors(self) -> tuple[Tensor, ...]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple(value for value in values if isinstance(value, Tensor))

    @property
    def depends_on_head(self):
        return False

    def __repr__(self) -> str:
        """By shape: to print the data would make a GPU wait whenever a message names the pattern."""
        return f"{type(self).__name__}({', '.join('×'.join(map(str, x.shape)) for x in self.tensors())})"

    def to(self, device):
        moved = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in moved.items()}
        return replace(self, **moved)  # type: ignore[type-var]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchPattern) or type(self) is not type(other):
            return NotImplemented
        return len(self.tensors()) == len(other.tensors()) and all(map(same_tensor, self.tensors(), other.tensors()))

    def __hash__(self) -> int:
        return hash((type(self), tuple(tuple(x.shape) for x in self.tensors())))


def batch_row(b: Tensor, data: Tensor) -> Tensor:
    """Which row of the data belongs to batch element b: its own, or the only one there is."""
    return b if data.shape[0] > 1 else b * 0


def same_tensor(x: Tensor, y: Tensor) -> bool:
    return x is y or (x.device == y.device and torch.equal(x, y))


@dataclass(frozen=True, eq=False, repr=False)
class Padding(BatchPattern):
    """Batch element b has lengths[b] keys; what follows them is padding, which nobody sees.

    Examples:
        >>> padding = Padding(torch.tensor([3, 1]))
        >>> padding.sees(torch.tensor([[0], [1]]), 0, 0, torch.arange(3))
        tensor([[ True,  True,  True],
                [ True, False, False]])
    """

    lengths: Tensor

    def __post_init__(self):
        if self.lengths.dim() != 1 or self.lengths.is_floating_point():
            raise ValueError(f"Padding wants one whole number per sentence, not {describe_tensor(self.lengths)}")

    def sees(self, b, h, i, j):
        return (j < self.lengths[batch_row(b, self.lengths)]) & (i == i)

    def count(self, rows, cols):
        if not self.lengths.shape[0]:  # nobody is there to see anything
            return exact_bounds(torch.zeros_like(rows.sizes[:, None] * cols.sizes))
        low, high = (cols.below(int(bound)) for bound in (self.lengths.min(), self.lengths.max()))
        return rows.sizes[:, None] * low, rows.sizes[:, None] * high

    @property
    def batches(self):
        return self.lengths.shape[0]


@dataclass(frozen=True, eq=False, repr=False)
class FloatMask(BatchPattern):
    """A mask that is there already: 0 where a query sees a key, -∞ elsewhere, to be added to the scores.

    Every query sees one key at least. `mask` is (b, 1, i, j), and i is 1 where all queries see the same.

    Examples:
        >>> mask = FloatMask(torch.tensor([[[[0.0, 0.0, -torch.inf]]]]))
        >>> mask.sees(torch.tensor(0), 0, torch.tensor(0), torch.arange(3))
        tensor([ True,  True, False])
    """

    mask: Tensor

    def __post_init__(self):
        if self.mask.dim() != 4 or self.mask.shape[1] != 1 or not self.mask.is_floating_point():
            raise ValueError(f"FloatMask wants numbers shaped (b, 1, i, j), not {describe_tensor(self.mask)}")

    def shape_error(self, n_q, n_k):
        queries, keys = self.mask.shape[2:]
        if n_k <= keys and (n_q <= queries or queries == 1):
            return None
        return f"{self} has {queries} queries and {keys} keys, not {n_q} and {n_k}"

    def sees(self, b, h, i, j):
        i = i if self.mask.shape[2] > 1 else i * 0
        return self.mask[batch_row(b, self.mask), 0, i, j] == 0

    @property
    def batches(self):
        return len(self.mask)


@dataclass(frozen=True, eq=False, repr=False)
class Documents(BatchPattern):
    """Several documents in one row: segment_ids[b, t] is the document of token t; only tokens of one see each other.

    For cross-attention pass the segment ids of the keys as well.

    Examples:
        >>> i, j = torch.arange(5)[:, None], torch.arange(5)
        >>> Documents.from_lengths([2, 3]).sees(torch.tensor(0), 0, i, j).long()
        tensor([[1, 1, 0, 0, 0],
                [1, 1, 0, 0, 0],
                [0, 0, 1, 1, 1],
                [0, 0, 1, 1, 1],
                [0, 0, 1, 1, 1]])
    """

    segment_ids: Tensor
    key_segment_ids: Tensor | None = None

    def __post_init__(self):
        for ids in self.tensors():
            if ids.dim() != 2 or ids.is_floating_point():
                raise ValueError(f"Documents wants whole numbers shaped (batch, tokens), not {describe_tensor(ids)}")

    @staticmethod
    def from_lengths(lengths: list[int]) -> "Documents":
        """One row that holds documents of these lengths, one after the other."""
        return Documents(torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None])

    def shape_error(self, n_q, n_k):
        known = (
            self.segment_ids.shape[1],
            (self.segment_ids if self.key_segment_ids is None else self.key_segment_ids).shape[1],
        )
        if n_q <= known[0] and n_k <= known[1]:
            return None
        return f"{self} names {known[0]} queries and {known[1]} keys, not {n_q} and {n_k}"

    def sees(self, b, h, i, j):
        keys = self.segment_ids if self.key_segment_ids is None else self.key_segment_ids
        return self.segment_ids[batch_row(b, self.segment_ids), i] == keys[batch_row(b, keys), j]

    def count(self, rows, cols):
        (low_i, high_i), (low_j, high_j) = (
            block_min_max(ids, span)
            for ids, span in (
                (self.segment_ids, rows),
                (self.segment_ids if self.key_segment_ids is None else self.key_segment_ids, cols),
            )
        )
        apart = (high_i[:, :, None] < low_j[:, None]) | (high_j[:, None] < low_i[:, :, None])
        one = (low_i == high_i)[:, :, None] & (low_j == high_j)[:, None] & ~apart
        area = rows.sizes[:, None] * cols.sizes
        return torch.where(one.all(0), area, 0), torch.where(apart.all(0), 0, area)

    @property
    def batches(self):
        return max(len(ids) for ids in self.tensors())  # queries may share one row of ids while every element has keys


@dataclass(frozen=True, eq=False, repr=False)
class Edges(BatchPattern):
    """Attention over a graph: query i sees key j if (i, j) is an edge. Edges are the columns of a 2 x e matrix.

    Examples:
        >>> star = Edges(torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 0, 0]]))
        >>> i, j = torch.arange(3)[:, None], torch.arange(3)
        >>> star.sees(0, 0, i, j).long()
        tensor([[1, 1, 1],
                [1, 0, 0],
                [1, 0, 0]])
    """

    edge_index: Tensor

    def __post_init__(self):
        if self.edge_index.dim() != 2 or len(self.edge_index) != 2 or self.edge_index.is_floating_point():
            raise ValueError(f"Edges wants whole numbers shaped (2, edges), not {describe_tensor(self.edge_index)}")
        if self.edge_index.numel() and self.edge_index.min() < 0:
            raise ValueError(f"Edges: node {int(self.edge_index.min())} is negative; nodes are numbered from 0")

    def codes(self) -> Tensor:
        """Each edge as one number, sorted, so that membership is a binary search and no n x n table exists."""
        return (self.edge_index[0].long() * 2**31 + self.edge_index[1].long()).unique()

    def sees(self, b, h, i, j):
        codes, wanted = self.codes(), i * 2**31 + j
        if not len(codes):
            return wanted < 0
        return codes[torch.searchsorted(codes, wanted).clamp(max=len(codes) - 1)] == wanted

    def count(self, rows, cols):
        codes = self.codes()
        total = torch.zeros(len(rows), len(cols), dtype=torch.int64)
        scatter(total, codes // 2**31, codes % 2**31, rows, cols)
        return exact_bounds(total)


def block_min_max(ids: Tensor, span: Span) -> tuple[Tensor, Tensor]:
    """The smallest and largest id in each block of the span."""
    here = ids[:, span.start : span.stop]
    filled = torch.cat((here, here[:, -1:].expand(-1, len(span) * span.size - here.shape[1])), 1)
    return filled.view(len(ids), len(span), span.size).aminmax(dim=2)


def describe_tensor(x: Tensor) -> str:
    return f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"


# --- masks ---


@dataclass(frozen=True, eq=False, repr=False)
class BooleanMask(BatchPattern):
    """A boolean mask (b, h, i, j), True = may attend; an axis of size 1 holds for all.

    Its first row belongs to the query at `first`; queries before that see nothing.

    Examples:
        >>> mask = torch.tensor([[True, False], [True, True]])
        >>> pattern = BooleanMask(mask[None, None]) & ~Window(1)
        >>> i, j = torch.arange(2)[:, None], torch.arange(2)
        >>> pattern.sees(torch.tensor(0), torch.tensor(0), i, j)
        tensor([[False, False],
                [ True, False]])
    """

    visible: Tensor
    first: int = 0

    def __post_init__(self):
        if self.visible.dim() != 4 or self.visible.dtype != torch.bool:
            raise ValueError(
                f"BooleanMask wants True and False shaped (b, h, i, j), not {describe_tensor(self.visible)}"
            )

    def sees(self, b, h, i, j):
        return mask_cells(self.visible, b, h, i - self.first, j) & (i >= self.first)

    def shape_error(self, n_q, n_k):
        rows, columns = self.visible.shape[2:]
        if (rows == 1 or n_q <= self.first + rows) and (columns == 1 or n_k <= columns):
            return None
        return f"{self} has {rows} queries from {self.first} and {columns} keys, not {n_q} and {n_k}"

    @property
    def batches(self):
        return len(self.visible)

    @property
    def depends_on_head(self) -> bool:  # type: ignore[override]
        return self.visible.shape[1] > 1


@dataclass(frozen=True, eq=False, repr=False)
class AdditiveMask(Bias):
    """Numbers (b, h, i, j) that are added to the scores; axes and rows are as in `BooleanMask`.

    Examples:
        >>> q = torch.zeros(1, 1, 1, 2)
        >>> k = v = torch.eye(2)[None, None]
        >>> mask = AdditiveMask(torch.tensor([[[[1.0, 3.0]]]]).log())
        >>> attend(q, k, v, Recipe(position=mask))
        tensor([[[[0.2500, 0.7500]]]])
    """

    added: Tensor
    first: int = 0

    def __post_init__(self):
        if self.added.dim() != 4 or not self.added.is_floating_point():
            raise ValueError(f"AdditiveMask wants numbers shaped (b, h, i, j), not {describe_tensor(self.added)}")

    def bias(self, b, h, i, j):
        return torch.where(i >= self.first, mask_cells(self.added, b, h, i - self.first, j), 0.0)

    def shape_error(self, heads, head, length):
        own, rows, columns = self.added.shape[1:]
        if own in (1, heads) and (1 in (rows, columns) or length <= max(self.first + rows, columns)):
            return None
        return f"{self} is for {own} heads and {max(self.first + rows, columns)} tokens, not {heads} and {length}"

    @property
    def batches(self):
        return len(self.added)

    def __repr__(self) -> str:
        return f"AdditiveMask({'×'.join(map(str, self.added.shape))})"


def mask_cells(mask: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The cells of a mask at these indices; the answer does not spread along axes that make no difference."""
    index = (b, h, i.clamp(min=0), j)
    return mask[tuple(at if size > 1 else i * 0 for at, size in zip(index, mask.shape, strict=True))]


def mask_parts(
    mask: Tensor, shape: tuple[int, int, int, int], first: int = 0
) -> tuple[BooleanMask, AdditiveMask | None]:
    """What a raw mask means, (i, j), (b, i, j) or (b, h, i, j), for attention of this shape (b, h, i, j).

    True = may attend. Numbers are added to the scores, and -∞ hides. Its first row belongs to the query at `first`.
    """
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"mask holds {mask.dtype}; use mask.bool(), True = may attend, or numbers to add to the scores"
        )
    if mask.dim() not in (2, 3, 4):
        raise ValueError(f"mask must be (i, j), (b, i, j) or (b, h, i, j), not {tuple(mask.shape)}")
    whole = mask[(None,) * (4 - mask.dim())] if mask.dim() < 3 else mask[:, None] if mask.dim() == 3 else mask
    if any(size not in (1, wanted) for size, wanted in zip(whole.shape, shape, strict=True)):
        raise ValueError(
            f"mask is {tuple(mask.shape)}, and there are {shape[0]} sentences, {shape[1]} heads, {shape[2]} queries "
            f"and {shape[3]} keys; it must be (i, j), (b, i, j) or (b, h, i, j), an axis of size 1 for what all share"
        )
    if whole.dtype == torch.bool:
        return BooleanMask(whole, first), None
    hidden = whole == -torch.inf
    return BooleanMask(~hidden, first), AdditiveMask(whole.masked_fill(hidden, 0.0), first)


# --- batches without padding ---


@dataclass(frozen=True, eq=False)
class PackedSequences:
    """Several sequences end to end: x is (1, tokens, model).

    Examples:
        >>> packed = PackedSequences.of([torch.randn(2, 8), torch.randn(3, 8)])
        >>> packed.x.shape, packed.positions
        (torch.Size([1, 5, 8]), tensor([0, 1, 0, 1, 2]))
        >>> output = MultiHeadAttention(8, heads=2)(packed.x, pattern=packed.pattern)
        >>> [part.shape for part in packed.split(output)]
        [torch.Size([2, 8]), torch.Size([3, 8])]
    """

    x: Tensor
    lengths: tuple[int, ...]

    @staticmethod
    def of(sequences: list[Tensor]) -> "PackedSequences":
        if not sequences or any(x.dim() != 2 or x.shape[1] != sequences[0].shape[1] for x in sequences):
            raise ValueError(f"packing wants sequences (tokens, model), not {[tuple(x.shape) for x in sequences]}")
        return PackedSequences(torch.cat(sequences)[None], tuple(map(len, sequences)))

    @property
    def pattern(self) -> Documents:
        """Each sequence sees itself alone. Combine it: packed.pattern & Causal()."""
        return Documents(Documents.from_lengths(list(self.lengths)).segment_ids.to(self.x.device))

    def cross_pattern(self, sources: "PackedSequences") -> Documents:
        """For cross-attention: sequence n of these queries sees sequence n of those keys alone."""
        if len(self.lengths) != len(sources.lengths):
            raise ValueError(
                f"{len(self.lengths)} sequences cannot attend to {len(sources.lengths)}: each needs its own"
            )
        return Documents(self.pattern.segment_ids, sources.pattern.segment_ids)

    @property
    def positions(self) -> Tensor:
        """The position of every token in its own sequence, for embeddings that count from 0."""
        return torch.cat([torch.arange(length, device=self.x.device) for length in self.lengths])

    def split(self, y: Tensor) -> list[Tensor]:
        """What a layer made of x, sequence by sequence."""
        return list(y[0].split(self.lengths))


@dataclass(frozen=True, eq=False)
class UnpaddedTokens:
    """Which tokens of a batch of b rows are there. Linear layers and norms take every token by itself, (1, n, model)
    instead of (b, t, model); attention alone needs the rows: before it tokens are put back to their places, after it
    they are taken out again.

    Args:
        kept: the places of the tokens that are there, of all counted through.
        rows: for every place its token among those that are there; any, if none is.
    """

    batch: int
    kept: Int[Tensor, " n"]
    rows: Int[Tensor, " all"]

    @staticmethod
    def of(kept: Int[Tensor, " n"], batch: int, length: int) -> "UnpaddedTokens":
        rows = torch.zeros(batch * length, dtype=torch.long, device=kept.device)
        return UnpaddedTokens(batch, kept, rows.index_copy_(0, kept, torch.arange(len(kept), device=kept.device)))

    def unpad(self, x: Tensor) -> Tensor:
        """(b, t, ...) to (1, n, ...)."""
        return x.flatten(0, 1).index_select(0, self.kept)[None]

    def pad(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """(1, n, width) to (b, t, width); at places where no token is something stands that nobody may read."""
        whole = parts[0] if len(parts) == 1 else concatenate_columns(parts)
        padded = whole[0].index_select(0, self.rows).unflatten(0, (self.batch, -1))
        return padded.split([part.shape[-1] for part in parts], -1)
