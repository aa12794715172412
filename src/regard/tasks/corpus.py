"""Examples in; the batches of every training step out, by epoch and index, and held-out examples in batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, Protocol, Self, TypeVar

import torch

from regard.tasks.settings import TrainSettings
from regard.text.batches import Batches, Long

E = TypeVar("E")
Lengths = Callable[[Sequence[E]], Sequence[tuple[int, int]]]


class Batched(Protocol):
    """Tensors of several examples, and how many predictions they ask for; ask before `to`, or a GPU is waited for."""

    @property
    def tokens(self) -> int: ...

    def to(self, device: torch.device | str) -> Self: ...


B = TypeVar("B", bound=Batched)
Collate = Callable[[Sequence[E]], B]


@dataclass(frozen=True, eq=False)
class Corpus(Generic[E, B]):
    """Training examples; a step's batches by epoch and index."""

    examples: Sequence[E] = field(repr=False)
    batches: Batches
    collate: Collate[E, B]
    accumulate: int = 1
    device: str = "cpu"

    @staticmethod
    def of(
        examples: Sequence[E], lengths: Lengths[E], collate: Collate[E, B], train: TrainSettings, device: str = "cpu"
    ) -> "Corpus[E, B]":
        """As many examples in a batch as `train.tokens` has room for; those over `train.longest` are left out."""
        batches = Batches(lengths(examples), tokens=train.tokens, limit=train.longest, long=Long.DROP, seed=train.seed)
        if not len(batches):
            raise ValueError(f"all {len(examples)} examples are longer than train.longest = {train.longest}; raise it")
        return Corpus(examples, batches, collate, train.accumulate, device)

    @property
    def left_out(self) -> int:
        return len(self.batches.dropped)

    def steps(self, epoch: int) -> int:
        return -(-len(self.batches) // self.accumulate)

    def at(self, epoch: int, index: int) -> list[tuple[B, int]]:
        rows = epoch_of(self.batches, epoch)[index * self.accumulate : (index + 1) * self.accumulate]
        made = [self.collate([self.examples[row] for row in part]) for part in rows]
        return [(batch.to(self.device), batch.tokens) for batch in made]


@lru_cache(maxsize=2)
def epoch_of(batches: Batches, epoch: int) -> list[list[int]]:
    return batches.epoch(epoch)


def short(examples: Sequence[E], lengths: Lengths[E], train: TrainSettings) -> list[E]:
    """Held-out examples within `train.longest`."""
    kept = [one for one, sides in zip(examples, lengths(examples), strict=True) if max(sides) <= train.longest]
    if not kept:
        raise ValueError(
            f"of {len(examples)} held-out examples none is within train.longest = {train.longest}; raise it"
        )
    return kept


def in_batches(
    examples: Sequence[E], lengths: Lengths[E], collate: Collate[E, B], *, tokens: int = 8192, device: str = "cpu"
) -> Iterator[tuple[list[int], B, int]]:
    """Every example once, similar lengths together: which they are, their batch, and its predictions."""
    for rows in Batches(lengths(examples), tokens=tokens, long=Long.ALONE).epoch(0):
        batch = collate([examples[row] for row in rows])
        yield rows, batch.to(device), batch.tokens
