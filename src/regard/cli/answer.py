"""A picture and questions about it, in a list, from a pipe or typed one by one, in; their answers out."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import LONGEST, Checkpoint, Device, Lines, Model, Out, device_of, file_for, texts_in
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
    out: Out = None,
    best: Annotated[int, typer.Option(min=1, help="So many answers, the most probable first.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Write each answer's probability behind it.")] = False,  # noqa: FBT002
    longest: Annotated[int, typer.Option(min=1, help="Refuse a question of more tokens.")] = LONGEST,
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
    if file is None and question is None and sys.stdin.isatty():
        converse(answerer, pixels, best, longest, scores=scores)
        return
    if question is not None:
        if not question.strip():
            raise ValueError("the question is empty; give at least one word")
        given = Lines(iter([question]), lambda _: "the question", lambda: 1)
    else:
        given = texts_in(None if file is None else str(file))
    questions = checked(answerer, given, file or "stdin", longest)
    write(answers(answerer, pixels, questions, best, scores=scores), out, "answered")


def checked(answerer: "Answerer", given: Lines, name: object, longest: int) -> Iterator[str]:
    """The questions, each looked at before it is passed on."""
    from regard.cli.check import refuse_long

    number = 0
    for number, text in enumerate(given.texts, 1):
        if not text.strip():
            raise ValueError(
                f"{given.where(number)}: the question is empty; give at least one word, or remove the line"
            )
        refuse_long([answerer.words.encode(text)], given.where, longest, number)
        yield text
    if not number:
        raise ValueError(f"{name}: no question; give at least one")


def answers(
    answerer: "Answerer", pixels: "Tensor", questions: Iterable[str], best: int, *, scores: bool
) -> Iterator[str]:
    from regard.tasks.picture import AT_ONCE
    from regard.tasks.questions import Question
    from regard.text.files import chunks
    from regard.text.pictures import Picture

    shown = Picture(pixels, "", "the picture")
    for some in chunks(questions, AT_ONCE):
        most = answerer.probabilities([Question(shown, text) for text in some]).topk(best)
        for found, chances in zip(most.indices.tolist(), most.values.tolist(), strict=True):
            named = zip((answerer.labels.name(n) for n in found), chances, strict=True)
            yield "\t".join(f"{name}\t{chance:.4f}" if scores else name for name, chance in named)


def converse(answerer: "Answerer", pixels: "Tensor", best: int, longest: int, *, scores: bool) -> None:
    """A prompt; a mistake is said, and the next question is asked for."""
    typer.echo("Type a question about the picture; an empty line or Ctrl-D leaves.", err=True)
    while line := ask():
        try:
            given = Lines(iter([line]), lambda _: "this line", lambda: 1)
            for said in answers(answerer, pixels, checked(answerer, given, "", longest), best, scores=scores):
                typer.echo(said)
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
