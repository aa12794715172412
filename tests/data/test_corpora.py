"""Known corpora: found in any packing, read in any direction, compared with what everybody has."""

import gzip
import hashlib
import io
import lzma
import os
import re
import subprocess
import sys
from email.message import Message
from http.client import IncompleteRead
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from regard.data import SentencePair
from regard.data.corpora import (
    CORPORA,
    CorpusFile,
    CorpusInfo,
    FileState,
    check_corpus,
    corpus_path,
    download,
    find_corpus,
    find_file,
    missing_downloads,
    open_https,
    parse_files,
    read_corpus_pairs,
    sha256_digest,
)

PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
ENGLISH, GERMAN, FRENCH = "a cat\ntwo dogs\n", "eine Katze\nzwei Hunde\n", "un chat\ndeux chiens\n"


@pytest.fixture
def put(tmp_path):
    """Writes a file below the folder of all corpora, packed as its name says."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(PACKED[path.suffix if path.suffix in PACKED else ""](raw))
        return path

    return write


def assert_says(message: str, *request) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        read_corpus_pairs(*request)
    assert str(caught.value) == message


# --- the table ---


@pytest.mark.parametrize("corpus", CORPORA.values(), ids=CORPORA)
def test_every_corpus_is_described_in_full(corpus):
    assert corpus.title
    assert corpus.size
    assert corpus.licence
    assert corpus.homepage.startswith("http")
    assert all(address.startswith("https://") for address in corpus.original_urls)
    assert len({part.path for part in corpus.files}) == len(corpus.files) > 0
    for part in corpus.files:
        assert re.fullmatch(r"[0-9a-f]{64}", part.sha256)
        assert re.fullmatch(r"\w+/[\w.-]+", part.path)
        assert part.split in ("train", "valid", "test", "whole", "phrases")
        assert part.url is None or part.url.startswith("https://")


def test_every_corpus_can_be_had_from_somewhere():
    for corpus in CORPORA.values():
        assert corpus.original_urls or all(part.url for part in corpus.files), corpus.name


def test_who_translates_what():
    offered = {name: {"-".join(pair) for pair in corpus.pairs} for name, corpus in CORPORA.items() if corpus.pairs}
    assert offered == {
        "multi30k": {"en-de", "en-fr", "de-fr"},
        "tatoeba": {"en-fr", "en-de"},
        "europarl": {"en-fr", "en-de"},
        "newstest": {"en-de", "en-fr", "de-fr"},
    }
    assert {name: corpus.splits for name, corpus in CORPORA.items() if corpus.pairs} == {
        "multi30k": ("train", "valid", "test"),
        "tatoeba": ("train", "valid", "test"),
        "europarl": ("train", "valid"),
        "newstest": ("valid", "test"),
    }


def test_weights_do_not_ship_where_the_licence_is_for_research():
    assert {name for name, corpus in CORPORA.items() if not corpus.redistributable} == {
        name for name, corpus in CORPORA.items() if "for research" in corpus.licence
    }


# --- reading ---


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("home", ["multi30k/", ""])
def test_a_file_for_each_language_is_read_in_any_direction_and_packing(put, tmp_path, home, packed):
    put(f"{home}val.en{packed}", ENGLISH)
    put(f"{home}val.de{packed}", GERMAN)
    pairs = [SentencePair("a cat", "eine Katze"), SentencePair("two dogs", "zwei Hunde")]
    assert read_corpus_pairs("multi30k", "valid", "en", "de", tmp_path) == pairs
    assert read_corpus_pairs("multi30k", "valid", "de", "en", tmp_path) == [pair.swapped() for pair in pairs]


def test_a_table_is_read_in_both_directions(put, tmp_path):
    put("tatoeba/test.en-fr.tsv.xz", "a cat\tun chat\n")
    assert read_corpus_pairs("tatoeba", "test", "en", "fr", tmp_path) == [SentencePair("a cat", "un chat")]
    assert read_corpus_pairs("tatoeba", "test", "fr", "en", tmp_path) == [SentencePair("un chat", "a cat")]


def test_either_copy_of_the_english_news_will_do(put, tmp_path):
    put("newstest/newstest2012.en-fr.en", ENGLISH)
    put("newstest/newstest2012.en-de.de", GERMAN)
    put("newstest/newstest2012.en-fr.fr", FRENCH)
    assert read_corpus_pairs("newstest", "valid", "en", "de", tmp_path)[0] == SentencePair("a cat", "eine Katze")
    assert read_corpus_pairs("newstest", "valid", "de", "fr", tmp_path)[1] == SentencePair("zwei Hunde", "deux chiens")


@pytest.mark.parametrize("packed", PACKED)
def test_the_one_file_of_a_split_is_found(put, tmp_path, packed):
    films = put(f"sst2/train.tsv{packed}", "fine\t1\n")
    assert corpus_path("sst2", "train", tmp_path) == corpus_path("sst2", "train", tmp_path / "sst2") == films
    with pytest.raises(ValueError, match=r"sst2 is not in .*: looked for .*dev\.tsv"):
        corpus_path("sst2", "valid", tmp_path)
    with pytest.raises(ValueError, match="sst2 has no split 'dev'; it has train, phrases, valid, test"):
        corpus_path("sst2", "dev", tmp_path)
    with pytest.raises(ValueError, match=r"multi30k has 3 files for valid: val\.en, val\.de, val\.fr; read the one"):
        corpus_path("multi30k", "valid", tmp_path)


def test_the_folder_of_one_corpus_never_serves_another(put, tmp_path):
    put("tatoeba/train.en-fr.tsv", "a cat\tun chat\n")
    assert read_corpus_pairs("tatoeba", "train", "en", "fr", tmp_path / "tatoeba") == [SentencePair("a cat", "un chat")]
    with pytest.raises(ValueError, match="europarl is not in"):
        read_corpus_pairs("europarl", "train", "en", "fr", tmp_path / "tatoeba")


# --- what cannot be read ---


def test_an_unknown_corpus_is_named_with_the_known_ones(tmp_path):
    assert_says(
        f"no catalogued corpus is called 'multi3k'; choose from {', '.join(CORPORA)}",
        "multi3k",
        "train",
        "en",
        "de",
        tmp_path,
    )
    assert_says("europarl has no split 'test'; it has train, valid", "europarl", "test", "en", "fr", tmp_path)
    assert_says(
        "tatoeba does not translate 'de' into 'fr'; it has en-fr, en-de, both ways",
        *("tatoeba", "train", "de", "fr", tmp_path),
    )
    assert_says(
        "multi30k does not translate 'en' into 'en'; it has en-de, en-fr, de-fr, both ways",
        *("multi30k", "train", "en", "en", tmp_path),
    )
    assert_says(
        "sst2 holds no translations; choose from multi30k, tatoeba, europarl, newstest",
        *("sst2", "train", "en", "de", tmp_path),
    )


def test_a_missing_file_is_named_with_the_paths_and_the_remedies(put, tmp_path):
    put("multi30k/train.en", ENGLISH)
    assert_says(
        f"multi30k is not in {tmp_path}: looked for {tmp_path}/multi30k/train.de and {tmp_path}/train.de, plain, .gz "
        "and .xz; name another folder with --data FOLDER or REGARD_DATA, or download it with `regard data fetch "
        "multi30k FOLDER` or from https://github.com/multi30k/dataset",
        *("multi30k", "train", "en", "de", tmp_path),
    )
    assert_says(
        "multi30k: its folder is not set; name it with --data FOLDER or REGARD_DATA, or download it with `regard "
        "data fetch multi30k FOLDER` or from https://github.com/multi30k/dataset",
        *("multi30k", "train", "en", "de", None),
    )
    assert_says(
        f"{tmp_path}/nowhere: no such folder; name the one that holds multi30k with --data or REGARD_DATA",
        *("multi30k", "train", "en", "de", tmp_path / "nowhere"),
    )


def test_damage_wrong_encoding_and_unequal_lengths_are_named(put, tmp_path):
    put("multi30k/train.en", ENGLISH * 999)
    torn = put("multi30k/train.de.xz", GERMAN * 999)
    torn.write_bytes(torn.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"train\.de\.xz: cannot be read beyond line \d+ .*fetch or pack the file"):
        read_corpus_pairs("multi30k", "train", "en", "de", tmp_path)
    put("multi30k/val.en", ENGLISH)
    put("multi30k/val.fr", "un chat\ndeux chiens à l'eau\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"val\.fr:2: not UTF-8 .* iconv -f LATIN1"):
        read_corpus_pairs("multi30k", "valid", "fr", "en", tmp_path)
    put("multi30k/val.de", GERMAN + "drei\n")
    with pytest.raises(ValueError, match=r"val\.de:3: no partner, because .*val\.en ends after line 2"):
        read_corpus_pairs("multi30k", "valid", "en", "de", tmp_path)


# --- checksums ---


def of(*files: CorpusFile) -> CorpusInfo:
    return CorpusInfo("toy", title="", size="", licence="", redistributable=True, homepage="", files=files)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("packed", PACKED)
def test_one_text_has_one_checksum_however_it_is_packed(put, packed):
    assert sha256_digest(put(f"a.en{packed}", ENGLISH)) == sha256(ENGLISH)


def test_a_changed_text_is_another_version_and_only_a_torn_archive_is_damaged(put, tmp_path):
    put("toy/same.xz", ENGLISH)
    put("toy/other.xz", FRENCH)
    for packed in (".gz", ".xz"):
        torn = put(f"toy/torn{packed[1]}{packed}", ENGLISH * 99)
        torn.write_bytes(torn.read_bytes()[:-5])
    names = ("same", "other", "torng", "tornx", "absent")
    found = list(
        check_corpus(of(*(CorpusFile("train", ("en",), f"toy/{name}", sha256(ENGLISH)) for name in names)), tmp_path)
    )
    assert [one.state for one in found] == [
        FileState.MATCHES,
        FileState.OTHER_VERSION,
        FileState.DAMAGED,
        FileState.DAMAGED,
        FileState.ABSENT,
    ]
    assert [one.path and one.path.name for one in found] == ["same.xz", "other.xz", "torng.gz", "tornx.xz", None]
    assert "torng.gz: cannot be read to its end" in found[2].reason
    assert [one.state for one in check_corpus(of(*(one.file for one in found)), None)] == [FileState.ABSENT] * 5


def test_a_table_of_files_becomes_parts():
    one, two = parse_files(
        "toy", "\n  train en-fr a.tsv 12\n  test - b.tar 34\n", base_url="https://home/", suffix=".gz"
    )
    assert one == CorpusFile("train", ("en", "fr"), "toy/a.tsv", "12", "https://home/a.tsv.gz")
    assert two == CorpusFile("test", (), "toy/b.tar", "34", "https://home/b.tar.gz")
    assert parse_files("toy", "train en a 5")[0].url is None


def test_the_plain_file_is_taken_first(put, tmp_path):
    plain, _ = put("toy/a", ENGLISH), put("toy/a.xz", FRENCH)
    part = CorpusFile("train", ("en",), "toy/a", "")
    assert find_file(of(part), [part], tmp_path) == plain


def test_knowing_corpora_does_not_wait_for_torch():
    program = "import sys; import regard.data.corpora; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA names no folder of known corpora")
def test_the_real_multi30k_is_as_known():
    folder = Path(os.environ["REGARD_DATA"])
    if any(one.state == FileState.ABSENT for one in check_corpus(find_corpus("multi30k"), folder)):
        pytest.skip(f"{folder} does not hold all of multi30k")
    assert {one.state for one in check_corpus(find_corpus("multi30k"), folder)} <= {
        FileState.MATCHES,
        FileState.OTHER_VERSION,
    }
    assert len(read_corpus_pairs("multi30k", "valid", "de", "fr", folder)) == 1014


# --- test fetch ---


HOME = "https://home/a.gz"


class FakeResponse:
    """A server's response, five bytes at a time, of a length that it may lie about; it may end in an error."""

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
    progress, response = [], FakeResponse(b"a cat\na mouse", length)
    download(
        HOME,
        tmp_path / "new/a.gz",
        connect=lambda address: response,
        on_progress=lambda *counts: progress.append(counts),
    )
    assert (tmp_path / "new/a.gz").read_bytes() == b"a cat\na mouse"
    assert progress == [(5, length), (10, length), (13, length)]
    assert response.closed
    assert os.listdir(tmp_path / "new") == ["a.gz"]


def test_a_download_that_breaks_off_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(ValueError, match=r"^https://home/a\.gz: broke off after 5 of 17 bytes; try again$"):
        download(HOME, tmp_path / "a", connect=lambda address: FakeResponse(b"a cat", 17))

    for error in (IncompleteRead(b"a c", 4), ConnectionResetError(104, "Connection reset by peer")):
        with pytest.raises(ValueError, match=r"^https://home/a\.gz: broke off \(.*\); try again$"):
            download(HOME, tmp_path / "a", connect=lambda address, error=error: FakeResponse(b"a cat", 17, error))
    assert (tmp_path / "a").read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a"]


def raising(error: Exception):
    def connect(address: str):
        raise error

    return connect


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (URLError(OSError("no route")), "cannot be reached (no route); check the network, or fetch it elsewhere"),
        (TimeoutError("timed out"), "cannot be reached (timed out); check the network, or fetch it elsewhere"),
        (HTTPError(HOME, 404, "Not Found", Message(), None), "the server responded 404 Not Found; fetch it elsewhere"),
    ],
)
def test_a_failed_download_is_reported_in_one_line_with_the_remedy(tmp_path, error, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        download(HOME, tmp_path / "a", connect=raising(error))
    assert str(caught.value) == f"{HOME}: {message} and name its folder with --data"
    assert not os.listdir(tmp_path)


def test_a_closed_door_is_no_traceback(tmp_path):
    """A real connection, to a port of this machine at which nobody listens."""
    with pytest.raises(
        ValueError, match=r"^https://127\.0\.0\.1:9/a: cannot be reached \(.*refused\); check the network"
    ):
        download("https://127.0.0.1:9/a", tmp_path / "a")


def test_only_https_is_spoken_even_after_a_redirection(tmp_path):
    with pytest.raises(ValueError, match=r"^http://home/a: only https is supported"):
        download("http://home/a", tmp_path / "a")
    with pytest.raises(URLError, match="unknown url type: http"):
        open_https("http://127.0.0.1/a")


def test_what_is_here_is_not_fetched_again(tmp_path):
    fashion = find_corpus("fashion_mnist")
    wanted = list(missing_downloads(fashion, tmp_path))
    assert [address for address, _ in wanted] == [part.url for part in fashion.files]
    assert wanted[0][1] == tmp_path / "fashion_mnist/train-images-idx3-ubyte.gz"
    (tmp_path / "fashion_mnist").mkdir()
    (tmp_path / "fashion_mnist/train-images-idx3-ubyte").write_bytes(b"")
    assert list(missing_downloads(fashion, tmp_path)) == wanted[1:]


def test_where_the_files_are_not_public_the_archives_are(tmp_path):
    assert list(missing_downloads(find_corpus("europarl"), tmp_path)) == [
        (f"https://www.statmt.org/europarl/v7/{name}", tmp_path / "europarl" / name)
        for name in ("fr-en.tgz", "de-en.tgz")
    ]
    (tmp_path / "europarl").mkdir()
    (tmp_path / "europarl/fr-en.tgz").write_bytes(b"")
    assert [path.name for _, path in missing_downloads(find_corpus("europarl"), tmp_path)] == ["de-en.tgz"]
