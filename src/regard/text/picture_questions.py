"""Pictures with questions in, from files or from the miniature world; checked values out.

    read_picture_questions("easy_vqa.tar.xz", inside="easy_vqa/train")     laid out as easy-VQA is
    listed_questions("train.tsv")                                          picture<TAB>question<TAB>answer
    world_questions(ShapeWorld(seed=0), 1000)

easy-VQA's layout: images/0.png, images/1.png ... and questions.json, a list of [question, answer, picture's number].
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.text.corpus import kind, objects
from regard.text.files import existing, read_lines, sound
from regard.text.images import ENDINGS, Size, check, decode, read_picture, stacked, tensor_of
from regard.text.pictures import Pictures, from_scenes
from regard.text.trees import Found, files_under
from regard.world.lexicon import Split
from regard.world.questions import ask
from regard.world.shapes import ShapeWorld

LIST = "questions.json"
COLUMNS = ("picture", "question", "answer")


@dataclass(frozen=True)
class PictureQuestion:
    """A question about picture number `picture` of those beside it.

    `boxes` are where the answer is seen, and `kind` is what kind of question it is, if known.
    """

    text: str
    answer: str
    picture: int
    boxes: tuple[tuple[int, int, int, int], ...] = ()
    kind: str = ""


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
            pixels = tensor_of(decode(found.bytes, found.where, mode=mode, size=size))
            numbered[_number(found, numbered)] = found.where, pixels
    place = f"{path}:{inside}" if inside else path
    if listed is None:
        raise ValueError(f"{place}: no {LIST}; it lies beside the folder images, or name its folder with inside=...")
    if not numbered:
        raise ValueError(f"{place}: no pictures; they are called images/0.png, images/1.png and so on")
    order = sorted(numbered)
    rows = {number: row for row, number in enumerate(order)}
    pixels = stacked(numbered[number] for number in order)
    return PictureQuestions(unlabelled(pixels, [f"images/{number}" for number in order]), _questions(listed, rows))


def listed_questions(path: str | Path, *, mode: str = "RGB", size: Size | None = None) -> PictureQuestions:
    """From a .tsv (picture, tab, question, tab, answer) or a .jsonl with these fields; paths are seen from the file."""
    check(mode, size)
    path = existing(path)
    entries = [(where, *_told(cells, where)) for where, cells in _lines(path)]
    if not entries:
        raise ValueError(f"{path}: no questions; a line is {', tab, '.join(COLUMNS)}")
    order = {name: row for row, name in enumerate(dict.fromkeys(name for _, name, _, _ in entries))}
    said = {name: where for where, name, _, _ in reversed(entries)}
    pixels = stacked((name, _beside(path, name, said[name], mode, size)) for name in order)
    questions = tuple(PictureQuestion(text, answer, order[name]) for _, name, text, answer in entries)
    return PictureQuestions(unlabelled(pixels, list(order)), questions)


def unlabelled(pixels: UInt8[Tensor, "n c h w"], names: list[str]) -> Pictures:
    return Pictures(pixels, torch.zeros(len(names), dtype=torch.int64), ("picture",), tuple(names))


def world_questions(
    world: ShapeWorld, count: int, split: Split = "train", start: int = 0, each: int = 1
) -> PictureQuestions:
    """So many pictures of the miniature world, those numbered from `start`, and questions about each."""
    asked = [[ask(world, number, split, turn) for turn in range(each)] for number in range(start, start + count)]
    questions = tuple(
        PictureQuestion(one.question.text, one.question.answer, row, one.boxes, one.question.kind)
        for row, several in enumerate(asked)
        for one in several
    )
    return PictureQuestions(from_scenes([several[0].scene for several in asked]), questions)


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


# --- lists of one's own ---


def _lines(path: Path) -> Iterator[tuple[str, list[Any]]]:
    match kind(path):
        case ".tsv":
            for number, line in enumerate(read_lines(path), 1):
                cells = line.split("\t")
                if line.strip() and not (number == 1 and tuple(cells) == COLUMNS):
                    yield f"{path}:{number}", list(cells)
        case ".jsonl":
            for where, held in objects(path, COLUMNS):
                if held is not None:
                    yield where, [held[name] for name in COLUMNS]
        case ending:
            raise ValueError(f"{path}: a list of questions ends in .tsv or .jsonl, not {ending!r}; rename the file")


def _told(cells: list[Any], where: str) -> tuple[str, str, str]:
    if len(cells) != len(COLUMNS):
        found = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        raise ValueError(f"{where}: {found}; a line is {', tab, '.join(COLUMNS)}, which are {len(COLUMNS)}")
    for name, cell in zip(COLUMNS, cells, strict=True):
        if not isinstance(cell, str):
            raise ValueError(f"{where}: the {name} is {type(cell).__name__}, not text")
        if not cell.strip():
            raise ValueError(f"{where}: the {name} is empty; fill it in, or remove the line")
    name, text, answer = (sound(cell.strip(), where) for cell in cells)
    return name, text, answer


def _beside(path: Path, name: str, where: str, mode: str, size: Size | None) -> UInt8[Tensor, "c h w"]:
    picture = path.parent / name
    if not picture.is_file():
        raise ValueError(f"{where}: there is no picture {picture}; check the name, seen from the list's folder")
    return read_picture(picture, mode=mode, size=size)
