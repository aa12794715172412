"""A corpus larger than memory in; its pairs in a shuffled order, and batches of them, out: the same ones every time.

    shuffled = Shuffled(lambda: read_pairs("europarl.tsv.xz"), buffer=100_000, seed=0)
    feed = Streamed(shuffled, lambda pair: (source.encode(pair.source), target.encode(pair.target)), tokens=4096)

Nothing of the past is kept, so to resume at a position is to read up to it again, without making tensors.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Generic, TypeVar

from regard.text.batches import Batch, Batches, Example, Feed, Long, collate, lengths_of, objection, too_long
from regard.text.order import key, keys, seeded

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shuffled(Generic[Item]):
    """Whatever `read` reads, each item once in an epoch, through a buffer: an item comes early by at most its size.

    The order is a function of (seed, epoch, buffer) and of the items' order in the corpus.
    """

    read: Callable[[], Iterable[Item]]
    """Opens the corpus anew."""
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
        return islice(self._through_buffer(seeded(self.seed, epoch)), start, None)

    def _through_buffer(self, seed: int) -> Iterator[Item]:
        items = iter(self.read())
        held = list(islice(items, self.buffer))
        for n, item in enumerate(items):
            slot = key(seed, n) % self.buffer
            yield held[slot]
            held[slot] = item
        yield from (held[slot] for slot in keys(seeded(seed, 1), len(held)).argsort(kind="stable"))


@dataclass(frozen=True)
class Passed:
    """What one pass over a stream found."""

    batches: int
    pairs: int
    dropped: int


@dataclass(frozen=True)
class Streamed(Feed, Generic[Item]):
    """Batches of a stream. As many items as the buffer holds are sorted by length and cut at a time: see `Batches`."""

    items: Shuffled[Item]
    encode: Callable[[Item], Example]
    _: KW_ONLY
    tokens: int = 4096
    sentences: int | None = None
    limit: int | None = None
    long: Long = Long.REFUSE

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        if start < 0:
            raise ValueError(f"start={start}: batches count from 0")
        return (collate(examples) for examples in islice(self._groups(epoch), start, None))

    def count(self, epoch: int = 0) -> Passed:
        """Reads the whole corpus, twice. Every epoch has the same pairs, but not quite as many batches."""
        sizes = [len(examples) for examples in self._groups(epoch)]
        return Passed(len(sizes), sum(sizes), sum(1 for _ in self.items.read()) - sum(sizes))

    def _groups(self, epoch: int) -> Iterator[list[Example]]:
        examples, part = self._examples(epoch), 0
        while pool := list(islice(examples, self.items.buffer)):
            batches = Batches(
                lengths_of(pool),
                tokens=self.tokens,
                sentences=self.sentences,
                limit=self.limit,
                long=self.long,
                seed=seeded(self.items.seed, part),
            )
            yield from ([pool[row] for row in rows] for rows in batches.epoch(epoch))
            part += 1
        if part == 0:
            raise ValueError("no batch in the whole stream: the corpus is empty, or every pair is too long")

    def _examples(self, epoch: int) -> Iterator[Example]:
        for item in self.items.epoch(epoch):
            source, target = self.encode(item)
            over = too_long(len(source), len(target), self.tokens, self.limit)
            if over and self.long == Long.REFUSE:
                why = objection(len(source), len(target), self.tokens, self.limit)
                raise ValueError(f"too long: {why}; raise the limit, or drop such pairs: {str(item)[:60]!r}...")
            if not over or self.long == Long.ALONE:
                yield source, target
