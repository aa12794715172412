"""Notebooks: converts sections of the lessons into the six notebooks of the course, exercises included.

    python docs/build_notebooks.py    writes docs/notebooks/*.ipynb, always to the same bytes

A block of `>>>` becomes code cells, each ending where the lesson shows an output. A python block, its solution in
`<details>` and a second python block become an exercise: a cell with a gap, a cell that checks it, a folded solution.
"""

import base64
import doctest
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from build_site import LINK

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "notebooks"
PYTHON = r"^```python\n((?:(?!```).*\n)*)```\n"
EXERCISE = rf"{PYTHON}\n<details[^\n]*>\n\n{PYTHON}\n</details>\n\n{PYTHON}"
CODE = re.compile(f"{EXERCISE}|{PYTHON}", re.MULTILINE)
HEADING = re.compile(r"^(?=##+ )", re.MULTILINE)
PICTURE = re.compile(r"(!\[[^\]]*\]\()([^):\s]+\.png)(\))")
SOLUTION = "<details><summary>Solution</summary>\n\n```python\n{}\n```\n\n</details>"
INSTALL = """\
try:
    import regard
except ImportError:
    %pip install --quiet regard"""
OPENING = """\
# {title}

Made from [lesson {number}]({lesson}) of Regard. Run the cells from top to bottom; the next one installs Regard where
it is missing (`pip install regard`). The exercises are at the end: replace each gap `...`, run the cell, then the check
below it.
"""


@dataclass(frozen=True)
class Notebook:
    """Sections of a lesson, by their headings, under a title."""

    name: str
    title: str
    lesson: str
    sections: tuple[str, ...]


NOTEBOOKS = (
    Notebook(
        "1-soft-look-up",
        "Soft look-up",
        "1-attention.md",
        ("A lookup table that answers softly", "To oneself and across", "Exercises: soft look-up"),
    ),
    Notebook(
        "2-scaled-dot-product",
        "Scaled dot product",
        "1-attention.md",
        (
            "The second lecture's example, step by step",
            "Scaled against unscaled",
            "Attention without weights",
            "Exercises: scaled dot product",
        ),
    ),
    Notebook(
        "3-masks",
        "Masks",
        "3-patterns.md",
        (
            "True = may attend",
            "Patterns combine",
            "The others",
            "Longformer and BigBird",
            "A million tokens",
            "Rows that see nothing",
            "Exercises",
        ),
    ),
    Notebook(
        "4-positions",
        "Positions",
        "4-positions.md",
        ("Man eats dinosaur", "Added to the embedding", "Inside queries and keys", "On the score", "Exercises"),
    ),
    Notebook(
        "5-multi-head",
        "Multi-head attention",
        "6-heads.md",
        (
            "Several heads",
            "Looking inside",
            "Groups",
            "Across",
            "Padding and packing",
            "Decoding with a KV cache",
            "Exercises",
        ),
    ),
    Notebook(
        "6-small-translator",
        "A small translator",
        "9-translation.md",
        ("A translator", "Decoding", "What it attended to", "Which word decided", "The ladder", "Exercises"),
    ),
)


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook.

    Args:
        tag: exercise (a gap to fill), check (assertions about it) or solution (folded text).
        solution: of an exercise, the code that passes its check.
        output: what the lesson says that the cell prints and shows; None where it says nothing.
    """

    kind: Literal["markdown", "code"]
    source: str
    tag: Literal["", "exercise", "check", "solution"] = ""
    solution: str = ""
    output: str | None = None


# --- from a lesson to cells ---


def convert(notebook: Notebook) -> list[Cell]:
    """The cells of a notebook: title, installation, then those of its sections."""
    number = notebook.lesson.split("-")[0]
    opening = OPENING.format(title=notebook.title, number=number, lesson=notebook.lesson)
    sections = read_sections(DOCS / notebook.lesson)
    cells = [Cell("markdown", opening), Cell("code", INSTALL)]
    for title in notebook.sections:
        if title not in sections:
            raise ValueError(f"{notebook.lesson} has no section {title!r}; it has {', '.join(map(repr, sections))}")
        cells += convert_section(sections[title], f"{notebook.lesson}, {title!r}")
    return cells


def read_sections(lesson: Path) -> dict[str, str]:
    """The text of each section by its heading, heading included; without the links below the last."""
    text = lesson.read_text("utf-8").split("\n---\n")[0]
    _, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {one.split("\n")[0].removeprefix("## "): one for one in sections}


def convert_section(text: str, name: str) -> list[Cell]:
    cells: list[Cell] = []
    end = 0
    for found in CODE.finditer(text):
        cells += convert_text(text[end : found.start()], name)
        end = found.end()
        start, solution, check, code = found.groups()
        if start is not None:
            cells += convert_exercise(start, solution, check)
        elif ">>> " in code:
            cells += convert_dialogue(code)
        else:
            cells.append(Cell("code", code))
    return cells + convert_text(text[end:], name)


def convert_text(text: str, name: str) -> list[Cell]:
    """A markdown cell for each heading with its text."""
    if "<details" in text or "```python" in text:
        raise ValueError(
            f"{name} has a solution or a python block that is not at the margin or not in the order gap, <details> "
            "with the solution, check; see docs/build_notebooks.py"
        )
    return [Cell("markdown", part) for part in HEADING.split(text) if part.strip()]


def convert_exercise(start: str, solution: str, check: str) -> list[Cell]:
    return [
        Cell("code", start, "exercise", solution),
        Cell("code", check, "check"),
        Cell("markdown", SOLUTION.format(solution.rstrip()), "solution"),
    ]


def convert_dialogue(code: str) -> Iterator[Cell]:
    """Cells of the lines behind `>>>`; one that prints or shows something is the last of its cell."""
    lines: list[str] = []
    for example in doctest.DocTestParser().get_examples(code):
        if lines and (is_definition(example.source) or is_definition(lines[-1])):
            lines.append("\n")
        lines.append(example.source if example.exc_msg is None else catch_error(example.source, example.exc_msg))
        if example.want:
            message = example.exc_msg and example.exc_msg.split(": ", 1)[1]
            yield Cell("code", "".join(lines), output=message or example.want)
            lines = []
    if lines:
        yield Cell("code", "".join(lines), output="")


def is_definition(source: str) -> bool:
    return source.startswith(("def ", "class ", "@"))


def catch_error(source: str, message: str) -> str:
    """The same lines, with the error that they raise printed, so that a notebook runs on."""
    indented = "".join(f"    {line}\n" for line in source.splitlines())
    return f"try:\n{indented}except {message.split(':')[0]} as error:\n    print(error)\n"


# --- from cells to a file ---


def write(cells: list[Cell], lesson: Path) -> str:
    """The text of the .ipynb, as nbformat 4.5 writes it: no outputs, no times, ids that follow the headings."""
    heading, numbers = "opening", Counter[str]()
    written = []
    for cell in cells:
        if found := re.match(r"##+ (.*)", cell.source) if cell.kind == "markdown" else None:
            heading = re.sub(r"\W+", "-", found[1].lower(), flags=re.ASCII).strip("-")[:48]
        numbers[heading] += 1
        written.append(cell_json(cell, f"{heading}-{numbers[heading]}", lesson))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": written,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def cell_json(cell: Cell, name: str, lesson: Path) -> dict[str, Any]:
    content: dict[str, Any] = {"cell_type": cell.kind, "id": name, "metadata": {"tags": [cell.tag]} if cell.tag else {}}
    source = cell.source.strip("\n")
    if cell.kind == "code":
        content |= {"execution_count": None, "outputs": []}
    else:
        if pictures := embed_pictures(source, lesson):
            content["attachments"] = pictures
            source = PICTURE.sub(lambda found: f"{found[1]}attachment:{Path(found[2]).name}{found[3]}", source)
        source = LINK.sub(lambda found: move_link(found, lesson), source)
    return content | {"source": source.splitlines(keepends=True)}


def embed_pictures(source: str, lesson: Path) -> dict[str, dict[str, str]]:
    """The pictures of a text, in base64, so that the notebook shows them wherever it is opened."""
    paths = [lesson.parent / found[2] for found in PICTURE.finditer(source)]
    return {path.name: {"image/png": base64.b64encode(path.read_bytes()).decode()} for path in paths}


def move_link(found: re.Match[str], lesson: Path) -> str:
    """A link of a lesson, from the folder of the notebooks."""
    opening, target, anchor, closing = found.groups(default="")
    path = (lesson.parent / target).resolve()
    return f"{opening}{os.path.relpath(path, FOLDER)}{anchor}{closing}" if path.exists() else found[0]


def build(folder: Path = FOLDER) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for notebook in NOTEBOOKS:
        paths.append(folder / f"{notebook.name}.ipynb")
        paths[-1].write_text(write(convert(notebook), DOCS / notebook.lesson), "utf-8")
    return paths


if __name__ == "__main__":
    for path in build():
        print(path.relative_to(DOCS.parent))
