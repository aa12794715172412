"""The [data] of a run and the name of a split in; questions about pictures out: of the world, of files, or known."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from regard.tasks.data import Read, Sources, Split, divided, read_from
from regard.tasks.picture import HELD_OUT
from regard.tasks.tables import From, one_of
from regard.text.corpus import kind
from regard.text.images import MODES
from regard.text.known import find, known
from regard.text.picture_questions import PictureQuestions, listed_questions, read_picture_questions, world_questions
from regard.text.pictures import Picture
from regard.text.trees import within
from regard.world.shapes import HOLD_OUTS, ShapeWorld

CORPUS = "easy_vqa"
LISTS = ("questions.tsv", "questions.jsonl")


@dataclass(frozen=True, eq=False)
class Question:
    """About a picture, which several may share; the answer is empty where nobody knows it."""

    picture: Picture
    text: str
    answer: str = ""
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class AnswerData(From):
    """Questions: a .tsv or .jsonl of picture, question and answer, or a folder or archive such as easy-VQA's."""

    pictures: int = 5000  # for the world: how many
    each: int = 4  # for the world: questions about each picture to train on
    most: int = 1  # for the world: things in a picture
    held_out: str = "compositions"  # for the world: compositions that training never shows, or pictures alone
    mode: str = "RGB"  # of files: RGB, or L for grey
    rows: int = 0  # of files: to resize to; 0 leaves pictures as they are
    columns: int = 0

    def __post_init__(self):
        one_of("data.mode", self.mode, MODES)
        one_of("data.held_out", self.held_out, HOLD_OUTS)
        if (
            min(self.pictures, self.each) < 1
            or min(self.rows, self.columns) < 0
            or (self.rows > 0) != (self.columns > 0)
        ):
            raise ValueError(
                f"data.pictures = {self.pictures}, data.each = {self.each}, data.rows = {self.rows}, data.columns = "
                f"{self.columns}: there is at least one picture with a question, and a size to resize to has both "
                "rows and columns"
            )

    @property
    def size(self) -> tuple[int, int] | None:
        return (self.rows, self.columns) if self.rows else None


def read_questions(data: AnswerData, split: Split, folder: Path | None = None) -> Read[Question]:
    """The questions of a split."""

    def of_world(split: Split, count: int | None) -> list[Question]:
        world, each = ShapeWorld(most=data.most, held_out=data.held_out), data.each if count is None else 1
        return asked(world_questions(world, count or data.pictures, split, each=each))

    sources = Sources(
        world=of_world,
        files=lambda paths: Read([one for path in paths for one in asked(given_questions(path, data))]),
        known=known_questions,
        examples="questions",
        files_called=lambda split: (
            f'{split} = ["{split}.tsv"] with lines of picture, tab, question, tab, answer, '
            f"or on the command line --{split} {split}.tsv"
        ),
    )
    return read_from(sources, data, split, folder)


def asked(held: PictureQuestions) -> list[Question]:
    pictures = list(held.pictures)
    return [Question(pictures[one.picture], one.text, one.answer, one.kind) for one in held.questions]


def given_questions(path: str, data: AnswerData) -> PictureQuestions:
    """A list; a folder that holds one; or a folder or archive laid out as easy-VQA is. "set.tar:train" is inside it."""
    folder = Path(path)
    lists = [folder] if kind(folder) in (".tsv", ".jsonl") else [folder / name for name in LISTS]
    if found := [place for place in lists if place == folder or place.is_file()]:
        return listed_questions(found[0], mode=data.mode, size=data.size)
    place, inside = within(path)
    return read_picture_questions(place, inside=inside, mode=data.mode, size=data.size)


def known_questions(name: str, split: Split, folder: Path | None) -> list[Question]:
    """To validate on, those about every twelfth picture to train on: a picture is never in both."""
    questions = asked(known_part(name, "test" if split == "test" else "train", folder))
    if split == "test":
        return questions
    kept = set(divided(list(dict.fromkeys(one.picture for one in questions)), split, HELD_OUT))
    return [one for one in questions if one.picture in kept]


@lru_cache(maxsize=1)  # of the same questions some are to train on, some to validate on
def known_part(name: str, part: str, folder: Path | None) -> PictureQuestions:
    corpus = known(name)
    if name != CORPUS:
        raise ValueError(f"{name} holds no questions about pictures; choose {CORPUS}")
    return read_picture_questions(find(corpus, corpus.parts, folder), inside=f"{CORPUS}/{part}")
