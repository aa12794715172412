"""Plan of the statistics kernels: what they must know of a recipe, why they cannot run it, and how the work is cut.

They take inner products in half precision with softmax, patterns that are a band of differences i - j (and a length for
each batch element), and biases that depend on i - j alone.

Queries are cut into segments, none of which crosses the border of a map's row. A slab is some segments of some heads,
so many that the partial results of them fit into a fixed space, and the blocks of keys that they may see.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from math import e, log2
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.batch_patterns import Padding
from regard.attention.normaliser import Softmax
from regard.attention.pattern import And, Causal, Full, Pattern, Positions, StrictCausal, Window
from regard.attention.position import Bias, ScorePosition
from regard.attention.position_variants import Alibi, Clipped, LogBuckets, RelativeBias
from regard.attention.recipe import Recipe
from regard.attention.score import Dot, ScaledDot

FAR = 2**28  # further apart than any two positions
FEWEST = 128  # queries and keys: below this torch's own kernels waste less
MOST = 64  # keys that can be searched for at once
WIDEST = 256
MARGIN = 256  # biases on either side that a tile at the edge reads and does not use
LOG_2_E = log2(e)


@dataclass(frozen=True)
class DifferenceRange:
    """Differences i - j from `least` to `most`."""

    least: int = -FAR
    most: int = FAR

    def __and__(self, other: "DifferenceRange") -> "DifferenceRange":
        return DifferenceRange(max(self.least, other.least), min(self.most, other.most))


def band(pattern: Pattern) -> DifferenceRange | None:
    """The differences that a pattern lets see, whatever it says of lengths; None if that is not all it says."""
    match pattern:
        case And(left, right):
            one, other = band(left), band(right)
            return None if one is None or other is None else one & other
        case Full() | Padding():
            return DifferenceRange()
        case Causal():
            return DifferenceRange(least=0)
        case StrictCausal():
            return DifferenceRange(least=1)
        case Window(size):
            return DifferenceRange(1 - size, size - 1)
    return None


def lengths(pattern: Pattern, batch: int, n_k: int, device: torch.device) -> Int[Tensor, "b"]:
    """So many keys each batch element has."""
    match pattern:
        case And(left, right):
            return torch.minimum(lengths(left, batch, n_k, device), lengths(right, batch, n_k, device))
        case Padding(own):
            return own.to(device, torch.int32).clamp(0, n_k).expand(batch)
    return torch.full((batch,), n_k, dtype=torch.int32, device=device)


def has_padding(pattern: Pattern) -> bool:
    return isinstance(pattern, Padding) or (
        isinstance(pattern, And) and (has_padding(pattern.left) or has_padding(pattern.right))
    )


def is_toeplitz_bias(scheme: ScorePosition) -> bool:
    if isinstance(scheme, RelativeBias):
        return isinstance(scheme.relation, (Clipped, LogBuckets))
    return isinstance(scheme, Alibi)


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions, top: int = 0) -> list[str]:
    """Why the kernels cannot run this; empty if they can."""
    short = min(q.shape[2], k.shape[2])
    return [
        *([] if find_spec("triton") else ["its kernels need Triton, which is not installed: pip install triton"]),
        *([] if q.is_cuda else [f"its kernels run on a GPU, not on {q.device}"]),
        *([] if q.dtype in (torch.bfloat16, torch.float16) else [f"tensor cores would round {q.dtype}"]),
        *([] if isinstance(recipe.score, (Dot, ScaledDot)) else [f"{recipe.score} would round what it makes of q"]),
        *([] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]),
        *([] if band(recipe.pattern) else [f"{recipe.pattern} is not a band of differences i - j"]),
        *([] if positions.start is not None else ["positions passed one by one have no band of differences"]),
        *(
            f"{scheme} does not depend on i - j alone"
            for scheme in recipe.score_positions
            if not is_toeplitz_bias(scheme)
        ),
        *([f"{short} tokens leave a tile empty"] if short < FEWEST else []),
        *([f"heads of width {q.shape[3]} are wider than {WIDEST}"] if q.shape[3] > WIDEST else []),
        *([f"a tile cannot hold the {top} largest"] if top > MOST else []),
        *([] if q.stride(3) == 1 and k.stride(3) == 1 else ["a token's features must lie side by side"]),
    ]


@dataclass(frozen=True, eq=False)
class StatsInputs:
    """q, k and all that a kernel needs to know of who sees whom."""

    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b g j d"]
    scale: float
    start: int
    band: DifferenceRange
    lengths: Int[Tensor, "b"]
    padded: bool
    biases: Float[Tensor, "h r"] | None  # by difference, the smallest first, MARGIN more on either side

    @staticmethod
    def of(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> "StatsInputs":
        differences, start = band(recipe.pattern), positions.start
        assert differences is not None  # or the kernels objected
        assert start is not None
        q, k = (x if x.shape[2] * x.stride(2) < 2**31 else x.contiguous() for x in (q, k))
        scale = q.shape[3] ** -0.5 if isinstance(recipe.score, ScaledDot) else 1.0
        known = lengths(recipe.pattern, q.shape[0], k.shape[2], q.device).contiguous()
        biases = bias_table(recipe.score_positions, q, k, start)
        return StatsInputs(q, k, scale, start, differences, known, has_padding(recipe.pattern), biases)

    @property
    def sees_all(self) -> bool:
        return self.band == DifferenceRange() and not self.padded

    @property
    def heads(self) -> int:
        """Of the whole batch."""
        return self.q.shape[0] * self.q.shape[1]

    @property
    def origin(self) -> int:
        """The index of the difference 0 in the table of biases."""
        return MARGIN + self.k.shape[2] - 1 - self.start

    def keys_of(self, first: int, stop: int) -> tuple[int, int]:
        """The first key that some of these queries see, and the one after the last."""
        low, high = first + self.start - self.band.most, stop + self.start - self.band.least
        high = max(0, min(self.k.shape[2], high))
        return min(max(0, low), high), high

    def rows(self, chosen: tuple[int, ...]) -> Float[Tensor, "b h r j"]:
        """The weights of some queries."""
        i, j = self.tensor(chosen), self.expand_heads(self.k)
        q = self.q[:, :, i]
        scores = self.each_head(lambda element, head: self.scores(element, head, i, j, q, self.k))
        return scores.softmax(-1).masked_fill_((scores == -torch.inf).all(-1, keepdim=True), 0.0)

    def columns(self, chosen: tuple[int, ...], lse: Float[Tensor, "b h i"]) -> Float[Tensor, "b h i c"]:
        """The weights of some keys."""
        i, j = self.expand_heads(self.q), self.tensor(chosen)
        k = self.k[:, :, j]
        scores = self.each_head(lambda element, head: self.scores(element, head, i, j, self.q, k))
        return scores.sub_(lse.nan_to_num(0.0, 0.0, 0.0)[..., None]).exp_()  # from a blind row every key is hidden

    def tensor(self, indices: tuple[int, ...]) -> Int[Tensor, "t"]:
        """Without waiting for what the GPU is doing."""
        here = torch.tensor(indices)
        return (here.pin_memory() if self.q.is_cuda else here).to(self.q.device, non_blocking=True)

    def expand_heads(self, x: Tensor) -> Int[Tensor, "t"]:
        return torch.arange(x.shape[2], device=x.device)

    def each_head(self, run: Callable[[int, int], Tensor]) -> Float[Tensor, "b h i j"]:
        """One after the other: in float32 all of them would be larger than what they were made from."""
        batch, heads = self.q.shape[:2]
        return torch.stack([torch.stack([run(b, h) for h in range(heads)]) for b in range(batch)])

    def scores(self, element: int, head: int, i: Tensor, j: Tensor, q: Tensor, k: Tensor) -> Float[Tensor, "i j"]:
        """Scores of one head, materialised, in float32; -∞ where hidden. q and k are those at i and j."""
        apart, group = i[:, None] + self.start - j, head * self.k.shape[1] // self.q.shape[1]
        s = (q[element, head].float() @ k[element, group].float().mT).mul_(self.scale)
        if self.biases is not None:
            s += self.biases[head, apart + self.origin]
        seen = (apart >= self.band.least) & (apart <= self.band.most) & (j < self.lengths[element])
        return s.masked_fill_(~seen, -torch.inf)


def bias_table(schemes: tuple[ScorePosition, ...], q: Tensor, k: Tensor, start: int) -> Tensor | None:
    """What all schemes together add to the scores of each head, by difference."""
    if not schemes:
        return None
    first, last = start - k.shape[2] + 1, start + q.shape[2] - 1
    apart = torch.arange(first, last + 1, device=q.device)
    zero, h = torch.zeros_like(apart[:1]), torch.arange(q.shape[1], device=q.device)[:, None]
    added = torch.zeros(q.shape[1], len(apart), device=q.device)
    for scheme in schemes:
        assert isinstance(scheme, Bias)  # or the kernels objected
        added += scheme.bias(zero, h, apart, zero).float()
    return pad(added, (MARGIN, MARGIN)).contiguous()


# --- slabs ---


SPACE = 5 * 2**27  # bytes stored at once
LONGEST = 4096  # queries of a segment: long enough to be worth a block of keys, short enough to keep every core busy
GRID = 65535  # the most that a grid of programs can count along its second and third axis


class RequestedStats(Protocol):
    """What is requested; see StatsRequest."""

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
class StatsTileShape:
    """How the work is cut: queries and keys of a tile, warps of a program, tiles on their way. Speed alone.

    Fewer keys a chunk, of which each leaves a maximum, are fewer to score again and more to store.
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


ROWS = StatsTileShape(128, 64)  # of the pass that finds the log-sum-exp
COLUMNS = StatsTileShape(
    registers=128
)  # so that four programs share a multiprocessor; one waits for its product, three go on
MASKED = StatsTileShape(registers=168)  # a mask, or a peak for each key, takes more
BIASED = StatsTileShape()


def default_shape(seen: StatsInputs, request: RequestedStats) -> StatsTileShape:
    """How the pass over columns is best cut."""
    if seen.biases is not None:
        return BIASED
    n_k, cells = seen.k.shape[2], 1 if request.peaks is None else request.peaks[1]
    return COLUMNS if seen.sees_all and n_k % (cells * COLUMNS.keys) == 0 else MASKED


@dataclass(frozen=True)
class Slab:
    """Which segments, the queries they hold, which heads (of the whole batch), and which blocks of keys."""

    cuts: slice
    queries: slice
    heads: slice
    blocks: slice


@dataclass(frozen=True, eq=False)
class SlabMemory:
    """What is stored, in bytes: for each query and block of keys, and for each segment and key."""

    seen: StatsInputs
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
        few = slice_length(blocks) <= 2 * slice_length(fewest) and stop - first <= GRID
        return few and self.needed(cuts, first, stop) <= SPACE

    def blocks(self, cuts: list[int], first: int, stop: int) -> slice:
        """Those that hold a key which some query of these segments may see; one at least."""
        low, high = self.seen.keys_of(cuts[first], cuts[stop])
        return slice(low // self.block, max(low // self.block + 1, tile_count(high, self.block)))

    def needed(self, cuts: list[int], first: int, stop: int) -> int:
        """Bytes for one head."""
        stored = slice_length(self.blocks(cuts, first, stop)) * (cuts[stop] - cuts[first]) * self.each_query
        return stored + (stop - first) * self.seen.k.shape[2] * self.each_key


def segments(n_q: int, rows: set[int], tile: int) -> list[int]:
    """Where segments begin, and the end: at the border of every row of every map, and often enough between."""
    # query i falls into row i·R // n, so a row begins at the first i that is at least row·n / R
    borders = sorted({tile_count(row * n_q, down) for down in rows for row in range(down)} | {0, n_q})
    cuts = []
    for first, stop in pairwise(borders):
        pieces = tile_count(stop - first, LONGEST)
        cuts += range(first, stop, tile_count(tile_count(stop - first, pieces), tile) * tile)
    return [*cuts, n_q]


def row_owners(cuts: list[int], down: int, device: torch.device) -> Tensor:
    """The first segment of each row of a map that is `down` rows high, and the end."""
    begins = torch.tensor([tile_count(row * cuts[-1], down) for row in range(down + 1)])
    return torch.searchsorted(torch.tensor(cuts), begins).to(device, torch.int32)


def tile_count(length: int, size: int) -> int:
    return -(-length // size)


def slice_length(part: slice) -> int:
    return part.stop - part.start
