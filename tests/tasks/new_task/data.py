"""Data of sentence lengths: sentences of the miniature world, and whether they have many words."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from regard.models.config import ConfigBase
from regard.tasks.config import DataSettings, RunSettings
from regard.tasks.splits import ExampleReaders, LoadedExamples, Split, read_examples
from regard.train.config import TrainSettings
from regard.world import World

LABELS = ("short", "long")
Example = tuple[str, int]  # a sentence, and the index of its label


@dataclass(frozen=True, kw_only=True)
class LengthData(DataSettings):
    sentences: int = 64


@dataclass(frozen=True, kw_only=True)
class LengthConfig(ConfigBase):
    choices: ClassVar = {"kind": ("attention",)}
    used_by: ClassVar = {}

    kind: str = "attention"
    model: int = 8
    heads: int = 2

    def __post_init__(self):
        self.check()


@dataclass(frozen=True, kw_only=True)
class LengthSettings(RunSettings):
    task: ClassVar[str] = "sentence_length"

    data: LengthData = field(default_factory=LengthData)
    model: LengthConfig = field(default_factory=LengthConfig)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(steps=6, validate_every=3, checkpoint_every=3))

    @classmethod
    def of_world(cls):
        return cls()


def read_sentences(settings: LengthSettings, split: Split, folder: Path | None = None) -> LoadedExamples[Example]:
    def from_world(split: Split, count: int | None) -> list[Example]:
        texts = [" ".join(World().sentence(n, split).words) for n in range(settings.data.sentences)]
        return [(text, int(len(text.split()) > 6)) for text in texts]

    def from_files(paths):
        lines = [line for path in paths for line in Path(path).read_text().splitlines()]
        return LoadedExamples([(line, int(len(line.split()) > 6)) for line in lines])

    def from_corpus(name, split, folder):
        raise ValueError(f"{name} is not for this task")

    readers = ExampleReaders(from_world, from_files, from_corpus, "sentences", lambda split: f"--{split} {split}.txt")
    return read_examples(readers, settings.data, split, folder)
