"""Parallel files in; sentence pairs out, one at a time. Bad data is a ValueError that names file and line.

read_pairs(["train.en.xz", "train.de.xz"])               two files, line by line
read_pairs("train.tsv.gz")                               source<TAB>target
read_pairs("train.jsonl", fields=("en", "de"))           {"en": "...", "de": "..."} on every line
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from regard.text.files import COMPRESSED, existing, read_lines, sound

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str

    def swapped(self) -> "Pair":
        return Pair(self.target, self.source)


@dataclass(frozen=True)
class Count:
    """What a corpus holds: pairs, and the pairs left out because a side was empty."""

    pairs: int
    skipped: int


def refuse(sentence: str) -> NoReturn:
    """The strict answer to an empty side."""
    raise ValueError(f"{sentence}; fill it in, remove the pair, or skip such pairs")


def read_pairs(
    paths: Paths, *, fields: tuple[str, str] = ("source", "target"), blank: Callable[[str], object] = refuse
) -> Iterator[Pair]:
    """The pairs of two text files, of one .tsv or of one .jsonl, each plain, .gz or .xz by its name.

    A pair with an empty side is told to `blank` in a sentence with file and line. The default refuses it; any other
    answer skips the pair: `blank=seen.append` collects what was skipped.
    """
    found = [existing(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    match [kind(path) for path in found]:
        case [_, _]:
            return _full(_two_files(*found), blank)
        case [".tsv"]:
            return _full(_tsv(found[0]), blank)
        case [".jsonl"]:
            return _full(_jsonl(found[0], fields), blank)
        case [ending]:
            raise ValueError(f"{found[0]}: one file of pairs ends in .tsv or .jsonl, not {ending!r}; or give two files")
    raise ValueError(f"pairs come from one file or from two, not from {len(found)}")


def count(paths: Paths, *, fields: tuple[str, str] = ("source", "target")) -> Count:
    """Reads the whole corpus once; whatever is wrong with it, except for empty sides, is found here."""
    skipped: list[str] = []
    pairs = sum(1 for _ in read_pairs(paths, fields=fields, blank=skipped.append))
    return Count(pairs, len(skipped))


def sides(pairs: Iterable[Pair]) -> Iterator[str]:
    """Both sides in turn: what a joint vocabulary is learnt from."""
    for pair in pairs:
        yield pair.source
        yield pair.target


def kind(path: Path) -> str:
    """The ending that says how the file is laid out, whether packed or not: .tsv of train.tsv.xz."""
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


Placed = tuple[str, Pair]  # where it stands, and what it is


def _full(placed: Iterator[Placed], blank: Callable[[str], object]) -> Iterator[Pair]:
    for where, pair in placed:
        if pair.source.strip() and pair.target.strip():
            yield pair
        elif pair.source.strip() or pair.target.strip():
            blank(f"{where}: the {'target' if pair.source.strip() else 'source'} is empty")
        else:
            blank(f"{where}: both sides are empty")


def _two_files(source: Path, target: Path) -> Iterator[Placed]:
    for number, (left, right) in enumerate(zip_longest(read_lines(source), read_lines(target)), 1):
        if left is None or right is None:
            longer, shorter = (target, source) if left is None else (source, target)
            ended = f"{shorter} ends after line {number - 1}"
            raise ValueError(f"{longer}:{number}: no partner, because {ended}; the two files must match line by line")
        yield f"{source if right.strip() else target}:{number}", Pair(left, right)


def _tsv(path: Path) -> Iterator[Placed]:
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t") if line.strip() else ["", ""]
        if len(cells) != 2:
            found = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
            raise ValueError(f"{path}:{number}: {found}; a line is source, one tab, target")
        yield f"{path}:{number}", Pair(*cells)


def _jsonl(path: Path, fields: tuple[str, str]) -> Iterator[Placed]:
    for where, held in objects(path, fields):
        yield where, Pair(*(_text(held[name], name, where) for name in fields)) if held is not None else Pair("", "")


def objects(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Where each line of a .jsonl stands, and its object, which has these fields; None for an empty line."""
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}:{number}"
        if not line.strip():
            yield where, None
            continue
        try:
            held = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error}); every line is one object") from None
        for name in fields:
            if not isinstance(held, dict):
                raise ValueError(f"{where}: {type(held).__name__} instead of an object with the field {name!r}")
            if name not in held:
                raise ValueError(f"{where}: no field {name!r}, only {', '.join(map(repr, held)) or 'an empty object'}")
        yield where, held


def _text(held: Any, name: str, where: str) -> str:
    if not isinstance(held, str):
        raise ValueError(f"{where}: the field {name!r} is {type(held).__name__}, not text")
    return sound(held, where)
