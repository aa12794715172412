"""`regard data`: lists, checks, downloads and converts corpora; `regard vectors`: skip-gram word vectors."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import DataFolder, Split, with_progress, writable_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.data.corpora import CorpusInfo, FileCheck
    from regard.data.parallel import SentencePair

CorpusName = Annotated[str, typer.Argument(help="The name of a known corpus; regard data lists them.")]
PAIRS_HELP = "x.tsv, x.jsonl, or x for two text files such as x.en and x.fr; each also with .gz or .xz."
PairsPath = Annotated[Path, typer.Argument(help=PAIRS_HELP)]

data = typer.Typer(rich_markup_mode="markdown")


@data.callback(invoke_without_command=True)
def list_corpora(context: typer.Context, folder: DataFolder = None) -> None:
    """Known corpora: list, show, check, download, convert.

    Example: `regard data --data corpora`
    """
    if context.invoked_subcommand is not None:
        source = context.get_parameter_source("folder")
        if source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"--data goes after the subcommand {context.invoked_subcommand}; move it there")
        return
    from rich.console import Console
    from rich.table import Table

    from regard.data.corpora import CORPORA

    table = Table("name", "languages", "size", "licence", "here", box=None, header_style="bold", pad_edge=False)
    for corpus in CORPORA.values():
        table.add_row(
            corpus.name, " ".join(corpus.languages), corpus.size, corpus.licence, availability(corpus, folder)
        )
    Console().print(table)
    searched = f"Searched {folder}." if folder else "No folder searched: pass --data or set REGARD_DATA."
    typer.echo(f"\n{searched} See regard data show NAME, and regard data --help.")


def availability(corpus: "CorpusInfo", folder: Path | None) -> str:
    from regard.data.corpora import locate_file

    found = sum(locate_file(part, folder) is not None for part in corpus.files)
    return "yes" if found == len(corpus.files) else f"{found} of {len(corpus.files)}" if found else "no"


@data.command()
def show(name: CorpusName, folder: DataFolder = None) -> None:
    """Show a corpus: its licence, its home, and its files with their checksums.

    Example: `regard data show multi30k --data corpora`
    """
    from regard.data.corpora import find_corpus, locate_file

    corpus = find_corpus(name)
    verb = "may" if corpus.redistributable else "may not"
    typer.echo(f"{corpus.name}: {corpus.title}; {corpus.size}")
    typer.echo(f"licence: {corpus.licence}; weights trained on it {verb} be redistributed")
    typer.echo(f"home: {corpus.homepage}")
    for address in corpus.original_urls:
        typer.echo(f"public archive: {address}")
    if corpus.note:
        typer.echo(f"note: {corpus.note}")
    for part in corpus.files:
        typer.echo(
            f"\n{part.split} {'-'.join(part.languages)}".rstrip() + f": {locate_file(part, folder) or 'not here'}"
        )
        typer.echo(f"  sha256 of its content: {part.sha256}")
        if part.url:
            typer.echo(f"  from: {part.url}")


@data.command()
def check(name: CorpusName, folder: DataFolder = None) -> None:
    """Compare files with the known checksums.

    Another version is reported, not refused; only an unreadable file is an error.

    Example: `regard data check multi30k --data corpora`
    """
    from regard.data.corpora import FileState, find_corpus, find_file
    from regard.data.corpora import check_corpus as checks

    corpus = find_corpus(name)
    find_file(corpus, corpus.files, folder)
    # all are compared before the first is reported: lines in between would break the progress bar
    states = [report_check(one) for one in list(with_progress(checks(corpus, folder), "checking", len(corpus.files)))]
    if FileState.OTHER_VERSION in states and corpus.note:
        typer.echo(f"note: {corpus.note}")
    if broken := states.count(FileState.DAMAGED):
        raise ValueError(f"{broken} of {len(states)} files of {name} cannot be read; fetch or copy them again")


def report_check(checked: "FileCheck") -> str:
    what = f": {checked.reason}" if checked.reason else f": {checked.path}" if checked.path else ""
    typer.echo(f"{checked.file.path}: {checked.state}{what}")
    return checked.state


@data.command()
def convert(
    inputs: Annotated[
        list[str], typer.Argument(metavar="FROM", help="A known corpus, a .tsv or .jsonl, or two text files.")
    ],
    out: PairsPath,
    split: Annotated[Split, typer.Option(help="For a known corpus.")] = "train",
    source: Annotated[str, typer.Option("--from", "--source", help="The language of the first side.")] = "source",
    target: Annotated[str, typer.Option("--to", "--target", help="The language of the second side.")] = "target",
    skip_empty: Annotated[bool, typer.Option("--skip-empty", help="Skip pairs with an empty side.")] = False,  # noqa: FBT002
    folder: DataFolder = None,
) -> None:
    """Write pairs in another format: two text files, .tsv or .jsonl, plain, .gz or .xz.

    The languages also name the fields of a .jsonl, and the suffixes of two text files.

    Example: `regard data convert multi30k train.jsonl --from de --to en --data corpora`

    Example: `regard data convert mine.en mine.de mine.jsonl.gz --from en --to de`

    Example: `regard data convert mine.tsv mine --from en --to de` (writes mine.en and mine.de)
    """
    from regard.data.corpora import CORPORA, read_corpus_pairs
    from regard.data.parallel import raise_on_empty, read_pairs

    skipped: list[str] = []
    if len(inputs) == 1 and inputs[0] in CORPORA:
        pairs = read_corpus_pairs(inputs[0], split, source, target, folder)
    else:
        blank: Callable[[str], object] = skipped.append if skip_empty else raise_on_empty
        pairs = read_pairs(inputs, fields=(source, target), on_empty=blank)
    write_and_report(pairs, out, (source, target))
    for sentence in (*skipped[:3], *(["…"] if len(skipped) > 3 else [])):
        typer.echo(f"skipped: {sentence}", err=True)
    if skipped:
        typer.echo(f"skipped in total: {len(skipped):,}", err=True)


@data.command()
def world(
    out: Annotated[Path | None, typer.Argument(help=PAIRS_HELP)] = None,
    sentences: Annotated[
        int | None, typer.Option(min=1, help="Number of sentences; default: 1,000 to a file, 10 on the screen.")
    ] = None,
    target: Annotated[str, typer.Option("--to", "--target", help="fr or de, of a file.")] = "fr",
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    max_words: Annotated[
        int, typer.Option("--max-words", "--longest", help="Maximum English words of a sentence.")
    ] = 12,
    split: Annotated[Split, typer.Option(help="valid and test hold compositions that train never shows.")] = "train",
) -> None:
    """Write sentences of the miniature world as a parallel corpus; without a file, print them with all annotation.

    Example: `regard data world train.tsv --sentences 60000 --to fr`

    Example: `regard data world --sentences 3` (translations, alignments, tags, governors and ambiguities)
    """
    from regard.data.parallel import SentencePair
    from regard.world import World, translation_pairs
    from regard.world.world import describe_sentence

    drawn = World(seed=seed, max_length=max_words)
    if out is None:
        for number in range(sentences or 10):
            typer.echo(f"{describe_sentence(drawn.sentence(number, split))}\n")
        return
    count = sentences or 1000
    pairs = translation_pairs(drawn, target, count, split)
    write_and_report((SentencePair(*pair) for pair in pairs), out, ("en", target), count)


def write_and_report(
    pairs: "Iterable[SentencePair]", out: Path, languages: tuple[str, str], total: int | None = None
) -> None:
    from regard.data.parallel import write_pairs

    done = write_pairs(with_progress(pairs, "writing", total), out, languages)
    typer.echo(f"written: {' and '.join(map(str, done.paths))}, {done.pairs:,} pairs")


@data.command()
def fetch(name: CorpusName, folder: Annotated[Path, typer.Argument(help="The folder of known corpora.")]) -> None:
    """Download a corpus from its public URL. Files that exist are kept.

    Example: `regard data fetch multi30k corpora`
    """
    from regard.data.corpora import FileState, check_file, download, find_corpus, missing_downloads

    corpus = find_corpus(name)
    typer.echo(f"{corpus.name}: {corpus.licence} ({corpus.homepage})")
    wanted = list(missing_downloads(corpus, folder))
    for address, path in wanted:
        with download_progress(path.name) as seen:
            download(address, path, on_progress=seen)
        for part in corpus.files:
            if part.url == address and report_check(compared := check_file(part, path)) == FileState.DAMAGED:
                path.unlink()
                raise ValueError(f"{address}: the download cannot be read ({compared.reason}); try again")
        if address in corpus.original_urls:
            typer.echo(f"downloaded: {path}; now extract the files of {name} from it")
    if not wanted:
        typer.echo(f"all files are in {folder} already")
    if corpus.note:
        typer.echo(f"note: {corpus.note}")


# --- progress of downloads ---


@contextmanager
def download_progress(name: str) -> "Iterator[Callable[[int, int | None], None]]":
    """A progress bar, updated with the bytes received and their total."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)

        def seen(arrived: int, total: int | None) -> None:
            progress.update(task, completed=arrived, total=total)

        yield seen


# --- word vectors ---


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
    from regard.data.tokenizers.base import TextNormalizer
    from regard.models.baselines import SkipGram, train_vectors

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
    from regard.models.baselines import WordVectors

    vectors = WordVectors.load(file)
    for word in words:
        shown = "  ".join(f"{other} {cosine:.2f}" for other, cosine in vectors.neighbours(word, count))
        typer.echo(f"{word}: {shown}")
