"""Running text in; the blocks a language model learns from and the windows it is measured on, out.

    ids = text_ids(tokeniser, read_text("input.txt.xz"))
    Blocks(ids, length=256, rows=64, seed=0).at(epoch, index)   what a step of training reads (train.loop.Data)
    for block in windows(ids, length=256, stride=128): ...      every token once, with a context that can be told

The stream of n tokens begins with BOS, so that the first token is predicted as well: n targets, none of them lost.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from regard.text.files import decoded, existing, opened
from regard.text.order import key, keys, seeded
from regard.text.vocabulary import BOS, EOS, PAD, Tokeniser, Words


def read_text(path: str | Path) -> str:
    """The whole file, plain, .gz or .xz, as it is: only \\r\\n becomes \\n, and a byte-order mark goes."""
    path, last = existing(path), b""

    def noting(lines: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal last
        for line in lines:
            last = line
            yield line

    try:
        with opened(path) as file:
            text = "\n".join(decoded(noting(file), str(path)))  # a text may be one line
    except OSError as error:
        raise ValueError(f"{path}: cannot be opened ({error.strerror}); check who may read it") from None
    return text + "\n" if last.endswith(b"\n") else text


def text_ids(tokeniser: Tokeniser, text: str) -> Int[Tensor, " n"]:
    """One text as a stream of ids, line ends and all; `Words` loses those: see `line_ids`."""
    return torch.tensor(tokeniser.encode(text), dtype=torch.long)


def line_ids(tokeniser: Tokeniser, lines: Iterable[str]) -> Int[Tensor, " n"]:
    """Lines as a stream of ids with EOS after each, as word-level corpora (WikiText) are counted: see `words_in`."""
    return torch.tensor([one for ids in tokeniser.encode_all(lines) for one in (*ids, EOS)], dtype=torch.long)


def stream_of(tokeniser: Tokeniser, lines: Sequence[str]) -> Int[Tensor, " n"]:
    """Lines with their ends, as they stand in a text: `Words` reads them one by one, others letter by letter."""
    return line_ids(tokeniser, lines) if isinstance(tokeniser, Words) else text_ids(tokeniser, "".join(lines))


# --- blocks ---


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of the stream. A model reads `inputs` and predicts `targets`, of which those `scored` count.

    In a row, inputs[t + 1] is targets[t]. A short row is filled with PAD on its right, where nothing is scored.
    """

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    scored: Bool[Tensor, "b t"]

    def to(self, device: torch.device | str) -> "Block":
        return Block(*(part.to(device, non_blocking=True) for part in (self.inputs, self.targets, self.scored)))

    @property
    def tokens(self) -> int:
        """How many targets count. Ask before `to`: a GPU would have to be waited for."""
        return int(self.scored.sum())

    @property
    def lead(self) -> int:
        """How many columns stand before the first target that counts. Ask before `to`, likewise."""
        return int(self.scored.any(0).int().argmax())

    def __len__(self) -> int:
        return len(self.inputs)


# The targets of a row: from `start` to `stop`, of which those from `fresh` on count.
Span = tuple[int, int, int]


def cut(stream: Int[Tensor, " n"], spans: Sequence[Span], length: int) -> Block:
    """The rows of a stream that begins with BOS, each filled up to `length`."""
    start, fresh, stop = rearrange(torch.tensor(spans), "b edge -> edge b 1")
    at = start + torch.arange(length)
    inside = at < stop
    at = at.clamp(max=len(stream) - 2)
    inputs, targets = torch.where(inside, stream[at], PAD), torch.where(inside, stream[at + 1], PAD)
    return Block(inputs, targets, inside & (at >= fresh))


class Order(StrEnum):
    """In which order training reads the blocks."""

    SHUFFLED = "shuffled"  # cut at a random offset and mixed, anew in every epoch
    ONWARD = "onward"  # the rows of a step go on where those of the step before ended


@dataclass(frozen=True, eq=False)
class Blocks:
    """What a language model learns from: every target once in an epoch, whatever the length and the offset.

    A step is a function of (seed, epoch, index) and nothing else, so that training can go on from any.
    """

    ids: Int[Tensor, " n"] = field(repr=False)
    length: int
    _: KW_ONLY
    rows: int = 32
    """So many blocks make a step."""
    at_once: int | None = None
    """At most so many in a micro-batch; the gradients of a step's micro-batches are added up."""
    order: Order = Order.SHUFFLED
    seed: int = 0
    lead: int = 0
    """So many tokens before each block are read as well, for their context alone: they do not count."""

    def __post_init__(self):
        for name, number in (("length", self.length), ("rows", self.rows), ("at_once", self.at_once)):
            if number is not None and number < 1:
                raise ValueError(f"{name}={number} must be at least 1")
        if self.lead < 0:
            raise ValueError(f"lead={self.lead} must be at least 0")
        if self.order not in list(Order):
            raise ValueError(f"order={self.order!r} is no order of blocks; choose from {', '.join(Order)}")
        assert len(self._stream) > 1  # asked for now, so that what is no stream is told here and not at the first step
        if self.order == Order.ONWARD and len(self.ids) < self.rows:
            raise ValueError(f"{len(self.ids)} tokens cannot fill {self.rows} rows side by side; take fewer rows")

    def steps(self, epoch: int) -> int:
        """How many steps the epoch has: one more or less, since the offset changes."""
        if self.order == Order.ONWARD:
            return math.ceil(math.ceil(len(self.ids) / self.rows) / self.length)
        return math.ceil(self._count(epoch) / self.rows)

    def at(self, epoch: int, index: int) -> list[Block]:
        """The micro-batches of a step."""
        if epoch < 0 or not 0 <= index < self.steps(epoch):
            raise ValueError(f"epoch={epoch} and index={index} count from 0, and an index is below `steps(epoch)`")
        spans = self._onward(index) if self.order == Order.ONWARD else self._shuffled(epoch, index)
        led = [(max(start - self.lead, 0), fresh, stop) for start, fresh, stop in spans]
        return [cut(self._stream, some, self.lead + self.length) for some in shares(led, self.at_once or len(led))]

    @cached_property
    def _stream(self) -> Int[Tensor, " n"]:
        return begun(self.ids)

    def _first(self, epoch: int) -> int:
        """How long the first block of an epoch is: the random offset of those behind it."""
        return 1 + key(seeded(self.seed, epoch, 0), 0) % self.length

    def _count(self, epoch: int) -> int:
        return 1 + math.ceil(max(len(self.ids) - self._first(epoch), 0) / self.length)

    def _shuffled(self, epoch: int, index: int) -> list[Span]:
        mine = turns(seeded(self.seed, epoch, 1), self._count(epoch))[index * self.rows : (index + 1) * self.rows]
        first = self._first(epoch)
        stops = [first + turn * self.length for turn in mine]
        starts = [max(stop - self.length, 0) for stop in stops]
        return [(start, start, min(stop, len(self.ids))) for start, stop in zip(starts, stops, strict=True)]

    def _onward(self, index: int) -> list[Span]:
        edges = pairwise(row * len(self.ids) // self.rows for row in range(self.rows + 1))
        rest = [(start + index * self.length, stop) for start, stop in edges]
        return [(start, start, min(start + self.length, stop)) for start, stop in rest]


def shares(spans: Sequence[Span], most: int) -> list[Sequence[Span]]:
    return [spans[start : start + most] for start in range(0, len(spans), most)]


@lru_cache(maxsize=2)  # every step of an epoch asks for the same
def turns(seed: int, count: int) -> tuple[int, ...]:
    """The numbers below `count`, shuffled."""
    return tuple(np.argsort(keys(seed, count), kind="stable").tolist())


# --- measuring ---


def windows(ids: Int[Tensor, " n"], length: int, stride: int, *, rows: int = 1) -> Iterator[Block]:
    """Blocks in which every target is scored exactly once, `rows` windows in each.

    A window reads at most `length` tokens and begins `stride` after the one before. It scores what that one did not
    reach: its last `stride` targets, or all of them if it is the first. How much context they have, `context` tells.
    """
    if not 1 <= stride <= length or rows < 1:
        raise ValueError(f"stride={stride} lies in 1 to length={length}, and rows={rows} is at least 1")
    stream, total = begun(ids), len(ids)
    starts = range(0, max(total - length, 0) + stride, stride)
    spans = [(start, start if start == 0 else start - stride + length, min(start + length, total)) for start in starts]
    return (cut(stream, some, min(length, total)) for some in shares(spans, rows))


def context(length: int, stride: int) -> str:
    """What the tokens that `windows` scores have been predicted from."""
    least = length - stride + 1
    told = f"{length}" if least == length else f"{least} to {length}"
    return f"every token once, from the {told} before it (from all, where fewer stand before it)"


def begun(ids: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """The stream with BOS before it, if it can be one."""
    if ids.dim() != 1 or ids.is_floating_point() or not len(ids):
        raise ValueError(f"a stream is a row of whole numbers, at least one, not {tuple(ids.shape)} of {ids.dtype}")
    if (ids == PAD).any():
        raise ValueError(f"id {PAD} means padding and cannot stand inside a text")
    return torch.cat((ids.new_tensor([BOS]), ids)).long()


def words_in(lines: Iterable[str]) -> int:
    """What stands between blanks, and every line's end: so many words do WikiText's perplexities count."""
    return sum(len(line.split()) + 1 for line in lines)


def bits_per_byte(nats: float, bytes: int) -> float:
    """From the summed loss of a whole text and its size in UTF-8, whatever pieces it was cut into.

    A model that gives every byte the same chance needs ln 256 nats for each, and these are 8 bits.
    """
    return nats / counted(bytes, "bytes") / math.log(2)


def perplexity_per_word(nats: float, words: int) -> float:
    """From the summed loss of a whole text and its number of words, whatever pieces they were cut into.

    A model that gives every word the chance 1/100 has the perplexity 100. A tokeniser that writes UNK for words it
    does not know makes the text easier, so there must be none of it.
    """
    try:
        return math.exp(nats / counted(words, "words"))
    except OverflowError:
        return math.inf


def counted(number: int, what: str) -> int:
    if number < 1:
        raise ValueError(f"{number} {what}: there is no text to share the loss among")
    return number
