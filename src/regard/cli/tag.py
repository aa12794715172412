"""`regard tag`: tags the words of sentences, in the format of the input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    CheckpointOption,
    DeviceOption,
    MaxLength,
    ModelArgument,
    OutOption,
    read_input,
    resolve_device,
    writable_file,
)
from regard.tasks.registry import MAX_SENTENCE_TOKENS

if TYPE_CHECKING:
    from regard.data.tagged import TaggedSentence
    from regard.tasks.tagging.task import Tagger


def tag(
    model: ModelArgument,
    file: Annotated[
        str | None,
        typer.Argument(help="A .conllu, a .tsv of words, a text with a sentence a line, one in quotes, or -."),
    ] = None,
    out: OutOption = None,
    max_length: MaxLength = MAX_SENTENCE_TOKENS,
    checkpoint: CheckpointOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Tag the words of sentences. A .conllu keeps its other columns; words of plain text are separated by blanks.

    Example: `regard tag tagger dev.conllu --out tagged.conllu`

    Example: `echo "the black cat ate the mouse" | regard tag tagger -`

    Example: `regard tag tagger text.txt --out text.tsv`
    """
    from regard.tasks.tagging.task import Tagger

    out = out and writable_file(out)
    tagger = Tagger.load(model, resolve_device(device), checkpoint)
    if file is None and sys.stdin.isatty():
        prompt_loop(tagger, max_length)
        return
    write_tagged(
        tag_sentences(tagger, read_plain_sentences(file), file or "stdin", max_length),
        out,
        conllu=file is not None and ".conllu" in Path(file).suffixes,
    )


def read_plain_sentences(file: str | None) -> "Iterator[TaggedSentence]":
    """Columns of a .conllu or .tsv file; otherwise one sentence per line. Lines without words are skipped."""
    from regard.data.files import file_format
    from regard.data.tagged import NO_VALUE, TaggedSentence, read_tagged

    if file is not None and file_format(Path(file)) in (".conllu", ".tsv"):
        yield from read_tagged(file)
        return
    for line in read_input(file).texts:
        if words := line.split():
            yield TaggedSentence(tuple(words), (NO_VALUE,) * len(words))


def tag_sentences(
    tagger: "Tagger", sentences: "Iterable[TaggedSentence]", name: str, max_length: int
) -> "Iterator[TaggedSentence]":
    """The sentences with the model's tags, a window at a time."""
    from regard.cli.input_checks import refuse_long
    from regard.data.files import chunks
    from regard.decode.translate import WINDOW
    from regard.tasks.tagging.task import without_tags

    first = 1
    for some in chunks(sentences, WINDOW, lambda sentence: sum(map(len, sentence.words))):
        examples = [tagger.example(without_tags(one), f"sentence {number}") for number, one in enumerate(some, first)]
        pieces = (example.pieces.ids for example in examples)
        refuse_long(pieces, lambda number: f"{name}: sentence {number}", max_length, first)
        for one, tags in zip(some, tagger.predict(some), strict=True):
            yield one.with_tags(tags)
        first += len(some)
    if first == 1:
        raise ValueError(f"{name}: no sentence to tag; give at least one")


def write_tagged(tagged: "Iterable[TaggedSentence]", out: Path | None, *, conllu: bool) -> None:
    from regard.data.tagged import format_conllu, format_two_columns, write_columns, write_conllu

    if out is None:
        for number, one in enumerate(tagged, 1):
            lines = format_conllu(one, f"sentence {number}") if conllu else format_two_columns(one)
            typer.echo("\n".join(lines) + "\n")
        return
    count = (write_conllu if conllu else write_columns)(tagged, out)
    typer.echo(f"tagged: {out}, {count:,} sentences", err=True)


def prompt_loop(tagger: "Tagger", max_length: int) -> None:
    """Reads lines at a prompt; an error is printed, and the loop continues."""
    from regard.cli.input_checks import refuse_long
    from regard.cli.translate import read_line
    from regard.tasks.tagging.cli import parse_sentence

    typer.echo("Type a sentence; an empty line or Ctrl-D exits.", err=True)
    while line := read_line():
        try:
            sentence = parse_sentence(tagger, line)
            refuse_long([tagger.example(sentence).pieces.ids], lambda _: "this line", max_length)
            tags = tagger.predict([sentence])[0]
            typer.echo(" ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, tags, strict=True)))
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
