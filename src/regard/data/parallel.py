"""Parallel corpora: sentence pairs read one at a time and written; errors name file and line.

read_pairs(["train.en.xz", "train.de.xz"])               two files, line by line
read_pairs("train.tsv.gz")                               source<TAB>target
read_pairs("train.jsonl", fields=("en", "de"))           {"en": "...", "de": "..."} on every line
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from regard.data.files import (
    COMPRESSED,
    check_text,
    file_format,
    open_atomic,
    open_compressed,
    read_json_objects,
    read_lines,
    require_file,
)

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class SentencePair:
    """A sentence and its translation.

    Examples:
        >>> SentencePair("the cat", "le chat").swapped()
        SentencePair(source='le chat', target='the cat')
    """

    source: str
    target: str

    def swapped(self) -> "SentencePair":
        return SentencePair(self.target, self.source)


@dataclass(frozen=True)
class CorpusSize:
    """The number of pairs, and of those skipped because a side was empty.

    Examples:
        >>> path = write_pairs([SentencePair("a", "b"), SentencePair("c", "")], "pairs.jsonl").paths[0]
        >>> count_pairs(path)
        CorpusSize(pairs=1, skipped=1)
    """

    pairs: int
    skipped: int


def raise_on_empty(sentence: str) -> NoReturn:
    """The default handler of an empty side: an error."""
    raise ValueError(f"{sentence}; fill it in, remove the pair, or skip such pairs")


def read_pairs(
    paths: Paths, *, fields: tuple[str, str] = ("source", "target"), on_empty: Callable[[str], object] = raise_on_empty
) -> Iterator[SentencePair]:
    """The pairs of two text files, of one .tsv or of one .jsonl, each plain, .gz or .xz by its name.

    `on_empty` is called for a pair with an empty side, with a sentence that names file and line. The default raises;
    otherwise the pair is skipped: `on_empty=skipped.append` collects the sentences.

    Examples:
        >>> pairs = list(read_pairs("pairs.tsv"))
        >>> len(pairs), pairs[0]
        (40, SentencePair(source='the cat sleeps', target='le chat dort'))
    """
    files = [require_file(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    match [file_format(path) for path in files]:
        case [_, _]:
            return skip_empty(_two_files(*files), on_empty)
        case [".tsv"]:
            return skip_empty(_tsv(files[0]), on_empty)
        case [".jsonl"]:
            return skip_empty(_jsonl(files[0], fields), on_empty)
        case [ending]:
            raise ValueError(f"{files[0]}: one file of pairs ends in .tsv or .jsonl, not {ending!r}; or give two files")
    raise ValueError(f"pairs come from one file or from two, not from {len(files)}")


def count_pairs(paths: Paths, *, fields: tuple[str, str] = ("source", "target")) -> CorpusSize:
    """Reads the whole corpus once, so any error in it, except for empty sides, is raised here.

    Examples:
        >>> count_pairs("pairs.tsv")
        CorpusSize(pairs=40, skipped=0)
    """
    skipped: list[str] = []
    pairs = sum(1 for _ in read_pairs(paths, fields=fields, on_empty=skipped.append))
    return CorpusSize(pairs, len(skipped))


def iter_sides(pairs: Iterable[SentencePair]) -> Iterator[str]:
    """Both sides in turn: what a joint vocabulary is learnt from.

    Examples:
        >>> list(iter_sides([SentencePair("the cat", "le chat"), SentencePair("a dog", "un chien")]))
        ['the cat', 'le chat', 'a dog', 'un chien']
    """
    for pair in pairs:
        yield pair.source
        yield pair.target


LocatedPair = tuple[str, SentencePair]  # file:line, and the pair


def skip_empty(located: Iterator[LocatedPair], on_empty: Callable[[str], object]) -> Iterator[SentencePair]:
    for where, pair in located:
        if pair.source.strip() and pair.target.strip():
            yield pair
        elif pair.source.strip() or pair.target.strip():
            on_empty(f"{where}: the {'target' if pair.source.strip() else 'source'} is empty")
        else:
            on_empty(f"{where}: both sides are empty")


def _two_files(source: Path, target: Path) -> Iterator[LocatedPair]:
    for number, (left, right) in enumerate(zip_longest(read_lines(source), read_lines(target)), 1):
        if left is None or right is None:
            longer, shorter = (target, source) if left is None else (source, target)
            ended = f"{shorter} ends after line {number - 1}"
            raise ValueError(f"{longer}:{number}: no partner, because {ended}; the two files must match line by line")
        yield f"{source if right.strip() else target}:{number}", SentencePair(left, right)


def _tsv(path: Path) -> Iterator[LocatedPair]:
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t") if line.strip() else ["", ""]
        if len(cells) != 2:
            tabs = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
            raise ValueError(f"{path}:{number}: {tabs}; a line is source, one tab, target")
        yield f"{path}:{number}", SentencePair(*cells)


def _jsonl(path: Path, fields: tuple[str, str]) -> Iterator[LocatedPair]:
    for where, row in read_json_objects(path, fields):
        yield (
            where,
            SentencePair(*(_text(row[name], name, where) for name in fields))
            if row is not None
            else SentencePair("", ""),
        )


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: the field {name!r} is {type(value).__name__}, not text")
    return check_text(value, where)


# --- writing ---


@dataclass(frozen=True)
class WrittenCorpus:
    """The files, and how many pairs they have."""

    paths: tuple[Path, ...]
    pairs: int


def write_pairs(
    pairs: Iterable[SentencePair], path: str | Path, languages: tuple[str, str] = ("source", "target")
) -> WrittenCorpus:
    """Write a corpus that `read_pairs` reads back. On any error the old files stay as they were.

    Examples:
        >>> pairs = [SentencePair("the cat", "le chat")]
        >>> [path.name for path in write_pairs(pairs, "train", languages=("en", "fr")).paths]
        ['train.en', 'train.fr']
        >>> list(read_pairs(["train.en", "train.fr"])) == pairs
        True
    """
    if languages[0] == languages[1]:
        raise ValueError(f"both sides are called {languages[0]!r}; name the two languages")
    paths, lines = _layout(Path(path), languages)
    number = 0
    with ExitStack() as stack:
        files = [
            stack.enter_context(open_compressed(stack.enter_context(open_atomic(one)), one.suffix)) for one in paths
        ]
        for number, pair in enumerate(pairs, 1):
            for file, line in zip(files, lines(pair, number), strict=True):
                file.write(f"{line}\n".encode())
    return WrittenCorpus(tuple(paths), number)


Lines = Callable[[SentencePair, int], tuple[str, ...]]


def _layout(path: Path, languages: tuple[str, str]) -> tuple[list[Path], Lines]:
    """The files to write, and the lines of a pair, one for each of them."""
    match file_format(path):
        case ".tsv":
            return [path], _row
        case ".jsonl":
            return [path], lambda pair, _: (
                json.dumps({languages[0]: pair.source, languages[1]: pair.target}, ensure_ascii=False),
            )
    suffix = path.suffix if path.suffix in COMPRESSED else ""
    stem = str(path).removesuffix(suffix)
    return [Path(f"{stem}.{language}{suffix}") for language in languages], _two_lines


def _row(pair: SentencePair, number: int) -> tuple[str]:
    if "\t" in pair.source or "\t" in pair.target:
        raise ValueError(
            f"pair {number}: a tab inside a sentence cannot stand in a .tsv; write .jsonl or two text files"
        )
    return ("\t".join(_two_lines(pair, number)),)


def _two_lines(pair: SentencePair, number: int) -> tuple[str, str]:
    for text in (pair.source, pair.target):
        if "\n" in text or "\r" in text:
            raise ValueError(f"pair {number}: a line end inside a sentence would break its line; write .jsonl")
    return pair.source, pair.target
