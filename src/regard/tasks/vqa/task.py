"""Visual question answering: its settings and questions, the loss, metrics, the QuestionAnswerer and its task."""

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
from regard.data.corpora import find_corpus, find_file
from regard.data.files import file_format, split_archive_path
from regard.data.images import (
    LabelledImage,
    VisualQuestionSet,
    make_world_questions,
    read_question_list,
    read_visual_questions,
    stack_images,
)
from regard.data.labelled import Labels
from regard.data.preprocess import ImagePreprocessor
from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.subwords import load_tokenizer
from regard.models.config_base import AT_LEAST_1, Choices, Range, Ranges
from regard.models.vision import VQAConfig, VQAModel
from regard.tasks.config import RunSettings, TokenizerSettings, world_training
from regard.tasks.image_batches import (
    EXAMPLE_IMAGES,
    AugmentedImages,
    AugmentSettings,
    ImageData,
    ImageDraws,
    OnDeviceLoss,
    Rows,
    ShuffledIndices,
    epoch_order,
    example_world,
    load_image,
    patch_axis,
    refuse_rdrop,
)
from regard.tasks.image_classification.task import AT_ONCE, HELD_OUT
from regard.tasks.metrics import LABEL_FIGURES, LabelMetrics, loss_and_accuracy
from regard.tasks.pretrained import LabelOutput, PretrainedModel, one_or_many, train_text_tokenizer
from regard.tasks.protocol import (
    EncodedInput,
    InputSpec,
    ProgressBar,
    Task,
    TaskInput,
    TokenAxis,
    no_progress,
)
from regard.tasks.splits import LoadedExamples, Split, split_held_out
from regard.training.config import TrainingJob, TrainSettings
from regard.training.corpus import to_device_async
from regard.world.shapes import HOLD_OUTS, MAX_SHAPES, ShapeWorld, draw_question

# --- settings and data ---

CORPUS = "easy_vqa"
LISTS = ("questions.tsv", "questions.jsonl")


@dataclass(frozen=True, eq=False)
class ImageQuestion:
    """About a picture, which several may share; the answer is empty where nobody knows it."""

    picture: LabelledImage
    text: str
    answer: str = ""
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class VQAData(ImageData[ImageQuestion]):
    """Questions: a .tsv or .jsonl of image, question and answer, or a folder or archive such as easy-VQA's.

    Args:
        each: how many questions about each image of the miniature world to train on.
        most: how many things an image of the miniature world may hold.
        held_out: what training never shows of the miniature world: compositions, or pictures alone.
    """

    examples: ClassVar[str] = "questions"
    files_hint: ClassVar[str] = (
        '{split} = ["{split}.tsv"] with lines of image, tab, question, tab, answer, '
        "or on the command line --{split} {split}.tsv"
    )

    choices: ClassVar[Choices] = {"held_out": HOLD_OUTS}
    ranges: ClassVar[Ranges] = {"each": AT_LEAST_1, "most": Range(1, most=MAX_SHAPES)}

    images: int = 5000
    each: int = 4
    most: int = 1
    held_out: str = "compositions"

    def from_world(self, split: Split, count: int | None) -> list[ImageQuestion]:
        world, each = ShapeWorld(most=self.most, held_out=self.held_out), self.each if count is None else 1
        return to_image_questions(make_world_questions(world, count or self.images, split, questions_per_image=each))

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[ImageQuestion]:
        return LoadedExamples([one for path in paths for one in to_image_questions(read_question_file(path, self))])

    def from_corpus(self, split: Split, folder: Path | None) -> list[ImageQuestion]:
        return read_known_questions(self.corpus, split, folder)


@dataclass(frozen=True, kw_only=True)
class VQASettings(RunSettings):
    task: ClassVar[str] = "vqa"

    data: VQAData = VQAData()
    augment: AugmentSettings = AugmentSettings()
    text: TokenizerSettings = TokenizerSettings(kind="words", lowercase=True, language="en")
    model: VQAConfig = VQAConfig()
    train: TrainSettings = TrainSettings(batch_size=128)

    def __post_init__(self):
        refuse_rdrop(self.train)
        if self.augment.mix() or self.augment.flip_at_test:
            raise ValueError(
                "[augment] mixup, cutmix and flip_at_test are for pictures alone: a question is about one picture, and "
                "may ask what is left; leave them out"
            )

    @classmethod
    def of_world(cls):
        """Colours, shapes and numbers in pictures of the miniature world, in a minute."""
        return cls(
            # where compositions are held out, a colour rules the right shape out, and in a minute a model learns no
            # more than to guess the one from the other
            data=VQAData(images=10_000, each=4, held_out="pictures"),
            text=TokenizerSettings(kind="words"),
            model=VQAConfig(layers=1, model=48, heads=4, hidden=96),
            train=world_training(steps=900, batch_size=128, learning_rate=3e-3, warmup_steps=100, validate_every=300),
        )


def to_image_questions(held: VisualQuestionSet) -> list[ImageQuestion]:
    pictures = list(held.images)
    return [ImageQuestion(pictures[one.image_index], one.text, one.answer, one.kind) for one in held.questions]


def read_question_file(path: str, data: VQAData) -> VisualQuestionSet:
    """A list; a folder that holds one; or a folder or archive laid out as easy-VQA is. "set.tar:train" is inside it."""
    folder = Path(path)
    lists = [folder] if file_format(folder) in (".tsv", ".jsonl") else [folder / name for name in LISTS]
    if found := [place for place in lists if place == folder or place.is_file()]:
        return read_question_list(found[0], mode=data.mode, size=data.size)
    place, inside = split_archive_path(path)
    return read_visual_questions(place, inside=inside, mode=data.mode, size=data.size)


def read_known_questions(name: str, split: Split, folder: Path | None) -> list[ImageQuestion]:
    """To validate on, those about every twelfth picture to train on: a picture is never in both."""
    questions = to_image_questions(read_known_part(name, "test" if split == "test" else "train", folder))
    if split == "test":
        return questions
    kept = set(split_held_out(list(dict.fromkeys(one.picture for one in questions)), split, HELD_OUT))
    return [one for one in questions if one.picture in kept]


@lru_cache(maxsize=1)  # of the same questions some are to train on, some to validate on
def read_known_part(name: str, part: str, folder: Path | None) -> VisualQuestionSet:
    corpus = find_corpus(name)
    if name != CORPUS:
        raise ValueError(f"{name} holds no questions about pictures; choose {CORPUS}")
    return read_visual_questions(find_file(corpus, corpus.files, folder), inside=f"{CORPUS}/{part}")


# --- training ---

IMAGE_MULTIPLE = 8  # on a GPU: batches whose pictures are as many, in steps of so many, share a recording


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
        "preprocessor": ("preprocessor", ImagePreprocessor.load),
        "tokenizer": ("tokenizer", load_tokenizer),
        "labels": ("labels", Labels.load),
    }

    model: VQAModel
    preprocessor: ImagePreprocessor
    tokenizer: Tokenizer
    labels: Labels
    settings: VQASettings

    @classmethod
    def from_examples(cls, questions: Sequence[ImageQuestion], settings: VQASettings) -> "QuestionAnswerer":
        """Size, scale, vocabulary and answers from the questions, and a model with new weights."""
        labels = Labels.of(one.answer for one in questions)
        words = train_text_tokenizer((one.text for one in questions), settings.text)
        pictures = dict.fromkeys(one.picture for one in questions)
        preprocessor = ImagePreprocessor.of(stack_images((one.name, one.pixels) for one in pictures))
        return cls.from_parts(preprocessor, words, labels, settings=settings)

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
        return self.training_job(
            data,
            OnDeviceLoss(data.materialize, vqa_loss(train.label_smoothing)),
            lambda model: self.validation(model, held_out),
            device,
            capture_objection="",
            figures=LABEL_FIGURES,
            shard_objection="the questions of a batch share its images",
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
    takes_batches = True
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
        pixels, device = load_image(task_model.preprocessor, given.media), next(task_model.model.parameters()).device
        tokens, lengths = (part.to(device) for part in pad_rows([ids]))
        x, tokenizer = task_model.preprocessor.normalize(pixels[None].to(device)), task_model.tokenizer
        words = tuple(tokenizer.normalizer.apply(given.question).split())
        text = TokenAxis(tuple(tokenizer.tokens(given.question)), words, tuple(tokenizer.word_ids(given.question)))
        axes = {"text": text, "patches": patch_axis(task_model.model.image_encoder)}
        return EncodedInput((x, tokens, lengths), axes, ("answer",), image=pixels)

    def option_name(self, task_model: QuestionAnswerer, option: int) -> str:
        return task_model.labels.name(option)


TASK = VQATask()
