"""Visual question answering data: the settings of a run, and its questions about images."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from regard.data.corpora import find_corpus, find_file
from regard.data.files import file_format, split_archive_path
from regard.data.images import (
    LabelledImage,
    VisualQuestionSet,
    make_world_questions,
    read_question_list,
    read_visual_questions,
)
from regard.models.config_base import AT_LEAST_1, Choices, Range, Ranges
from regard.models.vqa import VQAConfig
from regard.tasks.config import RunSettings, TokenizerSettings, world_training
from regard.tasks.image_batches import AugmentSettings, ImageData, refuse_rdrop
from regard.tasks.image_classification.data import HELD_OUT
from regard.tasks.splits import LoadedExamples, Split, split_held_out
from regard.training.config import TrainSettings
from regard.world.shapes import HOLD_OUTS, MAX_SHAPES, ShapeWorld

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
