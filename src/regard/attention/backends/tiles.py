"""Score tiles: the tiles of a pattern that any query sees, as slices for plain torch or as bounds for a kernel.

A kernel reads no mask. What it can skip and hide by itself is an interval of differences, `low ≤ i − j ≤ high`, and the
length of each batch element: Full, Causal, StrictCausal, Window, Padding and whatever `&` makes of them. Plain torch
asks the pattern's block map, so there every pattern is as good as any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.batch_patterns import Padding
from regard.attention.block_map import EMPTY, FULL, MIXED
from regard.attention.pattern import And, Causal, Full, IndexGrid, Pattern, Positions, StrictCausal, Window

CELLS_AT_ONCE = 2**21
SIZES = (512, 256, 128)  # of a tile's side
WIDEST = 256
FAR = 2**30  # further apart than any two tokens

Q = Float[Tensor, "b h i d"]
K = Float[Tensor, "b h j d"]
V = Float[Tensor, "b h j e"]
Out = Float[Tensor, "b h i e"]
Visible = Bool[Tensor, "#b #h r c"] | None  # None: everything


# --- for a kernel ---


@dataclass(frozen=True, eq=False)
class Interval:
    """The query at i sees the key at j if low ≤ i − j ≤ high and j is no padding."""

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
            case StrictCausal():
                return Interval(low=1)
            case Window():
                return Interval(1 - pattern.size, pattern.size - 1)
            case Padding():
                return Interval(lengths=pattern.lengths)
            case And():
                left, right = Interval.of(pattern.left), Interval.of(pattern.right)
                return None if left is None or right is None else left.intersect(right)
        return None

    def intersect(self, other: "Interval") -> "Interval":
        both = [x for x in (self.lengths, other.lengths) if x is not None]
        lengths = torch.minimum(*both) if len(both) > 1 else both[0] if both else None
        return Interval(max(self.low, other.low), min(self.high, other.high), lengths)

    def ends(self, batch: int, keys: int, device: torch.device) -> Tensor:
        """How many keys each batch element has."""
        if self.lengths is None:
            return torch.full((batch,), keys, dtype=torch.int32, device=device)
        return self.lengths.to(device, torch.int32).clamp(0, keys).expand(batch).contiguous()


def triton_tile_objections(pattern: Pattern, positions: Positions, q: Tensor, v: Tensor) -> list[str]:
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
        *([] if positions.start is not None else ["its kernels need consecutive positions: pass q_index as a number"]),
        *([] if Interval.of(pattern) else [f"{pattern} is more than an interval of i − j and padding"]),
    ]


# --- for plain torch ---


@dataclass(frozen=True, eq=False)
class ScoreTiles:
    """The cells of one call, cut into square tiles; those that nobody sees are left out."""

    pattern: Pattern
    cells: IndexGrid
    start: int | None
    size: int

    @staticmethod
    def of(pattern: Pattern, positions: Positions, batch: int, heads: int) -> "ScoreTiles":
        fits = (size for size in SIZES if batch * heads * size**2 <= CELLS_AT_ONCE)
        return ScoreTiles(pattern, positions.grid(batch, heads), positions.start, next(fits, SIZES[-1]))

    def bands(self) -> Iterator[tuple[slice, Iterator[tuple[slice, Visible]]]]:
        """Some queries, and one after another the keys they see."""
        for rows, states in zip(cut(self.cells.i.shape[2], self.size), self.states(), strict=True):
            yield rows, self.along(rows, states)

    def along(self, rows: slice, states: list[int]) -> Iterator[tuple[slice, Visible]]:
        for cols, state in zip(cut(self.cells.j.shape[3], self.size), states, strict=True):
            if state != EMPTY:
                yield cols, None if state == FULL else self.visible(rows, cols)

    def visible(self, rows: slice, cols: slice) -> Tensor:
        cells = IndexGrid(self.cells.b, self.cells.h, self.cells.i[:, :, rows], self.cells.j[..., cols])
        return cells.visible(self.pattern)

    def states(self) -> list[list[int]]:
        n_q, n_k = self.cells.i.shape[2], self.cells.j.shape[3]
        some = n_q and n_k and self.cells.b.numel()
        if some and self.start is not None and not self.pattern.depends_on_head:
            return self.pattern.blocks(n_q, n_k, self.size, start=self.start).dense().tolist()
        everywhere = FULL if self.pattern == Full() else MIXED
        return [[everywhere] * -(-n_k // self.size)] * -(-n_q // self.size)


def cut(length: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, length)) for first in range(0, length, size))
