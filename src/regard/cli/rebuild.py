"""An autoencoder and sentences in; each as it is rebuilt from its latent out, sentences between two, or a map."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    LONGEST,
    Checkpoint,
    Device,
    Longest,
    Model,
    Out,
    Texts,
    device_of,
    files_for,
    texts_in,
    tracked,
)
from regard.cli.translate import ask, write

if TYPE_CHECKING:
    from regard.tasks.rebuild import Rebuilder


def rebuild(
    model: Model,
    file: Texts = None,
    out: Out = None,
    between: Annotated[
        tuple[str, str] | None, typer.Option(help="Instead of a file two sentences: write those between them.")
    ] = None,
    points: Annotated[int | None, typer.Option(min=2, help="So many sentences with --between, else 5.")] = None,
    latents: Annotated[
        Path | None, typer.Option(help="Draw here (.png, .svg or .pdf) where the latents of the file's lines lie.")
    ] = None,
    longest: Longest = LONGEST,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Send sentences through a latent of fixed size, and write what comes out; without a file, what you type.

    Example: `regard rebuild run text.txt --out rebuilt.txt`

    Example: `echo "the black cat ate the mouse" | regard rebuild run -`

    Example: `regard rebuild run --between "she sold a book" "the old man will sleep" --points 7`

    Example: `regard rebuild run text.txt --latents map.png`
    """
    from regard.decode.rebuilt import rebuilt, sentences_between
    from regard.tasks.rebuild import Rebuilder

    out, latents = files_for(out=out, latents=latents)
    if between and (file or latents):
        raise ValueError("--between is given two sentences; leave out the file and --latents")
    if points and not between:
        raise ValueError(f"--points {points} is for the way between two sentences; add --between ONE OTHER")
    rebuilder = Rebuilder.load(model, device_of(device), checkpoint)
    if between:
        one, other = checked(rebuilder, between, lambda number: f"sentence {number}", longest)
        write(sentences_between(rebuilder, one, other, points or 5), out, "written")
        return
    if file is None and sys.stdin.isatty() and not latents:
        converse(rebuilder, longest)
        return
    given = texts_in(file)
    texts = checked(rebuilder, given.texts, given.where, longest)
    if latents:
        name = "stdin" if file in (None, "-") else file
        texts = list(texts)  # they are all on the map
        typer.echo(f"drawn: {map_of(rebuilder, texts, name, latents)}", err=True)
    write(tracked(rebuilt(rebuilder, texts), "rebuilding", given.count), out, "rebuilt")


def checked(rebuilder: "Rebuilder", texts: Iterable[str], where: Callable[[int], str], longest: int) -> Iterator[str]:
    """The same texts: what is too long is refused; of what cannot come back it is said where it stands first."""
    from regard.cli.check import refuse_long
    from regard.text.vocabulary import UNK

    number = first = unknown = 0
    for number, text in enumerate(texts, 1):
        ids = rebuilder.words.encode(text)
        refuse_long([ids], where, longest, number)
        if UNK in ids:
            first, unknown = first or number, unknown + 1
        yield text
    if unknown:
        what, count = "words unknown to the model, which cannot come back", f"{unknown:,} of {number:,}"
        typer.echo(f"regard: {where(first)}: {what}; in {count} in all", err=True)


def map_of(rebuilder: "Rebuilder", texts: list[str], name: str, path: Path) -> Path:
    """Where the latents lie on the two axes along which they differ most, coloured by the sentences' lengths."""
    from regard import see
    from regard.decode.latents import latents_of
    from regard.see.latent import latents

    full = [text for text in texts if text.strip()]
    if len(full) < 2:
        raise ValueError(f"{name}: a map needs 2 sentences or more, not {len(full)}; leave out --latents")
    view = latents(latents_of(rebuilder.model, rebuilder.words.encode_all(full)), by_length(full), full)
    return see.save(see.draw(view), path)


def by_length(texts: Sequence[str]) -> list[str]:
    """To each sentence its group; about a third of them is in each."""
    sizes = [len(text.split()) for text in texts]
    low, high = (sorted(sizes)[len(sizes) * n // 3] for n in (1, 2))
    return [
        f"up to {low} words" if size <= low else f"up to {high} words" if size <= high else f"over {high} words"
        for size in sizes
    ]


def converse(rebuilder: "Rebuilder", longest: int) -> None:
    """A prompt; a mistake is said, and the next line is asked for."""
    from regard.decode.rebuilt import rebuilt

    typer.echo("Type a sentence; an empty line or Ctrl-D leaves.", err=True)
    while line := ask():
        try:
            typer.echo(next(rebuilt(rebuilder, list(checked(rebuilder, [line], lambda _: "this line", longest)))))
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
