"""Language modeling data: the settings of a run, and its running text, line by line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.data.corpora import corpus_path
from regard.data.lm_blocks import read_text
from regard.models.config import LanguageModelConfig
from regard.models.config_base import SettingsTable
from regard.tasks.config import RunSettings, TokenizerSettings, world_training
from regard.tasks.splits import HELD_OUT, LoadedExamples, SentenceData, Split
from regard.training.config import TrainSettings

SHAKESPEARE = "tinyshakespeare"  # one text, of which everybody trains on the first nine tenths of the characters


@dataclass(frozen=True, kw_only=True)
class LanguageModelingData(SentenceData[str]):
    """Running text; files are plain text. It is learnt in blocks of train.max_length tokens.

    The examples are lines, each with its end: together they are the text, letter by letter.

    Args:
        lead: tokens before each block that are read for their context, and not learnt.
    """

    examples: ClassVar[str] = "lines"

    lead: int = 0

    def from_world(self, split: Split, count: int | None) -> list[str]:
        return [f"{' '.join(sentence.words)}\n" for sentence in self.world_sentences(split, count)]

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[str]:
        return LoadedExamples(split_lines(read_texts(paths)))

    def read_files(self, split: Split) -> LoadedExamples[str]:
        if split == "test" or self.valid or not self.train:
            return super().read_files(split)
        # a text is cut once: of every hundredth line nothing would stand before it
        return LoadedExamples(split_lines(split_text(read_texts(self.train), split)))

    def from_corpus(self, split: Split, folder: Path | None) -> list[str]:
        if self.corpus != SHAKESPEARE:
            return split_lines(read_text(corpus_path(self.corpus, split, folder)))
        if split == "test":
            raise ValueError(f"{self.corpus} has no split 'test'; it has train, valid")
        text = read_text(corpus_path(self.corpus, "whole", folder))
        nine = len(text) * 9 // 10
        return split_lines(text[:nine] if split == "train" else text[nine:])


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(SettingsTable):
    """How a text is read to be measured.

    Args:
        stride: tokens from window to window of train.max_length; 0 is half a window. Recurrent models need none.
        cache: words that a continuous cache remembers; its weight is chosen on held-out text at the end of training.
    """

    stride: int = 0
    cache: int = 0


@dataclass(frozen=True, kw_only=True)
class LanguageModelingSettings(RunSettings):
    """The settings of a language model's run.

    [measure] says how a text is evaluated: by which stride of a sliding window, and with how large a cache.
    """

    task: ClassVar[str] = "language_modeling"

    data: LanguageModelingData = LanguageModelingData()
    text: TokenizerSettings = TokenizerSettings()
    model: LanguageModelConfig = LanguageModelConfig.from_size("transformer", "tiny")
    train: TrainSettings = TrainSettings(label_smoothing=0.0)
    measure: EvaluationSettings = EvaluationSettings()

    def __post_init__(self):
        if self.text.language and self.text.kind != "words":
            raise ValueError(
                f"text.language = {self.text.language!r} takes the blanks and line ends out of a text, and a model of "
                f"{self.text.kind} would never write one; leave it out, or use text.kind = 'words'"
            )
        if self.train.batch_size < self.train.max_length:
            raise ValueError(
                f"train.batch_size = {self.train.batch_size} is too small for a block of train.max_length = "
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
                kind="transformer", layers=2, model=64, heads=4, hidden=128, dropout=0.0, recipe='position = "Rotary()"'
            ),
            train=world_training(
                steps=1500,
                batch_size=512,
                max_length=64,
                learning_rate=6e-3,
                warmup_steps=50,
                weight_decay=0.1,
                validate_every=500,
            ),
        )


def read_texts(paths: Sequence[str]) -> str:
    """The files as one text."""
    text = "".join(with_final_newline(read_text(path)) for path in paths)
    if not text.strip():
        raise ValueError(f"{' and '.join(paths)}: there is no text; give at least one word")
    return text


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
