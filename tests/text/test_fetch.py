"""Downloads arrive whole or not at all, over https alone; without a network the remedy is one line."""

import io
import os
from email.message import Message
from http.client import IncompleteRead
from urllib.error import HTTPError, URLError

import pytest

from regard.text.fetch import download, https, missing
from regard.text.known import known

HOME = "https://home/a.gz"


class Answered:
    """A server's answer, five bytes at a time, of a length that it may lie about; it may end in an error."""

    def __init__(self, content: bytes, length: int | None = None, error: Exception | None = None):
        self.stream, self.headers, self.error, self.closed = io.BytesIO(content), Message(), error, False
        if length is not None:
            self.headers["Content-Length"] = str(length)

    def read(self, size: int) -> bytes:
        piece = self.stream.read(min(size, 5))
        if self.error and not piece:
            raise self.error
        return piece

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("length", [13, None])
def test_what_arrives_is_put_in_its_place_and_watched(tmp_path, length):
    heard, answer = [], Answered(b"a cat\na mouse", length)
    download(HOME, tmp_path / "new/a.gz", connect=lambda address: answer, seen=lambda *news: heard.append(news))
    assert (tmp_path / "new/a.gz").read_bytes() == b"a cat\na mouse"
    assert heard == [(5, length), (10, length), (13, length)]
    assert answer.closed
    assert os.listdir(tmp_path / "new") == ["a.gz"]


def test_a_download_that_breaks_off_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(ValueError, match=r"^https://home/a\.gz: broke off after 5 of 17 bytes; try again$"):
        download(HOME, tmp_path / "a", connect=lambda address: Answered(b"a cat", 17))

    for error in (IncompleteRead(b"a c", 4), ConnectionResetError(104, "Connection reset by peer")):
        with pytest.raises(ValueError, match=r"^https://home/a\.gz: broke off \(.*\); try again$"):
            download(HOME, tmp_path / "a", connect=lambda address, error=error: Answered(b"a cat", 17, error))
    assert (tmp_path / "a").read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a"]


def raising(error: Exception):
    def connect(address: str):
        raise error

    return connect


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (URLError(OSError("no route")), "cannot be reached (no route); check the network, or fetch it elsewhere"),
        (TimeoutError("timed out"), "cannot be reached (timed out); check the network, or fetch it elsewhere"),
        (HTTPError(HOME, 404, "Not Found", Message(), None), "the server answers 404 Not Found; fetch it elsewhere"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line_with_the_remedy(tmp_path, error, says):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        download(HOME, tmp_path / "a", connect=raising(error))
    assert str(caught.value) == f"{HOME}: {says} and name its folder with --data"
    assert not os.listdir(tmp_path)


def test_a_closed_door_is_no_traceback(tmp_path):
    """A real connection, to a port of this machine at which nobody listens."""
    with pytest.raises(
        ValueError, match=r"^https://127\.0\.0\.1:9/a: cannot be reached \(.*refused\); check the network"
    ):
        download("https://127.0.0.1:9/a", tmp_path / "a")


def test_only_https_is_spoken_even_after_a_redirection(tmp_path):
    with pytest.raises(ValueError, match=r"^http://home/a: only https is spoken here"):
        download("http://home/a", tmp_path / "a")
    with pytest.raises(URLError, match="unknown url type: http"):
        https("http://127.0.0.1/a")


def test_what_is_here_is_not_fetched_again(tmp_path):
    fashion = known("fashion_mnist")
    wanted = list(missing(fashion, tmp_path))
    assert [address for address, _ in wanted] == [part.address for part in fashion.parts]
    assert wanted[0][1] == tmp_path / "fashion_mnist/train-images-idx3-ubyte.gz"
    (tmp_path / "fashion_mnist").mkdir()
    (tmp_path / "fashion_mnist/train-images-idx3-ubyte").write_bytes(b"")
    assert list(missing(fashion, tmp_path)) == wanted[1:]


def test_where_the_files_are_not_public_the_archives_are(tmp_path):
    assert list(missing(known("europarl"), tmp_path)) == [
        (f"https://www.statmt.org/europarl/v7/{name}", tmp_path / "europarl" / name)
        for name in ("fr-en.tgz", "de-en.tgz")
    ]
    (tmp_path / "europarl").mkdir()
    (tmp_path / "europarl/fr-en.tgz").write_bytes(b"")
    assert [path.name for _, path in missing(known("europarl"), tmp_path)] == ["de-en.tgz"]
