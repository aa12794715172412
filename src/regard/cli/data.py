"""The name of a known corpus, or files of your own, in; what is there, whether it is whole, and other formats out."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import DataFolder, Split, tracked

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.text.corpus import Pair
    from regard.text.known import Checked
    from regard.text.named import Known

Name = Annotated[str, typer.Argument(help="The name of a known corpus; regard data lists them.")]
Out = Annotated[
    Path,
    typer.Argument(help="x.tsv, x.jsonl, or x for two text files such as x.en and x.fr; each also with .gz or .xz."),
]

data = typer.Typer(rich_markup_mode="markdown")


@data.callback(invoke_without_command=True)
def listed(context: typer.Context, folder: DataFolder = None) -> None:
    """Corpora: what there is, where it is, and whether it is whole.

    Example: `regard data --data corpora`
    """
    if context.invoked_subcommand is not None:
        source = context.get_parameter_source("folder")
        if source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"--data stands behind {context.invoked_subcommand}, not before it; move it there")
        return
    from rich.console import Console
    from rich.table import Table

    from regard.text.known import KNOWN

    table = Table("name", "languages", "size", "licence", "here", box=None, header_style="bold", pad_edge=False)
    for corpus in KNOWN.values():
        table.add_row(corpus.name, " ".join(corpus.languages), corpus.size, corpus.licence, here(corpus, folder))
    Console().print(table)
    looked = f"Looked in {folder}." if folder else "Nothing was looked for: name a folder with --data or REGARD_DATA."
    typer.echo(f"\n{looked} See regard data show NAME, and regard data --help.")


def here(corpus: "Known", folder: Path | None) -> str:
    from regard.text.known import located

    found = sum(located(part, folder) is not None for part in corpus.parts)
    return "yes" if found == len(corpus.parts) else f"{found} of {len(corpus.parts)}" if found else "no"


@data.command()
def show(name: Name, folder: DataFolder = None) -> None:
    """Show a corpus: its licence, its home, and its files with their checksums.

    Example: `regard data show multi30k --data corpora`
    """
    from regard.text.known import known, located

    corpus = known(name)
    given = "may" if corpus.ships else "may not"
    typer.echo(f"{corpus.name}: {corpus.title}; {corpus.size}")
    typer.echo(f"licence: {corpus.licence}; weights trained on it {given} be given to others")
    typer.echo(f"home: {corpus.homepage}")
    for address in corpus.originals:
        typer.echo(f"public archive: {address}")
    if corpus.note:
        typer.echo(f"note: {corpus.note}")
    for part in corpus.parts:
        typer.echo(f"\n{part.split} {'-'.join(part.languages)}".rstrip() + f": {located(part, folder) or 'not here'}")
        typer.echo(f"  sha256 of its content: {part.sha256}")
        if part.address:
            typer.echo(f"  from: {part.address}")


@data.command()
def check(name: Name, folder: DataFolder = None) -> None:
    """Compare the files that are here with the checksums of those that are known.

    Another version is reported, not refused; only what cannot be read is an error.

    Example: `regard data check multi30k --data corpora`
    """
    from regard.text.known import State, find, known
    from regard.text.known import check as checks

    corpus = known(name)
    find(corpus, corpus.parts, folder)
    # all are compared before the first is reported: lines in between would tear the progress bar
    states = [report(one) for one in list(tracked(checks(corpus, folder), "checking", len(corpus.parts)))]
    if State.OTHER in states and corpus.note:
        typer.echo(f"note: {corpus.note}")
    if broken := states.count(State.DAMAGED):
        raise ValueError(f"{broken} of {len(states)} files of {name} cannot be read; fetch or copy them again")


def report(checked: "Checked") -> str:
    what = f": {checked.why}" if checked.why else f": {checked.path}" if checked.path else ""
    typer.echo(f"{checked.part.path}: {checked.state}{what}")
    return checked.state


@data.command()
def convert(
    given: Annotated[
        list[str], typer.Argument(metavar="FROM", help="A known corpus, a .tsv or .jsonl, or two text files.")
    ],
    out: Out,
    split: Annotated[Split, typer.Option(help="For a known corpus.")] = "train",
    source: Annotated[str, typer.Option("--from", "--source", help="The language of the first side.")] = "source",
    target: Annotated[str, typer.Option("--to", "--target", help="The language of the second side.")] = "target",
    skip_empty: Annotated[bool, typer.Option("--skip-empty", help="Leave out pairs with an empty side.")] = False,  # noqa: FBT002
    folder: DataFolder = None,
) -> None:
    """Write pairs in another format: two text files, .tsv or .jsonl, plain, .gz or .xz.

    The languages also name the fields of a .jsonl, and the endings of two text files.

    Example: `regard data convert multi30k train.jsonl --from de --to en --data corpora`

    Example: `regard data convert mine.en mine.de mine.jsonl.gz --from en --to de`

    Example: `regard data convert mine.tsv mine --from en --to de` (writes mine.en and mine.de)
    """
    from regard.text.corpus import read_pairs, refuse
    from regard.text.known import KNOWN, known_pairs

    skipped: list[str] = []
    if len(given) == 1 and given[0] in KNOWN:
        pairs = known_pairs(given[0], split, source, target, folder)
    else:
        blank: Callable[[str], object] = skipped.append if skip_empty else refuse
        pairs = read_pairs(given, fields=(source, target), blank=blank)
    written(pairs, out, (source, target))
    for sentence in (*skipped[:3], *(["…"] if len(skipped) > 3 else [])):
        typer.echo(f"left out: {sentence}", err=True)
    if skipped:
        typer.echo(f"left out in all: {len(skipped):,}", err=True)


@data.command()
def world(
    out: Out,
    sentences: Annotated[int, typer.Option(min=1, help="How many.")] = 1000,
    target: Annotated[str, typer.Option("--to", "--target", help="fr or de.")] = "fr",
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other sentences.")] = 0,
    longest: Annotated[int, typer.Option(help="At most so many English words.")] = 12,
    split: Annotated[Split, typer.Option(help="valid and test hold compositions that train never shows.")] = "train",
) -> None:
    """Write sentences of the miniature world, to look at or to train other tools on.

    Example: `regard data world train.tsv --sentences 60000 --to fr`
    """
    from regard.text.corpus import Pair
    from regard.world import World, pairs

    made = pairs(World(seed=seed, longest=longest), target, sentences, split)
    written((Pair(*pair) for pair in made), out, ("en", target), sentences)


def written(pairs: "Iterable[Pair]", out: Path, languages: tuple[str, str], total: int | None = None) -> None:
    from regard.text.writing import write_pairs

    done = write_pairs(tracked(pairs, "writing", total), out, languages)
    typer.echo(f"written: {' and '.join(map(str, done.paths))}, {done.pairs:,} pairs")


@data.command()
def fetch(name: Name, folder: Annotated[Path, typer.Argument(help="Where known corpora are kept.")]) -> None:
    """Download a corpus from its public home. What is already there stays.

    Example: `regard data fetch multi30k corpora`
    """
    from regard.text.fetch import download, missing
    from regard.text.known import State, checked, known

    corpus = known(name)
    typer.echo(f"{corpus.name}: {corpus.licence} ({corpus.homepage})")
    wanted = list(missing(corpus, folder))
    for address, path in wanted:
        with arrival(path.name) as seen:
            download(address, path, seen=seen)
        for part in corpus.parts:
            if part.address == address and report(compared := checked(part, path)) == State.DAMAGED:
                path.unlink()
                raise ValueError(f"{address}: what arrived cannot be read ({compared.why}); try again")
        if address in corpus.originals:
            typer.echo(f"fetched: {path}; now make the files of {name} from it")
    if not wanted:
        typer.echo(f"all of it is in {folder} already")
    if corpus.note:
        typer.echo(f"note: {corpus.note}")


# --- progress, for a person who waits ---


@contextmanager
def arrival(name: str) -> "Iterator[Callable[[int, int | None], None]]":
    """A bar that hears how many bytes have arrived, and of how many."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)

        def seen(arrived: int, total: int | None) -> None:
            progress.update(task, completed=arrived, total=total)

        yield seen
