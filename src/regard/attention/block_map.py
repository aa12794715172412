"""Block map: which blocks of a pattern's n × n mask are empty, mixed or full, without ever forming n × n.

A block's state follows from how many of its cells are visible. Every pattern bounds that number from below and
above for whole rows of blocks at once (`count`); bounds combine under &, | and ~ like numbers. Where they leave a
doubt (two mixed masks may or may not overlap) the few doubtful blocks are evaluated cell by cell.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

EMPTY, MIXED, FULL = 0, 1, 2

Bounds = tuple[Tensor, Tensor]  # at least and at most so many visible cells, for each block

ROWS_AT_ONCE = 2**21  # blocks surveyed together: bounds the memory, whatever the length
CELLS_AT_ONCE = 2**22  # doubtful cells evaluated together
PATIENCE = 2**30  # doubtful cells evaluated in all; past that a doubtful block stays mixed, which is always safe


@dataclass(frozen=True)
class Span:
    """The positions start, start + 1, ... stop - 1, cut into blocks of `size` (the last may be shorter)."""

    start: int
    stop: int
    size: int

    def __len__(self) -> int:
        return -(-(self.stop - self.start) // self.size)

    @property
    def firsts(self) -> Tensor:
        return torch.arange(self.start, self.stop, self.size)

    @property
    def lasts(self) -> Tensor:
        return (self.firsts + self.size).clamp(max=self.stop) - 1

    @property
    def sizes(self) -> Tensor:
        return self.lasts - self.firsts + 1

    def below(self, bound: int) -> Tensor:
        """How many positions of each block lie before `bound`."""
        return (bound - self.firsts).clamp(min=0).minimum(self.sizes)

    def pieces(self, blocks: int) -> Iterator["Span"]:
        for start in range(self.start, self.stop, blocks * self.size):
            yield Span(start, min(start + blocks * self.size, self.stop), self.size)


class Countable(Protocol):
    """What a block map needs of a pattern."""

    @property
    def batches(self) -> int: ...
    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor: ...
    def count(self, rows: Span, cols: Span) -> Bounds: ...


def move_to_device(pattern: Any, device: torch.device | str) -> Any:
    """A pattern on this device. A module would move itself, under the layer it belongs to: a copy goes instead."""
    return nn.Module.to(deepcopy(pattern), device) if isinstance(pattern, nn.Module) else pattern.to(device)


@dataclass(frozen=True, eq=False)
class BlockMap:
    """Each row of blocks as runs: blocks first[r] ... stop[r] - 1 of row[r] are all mixed or all full.

    Examples:
        >>> Causal().blocks(6, block=2).dense()
        tensor([[1, 0, 0],
                [2, 1, 0],
                [2, 2, 1]], dtype=torch.uint8)
        >>> (Causal() & Window(512)).blocks(100_000, block=128).counts()
        {'empty': 607624, 'mixed': 1560, 'full': 2340}
    """

    rows: Span
    cols: Span
    row: Tensor
    first: Tensor
    stop: Tensor
    state: Tensor

    def dense(self) -> Tensor:
        """The state of every block as a matrix, 0 empty, 1 mixed, 2 full (for small maps and pictures)."""
        states = torch.full((len(self.rows), len(self.cols)), EMPTY, dtype=torch.uint8)
        for row, first, stop, state in zip(*map(Tensor.tolist, self.runs()), strict=True):
            states[row, first:stop] = state
        return states

    def runs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.row, self.first, self.stop, self.state

    def counts(self) -> dict[str, int]:
        """How many blocks are empty, mixed and full."""
        lengths = self.stop - self.first
        mixed, full = (int(lengths[self.state == state].sum()) for state in (MIXED, FULL))
        return {"empty": len(self.rows) * len(self.cols) - mixed - full, "mixed": mixed, "full": full}

    @property
    def density(self) -> float:
        """The share of blocks that must be computed."""
        return 1 - self.counts()["empty"] / max(1, len(self.rows) * len(self.cols))

    def visible_blocks(self) -> tuple[Tensor, Tensor]:
        """Row and column of every block that is not empty, row by row."""
        lengths = self.stop - self.first
        before = lengths.cumsum(0) - lengths
        row, first, before = (x.repeat_interleave(lengths) for x in (self.row, self.first, before))
        return row, first + torch.arange(len(row)) - before


def build_block_map(pattern: Countable, rows: Span, cols: Span) -> BlockMap:
    """The block map of a pattern, a few rows of blocks at a time."""
    patience, runs = PATIENCE, []
    per_piece = max(1, ROWS_AT_ONCE // max(1, len(cols)))
    for number, piece in enumerate(rows.pieces(per_piece)):
        low, high = pattern.count(piece, cols)
        area = piece.sizes[:, None] * cols.sizes
        state = torch.full(area.shape, MIXED, dtype=torch.uint8)
        state[high == 0] = EMPTY
        state[low == area] = FULL
        # no cell proven visible, or none proven hidden, and yet not settled
        doubtful = ((low == 0) | (high == area)) & (state == MIXED)
        where = doubtful.nonzero()
        if 0 < len(where) * rows.size * cols.size <= patience:
            patience -= len(where) * rows.size * cols.size
            for part in where.split(max(1, CELLS_AT_ONCE // (rows.size * cols.size * pattern.batches))):
                state[part[:, 0], part[:, 1]] = classify_blocks(pattern, piece, cols, part)
        row, first, stop, kind = run_length_encode(state)
        runs.append((row + number * per_piece, first, stop, kind))
    return BlockMap(rows, cols, *(torch.cat(part) for part in zip(*runs, strict=True)))


def classify_blocks(pattern: Countable, rows: Span, cols: Span, where: Tensor) -> Tensor:
    """The state of some blocks, cell by cell, over the whole batch."""
    i = (rows.firsts[where[:, 0], None] + torch.arange(rows.size))[:, :, None]
    j = (cols.firsts[where[:, 1], None] + torch.arange(cols.size))[:, None, :]
    inside = (i < rows.stop) & (j < cols.stop)
    b = torch.arange(pattern.batches).view(-1, 1, 1, 1)
    seen = pattern.sees(b, torch.zeros_like(b), i.clamp(max=rows.stop - 1), j.clamp(max=cols.stop - 1))
    inside = inside[None]
    some, every = (seen & inside).amax((0, 2, 3)), (seen | ~inside).amin((0, 2, 3))
    return (some.to(torch.uint8) * MIXED).masked_fill_(every, FULL)


def run_length_encode(state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each row of a matrix of states as runs of equal blocks, the empty ones left out."""
    changes = torch.ones(state.shape[0], state.shape[1] + 1, dtype=torch.bool)
    changes[:, 1:-1] = state[:, 1:] != state[:, :-1]
    edges = changes.nonzero().to(torch.int32)
    same_row = edges[1:, 0] == edges[:-1, 0]
    row, first, stop = edges[:-1, 0][same_row], edges[:-1, 1][same_row], edges[1:, 1][same_row]
    kind = state[row, first]
    kept = kind != EMPTY
    return row[kept], first[kept], stop[kept], kind[kept]


def count_toeplitz(pattern: Countable, rows: Span, cols: Span) -> Bounds:
    """The exact number of visible cells per block when sees(i, j) depends on i - j alone.

    With f the predicate on the difference, S its running sum and T the running sum of S, the rectangle
    i0..i1, j0..j1 holds  sum_i [S(i - j0) - S(i - j1 - 1)]  visible cells: four look-ups in T.
    """
    least = rows.start - cols.stop - 1  # the smallest difference needed below; sums may start anywhere before
    differences = torch.arange(least, rows.stop - cols.start)
    zero = torch.zeros_like(differences)
    sums = pattern.sees(zero, zero, differences, zero).to(torch.int64).cumsum(0).cumsum(0)

    def up_to(i: Tensor, j: Tensor) -> Tensor:
        return sums[i[:, None] - j - least]

    i0, i1, j0, j1 = rows.firsts, rows.lasts, cols.firsts, cols.lasts
    total = up_to(i1, j0) - up_to(i0 - 1, j0) - up_to(i1, j1 + 1) + up_to(i0 - 1, j1 + 1)
    return exact_bounds(total)


def exact_bounds(exact: Tensor) -> Bounds:
    return exact, exact


def scatter(total: Tensor, i: Tensor, j: Tensor, rows: Span, cols: Span) -> None:
    """Add one to the block of every cell (i, j) that lies within the spans."""
    inside = (i >= rows.start) & (i < rows.stop) & (j >= cols.start) & (j < cols.stop)
    row, col = (i[inside] - rows.start) // rows.size, (j[inside] - cols.start) // cols.size
    total.view(-1).index_add_(0, row * len(cols) + col, torch.ones_like(row))


# --- when to plan, and what may be cached ---


def is_tracing() -> bool:
    """Is this call being traced (torch.compile, torch.export, torch.jit.trace)?

    Then lengths may be symbols and data unknown, and whatever is decided from them would be decided for all calls.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]


def planning_objections() -> list[str]:
    """Why a backend that plans cannot run in this call; empty if it can."""
    return ["it plans on lengths and data, which are not known while torch traces the call"] if is_tracing() else []


def cached_for(pattern: object, function: Any) -> Any:
    """The function (an lru_cache) with its memory for a pattern that is a value, and without for any other.

    A batch's tensor may be written to between two calls, so what follows from it is worked out in each, and none is
    kept alive.
    """
    return function if is_immutable(pattern) else function.__wrapped__


def is_immutable(part: object) -> bool:
    """Can it never change? A frozen dataclass of constants and of such dataclasses, whoever wrote it."""
    if not is_dataclass(part):
        return all(map(is_immutable, part)) if isinstance(part, tuple) else isinstance(part, int | float | str | None)
    made = vars(type(part)).get("__dataclass_params__")  # its own: a subclass may set what its base does not know of
    return made is not None and made.frozen and all(map(is_immutable, attributes_of(part).values()))


def attributes_of(part: object) -> dict[str, Any]:
    """What an object holds: the fields of a dataclass, which may lie in slots, and whatever else was put on it."""
    named = {field.name: getattr(part, field.name) for field in fields(part)} if is_dataclass(part) else {}
    return named | (vars(part) if type(part).__dictoffset__ else {})
