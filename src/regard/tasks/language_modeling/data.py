"""Language modeling data: the settings of a run, and its running text, line by line."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from regard.data.corpora.download import corpus_path
from regard.data.lm_blocks import read_text
from regard.models.config import LanguageModelConfig
from regard.tasks.config import DataSettings, RunSettings, TokenizerSettings
from regard.tasks.splits import HELD_OUT, ExampleReaders, LoadedExamples, Split, read_examples
from regard.train.config import TrainSettings
from regard.world import World

SHAKESPEARE = "tinyshakespeare"  # one text, of which everybody trains on the first nine tenths of the characters


@dataclass(frozen=True, kw_only=True)
class LanguageModelingData(DataSettings):
    """Running text; files are plain text. It is learnt in blocks of train.max_length tokens."""

    lead: int = 0  # tokens before each block that are read for their context, and not learnt
    sentences: int = 20_000  # for the world: how many, and of how many words
    min_length: int = 3
    max_length: int = 12

    def __post_init__(self):
        if self.lead < 0:
            raise ValueError(f"data.lead = {self.lead} should be at least 0")


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How a text is read to be measured."""

    stride: int = 0  # from window to window of train.max_length tokens; 0 is half a window. Recurrent models need none
    cache: int = 0  # words that a continuous cache remembers; it is chosen on held-out text at the end of training

    def __post_init__(self):
        for name, value in (("stride", self.stride), ("cache", self.cache)):
            if value < 0:
                raise ValueError(f"measure.{name} = {value} should be at least 0")


@dataclass(frozen=True, kw_only=True)
class LanguageModelingSettings(RunSettings):
    """Of writing."""

    task: ClassVar[str] = "language_modeling"

    data: LanguageModelingData = field(default_factory=LanguageModelingData)
    text: TokenizerSettings = field(default_factory=TokenizerSettings)
    model: LanguageModelConfig = field(default_factory=lambda: LanguageModelConfig.from_size("transformer", "tiny"))
    train: TrainSettings = field(default_factory=lambda: TrainSettings(label_smoothing=0.0))
    measure: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self):
        if self.text.language and self.text.kind != "words":
            raise ValueError(
                f"text.language = {self.text.language!r} takes the blanks and line ends out of a text, and a model of "
                f"{self.text.kind} would never write one; leave it out, or use text.kind = 'words'"
            )
        if self.train.batch_size < self.train.max_length:
            raise ValueError(
                f"train.batch_size = {self.train.batch_size} has no room for a block of train.max_length = "
                f"{self.train.max_length} tokens; make the block shorter, or the batch larger"
            )
        if self.measure.stride > self.train.max_length:
            raise ValueError(
                f"measure.stride = {self.measure.stride} would leave tokens out between windows of train.max_length = "
                f"{self.train.max_length}; choose at most that"
            )

    @classmethod
    def of_world(cls):
        """Sentences of the miniature world, in a minute."""
        return cls(
            data=LanguageModelingData(sentences=40_000),
            text=TokenizerSettings(kind="words"),
            model=LanguageModelConfig(
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
                batch_size=512,
                max_length=64,
                learning_rate=6e-3,
                warmup_steps=50,
                label_smoothing=0.0,
                weight_decay=0.1,
                validate_every=500,
            ),
        )


def read_lines_of_split(data: LanguageModelingData, split: Split, folder: Path | None = None) -> LoadedExamples[str]:
    """The lines of a split, each with its end: together they are the text, letter by letter."""
    world = World(min_length=data.min_length, max_length=data.max_length)
    parted = data.corpus == "files" and not data.valid and split != "test"

    def of_files(paths: Sequence[str]) -> LoadedExamples[str]:
        text = "".join(with_final_newline(read_text(path)) for path in paths)
        if not text.strip():
            raise ValueError(f"{' and '.join(paths)}: there is no text; give at least one word")
        return LoadedExamples(split_lines(split_text(text, split) if parted else text))

    def of_known(name: str, split: Split, folder: Path | None) -> list[str]:
        if name != SHAKESPEARE:
            return split_lines(read_text(corpus_path(name, split, folder)))
        if split == "test":
            raise ValueError(f"{name} has no split 'test'; it has train, valid")
        text = read_text(corpus_path(name, "whole", folder))
        nine = len(text) * 9 // 10
        return split_lines(text[:nine] if split == "train" else text[nine:])

    sources = ExampleReaders(
        world=lambda split, count: [
            f"{' '.join(world.sentence(number, split).words)}\n" for number in range(count or data.sentences)
        ],
        files=of_files,
        known=of_known,
        examples="lines",
        files_hint=lambda split: f'{split} = ["{split}.txt"], or on the command line --{split} {split}.txt',
    )
    if parted and data.train:  # a text is cut once: of every hundredth line nothing would stand before it
        return of_files(data.train)
    return read_examples(sources, data, split, folder)


def with_final_newline(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def split_text(text: str, split: Split) -> str:
    """Of a text without one to validate on the last hundredth is held out, from the beginning of a word."""
    at = len(text) - max(1, len(text) // HELD_OUT)
    at = 1 + max(text.rfind(blank, 0, at) for blank in " \n")
    found = text[:at] if split == "train" else text[at:]
    if not found.strip():
        raise ValueError(f"no text is left for {split}; give more, or files of its own: --valid valid.txt")
    return found


def split_lines(text: str) -> list[str]:
    """With their ends; a line ends in \\n and nowhere else."""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])
