"""The lengths of sentence pairs in; batches that fit a budget of tokens out, in an order anyone can compute again.

    batches = Batches(lengths, tokens=4096, seed=0)
    batches.epoch(3)           the rows of each batch of epoch 3, a function of (seed, epoch) and nothing else
    collate(examples)          the tensors of one batch

A sentence pair is two lists of ids without beginning or end. `collate` adds those, and counts from here on include
them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from regard.text.order import keys, seeded
from regard.text.vocabulary import BOS, EOS, PAD

Ids = Sequence[int]
Example = tuple[Ids, Ids]
LEAN = 4  # pairs that differ by less in how much longer one side is than the other may share a batch


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded ids. The decoder reads target[:, :-1] and predicts target[:, 1:]."""

    source: Int[Tensor, "b s"]
    source_lengths: Int[Tensor, " b"]
    target: Int[Tensor, "b t"]
    target_lengths: Int[Tensor, " b"]

    def to(self, device: torch.device | str) -> "Batch":
        parts = (self.source, self.source_lengths, self.target, self.target_lengths)
        return Batch(*(part.to(device, non_blocking=True) for part in parts))

    @property
    def tokens(self) -> int:
        """How many target tokens there are to predict. Ask before `to`: a GPU would have to be waited for."""
        return int((self.target_lengths - 1).sum())

    @property
    def words(self) -> int:
        return self.source.numel() + self.target.numel()

    def dealt(self, parts: int) -> "list[Batch]":
        """As cards are: part n has the rows n, n + parts, n + 2 parts and so on. None is empty."""
        sides = (self.source, self.source_lengths, self.target, self.target_lengths)
        return [Batch(*(side[first::parts] for side in sides)) for first in range(min(parts, len(self)))]

    def __len__(self) -> int:
        return len(self.source)


def padded(rows: Sequence[Ids]) -> tuple[Int[Tensor, "b t"], Int[Tensor, " b"]]:
    """Rows of ids as one tensor, and their lengths."""
    if not rows:
        raise ValueError("a batch needs at least one sentence")
    lengths = [len(row) for row in rows]
    table = np.full((len(rows), max(lengths)), PAD, dtype=np.int64)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    if np.count_nonzero(table) != sum(lengths):
        raise ValueError(f"id {PAD} means padding and cannot stand inside a sentence")
    return torch.from_numpy(table), torch.tensor(lengths)


def collate(examples: Sequence[Example]) -> Batch:
    """Source ids, end; beginning, target ids, end. The rest is padding."""
    source, source_lengths = padded([[*ids, EOS] for ids, _ in examples])
    target, target_lengths = padded([[BOS, *ids, EOS] for _, ids in examples])
    return Batch(source, source_lengths, target, target_lengths)


class Long(StrEnum):
    """What happens to a pair of which a side is longer than the limit, or does not fit the budget."""

    REFUSE = "refuse"  # a ValueError
    DROP = "drop"  # left out and counted
    ALONE = "alone"  # a batch of its own, over the budget if need be


def too_long(source: Any, target: Any, tokens: int, limit: int | None) -> Any:
    """For lengths without beginning and end, whole numbers or arrays of them: does a side break the limit or budget?"""
    over = (source + 1 > tokens) | (target + 2 > tokens)
    return over if limit is None else over | (source > limit) | (target > limit)


def objection(source: int, target: int, tokens: int, limit: int | None) -> str:
    limited = limit is not None and max(source, target) > limit
    allowed = f"the limit is {limit}" if limited else f"a batch holds {tokens} with beginning and end"
    return f"{source} and {target} ids, and {allowed}"


@dataclass(frozen=True, eq=False)
class Batches:
    """Every pair once in an epoch; neither tensor of a batch holds more than `tokens` ids, padding included.

    Pairs of about the same lengths share a batch. Which of them, and in which order the batches come, is shuffled by
    (seed, epoch) through order.py. Every epoch has as many batches, and about as much padding.
    """

    lengths: Sequence[tuple[int, int]] = field(repr=False)
    """For each pair, how many ids its source and its target have, without beginning and end."""
    _: KW_ONLY
    tokens: int = 4096
    sentences: int | None = None
    """At most so many pairs in a batch."""
    limit: int | None = None
    """At most so many ids on a side, without beginning and end."""
    long: Long = Long.REFUSE
    seed: int = 0

    def __post_init__(self):
        for name, number in (("tokens", self.tokens), ("sentences", self.sentences), ("limit", self.limit)):
            if number is not None and number < 1:
                raise ValueError(f"{name}={number} must be at least 1")
        if self.long not in list(Long):
            raise ValueError(f"long={self.long!r} is no answer to long sentences; choose from {', '.join(Long)}")
        if len(self.lengths) == 0:
            raise ValueError("no sentence pairs to make batches of: the corpus is empty")
        if self.long == Long.REFUSE and len(self._long):
            row = int(self._long[0])
            why = objection(*self.lengths[row], self.tokens, self.limit)
            raise ValueError(f"pair {row} is too long: {why}; {len(self._long)} in all; raise the limit, or drop them")

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(self._cuts) + len(self._alone)

    def epoch(self, epoch: int) -> list[list[int]]:
        """The rows of every batch, in their order."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: epochs count from 0")
        chance = keys(seeded(self.seed, epoch, 0), len(self._kept))
        rows = self._kept[np.lexsort((chance, self._lean[self._kept], self._width[self._kept]))]
        batches = [rows[start:stop].tolist() for start, stop in self._cuts] + [[row] for row in self._alone]
        turns = np.argsort(keys(seeded(self.seed, epoch, 1), len(batches)), kind="stable")
        return [batches[turn] for turn in turns]

    def at(self, epoch: int, index: int) -> list[int]:
        """The rows of one batch. Whoever wants many asks for the epoch once."""
        if not 0 <= index < len(self):
            raise ValueError(f"index={index}: an epoch has {len(self)} batches, counted from 0")
        return self.epoch(epoch)[index]

    @property
    def dropped(self) -> list[int]:
        """The rows left out because they are too long."""
        return self._long.tolist() if self.long == Long.DROP else []

    @property
    def waste(self) -> float:
        """Which part of all the ids in the tensors of the first epoch is padding."""
        room = sum(len(rows) * int(self._ids[rows].max(axis=0).sum()) for rows in self.epoch(0))
        rows = np.concatenate([self._kept, np.array(self._alone, dtype=np.int64)])
        return 1 - int(self._ids[rows].sum()) / room

    # The plan: made once, since it depends on the lengths alone.

    @cached_property
    def _sides(self) -> NDArray[np.int64]:
        return np.asarray(self.lengths, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        """With beginning and end."""
        return self._sides + np.array([1, 2])

    @cached_property
    def _width(self) -> NDArray[np.int64]:
        return self._ids.max(axis=1)

    @cached_property
    def _lean(self) -> NDArray[np.int64]:
        return (self._sides[:, 0] - self._sides[:, 1]) // LEAN

    @cached_property
    def _too_long(self) -> NDArray[np.bool_]:
        return too_long(self._sides[:, 0], self._sides[:, 1], self.tokens, self.limit)

    @property
    def _long(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._too_long)

    @cached_property
    def _kept(self) -> NDArray[np.int64]:
        return np.flatnonzero(~self._too_long)

    @property
    def _alone(self) -> list[int]:
        return self._long.tolist() if self.long == Long.ALONE else []

    @cached_property
    def _cuts(self) -> list[tuple[int, int]]:
        """Where, among the pairs from short to long, each batch starts and stops."""
        cuts, start, widths = [], 0, np.sort(self._width[self._kept]).tolist()
        most = len(widths) if self.sentences is None else self.sentences
        for stop, width in enumerate(widths):
            if width * (stop + 1 - start) > self.tokens or stop - start == most:
                cuts.append((start, stop))
                start = stop
        return [*cuts, (start, len(widths))] if widths else []


class Feed(ABC):
    """Abstract: where training gets its batches from."""

    @abstractmethod
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on: the same ones whether those before were asked for or not."""


@dataclass(frozen=True, eq=False)
class Held(Feed):
    """Examples that fit into memory."""

    examples: Sequence[Example] = field(repr=False)
    batches: Batches

    def __post_init__(self):
        if len(self.examples) != len(self.batches.lengths):
            raise ValueError(f"{len(self.examples)} examples, but batches for {len(self.batches.lengths)}")
        if len(self.batches) == 0:
            raise ValueError(f"all {len(self.examples)} pairs are too long; raise the limit or the budget")

    def epoch(self, epoch, start=0):
        return (collate([self.examples[row] for row in rows]) for rows in self.batches.epoch(epoch)[start:])


def lengths_of(examples: Sequence[Example]) -> list[tuple[int, int]]:
    return [(len(source), len(target)) for source, target in examples]
