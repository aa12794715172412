"""Streaming: a shuffle buffer and batches for a corpus larger than memory, deterministic by seed.

    items = ShuffleBuffer(lambda: read_pairs("europarl.tsv.xz"), buffer=100_000, seed=0)
    batches = StreamingBatches(items, lambda pair: (en.encode(pair.source), de.encode(pair.target)), tokens=4096)

There is no state, so to resume at a position is to read up to it again, without making tensors.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Generic, TypeVar

from regard.data.batching import (
    Batch,
    BatchSource,
    Example,
    LongPolicy,
    TokenBatchSampler,
    collate,
    describe_excess,
    exceeds_limit,
    pair_lengths,
)
from regard.data.shuffle import combine_seeds, random_key, random_keys

Item = TypeVar("Item")


@dataclass(frozen=True)
class ShuffleBuffer(Generic[Item]):
    """Whatever `read` reads, each item once in an epoch, through a buffer: an item comes early by at most its size.

    The order is a function of (seed, epoch, buffer) and of the items' order in the corpus.
    """

    read: Callable[[], Iterable[Item]]
    """Opens the corpus again."""
    _: KW_ONLY
    buffer: int = 65_536
    seed: int = 0

    def __post_init__(self):
        if self.buffer < 1:
            raise ValueError(f"buffer={self.buffer} must hold at least 1 item")

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Item]:
        """The items from number `start` on, in the order of this epoch."""
        if epoch < 0 or start < 0:
            raise ValueError(f"epoch={epoch} and start={start} count from 0")
        return islice(self._through_buffer(combine_seeds(self.seed, epoch)), start, None)

    def _through_buffer(self, seed: int) -> Iterator[Item]:
        items = iter(self.read())
        held = list(islice(items, self.buffer))
        for n, item in enumerate(items):
            slot = random_key(seed, n) % self.buffer
            yield held[slot]
            held[slot] = item
        yield from (held[slot] for slot in random_keys(combine_seeds(seed, 1), len(held)).argsort(kind="stable"))


@dataclass(frozen=True)
class StreamCount:
    """The counts of one pass over a stream."""

    batches: int
    pairs: int
    dropped: int


@dataclass(frozen=True)
class StreamingBatches(BatchSource, Generic[Item]):
    """Batches of a stream. As many items as the buffer holds are sorted by length and cut at a time: see
    `TokenBatchSampler`."""

    items: ShuffleBuffer[Item]
    encode: Callable[[Item], Example]
    _: KW_ONLY
    tokens: int = 4096
    sentences: int | None = None
    limit: int | None = None
    long: LongPolicy = LongPolicy.REFUSE

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        if start < 0:
            raise ValueError(f"start={start}: batches count from 0")
        return (collate(examples) for examples in islice(self._groups(epoch), start, None))

    def count(self, epoch: int = 0) -> StreamCount:
        """Reads the whole corpus, twice. Epochs have the same pairs, but may differ in the number of batches."""
        sizes = [len(examples) for examples in self._groups(epoch)]
        return StreamCount(len(sizes), sum(sizes), sum(1 for _ in self.items.read()) - sum(sizes))

    def _groups(self, epoch: int) -> Iterator[list[Example]]:
        examples, part = self._examples(epoch), 0
        while pool := list(islice(examples, self.items.buffer)):
            batches = TokenBatchSampler(
                pair_lengths(pool),
                tokens=self.tokens,
                sentences=self.sentences,
                limit=self.limit,
                long=self.long,
                seed=combine_seeds(self.items.seed, part),
            )
            yield from ([pool[row] for row in rows] for rows in batches.epoch(epoch))
            part += 1
        if part == 0:
            raise ValueError("no batch in the whole stream: the corpus is empty, or every pair is too long")

    def _examples(self, epoch: int) -> Iterator[Example]:
        for item in self.items.epoch(epoch):
            source, target = self.encode(item)
            over = exceeds_limit(len(source), len(target), self.tokens, self.limit)
            if over and self.long == LongPolicy.REFUSE:
                why = describe_excess(len(source), len(target), self.tokens, self.limit)
                raise ValueError(f"too long: {why}; raise the limit, or drop such pairs: {str(item)[:60]!r}...")
            if not over or self.long == LongPolicy.ALONE:
                yield source, target
