"""Sources of pairs and texts: what words of a command line name, also in other packages."""

import gzip
import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.data import SentencePair
from regard.data.sources import parse_sources, parse_text_sources


def test_words_of_a_command_line_name_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.en", "a.fr"):
        Path(name).write_text("x\n")
    Path("a.tsv.gz").write_bytes(gzip.compress(b"x\ty\n"))
    found = parse_sources(["a.en", "a.fr", "a.tsv.gz@en-de"], ("en", "fr"))
    assert [source.name for source in found] == ["a.en-fr", "a.en-de"]
    assert [source.languages for source in found] == [("en", "fr"), ("en", "de")]
    assert [source.name for source in parse_sources(["a.tsv.gz", "a.tsv.gz"], ("en", "fr"))] == ["a", "a-2"]
    assert list(found[1].read(str)) == [SentencePair("x", "y")]


@pytest.mark.parametrize("word", ["hf:some/books:en-fr", "mtdata:Statmt-europarl-10-fra-eng"])
def test_a_missing_package_is_named_with_the_remedy(word, monkeypatch):
    monkeypatch.setattr("regard.data.sources.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"{word} needs the package \w+; pip install 'regard\[sources\]'"):
        parse_sources([word], ("en", "fr"))


def test_rows_of_a_data_set_are_pairs_in_either_form(monkeypatch):
    rows = [{"id": 1, "translation": {"en": "the\ncat", "fr": "le chat"}}, {"en": "", "fr": "rien"}]
    asked = []

    def load_dataset(*words, **options):
        asked.append((words, options))
        return rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("regard.data.sources.find_spec", lambda name: name)
    (source,) = parse_sources(["hf:some/books:en-fr"], ("fr", "en"), split="valid")
    empty = []
    assert list(source.read(empty.append)) == [SentencePair("le chat", "the cat")]
    assert empty == ["hf:some/books:en-fr:2: the target is empty"]
    assert asked == [(("some/books", "en-fr"), {"split": "validation", "streaming": True})]
    assert source.name == "books-en-fr"
    with pytest.raises(ValueError, match="row 1 has no text 'de', only 'en', 'fr'"):
        list(parse_sources(["hf:some/books:en-fr"], ("de", "en"))[0].read(str))


def test_a_data_set_that_was_saved_to_disk_is_read_from_there(monkeypatch, tmp_path):
    (tmp_path / "state.json").write_text("{}")
    rows, refuse = [{"en": "the cat", "fr": "le chat"}], pytest.fail
    package = SimpleNamespace(load_from_disk={str(tmp_path): rows}.__getitem__, load_dataset=refuse)
    monkeypatch.setitem(sys.modules, "datasets", package)
    monkeypatch.setattr("regard.data.sources.find_spec", lambda name: name)
    (source,) = parse_sources([f"hf:{tmp_path}"], ("en", "fr"))
    assert list(source.read(str)) == [SentencePair("the cat", "le chat")]
    for word, split, lacks in ((f"hf:{tmp_path}", "valid", "valid"), (f"hf:{tmp_path}:en-fr", "train", "en-fr")):
        with pytest.raises(ValueError, match=f"saved without splits or configurations, and so has no {lacks}"):
            parse_sources([word], ("en", "fr"), split)


def test_data_sets_of_the_real_package(tmp_path):
    """In each form that a folder may have."""
    package = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'regard[sources]'")
    rows = [{"translation": {"en": f"the cat {n}", "fr": f"le chat {n}"}} for n in range(3)]
    found = package.Dataset.from_list(rows)
    found.save_to_disk(str(tmp_path / "one"))
    package.DatasetDict({"train": found}).save_to_disk(str(tmp_path / "splits"))
    flat = package.Dataset.from_list([row["translation"] for row in rows])
    for ending, write in (("parquet", found.to_parquet), ("csv", flat.to_csv), ("json", flat.to_json)):
        (tmp_path / ending).mkdir()
        write(str(tmp_path / ending / f"train.{ending}"))
    for name in ("one", "splits", "parquet", "csv", "json"):
        (source,) = parse_sources([f"hf:{tmp_path / name}"], ("en", "fr"))
        assert list(source.read(str)) == [SentencePair(f"the cat {n}", f"le chat {n}") for n in range(3)]
    with pytest.raises(ValueError, match=f"is a file; give the folder that it is in, as hf:{tmp_path}/csv"):
        parse_sources([f"hf:{tmp_path}/csv/train.csv"], ("en", "fr"))


def test_a_null_of_a_data_set_is_an_empty_text(tmp_path):
    pytest.importorskip("datasets", reason="datasets is not installed: pip install 'regard[sources]'")
    (tmp_path / "train.csv").write_text("en,fr\nthe cat,le chat\nthe dog,\n")
    (source,) = parse_sources([f"hf:{tmp_path}"], ("en", "fr"))
    empty = []
    assert list(source.read(empty.append)) == [SentencePair("the cat", "le chat")]
    assert empty == [f"hf:{tmp_path}:2: the target is empty"]


def test_files_of_a_data_set_are_what_a_preparation_goes_on_with(tmp_path):
    pytest.importorskip("datasets", reason="datasets is not installed: pip install 'regard[sources]'")
    (tmp_path / "train.csv").write_text("en,fr\nthe cat,le chat\n")
    before = parse_sources([f"hf:{tmp_path}"], ("en", "fr"))[0].identity
    assert parse_sources([f"hf:{tmp_path}"], ("en", "fr"))[0].identity == before
    (tmp_path / "train.csv").write_text("en,fr\nthe black cat,le chat noir\n")
    assert parse_sources([f"hf:{tmp_path}"], ("en", "fr"))[0].identity != before


def test_mtdata_downloads_what_is_not_there_whole(monkeypatch, tmp_path):
    codes = SimpleNamespace(bcp47=lambda language: {"en": "eng", "fr": "fra", "de": "deu"}.get(language, language))
    for name, module in {"mtdata": None, "mtdata.iso": None, "mtdata.iso.bcp47": codes}.items():
        monkeypatch.setitem(sys.modules, name, module or SimpleNamespace())
    monkeypatch.setattr("regard.data.sources.find_spec", lambda name: name)
    runs, parts = [], tmp_path / "mtdata" / "train-parts"

    def fetch(command, *, check):
        runs.append(command[1:])
        parts.mkdir(parents=True, exist_ok=True)
        for side, text in (("eng", "the cat"), ("fra", "le chat")):
            (parts / f"Some-books-1-eng-fra.{side}").write_text(f"{text}\n")
        (parts / ".valid.Some-books-1-eng-fra").touch()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", fetch)
    get = [
        "-m",
        "mtdata",
        "get",
        "--langs",
        "eng-fra",
        "--train",
        "Some-books-1-eng-fra",
        "--out",
        f"{tmp_path}/mtdata",
    ]
    for word in ("mtdata:Some-books-1-eng-fra", "mtdata:Some-books-1-en-fr"):
        for languages, pair in ((("fr", "en"), ("le chat", "the cat")), (("en", "fr"), ("the cat", "le chat"))):
            (source,) = parse_sources([word], languages, folder=tmp_path)
            assert list(source.read(str)) == [SentencePair(*pair)]
    assert runs == [get]
    (parts / ".valid.Some-books-1-eng-fra").unlink()  # killed while it wrote
    parse_sources(["mtdata:Some-books-1-eng-fra"], ("en", "fr"), folder=tmp_path)
    assert runs == [get, get]
    with pytest.raises(ValueError, match="is eng-fra, not eng-deu"):
        parse_sources(["mtdata:Some-books-1-eng-fra"], ("en", "de"), folder=tmp_path)
    with pytest.raises(ValueError, match="mtdata:books is not GROUP-NAME-VERSION-LANGUAGE-LANGUAGE; mtdata list -id"):
        parse_sources(["mtdata:books"], ("en", "fr"), folder=tmp_path)


@pytest.mark.slow
def test_the_real_mtdata_reads_what_it_downloaded_before(monkeypatch, tmp_path):
    """From its cache, where a file lies under the host and the digest of its address."""
    pytest.importorskip("mtdata", reason="mtdata is not installed: pip install 'regard[sources]'")
    url = "http://www.statmt.org/europarl/v10/training/europarl-v10.fr-en.tsv.gz"
    digest = hashlib.md5(url.encode()).hexdigest()
    file = tmp_path / "cache" / "www.statmt.org" / digest[:4] / digest[4:] / "europarl.tsv.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress("".join(f"le chat {n}\tthe cat {n}\t1\t1\t\t\t\n" for n in range(3)).encode()))
    file.with_name(f"{file.name}._valid").touch()
    monkeypatch.setenv("MTDATA", str(tmp_path / "cache"))
    for word, languages in (("Statmt-europarl-10-fra-eng", ("en", "fr")), ("Statmt-europarl-10-fr-en", ("eng", "fra"))):
        (source,) = parse_sources([f"mtdata:{word}"], languages, folder=tmp_path)
        assert list(source.read(str)) == [SentencePair(f"the cat {n}", f"le chat {n}") for n in range(3)]
    with pytest.raises(ValueError, match=r"mtdata get .*--train Statmt-nothing-10-fra-eng .* failed"):
        parse_sources(["mtdata:Statmt-nothing-10-fra-eng"], ("en", "fr"), folder=tmp_path)


# --- texts ---


def test_sources_of_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("one\n\ntwo")
    Path("a.jsonl").write_text('{"body": "one\\ntwo"}\n\n{"body": "three\\n"}\n')
    text, documents = parse_text_sources(["a.txt", "a.jsonl"], "body")
    assert [text.name, documents.name, text.documents, documents.documents] == ["a", "a-2", False, True]
    assert list(text.read()) == ["one\n", "\n", "two\n"]
    assert list(documents.read()) == ["one\ntwo\n", "three\n"]
    for words, message in {
        ("a.jsonl",): "a.jsonl:1: no field 'text', only 'body'",
        ("mtdata:x",): "mtdata knows pairs, not texts",
        ("a.tsv",): "a table, not running text",
        ("tinyshakespeare",): "tinyshakespeare",
    }.items():
        Path("a.tsv").write_text("")
        with pytest.raises(ValueError, match=message):
            [list(source.read()) for source in parse_text_sources(words)]


def test_documents_of_a_data_set_are_a_column_of_it(tmp_path):
    pytest.importorskip("datasets", reason="datasets is not installed: pip install 'regard[sources]'")
    (tmp_path / "train.jsonl").write_text('{"body": "one\\ntwo"}\n{"body": null}\n{"body": "three\\n"}\n')
    (source,) = parse_text_sources([f"hf:{tmp_path}"], "body")
    assert list(source.read()) == ["one\ntwo\n", "\n", "three\n"]
    assert source.documents
    (source,) = parse_text_sources([f"hf:{tmp_path}"])
    with pytest.raises(ValueError, match="row 1: no text in 'text', only 'body'; name the column: --column NAME"):
        next(iter(source.read()))
