"""Training corpora: the padded batches of every step by epoch and index; a thread that makes packed ones ahead."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard.data.batching import (
    LongPolicy,
    MixtureSampler,
    TokenBatchSampler,
)
from regard.data.token_files import CorpusMixture
from regard.training.config import TrainSettings
from regard.training.packed_corpus import PackedBatches, PackedMixture, PackedPairs

E = TypeVar("E")
Lengths = Callable[[Sequence[E]], Sequence[tuple[int, int]]]


class DeviceBatch(Protocol):
    """Tensors of several examples, and the number of their predictions; read it before `to`, or a GPU is waited for."""

    @property
    def tokens(self) -> int: ...

    def to(self, device: torch.device | str) -> Self: ...


B = TypeVar("B", bound=DeviceBatch)
Collate = Callable[[Sequence[E]], B]
Filler = Callable[[int], E]  # an example of this length that has no prediction


@dataclass(frozen=True, eq=False)
class Corpus(Generic[E, B]):
    """Training examples; a step's batches by epoch and index."""

    examples: Sequence[E] = field(repr=False)
    batches: TokenBatchSampler | MixtureSampler
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
        """As many examples in a batch as `train.batch_size` has room for; those over `train.max_length` are left out.

        With a filler and `train.cuda_graph` batches have few shapes: lengths are rounded up, and on a GPU, which
        captures them, every batch of a length is filled up to as many examples. On a CPU none is, but they are the same
        batches.
        """
        batches = make_sampler(examples, lengths, train, rounded=filler is not None and train.cuda_graph)
        if not len(batches):
            key, size = min(
                ("batch_size", train.batch_size), ("max_length", train.max_length), key=lambda pair: pair[1]
            )
            raise ValueError(f"all {len(examples)} examples are longer than train.{key} = {size}; raise it")
        filled = train.cuda_graph and torch.device(device).type != "cpu"
        return Corpus(examples, batches, collate, train.gradient_accumulation, device, filler if filled else None)

    @property
    def left_out(self) -> int:
        return self.batches.num_dropped

    def steps(self, epoch: int) -> int:
        return -(-len(self.batches) // self.accumulate)

    def at(self, epoch: int, index: int) -> list[tuple[B, int]]:
        first = index * self.accumulate
        numbers = range(first, min(first + self.accumulate, len(self.batches)))
        return [self.batch(self.rows(epoch, number)) for number in numbers]

    def rows(self, epoch: int, number: int) -> list[int]:
        """The examples of a batch."""
        if isinstance(self.batches, TokenBatchSampler):
            return epoch_batches(self.batches, epoch)[number]
        return self.batches.batch_rows(epoch, number)

    def batch(self, rows: Sequence[int]) -> tuple[B, int]:
        examples = [self.examples[row] for row in rows]
        if self.filler:
            # one at least, as long as examples of this length may be, so that all others are padded to that
            length = self.length(rows)
            most = self.batches.tokens // max(length + 1, 2) + 1
            examples += [self.filler(length)] * (most - len(rows))
        made = self.collate(examples)
        return made.to(self.device), made.tokens

    def length(self, rows: Sequence[int]) -> int:
        assert isinstance(self.batches, TokenBatchSampler), "whoever fills up batches holds their lengths"
        return max(self.batches.lengths[row][0] for row in rows)

    def longest_first(self) -> Iterator[tuple[B, int]]:
        """Where lengths were rounded, a batch of each."""
        if self.filler:
            one_of = {self.length(rows): rows for rows in (self.rows(0, number) for number in range(len(self.batches)))}
            yield from (self.batch(one_of[length]) for length in sorted(one_of, reverse=True))


def make_sampler(
    examples: Sequence[Any], lengths: Lengths[Any], train: TrainSettings, *, rounded: bool
) -> TokenBatchSampler | MixtureSampler:
    """Which examples share a batch: prepared corpora compute it, of others the lengths of all are held."""
    if isinstance(examples, CorpusMixture):
        return MixtureSampler(examples, tokens=train.batch_size, limit=train.max_length, seed=train.seed)
    sizes = lengths(examples)
    if rounded:
        most = min(train.max_length, train.batch_size - 1)
        sizes = [(size if size > most else min(round_up_length(size), most), 0) for size, _ in sizes]
    return TokenBatchSampler(
        sizes, tokens=train.batch_size, limit=train.max_length, long=LongPolicy.DROP, seed=train.seed
    )


def round_up_length(length: int) -> int:
    """Up, in steps of an eighth to a quarter of it: 1, 2 and so on to 8, 10, 12, 14, 16, 20 and so on."""
    step = 1 << max(0, length.bit_length() - 3)
    return -(-length // step) * step


def to_device_async(tensor: Tensor, device: torch.device | str) -> Tensor:
    """To the device, without waiting for it."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=2)
def epoch_batches(batches: TokenBatchSampler, epoch: int) -> list[list[int]]:
    return batches.epoch(epoch)


WINDOW = 8  # packed batches that are made at once, ahead of those that a GPU computes


class PrefetchedMixture(PackedBatches):
    """The batches of a mixture, made by a thread of its own ahead of the step that asks: a GPU need not wait for them.

    Args:
        batches: what makes them; each is the same as without the thread.
    """

    def __init__(self, batches: PackedMixture):
        self.batches, self.device, self.accumulate = batches, batches.device, batches.accumulate
        self.thread = ThreadPoolExecutor(1, "batches")
        self.windows = dict[tuple[int, int], Future[list[PackedPairs]]]()

    @property
    def left_out(self) -> int:
        return self.batches.left_out

    def num_batches(self, epoch):
        return self.batches.num_batches(epoch)

    def numbered(self, epoch, number):
        window, at = divmod(number, WINDOW)
        more = (window + 1) * WINDOW < self.num_batches(epoch)
        wanted = [(epoch, window), (epoch, window + 1) if more else (epoch + 1, 0)]
        self.windows = {key: self.windows.get(key) or self.thread.submit(self.make_window, *key) for key in wanted}
        return self.windows[wanted[0]].result()[at]

    def make_window(self, epoch: int, window: int) -> list[PackedPairs]:
        first = window * WINDOW
        return self.batches.several(epoch, range(first, min(first + WINDOW, self.num_batches(epoch))))
