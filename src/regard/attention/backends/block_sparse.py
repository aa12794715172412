"""Block-sparse attention: softmax of an inner product over the tiles that a pattern shows, on a GPU.

Better than FlexAttention wherever it runs: a band (causal, a window, either with padding or packed documents)
costs no block map and no mask but at its edges, nothing is compiled anew for another pattern of the kind or another
length, and a batch's own data never make the GPU wait. Dropout, sinks, a soft cap and biases that are linear in the
distance (ALiBi) are part of the kernels. FlexAttention takes what this objects to: other biases, and patterns whose
every tile is seen in part.

A pattern is taken apart into conditions that must all hold. A batch's own data stay data, for the kernel to compare:
`Padding` is a number of keys per batch element, `Documents` segment ids on both sides and, from their borders, the
tokens that each tile can attend to. What is left is the same for the whole batch, and is either

    Band       least ≤ i − j ≤ most (full, causal, windows): two numbers, whatever the length, or
    TileLists  for each row of tiles its columns, and the same transposed for the backward pass. A column is read whole
               or through one of a few distinct masks: along a diagonal, or where a pattern is made of blocks, most are
               alike.

Nothing here is of the size n × n.
"""

from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_

import numpy as np
import torch
from jaxtyping import Int, Int8
from torch import Tensor

from regard.attention.backends.sdpa import runs_dense, softmax_dropout
from regard.attention.batch_patterns import BatchPattern, Documents, Padding, block_min_max
from regard.attention.block_map import MIXED, BlockMap, Span, cached_for, move_to_device, planning_objections
from regard.attention.gate import state_objections
from regard.attention.parts import leaves
from regard.attention.pattern import And, Causal, Full, Pattern, Positions
from regard.attention.position_variants import LinearBias, is_linear
from regard.attention.recipe import Recipe
from regard.attention.scaled_score import split_cap
from regard.attention.score import InnerProduct, ScaledDot
from regard.attention.softmax_variants import split_sinks
from regard.attention.sparse_patterns import BlockChoice

SIZES = {64: 1.3, 128: 1.0}  # sizes of listed tiles to choose from, and what a cell costs at each
CELLS_AT_ONCE = 2**22  # of masks, evaluated together
CELLS_ASKED = 2**28  # of masks, in all: a few seconds
CELLS_KEPT = 2**27  # of distinct masks, a byte each
WHOLE = -1  # instead of a mask's number


@dataclass(frozen=True)
class Band:
    """Query i sees the keys with least ≤ i − j ≤ most."""

    least: int
    most: int


@dataclass(frozen=True, eq=False)
class TileRows:
    """For row r of tiles the columns[firsts[r] : firsts[r + 1]], each with the number of its mask."""

    firsts: Int[Tensor, " bounds"]  # one more than there are rows
    columns: Int[Tensor, "entries"]
    masks: Int[Tensor, "entries"]
    of_a_head: int = 0  # so many rows belong to each head, one after the other; 0: all heads share them

    @staticmethod
    def of(row: Tensor, column: Tensor, mask: Tensor, rows: int, device: torch.device) -> "TileRows":
        order = (row * (int(column.max()) + 1 if len(column) else 1) + column).argsort()
        firsts = torch.zeros(rows + 1, dtype=torch.int64)
        firsts[1:] = torch.bincount(row, minlength=rows).cumsum(0)
        firsts, column, mask = (x.to(device, torch.int32) for x in (firsts, column[order], mask[order]))
        return TileRows(firsts, column, mask)


@dataclass(frozen=True, eq=False)
class TileLists:
    """Tiles of size × size: row by row of queries, row by row of keys, and the distinct masks, queries first."""

    size: int
    of_queries: TileRows
    of_keys: TileRows
    masks: Int8[Tensor, "distinct size size"]


@dataclass(frozen=True, eq=False)
class SegmentIds:
    """The documents of queries and keys: only tokens of one see each other. One row may serve the whole batch."""

    queries: Int[Tensor, "#b i"]
    keys: Int[Tensor, "#b j"]

    def reach(self, size: int, step: int = 1) -> Int[Tensor, "#b tiles 4"]:
        """For each tile of queries the keys it can attend to; see `segment_reach`."""
        return segment_reach(self.queries, self.keys, size, step)

    def reached(self, size: int, step: int = 1) -> Int[Tensor, "#b tiles 4"]:
        """For each tile of keys the queries that can attend to it."""
        return segment_reach(self.keys, self.queries, size, step)


@dataclass(frozen=True, eq=False)
class BlockSparseTiles:
    """A pattern as a kernel reads it, for queries at start, start + 1, ... and keys at 0, 1, ..."""

    static: Band | TileLists
    start: int
    lengths: Int[Tensor, "#b"] | None = None
    segment_ids: SegmentIds | None = None

    def data(self) -> list[Tensor]:
        """A batch's own."""
        held = self.lengths, self.segment_ids and self.segment_ids.queries, self.segment_ids and self.segment_ids.keys
        return [x for x in held if x is not None]

    @staticmethod
    def of(
        pattern: Pattern, n_q: int, n_k: int, *, start: int = 0, device: torch.device | str = "cpu"
    ) -> "BlockSparseTiles":
        return cached_for(pattern, cut_tiles)(pattern, n_q, n_k, start, torch.device(device))


@lru_cache(maxsize=256)
def cut_tiles(pattern: Pattern, n_q: int, n_k: int, start: int, device: torch.device) -> BlockSparseTiles:
    if why := tiling_objections(pattern, n_q, n_k, start):
        raise ValueError("; ".join(why))
    parts = PatternParts.of(move_to_device(pattern, device))
    static = chosen_tiles(parts.choices[0], n_k) if parts.choices else parts.tiling(n_q, n_k, start)
    if isinstance(static, BlockMap):
        static = cached_for(parts.static, tile_lists)(parts.static, n_q, n_k, start, device)
    assert not isinstance(static, str)  # or it objected
    segment_ids = [segment_ids_of(part, start, n_q, n_k) for part in parts.documents]
    lengths = reduce(torch.minimum, [part.lengths for part in parts.paddings]) if parts.paddings else None
    return BlockSparseTiles(static, start, lengths, segment_ids[0] if segment_ids else None)


def tiling_objections(pattern: Pattern, n_q: int, n_k: int, start: int = 0) -> list[str]:
    """Why a pattern cannot be cut into tiles; empty if it can."""
    parts = PatternParts.of(pattern)
    if parts.choices:
        return choice_objections(parts, n_q, n_k, start)
    tiling = parts.tiling(n_q, n_k, start)
    return [
        *([tiling] if isinstance(tiling, str) else []),
        *(["it compares the segment ids of one packing, not of several"] if len(parts.documents) > 1 else []),
        *([shape_error] if (shape_error := pattern.shape_error(start + n_q, n_k)) else []),
    ]


# --- conditions ---


@dataclass(frozen=True)
class PatternParts:
    """A pattern is all of these."""

    paddings: tuple[Padding, ...]
    documents: tuple[Documents, ...]
    choices: tuple[BlockChoice, ...]
    static: Pattern

    @staticmethod
    def of(pattern: Pattern) -> "PatternParts":
        conditions = conjuncts(pattern)
        rest = [part for part in conditions if not isinstance(part, Padding | Documents | BlockChoice)]
        return PatternParts(
            tuple(part for part in conditions if isinstance(part, Padding)),
            tuple(part for part in conditions if isinstance(part, Documents)),
            tuple(part for part in conditions if isinstance(part, BlockChoice)),
            reduce(and_, rest) if rest else Full(),
        )

    def tiling(self, n_q: int, n_k: int, start: int) -> Band | BlockMap | str:
        return cached_for(self.static, choose_tiling)(self.static, n_q, n_k, start)


def conjuncts(pattern: Pattern) -> tuple[Pattern, ...]:
    return (*conjuncts(pattern.left), *conjuncts(pattern.right)) if isinstance(pattern, And) else (pattern,)


# --- the same for the whole batch ---


@lru_cache(maxsize=256)
def choose_tiling(pattern: Pattern, n_q: int, n_k: int, start: int) -> Band | BlockMap | str:
    """The two ends of a band, or the block map at the size of tiles that is cheapest, or why neither will do."""
    if any(isinstance(part, BatchPattern) and part.batches > 1 for part in leaves(pattern)):
        return f"{pattern} holds more than conditions, so each batch element would need its own masks"
    if pattern.depends_on_head:
        return f"{pattern} differs from head to head"
    if found := band_of(pattern, n_q, n_k, start):
        return found
    with torch.inference_mode(mode=False):  # or what was made while predicting could not be used for training
        maps = {size: pattern.blocks(n_q, n_k, size, start=start) for size in SIZES}
    size = min(maps, key=lambda size: maps[size].density * SIZES[size])
    mixed = maps[size].counts()["mixed"]
    if pattern.is_toeplitz or mixed * size**2 <= CELLS_ASKED:
        return maps[size]
    return f"{mixed:,} tiles of {pattern} are seen in part, too many to keep their masks"


def band_of(pattern: Pattern, n_q: int, n_k: int, start: int) -> Band | None:
    """The two ends, if the differences i − j that are seen follow one another."""
    if not n_q or not n_k:
        return Band(1, 0)
    if not pattern.is_toeplitz:
        return None
    least = start - n_k + 1
    differences = torch.arange(least, start + n_q)
    zero = torch.zeros_like(differences)
    seen = pattern.sees(zero, zero, differences, zero).nonzero().flatten()
    if not len(seen):
        return Band(1, 0)
    first, last = int(seen[0]), int(seen[-1])
    return Band(least + first, least + last) if last - first + 1 == len(seen) else None


@lru_cache(maxsize=64)
def tile_lists(pattern: Pattern, n_q: int, n_k: int, start: int, device: torch.device) -> TileLists:
    chosen, pattern = PatternParts.of(pattern).tiling(n_q, n_k, start), move_to_device(pattern, "cpu")
    assert isinstance(chosen, BlockMap)  # or there was no need
    with torch.inference_mode(mode=False):
        row, column = (x.long() for x in chosen.visible_blocks())
        mixed = (chosen.state == MIXED).repeat_interleave(chosen.stop - chosen.first)
        where = torch.stack((row[mixed], column[mixed]), 1)
        which = torch.arange(len(where))
        if pattern.is_toeplitz:  # one tile of each diagonal is enough
            which = (where[:, 0] - where[:, 1]).unique(return_inverse=True)[1]
            some = torch.zeros(int(which.max()) + 1 if len(which) else 0, dtype=torch.long)
            some[which] = torch.arange(len(which))
            where = where[some]
        number, masks = distinct_masks(pattern, chosen, where)
        mask = torch.full_like(row, WHOLE)
        mask[mixed] = number[which]
        return TileLists(
            chosen.rows.size,
            TileRows.of(row, column, mask, len(chosen.rows), device),
            TileRows.of(column, row, mask, len(chosen.cols), device),
            masks.to(device),
        )


def distinct_masks(pattern: Pattern, chosen: BlockMap, where: Int[Tensor, "m 2"]) -> tuple[Tensor, Tensor]:
    """For each of these tiles the number of its mask, and the masks that differ."""
    size, known, number = chosen.rows.size, dict[bytes, int](), []
    b = torch.zeros((), dtype=torch.long)
    for part in where.split(max(1, CELLS_AT_ONCE // size**2)):
        i = (chosen.rows.firsts[part[:, 0], None] + torch.arange(size))[:, :, None]
        j = (chosen.cols.firsts[part[:, 1], None] + torch.arange(size))[:, None, :]
        if not pattern.is_toeplitz:  # an index that does not exist must not be evaluated
            i, j = i.clamp(max=chosen.rows.stop - 1), j.clamp(max=chosen.cols.stop - 1)
        seen = pattern.sees(b, b, i, j).expand(len(part), size, size)
        packed = np.packbits(seen.numpy().reshape(len(part), size**2), axis=1)
        number += [known.setdefault(mask.tobytes(), len(known)) for mask in packed]
    if len(known) * size**2 > CELLS_KEPT:
        raise ValueError(f"{pattern} has {len(known):,} different masks, too many to keep: use another backend")
    packed = np.frombuffer(b"".join(known), dtype=np.uint8).reshape(len(known), -(-(size**2) // 8))
    masks = np.unpackbits(packed, axis=1, count=size**2).reshape(len(known), size, size)
    return torch.tensor(number, dtype=torch.long), torch.from_numpy(masks.view(np.int8))


# --- blocks chosen from the content ---


def choice_objections(parts: PatternParts, n_q: int, n_k: int, start: int) -> list[str]:
    choice, sizes = parts.choices[0], ", ".join(map(str, SIZES))
    alike = choice.queries == choice.block in SIZES
    return [
        *([] if len(parts.choices) == 1 else ["it reads the blocks of one choice, not of several"]),
        *([] if parts.static in (Full(), Causal()) else [f"{parts.static} hides single keys of the blocks chosen"]),
        *([f"{parts.documents[0]} hides single keys of the blocks chosen"] if parts.documents else []),
        *([] if alike else [f"its tiles are blocks of {sizes} keys, chosen by as many queries together"]),
        *([] if start == choice.first == 0 else [f"its lists of blocks begin at query 0, not at {start}"]),
        *([why] if (why := choice.shape_error(n_q, n_k)) else []),
    ]


def chosen_tiles(choice: BlockChoice, n_k: int) -> TileLists:
    """The lists of a choice, those of each head by themselves, made on its device: nobody waits for any number."""
    chosen, size = choice.chosen, choice.block
    (batch, heads, rows, most), columns = chosen.shape, -(-n_k // size)
    real = (chosen >= 0).flatten()
    head = torch.arange(batch * heads, device=chosen.device).repeat_interleave(rows * most)
    row = torch.arange(rows, device=chosen.device).repeat_interleave(most).repeat(batch * heads)
    column = chosen.flatten()
    mask = torch.where(row == column, 0, WHOLE)  # of its own block a query sees what is not ahead of it
    # what is not there is sorted to the end, where no list reaches
    of_queries, of_keys = (
        sorted_lists(torch.where(real, head * n + own, batch * heads * n), other, mask, batch * heads, n)
        for own, other, n in ((row, column, rows), (column, row, columns))
    )
    triangle = torch.ones(1, size, size, dtype=torch.int8, device=chosen.device).tril()
    return TileLists(size, of_queries, of_keys, triangle)


def sorted_lists(place: Tensor, other: Tensor, mask: Tensor, heads: int, rows: int) -> TileRows:
    """Entries in the order of their places, heads · rows of them; those of one place stay in their order."""
    count = torch.zeros(heads * rows + 2, dtype=torch.int64, device=place.device)
    count.scatter_add_(0, place + 1, torch.ones_like(place))
    order = place.sort(stable=True).indices
    firsts, other, mask = (x.to(torch.int32) for x in (count.cumsum(0)[:-1], other[order], mask[order]))
    return TileRows(firsts, other, mask, rows)


# --- several documents in one row ---


def segment_ids_of(documents: Documents, start: int, n_q: int, n_k: int) -> SegmentIds:
    keys = documents.segment_ids if documents.key_segment_ids is None else documents.key_segment_ids
    return SegmentIds(documents.segment_ids[:, start : start + n_q].contiguous(), keys[:, :n_k].contiguous())


def segment_reach(own: Tensor, other: Tensor, size: int, step: int) -> Int[Tensor, "#b tiles 4"]:
    """For each tile of tokens what it can attend to on the other side: first and stop, then what all of it surely does.

    The others are taken in runs of `step` tokens. Those before the first run that holds an id ≥ low, and after the
    last with one ≤ high, cannot be meant. Between the last run with an id < low and the first with one > low all bear
    that id. Both are exact where ids ascend, as in a packing, and right for any others.
    """
    if own.is_cuda:
        from regard.attention.kernels.block_sparse import segment_reach_kernel  # needs Triton

        return segment_reach_kernel(own, other, size, step)
    low, high = (x[..., None] for x in block_min_max(own, Span(0, own.shape[1], size)))
    least, most = (x[:, None] for x in block_min_max(other, Span(0, other.shape[1], step)))
    at, runs = torch.arange(least.shape[2]), least.shape[2]
    first, unsure = (torch.where(holds, at, runs).amin(2) for holds in (most >= low, most > low))
    stop, sure = (torch.where(holds, at + 1, 0).amax(2) for holds in (least <= high, least < low))
    one = (low == high)[..., 0]
    return (torch.stack((first, stop, torch.where(one, sure, 0), torch.where(one, unsure, 0)), -1) * step).int()


# --- as a backend ---


SHORTEST = 512  # below this torch's dense kernels with a mask do as well
WIDEST = 256  # of one head: beyond that no tile fits


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    why = planning_objections() or [
        *([] if isinstance(split_cap(recipe.score)[0], InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *(
            f"{scheme} adds to single scores, and not by a slope of the distance (LinearBias)"
            for scheme in recipe.score_positions
            if not is_linear(scheme)
        ),
        *(
            []
            if softmax_dropout(split_sinks(recipe.normaliser)[0]) is not None
            else [f"{recipe.normaliser} is not softmax"]
        ),
        *([] if positions.start is not None else ["its tiles need consecutive positions: pass q_index as a number"]),
        *state_objections(recipe.gate),
        *([] if q.device.type == "cuda" else ["its kernels run on a GPU"]),
        *([] if q.dtype != torch.float64 else ["its kernels count in float32, which is too coarse for float64"]),
        *([] if k.shape[3] <= WIDEST else [f"heads {k.shape[3]} wide do not fit into its tiles"]),
    ]
    return why or triton_objections() or tiling_objections(recipe.pattern, q.shape[2], k.shape[2], positions.start or 0)


def triton_objections() -> list[str]:
    try:
        import triton  # noqa: F401
    except ImportError:
        return ["its kernels need Triton, which is not installed: pip install triton"]
    return []


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    capped = split_cap(recipe.score)[1] is not None
    if not capped and runs_dense(recipe, q, k, positions):
        return ["without a mask, torch's dense kernels are faster"]
    if min(q.shape[2], k.shape[2]) < SHORTEST:
        return [f"{q.shape[2]} queries and {k.shape[2]} keys are too few for tiles to pay"]
    if PatternParts.of(recipe.pattern).choices:  # whose lists are made anew at each call
        return []
    tiles = BlockSparseTiles.of(recipe.pattern, q.shape[2], k.shape[2], start=positions.start or 0, device=q.device)
    if isinstance(tiles.static, TileLists) and tiles.segment_ids is not None:
        return [f"{recipe.pattern} is no band, so documents would be compared in tiles that hold none of them"]
    return []


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    from regard.attention.kernels.block_sparse import block_sparse_attention  # needs Triton

    (score, cap), scale = split_cap(recipe.score), 1.0
    assert isinstance(score, InnerProduct)  # or it objected
    tiles = BlockSparseTiles.of(recipe.pattern, q.shape[2], k.shape[2], start=positions.start or 0, device=q.device)
    if score == ScaledDot():  # the kernels multiply by themselves
        scale = q.shape[3] ** -0.5
    else:
        q, k = score.fold_q(q), score.fold_k(k)
    softmax, sinks = split_sinks(recipe.normaliser, q.device)
    rate, slopes = softmax_dropout(softmax) or 0.0, total_slope(recipe, q)
    return block_sparse_attention(q, k, v, tiles, scale=scale, dropout=rate, sinks=sinks, slopes=slopes, cap=cap)


def total_slope(recipe: Recipe, q: Tensor) -> Tensor | None:
    """The slope of each head, of all biases together; None if there is none."""
    heads = torch.arange(q.shape[1], device=q.device)
    found = [scheme.slope(heads) for scheme in recipe.score_positions if isinstance(scheme, LinearBias)]
    return reduce(torch.add, found).expand(q.shape[1]) if found else None
