"""Pairs that are written are read back the same, in every format; what fails leaves nothing behind."""

import errno
import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text import Pair, read_pairs
from regard.text.writing import Written, write_pairs

PAIRS = [Pair("the cat", "le chat"), Pair("a\u2028b 😀 \x85", "č ش"), Pair(" two  blanks ", '"deux" \\')]
LANGUAGES = ("en", "fr")
sentences = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t\0\ufeff")).filter(str.strip)


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
@pytest.mark.parametrize("layout", ["", ".tsv", ".jsonl"])
def test_what_is_written_is_read_back(tmp_path, layout, packed):
    done = write_pairs(iter(PAIRS), tmp_path / f"new/a{layout}{packed}", LANGUAGES)
    names = [f"a{layout}{packed}"] if layout else [f"a.en{packed}", f"a.fr{packed}"]
    assert done == Written(tuple(tmp_path / "new" / name for name in names), 3)
    assert sorted(os.listdir(tmp_path / "new")) == names
    assert list(read_pairs(done.paths, fields=LANGUAGES)) == PAIRS


@given(
    pairs=st.lists(st.builds(Pair, sentences, sentences), max_size=5), layout=st.sampled_from(["a.tsv", "a", "a.jsonl"])
)
def test_any_text_is_written_as_it_is(tmp_path_factory, pairs, layout):
    done = write_pairs(pairs, tmp_path_factory.mktemp("any") / layout)
    assert list(read_pairs(done.paths)) == pairs


def test_the_formats_are_what_they_seem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.tsv", "a.jsonl", "a.b.gz"):
        write_pairs(PAIRS[:1], name, LANGUAGES)
    assert Path("a.tsv").read_bytes() == b"the cat\tle chat\n"
    assert Path("a.jsonl").read_bytes() == b'{"en": "the cat", "fr": "le chat"}\n'
    assert gzip.decompress(Path("a.b.fr.gz").read_bytes()) == b"le chat\n"


def test_packing_the_same_text_twice_gives_the_same_bytes(tmp_path, monkeypatch):
    written = []
    for clock in (1e9, 2e9):
        monkeypatch.setattr("time.time", lambda clock=clock: clock)
        write_pairs(PAIRS, tmp_path / "a.tsv.gz")
        written.append((tmp_path / "a.tsv.gz").read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("a.tsv", "a\tb", "pair 2: a tab inside a sentence cannot stand in a .tsv; write .jsonl or two text files"),
        ("a.tsv", "a\nb", "pair 2: a line end inside a sentence would break its line; write .jsonl"),
        ("a", "a\rb", "pair 2: a line end inside a sentence would break its line; write .jsonl"),
    ],
)
def test_a_sentence_that_would_break_its_line_is_refused_and_nothing_is_left(tmp_path, name, source, says):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        write_pairs([Pair("fine", "bien"), Pair(source, "c")], tmp_path / name)
    assert str(caught.value) == says
    assert not os.listdir(tmp_path)
    assert write_pairs([Pair(source, "c")], tmp_path / "a.jsonl").pairs == 1
    assert list(read_pairs(tmp_path / "a.jsonl")) == [Pair(source, "c")]


def test_two_sides_need_two_names(tmp_path):
    with pytest.raises(ValueError, match="both sides are called 'en'; name the two languages"):
        write_pairs(PAIRS, tmp_path / "a", ("en", "en"))


def test_a_full_disk_or_a_bad_pair_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.tsv.xz"
    write_pairs(PAIRS, path)

    def broken():
        yield PAIRS[0]
        raise ValueError("b.tsv:2: no tab")

    with pytest.raises(ValueError, match="no tab"):
        write_pairs(broken(), path)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"a\.tsv\.xz: cannot be written \(No space left on device\); make room"):
        write_pairs(PAIRS[:1], path)
    assert os.listdir(tmp_path) == ["a.tsv.xz"]
    assert list(read_pairs(path)) == PAIRS


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(ValueError, match=r"a/b\.tsv: cannot be written \(.*\); make room, or choose another place"):
        write_pairs(PAIRS, tmp_path / "a" / "b.tsv")
