"""Language-model blocks: training blocks of a token stream, and sliding windows for evaluation.

    ids = encode_text(tokenizer, read_text("input.txt.xz"))
    LMBlocks(ids, length=256, rows=64, seed=0).at(epoch, index)   the micro-batches of a training step
    MixtureBlocks(TextMixture.open(["prepared"]), length=256).at(epoch, index)   the same of prepared corpora
    for block in sliding_windows(ids, length=256, stride=128): ...   every token scored once

The stream of n tokens begins with BOS, so that the first token is predicted as well: n targets.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from regard.data.files import (
    decode_lines,
    open_decompressed,
    require_file,
)
from regard.data.token_files import TextMixture, TokenStream
from regard.data.tokenizers.base import BOS, EOS, PAD, LosslessTokenizer, Tokenizer, WordTokenizer
from regard.world.splitmix import combine_seeds, permute, random_key, random_keys


def read_text(path: str | Path) -> str:
    r"""The whole file, plain, .gz or .xz, unchanged except that \r\n becomes \n and a byte-order mark is dropped.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("text.txt").write_bytes(b"one\r\ntwo")
        >>> read_text("text.txt")
        'one\ntwo'
    """
    path, last = require_file(path), b""

    def track_last(lines: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal last
        for line in lines:
            last = line
            yield line

    try:
        with open_decompressed(path) as file:
            text = "\n".join(decode_lines(track_last(file), str(path)))  # a text may be one line
    except OSError as error:
        raise ValueError(f"{path}: cannot be opened ({error.strerror}); check its permissions") from None
    return text + "\n" if last.endswith(b"\n") else text


# --- ids ---


def encode_text(tokenizer: Tokenizer, text: str) -> Int[Tensor, " n"]:
    """One text as a stream of ids, with line ends; `WordTokenizer` loses those: see `encode_lines`."""
    return torch.tensor(tokenizer.encode(text), dtype=torch.long)


def encode_lines(tokenizer: Tokenizer, lines: Iterable[str]) -> Int[Tensor, " n"]:
    """Lines as a stream of ids with EOS after each, as word-level corpora (WikiText) are counted: see `count_words`.

    Examples:
        >>> tokenizer = WordTokenizer.train(["the cat sleeps", "the dog"])
        >>> encode_lines(tokenizer, ["the cat", "the dog"])  # 2, EOS, ends each line
        tensor([4, 5, 2, 4, 6, 2])
    """
    return torch.tensor([one for ids in tokenizer.encode_batch(lines) for one in (*ids, EOS)], dtype=torch.long)


def encode_stream(tokenizer: Tokenizer, lines: Sequence[str]) -> Int[Tensor, " n"]:
    """Lines with their ends: line by line for `WordTokenizer`, as one text for the others."""
    return (
        encode_lines(tokenizer, lines)
        if isinstance(tokenizer, WordTokenizer)
        else encode_text(tokenizer, "".join(lines))
    )


def encode_pieces(tokenizer: Tokenizer, pieces: Sequence[str], *, opening: bool) -> list[list[int]]:
    """Pieces of a text that end with lines, each by itself, so that a text of any size can be encoded.

    A subword tokenizer puts a blank before a text. Before a piece that follows a line's end there is none, so it is
    encoded with the line's end, whose tokens are taken off again.

    Args:
        opening: whether the first piece is the beginning of the text.
    """
    if isinstance(tokenizer, WordTokenizer):
        return [encode_lines(tokenizer, split_lines(piece)).tolist() for piece in pieces]
    if not isinstance(tokenizer, LosslessTokenizer) or not tokenizer.prefix:
        return tokenizer.encode_batch(pieces)
    before = [opening and n == 0 for n in range(len(pieces))]
    encoded = tokenizer.encode_batch(
        [piece if first else f"\n{piece}" for piece, first in zip(pieces, before, strict=True)]
    )
    return [
        ids if first else without_line_end(tokenizer, ids) or tokenizer.encode(piece)
        for piece, first, ids in zip(pieces, before, encoded, strict=True)
    ]


def without_line_end(tokenizer: LosslessTokenizer, ids: list[int]) -> list[int]:
    """The ids behind the line's end that a text begins with; none if a token spells more than that end."""
    size, wanted = 0, len(f"{tokenizer.prefix}\n".encode())
    for number, one in enumerate(ids):
        if size >= wanted:
            return ids[number:] if size == wanted else []
        size += sum(map(len, tokenizer.ids_to_bytes([one])))
    return []


def split_lines(text: str) -> list[str]:
    """With their ends; a line ends in \\n and nowhere else."""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])


# --- blocks ---


@dataclass(frozen=True, eq=False)
class LMBlock:
    """Rows of the stream. A model reads `inputs` and predicts `targets`, of which `loss_mask` counts.

    In a row, inputs[t + 1] is targets[t]. A short row is filled with PAD on its right, where the loss mask is False.

    Examples:
        >>> block = next(sliding_windows(torch.tensor([5, 6, 7, 8]), length=4, stride=2))
        >>> block.inputs, block.targets
        (tensor([[1, 5, 6, 7]]), tensor([[5, 6, 7, 8]]))
        >>> block.tokens
        4
    """

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    loss_mask: Bool[Tensor, "b t"]

    def to(self, device: torch.device | str) -> "LMBlock":
        return LMBlock(*(part.to(device, non_blocking=True) for part in (self.inputs, self.targets, self.loss_mask)))

    @property
    def tokens(self) -> int:
        """How many targets count. Read it before `to`: on a GPU it would synchronise."""
        return int(self.loss_mask.sum())

    @property
    def context_length(self) -> int:
        """How many columns stand before the first target that counts. Read it before `to`, likewise."""
        return int(self.loss_mask.any(0).int().argmax())

    def __len__(self) -> int:
        return len(self.inputs)


# The targets of a row: from `start` to `stop`, of which those from `fresh` on count.
Span = tuple[int, int, int]


def cut_rows(stream: Int[Tensor, " n"] | TokenStream, spans: Sequence[Span], length: int) -> LMBlock:
    """The rows of a stream that begins with BOS, each padded to `length`."""
    start, fresh, stop = rearrange(torch.tensor(spans), "b edge -> edge b 1")
    at = start + torch.arange(length)
    inside = at < stop
    at = at.clamp(max=len(stream) - 2)
    inputs, targets = (torch.where(inside, ids_at(stream, places), PAD) for places in (at, at + 1))
    return LMBlock(inputs, targets, inside & (at >= fresh))


def ids_at(stream: Int[Tensor, " n"] | TokenStream, places: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    return stream[places] if isinstance(stream, Tensor) else torch.from_numpy(stream[places.numpy()])


class BlockOrder(StrEnum):
    """In which order training reads the blocks.

    Examples:
        >>> list(BlockOrder)
        [<BlockOrder.SHUFFLED: 'shuffled'>, <BlockOrder.SEQUENTIAL: 'onward'>]
        >>> LMBlocks(torch.arange(4, 104), length=10, rows=2, order=BlockOrder.SEQUENTIAL).at(0, 0)[0].inputs[:, :4]
        tensor([[ 1,  4,  5,  6],
                [53, 54, 55, 56]])
    """

    SHUFFLED = "shuffled"  # cut at a random offset and shuffled in every epoch
    SEQUENTIAL = "onward"  # the rows of a step continue those of the step before


class TrainingBlocks(ABC):
    """Abstract: blocks to train on; a step is a function of (seed, epoch, index), so training can resume at any."""

    length: int
    rows: int
    """So many blocks make a step."""
    micro_batch_rows: int | None
    """At most so many in a micro-batch; the gradients of a step's micro-batches are added up."""
    seed: int
    context_length: int
    """So many tokens before each block are read as well, as context only: they do not count."""

    @abstractmethod
    def steps(self, epoch: int) -> int:
        """How many steps the epoch has: one more or less, since the offset changes."""

    @abstractmethod
    def _spans(self, epoch: int, index: int) -> list[Span]:
        """The blocks of a step: where the text of each begins, its first target, and the one behind its last."""

    @property
    @abstractmethod
    def _stream(self) -> Int[Tensor, " n"] | TokenStream: ...

    def at(self, epoch: int, index: int) -> list[LMBlock]:
        """The micro-batches of a step."""
        if epoch < 0 or not 0 <= index < self.steps(epoch):
            raise ValueError(f"epoch={epoch} and index={index} count from 0, and an index is below `steps(epoch)`")
        with_context = [
            (max(fresh - self.context_length, begin), fresh, stop) for begin, fresh, stop in self._spans(epoch, index)
        ]
        return [
            cut_rows(self._stream, part, self.context_length + self.length)
            for part in split_spans(with_context, self.micro_batch_rows or len(with_context))
        ]

    def _check_sizes(self) -> None:
        for name, number in (("length", self.length), ("rows", self.rows), ("micro_batch_rows", self.micro_batch_rows)):
            if number is not None and number < 1:
                raise ValueError(f"{name}={number} must be at least 1")
        if self.context_length < 0:
            raise ValueError(f"context_length={self.context_length} must be at least 0")


@dataclass(frozen=True, eq=False)
class LMBlocks(TrainingBlocks):
    """Training blocks of a language model: every target once in an epoch, whatever the length and the offset.

    Examples:
        >>> blocks = LMBlocks(torch.arange(4, 104), length=10, rows=4)
        >>> steps = [blocks.at(epoch=0, index=index) for index in range(blocks.steps(epoch=0))]
        >>> [[tuple(block.inputs.shape) for block in step] for step in steps]
        [[(4, 10)], [(4, 10)], [(3, 10)]]
        >>> sum(block.tokens for step in steps for block in step)
        100
    """

    ids: Int[Tensor, " n"] = field(repr=False)
    length: int
    _: KW_ONLY
    rows: int = 32
    micro_batch_rows: int | None = None
    order: BlockOrder = BlockOrder.SHUFFLED
    seed: int = 0
    context_length: int = 0

    def __post_init__(self):
        self._check_sizes()
        if self.order not in list(BlockOrder):
            raise ValueError(f"order={self.order!r} is no order of blocks; choose from {', '.join(BlockOrder)}")
        assert (
            len(self._stream) > 1
        )  # computed now, so that an invalid stream is an error here and not at the first step
        if self.order == BlockOrder.SEQUENTIAL and len(self.ids) < self.rows:
            raise ValueError(f"{len(self.ids)} tokens cannot fill {self.rows} rows side by side; take fewer rows")

    def steps(self, epoch):
        if self.order == BlockOrder.SEQUENTIAL:
            return math.ceil(math.ceil(len(self.ids) / self.rows) / self.length)
        return math.ceil(self._count(epoch) / self.rows)

    def _spans(self, epoch, index):
        return self._sequential_spans(index) if self.order == BlockOrder.SEQUENTIAL else self._shuffled(epoch, index)

    @cached_property
    def _stream(self) -> Int[Tensor, " n"]:  # type: ignore[override]
        return prepend_bos(self.ids)

    def _cuts(self, epoch: int) -> "TextCuts":
        return TextCuts.of(len(self.ids), self.length, combine_seeds(self.seed, epoch, 0))

    def _count(self, epoch: int) -> int:
        return self._cuts(epoch).blocks

    def _shuffled(self, epoch: int, index: int) -> list[Span]:
        indices = permutation(combine_seeds(self.seed, epoch, 1), self._count(epoch))[
            index * self.rows : (index + 1) * self.rows
        ]
        return [(0, *self._cuts(epoch).bounds(number)) for number in indices]

    def _sequential_spans(self, index: int) -> list[Span]:
        edges = pairwise(row * len(self.ids) // self.rows for row in range(self.rows + 1))
        rest = [(start + index * self.length, stop) for start, stop in edges]
        return [(0, start, min(start + self.length, stop)) for start, stop in rest]


@dataclass(frozen=True)
class TextCuts:
    """Where a text of so many targets is cut into blocks: all as long but for the first and the last."""

    targets: int
    length: int
    first: int
    """How long the first block is: the offset of those after it."""

    @staticmethod
    def of(targets: int, length: int, seed: int) -> "TextCuts":
        """At an offset that the seed says."""
        return TextCuts(targets, length, 1 + random_key(seed, 0) % length)

    @property
    def blocks(self) -> int:
        return 1 + math.ceil(max(self.targets - self.first, 0) / self.length)

    def bounds(self, number: int) -> tuple[int, int]:
        """The first target of a block, and the one behind its last."""
        stop = self.first + number * self.length
        return max(stop - self.length, 0), min(stop, self.targets)


@dataclass(frozen=True, eq=False)
class MixtureBlocks(TrainingBlocks):
    """Training blocks of prepared corpora, as `LMBlocks` cuts them, with a computed order: nothing is held of a block.

    Every pass over a corpus cuts it at another offset and takes its blocks in another order. An epoch is a pass over
    each corpus, or, with weights, as many passes and parts of one as its weight asks for; the next goes on there.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from regard.data import TextMixture
        >>> from regard.data.token_files import write_corpus, write_text_shard
        >>> shard = write_text_shard(Path("prepared/text/00000.tokens"), np.arange(4, 104), id_bytes=2)
        >>> about = {"content": "text", "vocabulary": "mine", "text": {}, "texts": 1, "characters": 300}
        >>> write_corpus(Path("prepared/text"), [shard], about)
        >>> blocks = MixtureBlocks(TextMixture.open(["prepared/text"]), length=10, rows=4)
        >>> steps = [blocks.at(epoch=0, index=index) for index in range(blocks.steps(epoch=0))]
        >>> sum(block.tokens for step in steps for block in step)
        100
    """

    mixture: TextMixture
    length: int
    _: KW_ONLY
    rows: int = 32
    micro_batch_rows: int | None = None
    seed: int = 0
    context_length: int = 0

    def __post_init__(self):
        self._check_sizes()

    @property
    def _stream(self):
        return self.mixture.stream

    def steps(self, epoch):
        return math.ceil(epoch_passes(self, epoch)[-1].stop / self.rows)

    def cuts(self, corpus: int, number: int) -> TextCuts:
        """Those of a pass over a corpus."""
        return TextCuts.of(self.mixture.corpora[corpus].ids, self.length, combine_seeds(self.seed, corpus, number, 0))

    def _spans(self, epoch, index):
        passes = epoch_passes(self, epoch)
        here = np.arange(index * self.rows, min((index + 1) * self.rows, passes[-1].stop))
        places = permute(combine_seeds(self.seed, epoch, 1), passes[-1].stop, here)
        stops = np.array([one.stop for one in passes])
        chosen = [passes[number] for number in np.searchsorted(stops, places, "right")]
        cuts = [self.cuts(one.corpus, one.number) for one in chosen]
        seeds = np.array([combine_seeds(self.seed, one.corpus, one.number, 2) for one in chosen], np.uint64)
        firsts = np.array([one.first - one.stop + one.blocks for one in chosen])
        numbers = permute(seeds, np.array([one.blocks for one in cuts]), places + firsts).tolist()
        begins = [int(self._stream.text_starts[one.corpus]) for one in chosen]
        bounds = [one.bounds(number) for one, number in zip(cuts, numbers, strict=True)]
        return [(begin, begin + start, begin + stop) for begin, (start, stop) in zip(begins, bounds, strict=True)]


@dataclass(frozen=True)
class CorpusPass:
    """What an epoch sees of a pass over a corpus: so many blocks in its order, from the first on.

    Args:
        stop: how many blocks the epoch has up to the last of these.
    """

    corpus: int
    number: int
    first: int
    blocks: int
    stop: int


@lru_cache(maxsize=2)  # every step of an epoch asks for the same
def epoch_passes(blocks: MixtureBlocks, epoch: int) -> list[CorpusPass]:
    """An epoch sees `repeats` passes over each corpus; the last of it and the first of the next may be one pass."""
    found: list[CorpusPass] = []
    stop = 0
    for corpus, repeats in enumerate(map(Fraction, blocks.mixture.repeats)):
        begin, end = epoch * repeats, (epoch + 1) * repeats
        for number in range(math.floor(begin), math.ceil(end)):
            count = blocks.cuts(corpus, number).blocks
            first, last = (math.ceil(min(max(edge - number, 0), 1) * count) for edge in (begin, end))
            if last > first:
                stop += last - first
                found.append(CorpusPass(corpus, number, first, last - first, stop))
    return found


def split_spans(spans: Sequence[Span], most: int) -> list[Sequence[Span]]:
    return [spans[start : start + most] for start in range(0, len(spans), most)]


@lru_cache(maxsize=2)  # every step of an epoch asks for the same
def permutation(seed: int, count: int) -> tuple[int, ...]:
    """The numbers below `count`, shuffled."""
    return tuple(np.argsort(random_keys(seed, count), kind="stable").tolist())


# --- evaluation ---


def sliding_windows(ids: Int[Tensor, " n"], length: int, stride: int, *, rows: int = 1) -> Iterator[LMBlock]:
    """Blocks in which every target is scored exactly once, `rows` windows in each.

    A window reads at most `length` tokens and begins `stride` after the one before. It scores what that one did not
    reach: its last `stride` targets, or all of them if it is the first. Their context: `describe_context`.

    Examples:
        >>> windows = list(sliding_windows(torch.arange(4, 10), length=4, stride=2))
        >>> [window.targets.tolist() for window in windows]
        [[[4, 5, 6, 7]], [[6, 7, 8, 9]]]
        >>> [window.loss_mask.long().tolist() for window in windows]
        [[[1, 1, 1, 1]], [[0, 0, 1, 1]]]
    """
    if not 1 <= stride <= length or rows < 1:
        raise ValueError(f"stride={stride} lies in 1 to length={length}, and rows={rows} is at least 1")
    stream, total = prepend_bos(ids), len(ids)
    starts = range(0, max(total - length, 0) + stride, stride)
    spans = [(start, start if start == 0 else start - stride + length, min(start + length, total)) for start in starts]
    return (cut_rows(stream, part, min(length, total)) for part in split_spans(spans, rows))


def describe_context(length: int, stride: int) -> str:
    """The context from which `sliding_windows` predicts each token, in words."""
    least = length - stride + 1
    context = f"{length}" if least == length else f"{least} to {length}"
    return f"every token once, from the {context} before it (from all, where fewer stand before it)"


def prepend_bos(ids: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """The stream with BOS before it, if it can be one."""
    if ids.dim() != 1 or ids.is_floating_point() or not len(ids):
        raise ValueError(f"a stream is a row of whole numbers, at least one, not {tuple(ids.shape)} of {ids.dtype}")
    if (ids == PAD).any():
        raise ValueError(f"id {PAD} is padding and cannot occur inside a text")
    return torch.cat((ids.new_tensor([BOS]), ids)).long()


def count_words(lines: Iterable[str]) -> int:
    """Words between spaces, and one for every line end, as WikiText's perplexities count them."""
    return sum(len(line.split()) + 1 for line in lines)


def bits_per_byte(nats: float, bytes: int) -> float:
    """From the summed loss of a whole text and its size in UTF-8, whatever the tokenizer.

    A model that gives every byte the same probability needs ln 256 nats for each, and these are 8 bits.

    Examples:
        >>> from math import log
        >>> bits_per_byte(nats=1000 * log(256), bytes=1000)
        8.0
    """
    return nats / require_positive(bytes, "bytes") / math.log(2)


def perplexity_per_word(nats: float, words: int) -> float:
    """From the summed loss of a whole text and its number of words, whatever the tokenizer.

    A model that gives every word the probability 1/100 has the perplexity 100. A tokenizer that writes UNK for words it
    does not know makes the text easier, so there must be none.

    Examples:
        >>> from math import log
        >>> round(perplexity_per_word(nats=50 * log(100), words=50), 6)
        100.0
    """
    try:
        return math.exp(nats / require_positive(words, "words"))
    except OverflowError:
        return math.inf


def require_positive(number: int, what: str) -> int:
    if number < 1:
        raise ValueError(f"{number} {what}: there is no text to share the loss among")
    return number
