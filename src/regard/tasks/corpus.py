"""Examples in; the batches of every training step out, by epoch and index, and held-out examples in batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

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
Filler = Callable[[int], E]  # an example of this length that asks for no prediction


@dataclass(frozen=True, eq=False)
class Corpus(Generic[E, B]):
    """Training examples; a step's batches by epoch and index."""

    examples: Sequence[E] = field(repr=False)
    batches: Batches
    collate: Collate[E, B]
    accumulate: int = 1
    device: str = "cpu"
    filler: Filler[E] | None = None

    @staticmethod
    def of(
        examples: Sequence[E],
        lengths: Lengths[E],
        collate: Collate[E, B],
        train: TrainSettings,
        device: str = "cpu",
        *,
        filler: Filler[E] | None = None,
    ) -> "Corpus[E, B]":
        """As many examples in a batch as `train.tokens` has room for; those over `train.longest` are left out.

        With a filler and `train.capture` batches have few shapes: lengths are rounded up, and on a GPU, which records
        them, every batch of a length is filled up to as many examples. On a CPU none is, but they are the same batches.
        """
        sizes = lengths(examples)
        if filler and train.capture:
            most = min(train.longest, train.tokens - 1)
            sizes = [(size if size > most else min(rounded(size), most), 0) for size, _ in sizes]
        batches = Batches(sizes, tokens=train.tokens, limit=train.longest, long=Long.DROP, seed=train.seed)
        if not len(batches):
            key, size = min(("tokens", train.tokens), ("longest", train.longest), key=lambda pair: pair[1])
            raise ValueError(f"all {len(examples)} examples are longer than train.{key} = {size}; raise it")
        filled = train.capture and torch.device(device).type != "cpu"
        return Corpus(examples, batches, collate, train.accumulate, device, filler if filled else None)

    @property
    def left_out(self) -> int:
        return len(self.batches.dropped)

    def steps(self, epoch: int) -> int:
        return -(-len(self.batches) // self.accumulate)

    def at(self, epoch: int, index: int) -> list[tuple[B, int]]:
        rows = epoch_of(self.batches, epoch)[index * self.accumulate : (index + 1) * self.accumulate]
        return [self.batch(part) for part in rows]

    def batch(self, rows: Sequence[int]) -> tuple[B, int]:
        examples = [self.examples[row] for row in rows]
        if self.filler:
            # one at least, as long as examples of this length may be, so that all others are padded to that
            length = self.length(rows)
            room = self.batches.tokens // max(length + 1, 2) + 1
            examples += [self.filler(length)] * (room - len(rows))
        made = self.collate(examples)
        return made.to(self.device), made.tokens

    def length(self, rows: Sequence[int]) -> int:
        return max(self.batches.lengths[row][0] for row in rows)

    def longest_first(self) -> Iterator[tuple[B, int]]:
        """Where lengths were rounded, a batch of each."""
        if self.filler:
            one_of = {self.length(rows): rows for rows in epoch_of(self.batches, 0)}
            yield from (self.batch(one_of[length]) for length in sorted(one_of, reverse=True))


def rounded(length: int) -> int:
    """Up, in steps of an eighth to a quarter of it: 1, 2 and so on to 8, 10, 12, 14, 16, 20 and so on."""
    step = 1 << max(0, length.bit_length() - 3)
    return -(-length // step) * step


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """To the device, without waiting for it."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


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
