"""Parallel files become pairs, whatever they are packed in; what is wrong with them is named by file and line."""

import errno
import gzip
import json
import lzma
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import CorpusSize, SentencePair, count_pairs, iter_lines, iter_sides, read_lines, read_pairs
from regard.data.files import write_text_atomic
from regard.data.parallel import WrittenCorpus, write_pairs

SENTENCES = [
    SentencePair("the cat", "le chat"),
    SentencePair("a\u2028b 😀", "č \x85 ش"),
    SentencePair(" two  blanks ", "deux"),
]


def assert_says(message: str, path: str, *more: str, **choices: Any) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        list(read_pairs((path, *more) if more else path, **choices))
    assert str(caught.value) == message
    assert type(caught.value) is ValueError


# --- what is read ---


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_every_layout_gives_the_same_pairs(put, packed):
    source = put(f"a.en{packed}", "".join(f"{pair.source}\n" for pair in SENTENCES))
    target = put(f"a.fr{packed}", "".join(f"{pair.target}\n" for pair in SENTENCES))
    table = put(f"a.tsv{packed}", "".join(f"{pair.source}\t{pair.target}\n" for pair in SENTENCES))
    objects = [json.dumps({"source": pair.source, "more": 1, "target": pair.target}) for pair in SENTENCES]
    lines = put(f"a.jsonl{packed}", "\n".join(objects))
    assert list(read_pairs([source, target])) == SENTENCES
    assert list(read_pairs(table)) == SENTENCES
    assert list(read_pairs(Path(lines))) == SENTENCES
    assert count_pairs([source, target]) == count_pairs(table) == count_pairs(lines) == CorpusSize(pairs=3, skipped=0)


def test_fields_have_any_name_and_may_be_swapped(put):
    lines = put("a.jsonl", '{"en": "cat", "fr": "chat"}\n')
    assert list(read_pairs(lines, fields=("en", "fr"))) == [SentencePair("cat", "chat")]
    assert list(read_pairs(lines, fields=("fr", "en"))) == [SentencePair("cat", "chat").swapped()]


def test_windows_line_ends_and_byte_order_marks_are_no_text(put):
    assert list(read_lines(put("a.txt", "\ufeffone\r\ntwo\r\n\ufeffthree"))) == ["one", "two", "\ufeffthree"]
    assert list(read_pairs(put("a.tsv", "\ufeffcat\tchat\r\n"))) == [SentencePair("cat", "chat")]


def test_only_a_newline_ends_a_line(put):
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    assert list(read_lines(put("a.txt", text + "\nh\n"))) == [text, "h"]


def test_an_empty_corpus_is_no_pair(put):
    assert list(read_pairs([put("a.en", ""), put("a.fr", "")])) == []
    assert count_pairs(put("a.tsv", "")) == count_pairs(put("a.jsonl.xz", "")) == CorpusSize(0, 0)


def test_pairs_are_read_one_at_a_time(put):
    pairs = read_pairs(put("a.tsv", "one\tun\nbroken\n"))
    assert next(pairs) == SentencePair("one", "un")


def test_both_sides_come_in_turn():
    assert list(iter_sides([SentencePair("a", "b"), SentencePair("c", "d")])) == ["a", "b", "c", "d"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"))))
def test_any_text_is_read_as_it_was_written(texts):
    assert list(iter_lines(BytesIO("".join(f"{text}\n" for text in texts).encode()), "x")) == texts


# --- what cannot be read ---


def test_the_longer_of_two_files_is_named(put):
    short, long = put("a.en", "one\ntwo\n"), put("a.fr", "un\ndeux\ntrois\n")
    ended = "no partner, because a.en ends after line 2; the two files must match line by line"
    assert_says(f"a.fr:3: {ended}", short, long)
    assert_says(f"a.fr:3: {ended}", long, short)


def test_an_empty_side_is_refused_by_default(put):
    remedy = "fill it in, remove the pair, or skip such pairs"
    source = put("a.en", "one\n \nthree\n")
    assert_says(f"a.en:2: the source is empty; {remedy}", source, put("a.fr", "un\ndeux\n\n"))
    assert_says(f"b.fr:3: the target is empty; {remedy}", put("b.en", "1\n2\n3\n"), put("b.fr", "un\ndeux\n\n"))
    assert_says(f"a.tsv:1: the source is empty; {remedy}", put("a.tsv", "\tchat\n"))
    assert_says(f"a.tsv:2: both sides are empty; {remedy}", put("a.tsv", "cat\tchat\n\n"))
    assert_says(f"a.jsonl:1: the target is empty; {remedy}", put("a.jsonl", '{"source": "cat", "target": ""}'))
    assert_says(f"a.jsonl:1: both sides are empty; {remedy}", put("a.jsonl", "\n"))


def test_empty_sides_can_be_skipped_and_counted(put):
    paths = [put("a.en", "one\n\nthree\n\u3000\n"), put("a.fr", "un\ndeux\n\n\n")]
    skipped: list[str] = []
    assert list(read_pairs(paths, on_empty=skipped.append)) == [SentencePair("one", "un")]
    assert skipped == [
        "a.en:2: the source is empty",
        "a.fr:3: the target is empty",
        "a.fr:4: both sides are empty",
    ]
    assert count_pairs(paths) == CorpusSize(pairs=1, skipped=3)


@pytest.mark.parametrize(("line", "found"), [("cat chat", "no tab"), ("a\tb\tc", "2 tabs"), ("a\tb\t", "2 tabs")])
def test_a_table_has_one_tab_in_a_line(put, line, found):
    assert_says(f"a.tsv:2: {found}; a line is source, one tab, target", put("a.tsv", f"cat\tchat\n{line}\n"))


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("[1]", "list instead of an object with the field 'source'"),
        ('{"source": "cat"}', "no field 'target', only 'source'"),
        ("{}", "no field 'source', only an empty object"),
        ('{"source": "cat", "target": 3}', "the field 'target' is int, not text"),
        (
            r'{"source": "cat", "target": "a\ud800"}',
            "a lone surrogate (U+D800, character 2); remove it",
        ),
        (r'{"source": "\u0000", "target": "a"}', "a NUL character; the file is damaged, or not UTF-8 text"),
    ],
)
def test_an_object_that_is_none_is_named(put, line, wrong):
    assert_says(f"a.jsonl:2: {wrong}", put("a.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n'))


@pytest.mark.parametrize("line", ['{"source": "cat', "nonsense", "[" * 100_000, "1" * 5000 + "x"])
def test_what_is_not_json_is_named(put, line):
    with pytest.raises(ValueError, match=r"^a\.jsonl:1: not JSON \(.*\); every line is one object$"):
        list(read_pairs(put("a.jsonl", line)))


@pytest.mark.parametrize(
    ("raw", "wrong"),
    [
        (
            b"ok\nb\xe4r\n",
            "2: not UTF-8 (byte 0xe4, the 2. of the line); convert the file, for example: iconv -f LATIN1",
        ),
        (
            b"\xff\xfea\0",
            "1: not UTF-8 (byte 0xff, the 1. of the line); it looks like UTF-16; convert it: iconv -f UTF-16",
        ),
        (gzip.compress(b"cat", mtime=0), "1: not UTF-8 (byte 0x8b, the 2. of the line); it looks gz-compressed"),
        (lzma.compress(b"cat"), "1: not UTF-8 (byte 0xfd, the 1. of the line); it looks xz-compressed"),
        (
            b"ok\n\xff\xfe\n",
            "2: not UTF-8 (byte 0xff, the 1. of the line); convert the file, for example: iconv -f LATIN1",
        ),
        (b"a\xed\xa0\x80b\n", "1: not UTF-8 (byte 0xed, the 2. of the line)"),
        (b"ok\na\0b\n", "2: a NUL character; the file is damaged, or not UTF-8 text"),
        (b"ok\none\rtwo\n", "2: a carriage return inside the line; remove it, or end every line in \\n"),
    ],
)
def test_bytes_that_are_no_text_are_named(put, raw, wrong):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the beginning of the message is compared
        list(read_lines(put("a.en", raw)))
    assert str(caught.value).startswith(f"a.en:{wrong}")


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_torn_or_foreign_archive_is_named(put, ending):
    whole = Path(put(f"a.tsv{ending}", "cat\tchat\n" * 5000)).read_bytes()
    Path(f"torn.tsv{ending}").write_bytes(whole[:-9])
    Path(f"plain.tsv{ending}").write_bytes(b"cat\tchat\n")
    for name in ("torn", "plain"):
        with pytest.raises(ValueError, match=rf"^{name}\.tsv{ending}: cannot be read beyond line \d+ .*again$"):
            list(read_pairs(f"{name}.tsv{ending}"))


def test_a_missing_file_is_noticed_before_reading_and_helped(put, tmp_path):
    source = put("a.en", "cat\n")
    with pytest.raises(ValueError, match=r"^b\.fr: no such file; check the name \(looked in /.*\)$"):
        read_pairs([source, "b.fr"])
    put("c.fr.xz", "chat\n")
    with pytest.raises(ValueError, match=r"^c\.fr: no such file; but there is c\.fr\.xz$"):
        read_pairs([source, "c.fr"])
    with pytest.raises(ValueError, match="is a folder; give the files in it by name"):
        read_lines(tmp_path)


def test_the_number_of_files_and_their_endings_must_make_sense(put):
    name = put("a.txt", "cat\n")
    assert_says("a.txt: one file of pairs ends in .tsv or .jsonl, not '.txt'; or give two files", name)
    assert_says("pairs come from one file or from two, not from 3", name, name, name)


# --- what is written ---


def test_a_full_disk_tears_nothing(put, monkeypatch):
    put("a.json", "before")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"^a\.json: cannot be written \(No space left on device\); make room"):
        write_text_atomic("a.json", "after")
    assert os.listdir() == ["a.json"]
    assert Path("a.json").read_text() == "before"


def test_corpora_and_tokenizers_do_not_wait_for_torch():
    names = "SentencePair, read_pairs, WordTokenizer, SubwordTokenizer, TextNormalizer, load_tokenizer, PAD"
    program = f"import sys; from regard.data import {names}; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- writing ---


PAIRS = [
    SentencePair("the cat", "le chat"),
    SentencePair("a\u2028b 😀 \x85", "č ش"),
    SentencePair(" two  blanks ", '"deux" \\'),
]
LANGUAGES = ("en", "fr")
sentences = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t\0\ufeff")).filter(str.strip)


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
@pytest.mark.parametrize("layout", ["", ".tsv", ".jsonl"])
def test_what_is_written_is_read_back(tmp_path, layout, packed):
    done = write_pairs(iter(PAIRS), tmp_path / f"new/a{layout}{packed}", LANGUAGES)
    names = [f"a{layout}{packed}"] if layout else [f"a.en{packed}", f"a.fr{packed}"]
    assert done == WrittenCorpus(tuple(tmp_path / "new" / name for name in names), 3)
    assert sorted(os.listdir(tmp_path / "new")) == names
    assert list(read_pairs(done.paths, fields=LANGUAGES)) == PAIRS


@given(
    pairs=st.lists(st.builds(SentencePair, sentences, sentences), max_size=5),
    layout=st.sampled_from(["a.tsv", "a", "a.jsonl"]),
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
    ("name", "source", "message"),
    [
        ("a.tsv", "a\tb", "pair 2: a tab inside a sentence cannot stand in a .tsv; write .jsonl or two text files"),
        ("a.tsv", "a\nb", "pair 2: a line end inside a sentence would break its line; write .jsonl"),
        ("a", "a\rb", "pair 2: a line end inside a sentence would break its line; write .jsonl"),
    ],
)
def test_a_sentence_that_would_break_its_line_is_refused_and_nothing_is_left(tmp_path, name, source, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        write_pairs([SentencePair("fine", "bien"), SentencePair(source, "c")], tmp_path / name)
    assert str(caught.value) == message
    assert not os.listdir(tmp_path)
    assert write_pairs([SentencePair(source, "c")], tmp_path / "a.jsonl").pairs == 1
    assert list(read_pairs(tmp_path / "a.jsonl")) == [SentencePair(source, "c")]


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
