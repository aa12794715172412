"""The name of a known corpus and the folder that holds it in; its pairs or files, or what is wrong with it, out.

known_pairs("multi30k", "train", "de", "en", Path("corpora"))     from corpora/multi30k/train.de.xz and the like
known_path("sst2", "train", Path("corpora"))                      corpora/sst2/train.tsv.xz: one file, any reader
check(known("multi30k"), Path("corpora"))                         are its files the ones that everybody has?
"""

import hashlib
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from regard.text.corpus import Pair, read_pairs
from regard.text.files import COMPRESSED, opened
from regard.text.named import Known, Part
from regard.text.public import KNOWN

PACKED = ("", *COMPRESSED)
FOLDERS = frozenset(part.path.partition("/")[0] for corpus in KNOWN.values() for part in corpus.parts)


def known(name: str) -> Known:
    if name not in KNOWN:
        raise ValueError(f"no known corpus is called {name!r}; choose from {', '.join(KNOWN)}")
    return KNOWN[name]


def known_pairs(name: str, split: str, source: str, target: str, folder: Path | None) -> list[Pair]:
    """The pairs of a split (train, valid or test), in either direction; `folder` holds the known corpora."""
    corpus = known(name)
    _offered(corpus, split, source, target)
    of_split = [part for part in corpus.parts if part.split == split]
    for columns in ((source, target), (target, source)):
        if table := [part for part in of_split if part.languages == columns]:
            pairs = read_pairs(find(corpus, table, folder))
            return [pair if columns == (source, target) else pair.swapped() for pair in pairs]
    sides = ([part for part in of_split if part.languages == (language,)] for language in (source, target))
    return list(read_pairs([find(corpus, side, folder) for side in sides]))


def known_path(name: str, split: str, folder: Path | None) -> Path:
    """The one file of a split, whatever it holds: tagged words, labelled texts, plain text."""
    corpus = known(name)
    _split(corpus, split)
    of_split = [part for part in corpus.parts if part.split == split]
    if len(of_split) > 1:
        files = ", ".join(part.path.partition("/")[2] for part in of_split)
        raise ValueError(f"{name} has {len(of_split)} files for {split}: {files}; read the one you mean by its path")
    return find(corpus, of_split, folder)


def _split(corpus: Known, split: str) -> None:
    if split not in corpus.splits:
        raise ValueError(f"{corpus.name} has no split {split!r}; it has {', '.join(corpus.splits)}")


def _offered(corpus: Known, split: str, source: str, target: str) -> None:
    if not corpus.pairs:
        others = ", ".join(other.name for other in KNOWN.values() if other.pairs)
        raise ValueError(f"{corpus.name} holds no translations; choose from {others}")
    _split(corpus, split)
    if (source, target) not in corpus.pairs and (target, source) not in corpus.pairs:
        offered = ", ".join("-".join(pair) for pair in corpus.pairs)
        raise ValueError(f"{corpus.name} does not translate {source!r} into {target!r}; it has {offered}, both ways")


# --- where the files are ---


def places(part: Part, folder: Path) -> list[Path]:
    """Where a file may lie, before it is packed: in the corpus's own folder, or in the given one itself."""
    home, _, name = part.path.partition("/")
    # Files of different corpora have the same names, so the folder of one never serves another.
    inside = [] if folder.name in FOLDERS - {home} else [folder / name]
    return [folder / part.path, *inside]


def located(part: Part, folder: Path | None) -> Path | None:
    """The file, plain or packed, if it is there."""
    paths = [Path(f"{place}{packed}") for place in (places(part, folder) if folder else ()) for packed in PACKED]
    return next((path for path in paths if path.is_file()), None)


def find(corpus: Known, parts: Sequence[Part], folder: Path | None) -> Path:
    """The first of these files that is there; a ValueError that helps if none is."""
    found = [path for part in parts if (path := located(part, folder))]
    return found[0] if found else _missing(corpus, parts, folder)


def _missing(corpus: Known, parts: Sequence[Part], folder: Path | None) -> Path:
    if folder is None:
        raise ValueError(
            f"{corpus.name}: its folder is not given; name it with --data FOLDER or REGARD_DATA, {_source(corpus)}"
        )
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name the one that holds {corpus.name} with --data or REGARD_DATA")
    tried = " and ".join(str(place) for part in parts[:2] for place in places(part, folder))
    raise ValueError(
        f"{corpus.name} is not in {folder}: looked for {tried}, plain, .gz and .xz; "
        f"name another folder with --data FOLDER or REGARD_DATA, {_source(corpus)}"
    )


def _source(corpus: Known) -> str:
    return f"or download it with `regard data fetch {corpus.name} FOLDER` or from {corpus.homepage}"


# --- are they whole? ---


class State(StrEnum):
    ABSENT = "not here"
    SAME = "as known"
    OTHER = "another version"  # a corpus that was cleaned, cut or corrected: nothing is wrong with it
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Checked:
    """A file of a corpus, where it is, and how it compares with the one that is known."""

    part: Part
    path: Path | None
    state: State
    why: str = ""


def check(corpus: Known, folder: Path | None) -> Iterator[Checked]:
    """File by file, since a large one takes seconds."""
    for part in corpus.parts:
        yield checked(part, located(part, folder))


def checked(part: Part, path: Path | None) -> Checked:
    if path is None:
        return Checked(part, None, State.ABSENT)
    try:
        same = digest(path) == part.sha256
    except ValueError as error:
        return Checked(part, path, State.DAMAGED, str(error))
    return Checked(part, path, State.SAME if same else State.OTHER)


def digest(path: Path) -> str:
    """The sha256 of what a file holds, unpacked; a torn archive is a ValueError."""
    try:
        with opened(path) if path.suffix in COMPRESSED else open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: cannot be read to its end ({error}); fetch or pack the file again") from None
