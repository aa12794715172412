"""Visual question answering data: the settings of a run, and its questions about images."""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from regard.data.archives import split_archive_path
from regard.data.corpora.download import find_corpus, find_file
from regard.data.files import file_format
from regard.data.images.labelled_images import IMAGE_MODES, LabelledImage
from regard.data.images.visual_questions import (
    VisualQuestionSet,
    make_world_questions,
    read_question_list,
    read_visual_questions,
)
from regard.models.config import check_choice
from regard.models.vqa import VQAConfig
from regard.tasks.config import DataSettings, RunSettings, TokenizerSettings
from regard.tasks.image_batches import (
    AugmentSettings,
    refuse_rdrop,
)
from regard.tasks.image_classification.data import HELD_OUT
from regard.tasks.splits import ExampleReaders, LoadedExamples, Split, read_examples, split_held_out
from regard.train.config import TrainSettings
from regard.world.shapes import HOLD_OUTS, ShapeWorld

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
class VQAData(DataSettings):
    """Questions: a .tsv or .jsonl of picture, question and answer, or a folder or archive such as easy-VQA's."""

    images: int = 5000  # for the world: how many
    each: int = 4  # for the world: questions about each picture to train on
    most: int = 1  # for the world: things in a picture
    held_out: str = "compositions"  # for the world: compositions that training never shows, or pictures alone
    mode: str = "RGB"  # of files: RGB, or L for grey
    height: int = 0  # of files: to resize to; 0 leaves pictures as they are
    width: int = 0

    def __post_init__(self):
        check_choice("data.mode", self.mode, IMAGE_MODES)
        check_choice("data.held_out", self.held_out, HOLD_OUTS)
        if min(self.images, self.each) < 1 or min(self.height, self.width) < 0 or (self.height > 0) != (self.width > 0):
            raise ValueError(
                f"data.images = {self.images}, data.each = {self.each}, data.height = {self.height}, data.width = "
                f"{self.width}: there is at least one picture with a question, and a size to resize to has both "
                "height and width"
            )

    @property
    def size(self) -> tuple[int, int] | None:
        return (self.height, self.width) if self.height else None


@dataclass(frozen=True, kw_only=True)
class VQASettings(RunSettings):
    """Of answering questions about pictures."""

    task: ClassVar[str] = "vqa"

    data: VQAData = field(default_factory=VQAData)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    text: TokenizerSettings = field(
        default_factory=lambda: TokenizerSettings(kind="words", lowercase=True, language="en")
    )
    model: VQAConfig = field(default_factory=VQAConfig)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(batch_size=128))

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
            train=TrainSettings(
                steps=900, batch_size=128, learning_rate=3e-3, warmup_steps=100, label_smoothing=0.0, validate_every=300
            ),
        )


def read_image_questions(data: VQAData, split: Split, folder: Path | None = None) -> LoadedExamples[ImageQuestion]:
    """The questions of a split."""

    def of_world(split: Split, count: int | None) -> list[ImageQuestion]:
        world, each = ShapeWorld(most=data.most, held_out=data.held_out), data.each if count is None else 1
        return to_image_questions(make_world_questions(world, count or data.images, split, questions_per_image=each))

    sources = ExampleReaders(
        world=of_world,
        files=lambda paths: LoadedExamples(
            [one for path in paths for one in to_image_questions(read_question_file(path, data))]
        ),
        known=read_known_questions,
        examples="questions",
        files_hint=lambda split: (
            f'{split} = ["{split}.tsv"] with lines of picture, tab, question, tab, answer, '
            f"or on the command line --{split} {split}.tsv"
        ),
    )
    return read_examples(sources, data, split, folder)


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
