"""So many queries, keys and rows of maps in; the tiles and slabs that a probe's kernels take one after the other out.

Queries are cut into segments, none of which crosses the border of a map's row. A slab is some segments of some heads,
so many that what is noted down of them fits into a fixed space, and the blocks of keys that they may see.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.attention.kernels.probe_reach import Seen

SPACE = 5 * 2**27  # bytes noted down at once
LONGEST = 4096  # queries of a segment: long enough to be worth a block of keys, short enough to keep every core busy
GRID = 65535  # the most that a grid of programs can count along its second and third axis


class Asked(Protocol):
    """What is wanted; see probes.Wanted."""

    @property
    def top(self) -> int: ...
    @property
    def map(self) -> tuple[int, int] | None: ...
    @property
    def peaks(self) -> tuple[int, int] | None: ...
    @property
    def mass(self) -> bool: ...
    @property
    def entropy(self) -> bool: ...


@dataclass(frozen=True)
class Shape:
    """How the work is cut: queries and keys of a tile, warps of a program, tiles on their way. Speed alone.

    Fewer keys a chunk, of which each leaves a maximum, are fewer to score again and more to note down.
    """

    queries: int = 64
    keys: int = 128
    warps: int = 4
    stages: int = 3
    registers: int | None = None
    chunk: int = 16

    @property
    def chunks(self) -> int:
        """Of a block: what one of the four threads of a row holds, whole or in parts."""
        return max(4, self.keys // self.chunk)

    def options(self) -> dict[str, Any]:
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"QUERIES": self.queries, "KEYS": self.keys, "num_warps": self.warps, "num_stages": self.stages} | limit


ROWS = Shape(128, 64)  # of the pass that finds the log-sum-exp
COLUMNS = Shape(registers=128)  # so that four programs share a multiprocessor; one waits for its product, three go on
MASKED = Shape(registers=168)  # a mask, or a peak for each key, takes more
BIASED = Shape()


def usual(seen: Seen, asked: Asked) -> Shape:
    """How the pass over columns is best cut."""
    if seen.biases is not None:
        return BIASED
    n_k, cells = seen.k.shape[2], 1 if asked.peaks is None else asked.peaks[1]
    return COLUMNS if seen.everything and n_k % (cells * COLUMNS.keys) == 0 else MASKED


@dataclass(frozen=True)
class Slab:
    """Which segments, the queries they hold, which heads (of all sentences), and which blocks of keys."""

    cuts: slice
    queries: slice
    heads: slice
    blocks: slice


@dataclass(frozen=True, eq=False)
class Space:
    """What is noted down, in bytes: for each query and block of keys, and for each segment and key."""

    seen: Seen
    block: int
    each_query: int
    each_key: int

    def slabs(self, cuts: list[int]) -> Iterator[Slab]:
        first, last = 0, len(cuts) - 1
        while first < last:
            stop = first + 1
            while stop < last and self.fits(cuts, first, stop + 1):
                stop += 1
            at_once = max(1, min(SPACE // max(1, self.needed(cuts, first, stop)), GRID))
            for head in range(0, self.seen.heads, at_once):
                heads = slice(head, min(head + at_once, self.seen.heads))
                yield Slab(slice(first, stop), slice(cuts[first], cuts[stop]), heads, self.blocks(cuts, first, stop))
            first = stop

    def fits(self, cuts: list[int], first: int, stop: int) -> bool:
        """Into the space, and into few blocks: of a window that moves on, most would be empty."""
        fewest, blocks = self.blocks(cuts, first, first + 1), self.blocks(cuts, first, stop)
        few = length(blocks) <= 2 * length(fewest) and stop - first <= GRID
        return few and self.needed(cuts, first, stop) <= SPACE

    def blocks(self, cuts: list[int], first: int, stop: int) -> slice:
        """Those that hold a key which some query of these segments may see; one at least."""
        low, high = self.seen.keys_of(cuts[first], cuts[stop])
        return slice(low // self.block, max(low // self.block + 1, tiles(high, self.block)))

    def needed(self, cuts: list[int], first: int, stop: int) -> int:
        """Bytes for one head."""
        noted = length(self.blocks(cuts, first, stop)) * (cuts[stop] - cuts[first]) * self.each_query
        return noted + (stop - first) * self.seen.k.shape[2] * self.each_key


def segments(n_q: int, rows: set[int], tile: int) -> list[int]:
    """Where segments begin, and the end: at the border of every row of every map, and often enough between."""
    # query i falls into row i·R // n, so a row begins at the first i that is at least row·n / R
    borders = sorted({tiles(row * n_q, down) for down in rows for row in range(down)} | {0, n_q})
    cuts = []
    for first, stop in pairwise(borders):
        pieces = tiles(stop - first, LONGEST)
        cuts += range(first, stop, tiles(tiles(stop - first, pieces), tile) * tile)
    return [*cuts, n_q]


def owned(cuts: list[int], down: int, device: torch.device) -> Tensor:
    """The first segment of each row of a map that is `down` rows high, and the end."""
    begins = torch.tensor([tiles(row * cuts[-1], down) for row in range(down + 1)])
    return torch.searchsorted(torch.tensor(cuts), begins).to(device, torch.int32)


def tiles(length: int, size: int) -> int:
    return -(-length // size)


def length(part: slice) -> int:
    return part.stop - part.start
