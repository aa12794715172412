"""Sentence pairs in; two text files, a .tsv or a .jsonl out, plain, .gz or .xz, and whole or not at all.

write_pairs(pairs, "train.tsv.xz")                           source<TAB>target
write_pairs(pairs, "train.jsonl", languages=("en", "de"))    {"en": "...", "de": "..."} on every line
write_pairs(pairs, "train.gz", languages=("en", "de"))       train.en.gz and train.de.gz
"""

import gzip
import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from regard.text.corpus import Pair, kind
from regard.text.files import COMPRESSED, whole


@dataclass(frozen=True)
class Written:
    """The files, and how many pairs they hold."""

    paths: tuple[Path, ...]
    pairs: int


def write_pairs(pairs: Iterable[Pair], path: str | Path, languages: tuple[str, str] = ("source", "target")) -> Written:
    """`read_pairs` gives back the same pairs. If anything goes wrong, the files hold what they held before."""
    if languages[0] == languages[1]:
        raise ValueError(f"both sides are called {languages[0]!r}; name the two languages")
    paths, lines = _layout(Path(path), languages)
    number = 0
    with ExitStack() as stack:
        files = [stack.enter_context(packed(stack.enter_context(whole(one)), one.suffix)) for one in paths]
        for number, pair in enumerate(pairs, 1):
            for file, line in zip(files, lines(pair, number), strict=True):
                file.write(f"{line}\n".encode())
    return Written(tuple(paths), number)


Lines = Callable[[Pair, int], tuple[str, ...]]


def _layout(path: Path, languages: tuple[str, str]) -> tuple[list[Path], Lines]:
    """The files to write, and what a pair is in each of them."""
    match kind(path):
        case ".tsv":
            return [path], _row
        case ".jsonl":
            return [path], lambda pair, _: (
                json.dumps({languages[0]: pair.source, languages[1]: pair.target}, ensure_ascii=False),
            )
    packing = path.suffix if path.suffix in COMPRESSED else ""
    stem = str(path).removesuffix(packing)
    return [Path(f"{stem}.{language}{packing}") for language in languages], _two_lines


def _row(pair: Pair, number: int) -> tuple[str]:
    if "\t" in pair.source or "\t" in pair.target:
        raise ValueError(
            f"pair {number}: a tab inside a sentence cannot stand in a .tsv; write .jsonl or two text files"
        )
    return ("\t".join(_two_lines(pair, number)),)


def _two_lines(pair: Pair, number: int) -> tuple[str, str]:
    for text in (pair.source, pair.target):
        if "\n" in text or "\r" in text:
            raise ValueError(f"pair {number}: a line end inside a sentence would break its line; write .jsonl")
    return pair.source, pair.target


@contextmanager
def packed(file: IO[bytes], ending: str) -> Iterator[IO[bytes]]:
    """What is written comes out packed as the ending says, and the same on every day."""
    match ending:
        case ".gz":
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packing:
                yield packing  # type: ignore[misc]
        case ".xz":
            # the default preset takes ten times as long to save a third
            with lzma.open(file, "wb", preset=1) as packing:
                yield packing  # type: ignore[misc]
        case _:
            yield file
