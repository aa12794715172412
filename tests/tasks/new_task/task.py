"""Sentence length: its sentences, a tiny model with one attention, its training job, its metrics and its task."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.attention import Alibi, MultiHeadAttention, Padding, Recipe, Sparsemax
from regard.data.batching import pad_rows
from regard.data.tokenizers.base import Tokenizer, WordTokenizer
from regard.data.tokenizers.subwords import load_tokenizer
from regard.models.config_base import ConfigBase
from regard.tasks.config import RunSettings
from regard.tasks.metrics import MetricScore, TaskMetrics
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import EncodedInput, Task, TaskInput, TokenAxis, no_progress
from regard.tasks.splits import LoadedExamples, SentenceData, Split
from regard.training.config import TrainingJob, TrainSettings

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


class LengthModel(nn.Module):
    """One attention over the words, whose mean is classified."""

    def __init__(self, vocabulary: int, model: int, heads: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, model)
        self.attention = MultiHeadAttention(
            model, heads=heads, recipe=Recipe(position=Alibi(heads), normaliser=Sparsemax())
        )
        self.output = nn.Linear(model, len(LABELS))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = self.attention(self.embedding(tokens), pattern=Padding(lengths))
        here = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        return self.output((x * here[..., None]).sum(1))


@dataclass(frozen=True)
class OneBatch:
    """Every step of training is the same batch."""

    batch: tuple[Tensor, Tensor, Tensor]

    def steps(self, epoch: int) -> int:
        return 1

    def at(self, epoch: int, index: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [self.batch]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, int]:
    tokens, lengths, labels = batch
    return cross_entropy(model(tokens, lengths), labels, reduction="sum"), len(labels)


@dataclass(frozen=True, eq=False)
class LengthClassifier(PretrainedModel):
    settings_type = LengthSettings
    part_files: ClassVar = {"tokenizer": ("words", load_tokenizer)}

    model: LengthModel
    tokenizer: Tokenizer
    settings: LengthSettings

    @staticmethod
    def build_model(tokenizer: Tokenizer, settings: LengthSettings) -> LengthModel:
        return LengthModel(tokenizer.size, settings.model.model, settings.model.heads)

    @classmethod
    def from_examples(cls, examples: Sequence[Example], settings: LengthSettings, /) -> "LengthClassifier":
        return cls.from_parts(WordTokenizer.train(text for text, _ in examples), settings=settings)

    def batch(self, examples: Sequence[Example], device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
        tokens, lengths = pad_rows(self.tokenizer.encode_batch(text for text, _ in examples))
        labels = torch.tensor([label for _, label in examples])
        return tokens.to(device), lengths.to(device), labels.to(device)

    def job(self, examples: Sequence[Example], held_out: Sequence[Example], device: str = "cpu", /) -> TrainingJob:
        def validate(model: nn.Module) -> dict[str, float]:
            summed, count = loss(model, self.batch(held_out, device))
            return {"loss": summed.item() / count}

        data, train = OneBatch(self.batch(examples, device)), self.settings.train
        return TrainingJob(self.model.to(device), data, loss, validate, train, self.settings.model.model, self.describe)


@dataclass(frozen=True)
class Accuracy(TaskMetrics):
    outputs: tuple[str, ...]
    right: int

    @property
    def scores(self) -> list[MetricScore]:
        return [MetricScore("accuracy", 100 * self.right / len(self.outputs), f"sentences:{len(self.outputs)}")]

    def table(self) -> str:
        return f"accuracy {100 * self.right / len(self.outputs):.1f} %"

    def to_json(self) -> dict[str, Any]:
        return {"right": self.right}

    def lines(self) -> list[str]:
        return list(self.outputs)


class LengthTask(Task):
    settings = LengthSettings
    task_model = LengthClassifier

    def evaluate(self, task_model: LengthClassifier, examples: Sequence[Example], *, search=None, progress=no_progress):
        tokens, lengths, labels = task_model.batch(examples)
        with torch.no_grad():
            found = task_model.model(tokens, lengths).argmax(-1)
        return Accuracy(tuple(LABELS[n] for n in found.tolist()), int((found == labels).sum()))

    def texts(self, task_model: LengthClassifier, given: TaskInput):
        return [(task_model.tokenizer, given.text)]

    def encode(self, task_model: LengthClassifier, given: TaskInput) -> EncodedInput:
        ids = task_model.tokenizer.encode(given.text)
        given.refuse_long(len(ids))
        tokens, lengths, _ = task_model.batch([(given.text, 0)], str(task_model.model.output.weight.device))
        words = tuple(given.text.split())
        axis = TokenAxis(words, words, tuple(range(len(ids))))
        return EncodedInput((tokens, lengths), {"text": axis}, ("length",))

    def option_name(self, task_model: LengthClassifier, option: int) -> str:
        return LABELS[option]


TASK = LengthTask()
