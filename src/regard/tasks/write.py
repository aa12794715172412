"""Running text in; a language model of it out, measured by what held-out text costs it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.models.reading_config import RECURRENT, WriterConfig
from regard.models.seq2seq import Tokens, everywhere
from regard.models.writer import Writer
from regard.tasks.corpus import sent
from regard.tasks.job import Job
from regard.tasks.kept import Kept, settings_in
from regard.tasks.pointer import Pointer
from regard.tasks.run_folder import run_of
from regard.tasks.settings import ReadingSettings, TrainSettings
from regard.tasks.surprise import Context, Running, Windows, summed
from regard.tasks.tables import Tables
from regard.tasks.texts import WriteData
from regard.tasks.vocabularies import reading
from regard.text.plain import Block, Blocks, stream_of
from regard.text.saved import load_tokeniser
from regard.text.vocabulary import BOS, EOS, Characters, Spelt, Tokeniser, Words

UNSCORED = -100
ROWS = 64  # parts of a held-out text that a recurrent model reads at once while it is trained
LEAST = 1000  # tokens of each


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """How a text is read to be measured."""

    stride: int = 0  # from window to window of train.longest tokens; 0 is half a window. Recurrent models need none
    cache: int = 0  # words that a continuous cache remembers; it is chosen on held-out text at the end of training

    def __post_init__(self):
        for name, value in (("stride", self.stride), ("cache", self.cache)):
            if value < 0:
                raise ValueError(f"measure.{name} = {value} should be at least 0")


@dataclass(frozen=True, kw_only=True)
class WriteSettings(Tables):
    """Of writing."""

    task: ClassVar[str] = "write"

    data: WriteData = field(default_factory=WriteData)
    text: ReadingSettings = field(default_factory=ReadingSettings)
    model: WriterConfig = field(default_factory=lambda: WriterConfig.named("transformer", "tiny"))
    train: TrainSettings = field(default_factory=lambda: TrainSettings(smoothing=0.0))
    measure: MeasureSettings = field(default_factory=MeasureSettings)

    def __post_init__(self):
        if self.text.language and self.text.kind != "words":
            raise ValueError(
                f"text.language = {self.text.language!r} takes the blanks and line ends out of a text, and a model of "
                f"{self.text.kind} would never write one; leave it out, or use text.kind = 'words'"
            )
        if self.train.tokens < self.train.longest:
            raise ValueError(
                f"train.tokens = {self.train.tokens} has no room for a block of train.longest = {self.train.longest} "
                "tokens; make the block shorter, or the batch larger"
            )
        if self.measure.stride > self.train.longest:
            raise ValueError(
                f"measure.stride = {self.measure.stride} would leave tokens out between windows of train.longest = "
                f"{self.train.longest}; choose at most that"
            )

    @classmethod
    def of_world(cls):
        """Sentences of the miniature world, in a minute."""
        return cls(
            data=WriteData(sentences=40_000),
            text=ReadingSettings(kind="words"),
            model=WriterConfig(
                kind="transformer",
                layers=2,
                model=64,
                heads=4,
                hidden=128,
                dropout=0.0,
                recipe='position = "Rotary()"',
            ),
            train=TrainSettings(
                steps=1500,
                tokens=512,
                longest=64,
                rate=6e-3,
                warmup=50,
                smoothing=0.0,
                decay=0.1,
                validate_every=500,
            ),
        )


# --- learning ---


@dataclass(frozen=True, eq=False)
class Stream:
    """The blocks of a text, for every step; with each the number of its targets and of the columns that only lead."""

    blocks: Blocks
    device: str = "cpu"

    def steps(self, epoch: int) -> int:
        return self.blocks.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[Block, int, int]]:
        blocks = self.blocks.at(epoch, index)
        return [(everywhere(lambda part: sent(part, self.device), one), one.tokens, one.lead) for one in blocks]


@dataclass(frozen=True)
class Predicting:
    """Cross-entropy summed over the targets that count, a share `smoothing` of it against the uniform distribution.

    With `consistency`, of two passes under different dropout, and how far they disagree: as in translation.
    """

    smoothing: float = 0.0
    consistency: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[Block, int, int]) -> tuple[Tensor, int]:
        assert isinstance(model, Writer)
        block, tokens, lead = batch
        inputs, wanted = block.inputs, block.targets.masked_fill(~block.scored, UNSCORED)[:, lead:]
        if self.consistency:
            inputs, wanted = (repeat(each, "b t -> (two b) t", two=2) for each in (inputs, wanted))
        table, x = model.output or model.words, led(model, inputs, lead)
        agree = self.consistency or None
        return table.cost(x, model.bias, wanted, smoothing=self.smoothing, ignored=UNSCORED, consistency=agree), tokens


def led(model: Writer, inputs: Tokens, lead: int) -> Float[Tensor, "b t model"]:
    """What tells the words behind the first `lead` tokens, which give their context and learn nothing.

    A state carried over from the step before would come of older weights, and could not be had again after an
    interruption; this one is a function of the step.
    """
    state = model.start(len(inputs))
    if lead:
        # not under no_grad: autocast would keep the weights it casts there, and no gradient would pass them later
        state = model.read(inputs[:, :lead], state)[1].detach()
    return model.read(inputs[:, lead:], state)[0]


@dataclass(frozen=True, eq=False)
class Author(Kept):
    """A language model with the vocabulary it reads and writes, and a cache if one was chosen for it."""

    model: Writer
    words: Tokeniser
    settings: WriteSettings
    pointer: Pointer | None = None

    @staticmethod
    def fresh(lines: Sequence[str], settings: WriteSettings) -> "Author":
        """A vocabulary from the lines, and a model with new weights."""
        return Author.of(reading(lines, settings.text), settings)

    @staticmethod
    def of(words: Tokeniser, settings: WriteSettings) -> "Author":
        torch.manual_seed(settings.train.seed)
        return Author(Writer(settings.model, words.size), words, settings)

    def ids(self, lines: Sequence[str]) -> Int[Tensor, " n"]:
        """The text as a stream; a model of words reads an end behind every line."""
        return stream_of(self.words, lines)

    def beginning(self, text: str) -> tuple[list[int], list[int]]:
        """What is read before a text that is to be gone on with, and its ids; its last line has no end yet.

        Before it stands the end of a line: the beginning of all text is seen once in an epoch, and hardly learnt.
        """
        if isinstance(self.words, Words):
            *lines, rest = text.split("\n")
            return [EOS], [*self.ids(lines).tolist(), *self.words.encode(rest)]
        if isinstance(self.words, Characters) and "\n" not in self.words.vocabulary:  # the text had but one line
            return [BOS], self.words.encode(text)
        assert isinstance(self.words, Spelt)
        ids = self.words.encode(f"\n{text}")
        ends = accumulate(map(len, self.words.spell(ids)))
        opening = 1 + sum(end < len(self.words.before) + 1 for end in ends)
        return ids[:opening], ids[opening:]

    def job(self, lines: Sequence[str], held_out: Sequence[str], device: str = "cpu", /) -> Job:
        train, held = self.settings.train, self.ids(held_out)
        rows = train.tokens // train.longest
        blocks = Blocks(
            self.ids(lines),
            train.longest,
            rows=rows * train.accumulate,
            at_once=rows,
            seed=train.seed,
            lead=self.settings.data.lead,
        )
        return Job(
            self.model.to(device),
            Stream(blocks, device),
            Predicting(train.smoothing, train.consistency),
            lambda model: validation(model, held, self.quickly(len(held))),
            train,
            self.settings.model.model,
            self.describe,
            unrecorded="",
        )

    # --- measuring ---

    @property
    def span(self) -> int:
        """How many tokens a block and its lead have: more of a text it never learnt from at once."""
        return self.settings.data.lead + self.settings.train.longest

    @property
    def context(self) -> Context:
        """How a text is measured."""
        stride = self.settings.measure.stride or max(1, self.span // 2)
        return Running() if self.recurrent else Windows(self.span, stride)

    def quickly(self, tokens: int) -> Context:
        """How it is measured again and again while the model is trained: a little dearer, since less stands before."""
        rows = max(1, min(ROWS, tokens // LEAST))
        return Running(rows) if self.recurrent else Windows(self.span, self.settings.train.longest)

    @property
    def recurrent(self) -> bool:
        return self.settings.model.kind in RECURRENT

    # --- keeping ---

    @property
    def parts(self) -> dict[str, Tokeniser]:
        return {"words": self.words}

    @classmethod
    def described(cls, folder):
        return Author.of(load_tokeniser(folder / "words.json"), settings_in(folder, WriteSettings))

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", checkpoint: str | int | None = None) -> "Author":
        return replace(super().load(folder, device, checkpoint), pointer=Pointer.load(run_of(Path(folder))[0]))


def validation(model: nn.Module, ids: Int[Tensor, " n"], context: Context) -> dict[str, float]:
    """The mean cost of a held-out token in nats, and its perplexity."""
    assert isinstance(model, Writer)
    loss = summed(context.told(model, ids)) / len(ids)
    return {"loss": loss, "perplexity": math.exp(min(loss, 100.0))}
