"""Known corpora: found in any packing, read in any direction, compared with what everybody has."""

import gzip
import hashlib
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.text import Pair
from regard.text.known import KNOWN, State, check, digest, find, known, known_pairs, known_path
from regard.text.named import Known, Part, parts

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


def assert_says(message: str, *asked) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        known_pairs(*asked)
    assert str(caught.value) == message


# --- the table ---


@pytest.mark.parametrize("corpus", KNOWN.values(), ids=KNOWN)
def test_every_corpus_is_described_in_full(corpus):
    assert corpus.title
    assert corpus.size
    assert corpus.licence
    assert corpus.homepage.startswith("http")
    assert all(address.startswith("https://") for address in corpus.originals)
    assert len({part.path for part in corpus.parts}) == len(corpus.parts) > 0
    for part in corpus.parts:
        assert re.fullmatch(r"[0-9a-f]{64}", part.sha256)
        assert re.fullmatch(r"\w+/[\w.-]+", part.path)
        assert part.split in ("train", "valid", "test", "whole", "phrases")
        assert part.address is None or part.address.startswith("https://")


def test_every_corpus_can_be_had_from_somewhere():
    for corpus in KNOWN.values():
        assert corpus.originals or all(part.address for part in corpus.parts), corpus.name


def test_who_translates_what():
    offered = {name: {"-".join(pair) for pair in corpus.pairs} for name, corpus in KNOWN.items() if corpus.pairs}
    assert offered == {
        "multi30k": {"en-de", "en-fr", "de-fr"},
        "tatoeba": {"en-fr", "en-de"},
        "europarl": {"en-fr", "en-de"},
        "newstest": {"en-de", "en-fr", "de-fr"},
    }
    assert {name: corpus.splits for name, corpus in KNOWN.items() if corpus.pairs} == {
        "multi30k": ("train", "valid", "test"),
        "tatoeba": ("train", "valid", "test"),
        "europarl": ("train", "valid"),
        "newstest": ("valid", "test"),
    }


def test_weights_do_not_ship_where_the_licence_is_for_research():
    assert {name for name, corpus in KNOWN.items() if not corpus.ships} == {
        name for name, corpus in KNOWN.items() if "for research" in corpus.licence
    }


# --- reading ---


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("home", ["multi30k/", ""])
def test_a_file_for_each_language_is_read_in_any_direction_and_packing(put, tmp_path, home, packed):
    put(f"{home}val.en{packed}", ENGLISH)
    put(f"{home}val.de{packed}", GERMAN)
    there = [Pair("a cat", "eine Katze"), Pair("two dogs", "zwei Hunde")]
    assert known_pairs("multi30k", "valid", "en", "de", tmp_path) == there
    assert known_pairs("multi30k", "valid", "de", "en", tmp_path) == [pair.swapped() for pair in there]


def test_a_table_is_read_in_both_directions(put, tmp_path):
    put("tatoeba/test.en-fr.tsv.xz", "a cat\tun chat\n")
    assert known_pairs("tatoeba", "test", "en", "fr", tmp_path) == [Pair("a cat", "un chat")]
    assert known_pairs("tatoeba", "test", "fr", "en", tmp_path) == [Pair("un chat", "a cat")]


def test_either_copy_of_the_english_news_will_do(put, tmp_path):
    put("newstest/newstest2012.en-fr.en", ENGLISH)
    put("newstest/newstest2012.en-de.de", GERMAN)
    put("newstest/newstest2012.en-fr.fr", FRENCH)
    assert known_pairs("newstest", "valid", "en", "de", tmp_path)[0] == Pair("a cat", "eine Katze")
    assert known_pairs("newstest", "valid", "de", "fr", tmp_path)[1] == Pair("zwei Hunde", "deux chiens")


@pytest.mark.parametrize("packed", PACKED)
def test_the_one_file_of_a_split_is_found(put, tmp_path, packed):
    films = put(f"sst2/train.tsv{packed}", "fine\t1\n")
    assert known_path("sst2", "train", tmp_path) == known_path("sst2", "train", tmp_path / "sst2") == films
    with pytest.raises(ValueError, match=r"sst2 is not in .*: looked for .*dev\.tsv"):
        known_path("sst2", "valid", tmp_path)
    with pytest.raises(ValueError, match="sst2 has no split 'dev'; it has train, phrases, valid, test"):
        known_path("sst2", "dev", tmp_path)
    with pytest.raises(ValueError, match=r"multi30k has 3 files for valid: val\.en, val\.de, val\.fr; read the one"):
        known_path("multi30k", "valid", tmp_path)


def test_the_folder_of_one_corpus_never_serves_another(put, tmp_path):
    put("tatoeba/train.en-fr.tsv", "a cat\tun chat\n")
    assert known_pairs("tatoeba", "train", "en", "fr", tmp_path / "tatoeba") == [Pair("a cat", "un chat")]
    with pytest.raises(ValueError, match="europarl is not in"):
        known_pairs("europarl", "train", "en", "fr", tmp_path / "tatoeba")


# --- what cannot be read ---


def test_what_is_not_known_is_said_with_what_is(tmp_path):
    assert_says(
        f"no known corpus is called 'multi3k'; choose from {', '.join(KNOWN)}", "multi3k", "train", "en", "de", tmp_path
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


def test_a_missing_file_is_said_with_the_paths_and_the_remedies(put, tmp_path):
    put("multi30k/train.en", ENGLISH)
    assert_says(
        f"multi30k is not in {tmp_path}: looked for {tmp_path}/multi30k/train.de and {tmp_path}/train.de, plain, .gz "
        "and .xz; name another folder with --data FOLDER or REGARD_DATA, or download it with `regard data fetch "
        "multi30k FOLDER` or from https://github.com/multi30k/dataset",
        *("multi30k", "train", "en", "de", tmp_path),
    )
    assert_says(
        "multi30k: its folder is not given; name it with --data FOLDER or REGARD_DATA, or download it with `regard "
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
        known_pairs("multi30k", "train", "en", "de", tmp_path)
    put("multi30k/val.en", ENGLISH)
    put("multi30k/val.fr", "un chat\ndeux chiens à l'eau\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"val\.fr:2: not UTF-8 .* iconv -f LATIN1"):
        known_pairs("multi30k", "valid", "fr", "en", tmp_path)
    put("multi30k/val.de", GERMAN + "drei\n")
    with pytest.raises(ValueError, match=r"val\.de:3: no partner, because .*val\.en ends after line 2"):
        known_pairs("multi30k", "valid", "en", "de", tmp_path)


# --- checksums ---


def of(*files: Part) -> Known:
    return Known("toy", title="", size="", licence="", ships=True, homepage="", parts=files)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("packed", PACKED)
def test_one_text_has_one_checksum_however_it_is_packed(put, packed):
    assert digest(put(f"a.en{packed}", ENGLISH)) == sha256(ENGLISH)


def test_a_changed_text_is_another_version_and_only_a_torn_archive_is_damaged(put, tmp_path):
    put("toy/same.xz", ENGLISH)
    put("toy/other.xz", FRENCH)
    for packed in (".gz", ".xz"):
        torn = put(f"toy/torn{packed[1]}{packed}", ENGLISH * 99)
        torn.write_bytes(torn.read_bytes()[:-5])
    names = ("same", "other", "torng", "tornx", "absent")
    found = list(check(of(*(Part("train", ("en",), f"toy/{name}", sha256(ENGLISH)) for name in names)), tmp_path))
    assert [one.state for one in found] == [State.SAME, State.OTHER, State.DAMAGED, State.DAMAGED, State.ABSENT]
    assert [one.path and one.path.name for one in found] == ["same.xz", "other.xz", "torng.gz", "tornx.xz", None]
    assert "torng.gz: cannot be read to its end" in found[2].why
    assert [one.state for one in check(of(*(one.part for one in found)), None)] == [State.ABSENT] * 5


def test_a_table_of_files_becomes_parts():
    one, two = parts("toy", "\n  train en-fr a.tsv 12\n  test - b.tar 34\n", at="https://home/", ending=".gz")
    assert one == Part("train", ("en", "fr"), "toy/a.tsv", "12", "https://home/a.tsv.gz")
    assert two == Part("test", (), "toy/b.tar", "34", "https://home/b.tar.gz")
    assert parts("toy", "train en a 5")[0].address is None


def test_the_plain_file_is_taken_first(put, tmp_path):
    plain, _ = put("toy/a", ENGLISH), put("toy/a.xz", FRENCH)
    part = Part("train", ("en",), "toy/a", "")
    assert find(of(part), [part], tmp_path) == plain


def test_knowing_corpora_does_not_wait_for_torch():
    program = "import sys; import regard.text.known, regard.text.fetch; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA names no folder of known corpora")
def test_the_real_multi30k_is_as_known():
    folder = Path(os.environ["REGARD_DATA"])
    if any(one.state == State.ABSENT for one in check(known("multi30k"), folder)):
        pytest.skip(f"{folder} does not hold all of multi30k")
    assert {one.state for one in check(known("multi30k"), folder)} <= {State.SAME, State.OTHER}
    assert len(known_pairs("multi30k", "valid", "de", "fr", folder)) == 1014
