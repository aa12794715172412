"""A pattern and a length in; some rows of its mask or all of them out, much faster than asking cell by cell.

It gives what `sees` gives: along diagonals one look-up, Random by its picks, Block by what it is made of.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from regard.attention.notation import leaves
from regard.attention.pattern import And, Not, Or, Pattern
from regard.attention.reach import Block, Random

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
SINGLE, STRATA = (
    32,
    48,
)  # rows at the beginning that are looked at one by one, and groups of which one row stands for all
AT_ONCE = 2**26  # cells


def whole(pattern: Pattern, length: int) -> Mask:
    return np.concatenate([seen_by(pattern, some, length) for some in parts(np.arange(length), pattern, length)])


def seen_by(pattern: Pattern, rows: Rows, length: int) -> Mask:
    """What these queries see of keys 0, 1, ... length - 1."""
    match pattern:
        case And():
            return seen_by(pattern.left, rows, length) & seen_by(pattern.right, rows, length)
        case Or():
            return seen_by(pattern.left, rows, length) | seen_by(pattern.right, rows, length)
        case Not():
            return ~seen_by(pattern.inner, rows, length)
        case Block(size=size, among=among):
            far, turn = np.unique(rows // size, return_inverse=True)
            wide = min(size, length)  # a block may be larger than the text
            return seen_by(among, far, -(-length // size)).repeat(wide, axis=1)[turn, :length]
        case Random():
            return picked(pattern, rows, length)
    if pattern.by_difference:
        return along_diagonals(pattern, rows, length)
    zero, i, j = torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(rows)[:, None], torch.arange(length)[None]
    return pattern.sees(zero, zero, i, j).expand(len(rows), length).numpy()


def along_diagonals(pattern: Pattern, rows: Rows, length: int) -> Mask:
    """Row i is a window of one line: what is seen at every difference i - j."""
    most = int(rows.max(initial=0))
    differences = torch.arange(most, -length, -1)
    zero = torch.zeros_like(differences)
    line = pattern.sees(zero, zero, differences, zero).numpy()
    return sliding_window_view(line, length)[most - rows]


def picked(pattern: Random, rows: Rows, length: int) -> Mask:
    """Every token and those it picked among the earlier see each other."""
    tokens, seen = torch.arange(max(length, int(rows.max(initial=0)) + 1)), np.zeros((len(rows), length), np.bool_)
    row_of = np.full(len(tokens), -1)
    row_of[rows] = np.arange(len(rows))  # no row is asked for twice
    for stratum in range(pattern.picks):
        found, exists = pattern.pick(tokens, stratum)
        later, earlier = tokens[exists].numpy(), found[exists].numpy()
        for query, key in ((later, earlier), (earlier, later)):
            asked = (row_of[query] >= 0) & (key < length)
            seen[row_of[query[asked]], key[asked]] = True
    return seen


def about(pattern: Pattern, length: int) -> int:
    """About how many cells are visible in a mask too long to form: the first rows, which may see all, one by one."""
    edges = np.unique(np.r_[np.arange(SINGLE), np.geomspace(SINGLE, length, STRATA + 1).astype(np.int64)])
    sizes, middles = np.diff(edges), (edges[:-1] + edges[1:] - 1) // 2
    total = 0
    for some, weights in zip(parts(middles, pattern, length), parts(sizes, pattern, length), strict=True):
        total += int((seen_by(pattern, some, length).sum(1) * weights).sum())
    return total


def parts(rows: Rows, pattern: Pattern, length: int) -> Iterator[Rows]:
    """So many rows at a time as fit, if each part of the pattern holds its own."""
    size = max(1, AT_ONCE // (length * len(leaves(pattern))))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
