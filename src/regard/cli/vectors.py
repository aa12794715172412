"""`regard vectors`: trains skip-gram word vectors and lists nearest neighbours."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import DataFolder, writable_file

vectors = typer.Typer(
    no_args_is_help=True,
    help="""Static word vectors (skip-gram): train them on texts, and list nearest neighbours.

    Example: `regard vectors near vectors.txt light`
    """,
)


@vectors.command()
def learn(
    texts: Annotated[
        list[Path] | None, typer.Argument(help="Plain text, one sentence or document per line; .gz and .xz too.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file of vectors, in word2vec text format.")] = Path("vectors.txt"),
    corpus: Annotated[
        list[str] | None, typer.Option(help="The training texts of sst2 or imdb as well; repeatable.")
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Width of the vectors.")] = 128,
    window: Annotated[int, typer.Option(min=1, help="Context window, words to either side.")] = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the texts.")] = 3,
    least: Annotated[
        int, typer.Option("--min-count", "--least", min=1, help="Minimum count; rarer words have no vector.")
    ] = 3,
    lower: Annotated[bool, typer.Option("--lower", help="Lower-case the texts.")] = False,  # noqa: FBT002
    language: Annotated[str, typer.Option(help="en, de or fr: punctuation becomes separate words.")] = "",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    data: DataFolder = None,
) -> None:
    """Train skip-gram vectors with negative sampling (Mikolov et al. 2013).

    Example: `regard vectors learn text.txt --out vectors.txt`

    Example: `regard vectors learn --corpus imdb --corpus sst2 --lower --language en --data corpora --out vectors.txt`
    """
    from regard.data.tokenizers.normalization import TextNormalizer
    from regard.models.word_vectors import SkipGram, train_vectors

    out, normal = writable_file(out), TextNormalizer(lower=lower, language=language or None)
    lines = list(read_texts(texts or [], corpus or [], data))
    if not lines:
        raise ValueError("no text to train on; name files, or a corpus with --corpus")
    how = SkipGram(width=width, window=window, epochs=epochs, min_count=least, batch=8192, subsample=1e-4, seed=seed)
    with progress() as seen:
        found = train_vectors([normal.apply(line).split() for line in lines], how, seen)
    found.save(out)
    typer.echo(f"trained: {out}, {len(found.words):,} words")


def read_texts(texts: list[Path], corpora: list[str], data: Path | None) -> Iterator[str]:
    from regard.data.files import read_lines
    from regard.tasks.sequence_classification.task import ClassificationData

    for path in texts:
        yield from read_lines(path)
    for name in corpora:
        known = ClassificationData(corpus=name, phrases=name == "sst2")
        yield from (one.text.replace("<br />", " ") for one in known.from_corpus("train", data))


@contextmanager
def progress() -> "Iterator[Callable[[float], None]]":
    """A progress bar, updated with the fraction done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=1.0)
        yield lambda done: bar.update(task, completed=done)


@vectors.command()
def near(
    file: Annotated[Path, typer.Argument(help="Vectors, as `regard vectors learn` or word2vec writes them.")],
    words: Annotated[list[str], typer.Argument(help="Words to list the neighbours of.")],
    count: Annotated[int, typer.Option(min=1, help="Number of neighbours.")] = 8,
) -> None:
    """Nearest neighbours by cosine similarity.

    Example: `regard vectors near vectors.txt light dark`
    """
    from regard.models.word_vectors import WordVectors

    vectors = WordVectors.load(file)
    for word in words:
        shown = "  ".join(f"{other} {cosine:.2f}" for other, cosine in vectors.neighbours(word, count))
        typer.echo(f"{word}: {shown}")
