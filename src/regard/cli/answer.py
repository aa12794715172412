"""A picture and questions about it, in a list, from a pipe or typed one by one, in; their answers out."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Checkpoint, Device, Model, device_of, file_for, texts_in
from regard.cli.translate import ask, write

if TYPE_CHECKING:
    from torch import Tensor

    from regard.tasks.answer import Answerer


def answer(
    model: Model,
    picture: Annotated[Path, typer.Argument(help="A PNG or JPEG file.")],
    question: Annotated[
        str | None, typer.Argument(help="Without one, those of a file, a pipe or what you type.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A text file with a question on every line; - for a pipe.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write here instead of the terminal.")] = None,
    best: Annotated[int, typer.Option(min=1, help="So many answers, the most probable first.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Write each answer's probability behind it.")] = False,  # noqa: FBT002
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Answer questions about a picture.

    To train on your own: a .tsv with lines of picture, tab, question, tab, answer, or a .jsonl with the fields picture,
    question and answer; paths of pictures are seen from the file. A folder or archive laid out as easy-VQA is will do
    too: images/0.png … and questions.json, a list of [question, answer, number of the picture].

    Example: `regard answer run picture.png "what colour is the circle"`

    Example: `regard answer run picture.png --file questions.txt --scores`
    """
    from regard.tasks.answer import Answerer
    from regard.text.images import read_picture

    out = out and file_for(out)
    if question is not None and file is not None:
        raise ValueError(f"give the question, or the file {file}, not both")
    answerer = Answerer.load(model, device_of(device), checkpoint)
    pixels = answerer.sight.fitted(read_picture(picture, mode="RGB" if answerer.sight.channels == 3 else "L"))
    best = min(best, len(answerer.labels))
    scores = scores or best > 1
    if question is not None:
        write(answers(answerer, pixels, [question], best, scores=scores), out, "answered")
        return
    if file is None and sys.stdin.isatty():
        converse(answerer, pixels, best, scores=scores)
        return
    questions, where = texts_in(None if file is None else str(file))
    if empty := [number for number, text in enumerate(questions, 1) if not text.strip()]:
        raise ValueError(f"{where(empty[0])}: the question is empty; give at least one word, or remove the line")
    if not questions:
        raise ValueError(f"{file or 'stdin'}: no question; give at least one")
    write(answers(answerer, pixels, questions, best, scores=scores), out, "answered")


def answers(
    answerer: "Answerer", pixels: "Tensor", questions: Sequence[str], best: int, *, scores: bool
) -> Iterator[str]:
    from regard.tasks.questions import Question
    from regard.text.pictures import Picture

    shown = Picture(pixels, "", "the picture")
    most = answerer.probabilities([Question(shown, text) for text in questions]).topk(best)
    for found, chances in zip(most.indices.tolist(), most.values.tolist(), strict=True):
        named = zip((answerer.labels.name(n) for n in found), chances, strict=True)
        yield "\t".join(f"{name}\t{chance:.4f}" if scores else name for name, chance in named)


def converse(answerer: "Answerer", pixels: "Tensor", best: int, *, scores: bool) -> None:
    """A prompt; a mistake is said, and the next question is asked for."""
    typer.echo("Type a question about the picture; an empty line or Ctrl-D leaves.", err=True)
    while line := ask():
        try:
            for said in answers(answerer, pixels, [line], best, scores=scores):
                typer.echo(said)
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
