"""`regard classify`: classifies lines of a file, of stdin or typed at a prompt."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    CheckpointOption,
    DeviceOption,
    InputLines,
    MaxLength,
    ModelArgument,
    OutOption,
    TextArgument,
    read_input,
    resolve_device,
    with_progress,
    writable_file,
)
from regard.cli.translate import read_line, write_lines
from regard.tasks.registry import MAX_TEXT_TOKENS

if TYPE_CHECKING:
    from regard.tasks.sequence_classification.task import Classification, TextClassifier

BATCH_LINES = 256  # lines that are read together


def classify(
    model: ModelArgument,
    file: TextArgument = None,
    out: OutOption = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each label's probability behind it.")] = False,  # noqa: FBT002
    all_labels: Annotated[  # noqa: FBT002
        bool, typer.Option("--all-labels", "--every", help="All labels with their probabilities, as columns.")
    ] = False,
    max_length: MaxLength = MAX_TEXT_TOKENS,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse empty lines.")] = False,  # noqa: FBT002
    checkpoint: CheckpointOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Classify each line of a file; without one, what you type. An empty line stays empty.

    Example: `regard classify run reviews.txt --scores`

    Example: `echo "the beautiful girl smiles" | regard classify run -`

    Example: `regard classify run reviews.txt --all-labels --out labels.tsv`
    """
    from regard.data.files import chunks
    from regard.tasks.sequence_classification.task import TextClassifier

    out = out and writable_file(out)
    if file is None and sys.stdin.isatty():
        prompt_loop(
            TextClassifier.load(model, resolve_device(device), checkpoint),
            max_length,
            scores=scores,
            all_labels=all_labels,
        )
        return
    inputs, chosen = read_input(file), resolve_device(device)
    classifier = TextClassifier.load(model, chosen, checkpoint)
    texts = check_texts(classifier, inputs, max_length, strict=strict)
    lines = (
        line
        for some in chunks(texts, BATCH_LINES)
        for line in label_lines(classifier, some, chosen, scores=scores, all_labels=all_labels)
    )
    if out or not sys.stdout.isatty():
        lines = with_progress(lines, "classifying", inputs.count)
    write_lines(lines, out, "classified")


def check_texts(classifier: "TextClassifier", inputs: InputLines, max_length: int, *, strict: bool) -> Iterator[str]:
    """The texts, each checked before it is yielded."""
    from regard.cli.input_checks import refuse_long

    for number, text in enumerate(inputs.texts, 1):
        if strict and not text.strip():
            raise ValueError(
                f"{inputs.location(number)}: the line is empty; remove it, or leave out --strict to keep it empty"
            )
        refuse_long([classifier.tokenizer.encode(text)], inputs.location, max_length, number)
        yield text


def label_lines(
    classifier: "TextClassifier", texts: list[str], device: str, *, scores: bool, all_labels: bool
) -> "list[str]":
    """One line of output per text."""
    predictions = iter(classifier.predict([text for text in texts if text.strip()], device))
    return [
        label_line(classifier, next(predictions), scores=scores, all_labels=all_labels) if text.strip() else ""
        for text in texts
    ]


def label_line(classifier: "TextClassifier", one: "Classification", *, scores: bool, all_labels: bool) -> str:
    if all_labels:
        rows = zip(classifier.labels.names, one.probabilities, strict=True)
        return "\t".join(f"{name}={probability:.4f}" for name, probability in rows)
    return f"{one.label}\t{one.probability:.4f}" if scores else one.label


def prompt_loop(classifier: "TextClassifier", max_length: int, *, scores: bool, all_labels: bool) -> None:
    """Reads lines at a prompt; an error is printed, and the loop continues."""
    from regard.cli.input_checks import refuse_long

    device = str(next(classifier.model.parameters()).device)
    typer.echo("Type a text; an empty line or Ctrl-D exits.", err=True)
    while line := read_line():
        try:
            refuse_long([classifier.tokenizer.encode(line)], lambda _: "this line", max_length)
            typer.echo(label_lines(classifier, [line], device, scores=scores, all_labels=all_labels)[0])
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
