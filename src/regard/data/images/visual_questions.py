"""Visual questions: images with questions and answers (VQA), from files or from the miniature world.

    read_visual_questions("easy_vqa.tar.xz", inside="easy_vqa/train")      laid out as easy-VQA is
    read_question_list("train.tsv")                                        picture<TAB>question<TAB>answer
    make_world_questions(ShapeWorld(seed=0), 1000)

easy-VQA's layout: images/0.png, images/1.png ... and questions.json, a list of [question, answer, image number].
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.data.archives import FileBytes, iter_files
from regard.data.files import check_text, file_format, read_json_objects, read_lines, require_file
from regard.data.images.labelled_images import (
    IMAGE_SUFFIXES,
    ImageSet,
    Size,
    check_mode_and_size,
    decode_image,
    image_to_tensor,
    images_from_scenes,
    read_image,
    stack_images,
)
from regard.world.lexicon import Split
from regard.world.shapes import ShapeWorld, draw_question

QUESTIONS_FILE = "questions.json"
COLUMNS = ("picture", "question", "answer")


@dataclass(frozen=True)
class VisualQuestion:
    """A question about image number `image_index` of its set.

    `boxes` are the bounding boxes of the evidence, and `kind` is the kind of question, if known.
    """

    text: str
    answer: str
    image_index: int
    boxes: tuple[tuple[int, int, int, int], ...] = ()
    kind: str = ""


@dataclass(frozen=True, eq=False)
class VisualQuestionSet:
    """Images, and the questions about them."""

    images: ImageSet
    questions: tuple[VisualQuestion, ...]

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def answers(self) -> tuple[str, ...]:
        """Every answer that occurs, sorted."""
        return tuple(sorted({question.answer for question in self.questions}))


def read_visual_questions(
    path: str | Path, *, inside: str = "", mode: str = "RGB", size: Size | None = None
) -> VisualQuestionSet:
    """From a folder or an archive, `inside` naming the folder in it that holds images and questions.json."""
    check_mode_and_size(mode, size)
    numbered, listed = {}, None
    for file in iter_files(path, inside=inside, endings=(*IMAGE_SUFFIXES, QUESTIONS_FILE)):
        if str(file.path) == QUESTIONS_FILE:
            listed = file
        elif len(file.path.parts) == 2 and file.path.parts[0] == "images":
            pixels = image_to_tensor(decode_image(file.bytes, file.where, mode=mode, size=size))
            numbered[_number(file, numbered)] = file.where, pixels
    location = f"{path}:{inside}" if inside else path
    if listed is None:
        raise ValueError(
            f"{location}: no {QUESTIONS_FILE}; it lies beside the folder images, or name its folder with inside=..."
        )
    if not numbered:
        raise ValueError(f"{location}: no images; they are called images/0.png, images/1.png and so on")
    order = sorted(numbered)
    rows = {number: row for row, number in enumerate(order)}
    pixels = stack_images(numbered[number] for number in order)
    return VisualQuestionSet(
        unlabelled_images(pixels, [f"images/{number}" for number in order]), _questions(listed, rows)
    )


def read_question_list(path: str | Path, *, mode: str = "RGB", size: Size | None = None) -> VisualQuestionSet:
    """From a .tsv (picture, tab, question, tab, answer) or a .jsonl with these fields; paths are relative to it."""
    check_mode_and_size(mode, size)
    path = require_file(path)
    entries = [(where, *_parse_row(cells, where)) for where, cells in _lines(path)]
    if not entries:
        raise ValueError(f"{path}: no questions; a line is {', tab, '.join(COLUMNS)}")
    order = {name: row for row, name in enumerate(dict.fromkeys(name for _, name, _, _ in entries))}
    first_mention = {name: where for where, name, _, _ in reversed(entries)}
    pixels = stack_images((name, _read_listed_image(path, name, first_mention[name], mode, size)) for name in order)
    questions = tuple(VisualQuestion(text, answer, order[name]) for _, name, text, answer in entries)
    return VisualQuestionSet(unlabelled_images(pixels, list(order)), questions)


def unlabelled_images(pixels: UInt8[Tensor, "n c h w"], names: list[str]) -> ImageSet:
    return ImageSet(pixels, torch.zeros(len(names), dtype=torch.int64), ("picture",), tuple(names))


def make_world_questions(
    world: ShapeWorld, count: int, split: Split = "train", start: int = 0, questions_per_image: int = 1
) -> VisualQuestionSet:
    """`count` images of the miniature world, those numbered from `start`, and questions about each."""
    drawn = [
        [draw_question(world, number, split, turn) for turn in range(questions_per_image)]
        for number in range(start, start + count)
    ]
    questions = tuple(
        VisualQuestion(one.question.text, one.question.answer, row, one.boxes, one.question.kind)
        for row, several in enumerate(drawn)
        for one in several
    )
    return VisualQuestionSet(images_from_scenes([several[0].scene for several in drawn]), questions)


def _number(file: FileBytes, taken: dict[int, Any]) -> int:
    stem = file.path.stem
    if not (stem.isascii() and stem.isdecimal()):
        raise ValueError(f"{file.where}: an image is named by its number, such as 17.png, not {file.path.name!r}")
    if int(stem) in taken:
        raise ValueError(f"{file.where}: a second image with number {int(stem)}; remove one of the two")
    return int(stem)


def _questions(listed: FileBytes, rows: dict[int, int]) -> tuple[VisualQuestion, ...]:
    try:
        entries = json.loads(listed.bytes)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{listed.where}: not JSON ({error}); write or fetch the file again") from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{listed.where}: holds no list of questions; it is [[question, answer, image number], ...]")
    return tuple(_question(entry, f"{listed.where}: entry {n}", rows) for n, entry in enumerate(entries))


def _question(entry: Any, where: str, rows: dict[int, int]) -> VisualQuestion:
    match entry:
        case [str() as text, str() as answer, int() as number] if not isinstance(number, bool):
            if not text.strip() or not answer.strip():
                raise ValueError(f"{where}: the {'answer' if text.strip() else 'question'} is empty; fill it in")
            if number not in rows:
                raise ValueError(f"{where}: asks about image {number}, and images/ has none of that number; add it")
            return VisualQuestion(check_text(text, where), check_text(answer, where), rows[number])
    raise ValueError(f"{where}: {json.dumps(entry)[:80]} is not [question, answer, image number]; correct it")


# --- question lists ---


def _lines(path: Path) -> Iterator[tuple[str, list[Any]]]:
    match file_format(path):
        case ".tsv":
            for number, line in enumerate(read_lines(path), 1):
                cells = line.split("\t")
                if line.strip() and not (number == 1 and tuple(cells) == COLUMNS):
                    yield f"{path}:{number}", list(cells)
        case ".jsonl":
            for where, row in read_json_objects(path, COLUMNS):
                if row is not None:
                    yield where, [row[name] for name in COLUMNS]
        case ending:
            raise ValueError(f"{path}: a list of questions ends in .tsv or .jsonl, not {ending!r}; rename the file")


def _parse_row(cells: list[Any], where: str) -> tuple[str, str, str]:
    if len(cells) != len(COLUMNS):
        count = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        raise ValueError(f"{where}: {count}; a line is {', tab, '.join(COLUMNS)}, which are {len(COLUMNS)}")
    for name, cell in zip(COLUMNS, cells, strict=True):
        if not isinstance(cell, str):
            raise ValueError(f"{where}: the {name} is {type(cell).__name__}, not text")
        if not cell.strip():
            raise ValueError(f"{where}: the {name} is empty; fill it in, or remove the line")
    name, text, answer = (check_text(cell.strip(), where) for cell in cells)
    return name, text, answer


def _read_listed_image(path: Path, name: str, where: str, mode: str, size: Size | None) -> UInt8[Tensor, "c h w"]:
    image = path.parent / name
    if not image.is_file():
        raise ValueError(f"{where}: there is no image {image}; check the name, relative to the list's folder")
    return read_image(image, mode=mode, size=size)
