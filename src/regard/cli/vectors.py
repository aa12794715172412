"""Texts in; a vector for each word out, in a file; and such a file in, a word's nearest neighbours out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import DataFolder, file_for

vectors = typer.Typer(
    no_args_is_help=True,
    help="""Static word vectors (skip-gram): learn them from texts, and ask for neighbours.

    Example: `regard vectors near vectors.txt light`
    """,
)


@vectors.command()
def learn(
    texts: Annotated[
        list[Path] | None, typer.Argument(help="Plain text, a sentence or a document a line; .gz and .xz too.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file of vectors, in the form of word2vec.")] = Path("vectors.txt"),
    corpus: Annotated[
        list[str] | None, typer.Option(help="The training texts of sst2 or imdb as well; may be given twice.")
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Of the vectors.")] = 128,
    window: Annotated[int, typer.Option(min=1, help="Words to either side that are near.")] = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the texts.")] = 3,
    least: Annotated[int, typer.Option(min=1, help="Words that occur more seldom have no vector.")] = 3,
    lower: Annotated[bool, typer.Option("--lower", help="Read all as lower case.")] = False,  # noqa: FBT002
    language: Annotated[str, typer.Option(help="en, de or fr: punctuation becomes words of its own.")] = "",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    data: DataFolder = None,
) -> None:
    """Learn a vector for every word by telling its neighbours from other words (Mikolov et al. 2013).

    Example: `regard vectors learn text.txt --out vectors.txt`

    Example: `regard vectors learn --corpus imdb --corpus sst2 --lower --language en --data corpora --out vectors.txt`
    """
    from regard.models.wordvectors import SkipGram, train_vectors
    from regard.text.normal import Normal

    out, normal = file_for(out), Normal(lower=lower, language=language or None)
    lines = list(read(texts or [], corpus or [], data))
    if not lines:
        raise ValueError("no text to learn from; name files, or a corpus with --corpus")
    how = SkipGram(width=width, window=window, epochs=epochs, least=least, batch=8192, keep=1e-4, seed=seed)
    with progress() as seen:
        found = train_vectors([normal.apply(line).split() for line in lines], how, seen)
    found.save(out)
    typer.echo(f"learnt: {out}, {len(found.words):,} words")


def read(texts: list[Path], corpora: list[str], data: Path | None) -> Iterator[str]:
    from regard.tasks.classify import ClassifyData, known_texts
    from regard.text.files import read_lines

    for path in texts:
        yield from read_lines(path)
    for name in corpora:
        asked = ClassifyData(corpus=name, phrases=name == "sst2")
        yield from (one.text.replace("<br />", " ") for one in known_texts(asked, name, "train", data))


@contextmanager
def progress() -> "Iterator[Callable[[float], None]]":
    """A bar that hears which share is done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("learning", total=1.0)
        yield lambda done: bar.update(task, completed=done)


@vectors.command()
def near(
    file: Annotated[Path, typer.Argument(help="Vectors, as `regard vectors learn` or word2vec writes them.")],
    words: Annotated[list[str], typer.Argument(help="Whose neighbours?")],
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 8,
) -> None:
    """The words whose vectors point most nearly the same way, each with the cosine.

    Example: `regard vectors near vectors.txt light dark`
    """
    from regard.models.wordvectors import WordVectors

    found = WordVectors.load(file)
    for word in words:
        shown = "  ".join(f"{other} {cosine:.2f}" for other, cosine in found.neighbours(word, count))
        typer.echo(f"{word}: {shown}")
