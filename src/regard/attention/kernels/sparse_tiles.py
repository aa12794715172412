"""A pattern in; what each row of tiles reads, and through which mask, out: all that a block-sparse kernel must know.

A pattern is taken apart into conditions that must all hold. A batch's own data stay data, for the kernel to compare:
`Padding` is a number of keys per sentence, `Documents` names on both sides and, from their borders, the tokens that
each tile can meet. What is left is the same for all sentences, and is either

    Band    least ≤ i − j ≤ most (full, causal, windows): two numbers, whatever the length, or
    Lists   for each row of tiles its columns, and the same transposed for the backward pass. A column is read whole or
            through one of a few distinct masks: along a diagonal, or where a pattern speaks of blocks, most are alike.

Nothing here is of the size n × n.
"""

from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_

import numpy as np
import torch
from jaxtyping import Int, Int8
from torch import Tensor

from regard.attention.blocks import MIXED, BlockMap, Span, remembering
from regard.attention.given import Documents, Given, Padding, extremes
from regard.attention.notation import leaves
from regard.attention.pattern import And, Full, Pattern

SIZES = {64: 1.3, 128: 1.0}  # sizes of listed tiles to choose from, and what a cell costs at each
CELLS_AT_ONCE = 2**22  # of masks, looked at together
CELLS_ASKED = 2**28  # of masks, in all: a few seconds
CELLS_KEPT = 2**27  # of distinct masks, a byte each
WHOLE = -1  # in place of a mask's number


@dataclass(frozen=True)
class Band:
    """Query i sees the keys with least ≤ i − j ≤ most."""

    least: int
    most: int


@dataclass(frozen=True, eq=False)
class Rows:
    """For row r of tiles the columns[firsts[r] : firsts[r + 1]], each with the number of its mask."""

    firsts: Int[Tensor, "rows+1"]
    columns: Int[Tensor, "entries"]
    masks: Int[Tensor, "entries"]

    @staticmethod
    def of(row: Tensor, column: Tensor, mask: Tensor, rows: int, device: torch.device) -> "Rows":
        order = (row * (int(column.max()) + 1 if len(column) else 1) + column).argsort()
        firsts = torch.zeros(rows + 1, dtype=torch.int64)
        firsts[1:] = torch.bincount(row, minlength=rows).cumsum(0)
        return Rows(*(x.to(device, torch.int32) for x in (firsts, column[order], mask[order])))


@dataclass(frozen=True, eq=False)
class Lists:
    """Tiles of size × size: row by row of queries, row by row of keys, and the distinct masks, queries first."""

    size: int
    of_queries: Rows
    of_keys: Rows
    masks: Int8[Tensor, "distinct size size"]


@dataclass(frozen=True, eq=False)
class Names:
    """The texts of queries and keys: only tokens of one text see each other. One row may serve all sentences."""

    queries: Int[Tensor, "#b i"]
    keys: Int[Tensor, "#b j"]

    def reach(self, size: int, step: int = 1) -> Int[Tensor, "#b tiles 4"]:
        """For each tile of queries the keys it can meet; see `meetings`."""
        return meetings(self.queries, self.keys, size, step)

    def reached(self, size: int, step: int = 1) -> Int[Tensor, "#b tiles 4"]:
        """For each tile of keys the queries that can meet it."""
        return meetings(self.keys, self.queries, size, step)


@dataclass(frozen=True, eq=False)
class Tiles:
    """A pattern as a kernel reads it, for queries at start, start + 1, ... and keys at 0, 1, ..."""

    always: Band | Lists
    start: int
    lengths: Int[Tensor, "#b"] | None = None
    names: Names | None = None

    def data(self) -> list[Tensor]:
        """A batch's own."""
        held = self.lengths, self.names and self.names.queries, self.names and self.names.keys
        return [x for x in held if x is not None]

    @staticmethod
    def of(pattern: Pattern, n_q: int, n_k: int, *, start: int = 0, device: torch.device | str = "cpu") -> "Tiles":
        return remembering(pattern, cut)(pattern, n_q, n_k, start, torch.device(device))


@lru_cache(maxsize=256)
def cut(pattern: Pattern, n_q: int, n_k: int, start: int, device: torch.device) -> Tiles:
    if why := objections(pattern, n_q, n_k, start):
        raise ValueError("; ".join(why))
    parts = Parts.of(pattern.to(device))
    always = parts.settled(n_q, n_k, start)
    if isinstance(always, BlockMap):
        always = remembering(parts.always, lists)(parts.always, n_q, n_k, start, device)
    assert not isinstance(always, str)  # or it objected
    names = [names_of(part, start, n_q, n_k) for part in parts.texts]
    lengths = reduce(torch.minimum, [part.lengths for part in parts.paddings]) if parts.paddings else None
    return Tiles(always, start, lengths, names[0] if names else None)


def objections(pattern: Pattern, n_q: int, n_k: int, start: int = 0) -> list[str]:
    """Why a pattern cannot be cut into tiles; empty if it can."""
    parts = Parts.of(pattern)
    settled = parts.settled(n_q, n_k, start)
    return [
        *([settled] if isinstance(settled, str) else []),
        *(["it compares the names of one packing, not of several"] if len(parts.texts) > 1 else []),
        *([misfit] if (misfit := pattern.misfit(start + n_q, n_k)) else []),
    ]


# --- conditions ---


@dataclass(frozen=True)
class Parts:
    """A pattern is all of these."""

    paddings: tuple[Padding, ...]
    texts: tuple[Documents, ...]
    always: Pattern

    @staticmethod
    def of(pattern: Pattern) -> "Parts":
        conditions = all_of(pattern)
        rest = [part for part in conditions if not isinstance(part, Padding | Documents)]
        return Parts(
            tuple(part for part in conditions if isinstance(part, Padding)),
            tuple(part for part in conditions if isinstance(part, Documents)),
            reduce(and_, rest) if rest else Full(),
        )

    def settled(self, n_q: int, n_k: int, start: int) -> Band | BlockMap | str:
        return remembering(self.always, settle)(self.always, n_q, n_k, start)


def all_of(pattern: Pattern) -> tuple[Pattern, ...]:
    return (*all_of(pattern.left), *all_of(pattern.right)) if isinstance(pattern, And) else (pattern,)


# --- the same for all sentences ---


@lru_cache(maxsize=256)
def settle(pattern: Pattern, n_q: int, n_k: int, start: int) -> Band | BlockMap | str:
    """The two ends of a band, or the block map at the size of tiles that is cheapest, or why neither will do."""
    if any(isinstance(part, Given) and part.batches > 1 for part in leaves(pattern)):
        return f"{pattern} holds more than conditions, so each sentence would need its own masks"
    if pattern.asks_head:
        return f"{pattern} differs from head to head"
    if found := band(pattern, n_q, n_k, start):
        return found
    with torch.inference_mode(mode=False):  # or what was made while predicting could not be used for training
        maps = {size: pattern.blocks(n_q, n_k, size, start=start) for size in SIZES}
    size = min(maps, key=lambda size: maps[size].density * SIZES[size])
    mixed = maps[size].counted()["mixed"]
    if pattern.by_difference or mixed * size**2 <= CELLS_ASKED:
        return maps[size]
    return f"{mixed:,} tiles of {pattern} are seen in part, too many to keep their masks"


def band(pattern: Pattern, n_q: int, n_k: int, start: int) -> Band | None:
    """The two ends, if the differences i − j that are seen follow one another."""
    if not n_q or not n_k:
        return Band(1, 0)
    if not pattern.by_difference:
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
def lists(pattern: Pattern, n_q: int, n_k: int, start: int, device: torch.device) -> Lists:
    chosen, pattern = Parts.of(pattern).settled(n_q, n_k, start), pattern.to("cpu")
    assert isinstance(chosen, BlockMap)  # or there was no need
    with torch.inference_mode(mode=False):
        row, column = (x.long() for x in chosen.visible_blocks())
        mixed = (chosen.state == MIXED).repeat_interleave(chosen.stop - chosen.first)
        where = torch.stack((row[mixed], column[mixed]), 1)
        which = torch.arange(len(where))
        if pattern.by_difference:  # one look at each diagonal is enough
            which = (where[:, 0] - where[:, 1]).unique(return_inverse=True)[1]
            some = torch.zeros(int(which.max()) + 1 if len(which) else 0, dtype=torch.long)
            some[which] = torch.arange(len(which))
            where = where[some]
        number, masks = distinct(pattern, chosen, where)
        mask = torch.full_like(row, WHOLE)
        mask[mixed] = number[which]
        return Lists(
            chosen.rows.size,
            Rows.of(row, column, mask, len(chosen.rows), device),
            Rows.of(column, row, mask, len(chosen.cols), device),
            masks.to(device),
        )


def distinct(pattern: Pattern, chosen: BlockMap, where: Int[Tensor, "m 2"]) -> tuple[Tensor, Tensor]:
    """For each of these tiles the number of its mask, and the masks that differ."""
    size, known, number = chosen.rows.size, dict[bytes, int](), []
    b = torch.zeros((), dtype=torch.long)
    for part in where.split(max(1, CELLS_AT_ONCE // size**2)):
        i = (chosen.rows.firsts[part[:, 0], None] + torch.arange(size))[:, :, None]
        j = (chosen.cols.firsts[part[:, 1], None] + torch.arange(size))[:, None, :]
        if not pattern.by_difference:  # a place that does not exist may not be asked about
            i, j = i.clamp(max=chosen.rows.stop - 1), j.clamp(max=chosen.cols.stop - 1)
        seen = pattern.sees(b, b, i, j).expand(len(part), size, size)
        packed = np.packbits(seen.numpy().reshape(len(part), size**2), axis=1)
        number += [known.setdefault(mask.tobytes(), len(known)) for mask in packed]
    if len(known) * size**2 > CELLS_KEPT:
        raise ValueError(f"{pattern} has {len(known):,} different masks, too many to keep: use another backend")
    packed = np.frombuffer(b"".join(known), dtype=np.uint8).reshape(len(known), -(-(size**2) // 8))
    masks = np.unpackbits(packed, axis=1, count=size**2).reshape(len(known), size, size)
    return torch.tensor(number, dtype=torch.long), torch.from_numpy(masks.view(np.int8))


# --- several texts in one row ---


def names_of(texts: Documents, start: int, n_q: int, n_k: int) -> Names:
    keys = texts.ids if texts.keys is None else texts.keys
    return Names(texts.ids[:, start : start + n_q].contiguous(), keys[:, :n_k].contiguous())


def meetings(own: Tensor, other: Tensor, size: int, step: int) -> Int[Tensor, "#b tiles 4"]:
    """For each tile of tokens whom it can meet on the other side: first and stop, then those all of it surely meets.

    The others are taken in runs of `step` tokens. Those before the first run that holds a name ≥ low, and after the
    last with one ≤ high, cannot be meant. Between the last run with a name < low and the first with one > low all bear
    that name. Both are exact where names ascend, as in a packing, and right for any others.
    """
    if own.is_cuda:
        from regard.attention.kernels.sparse_names import meetings_by_kernel  # needs Triton

        return meetings_by_kernel(own, other, size, step)
    low, high = (x[..., None] for x in extremes(own, Span(0, own.shape[1], size)))
    least, most = (x[:, None] for x in extremes(other, Span(0, other.shape[1], step)))
    at, runs = torch.arange(least.shape[2]), least.shape[2]
    first, unsure = (torch.where(holds, at, runs).amin(2) for holds in (most >= low, most > low))
    stop, sure = (torch.where(holds, at + 1, 0).amax(2) for holds in (least <= high, least < low))
    one = (low == high)[..., 0]
    return (torch.stack((first, stop, torch.where(one, sure, 0), torch.where(one, unsure, 0)), -1) * step).int()
