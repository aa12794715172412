"""Pictures with questions in, from files laid out as easy-VQA's or from the miniature world; checked values out.

    read_picture_questions("easy_vqa.tar.xz", inside="easy_vqa/train")
    world_questions(ShapeWorld(seed=0), 1000)

The layout: images/0.png, images/1.png ... and questions.json, a list of [question, answer, number of the picture].
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.text.files import sound
from regard.text.images import ENDINGS, Size, check, decode, stacked
from regard.text.pictures import Pictures, from_scenes
from regard.text.trees import Found, files_under
from regard.world.lexicon import Split
from regard.world.questions import ask
from regard.world.shapes import ShapeWorld

LIST = "questions.json"


@dataclass(frozen=True)
class PictureQuestion:
    """A question about picture number `picture` of those beside it; `boxes` are where the answer is seen, if known."""

    text: str
    answer: str
    picture: int
    boxes: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class PictureQuestions:
    """Pictures, and the questions about them."""

    pictures: Pictures
    questions: tuple[PictureQuestion, ...]

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def answers(self) -> tuple[str, ...]:
        """Every answer that occurs, sorted."""
        return tuple(sorted({question.answer for question in self.questions}))


def read_picture_questions(
    path: str | Path, *, inside: str = "", mode: str = "RGB", size: Size | None = None
) -> PictureQuestions:
    """From a folder or an archive, `inside` naming the folder in it that holds images and questions.json."""
    check(mode, size)
    numbered, listed = {}, None
    for found in files_under(path, inside=inside, endings=(*ENDINGS, LIST)):
        if str(found.path) == LIST:
            listed = found
        elif len(found.path.parts) == 2 and found.path.parts[0] == "images":
            numbered[_number(found, numbered)] = found.where, decode(found.bytes, found.where, mode=mode, size=size)
    place = f"{path}:{inside}" if inside else path
    if listed is None:
        raise ValueError(f"{place}: no {LIST}; it lies beside the folder images, or name its folder with inside=...")
    if not numbered:
        raise ValueError(f"{place}: no pictures; they are called images/0.png, images/1.png and so on")
    order = sorted(numbered)
    rows = {number: row for row, number in enumerate(order)}
    pixels = stacked(numbered[number] for number in order)
    pictures = Pictures(
        pixels, torch.zeros(len(order), dtype=torch.int64), ("picture",), tuple(f"images/{number}" for number in order)
    )
    return PictureQuestions(pictures, _questions(listed, rows))


def world_questions(world: ShapeWorld, count: int, split: Split = "train", start: int = 0) -> PictureQuestions:
    """One question for each picture of the miniature world, those numbered from `start`."""
    asked = [ask(world, number, split) for number in range(start, start + count)]
    questions = tuple(
        PictureQuestion(one.question.text, one.question.answer, row, one.boxes) for row, one in enumerate(asked)
    )
    return PictureQuestions(from_scenes([one.scene for one in asked]), questions)


def _number(found: Found, taken: dict[int, Any]) -> int:
    stem = found.path.stem
    if not (stem.isascii() and stem.isdecimal()):
        raise ValueError(f"{found.where}: a picture is called by its number, such as 17.png, not {found.path.name!r}")
    if int(stem) in taken:
        raise ValueError(f"{found.where}: a second picture with number {int(stem)}; remove one of the two")
    return int(stem)


def _questions(listed: Found, rows: dict[int, int]) -> tuple[PictureQuestion, ...]:
    try:
        entries = json.loads(listed.bytes)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{listed.where}: not JSON ({error}); write or fetch the file again") from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{listed.where}: holds no list of questions; it is [[question, answer, picture], ...]")
    return tuple(_question(entry, f"{listed.where}: entry {n}", rows) for n, entry in enumerate(entries))


def _question(entry: Any, where: str, rows: dict[int, int]) -> PictureQuestion:
    match entry:
        case [str() as text, str() as answer, int() as number] if not isinstance(number, bool):
            if not text.strip() or not answer.strip():
                raise ValueError(f"{where}: the {'answer' if text.strip() else 'question'} is empty; fill it in")
            if number not in rows:
                raise ValueError(f"{where}: asks about picture {number}, and images/ has none of that number; add it")
            return PictureQuestion(sound(text, where), sound(answer, where), rows[number])
    raise ValueError(f"{where}: {json.dumps(entry)[:80]} is not [question, answer, number of the picture]; correct it")
