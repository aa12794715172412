"""Data of sentence lengths: sentences of the miniature world, and whether they have many words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.models.config_base import ConfigBase
from regard.tasks.config import RunSettings
from regard.tasks.splits import LoadedExamples, SentenceData, Split
from regard.training.config import TrainSettings

LABELS = ("short", "long")
Example = tuple[str, int]  # a sentence, and the index of its label


@dataclass(frozen=True, kw_only=True)
class LengthData(SentenceData[Example]):
    examples: ClassVar[str] = "sentences"

    sentences: int = 64

    def from_world(self, split: Split, count: int | None) -> list[Example]:
        return label_by_length(" ".join(sentence.words) for sentence in self.world_sentences(split, None))

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[Example]:
        return LoadedExamples(label_by_length(line for path in paths for line in Path(path).read_text().splitlines()))

    def from_corpus(self, split: Split, folder: Path | None) -> list[Example]:
        raise ValueError(f"{self.corpus} is not for this task")


def label_by_length(texts: Iterable[str]) -> list[Example]:
    return [(text, int(len(text.split()) > 6)) for text in texts]


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

    data: LengthData = LengthData()
    model: LengthConfig = LengthConfig()
    train: TrainSettings = TrainSettings(steps=6, validate_every=3, checkpoint_every=3)

    @classmethod
    def of_world(cls):
        return cls()
