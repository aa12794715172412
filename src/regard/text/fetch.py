"""The address of a public file in; the file in its place out, whole or not at all. Only https is spoken."""

from collections.abc import Callable, Iterator
from contextlib import closing
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

from regard.text.files import COMPRESSED, whole
from regard.text.known import located
from regard.text.named import Known

PATIENCE = 30  # seconds without a byte
PIECE = 1 << 16
ELSEWHERE = "fetch it elsewhere and name its folder with --data"


class Answer(Protocol):
    """What a server sends back."""

    headers: "Headers"

    def read(self, size: int) -> bytes: ...
    def close(self) -> None: ...


class Headers(Protocol):
    def get(self, name: str, /) -> str | None: ...


Connect = Callable[[str], Answer]


def https(address: str) -> Answer:
    """Follows redirections, but not to anything else than https: only its handler is there."""
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
    return opener.open(Request(address, headers={"User-Agent": f"regard/{version('regard')}"}), timeout=PATIENCE)


def unseen(arrived: int, total: int | None) -> None:
    """Nobody is watching."""


def missing(corpus: Known, folder: Path) -> Iterator[tuple[str, Path]]:
    """What has to be downloaded: addresses, and where they go. Its own files, or else the archives to make it from."""
    own = [(part.address, part) for part in corpus.parts if part.address]
    for address, part in own:
        if not located(part, folder):
            packing = Path(address).suffix
            yield address, folder / f"{part.path}{packing if packing in COMPRESSED else ''}"
    for address in () if own else corpus.originals:
        path = folder / corpus.name / address.rpartition("/")[2]
        if not path.exists():
            yield address, path


def download(
    address: str, path: Path, *, connect: Connect = https, seen: Callable[[int, int | None], object] = unseen
) -> None:
    """`seen` hears how many bytes have arrived, and how many there will be if the server says so."""
    with closing(_ask(address, connect)) as answer, whole(path) as file:
        said = answer.headers.get("Content-Length")
        total, arrived = int(said) if said else None, 0
        while piece := _next(answer, address):
            file.write(piece)
            arrived += len(piece)
            seen(arrived, total)
        if total is not None and arrived != total:
            raise ValueError(f"{address}: broke off after {arrived:,} of {total:,} bytes; try again")


def _ask(address: str, connect: Connect) -> Answer:
    if not address.startswith("https://"):
        raise ValueError(f"{address}: only https is spoken here; fetch it by other means")
    try:
        return connect(address)
    except HTTPError as error:
        error.close()
        raise ValueError(f"{address}: the server answers {error.code} {error.reason}; {ELSEWHERE}") from None
    except (OSError, HTTPException) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise ValueError(f"{address}: cannot be reached ({why}); check the network, or {ELSEWHERE}") from None


def _next(answer: Answer, address: str) -> bytes:
    try:
        return answer.read(PIECE)
    except (OSError, HTTPException) as error:
        raise ValueError(f"{address}: broke off ({error}); try again") from None
