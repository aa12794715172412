"""Sources: where pairs and texts come from, by the words of a command line: corpora, files, Hugging Face, mtdata."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from regard.data.corpora import CORPORA, corpus_path, find_corpus, iter_corpus_pairs, pair_paths
from regard.data.files import check_text, file_format, read_json_objects, read_lines, require_file
from regard.data.lm_blocks import read_text, split_lines
from regard.data.parallel import SentencePair, read_pairs, skip_empty

DATASETS, MTDATA = "hf:", "mtdata:"
WHOLE = "whole"  # the split of a known corpus that is one text
Source = TypeVar("Source", bound=Any)  # a frozen dataclass with a name


# --- pairs ---


@dataclass(frozen=True, eq=False)
class PairSource:
    """Where sentence pairs come from.

    Args:
        name: a short one, for a folder.
        languages: those of the source and of the target.
        read: the pairs, one at a time; calls its argument with a sentence for each pair with an empty side.
        identity: what must be as it was for a preparation to go on: paths, sizes and times of files.
    """

    name: str
    languages: tuple[str, str]
    read: Callable[[Callable[[str], object]], Iterator[SentencePair]]
    identity: tuple[str, ...]


def parse_sources(
    words: Sequence[str], languages: tuple[str, str], split: str = "train", folder: Path | None = None
) -> list[PairSource]:
    """Known corpora, tables, text files, of which two that follow each other are the two sides, and what others offer:
    hf:NAME or hf:NAME:CONFIG by Hugging Face's `datasets`, mtdata:ID by mtdata.

    A word may end in @ and its languages: europarl@en-de. Those without have `languages`.

    Examples:
        >>> [source.name for source in parse_sources(["pairs.tsv", "train.en", "train.fr"], ("en", "fr"))]
        ['pairs', 'train']
    """
    found: list[PairSource] = []
    rest = list(words)
    while rest:
        word, pair = split_languages(rest.pop(0), languages)
        if pair[0] == pair[1]:
            raise ValueError(f"{word}: both sides are in {pair[0]!r}; name the two, as in {word}@en-fr")
        if word.startswith(DATASETS):
            found.append(huggingface_source(word.removeprefix(DATASETS), pair, split))
        elif word.startswith(MTDATA):
            found.append(mtdata_source(word.removeprefix(MTDATA), pair, folder))
        elif word in CORPORA and not Path(word).exists():
            found.append(known_source(word, pair, split, folder))
        else:
            paths = [word]
            if file_format(Path(word)) not in (".tsv", ".jsonl"):
                require_file(word)
                if not rest:
                    raise ValueError(f"{word}: one side of a corpus; give the file of the other side behind it")
                paths.append(rest.pop(0))
            found.append(file_source(paths, pair))
    if len({source.languages for source in found}) > 1:
        found = [replace(source, name=f"{source.name}.{'-'.join(source.languages)}") for source in found]
    return numbered_names(found)


def split_languages(word: str, languages: tuple[str, str]) -> tuple[str, tuple[str, str]]:
    """A word, and the languages behind its @.

    Examples:
        >>> split_languages("europarl@en-de", ("en", "fr")), split_languages("europarl", ("en", "fr"))
        (('europarl', ('en', 'de')), ('europarl', ('en', 'fr')))
    """
    before, at, pair = word.rpartition("@")
    source, dash, target = pair.partition("-")
    if not at or Path(word).exists():
        return word, languages
    if not dash or not source or not target:
        raise ValueError(f"{word}: the languages behind @ are two, as in {before}@en-de")
    return before, (source, target)


def known_source(name: str, languages: tuple[str, str], split: str, folder: Path | None) -> PairSource:
    paths, _ = pair_paths(name, split, *languages, folder)
    return PairSource(
        name if split == "train" else f"{name}.{split}",
        languages,
        lambda on_empty: iter_corpus_pairs(name, split, *languages, folder, on_empty),
        tuple(map(file_identity, paths)),
    )


def file_source(paths: Sequence[str], languages: tuple[str, str]) -> PairSource:
    files = [require_file(path) for path in paths]
    stem = files[0].name.split(".")[0] or files[0].name
    return PairSource(
        stem,
        languages,
        lambda on_empty: read_pairs(files, fields=languages, on_empty=on_empty),
        tuple(map(file_identity, files)),
    )


def huggingface_source(word: str, languages: tuple[str, str], split: str) -> PairSource:
    """A data set of Hugging Face's hub, or a folder of its files: NAME, or NAME:CONFIG.

    Its rows have a column `translation` with a text of each language, or a column of each. A null is an empty text, as
    which `datasets` also reads a field of a .csv that is empty.
    """
    open_rows, name, identity = huggingface_rows(word, split)

    def read(on_empty: Callable[[str], object]) -> Iterator[SentencePair]:
        return skip_empty(located_rows(open_rows(), f"hf:{word}", languages), on_empty)

    return PairSource(name, languages, read, identity)


def located_rows(
    rows: Iterable[Mapping[str, Any]], where: str, languages: tuple[str, str]
) -> Iterator[tuple[str, SentencePair]]:
    for number, row in enumerate(rows, 1):
        texts = row.get("translation", row) or dict.fromkeys(languages)
        if missing := [one for one in languages if one not in texts or not isinstance(texts[one], str | None)]:
            raise ValueError(f"{where}: row {number} has no text {missing[0]!r}, only {', '.join(map(repr, texts))}")
        yield f"{where}:{number}", SentencePair(*(" ".join((texts[one] or "").split()) for one in languages))


def mtdata_source(word: str, languages: tuple[str, str], folder: Path | None) -> PairSource:
    """A corpus by its mtdata id, such as Statmt-europarl-10-deu-eng, which mtdata downloads into folder/mtdata."""
    if find_spec("mtdata") is None:
        raise ValueError(f"mtdata:{word} needs the package mtdata; pip install 'regard[sources]'")
    name, *sides = word.rsplit("-", 2)
    if name.count("-") != 2 or len(sides) != 2:
        raise ValueError(f"mtdata:{word} is not GROUP-NAME-VERSION-LANGUAGE-LANGUAGE; mtdata list -id prints all ids")
    codes = import_module("mtdata.iso.bcp47")
    sides, asked = ([str(codes.bcp47(language)) for language in pair] for pair in (sides, languages))
    if asked not in (sides, sides[::-1]):
        raise ValueError(
            f"mtdata:{word} is {'-'.join(sides)}, not {'-'.join(asked)}; write mtdata:{word}@SOURCE-TARGET"
        )
    out, entry = (folder or Path()) / "mtdata", "-".join((name, *sides))
    paths = [out / "train-parts" / f"{entry}.{side}" for side in asked]
    whole = out / "train-parts" / f".valid.{entry}"  # written by mtdata once both files are; it then skips them
    if not all(path.is_file() for path in (*paths, whole)):
        whole.unlink(missing_ok=True)
        run_mtdata("get", "--langs", "-".join(sides), "--train", entry, "--out", str(out))
    identity = tuple(file_identity(require_file(path)) for path in paths)
    return PairSource(entry, languages, lambda on_empty: read_pairs(paths, on_empty=on_empty), identity)


def run_mtdata(*words: str) -> None:
    """In a process of its own: it reads pickled files of its own."""
    if subprocess.run([sys.executable, "-m", "mtdata", *words], check=False).returncode:
        raise ValueError(f"mtdata {' '.join(words)} failed; see above, and mtdata list for the ids")


def iter_excluded(words: Sequence[str], languages: Sequence[tuple[str, str]], folder: Path | None) -> Iterator[str]:
    """The sentences of test sets: files, both sides of tables, and known corpora with their split, tatoeba:test."""
    for word in words:
        name, colon, split = word.partition(":")
        if name in CORPORA and not Path(word).exists():
            known = find_corpus(name).pairs
            pairs = [pair for pair in dict.fromkeys(languages) if pair in known or pair[::-1] in known]
            if not colon or not pairs:
                what = "its split is missing" if pairs else "it has none of these languages"
                raise ValueError(f"--exclude {word}: {what}; write a corpus and its split, such as {name}:test")
            for pair in pairs:
                for one in iter_corpus_pairs(name, split, *pair, folder, on_empty=str):
                    yield from (one.source, one.target)
        elif file_format(Path(word)) == ".tsv":
            for one in read_pairs(word, on_empty=str):
                yield from (one.source, one.target)
        elif file_format(Path(word)) == ".jsonl":
            for pair in dict.fromkeys(languages):
                for one in read_pairs(word, fields=pair, on_empty=str):
                    yield from (one.source, one.target)
        else:
            yield from read_lines(word)


# --- texts ---


@dataclass(frozen=True, eq=False)
class TextSource:
    """Where texts come from.

    Args:
        name: a short one, for a folder.
        read: the texts, one at a time, each with a line's end.
        identity: what must be as it was for a preparation to go on: paths, sizes and times of files.
        documents: whether each text stands by itself; if not, they are the lines of one.
        languages: none; pairs have two.
    """

    name: str
    read: Callable[[], Iterator[str]]
    identity: tuple[str, ...]
    documents: bool
    languages: tuple[str, ...] = ()


def parse_text_sources(
    words: Sequence[str], column: str = "text", split: str = "train", folder: Path | None = None
) -> list[TextSource]:
    """Known corpora and files of running text, and documents: a column of a .jsonl, or of a data set of Hugging Face.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("stories.jsonl").write_text('{"text": "Once."}\\n{"text": "Twice."}\\n')
        >>> (source,) = parse_text_sources(["stories.jsonl"])
        >>> source.name, source.documents, list(source.read())
        ('stories', True, ['Once.\\n', 'Twice.\\n'])
    """
    found: list[TextSource] = []
    for word in words:
        if word.startswith(MTDATA):
            raise ValueError(f"{word}: mtdata knows pairs, not texts; leave out --task, or give files")
        if word.startswith(DATASETS):
            found.append(huggingface_texts(word.removeprefix(DATASETS), column, split))
        elif word in CORPORA and not Path(word).exists():
            found.append(known_text(word, split, folder))
        else:
            found.append(file_text(require_file(word), column))
    return numbered_names(found)


def known_text(name: str, split: str, folder: Path | None) -> TextSource:
    """The running text of a known corpus."""
    if WHOLE in find_corpus(name).splits:
        identity = file_identity(corpus_path(name, WHOLE, folder)), split
        return TextSource(
            name, lambda: with_line_ends(split_lines(read_part(name, split, folder))), identity, documents=False
        )
    source = file_text(corpus_path(name, split, folder), "")
    return replace(source, name=name if split == "train" else f"{name}.{split}")


def read_part(name: str, split: str, folder: Path | None) -> str:
    """Of a known corpus that is one text: the first nine tenths of its characters to train on, the rest to validate."""
    if split == "test":
        raise ValueError(f"{name} has no split 'test'; it has train, valid")
    text = read_text(corpus_path(name, WHOLE, folder))
    nine = len(text) * 9 // 10
    return text[:nine] if split == "train" else text[nine:]


def file_text(path: Path, column: str) -> TextSource:
    if file_format(path) in (".tsv", ".conllu"):
        raise ValueError(f"{path}: a table, not running text; give a .jsonl of documents, or plain text")
    documents = file_format(path) == ".jsonl"
    name = path.name.split(".")[0] or path.name

    def read() -> Iterator[str]:
        if not documents:
            return with_line_ends(read_lines(path, keep_ends=True))
        rows = ((where, row) for where, row in read_json_objects(path, (column,)) if row is not None)
        return column_texts(rows, column)

    return TextSource(name, read, (file_identity(path), column if documents else ""), documents)


def with_line_ends(lines: Iterable[str]) -> Iterator[str]:
    r"""Lines that all end in \n, the last one too."""
    return (line.removesuffix("\n").removesuffix("\r") + "\n" for line in lines)


def column_texts(rows: Iterable[tuple[str, Mapping[str, Any]]], column: str) -> Iterator[str]:
    for where, row in rows:
        if not isinstance(text := row.get(column), str):
            names = ", ".join(map(repr, row)) or "an empty row"
            raise ValueError(f"{where}: no text in {column!r}, only {names}; name the column: --column NAME")
        yield check_text(text, where).rstrip("\n") + "\n"


def huggingface_texts(word: str, column: str, split: str) -> TextSource:
    """A column of a data set of Hugging Face's hub, or of a folder of its files. A null is an empty text."""
    open_rows, name, identity = huggingface_rows(word, split)

    def read() -> Iterator[str]:
        rows = ({key: "" if value is None else value for key, value in row.items()} for row in open_rows())
        return column_texts(((f"hf:{word}, row {number}", row) for number, row in enumerate(rows, 1)), column)

    return TextSource(name, read, (*identity, column), documents=True)


# --- of both ---


def numbered_names(sources: Sequence[Source]) -> list[Source]:
    """Each with a name of its own: the second of one name has -2 behind it."""
    found: list[Source] = []
    for source in sources:
        earlier, name = {one.name for one in found}, source.name
        number = next(n for n in range(1, len(sources) + 1) if (name if n == 1 else f"{name}-{n}") not in earlier)
        found.append(source if number == 1 else replace(source, name=f"{name}-{number}"))
    return found


def huggingface_rows(word: str, split: str) -> tuple[Callable[[], Iterable[Any]], str, tuple[str, ...]]:
    """What opens the rows of NAME or NAME:CONFIG, a short name, and what must be as it was."""
    name, _, config = (word, "", "") if Path(word).exists() else word.partition(":")
    if find_spec("datasets") is None:
        raise ValueError(f"hf:{word} needs the package datasets; pip install 'regard[sources]'")
    if (path := Path(name)).is_file():
        raise ValueError(f"hf:{name} is a file; give the folder that it is in, as hf:{path.parent}")
    wanted = {"valid": "validation"}.get(split, split)
    saved = (Path(name) / "state.json").is_file()  # by save_to_disk, as one data set
    if saved and (config or split != "train"):
        raise ValueError(f"hf:{word} was saved without splits or configurations, and so has no {config or split}")

    def open_rows() -> Iterable[Any]:
        datasets = import_module("datasets")
        try:
            if saved:
                return datasets.load_from_disk(name)
            return datasets.load_dataset(name, config or None, split=wanted, streaming=True)
        except Exception as error:  # of whatever lies below: the hub, the network, a file
            reason = " ".join(str(error).split())
            raise ValueError(f"hf:{word}: cannot be loaded ({reason[:200]}); check the name and the split") from None

    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    return open_rows, re.sub(r"\W+", "-", Path(word).name), (name, config, wanted, *map(file_identity, files))


def file_identity(path: Path) -> str:
    found = path.stat()
    return f"{path.absolute()} {found.st_size} {found.st_mtime_ns}"
