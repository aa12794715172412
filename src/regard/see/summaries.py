"""The weights of some heads, a few queries at a time, in; the statistics of each head and a small picture of it out."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.probes import entropy

Band = tuple[Tensor, Tensor, Tensor]  # some queries, the keys they may see, both ascending, and those weights


@dataclass(frozen=True, eq=False)
class Statistics:
    """Of every head, means over the queries that see anything."""

    entropy: Float[Tensor, " h"]  # in nats; 0 where one key has all
    distance: Float[Tensor, " h"]  # between the place of a query and those it weighs
    sink: Float[Tensor, " h"]  # what the first key gets
    confidence: Float[Tensor, " h"]  # the largest weight of a query
    largest: Float[Tensor, " h"]  # of all weights


def summarised(
    bands: Iterable[tuple[slice, Band]],
    heads: int,
    at: int,
    pictures: Float[Tensor, "h rows columns"] | None = None,
    shape: tuple[int, int] = (0, 0),
) -> Statistics:
    """All heads' statistics, and if wanted their pictures, in one pass; queries stand from `at` on, keys from 0."""
    sums, largest = torch.zeros(heads, 5, dtype=torch.float64), torch.zeros(heads)
    for some, (queries, keys, weights) in bands:
        if pictures is not None:
            paint(pictures[some], (queries, keys, weights), range(shape[0]), range(shape[1]))
        total, most = weights.sum(-1), weights.amax(-1)
        whole = total.masked_fill(total == 0, 1.0)  # a query that sees nothing adds nothing
        far = (queries.float()[:, None] + at - keys.float()).abs_()
        first = weights[..., 0] if int(keys[0]) == 0 else torch.zeros_like(total)
        found = (torch.linalg.vecdot(weights, far) / whole, first / whole, most / whole)
        sums[some] += torch.stack([entropy(weights), *found, (total != 0).float()], -1).sum(-2).double().cpu()
        largest[some] = largest[some].maximum(most.amax(-1).cpu())
    means = sums[:, :4] / sums[:, 4:].clamp(min=1)
    return Statistics(*torch.cat([means.float(), largest[:, None]], 1).T)


def blank(rows: int, columns: int, queries: range, keys: range, like: Tensor) -> Float[Tensor, "rows columns"]:
    """A picture of so many rows and columns, but never of more than there are queries and keys."""
    if rows < 1 or columns < 1:
        raise ValueError(f"a picture has at least one row and one column, not {rows} and {columns}")
    return like.new_zeros(min(rows, len(queries)), min(columns, len(keys)), dtype=torch.float32)


def paint(picture: Tensor, band: Band, queries: range, keys: range) -> None:
    """Query i and key j fall into a cell by their shares of the way; a cell holds the largest weight in it."""
    (here, there, weights), (rows, columns) = band, picture.shape[-2:]
    if len(there) and (int(there[0]) < keys.start or int(there[-1]) >= keys.stop):
        shown = (there >= keys.start) & (there < keys.stop)
        there, weights = there[shown], weights[..., shown]
    across = ((there - keys.start) * columns // len(keys)).expand(*weights.shape[:-2], -1)
    marks, counts = ((here - queries.start) * rows // len(queries)).unique_consecutive(return_counts=True)
    for row, some in zip(marks.tolist(), weights.split(counts.tolist(), -2), strict=True):
        picture[..., row, :].scatter_reduce_(-1, across, some.amax(-2), "amax")
