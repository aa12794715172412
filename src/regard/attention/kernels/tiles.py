"""A pattern in; the tiles of the scores that anybody sees out: as slices for plain torch, as bounds for a kernel.

A kernel looks at no mask. What it can skip and hide by itself is an interval of differences, `low ≤ i − j ≤ high`, and
the end of each sentence: Full, Causal, Before, Window, Padding and whatever `&` makes of them. Plain torch asks the
pattern's block map, so there every pattern is as good as any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.attention.blocks import EMPTY, FULL, MIXED
from regard.attention.given import Padding
from regard.attention.pattern import And, Before, Causal, Full, Pattern, Window
from regard.attention.places import Cells, Places

CELLS_AT_ONCE = 2**21
SIZES = (512, 256, 128)  # of a tile's side
WIDEST = 256
FAR = 2**30  # further apart than any two tokens

Visible = Bool[Tensor, "#b #h r c"] | None  # None: everything


# --- for a kernel ---


@dataclass(frozen=True, eq=False)
class Interval:
    """The query at i sees the key at j if low ≤ i − j ≤ high and j is within its sentence."""

    low: int = -FAR
    high: int = FAR
    lengths: Tensor | None = None

    @staticmethod
    def of(pattern: Pattern) -> "Interval | None":
        """None if the pattern is more than that."""
        match pattern:
            case Full():
                return Interval()
            case Causal():
                return Interval(low=0)
            case Before():
                return Interval(low=1)
            case Window():
                return Interval(1 - pattern.size, pattern.size - 1)
            case Padding():
                return Interval(lengths=pattern.lengths)
            case And():
                left, right = Interval.of(pattern.left), Interval.of(pattern.right)
                return None if left is None or right is None else left.within(right)
        return None

    def within(self, other: "Interval") -> "Interval":
        given = [x for x in (self.lengths, other.lengths) if x is not None]
        lengths = torch.minimum(*given) if len(given) > 1 else given[0] if given else None
        return Interval(max(self.low, other.low), min(self.high, other.high), lengths)

    def ends(self, batch: int, keys: int, device: torch.device) -> Tensor:
        """How many keys each sentence has."""
        if self.lengths is None:
            return torch.full((batch,), keys, dtype=torch.int32, device=device)
        return self.lengths.to(device, torch.int32).clamp(0, keys).expand(batch).contiguous()


def why_not_fused(pattern: Pattern, places: Places, q: Tensor, v: Tensor) -> list[str]:
    """Why Triton's kernels cannot run; empty if they can."""
    if q.device.type != "cuda":
        return [f"its kernels need a GPU, and q is on {q.device}"]
    try:
        import triton  # noqa: F401
    except ImportError:
        return ["its kernels need Triton, which is not installed: pip install triton"]
    widest = max(q.shape[3], v.shape[3])
    return [
        *([f"a program cannot hold heads of width {widest}, only {WIDEST}"] if widest > WIDEST else []),
        *(["its kernels count in float32, which is too coarse for float64"] if q.dtype == torch.float64 else []),
        *([] if places.start is not None else ["its kernels need consecutive positions: give q_at as a number"]),
        *([] if Interval.of(pattern) else [f"{pattern} is more than an interval of i − j and the sentences' ends"]),
    ]


# --- for plain torch ---


@dataclass(frozen=True, eq=False)
class Tiles:
    """The cells of one call, cut into square tiles; those that nobody sees are left out."""

    pattern: Pattern
    cells: Cells
    start: int | None
    size: int

    @staticmethod
    def of(pattern: Pattern, places: Places, batch: int, heads: int) -> "Tiles":
        fits = (size for size in SIZES if batch * heads * size**2 <= CELLS_AT_ONCE)
        return Tiles(pattern, places.cells(batch, heads), places.start, next(fits, SIZES[-1]))

    def bands(self) -> Iterator[tuple[slice, Iterator[tuple[slice, Visible]]]]:
        """Some queries, and one after another the keys they see."""
        for rows, states in zip(cut(self.cells.i.shape[2], self.size), self.states(), strict=True):
            yield rows, self.along(rows, states)

    def along(self, rows: slice, states: list[int]) -> Iterator[tuple[slice, Visible]]:
        for cols, state in zip(cut(self.cells.j.shape[3], self.size), states, strict=True):
            if state != EMPTY:
                yield cols, None if state == FULL else self.visible(rows, cols)

    def visible(self, rows: slice, cols: slice) -> Tensor:
        cells = Cells(self.cells.b, self.cells.h, self.cells.i[:, :, rows], self.cells.j[..., cols])
        return cells.visible(self.pattern)

    def states(self) -> list[list[int]]:
        n_q, n_k = self.cells.i.shape[2], self.cells.j.shape[3]
        if n_q and n_k and self.start is not None and not self.pattern.asks_head:
            return self.pattern.blocks(n_q, n_k, self.size, start=self.start).dense().tolist()
        everywhere = FULL if self.pattern == Full() else MIXED
        return [[everywhere] * -(-n_k // self.size)] * -(-n_q // self.size)


def cut(length: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, length)) for first in range(0, length, size))
