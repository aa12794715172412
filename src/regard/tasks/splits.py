"""Data splits: the table [data] of a run, and the examples of train, valid or test that it stands for."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, Literal, NoReturn, Self, TypeVar, get_args

from regard.data.batching import LongPolicy, TokenBatchSampler
from regard.models.config_base import AT_LEAST_1, Range, Ranges, SettingsTable
from regard.training.config import TrainSettings
from regard.training.corpus import B, Collate, Lengths
from regard.world import Sentence, World
from regard.world.grammar import SHORTEST

Split = Literal["train", "valid", "test"]
HELD_OUT = 100  # of training examples without validation files, every hundredth is held out, of fewer the last
WORLD_TESTS = 1000  # examples of the world to validate on, and as many to test on
E = TypeVar("E")


@dataclass(frozen=True)
class LoadedExamples(Generic[E]):
    """Examples, and what was left out of them in sentences."""

    examples: Sequence[E]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataSettings(SettingsTable, ABC, Generic[E]):
    """Abstract: the table [data]. Where examples come from: the miniature world, files, or a known corpus.

    Args:
        corpus: world, files, or the name of a corpus that `regard data` knows.
        train: paths of files to train on, if the corpus is files; those in a recipe are relative to it.
        valid: the same to validate on; left out, every hundredth training example is held out.
        test: the same for `regard evaluate --split test`.
        skip_empty: leave out empty examples instead of refusing them.
    """

    examples: ClassVar[str]  # what they are called, in the plural
    # how the files of a split are given in a recipe and on the command line
    files_hint: ClassVar[str] = '{split} = ["{split}.txt"], or on the command line --{split} {split}.txt'
    generated: ClassVar[tuple[str, ...]] = ("world",)  # the corpora that `from_world` makes

    corpus: str = "world"
    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    skip_empty: bool = False

    @abstractmethod
    def from_world(self, split: Split, count: int | None) -> list[E]:
        """So many examples of the miniature world; None is as many as the settings say, to train on."""

    @abstractmethod
    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[E]:
        """All that the files of one split hold."""

    @abstractmethod
    def from_corpus(self, split: Split, folder: Path | None) -> list[E]:
        """A split of the known corpus, which the folder holds."""

    def read(self, split: Split, folder: Path | None = None) -> LoadedExamples[E]:
        """The examples of a split; the folder holds known corpora."""
        if split not in get_args(Split):
            raise ValueError(f"a split is one of {', '.join(get_args(Split))}, not {split!r}")
        if self.corpus == "files":
            return self.read_files(split)
        if named := self.train or self.valid or self.test:
            raise ValueError(f"{named[0]} would not be read, since data.corpus = {self.corpus!r}; set it to files")
        if self.corpus in self.generated:
            return LoadedExamples(self.from_world(split, None if split == "train" else WORLD_TESTS))
        return LoadedExamples(self.from_corpus(split, folder))

    def read_files(self, split: Split) -> LoadedExamples[E]:
        held_out = split != "test" and not self.valid
        if not (paths := self.train if held_out else self.paths(split)):
            hint = self.files_hint.replace("--{split}", "--on") if split == "test" else self.files_hint
            raise ValueError(f"data.{split} names no files; e.g. {hint.format(split=split)}")
        found = self.from_files(paths, split)
        if held_out:
            found = LoadedExamples(split_held_out(found.examples, split), found.skipped)
        if not found.examples:
            one = self.examples.removesuffix("s")
            raise ValueError(f"{' and '.join(paths)}: no {one} is left for {split}; give more, or files of its own")
        return found

    def read_nonempty(self, read: Callable[[Callable[[str], object]], Iterable[E]]) -> LoadedExamples[E]:
        """What `read` yields; it calls its argument with a sentence that tells where an example is empty."""
        skipped: list[str] = []
        found = list(read(skipped.append if self.skip_empty else refuse_empty))
        return LoadedExamples(found, tuple(skipped))

    def paths(self, split: Split) -> tuple[str, ...]:
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def with_absolute_paths(self, folder: Path) -> Self:
        train, valid, test = (
            tuple(os.path.abspath(folder / path) for path in self.paths(split)) for split in get_args(Split)
        )
        return replace(self, train=train, valid=valid, test=test)


@dataclass(frozen=True, kw_only=True)
class SentenceData(DataSettings[E]):
    """Abstract: examples that are made of the sentences of the miniature world.

    Args:
        sentences: how many of the miniature world to train on.
        min_length: words of the miniature world's shortest sentences.
        max_length: words of the miniature world's longest sentences.
    """

    ranges: ClassVar[Ranges] = {
        "sentences": AT_LEAST_1,
        **dict.fromkeys(("min_length", "max_length"), Range(SHORTEST)),
    }

    sentences: int = 20_000
    min_length: int = 3
    max_length: int = 12

    def world_sentences(self, split: Split, count: int | None) -> Iterator[Sentence]:
        world = World(min_length=self.min_length, max_length=self.max_length)
        return (world.sentence(number, split) for number in range(count or self.sentences))


def split_held_out(examples: Sequence[E], split: Split, every: int = HELD_OUT) -> list[E]:
    """Where nobody set examples aside to validate on: each hundredth, or of fewer the last; the rest is to train on."""
    held_out = set(range(every - 1, len(examples), every)) or {len(examples) - 1}
    return [one for n, one in enumerate(examples) if (n in held_out) == (split == "valid")]


def drop_long(examples: Sequence[E], lengths: Lengths[E], train: TrainSettings) -> list[E]:
    """Held-out examples within `train.max_length`."""
    fitting = [one for one, sides in zip(examples, lengths(examples), strict=True) if max(sides) <= train.max_length]
    if not fitting:
        raise ValueError(
            f"of {len(examples)} held-out examples none is within train.max_length = {train.max_length}; raise it"
        )
    return fitting


def iterate_batches(
    examples: Sequence[E], lengths: Lengths[E], collate: Collate[E, B], *, tokens: int = 8192, device: str = "cpu"
) -> Iterator[tuple[list[int], B, int]]:
    """Every example once, similar lengths together: which they are, their batch, and its predictions."""
    for rows in TokenBatchSampler(lengths(examples), tokens=tokens, long=LongPolicy.ALONE).epoch(0):
        batch = collate([examples[row] for row in rows])
        yield rows, batch.to(device), batch.tokens


def refuse_empty(sentence: str) -> NoReturn:
    raise ValueError(f"{sentence}; fill it in, remove it, or train with --set data.skip_empty=true")
