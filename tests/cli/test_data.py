"""regard data: lists, shows, checks, converts, fetches; and says every mistake in one line with its remedy."""

import gzip
import hashlib
import io
import json
import lzma
import os
import re
from dataclasses import replace
from email.message import Message
from pathlib import Path
from urllib.error import URLError
from urllib.request import OpenerDirector, Request

import pytest
import typer
from typer.testing import CliRunner

from regard.cli.data import data
from regard.cli.main import OneLineErrorGroup
from regard.data import SentencePair, read_pairs
from regard.data.corpora import CORPORA
from regard.world import World, translation_pairs

COMMANDS = ["show", "check", "convert", "world", "fetch", "clean", "prepare", "translate"]
SMALL = ("--vocab-size", "400", "--workers", "1")
PAIRS = [SentencePair("a cat", "eine Katze"), SentencePair("two dogs", "zwei Hunde")]

app = typer.Typer(cls=OneLineErrorGroup, rich_markup_mode="markdown")
app.callback()(lambda: None)
app.add_typer(data, name="data")


@pytest.fixture(autouse=True)
def beside(tmp_path, monkeypatch):
    """Tests run beside their files, with nothing said by the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)


@pytest.fixture
def corpora():
    """A folder with a little of multi30k."""
    Path("corpora/multi30k").mkdir(parents=True)
    for language in ("en", "de"):
        lines = [pair.source if language == "en" else pair.target for pair in PAIRS]
        Path(f"corpora/multi30k/train.{language}.xz").write_bytes(
            lzma.compress("".join(f"{a}\n" for a in lines).encode())
        )
    return "corpora"


def run(*words: str):
    return CliRunner().invoke(app, ["data", *words], prog_name="regard")


def assert_prints(*words: str) -> str:
    answer = run(*words)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def assert_refuses(*words: str) -> str:
    """One line on stderr, exit code 2, nothing written."""
    before = sorted(Path().rglob("*"))
    answer = run(*words)
    assert answer.exit_code == 2
    assert answer.stderr.startswith("regard: ")
    assert answer.stderr.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
    return answer.stderr.removeprefix("regard: ").strip()


# --- what there is ---


def test_alone_it_lists_every_corpus_and_whether_it_is_here(corpora, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = {line.split()[0]: line for line in assert_prints("--data", corpora).splitlines() if line}
    assert set(CORPORA) < set(rows)
    assert re.search(r"en de fr +29,000 train, .* +captions of .* +2 of 9$", rows["multi30k"].rstrip())
    assert rows["tatoeba"].rstrip().endswith("no")
    assert "No folder searched: pass --data or set REGARD_DATA." in assert_prints()


def test_the_environment_names_the_folder(corpora, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", corpora)
    assert "train en: corpora/multi30k/train.en.xz\n" in assert_prints("show", "multi30k")


def test_show_says_licence_address_checksums_and_places(corpora):
    shown = assert_prints("show", "multi30k", "--data", corpora)
    assert "weights trained on it may not be redistributed" in shown
    assert "home: https://github.com/multi30k/dataset\n" in shown
    assert "train de: corpora/multi30k/train.de.xz\n" in shown
    assert "train fr: not here\n" in shown
    assert all(part.sha256 in shown and str(part.url) in shown for part in CORPORA["multi30k"].files)
    assert "public archive: https://www.statmt.org/europarl/v7/fr-en.tgz\npublic archive:" in assert_prints(
        "show", "europarl"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    assert f"Example: regard data {command}" in assert_prints(command, "--help")


# --- checking ---


def test_check_reports_another_version_and_refuses_damage(corpora, monkeypatch):
    first, *others = CORPORA["multi30k"].files
    held = hashlib.sha256(b"a cat\ntwo dogs\n").hexdigest()
    same = replace(CORPORA["multi30k"], files=(replace(first, sha256=held), *others))
    monkeypatch.setitem(CORPORA, "multi30k", same)
    output = assert_prints("check", "multi30k", "--data", corpora)
    assert "multi30k/train.en: as known: corpora/multi30k/train.en.xz\n" in output
    assert "multi30k/train.de: another version: corpora/multi30k/train.de.xz\n" in output
    assert "multi30k/val.en: not here\n" in output
    assert output.endswith(f"note: {same.note}\n")
    path = Path("corpora/multi30k/train.de.xz")
    path.write_bytes(path.read_bytes()[:-3])
    assert assert_refuses("check", "multi30k", "--data", corpora) == (
        "1 of 9 files of multi30k cannot be read; fetch or copy them again"
    )
    output = run("check", "multi30k", "--data", corpora).stdout
    assert "multi30k/train.de: damaged: corpora/multi30k/train.de.xz: cannot be read to its end" in output


def test_check_without_files_says_where_to_get_them(corpora):
    assert "looked for corpora/tatoeba/train.en-fr.tsv" in assert_refuses("check", "tatoeba", "--data", corpora)


# --- converting ---


def test_convert_writes_a_known_corpus_in_either_direction(corpora):
    words = ("--from", "de", "--to", "en", "--data", corpora)
    assert assert_prints("convert", "multi30k", "a.tsv.gz", *words) == "written: a.tsv.gz, 2 pairs\n"
    assert list(read_pairs("a.tsv.gz")) == [pair.swapped() for pair in PAIRS]
    assert assert_prints("convert", "multi30k", "a.xz", *words) == "written: a.de.xz and a.en.xz, 2 pairs\n"
    assert list(read_pairs(["a.en.xz", "a.de.xz"])) == PAIRS


def test_convert_takes_files_of_your_own_from_any_format_to_any_other():
    Path("a.en").write_text("a cat\ntwo dogs\n")
    Path("a.de").write_text("eine Katze\nzwei Hunde\n")
    named = ("--from", "en", "--to", "de")
    assert_prints("convert", "a.en", "a.de", "b.jsonl", *named)
    assert Path("b.jsonl").read_text().startswith('{"en": "a cat", "de": "eine Katze"}\n')
    assert_prints("convert", "b.jsonl", "c.tsv.xz", *named)
    assert_prints("convert", "c.tsv.xz", "d")
    assert Path("d.source").read_text() == Path("a.en").read_text()
    assert Path("d.target").read_text() == Path("a.de").read_text()


def test_convert_leaves_out_empty_sides_only_when_asked():
    Path("a.tsv").write_text("a cat\teine Katze\n\n" + "two dogs\t\n" * 3)
    assert "a.tsv:2: both sides are empty; fill it in" in assert_refuses("convert", "a.tsv", "b.jsonl")
    answer = run("convert", "a.tsv", "b.jsonl", "--skip-empty")
    assert answer.stdout == "written: b.jsonl, 1 pairs\n"
    assert answer.stderr.startswith("skipped: a.tsv:2: both sides are empty\nskipped: a.tsv:3: the target is empty\n")
    assert answer.stderr.endswith("skipped: …\nskipped in total: 4\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "multi3k"], "no catalogued corpus is called 'multi3k'; choose from multi30k, tatoeba, europarl"),
        (["convert", "multi30k", "b", "--from", "en", "--to", "nl"], "multi30k does not translate 'en' into 'nl'; it"),
        (["convert", "multi30k", "b"], "multi30k does not translate 'source' into 'target'; it has en-de, en-fr"),
        (["convert", "multi30k", "b", "--from", "en", "--to", "de"], "multi30k: its folder is not set; name it with"),
        (["convert", "multi30k", "b", "--split", "dev"], "Invalid value for '--split'"),
        (["convert", "sst2", "b", "--from", "en", "--to", "de"], "sst2 holds no translations; choose from multi30k"),
        (["convert", "none.tsv", "b"], "none.tsv: no such file; check the name"),
        (["convert", "b"], "Missing argument"),
        (["convert", "a.en", "a.fr", "b.tsv"], "a.fr:2: no partner, because a.en ends after line 1; the two files"),
        (["convert", "a.en", "latin.fr", "b.tsv"], "latin.fr:1: not UTF-8 (byte 0xe0, the 1. of the line); convert"),
        (["convert", "torn.tsv.xz", "b"], "torn.tsv.xz: cannot be read beyond line"),
        (["convert", "a.en", "a.en", "b", "--from", "x", "--to", "x"], "both sides are called 'x'; name the two"),
        (["world", "b", "--to", "nl"], "the world translates into fr and de, not into 'nl'"),
        (["world", "b", "--longest", "2"], "min_length = 3 and max_length = 2 cannot be"),
        (["world", "b", "--longest", "1000000000000"], "min_length = 3 and max_length = 1000000000000 cannot"),
        (["world", "a.en/b"], "a.en/b.en: cannot be written"),
        (["--data", "x", "show", "multi30k"], "--data goes after the subcommand show; move it there"),
        (["fly"], "No such command 'fly'"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(words, message):
    Path("a.en").write_text("a cat\n")
    Path("a.fr").write_text("un chat\nune souris\n")
    Path("latin.fr").write_bytes("à\n".encode("latin-1"))
    Path("torn.tsv.xz").write_bytes(lzma.compress(b"a\tb\n" * 999)[:-9])
    assert assert_refuses(*words).startswith(message)


# --- the world ---


def test_without_a_file_the_worlds_sentences_are_printed_with_their_annotation():
    first, second = assert_prints("world", "--sentences", "2").rstrip().split("\n\n")
    assert first.splitlines() == [
        "two good ducks sleep   (positive)",
        "  fr  deux bons canards dorment",
        "      two–deux good–bons ducks–canards sleep–dorment",
        "  de  zwei gute Enten schlafen",
        "      two–zwei good–gute ducks–Enten sleep–schlafen",
        "      two/NUM/3 good/ADJ/3 ducks/NOUN/4 sleep/VERB/0",
    ]
    assert second.endswith("nut is nut.bolt, because of loosen")


def test_the_world_can_be_written_down_and_is_the_same_every_time():
    words = ("--sentences", "7", "--to", "de", "--seed", "3", "--longest", "5", "--split", "valid")
    assert assert_prints("world", "w", *words) == "written: w.en and w.de, 7 pairs\n"
    made = [SentencePair(*pair) for pair in translation_pairs(World(seed=3, max_length=5), "de", 7, "valid")]
    assert list(read_pairs(["w.en", "w.de"])) == made
    assert_prints("world", "w.jsonl", *words)
    assert list(read_pairs("w.jsonl", fields=("en", "de"))) == made


# --- fetching ---


class Answered(io.BytesIO):
    """What a server sends back."""

    headers = Message()


@pytest.fixture
def served(monkeypatch):
    """Answers for addresses by their endings, instead of the network; the addresses that were asked for."""

    def serve(contents: dict[str, bytes]) -> list[str]:
        requested: list[str] = []

        def answer(opener: OpenerDirector, request: Request, timeout: float) -> Answered:
            requested.append(request.full_url)
            return Answered(next(held for ending, held in contents.items() if request.full_url.endswith(ending)))

        monkeypatch.setattr(OpenerDirector, "open", answer)
        return requested

    return serve


def test_fetch_downloads_what_is_missing_and_compares_it(corpora, served):
    texts = {"en": b"a cat\n", "de": b"eine Katze\n", "fr": b"un chat\n"}
    requested = served({f".{language}.gz": gzip.compress(text) for language, text in texts.items()})
    output = assert_prints("fetch", "multi30k", corpora)
    assert len(requested) == 7
    assert requested[0] == "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.fr.gz"
    assert output.startswith("multi30k: captions of Flickr30k's pictures: for research (https://github.com")
    assert "multi30k/val.de: another version: corpora/multi30k/val.de.gz\n" in output
    converted = assert_prints(
        "convert", "multi30k", "a.tsv", "--split", "test", "--from", "fr", "--to", "de", "--data", corpora
    )
    assert converted == "written: a.tsv, 1 pairs\n"
    assert "all files are in corpora already\n" in assert_prints("fetch", "multi30k", corpora)
    assert len(requested) == 7


def test_fetch_keeps_nothing_that_cannot_be_read(served):
    served({".en.gz": gzip.compress(b"a cat\n")[:-6]})
    answer = run("fetch", "multi30k", "new")
    assert answer.exit_code == 2
    assert "train.en.gz: the download cannot be read (" in answer.stderr
    assert os.listdir("new/multi30k") == []


def test_fetch_of_a_selection_brings_the_archives_and_says_what_to_do(served):
    served({"fr-en.tgz": b"one", "de-en.tgz": b"two"})
    output = assert_prints("fetch", "europarl", "new")
    assert "downloaded: new/europarl/fr-en.tgz; now extract the files of europarl from it\n" in output
    assert "regard data convert europarl-v7.fr-en.en europarl-v7.fr-en.fr train.en-fr.tsv.xz --skip-empty" in output
    assert Path("new/europarl/de-en.tgz").read_bytes() == b"two"


def test_without_a_network_fetch_says_so_in_one_line(monkeypatch):
    def unreachable(opener: OpenerDirector, request: Request, timeout: float):
        raise URLError(OSError(-2, "Name or service not known"))

    monkeypatch.setattr(OpenerDirector, "open", unreachable)
    output = assert_refuses("fetch", "tinyshakespeare", "new")
    assert re.fullmatch(
        r"https://raw\S+/input\.txt: cannot be reached \(.*not known\); check the network, or .*", output
    )


# --- cleaning and preparing ---


DIRTY = "the cat sleeps\tle chat dort\nThe cat sleeps.\tLe chat dort.\na dog\t\nso\tune phrase bien trop longue ici\n"


def test_clean_keeps_good_pairs_and_counts_the_others():
    Path("dirty.tsv").write_text(DIRTY + "where is it\toù est-il\n")
    Path("test.fr").write_text("Où est-il ?\n")
    words = ("clean", "dirty.tsv", "--exclude", "test.fr", "--out", "good.tsv", "--report", "report.json")
    shown = assert_prints(*words, "--removed", "bad.jsonl", "--max-ratio", "2")
    assert Path("good.tsv").read_text() == "the cat sleeps\tle chat dort\n"
    counts = {"empty": 1, "test overlap": 1, "duplicate": 1, "ratio": 1}
    assert json.loads(Path("report.json").read_text()) == {"read": 5, "removed": counts, "kept": 1}
    assert [line.split() for line in shown.splitlines()[1:-1]] == [
        ["read", "5"],
        ["-", "empty", "1"],
        ["-", "test", "overlap", "1"],
        ["-", "duplicate", "1"],
        ["-", "ratio", "1"],
        ["kept", "1", "(20.0%)"],
    ]
    rejected = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [one["rule"] for one in rejected] == ["duplicate", "ratio", "test overlap"]
    assert rejected[0] == {"rule": "duplicate", "en": "The cat sleeps.", "fr": "Le chat dort."}


def test_prepare_writes_corpora_that_check_and_training_read(corpora):
    lines = [f"{one}\t{other}\n" for one, other in translation_pairs(World(max_length=6), "de", 300)]
    Path("world.tsv").write_text("".join(lines))
    words = ("prepare", "world.tsv", "multi30k", "--to", "de", "--data", corpora, *SMALL)
    shown = assert_prints(*words, "--out", "prepared")
    assert re.search(r"prepared: prepared, 29\d pairs of [\d.]+ tokens, [\d.]+ MB, \d+ bytes a pair", shown)
    assert "train on it: regard train --train prepared --size base --out run\n" in shown
    assert assert_prints(*words, "--out", "prepared") == shown, "all is done already"
    assert re.fullmatch(
        r"prepared/multi30k: .* 2 pairs\nprepared/world: as it was written, 29\d pairs\n",
        assert_prints("check", "prepared"),
    )
    shard = Path("prepared/world/00000.tokens")
    shard.write_bytes(shard.read_bytes()[:-8])
    assert "it is torn; prepare the corpus again" in assert_refuses("check", "prepared")


def test_prepare_texts_and_train_a_language_model_on_them():
    lines = [f"{one}\n" for one, _ in translation_pairs(World(max_length=6), "de", 300)]
    Path("world.txt").write_text("".join(lines))
    Path("pages.jsonl").write_text("".join(f"{json.dumps({'text': line})}\n" for line in [*lines[:200], lines[0]]))
    words = ("prepare", "world.txt", "pages.jsonl", "--task", "language_modeling", *SMALL)
    shown = assert_prints(*words, "--out", "texts")
    assert re.search(r"prepared: texts, 4\d\d texts of [\d.]+ tokens, 0.0 MB, [\d.]+ bytes a token", shown)
    assert "train on it: regard train --task language_modeling --train texts --size base --out run\n" in shown
    assert assert_prints(*words, "--out", "texts") == shown, "all is done already"
    checked = assert_prints("check", "texts")
    assert re.fullmatch(r"(texts/(pages|world): as it was written, [\d,]+ tokens\n){2}", checked)
    again = ("prepare", "pages.jsonl", "--task", "language_modeling", "--vocabulary", "texts", "--workers", "1")
    assert_prints(*again, "--out", "more")
    assert Path("more/tokenizer.json").read_bytes() == Path("texts/tokenizer.json").read_bytes()


def test_mistakes_of_preparing_are_said_in_one_line(corpora):
    Path("a.en").write_text("one\n")
    Path("a.tsv").write_text("one\tun\n")
    for words, message in {
        ("a.en",): "a.en: one side of a corpus; give the file of the other side behind it",
        ("nothing.tsv",): "nothing.tsv: no such file",
        ("a.tsv@en",): "a.tsv@en: the languages behind @ are two, as in a.tsv@en-de",
        ("a.tsv@en-en",): "both sides are in 'en'",
        ("multi30k@en-es", "--data", corpora): "multi30k does not translate 'en' into 'es'",
        ("a.tsv", "--exclude", "tatoeba"): "--exclude tatoeba: its split is missing",
        ("a.tsv", "--vocabulary", "corpora"): "no such file",
        ("a.tsv", "--vocab-size", "10"): "size=10 is too small",
        ("a.en", "--task", "language_modeling", "--separate"): "--separate, --tags and the rules of cleaning but",
        ("a.en", "--task", "language_modeling", "--max-words", "9"): "are for pairs; leave them out",
        ("a.tsv", "--task", "language_modeling"): "a.tsv: a table, not running text",
        (
            "a.en",
            "--task",
            "language_modeling",
            "--exclude",
            "a.en",
        ): "a is running text, from which no line is removed",
    }.items():
        answer = run("prepare", *words, "--out", "out", "--workers", "1")
        assert answer.exit_code == 2
        assert message in answer.stderr
        assert answer.stderr.count("\n") == 1
