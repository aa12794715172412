"""A trained tagger and sentences in; their words with a tag each out, in the format they came in."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import LONGEST, Checkpoint, Device, Longest, Model, Out, device_of, file_for, texts_in

if TYPE_CHECKING:
    from regard.tasks.tag import Tagger
    from regard.text.conllu import Tagged


def tag(
    model: Model,
    file: Annotated[
        str | None,
        typer.Argument(help="A .conllu, a .tsv of words, a text with a sentence a line, one in quotes, or -."),
    ] = None,
    out: Out = None,
    longest: Longest = LONGEST,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Tag the words of sentences. A .conllu keeps all its columns but the tags; text has words between blanks.

    Example: `regard tag tagger dev.conllu --out tagged.conllu`

    Example: `echo "the black cat ate the mouse" | regard tag tagger -`

    Example: `regard tag tagger text.txt --out text.tsv`
    """
    from regard.tasks.tag import Tagger

    out = out and file_for(out)
    tagger = Tagger.load(model, device_of(device), checkpoint)
    if file is None and sys.stdin.isatty():
        converse(tagger, longest)
        return
    write(
        tagged(tagger, read(file), file or "stdin", longest),
        out,
        conllu=file is not None and ".conllu" in Path(file).suffixes,
    )


def read(file: str | None) -> "Iterator[Tagged]":
    """Columns by the file's name; otherwise a sentence a line. Lines without words are passed over."""
    from regard.text.conllu import NONE, Tagged, read_tagged
    from regard.text.corpus import kind

    if file is not None and kind(Path(file)) in (".conllu", ".tsv"):
        yield from read_tagged(file)
        return
    for line in texts_in(file).texts:
        if words := line.split():
            yield Tagged(tuple(words), (NONE,) * len(words))


def tagged(tagger: "Tagger", sentences: "Iterable[Tagged]", name: str, longest: int) -> "Iterator[Tagged]":
    """The sentences with the model's tags, some of them at a time."""
    from regard.cli.check import refuse_long
    from regard.decode.texts import WINDOW
    from regard.tasks.tag import untagged
    from regard.text.files import chunks

    first = 1
    for some in chunks(sentences, WINDOW, lambda sentence: sum(map(len, sentence.words))):
        examples = [tagger.example(untagged(one), f"sentence {number}") for number, one in enumerate(some, first)]
        pieces = (example.pieces.ids for example in examples)
        refuse_long(pieces, lambda number: f"{name}: sentence {number}", longest, first)
        for one, tags in zip(some, tagger.tags(some), strict=True):
            yield one.retagged(tags)
        first += len(some)
    if first == 1:
        raise ValueError(f"{name}: no sentence to tag; give at least one")


def write(tagged: "Iterable[Tagged]", out: Path | None, *, conllu: bool) -> None:
    from regard.text.conllu import ten_columns, two_columns, write_columns, write_conllu

    if out is None:
        for number, one in enumerate(tagged, 1):
            lines = ten_columns(one, f"sentence {number}") if conllu else two_columns(one)
            typer.echo("\n".join(lines) + "\n")
        return
    count = (write_conllu if conllu else write_columns)(tagged, out)
    typer.echo(f"tagged: {out}, {count:,} sentences", err=True)


def converse(tagger: "Tagger", longest: int) -> None:
    """A prompt; a mistake is said, and the next line is asked for."""
    from regard.cli.check import refuse_long
    from regard.cli.tasks.tag import sentence_of
    from regard.cli.translate import ask

    typer.echo("Type a sentence; an empty line or Ctrl-D leaves.", err=True)
    while line := ask():
        try:
            sentence = sentence_of(tagger, line)
            refuse_long([tagger.example(sentence).pieces.ids], lambda _: "this line", longest)
            tags = tagger.tags([sentence])[0]
            typer.echo(" ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, tags, strict=True)))
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
