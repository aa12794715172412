"""Visual question answering: the loss, the training job, metrics, the QuestionAnswerer and its task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.data.batching import pad_rows
from regard.data.image_preprocess import ImagePreprocessor
from regard.data.images import LabelledImage, stack_images
from regard.data.labelled import Labels
from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.subwords import load_tokenizer
from regard.models.vqa import VQAModel
from regard.tasks.image_batches import (
    EXAMPLE_IMAGES,
    AugmentedImages,
    ImageDraws,
    OnDeviceLoss,
    Rows,
    ShuffledIndices,
    epoch_order,
    example_world,
    load_image,
    patch_axis,
)
from regard.tasks.image_classification.task import AT_ONCE
from regard.tasks.metrics import LABEL_FIGURES, LabelMetrics, loss_and_accuracy
from regard.tasks.outputs import LabelOutput, one_or_many
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import (
    EncodedInput,
    InputSpec,
    ProgressBar,
    Task,
    TaskInput,
    TokenAxis,
    no_progress,
)
from regard.tasks.tokenizers import train_text_tokenizer
from regard.tasks.vqa.data import ImageQuestion, VQASettings
from regard.training.config import TrainingJob
from regard.training.corpus import to_device_async
from regard.world.shapes import draw_question

IMAGE_MULTIPLE = 8  # on a GPU: batches whose pictures are as many, in steps of so many, share a recording


# --- training ---


class VQABatch(NamedTuple):
    """Questions about images.

    Args:
        pixels: the images as the model reads them.
        tokens, lengths: of the questions, padded.
        image_index: which image each question is about.
        answers: the index of each answer among the labels.
    """

    pixels: Float[Tensor, "p c h w"]
    tokens: Int[Tensor, "b t"]
    lengths: Int[Tensor, " b"]
    image_index: Int[Tensor, " b"]
    answers: Int[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class QuestionDraws:
    """What is sent to the device for a batch: its pictures, and each question's row and picture."""

    pictures: ImageDraws
    questions: Int[Tensor, "questions 2"]


@dataclass(frozen=True, eq=False)
class QuestionBatches:
    """The batches of every step. All questions are padded to the longest, for a batch is made on the device.

    Those about one picture come one after the other, so that it is read once for all of them.
    """

    images: AugmentedImages
    pictures: Rows  # of each question
    tokens: Int[Tensor, "n t"]
    lengths: Int[Tensor, " n"]
    answers: Int[Tensor, " n"]
    rows: ShuffledIndices

    def steps(self, epoch: int) -> int:
        return self.rows.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[QuestionDraws, int]]:
        fill = IMAGE_MULTIPLE if self.tokens.is_cuda else 1
        return [
            (self.draw_batch(rows, epoch, fill), len(rows))
            for rows in self.rows.slice_step(order_by_image(self, epoch), index)
        ]

    def draw_batch(self, rows: Rows, epoch: int, fill: int = 1) -> QuestionDraws:
        """Some pictures come again, and are asked nothing, so that their number is a multiple of `fill`."""
        pictures, about = np.unique(self.pictures[rows], return_inverse=True)
        filled = np.resize(pictures, -(-len(pictures) // fill) * fill)
        table = torch.from_numpy(np.stack((rows, about), 1))
        return QuestionDraws(self.images.draw_batch(filled, epoch), to_device_async(table, self.tokens.device))

    def materialize(self, draws: QuestionDraws) -> VQABatch:
        at, about = draws.questions.unbind(1)
        return VQABatch(
            self.images.normalized_pixels(draws.pictures), self.tokens[at], self.lengths[at], about, self.answers[at]
        )


@lru_cache(maxsize=2)
def order_by_image(batches: QuestionBatches, epoch: int) -> Rows:
    """All questions, by picture, the pictures in another order every epoch."""
    places = np.argsort(epoch_order(batches.rows.seed, epoch, len(batches.images.pixels)))
    return np.argsort(places[batches.pictures], kind="stable")


def vqa_loss(smoothing: float):
    """Cross-entropy summed over the questions."""

    def loss(model: nn.Module, batch: tuple[VQABatch, int]) -> tuple[Tensor, int]:
        given, count = batch
        *inputs, answers = given
        logits = model(*inputs).float()
        return cross_entropy(logits, answers, reduction="sum", label_smoothing=smoothing), count

    return loss


@dataclass(frozen=True, eq=False)
class QuestionAnswerer(PretrainedModel):
    """A model with how it sees, the vocabulary it reads and the answers it knows."""

    settings_type = VQASettings
    part_files: ClassVar = {
        "preprocessor": ("sight", ImagePreprocessor.load),
        "tokenizer": ("words", load_tokenizer),
        "labels": ("labels", Labels.load),
    }

    model: VQAModel
    preprocessor: ImagePreprocessor
    tokenizer: Tokenizer
    labels: Labels
    settings: VQASettings

    @staticmethod
    def from_examples(questions: Sequence[ImageQuestion], settings: VQASettings) -> "QuestionAnswerer":
        """Size, scale, vocabulary and answers from the questions, and a model with new weights."""
        labels = Labels.of(one.answer for one in questions)
        words = train_text_tokenizer((one.text for one in questions), settings.text)
        pictures = dict.fromkeys(one.picture for one in questions)
        preprocessor = ImagePreprocessor.of(stack_images((one.name, one.pixels) for one in pictures))
        return QuestionAnswerer.from_parts(preprocessor, words, labels, settings=settings)

    @staticmethod
    def build_model(
        preprocessor: ImagePreprocessor, words: Tokenizer, labels: Labels, settings: VQASettings
    ) -> VQAModel:
        return VQAModel(settings.model, shape=preprocessor.shape, vocabulary_size=words.size, answers=len(labels))

    def job(
        self, questions: Sequence[ImageQuestion], held_out: Sequence[ImageQuestion], device: str = "cpu", /
    ) -> TrainingJob:
        train = self.settings.train
        rows = {picture: row for row, picture in enumerate(dict.fromkeys(one.picture for one in questions))}
        pictures = np.array([rows[one.picture] for one in questions])
        shown = AugmentedImages(
            self.preprocessor.stack_exact(list(rows)).to(device), self.preprocessor, self.settings.augment, train.seed
        )
        tokens, lengths = (part.to(device) for part in pad_rows([self.ids(one.text) for one in questions]))
        answers = self.label_ids(questions).to(device)
        data = QuestionBatches(shown, pictures, tokens, lengths, answers, ShuffledIndices.of(len(questions), train))
        self.preprocessor.stack_exact([one.picture for one in held_out])
        return TrainingJob(
            self.model.to(device),
            data,
            OnDeviceLoss(data.materialize, vqa_loss(train.label_smoothing)),
            lambda model: self.validation(model, held_out),
            train,
            self.settings.model.model,
            self.describe,
            capture_objection="",
            figures=LABEL_FIGURES,
        )

    def ids(self, text: str) -> list[int]:
        if not text.strip():
            raise ValueError("the question is empty; give at least one word")
        return self.tokenizer.encode(text)

    def label_ids(self, questions: Sequence[ImageQuestion]) -> Int[Tensor, " n"]:
        return torch.tensor([self.labels.index(one.answer, repr(one.text)) for one in questions])

    def validation(self, model: nn.Module, questions: Sequence[ImageQuestion]) -> dict[str, float]:
        logits = torch.cat([self.logits(model, some).float() for some in chunk_questions(questions)])
        return loss_and_accuracy(logits, self.label_ids(questions).to(logits.device))

    def logits(self, model: nn.Module, questions: Sequence[ImageQuestion]) -> Float[Tensor, "n answers"]:
        """Of one batch; pictures of any size."""
        device = next(model.parameters()).device
        pixels = torch.stack([self.preprocessor.fit(one.picture.pixels) for one in questions]).to(device)
        tokens, lengths = pad_rows([self.ids(one.text) for one in questions])
        return model(self.preprocessor.normalize(pixels), tokens.to(device), lengths.to(device))

    def answer(self, image: str | Path, questions: str | Sequence[str]) -> Any:
        """The answer to a question about an image file, or to each of a list."""
        pixels = LabelledImage(load_image(self.preprocessor, image), "", str(image))

        def run(questions: Sequence[str]) -> list[LabelOutput]:
            found = self.probabilities([ImageQuestion(pixels, question) for question in questions])
            return [LabelOutput.of(self.labels.names, row) for row in found.tolist()]

        return one_or_many(questions, run)

    def probabilities(self, questions: Sequence[ImageQuestion]) -> Float[Tensor, "n answers"]:
        """Of every answer."""
        with torch.inference_mode():
            found = [
                self.logits(self.model, some).double().softmax(-1).float().cpu() for some in chunk_questions(questions)
            ]
        return torch.cat([*found, torch.zeros(0, len(self.labels))])


def chunk_questions(questions: Sequence[ImageQuestion]) -> Iterator[Sequence[ImageQuestion]]:
    for first in range(0, len(questions), AT_ONCE):
        yield questions[first : first + AT_ONCE]


def evaluate_vqa(
    answerer: QuestionAnswerer, questions: Sequence[ImageQuestion], progress: ProgressBar = no_progress
) -> LabelMetrics:
    answerer.label_ids(questions)  # refuses an answer that the model does not know
    batches = progress(chunk_questions(questions), "answering", -(-len(questions) // AT_ONCE))
    found = torch.cat([answerer.probabilities(some) for some in batches]).argmax(-1).tolist()
    answers = tuple(answerer.labels.name(n) for n in found)
    kinds = tuple(one.kind for one in questions)
    return LabelMetrics(
        labels=answerer.labels.names,
        wanted=tuple(one.answer for one in questions),
        found=answers,
        unit="questions",
        signature=f"questions:{len(questions)}|pictures:{len({one.picture for one in questions})}",
        outputs=answers,
        kinds=kinds if all(kinds) else (),
    )


# --- the task ---


class VQATask(Task):
    """Visual question answering: an answer to a question about an image."""

    settings = VQASettings
    task_model = QuestionAnswerer
    verb = "answer"
    batch_unit = "questions"
    inputs = InputSpec("the file of a picture and a question", "image", options=("question",))

    def token_ids(self, task_model: QuestionAnswerer, examples: Sequence[ImageQuestion]):
        return task_model.tokenizer.encode_batch(one.text for one in examples)

    def evaluate(
        self, task_model: QuestionAnswerer, examples: Sequence[ImageQuestion], *, search=None, progress=no_progress
    ):
        return evaluate_vqa(task_model, examples, progress)

    def example_input(self, task_model: QuestionAnswerer) -> TaskInput:
        return TaskInput(EXAMPLE_IMAGES[0], question=draw_question(example_world(), 0, "test").question.text)

    def texts(self, task_model: QuestionAnswerer, given: TaskInput):
        return [(task_model.tokenizer, given.question or "")]

    def normalize(self, task_model: QuestionAnswerer, text: str) -> str:
        return task_model.tokenizer.normalizer.apply(text)

    def encode(self, task_model: QuestionAnswerer, given: TaskInput) -> EncodedInput:
        if given.question is None:
            raise ValueError("this model answers questions about images; give question='what colour is the circle'")
        given.refuse_long(len(ids := task_model.ids(given.question)))
        pixels, device = load_image(task_model.preprocessor, given.text), next(task_model.model.parameters()).device
        tokens, lengths = (part.to(device) for part in pad_rows([ids]))
        x, tokenizer = task_model.preprocessor.normalize(pixels[None].to(device)), task_model.tokenizer
        words = tuple(tokenizer.normalizer.apply(given.question).split())
        text = TokenAxis(tuple(tokenizer.tokens(given.question)), words, tuple(tokenizer.word_ids(given.question)))
        axes = {"text": text, "patches": patch_axis(task_model.model.image_encoder)}
        return EncodedInput((x, tokens, lengths), axes, ("answer",), image=pixels)

    def option_name(self, task_model: QuestionAnswerer, option: int) -> str:
        return task_model.labels.name(option)


TASK = VQATask()
