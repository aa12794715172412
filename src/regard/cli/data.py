"""`regard data`: lists, checks, downloads, converts, cleans and prepares corpora; `regard vectors`: word vectors."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.options import (
    DataFolder,
    LoadOptions,
    MinutesOption,
    ModelArgument,
    SearchOptions,
    Split,
    model_folder,
    shell_command,
    stop_after,
    with_option_groups,
    writable_file,
    writable_folder,
)
from regard.cli.progress import download_progress, progress, step_progress, with_progress

if TYPE_CHECKING:
    from regard.data.cleaning import CleaningReport, CleaningRules, HashSet
    from regard.data.corpora import CorpusInfo, FileCheck
    from regard.data.parallel import SentencePair
    from regard.data.preparation import PairPreparation, Preparation, TextPreparation

CorpusName = Annotated[str, typer.Argument(help="The name of a known corpus; regard data lists them.")]
PAIRS_HELP = "x.tsv, x.jsonl, or x for two text files such as x.en and x.fr; each also with .gz or .xz."
PairsPath = Annotated[Path, typer.Argument(help=PAIRS_HELP)]

SOURCES_HELP = (
    "Known corpora, .tsv and .jsonl files, and pairs of text files, in any number; each with @ and its languages if "
    "they differ, as in europarl@en-de. hf:NAME:CONFIG is a data set of Hugging Face, mtdata:ID one that mtdata knows."
)
SourceOption = Annotated[str, typer.Option("--from", "--source", help="The language of the first side.")]
TargetOption = Annotated[str, typer.Option("--to", "--target", help="The language of the second side.")]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(help="Test sets: pairs with a sentence of theirs are removed. A file, or tatoeba:test; repeatable."),
]

ReverseOption = Annotated[
    bool, typer.Option("--reverse", help="Back-translation: translate targets, into sources of the new pairs.")
]
TEXTS_HELP = (
    "With --task language_modeling: known corpora of running text, text files, documents in a .jsonl, hf:NAME:CONFIG."
)

data = typer.Typer(rich_markup_mode="markdown")


@dataclass(frozen=True)
class CleaningOptions:
    """The options of the cleaning rules."""

    min_words: Annotated[int, typer.Option(min=1, help="Words of a side, at least.")] = 1
    max_words: Annotated[int, typer.Option(min=1, help="Words of a side, at most.")] = 200
    max_ratio: Annotated[
        float,
        typer.Option(min=1, help="One side may have so many times the characters of the other, ten added to both."),
    ] = 3.0
    min_letters: Annotated[float, typer.Option(min=0, max=1, help="The share of letters on a side, at least.")] = 0.5
    keep_identical: Annotated[bool, typer.Option("--keep-identical", help="Keep pairs of the same text.")] = False
    any_language: Annotated[bool, typer.Option("--any-language", help="Do not identify languages.")] = False
    keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep repeated pairs.")] = False

    def build(self) -> "CleaningRules":
        from regard.data.cleaning import CleaningRules

        return CleaningRules(
            min_words=self.min_words,
            max_words=self.max_words,
            max_ratio=self.max_ratio,
            min_letters=self.min_letters,
            identical=not self.keep_identical,
            language=not self.any_language,
            duplicates=not self.keep_duplicates,
        )


@dataclass(frozen=True)
class VocabularyOptions:
    """The options of vocabularies."""

    kind: Annotated[str, typer.Option(help="bpe, unigram, words or characters; of texts also bytes.")] = "bpe"
    vocab_size: Annotated[int, typer.Option(help="Ids of a vocabulary.")] = 16_000
    separate: Annotated[bool, typer.Option("--separate", help="A vocabulary for each side, not a joint one.")] = False
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Text in lower case.")] = False
    vocabulary: Annotated[
        Path | None,
        typer.Option(help="Take the vocabularies of this run, name or prepared corpus instead.", callback=model_folder),
    ] = None

    def text(self, settings: type[Any], **more: Any) -> Any:
        """The table [text] of a run: of the vocabularies in a folder, or of what is asked for."""
        from regard.data.preparation import vocabulary_text
        from regard.training.checkpoint import SETTINGS

        table = type(settings().text)
        if self.vocabulary is None:
            return table(kind=self.kind, vocab_size=self.vocab_size, lowercase=self.lowercase, **more)
        prepared = vocabulary_text(self.vocabulary)
        return table(**prepared) if prepared else settings.load(self.vocabulary / SETTINGS).text


@data.callback(invoke_without_command=True)
def list_corpora(context: typer.Context, folder: DataFolder = None) -> None:
    """Corpora: list, show, check, download and convert known ones; clean and prepare any.

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
def check(
    name: Annotated[str, typer.Argument(help="The name of a known corpus, or a folder of regard data prepare.")],
    folder: DataFolder = None,
) -> None:
    """Compare files with the known checksums.

    Another version is reported, not refused; only an unreadable file is an error. Of a prepared corpus all is read.

    Example: `regard data check multi30k --data corpora`

    Example: `regard data check prepared`
    """
    from regard.data.token_files import TokenCorpus, corpus_folders, is_prepared

    if is_prepared(name):
        for corpus in map(TokenCorpus.open, corpus_folders(name)):
            for shard in with_progress(corpus.shards, "checking", len(corpus.shards)):
                shard.verify()
            size = f"{corpus.ids:,} tokens" if corpus.is_text else f"{len(corpus):,} pairs"
            typer.echo(f"{corpus.folder}: as it was written, {size}")
        return
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


@data.command()
@with_option_groups
def clean(
    inputs: Annotated[list[str], typer.Argument(metavar="FROM", help=SOURCES_HELP)],
    out: Annotated[Path, typer.Option(help=f"Where to write the pairs that are kept: {PAIRS_HELP}")],
    source: SourceOption = "en",
    target: TargetOption = "fr",
    rules: CleaningOptions = CleaningOptions(),
    exclude: ExcludeOption = None,
    report: Annotated[Path | None, typer.Option(help="Write the counts here as JSON.")] = None,
    removed: Annotated[
        Path | None, typer.Option(help="Write the removed pairs here, as JSON lines with the rule of each.")
    ] = None,
    split: Annotated[Split, typer.Option(help="For known corpora.")] = "train",
    folder: DataFolder = None,
) -> None:
    """Remove pairs that teach nothing, and say how many each rule removed: a table, and JSON.

    In this order: an empty side; a sentence of a test set (--exclude); a pair that was there before, but for case,
    punctuation and spaces; too few or too many words; one side much longer; both sides the same; few letters; a side
    more like another language of the corpus, by n-grams learnt from it. Pairs are read one at a time, in memory of 8
    bytes each.

    Example: `regard data clean mine.tsv --from en --to fr --out clean.tsv --report clean.json`

    Example: `regard data clean europarl --to de --exclude newstest:test --exclude my-test.tsv --out clean.tsv.gz`
    """
    import json

    from regard.data.cleaning import HashSet
    from regard.data.files import open_atomic, write_text_atomic
    from regard.data.parallel import write_pairs
    from regard.data.preparation import CorpusCleaning
    from regard.data.sources import iter_excluded, parse_sources

    out, report, removed = writable_file(out), report and writable_file(report), removed and writable_file(removed)
    sources, languages = parse_sources(inputs, (source, target), split, folder), (source, target)
    if other := [one for one in sources if one.languages != languages]:
        raise ValueError(f"{other[0].name} is {'-'.join(other[0].languages)}; the pairs of one file have one direction")
    cleaning = CorpusCleaning(
        sources, rules.build(), HashSet().update(iter_excluded(exclude or [], [languages], folder))
    )

    with open_atomic(removed) if removed else nullcontext() as rejected:

        def kept() -> "Iterator[SentencePair]":
            for pair, why in with_progress(cleaning.pairs(), "cleaning"):
                if why is None:
                    yield pair
                elif rejected:
                    line = {"rule": why, source: pair.source, target: pair.target}
                    rejected.write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())

        done = write_pairs(kept(), out, languages)
    total = cleaning.report
    print_cleaning({"pairs": total})
    if report:
        write_text_atomic(report, json.dumps(total.to_dict(), indent=1) + "\n")
    typer.echo(f"written: {' and '.join(map(str, done.paths))}, {done.pairs:,} pairs")


def print_cleaning(reports: "Mapping[str, CleaningReport]") -> None:
    """A table: a column for each corpus, a row for each rule that removed a pair."""
    from rich.console import Console
    from rich.table import Table

    from regard.data.cleaning import RULES

    table = Table("", *reports, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("read", *(f"{one.read:,}" for one in reports.values()))
    for rule in RULES:
        if any(one.removed.get(rule) for one in reports.values()):
            table.add_row(f"- {rule}", *(f"{one.removed.get(rule, 0):,}" for one in reports.values()))
    shares = (f"{one.kept:,} ({one.kept / max(one.read, 1):.1%})" for one in reports.values())
    table.add_row("kept", *shares)
    Console().print(table)


@dataclass(frozen=True)
class FieldOptions:
    """What the sides of pairs, and the texts of documents, are called."""

    source: SourceOption = "en"
    target: TargetOption = "fr"
    column: Annotated[str, typer.Option("--column", help="The field of documents that holds their text.")] = "text"


@dataclass(frozen=True)
class ShardOptions:
    """How token files are written: what is held out of them, what sources begin with, by how many processes."""

    held_out: Annotated[
        int,
        typer.Option(
            min=0, help="Pairs, or texts, of each corpus to validate on: at most so many, and every hundredth."
        ),
    ] = 2000
    tags: Annotated[
        bool | None,
        typer.Option(
            "--tags/--no-tags", help="Begin sources with their target language; default: if there are several."
        ),
    ] = None
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one for each core.")] = None


@data.command()
@with_option_groups
def prepare(
    inputs: Annotated[list[str], typer.Argument(metavar="FROM", help=f"{SOURCES_HELP} {TEXTS_HELP}")],
    out: Annotated[Path, typer.Option(help="The folder to write; a preparation that was interrupted is resumed.")],
    task: Annotated[
        Literal["translation", "language_modeling"], typer.Option(help="What is to be trained: on pairs, or on texts.")
    ] = "translation",
    names: FieldOptions = FieldOptions(),
    vocabularies: VocabularyOptions = VocabularyOptions(),
    no_clean: Annotated[bool, typer.Option("--no-clean", help="Keep all pairs; see regard data clean.")] = False,  # noqa: FBT002
    rules: CleaningOptions = CleaningOptions(),
    exclude: ExcludeOption = None,
    shards: ShardOptions = ShardOptions(),
    split: Annotated[Split, typer.Option(help="For known corpora.")] = "train",
    folder: DataFolder = None,
) -> None:
    """Clean and tokenise corpora into memory-mapped token files, from which any amount can be trained.

    A pair of 68 tokens takes 140 bytes of disk, and no memory. Each corpus becomes a folder in OUT, with the
    vocabularies, counts of what was removed, and pairs held out for validation. Killed at any moment, the same command
    goes on. With --task language_modeling the corpora are texts: running text, of which all lines are kept, and
    documents, the fields of a .jsonl, of which empty and repeated ones are removed.

    Example: `regard data prepare europarl tatoeba --to fr --exclude newstest:test --data corpora --out prepared`

    Example: `regard train --train prepared --size base --out run`

    Example: `regard data prepare mine.en mine.de more.tsv.gz --to de --vocab-size 8000 --out prepared`

    Example: `regard data prepare europarl@en-fr europarl@en-de --data corpora --out both` (see regard translate --to)

    Example: `regard data prepare more.tsv --vocabulary prepared --out more` (the same vocabularies)

    Example: `regard data prepare hf:Helsinki-NLP/opus_books:en-fr mtdata:Statmt-europarl-10-fra-eng --out prepared`

    Example: `regard data prepare wikitext2 books.txt pages.jsonl --task language_modeling --data corpora --out texts`

    Example: `regard train --task language_modeling --train texts --size base --out run`
    """
    asked = PrepareOptions(
        inputs=inputs,
        out=out,
        names=names,
        vocabularies=vocabularies,
        no_clean=no_clean,
        rules=rules,
        exclude=tuple(exclude or ()),
        shards=shards,
        split=split,
        folder=folder,
    )
    run_preparation(asked.of_pairs() if task == "translation" else asked.of_texts(), task, out)


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """All options of `regard data prepare`, and the preparation of pairs or of texts that they ask for."""

    inputs: list[str]
    out: Path
    names: FieldOptions = FieldOptions()
    vocabularies: VocabularyOptions = VocabularyOptions()
    no_clean: bool = False
    rules: CleaningOptions = CleaningOptions()
    exclude: tuple[str, ...] = ()
    shards: ShardOptions = ShardOptions()
    split: Split = "train"
    folder: Path | None = None

    def of_pairs(self) -> "PairPreparation":
        from regard.data.preparation import PairPreparation
        from regard.data.sources import parse_sources
        from regard.tasks.translation.task import TranslationSettings, train_tokenizers

        sources = parse_sources(self.inputs, (self.names.source, self.names.target), self.split, self.folder)
        text = self.vocabularies.text(TranslationSettings, joint=not self.vocabularies.separate)
        return PairPreparation(
            sources=sources,
            out=writable_folder(self.out),
            text=text.to_dict(),
            learn=lambda sample: train_tokenizers(sample, text),
            rules=None if self.no_clean else self.rules.build(),
            excluded=self.excluded([one.languages for one in sources]),
            tags=self.shards.tags,
            **self.shared(),
        )

    def of_texts(self) -> "TextPreparation":
        from regard.data.preparation import TextPreparation
        from regard.data.sources import parse_text_sources
        from regard.tasks.language_modeling.task import LanguageModelingSettings
        from regard.tasks.pretrained import train_text_tokenizer

        refuse_pair_options(self.vocabularies, self.rules, self.shards.tags)
        text = self.vocabularies.text(LanguageModelingSettings)
        return TextPreparation(
            sources=parse_text_sources(self.inputs, self.names.column, self.split, self.folder),
            out=writable_folder(self.out),
            text=text.to_dict(),
            learn=lambda sample: train_text_tokenizer(sample, text),
            duplicates=not (self.no_clean or self.rules.keep_duplicates),
            excluded=self.excluded([]),
            **self.shared(),
        )

    def excluded(self, languages: list[tuple[str, str]]) -> "HashSet":
        from regard.data.cleaning import HashSet
        from regard.data.sources import iter_excluded

        return HashSet().update(iter_excluded(list(self.exclude), languages, self.folder))

    def shared(self) -> dict[str, Any]:
        """What pairs and texts have alike."""
        workers = self.shards.workers or os.cpu_count() or 1
        return {"vocabulary": self.vocabularies.vocabulary, "held_out": self.shards.held_out, "workers": workers}


def refuse_pair_options(vocabularies: VocabularyOptions, rules: CleaningOptions, tags: bool | None) -> None:  # noqa: FBT001
    """Texts have one side."""
    if vocabularies.separate or tags is not None or rules != CleaningOptions(keep_duplicates=rules.keep_duplicates):
        raise ValueError(
            "--separate, --tags and the rules of cleaning but --keep-duplicates are for pairs; leave them out, or "
            "leave out --task language_modeling"
        )


def run_preparation(request: "Preparation[Any]", task: str, out: Path) -> None:
    from regard.data.cleaning import CleaningReport
    from regard.data.preparation import prepare_corpora

    with step_progress() as seen:
        found = prepare_corpora(request, seen)
    print_cleaning({one.folder.name: CleaningReport.from_dict(one.description["cleaning"]) for one in found})
    count = sum(one.description[f"{request.one}s"] for one in found)
    ids, size = sum(one.ids for one in found), sum(one.bytes for one in found)
    each = f"{size / count:.0f} bytes a pair" if request.one == "pair" else f"{size / ids:.1f} bytes a token"
    typer.echo(f"prepared: {out}, {count:,} {request.one}s of {ids / count:.1f} tokens, {size / 1e6:,.1f} MB, {each}")
    named = ("--task", task) if task != "translation" else ()
    typer.echo(
        f"train on it: {shell_command('regard', 'train', *named, '--train', out, '--size', 'base', '--out', 'run')}"
    )


@data.command()
@with_option_groups
def translate(
    model: ModelArgument,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="FROM", help="A text file, or sentence pairs: a .tsv, a .jsonl, or two text files."),
    ],
    out: Annotated[Path, typer.Option(help=f"Where to write the pairs that are made: {PAIRS_HELP}")],
    reverse: ReverseOption = False,  # noqa: FBT002
    search: SearchOptions = SearchOptions(),
    best_of: Annotated[
        int,
        typer.Option(min=1, help="Of so many best take the one most like the side that is replaced (sentence BLEU)."),
    ] = 1,
    to: Annotated[
        str | None, typer.Option("--to", "--target", help="The target language, of a model that knows several.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens × beams of a batch; it changes no result.")
    ] = None,
    max_length: Annotated[int, typer.Option(min=1, help="Tokens of a sentence; longer ones are left out.")] = 256,
    precision: Annotated[
        str | None, typer.Option(help="As of regard translate; default: bfloat16 on a GPU, float32 elsewhere.")
    ] = None,
    minutes: MinutesOption = None,
    load: LoadOptions = LoadOptions(),
) -> None:
    """Translate a large file into training pairs: sequence-level distillation, or with --reverse back-translation.

    The source stays and the translation becomes the target, for a smaller model to learn from; with --reverse the
    text is in the target language and stays the target. Killed at any moment, the same command goes on and ends with
    the same bytes. Pairs with an unfinished translation are left out. `regard data prepare` reads what is written.

    Example: `regard data translate teacher text.en --out distilled.tsv --beam 4`

    Example: `regard data translate teacher train.tsv --out distilled.tsv --best-of 4` (interpolated distillation)

    Example: `regard data translate fr-en text.fr --reverse --out back.tsv` (for a model from en to fr)

    Example: `regard data translate teacher train.tsv --out distilled.tsv --minutes 9`
    """
    from regard.data.files import file_format, read_lines
    from regard.data.parallel import SentencePair, read_pairs
    from regard.decode.translation import PairSynthesis, first_best, synthesize_pairs
    from regard.tasks.translation.metrics import closest_text
    from regard.tasks.translation.model_build import batch_tokens, fast_precision
    from regard.tasks.translation.task import Translator

    out, stop = writable_file(out), stop_after(minutes)
    has_pairs = len(inputs) > 1 or file_format(Path(inputs[0])) in (".tsv", ".jsonl")
    if best_of > 1 and not has_pairs:
        raise ValueError(f"--best-of {best_of} compares with the other side of pairs, and {inputs[0]} has one side")

    def read() -> "Iterator[SentencePair]":
        if has_pairs:
            return read_pairs(inputs, on_empty=str)
        return (SentencePair("", line) if reverse else SentencePair(line, "") for line in read_lines(inputs[0]))

    translator = load.load(Translator, model)
    how = PairSynthesis(
        translator=translator,
        search=search.build(best_of),
        choose=closest_text if best_of > 1 else first_best,
        to=to,
        reverse=reverse,
        max_length=max_length,
        precision=precision or fast_precision(translator),
        tokens=batch_size or batch_tokens(translator),
    )
    with step_progress() as seen:
        seen("counting", 0, None)
        total = sum(1 for _ in read())
        found = synthesize_pairs(read(), how, out, stop=stop, progress=lambda done: seen("translating", done, total))
    if found is None:
        typer.echo(f"stopped after {minutes:g} minutes; the same command goes on")
        raise typer.Exit(130)
    left_out = "".join(f", {count:,} left out: {why}" for why, count in found.left_out.items())
    typer.echo(f"written: {out}, {found.pairs:,} pairs of {found.read:,} sentences{left_out}")


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
