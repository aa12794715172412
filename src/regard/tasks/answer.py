"""Pictures with questions in; a trained model that answers them out, and answers with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.models.answering import AnswerConfig, Answering
from regard.tasks.corpus import sent
from regard.tasks.job import Job
from regard.tasks.kept import Kept, settings_in
from regard.tasks.picture import AT_ONCE
from regard.tasks.questions import AnswerData, Question
from regard.tasks.settings import ReadingSettings, TrainSettings
from regard.tasks.shown import AugmentSettings, Making, Rows, Shown, Shuffled, Told, order, refuse_consistency
from regard.tasks.tables import Tables
from regard.tasks.vocabularies import reading
from regard.text.batches import padded
from regard.text.images import stacked
from regard.text.labelled import Labels
from regard.text.saved import load_tokeniser
from regard.text.sight import Sight
from regard.text.vocabulary import Tokeniser

FILL = 8  # on a GPU: batches whose pictures are as many, in steps of so many, share a recording


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(Tables):
    """Of answering questions about pictures."""

    task: ClassVar[str] = "answer"

    data: AnswerData = field(default_factory=AnswerData)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    text: ReadingSettings = field(default_factory=lambda: ReadingSettings(kind="words", lower=True, language="en"))
    model: AnswerConfig = field(default_factory=AnswerConfig)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(tokens=128))

    def __post_init__(self):
        refuse_consistency(self.train)
        if self.augment.mix() or self.augment.both_ways:
            raise ValueError(
                "[augment] mixup, cutmix and both_ways are for pictures alone: a question is about one picture, and "
                "may ask what is left; leave them out"
            )

    @classmethod
    def of_world(cls):
        """Colours, shapes and numbers in pictures of the miniature world, in a minute."""
        return cls(
            # where compositions are held out, a colour rules the right shape out, and in a minute a model learns no
            # more than to guess the one from the other
            data=AnswerData(pictures=10_000, each=4, held_out="pictures"),
            text=ReadingSettings(kind="words"),
            model=AnswerConfig(layers=1, model=48, heads=4, hidden=96),
            train=TrainSettings(steps=900, tokens=128, rate=3e-3, warmup=100, smoothing=0.0, validate_every=300),
        )


# --- training ---


@dataclass(frozen=True, eq=False)
class AnswerBatch:
    """Pictures as the model reads them, the questions, padded, which picture each is about, and the answers."""

    pixels: Float[Tensor, "p c h w"]
    tokens: Int[Tensor, "b t"]
    lengths: Int[Tensor, " b"]
    about: Int[Tensor, " b"]
    answers: Int[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class Asked:
    """What the device is told of a batch: its pictures, and each question's row and picture."""

    pictures: Told
    questions: Int[Tensor, "b 2"]


@dataclass(frozen=True, eq=False)
class AskedQuestions:
    """The batches of every step. All questions are padded to the longest, for a batch is made on the device.

    Those about one picture come one after the other, so that it is read once for all of them.
    """

    shown: Shown
    pictures: Rows  # of each question
    tokens: Int[Tensor, "n t"]
    lengths: Int[Tensor, " n"]
    answers: Int[Tensor, " n"]
    rows: Shuffled

    def steps(self, epoch: int) -> int:
        return self.rows.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[Asked, int]]:
        fill = FILL if self.tokens.is_cuda else 1
        return [(self.asked(rows, epoch, fill), len(rows)) for rows in self.rows.cut(together(self, epoch), index)]

    def asked(self, rows: Rows, epoch: int, fill: int = 1) -> Asked:
        """Some pictures come again, and are asked nothing, so that their number is a multiple of `fill`."""
        pictures, about = np.unique(self.pictures[rows], return_inverse=True)
        filled = np.resize(pictures, -(-len(pictures) // fill) * fill)
        table = torch.from_numpy(np.stack((rows, about), 1))
        return Asked(self.shown.told(filled, epoch), sent(table, self.tokens.device))

    def made(self, asked: Asked) -> AnswerBatch:
        at, about = asked.questions.unbind(1)
        return AnswerBatch(
            self.shown.scaled(asked.pictures), self.tokens[at], self.lengths[at], about, self.answers[at]
        )


@lru_cache(maxsize=2)
def together(asked: AskedQuestions, epoch: int) -> Rows:
    """All questions, by picture, the pictures in another order every epoch."""
    places = np.argsort(order(asked.rows.seed, epoch, len(asked.shown.pixels)))
    return np.argsort(places[asked.pictures], kind="stable")


def answer_loss(smoothing: float):
    """Cross-entropy summed over the questions."""

    def loss(model: nn.Module, batch: tuple[AnswerBatch, int]) -> tuple[Tensor, int]:
        given, count = batch
        logits = model(given.pixels, given.tokens, given.lengths, given.about).float()
        return cross_entropy(logits, given.answers, reduction="sum", label_smoothing=smoothing), count

    return loss


@dataclass(frozen=True, eq=False)
class Answerer(Kept):
    """A model with how it sees, the vocabulary it reads and the answers it knows."""

    model: Answering
    sight: Sight
    words: Tokeniser
    labels: Labels
    settings: AnswerSettings

    @staticmethod
    def fresh(questions: Sequence[Question], settings: AnswerSettings) -> "Answerer":
        """Size, scale, vocabulary and answers from the questions, and a model with new weights."""
        labels = Labels.of(one.answer for one in questions)
        words = reading((one.text for one in questions), settings.text)
        pictures = dict.fromkeys(one.picture for one in questions)
        sight = Sight.of(stacked((one.name, one.pixels) for one in pictures))
        return Answerer.of(sight, words, labels, settings)

    @staticmethod
    def of(sight: Sight, words: Tokeniser, labels: Labels, settings: AnswerSettings) -> "Answerer":
        torch.manual_seed(settings.train.seed)
        model = Answering(settings.model, shape=sight.shape, words=words.size, answers=len(labels))
        return Answerer(model, sight, words, labels, settings)

    def job(self, questions: Sequence[Question], held_out: Sequence[Question], device: str = "cpu", /) -> Job:
        train = self.settings.train
        rows = {picture: row for row, picture in enumerate(dict.fromkeys(one.picture for one in questions))}
        pictures = np.array([rows[one.picture] for one in questions])
        shown = Shown(self.sight.strictly(list(rows)).to(device), self.sight, self.settings.augment, train.seed)
        tokens, lengths = (part.to(device) for part in padded([self.ids(one.text) for one in questions]))
        answers = self.numbers(questions).to(device)
        data = AskedQuestions(shown, pictures, tokens, lengths, answers, Shuffled.of(len(questions), train))
        self.sight.strictly([one.picture for one in held_out])
        return Job(
            self.model.to(device),
            data,
            Making(data.made, answer_loss(train.smoothing)),
            lambda model: self.validation(model, held_out),
            train,
            self.settings.model.model,
            self.describe,
            unrecorded="",
        )

    def ids(self, text: str) -> list[int]:
        if not text.strip():
            raise ValueError("the question is empty; give at least one word")
        return self.words.encode(text)

    def numbers(self, questions: Sequence[Question]) -> Int[Tensor, " n"]:
        return torch.tensor([self.labels.index(one.answer, repr(one.text)) for one in questions])

    def validation(self, model: nn.Module, questions: Sequence[Question]) -> dict[str, float]:
        """The mean negative log-probability of a held-out answer, and the share of answers that are right."""
        logits = torch.cat([self.logits(model, some).float() for some in parts(questions)])
        answers = self.numbers(questions).to(logits.device)
        right = (logits.argmax(-1) == answers).float().mean()
        return {"loss": cross_entropy(logits, answers).item(), "accuracy": right.item()}

    def logits(self, model: nn.Module, questions: Sequence[Question]) -> Float[Tensor, "n answers"]:
        """Of one batch; pictures of any size."""
        device = next(model.parameters()).device
        pixels = torch.stack([self.sight.fitted(one.picture.pixels) for one in questions]).to(device)
        tokens, lengths = padded([self.ids(one.text) for one in questions])
        return model(self.sight.scaled(pixels), tokens.to(device), lengths.to(device))

    def probabilities(self, questions: Sequence[Question]) -> Float[Tensor, "n answers"]:
        """Of every answer."""
        with torch.inference_mode():
            found = [self.logits(self.model, some).double().softmax(-1).float().cpu() for some in parts(questions)]
        return torch.cat([*found, torch.zeros(0, len(self.labels))])

    @property
    def parts(self) -> dict[str, Sight | Tokeniser | Labels]:
        return {"sight": self.sight, "words": self.words, "labels": self.labels}

    @classmethod
    def described(cls, folder):
        settings = settings_in(folder, AnswerSettings)
        sight, labels = Sight.load(folder / "sight.json"), Labels.load(folder / "labels.json")
        return Answerer.of(sight, load_tokeniser(folder / "words.json"), labels, settings)


def parts(questions: Sequence[Question]) -> Iterator[Sequence[Question]]:
    for first in range(0, len(questions), AT_ONCE):
        yield questions[first : first + AT_ONCE]
