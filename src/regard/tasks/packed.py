"""Sentence pairs in; batches almost without padding out, all of one size, by epoch and index.

Before training, pairs are packed into rows of one length, longer ones first, each into the first row where both of its
sides find room; they stay there, and every epoch shuffles the rows. They meet nobody there: rows are a matter of
memory alone. Every batch has as many rows, the last of them filled up where need be, so that a graph recorded of one
step serves for all. On a CPU, which records none, none is filled up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from regard.layers.packed import NONE, Texts
from regard.tasks.settings import TrainSettings
from regard.text.batches import Example
from regard.text.order import keys, seeded
from regard.text.vocabulary import BOS, EOS, PAD

Numbers = NDArray[np.int64]
STEP = 64  # a row's length is a multiple of it, as the tiles of attention are
WINDOW = 1024  # pairs packed together, for to look through all rows takes long


@dataclass(frozen=True, eq=False)
class Pack:
    """A batch: the words each side reads, and those wanted behind the target's; PAD is not wanted."""

    source: Texts
    target: Texts
    wanted: Int[Tensor, "n t"]

    def to(self, device: torch.device | str) -> "Pack":
        if torch.device(device).type == "cpu":
            return self
        return Pack(self.source.to(device), self.target.to(device), self.wanted.to(device, non_blocking=True))

    @property
    def tokens(self) -> int:
        return int((self.wanted != PAD).sum())

    @property
    def words(self) -> int:
        return self.source.words.numel() + self.target.words.numel()

    def dealt(self, parts: int) -> "list[Pack]":
        """As cards are: part n has the rows n, n + parts, n + 2 parts and so on. None is empty."""

        def hand(side: Texts, first: int) -> Texts:
            return Texts(*(part[first::parts] for part in (side.words, side.text, side.at)))

        return [
            Pack(hand(self.source, first), hand(self.target, first), self.wanted[first::parts])
            for first in range(min(parts, len(self.wanted)))
        ]

    def twice(self) -> "Pack":
        """Every row two times, first all of them, then all again."""
        source, target = (
            Texts(*(part.repeat(2, 1) for part in (side.words, side.text, side.at)))
            for side in (self.source, self.target)
        )
        return Pack(source, target, self.wanted.repeat(2, 1))


@dataclass(frozen=True, eq=False)
class Rows:
    """One side of all rows: words, to which text of the row each belongs, and at which place of it."""

    words: Numbers
    text: Numbers
    at: Numbers

    @staticmethod
    def of(texts: Sequence[Sequence[int]], row: Numbers, order: Numbers, length: int) -> "Rows":
        """Text n lies in row[n], behind those that come before it in `order`."""
        made = Rows(*(np.full((int(row.max()) + 1, length), fill) for fill in (PAD, NONE, 0)))
        full, count = (np.zeros(len(made.words), dtype=np.int64) for _ in range(2))
        for n in order:
            here = slice(full[row[n]], full[row[n]] + len(texts[n]))
            count[row[n]] += 1
            made.words[row[n], here] = texts[n]
            made.text[row[n], here] = count[row[n]]
            made.at[row[n], here] = np.arange(len(texts[n]))
            full[row[n]] = here.stop
        if np.count_nonzero(made.words != PAD) != full.sum():
            raise ValueError(f"id {PAD} means padding and cannot stand inside a sentence")
        return made

    def picked(self, rows: Numbers, more: int) -> list[Tensor]:
        """These rows, and so many empty ones."""
        parts = ((self.words, PAD), (self.text, NONE), (self.at, 0))
        return [torch.from_numpy(np.pad(x[rows], ((0, more), (0, 0)), constant_values=fill)) for x, fill in parts]


@dataclass(frozen=True, eq=False)
class PackedCorpus:
    """Training pairs; a step's batches by epoch and index."""

    source: Rows = field(repr=False)
    target: Rows = field(repr=False)  # what the decoder reads: a beginning, and all but the end
    wanted: Numbers = field(repr=False)  # what it should say: all but the beginning
    most: int  # rows in a batch
    seed: int = 0
    accumulate: int = 1
    device: str = "cpu"
    left_out: int = 0

    @staticmethod
    def of(examples: Sequence[Example], train: TrainSettings, device: str = "cpu") -> "PackedCorpus":
        """Batches of at most `train.tokens` words on each side; pairs over `train.longest` are left out."""
        kept = [(source, target) for source, target in examples if max(len(source), len(target)) <= train.longest]
        if not kept:
            raise ValueError(f"all {len(examples)} examples are longer than train.longest = {train.longest}; raise it")
        sizes = np.array([(len(source) + 1, len(target) + 1) for source, target in kept])
        length = -(-int(sizes.max()) // STEP) * STEP
        if train.tokens < length:
            raise ValueError(f"train.tokens = {train.tokens} has no room for a row of {length} words; raise it")
        row, order = packed(sizes, length, train.seed)
        return PackedCorpus(
            Rows.of([[*source, EOS] for source, _ in kept], row, order, length),
            Rows.of([[BOS, *target] for _, target in kept], row, order, length),
            Rows.of([[*target, EOS] for _, target in kept], row, order, length).words,
            train.tokens // length,
            train.seed,
            train.accumulate,
            device,
            len(examples) - len(kept),
        )

    @property
    def padding(self) -> float:
        """Which part of all the words in the rows is padding."""
        return float(np.mean([np.mean(side == PAD) for side in (self.source.words, self.wanted)]))

    @property
    def texts(self) -> int:
        """The most that a row holds."""
        return int(self.source.text.max())

    def steps(self, epoch: int) -> int:
        return -(-len(epoch_of(self, epoch)) // self.accumulate)

    def at(self, epoch: int, index: int) -> list[tuple[Pack, int]]:
        rows = epoch_of(self, epoch)[index * self.accumulate : (index + 1) * self.accumulate]
        return [(self.batch(part).to(self.device), int(np.count_nonzero(self.wanted[part] != PAD))) for part in rows]

    def batch(self, rows: Numbers) -> Pack:
        pinned = self.device != "cpu"
        more = self.most - len(rows) if pinned else 0
        wanted = torch.from_numpy(np.pad(self.wanted[rows], ((0, more), (0, 0)), constant_values=PAD))
        parts = [*self.source.picked(rows, more), *self.target.picked(rows, more), wanted]
        a, b, c, d, e, f, g = (part.pin_memory() if pinned else part for part in parts)
        return Pack(Texts(a, b, c), Texts(d, e, f), g)


def packed(sizes: Numbers, length: int, seed: int) -> tuple[Numbers, Numbers]:
    """The row of each pair, and the order in which they were laid there: first fit, the longest first."""
    row, rows = np.zeros(len(sizes), dtype=np.int64), 0
    shuffled = np.argsort(keys(seeded(seed, 0, 2), len(sizes)), kind="stable")
    windows = [shuffled[start : start + WINDOW] for start in range(0, len(sizes), WINDOW)]
    ordered = [window[np.argsort(-sizes[window].max(1), kind="stable")] for window in windows]
    for window in ordered:
        rooms = np.full((2, len(window)), length)
        for n, (source, target) in zip(window, sizes[window].tolist(), strict=True):
            fits = ((rooms[0] >= source) & (rooms[1] >= target)).argmax()
            rooms[:, fits] -= (source, target)
            row[n] = rows + fits
        rows += int(np.count_nonzero(rooms[0] < length))
    return row, np.concatenate(ordered)


@lru_cache(maxsize=2)
def epoch_of(corpus: PackedCorpus, epoch: int) -> list[Numbers]:
    """The rows of every batch, shuffled by (seed, epoch), about as many in each: a small rest would be mere noise."""
    count = len(corpus.wanted)
    order = np.argsort(keys(seeded(corpus.seed, epoch, 0), count), kind="stable")
    return np.array_split(order, -(-count // corpus.most))
