"""The weights of a head, some queries at a time, in; its statistics and a small picture of it out."""

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
    bands: Iterable[Band], at: int, picture: Tensor | None = None, shape: tuple[int, int] = (0, 0)
) -> tuple[float, ...]:
    """One head's statistics, and if wanted its picture, in one pass; queries stand from `at` on, keys from 0."""
    sums, largest, rows = torch.zeros(4, dtype=torch.float64), 0.0, 0
    for queries, keys, weights in bands:
        if picture is not None:
            paint(picture, (queries, keys, weights), range(shape[0]), range(shape[1]))
        total, most = weights.sum(-1), weights.amax(-1)
        whole = total.masked_fill(total == 0, 1.0)  # a query that sees nothing adds nothing
        far = (queries.float()[:, None] + at - keys.float()).abs_()
        first = weights[:, 0] if int(keys[0]) == 0 else torch.zeros_like(total)
        found = (torch.linalg.vecdot(weights, far), first, most)
        sums += torch.stack([entropy(weights).sum(), *((one / whole).sum() for one in found)]).double().cpu()
        largest, rows = max(largest, float(most.max())), rows + int((total != 0).sum())
    return (*(sums / max(1, rows)).tolist(), largest)


def blank(rows: int, columns: int, queries: range, keys: range, like: Tensor) -> Float[Tensor, "rows columns"]:
    """A picture of so many rows and columns, but never of more than there are queries and keys."""
    if rows < 1 or columns < 1:
        raise ValueError(f"a picture has at least one row and one column, not {rows} and {columns}")
    return like.new_zeros(min(rows, len(queries)), min(columns, len(keys)), dtype=torch.float32)


def paint(picture: Tensor, band: Band, queries: range, keys: range) -> None:
    """Query i and key j fall into a cell by their shares of the way; a cell holds the largest weight in it."""
    (here, there, weights), (rows, columns) = band, picture.shape
    if len(there) and (int(there[0]) < keys.start or int(there[-1]) >= keys.stop):
        shown = (there >= keys.start) & (there < keys.stop)
        there, weights = there[shown], weights[:, shown]
    across = (there - keys.start) * columns // len(keys)
    marks, counts = ((here - queries.start) * rows // len(queries)).unique_consecutive(return_counts=True)
    for row, some in zip(marks.tolist(), weights.split(counts.tolist()), strict=True):
        picture[row].scatter_reduce_(0, across, some.amax(0), "amax")
