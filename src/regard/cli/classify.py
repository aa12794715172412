"""Lines of a file, of a pipe or typed one by one in; a label for each of them out."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    LONGEST_TEXT,
    Checkpoint,
    Device,
    Lines,
    Longest,
    Model,
    Out,
    Texts,
    device_of,
    file_for,
    texts_in,
    tracked,
)
from regard.cli.translate import ask, write

if TYPE_CHECKING:
    from regard.tasks.classify import Judged, TextClassifier

AT_ONCE = 256  # lines that are read together


def classify(
    model: Model,
    file: Texts = None,
    out: Out = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each label's probability behind it.")] = False,  # noqa: FBT002
    every: Annotated[bool, typer.Option("--every", help="All labels with their probabilities, as columns.")] = False,  # noqa: FBT002
    longest: Longest = LONGEST_TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse empty lines.")] = False,  # noqa: FBT002
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Say what each line of a file is; without one, what you type. An empty line stays empty.

    Example: `regard classify run reviews.txt --scores`

    Example: `echo "the beautiful girl smiles" | regard classify run -`

    Example: `regard classify run reviews.txt --every --out labels.tsv`
    """
    from regard.tasks.classify import TextClassifier
    from regard.text.files import chunks

    out = out and file_for(out)
    if file is None and sys.stdin.isatty():
        converse(TextClassifier.load(model, device_of(device), checkpoint), longest, scores=scores, every=every)
        return
    given, chosen = texts_in(file), device_of(device)
    classifier = TextClassifier.load(model, chosen, checkpoint)
    texts = checked(classifier, given, longest, strict=strict)
    lines = (
        line
        for some in chunks(texts, AT_ONCE)
        for line in lines_of(classifier, some, chosen, scores=scores, every=every)
    )
    if out or not sys.stdout.isatty():
        lines = tracked(lines, "classifying", given.count)
    write(lines, out, "classified")


def checked(classifier: "TextClassifier", given: Lines, longest: int, *, strict: bool) -> Iterator[str]:
    """The texts, each looked at before it is passed on."""
    from regard.cli.check import refuse_long

    for number, text in enumerate(given.texts, 1):
        if strict and not text.strip():
            raise ValueError(
                f"{given.where(number)}: the line is empty; remove it, or leave out --strict to keep it empty"
            )
        refuse_long([classifier.words.encode(text)], given.where, longest, number)
        yield text


def lines_of(classifier: "TextClassifier", texts: list[str], device: str, *, scores: bool, every: bool) -> "list[str]":
    """A line for a line."""
    judged = iter(classifier.judge([text for text in texts if text.strip()], device))
    return [said(classifier, next(judged), scores=scores, every=every) if text.strip() else "" for text in texts]


def said(classifier: "TextClassifier", one: "Judged", *, scores: bool, every: bool) -> str:
    if every:
        all_labels = zip(classifier.labels.names, one.probabilities, strict=True)
        return "\t".join(f"{name}={probability:.4f}" for name, probability in all_labels)
    return f"{one.label}\t{one.probability:.4f}" if scores else one.label


def converse(classifier: "TextClassifier", longest: int, *, scores: bool, every: bool) -> None:
    """A prompt; a mistake is said, and the next line is asked for."""
    from regard.cli.check import refuse_long

    device = str(next(classifier.model.parameters()).device)
    typer.echo("Type a text; an empty line or Ctrl-D leaves.", err=True)
    while line := ask():
        try:
            refuse_long([classifier.words.encode(line)], lambda _: "this line", longest)
            typer.echo(lines_of(classifier, [line], device, scores=scores, every=every)[0])
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
