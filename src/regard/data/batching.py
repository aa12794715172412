"""Batching: batches of sentence pairs by a token budget, shuffled by (seed, epoch); and streams.

    batches = TokenBatchSampler(lengths, tokens=4096, seed=0)
    batches.epoch(3)           the rows of each batch of epoch 3, a function of (seed, epoch) and nothing else
    collate(examples)          the tensors of one batch

A sentence pair is two lists of ids without BOS and EOS. `collate` adds them, and the counts of a batch include them.

A corpus larger than memory is a stream, read through a shuffle buffer:

    items = ShuffleBuffer(lambda: read_pairs("europarl.tsv.xz"), buffer=100_000, seed=0)
    batches = StreamingBatches(items, lambda pair: (en.encode(pair.source), de.encode(pair.target)), tokens=4096)

It has no state, so to resume at a position is to read up to it again, without making tensors.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from regard.data.token_files import CorpusMixture, Example, padded_width
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.world.splitmix import combine_seeds, keyed_hash, permute, random_key, random_keys, random_keys_at

Ids = Sequence[int]
SKEWS = 2**17  # more than there are: a class of lengths has the key width · SKEWS + skew
LENGTH_SKEW_BIN = 4  # pairs that differ by less in how much longer one side is than the other may share a batch


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded sentence pairs. The decoder reads target[:, :-1] and predicts target[:, 1:].

    Args:
        source: ids of the source tokens, EOS behind them.
        target: ids of the target tokens between BOS and EOS.
        source_lengths, target_lengths: how many of a row are tokens, and not padding.

    Examples:
        >>> batch = collate([([5, 6], [7, 8, 9]), ([5], [7])])
        >>> batch.source
        tensor([[5, 6, 2],
                [5, 2, 0]])
        >>> batch.target
        tensor([[1, 7, 8, 9, 2],
                [1, 7, 2, 0, 0]])
        >>> len(batch), batch.tokens, batch.num_positions  # pairs, tokens to predict, padding included
        (2, 6, 16)
    """

    source: Int[Tensor, "b s"]
    source_lengths: Int[Tensor, " b"]
    target: Int[Tensor, "b t"]
    target_lengths: Int[Tensor, " b"]

    def to(self, device: torch.device | str) -> "Batch":
        parts = (self.source, self.source_lengths, self.target, self.target_lengths)
        return Batch(*(part.to(device, non_blocking=True) for part in parts))

    @property
    def tokens(self) -> int:
        """How many target tokens there are to predict. Read it before `to`: on a GPU it would synchronise."""
        return int((self.target_lengths - 1).sum())

    @property
    def num_positions(self) -> int:
        """Positions of both tensors, padding included: what the batch costs."""
        return self.source.numel() + self.target.numel()

    def split_rows(self, parts: int) -> "list[Batch]":
        """At most `parts` batches: number n has the rows n, n + parts, n + 2 parts and so on. None is empty."""
        sides = (self.source, self.source_lengths, self.target, self.target_lengths)
        return [Batch(*(side[first::parts] for side in sides)) for first in range(min(parts, len(self)))]

    def __len__(self) -> int:
        return len(self.source)


def pad_rows(rows: Sequence[Ids]) -> tuple[Int[Tensor, "b t"], Int[Tensor, " b"]]:
    """Rows of ids as one padded tensor, and their lengths.

    Examples:
        >>> rows, lengths = pad_rows([[5, 6, 7], [8]])
        >>> rows
        tensor([[5, 6, 7],
                [8, 0, 0]])
        >>> lengths
        tensor([3, 1])
    """
    if not rows:
        raise ValueError("a batch needs at least one sentence")
    lengths = [len(row) for row in rows]
    table = np.full((len(rows), max(lengths)), PAD, dtype=np.int64)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    if np.count_nonzero(table) != sum(lengths):
        raise ValueError(f"id {PAD} is padding and cannot occur inside a sentence")
    return torch.from_numpy(table), torch.tensor(lengths)


def collate(examples: Sequence[Example]) -> Batch:
    """Source ids, EOS; BOS, target ids, EOS; then padding.

    Examples:
        >>> batch = collate([([5, 6], [7]), ([5], [7, 8])])
        >>> batch.source  # ids, EOS, padding
        tensor([[5, 6, 2],
                [5, 2, 0]])
        >>> batch.target  # BOS, ids, EOS, padding
        tensor([[1, 7, 2, 0],
                [1, 7, 8, 2]])
    """
    source, source_lengths = pad_rows([[*ids, EOS] for ids, _ in examples])
    target, target_lengths = pad_rows([[BOS, *ids, EOS] for _, ids in examples])
    return Batch(source, source_lengths, target, target_lengths)


class LongPolicy(StrEnum):
    """What happens to a pair with a side longer than the limit or the token budget.

    Examples:
        >>> lengths = [(3, 3), (900, 900)]
        >>> TokenBatchSampler(lengths, tokens=64, long=LongPolicy.DROP).dropped
        [1]
        >>> sorted(TokenBatchSampler(lengths, tokens=64, long=LongPolicy.ALONE).epoch(0))
        [[0], [1]]
    """

    REFUSE = "refuse"  # a ValueError
    DROP = "drop"  # left out and counted
    ALONE = "alone"  # a batch of its own, over the budget if need be


def collate_inputs(inputs: Sequence[Sequence[Tensor | None]]) -> tuple[Tensor | None, ...]:
    """The arguments of several calls, each a batch of one, as those of one: padded with 0 to the longest."""

    def collate(parts: Sequence[Tensor | None]) -> Tensor | None:
        some = [part for part in parts if part is not None]
        if len(some) < len(parts):
            return None
        sizes = torch.tensor([part.shape[1:] for part in some]).amax(0).tolist() if some[0].dim() > 1 else []
        missing = [[size - have for size, have in zip(sizes, part.shape[1:], strict=True)] for part in some]
        sides = [[n for many in reversed(each) for n in (0, many)] for each in missing]
        return torch.cat([pad(part, each) for part, each in zip(some, sides, strict=True)])

    return tuple(collate(parts) for parts in zip(*inputs, strict=True))


def exceeds_limit(source: Any, target: Any, tokens: int, limit: int | None) -> Any:
    """Whether a side exceeds the limit or the budget; lengths are integers or arrays, without BOS and EOS."""
    over = (source + 1 > tokens) | (target + 2 > tokens)
    return over if limit is None else over | (source > limit) | (target > limit)


def describe_excess(source: int, target: int, tokens: int, limit: int | None) -> str:
    limited = limit is not None and max(source, target) > limit
    allowed = f"the limit is {limit}" if limited else f"a batch has {tokens} with BOS and EOS"
    return f"{source} and {target} ids, and {allowed}"


@dataclass(frozen=True, eq=False)
class TokenBatchSampler:
    """Every pair once in an epoch; neither tensor of a batch holds more than `tokens` ids, padding included.

    Pairs of about the same lengths share a batch. Which of them, and in which order the batches come, is shuffled by
    (seed, epoch). Every epoch has as many batches, and about as much padding.

    Examples:
        >>> batches = TokenBatchSampler([(3, 3), (9, 9), (3, 3), (9, 9)], tokens=24, seed=0)
        >>> sorted(sorted(rows) for rows in batches.epoch(0))
        [[0, 2], [1, 3]]
        >>> len(batches), batches.padding_fraction
        (2, 0.0)
    """

    lengths: Sequence[tuple[int, int]] = field(repr=False)
    """For each pair, how many ids its source and its target have, without BOS and EOS."""
    _: KW_ONLY
    tokens: int = 4096
    sentences: int | None = None
    """At most so many pairs in a batch."""
    limit: int | None = None
    """At most so many ids on a side, without BOS and EOS."""
    long: LongPolicy = LongPolicy.REFUSE
    seed: int = 0

    def __post_init__(self):
        for name, number in (("tokens", self.tokens), ("sentences", self.sentences), ("limit", self.limit)):
            if number is not None and number < 1:
                raise ValueError(f"{name}={number} must be at least 1")
        if self.long not in list(LongPolicy):
            raise ValueError(f"long={self.long!r} is no policy for long sentences; choose from {', '.join(LongPolicy)}")
        if len(self.lengths) == 0:
            raise ValueError("no sentence pairs to make batches of: the corpus is empty")
        if self.long == LongPolicy.REFUSE and len(self._long):
            row = int(self._long[0])
            why = describe_excess(*self.lengths[row], self.tokens, self.limit)
            raise ValueError(f"pair {row} is too long: {why}; {len(self._long)} in all; raise the limit, or drop them")

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(self._cuts) + len(self._alone)

    def epoch(self, epoch: int) -> list[list[int]]:
        """The rows of every batch, in their order."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: epochs count from 0")
        keys = random_keys(combine_seeds(self.seed, epoch, 0), len(self._fitting))
        rows = self._fitting[np.lexsort((keys, self._skew[self._fitting], self._width[self._fitting]))]
        bounds = map(self._cuts.bounds, range(len(self._cuts)))
        batches = [rows[start:stop].tolist() for start, stop in bounds] + [[row] for row in self._alone]
        order = np.argsort(random_keys(combine_seeds(self.seed, epoch, 1), len(batches)), kind="stable")
        return [batches[n] for n in order]

    def batch_rows(self, epoch: int, index: int) -> list[int]:
        """The rows of one batch. For many, call `epoch` once."""
        if not 0 <= index < len(self):
            raise ValueError(f"index={index}: an epoch has {len(self)} batches, counted from 0")
        return self.epoch(epoch)[index]

    @property
    def dropped(self) -> list[int]:
        """The rows left out because they are too long."""
        return self._long.tolist() if self.long == LongPolicy.DROP else []

    @property
    def num_dropped(self) -> int:
        return len(self.dropped)

    @property
    def padding_fraction(self) -> float:
        """The fraction of padding in the tensors of the first epoch."""
        positions = sum(len(rows) * int(self._ids[rows].max(axis=0).sum()) for rows in self.epoch(0))
        rows = np.concatenate([self._fitting, np.array(self._alone, dtype=np.int64)])
        return 1 - int(self._ids[rows].sum()) / positions

    # Computed once, since it depends on the lengths alone.

    @cached_property
    def _sides(self) -> NDArray[np.int64]:
        return np.asarray(self.lengths, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        """With BOS and EOS."""
        return self._sides + np.array([1, 2])

    @cached_property
    def _width(self) -> NDArray[np.int64]:
        return padded_width(self._sides[:, 0], self._sides[:, 1])

    @cached_property
    def _skew(self) -> NDArray[np.int64]:
        return length_skew(self._sides[:, 0], self._sides[:, 1])

    @cached_property
    def _too_long(self) -> NDArray[np.bool_]:
        return exceeds_limit(self._sides[:, 0], self._sides[:, 1], self.tokens, self.limit)

    @property
    def _long(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._too_long)

    @cached_property
    def _fitting(self) -> NDArray[np.int64]:
        return np.flatnonzero(~self._too_long)

    @property
    def _alone(self) -> list[int]:
        return self._long.tolist() if self.long == LongPolicy.ALONE else []

    @cached_property
    def _cuts(self) -> "BatchCuts":
        """Where, among the pairs from short to long, each batch starts and stops."""
        widths, counts = np.unique(self._width[self._fitting], return_counts=True)
        return BatchCuts.of(widths, counts, tokens=self.tokens, sentences=self.sentences)


def length_skew(source: Any, target: Any, skews: int = LENGTH_SKEW_BIN) -> Any:
    """How much longer the source is, in bins of so many: pairs of one bin and one width share a batch."""
    return (source - target) // skews


def exact_lengths(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The two lengths of each key of a width and a skew, where a bin has one skew: the inverse of `padded_width`."""
    width, skew = np.divmod(keys, SKEWS)
    skew -= SKEWS // 2
    source = np.where(skew > 0, width - 1, width - 2 + skew)
    return np.stack((source, source - skew), 1)


@dataclass(frozen=True)
class BatchCuts:
    """Where pairs from short to long are cut into batches, each as large as the budget allows.

    Batches of one width are all of a size, but for the first and the last, so a few numbers describe millions.

    Examples:
        >>> cuts = BatchCuts.of([4, 5], [3, 3], tokens=8)  # two of width 4; of width 5 each alone
        >>> [cuts.bounds(n) for n in range(len(cuts))]
        [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6)]
    """

    series: tuple[tuple[int, int, int], ...]
    """(number of batches before, first pair, pairs in each), up to the end of the next."""
    batches: int
    pairs: int

    @staticmethod
    def of(widths: Iterable[Any], counts: Iterable[Any], *, tokens: int, sentences: int | None = None) -> "BatchCuts":
        """Of so many pairs of each width, from narrow to wide; none of them exceeds the budget by itself."""
        series: list[tuple[int, int, int]] = []
        batches, start, held = 0, 0, 0  # `held` pairs from `start` on wait for more

        def close(size: int, times: int) -> None:
            nonlocal batches, start
            if times:
                series.append((batches, start, size))
                batches, start = batches + times, start + size * times

        for width, count in zip(map(int, widths), map(int, counts), strict=True):
            most = min(tokens // width, sentences or tokens)
            if held >= most:
                close(held, 1)
                held = 0
            if held and held + count > most:
                close(most, 1)
                count, held = count - (most - held), 0
            full = max(held + count - 1, 0) // most  # the last stays open: what follows may fit
            close(most, full)
            held += count - full * most
        close(held, int(held > 0))
        return BatchCuts(tuple(series), batches, start)

    def __len__(self) -> int:
        return self.batches

    def bounds(self, index: int) -> tuple[int, int]:
        """The first pair of a batch, and the one behind its last."""
        before, first, size = self.series[bisect_right(self.series, index, key=lambda one: one[0]) - 1]
        start = first + (index - before) * size
        return start, start + size


@dataclass(frozen=True, eq=False)
class MixtureSampler:
    """Batches of prepared corpora, as `TokenBatchSampler` makes them, with a computed order: nothing is held of a pair.

    Pairs of one width and skew are a class. In an epoch those of a class come in a random order, of each corpus as many
    as its weight asks for, and so do the batches. A corpus that is seen several times, or partly, goes on in the next
    epoch with those that were seen least. What a batch holds is a function of (seed, epoch, index) and nothing else.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from regard.data.token_files import write_corpus, write_shard
        >>> folder = Path("prepared/three")
        >>> shard = write_shard(folder / "00000.tokens", np.full((5, 2), 3), np.arange(4, 34), id_bytes=2)
        >>> write_corpus(folder, [shard], {"source": "en", "target": "fr", "vocabulary": "mine", "text": {}})
        >>> batches = MixtureSampler(CorpusMixture.open([str(folder)]), tokens=10, seed=0)
        >>> sorted(len(batches.batch_rows(epoch=0, index=index)) for index in range(len(batches)))
        [1, 2, 2]
    """

    mixture: CorpusMixture
    _: KW_ONLY
    tokens: int = 4096
    limit: int | None = None
    """At most so many ids on a side, without BOS and EOS; longer pairs are left out."""
    seed: int = 0

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(self._cuts)

    @property
    def num_dropped(self) -> int:
        return self._order.num_dropped

    def batch_rows(self, epoch: int, index: int) -> list[int]:
        """The numbers of the pairs of a batch."""
        if epoch < 0 or not 0 <= index < len(self):
            raise ValueError(f"epoch={epoch} and index={index} count from 0; an epoch has {len(self)} batches")
        number = int(permute(combine_seeds(self.seed, epoch, 1), len(self), np.array([index]))[0])
        return self._order.rows(epoch, np.arange(*self._cuts.bounds(number)))

    @cached_property
    def _order(self) -> "MixtureOrder":
        return MixtureOrder(self.mixture, LengthRuns.of(self.mixture, self.tokens, self.limit), self.seed)

    @cached_property
    def _cuts(self) -> BatchCuts:
        return BatchCuts.of(self._order.keys // SKEWS, self._order.sizes, tokens=self.tokens)


@dataclass(frozen=True, eq=False)
class MixtureOrder:
    """Which pair of a mixture stands at which place of an epoch; places count from short pairs to long ones.

    Pairs of one key (a width and a bin of skews) are a class. The class of a place is the same in every epoch; which of
    its pairs stands there is drawn, and computed when it is asked for.
    """

    mixture: CorpusMixture
    runs: "LengthRuns"
    seed: int = 0

    @property
    def num_dropped(self) -> int:
        return len(self.mixture) - int(self.runs.sizes.sum())

    @property
    def keys(self) -> NDArray[np.int64]:
        """That of each class, from narrow to wide."""
        return self._classes[0]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many places each class has."""
        return self._drawn.sum(1)

    @cached_property
    def first_places(self) -> NDArray[np.int64]:
        """Where each class begins."""
        return np.cumsum(self.sizes) - self.sizes

    def rows(self, epoch: int, places: NDArray[np.int64]) -> list[int]:
        """The numbers of the pairs at these places."""
        classes = np.searchsorted(self.first_places, places, "right") - 1
        seeds = random_keys_at(combine_seeds(self.seed, epoch, 0), classes.astype(np.uint64))
        drawn = permute(seeds, self.sizes[classes], places - self.first_places[classes])
        upto = np.cumsum(self._drawn[classes], axis=1)
        corpora = (drawn[:, None] >= upto).sum(1)
        cells = classes, corpora
        drawn = drawn - (upto[np.arange(len(drawn)), corpora] - self._drawn[cells])
        seen = epoch * self._drawn[cells] + drawn  # of this class and corpus, since the beginning
        passes, numbers = np.divmod(seen, self._counts[cells])
        # the order in which a pass over them takes them, so that of a part of a pass all are as likely
        seeds = random_keys_at(combine_seeds(self.seed, 2), self._first_members[cells].astype(np.uint64))
        numbers = permute(keyed_hash(seeds, 0, passes.astype(np.uint64)), self._counts[cells], numbers)
        return self.runs.rows(self._first_members[cells] + numbers)

    @cached_property
    def _classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The key of each class, from narrow to wide, and that of each run."""
        return np.unique(self.runs.keys, return_inverse=True)

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """Pairs of each class and corpus."""
        keys, of_run = self._classes
        counts = np.zeros((len(keys), len(self.mixture.corpora)), np.int64)
        np.add.at(counts, (of_run, self.runs.corpora), self.runs.sizes)
        return counts

    @cached_property
    def _drawn(self) -> NDArray[np.int64]:
        """How many of them an epoch sees."""
        # rounded as sums: of many small classes, each by itself, all would be rounded the same way
        wanted = self._counts * self.mixture.repeats(self._counts.sum(0).tolist())
        return np.diff(np.rint(np.cumsum(wanted, axis=0)).astype(np.int64), axis=0, prepend=0)

    @cached_property
    def _first_members(self) -> NDArray[np.int64]:
        """Where the pairs of each class and corpus begin, run after run."""
        flat = self._counts.ravel()
        return (np.cumsum(flat) - flat).reshape(self._counts.shape)


@dataclass(frozen=True, eq=False)
class LengthRuns:
    """Runs of pairs of one width and bin of skews in the shards of a mixture, in the order (key, corpus, shard)."""

    keys: NDArray[np.int64]
    corpora: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @staticmethod
    def of(mixture: CorpusMixture, tokens: int, limit: int | None, skews: int = LENGTH_SKEW_BIN) -> "LengthRuns":
        """Those that the limit and the budget allow; so many skews are a bin, and with one the lengths are exact."""
        parts: list[tuple[NDArray[np.int64], ...]] = []
        for number, corpus in enumerate(mixture.corpora):
            for shard, first in zip(corpus.shards, corpus.first_rows[:-1], strict=True):
                source, target, starts, sizes = shard.length_runs()
                fits = ~exceeds_limit(source, target, tokens, limit)
                source, target, starts, sizes = (part[fits] for part in (source, target, starts, sizes))
                keys = padded_width(source, target) * SKEWS + length_skew(source, target, skews) + SKEWS // 2
                # runs of one bin lie side by side: a limit cuts off the end of a bin at most
                heads = np.flatnonzero(np.diff(keys, prepend=-1))
                rows = int(mixture.first_rows[number]) + int(first) + starts[heads]
                summed = np.add.reduceat(sizes, heads) if len(heads) else sizes
                parts.append((keys[heads], np.full(len(heads), number), rows, summed))
        keys, corpora, rows, sizes = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.lexsort((rows, corpora, keys))
        return LengthRuns(*(part[order] for part in (keys, corpora, rows, sizes)))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes)

    def rows(self, members: NDArray[np.int64]) -> list[int]:
        """The pairs with these numbers, counted run after run."""
        runs = np.searchsorted(self._ends, members, "right")
        return (self.first_rows[runs] + members - (self._ends[runs] - self.sizes[runs])).tolist()


class BatchSource(ABC):
    """Abstract: a source of batches for training.

    Examples:
        >>> class OneBatch(BatchSource):
        ...     def epoch(self, epoch, start=0):
        ...         return iter([collate([([5, 6], [7])])][start:])
        >>> [batch.tokens for batch in OneBatch().epoch(0)]
        [2]
    """

    @abstractmethod
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on: the same whether or not those before were read."""


@dataclass(frozen=True, eq=False)
class InMemoryBatches(BatchSource):
    """Examples that fit into memory.

    Examples:
        >>> examples = [([5] * n, [7] * n) for n in (3, 3, 9, 9)]
        >>> batches = InMemoryBatches(examples, TokenBatchSampler(pair_lengths(examples), tokens=24))
        >>> sorted(tuple(batch.target.shape) for batch in batches.epoch(0))
        [(2, 5), (2, 11)]
    """

    examples: Sequence[Example] = field(repr=False)
    batches: TokenBatchSampler

    def __post_init__(self):
        if len(self.examples) != len(self.batches.lengths):
            raise ValueError(f"{len(self.examples)} examples, but batches for {len(self.batches.lengths)}")
        if len(self.batches) == 0:
            raise ValueError(f"all {len(self.examples)} pairs are too long; raise the limit or the budget")

    def epoch(self, epoch, start=0):
        return (collate([self.examples[row] for row in rows]) for rows in self.batches.epoch(epoch)[start:])


def pair_lengths(examples: Sequence[Example]) -> list[tuple[int, int]]:
    """How many tokens the source and the target of each example have.

    Examples:
        >>> pair_lengths([([5, 6], [7]), ([5], [7, 8, 9])])
        [(2, 1), (1, 3)]
    """
    return [(len(source), len(target)) for source, target in examples]


# --- streams ---


Item = TypeVar("Item")


@dataclass(frozen=True)
class ShuffleBuffer(Generic[Item]):
    """Whatever `read` reads, each item once in an epoch, through a buffer: an item comes early by at most its size.

    The order is a function of (seed, epoch, buffer) and of the items' order in the corpus.

    Examples:
        >>> items = ShuffleBuffer(lambda: range(8), buffer=4, seed=1)
        >>> list(items.epoch(0)), list(items.epoch(1))
        ([3, 0, 1, 6, 4, 2, 7, 5], [1, 2, 5, 4, 3, 6, 7, 0])
        >>> list(items.epoch(1, start=5))
        [6, 7, 0]
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
    `TokenBatchSampler`.

    Examples:
        >>> pairs = [SentencePair("a", "b"), SentencePair("a a a a", "b b b b")] * 10
        >>> tokenizer = WordTokenizer.train(iter_sides(pairs))
        >>> def encode(pair):
        ...     return tokenizer.encode(pair.source), tokenizer.encode(pair.target)
        >>> batches = StreamingBatches(ShuffleBuffer(lambda: pairs, buffer=20), encode, tokens=64)
        >>> sorted(tuple(batch.source.shape) for batch in batches.epoch(0))
        [(10, 2), (10, 5)]
    """

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
