"""Packed training corpora: batches whose rows hold several texts, laid out once or planned, by epoch and index."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import Example, LengthRuns, MixtureOrder, exact_lengths
from regard.data.packing import NO_SEGMENT, PackedBatch, RowPlan, longest_first, pack_first_fit
from regard.data.token_files import MAX_SIDE, CorpusMixture, TokenLists, gather_rows
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.models.seq2seq import map_tensors
from regard.training.config import TrainSettings
from regard.world.splitmix import combine_seeds, permute, random_keys

Numbers = NDArray[np.int64]
ROW_MULTIPLE = 64  # a row's length is a multiple of it, as the tiles of attention are


@dataclass(frozen=True, eq=False)
class PackedPairs:
    """A batch: the tokens of each side, and the labels of the target; PAD is no label."""

    source: PackedBatch
    target: PackedBatch
    labels: Int[Tensor, "n t"]

    def to(self, device: torch.device | str) -> "PackedPairs":
        if torch.device(device).type == "cpu":
            return self
        return PackedPairs(self.source.to(device), self.target.to(device), self.labels.to(device, non_blocking=True))

    @property
    def tokens(self) -> int:
        return int((self.labels != PAD).sum())

    @property
    def num_positions(self) -> int:
        return self.source.tokens.numel() + self.target.tokens.numel()

    def split_rows(self, parts: int) -> "list[PackedPairs]":
        """At most `parts` batches: number n has the rows n, n + parts, n + 2 parts and so on. None is empty."""
        count = min(parts, len(self.labels))
        return [map_tensors(lambda tensor, first=first: tensor[first::parts], self) for first in range(count)]

    def repeated(self) -> "PackedPairs":
        """Every row two times, first all of them, then all again."""
        return map_tensors(lambda part: part.repeat(2, 1), self)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """One side of all rows: tokens, and the segment and position of each."""

    tokens: Numbers
    segment_ids: Numbers
    position_ids: Numbers

    @staticmethod
    def of(texts: TokenLists, row: Numbers, order: Numbers, length: int) -> "PackedRows":
        """Text n lies in row[n], behind those that come before it in `order`."""
        order = order[np.argsort(row[order], kind="stable")]  # row by row
        rows, sizes = row[order], texts.sizes[order]
        starts = np.cumsum(sizes) - sizes
        first = np.searchsorted(rows, rows)  # the first text of the same row
        columns = starts - starts[first]
        assert (columns + sizes <= length).all(), "a row is longer than it may be"
        positions = np.arange(sizes.sum()) - np.repeat(starts, sizes)
        at = np.repeat(rows * length + columns, sizes) + positions
        made = PackedRows(*(np.full((int(row.max()) + 1, length), fill) for fill in (PAD, NO_SEGMENT, 0)))
        made.tokens.ravel()[at] = gather_rows(texts.ids, texts.starts[order], sizes)
        made.segment_ids.ravel()[at] = np.repeat(np.arange(len(order)) - first + 1, sizes)
        made.position_ids.ravel()[at] = positions
        if np.count_nonzero(made.tokens != PAD) != len(at):
            raise ValueError(f"id {PAD} is padding and cannot occur inside a sentence")
        return made

    def select(self, rows: Numbers, more: int) -> list[Tensor]:
        """These rows, and so many empty ones."""
        parts = ((self.tokens, PAD), (self.segment_ids, NO_SEGMENT), (self.position_ids, 0))
        return [torch.from_numpy(np.pad(x[rows], ((0, more), (0, 0)), constant_values=fill)) for x, fill in parts]


class PackedBatches(ABC):
    """Abstract: packed training pairs; a step's batches by epoch and index."""

    device: str
    accumulate: int

    @abstractmethod
    def num_batches(self, epoch: int) -> int:
        """How many an epoch has."""

    @abstractmethod
    def numbered(self, epoch: int, number: int) -> PackedPairs:
        """A batch of an epoch."""

    def steps(self, epoch: int) -> int:
        return -(-self.num_batches(epoch) // self.accumulate)

    def at(self, epoch: int, index: int) -> list[tuple[PackedPairs, int]]:
        first = index * self.accumulate
        numbers = range(first, min(first + self.accumulate, self.num_batches(epoch)))
        made = [self.numbered(epoch, number) for number in numbers]
        return [(batch.to(self.device), batch.tokens) for batch in made]


def packed_batch(
    source: PackedRows, target: PackedRows, labels: Numbers, rows: Numbers, *, size: int, device: str
) -> PackedPairs:
    """These rows; for a GPU, which captures batches of one shape, with empty ones up to so many."""
    pinned = device != "cpu"
    more = size - len(rows) if pinned else 0
    wanted = torch.from_numpy(np.pad(labels[rows], ((0, more), (0, 0)), constant_values=PAD))
    parts = [*source.select(rows, more), *target.select(rows, more), wanted]
    a, b, c, d, e, f, g = (part.pin_memory() if pinned else part for part in parts)
    return PackedPairs(PackedBatch(a, b, c), PackedBatch(d, e, f), g)


def pack_pairs(
    source: TokenLists, target: TokenLists, row: Numbers, order: Numbers, length: int
) -> tuple[PackedRows, PackedRows, Numbers]:
    """Sources, what the decoder reads (a beginning, and all but the end), and what it should predict."""
    return (
        PackedRows.of(source.append(EOS), row, order, length),
        PackedRows.of(target.prepend(BOS), row, order, length),
        PackedRows.of(target.append(EOS), row, order, length).tokens,
    )


def row_length(longest: int, train: TrainSettings) -> int:
    """Of rows in which texts of so many tokens have room."""
    length = -(-longest // ROW_MULTIPLE) * ROW_MULTIPLE
    if train.batch_size < length:
        raise ValueError(f"train.batch_size = {train.batch_size} is less than a row of {length} tokens; raise it")
    return length


def refuse_all_long(count: int, limit: int) -> NoReturn:
    raise ValueError(f"all {count} examples are longer than train.max_length = {limit}; raise it")


@dataclass(frozen=True, eq=False)
class PackedCorpus(PackedBatches):
    """Training pairs in memory, laid into rows once."""

    source: PackedRows = field(repr=False)
    target: PackedRows = field(repr=False)  # what the decoder reads: a beginning, and all but the end
    labels: Numbers = field(repr=False)  # what it should predict: all but the beginning
    rows_per_batch: int  # rows in a batch
    seed: int = 0
    accumulate: int = 1
    device: str = "cpu"
    left_out: int = 0

    @staticmethod
    def of(examples: Sequence[Example], train: TrainSettings, device: str = "cpu") -> "PackedCorpus":
        """Batches of at most `train.batch_size` tokens on each side; pairs over `train.max_length` are left out."""
        fitting = [(source, target) for source, target in examples if max(len(source), len(target)) <= train.max_length]
        if not fitting:
            refuse_all_long(len(examples), train.max_length)
        sizes = np.array([(len(source) + 1, len(target) + 1) for source, target in fitting])
        length = row_length(int(sizes.max()), train)
        row, order = pack_first_fit(sizes, length, train.seed)
        source, target = (TokenLists.of([pair[side] for pair in fitting]) for side in (0, 1))
        return PackedCorpus(
            *pack_pairs(source, target, row, order, length),
            train.batch_size // length,
            train.seed,
            train.gradient_accumulation,
            device,
            len(examples) - len(fitting),
        )

    @property
    def padding(self) -> float:
        """The fraction of the tokens in the rows that is padding."""
        return float(np.mean([np.mean(side == PAD) for side in (self.source.tokens, self.labels)]))

    def num_batches(self, epoch):
        return len(epoch_rows(self, epoch))

    def numbered(self, epoch, number):
        return self.batch(epoch_rows(self, epoch)[number])

    def batch(self, rows: Numbers) -> PackedPairs:
        return packed_batch(self.source, self.target, self.labels, rows, size=self.rows_per_batch, device=self.device)


@lru_cache(maxsize=2)
def epoch_rows(corpus: PackedCorpus, epoch: int) -> list[Numbers]:
    """The rows of every batch, shuffled by (seed, epoch), about as many in each: a small rest would be mere noise."""
    count = len(corpus.labels)
    order = np.argsort(random_keys(combine_seeds(corpus.seed, epoch, 0), count), kind="stable")
    return np.array_split(order, -(-count // corpus.rows_per_batch))


@dataclass(frozen=True, eq=False)
class PackedMixture(PackedBatches):
    """Pairs of prepared corpora, laid into rows that are planned from their lengths alone; nothing is held of a pair.

    With the pairs of an epoch in the order of their lengths, window w of W has the places w, w + W, w + 2 W and so on:
    all windows are of nearly the same lengths, and most of exactly the same, so that a few plans describe millions.
    Which pairs stand at these places is drawn for every epoch, and so is the order of the rows in a window and of the
    batches, which are slices of all rows.
    """

    mixture: CorpusMixture = field(repr=False)
    order: MixtureOrder = field(repr=False)
    plan: RowPlan = field(repr=False)
    train: TrainSettings = field(repr=False)
    device: str = "cpu"

    @staticmethod
    def of(mixture: CorpusMixture, train: TrainSettings, device: str = "cpu") -> "PackedMixture":
        runs = LengthRuns.of(mixture, MAX_SIDE + 2, train.max_length, skews=1)
        if not len(runs.keys):
            refuse_all_long(len(mixture), train.max_length)
        order = MixtureOrder(mixture, runs, train.seed)
        sizes = exact_lengths(order.keys) + 1
        plan = RowPlan.of(sizes, order.sizes, row_length(int(sizes.max()), train))
        return PackedMixture(mixture, order, plan, train, device)

    @property
    def left_out(self) -> int:
        return self.order.num_dropped

    @property
    def accumulate(self) -> int:  # type: ignore[override]
        return self.train.gradient_accumulation

    @property
    def rows_per_batch(self) -> int:
        return self.train.batch_size // self.plan.length

    def num_batches(self, epoch):
        return -(-self.plan.rows // self.rows_per_batch)

    def numbered(self, epoch, number):
        return self.several(epoch, range(number, number + 1))[0]

    def several(self, epoch: int, numbers: range) -> list[PackedPairs]:
        """Batches of an epoch. Read together, each takes a fraction of the time: every shard is asked only once."""
        count, total, seed = self.num_batches(epoch), self.plan.rows, self.train.seed
        drawn = permute(combine_seeds(seed, epoch, 1), count, np.array(numbers)).tolist()
        bounds = [(at * total // count, (at + 1) * total // count) for at in drawn]
        members = [self.plan.members(first, stop, combine_seeds(seed, epoch, 3)) for first, stop in bounds]
        counts = [len(places) for places, _, _ in members]
        rows = self.order.rows(epoch, np.concatenate([places for places, _, _ in members]))
        sides = (side.split(counts) for side in self.mixture.sides(np.array(rows)))
        made = []
        for (first, stop), (_, row, sizes), source, target in zip(bounds, members, *sides, strict=True):
            packed = pack_pairs(source, target, row, longest_first(sizes), self.plan.length)
            made.append(packed_batch(*packed, np.arange(stop - first), size=self.rows_per_batch, device=self.device))
        return made
