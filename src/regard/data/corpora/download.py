"""Corpus download: finds, checks and downloads the files of catalogued corpora.

read_corpus_pairs("multi30k", "train", "de", "en", Path("corpora"))   from corpora/multi30k/train.de.xz and the like
corpus_path("sst2", "train", Path("corpora"))                         corpora/sst2/train.tsv.xz: one file, any reader
check_corpus(find_corpus("multi30k"), Path("corpora"))                compares its files with their checksums
"""

import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from regard.data.corpora.catalogue import CORPORA, CorpusFile, CorpusInfo
from regard.data.files import COMPRESSED, open_atomic, open_decompressed
from regard.data.parallel import SentencePair, read_pairs

PACKED_SUFFIXES = ("", *COMPRESSED)
FOLDERS = frozenset(part.path.partition("/")[0] for corpus in CORPORA.values() for part in corpus.files)


def find_corpus(name: str) -> CorpusInfo:
    if name not in CORPORA:
        raise ValueError(f"no catalogued corpus is called {name!r}; choose from {', '.join(CORPORA)}")
    return CORPORA[name]


def read_corpus_pairs(name: str, split: str, source: str, target: str, folder: Path | None) -> list[SentencePair]:
    """The pairs of a split (train, valid or test), in either direction; `folder` has the catalogued corpora."""
    corpus = find_corpus(name)
    _files_for_pair(corpus, split, source, target)
    of_split = [part for part in corpus.files if part.split == split]
    for columns in ((source, target), (target, source)):
        if table := [part for part in of_split if part.languages == columns]:
            pairs = read_pairs(find_file(corpus, table, folder))
            return [pair if columns == (source, target) else pair.swapped() for pair in pairs]
    sides = ([part for part in of_split if part.languages == (language,)] for language in (source, target))
    return list(read_pairs([find_file(corpus, side, folder) for side in sides]))


def corpus_path(name: str, split: str, folder: Path | None) -> Path:
    """The one file of a split: tagged words, labelled texts or plain text."""
    corpus = find_corpus(name)
    _split(corpus, split)
    of_split = [part for part in corpus.files if part.split == split]
    if len(of_split) > 1:
        files = ", ".join(part.path.partition("/")[2] for part in of_split)
        raise ValueError(f"{name} has {len(of_split)} files for {split}: {files}; read the one you mean by its path")
    return find_file(corpus, of_split, folder)


def _split(corpus: CorpusInfo, split: str) -> None:
    if split not in corpus.splits:
        raise ValueError(f"{corpus.name} has no split {split!r}; it has {', '.join(corpus.splits)}")


def _files_for_pair(corpus: CorpusInfo, split: str, source: str, target: str) -> None:
    if not corpus.pairs:
        others = ", ".join(other.name for other in CORPORA.values() if other.pairs)
        raise ValueError(f"{corpus.name} holds no translations; choose from {others}")
    _split(corpus, split)
    if (source, target) not in corpus.pairs and (target, source) not in corpus.pairs:
        offered = ", ".join("-".join(pair) for pair in corpus.pairs)
        raise ValueError(f"{corpus.name} does not translate {source!r} into {target!r}; it has {offered}, both ways")


# --- where the files are ---


def candidate_paths(part: CorpusFile, folder: Path) -> list[Path]:
    """The paths where a file may be, without .gz or .xz: in the corpus's own folder, or directly in `folder`."""
    home, _, name = part.path.partition("/")
    # Files of different corpora have the same names, so the folder of one never serves another.
    inside = [] if folder.name in FOLDERS - {home} else [folder / name]
    return [folder / part.path, *inside]


def locate_file(part: CorpusFile, folder: Path | None) -> Path | None:
    """The path of the file, plain or compressed, if it exists."""
    paths = [
        Path(f"{path}{suffix}")
        for path in (candidate_paths(part, folder) if folder else ())
        for suffix in PACKED_SUFFIXES
    ]
    return next((path for path in paths if path.is_file()), None)


def find_file(corpus: CorpusInfo, parts: Sequence[CorpusFile], folder: Path | None) -> Path:
    """The first of these files that exists; a ValueError with a remedy if none does."""
    paths = [path for part in parts if (path := locate_file(part, folder))]
    return paths[0] if paths else _missing_error(corpus, parts, folder)


def _missing_error(corpus: CorpusInfo, parts: Sequence[CorpusFile], folder: Path | None) -> Path:
    if folder is None:
        raise ValueError(
            f"{corpus.name}: its folder is not set; name it with --data FOLDER or REGARD_DATA, {_source(corpus)}"
        )
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name the one that holds {corpus.name} with --data or REGARD_DATA")
    tried = " and ".join(str(path) for part in parts[:2] for path in candidate_paths(part, folder))
    raise ValueError(
        f"{corpus.name} is not in {folder}: looked for {tried}, plain, .gz and .xz; "
        f"name another folder with --data FOLDER or REGARD_DATA, {_source(corpus)}"
    )


def _source(corpus: CorpusInfo) -> str:
    return f"or download it with `regard data fetch {corpus.name} FOLDER` or from {corpus.homepage}"


# --- checksums ---


class FileState(StrEnum):
    ABSENT = "not here"
    MATCHES = "as known"
    OTHER_VERSION = "another version"  # a cleaned, shortened or corrected corpus, which can be used
    DAMAGED = "damaged"


@dataclass(frozen=True)
class FileCheck:
    """A file of a corpus, its path, and how it compares with its checksum."""

    file: CorpusFile
    path: Path | None
    state: FileState
    reason: str = ""


def check_corpus(corpus: CorpusInfo, folder: Path | None) -> Iterator[FileCheck]:
    """One file at a time, since a large one takes seconds."""
    for part in corpus.files:
        yield check_file(part, locate_file(part, folder))


def check_file(part: CorpusFile, path: Path | None) -> FileCheck:
    if path is None:
        return FileCheck(part, None, FileState.ABSENT)
    try:
        same = sha256_digest(path) == part.sha256
    except ValueError as error:
        return FileCheck(part, path, FileState.DAMAGED, str(error))
    return FileCheck(part, path, FileState.MATCHES if same else FileState.OTHER_VERSION)


def sha256_digest(path: Path) -> str:
    """The sha256 of the decompressed file; a truncated one is a ValueError."""
    try:
        with open_decompressed(path) if path.suffix in COMPRESSED else open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: cannot be read to its end ({error}); fetch or pack the file again") from None


# --- download ---


TIMEOUT_SECONDS = 30  # seconds without a byte
CHUNK_BYTES = 1 << 16
OFFLINE_HINT = "fetch it elsewhere and name its folder with --data"


class HttpResponse(Protocol):
    """The response of a server."""

    headers: "HttpHeaders"

    def read(self, size: int) -> bytes: ...
    def close(self) -> None: ...


class HttpHeaders(Protocol):
    def get(self, name: str, /) -> str | None: ...


Connect = Callable[[str], HttpResponse]


def open_https(url: str) -> HttpResponse:
    """Follows redirects, but only to https: no other handler is installed."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        UnknownHandler,
        HTTPSHandler,
        HTTPDefaultErrorHandler,
        HTTPRedirectHandler,
        HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener.open(Request(url, headers={"User-Agent": f"regard/{version('regard')}"}), timeout=TIMEOUT_SECONDS)


def ignore_progress(arrived: int, total: int | None) -> None:
    """The default progress callback."""


def missing_downloads(corpus: CorpusInfo, folder: Path) -> Iterator[tuple[str, Path]]:
    """The URLs to download and their paths: the corpus's own files, or else the archives to make it from."""
    own = [(part.url, part) for part in corpus.files if part.url]
    for url, part in own:
        if not locate_file(part, folder):
            packing = Path(url).suffix
            yield url, folder / f"{part.path}{packing if packing in COMPRESSED else ''}"
    for url in () if own else corpus.original_urls:
        path = folder / corpus.name / url.rpartition("/")[2]
        if not path.exists():
            yield url, path


def download(
    url: str,
    path: Path,
    *,
    connect: Connect = open_https,
    on_progress: Callable[[int, int | None], object] = ignore_progress,
) -> None:
    """`on_progress` is called with the bytes received so far, and with the total if the server sends it."""
    with closing(_open(url, connect)) as response, open_atomic(path) as file:
        length = response.headers.get("Content-Length")
        total, arrived = int(length) if length else None, 0
        while chunk := _read_chunk(response, url):
            file.write(chunk)
            arrived += len(chunk)
            on_progress(arrived, total)
        if total is not None and arrived != total:
            raise ValueError(f"{url}: broke off after {arrived:,} of {total:,} bytes; try again")


def _open(url: str, connect: Connect) -> HttpResponse:
    if not url.startswith("https://"):
        raise ValueError(f"{url}: only https is supported; download it by other means")
    try:
        return connect(url)
    except HTTPError as error:
        error.close()
        raise ValueError(f"{url}: the server responded {error.code} {error.reason}; {OFFLINE_HINT}") from None
    except (OSError, HTTPException) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise ValueError(f"{url}: cannot be reached ({why}); check the network, or {OFFLINE_HINT}") from None


def _read_chunk(response: HttpResponse, url: str) -> bytes:
    try:
        return response.read(CHUNK_BYTES)
    except (OSError, HTTPException) as error:
        raise ValueError(f"{url}: broke off ({error}); try again") from None
