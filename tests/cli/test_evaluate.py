"""regard evaluate: figures with their signatures, by length, kept in a file; and what it refuses."""

import json
import sys
from pathlib import Path

import pytest

from regard.data.parallel import read_pairs, write_pairs
from regard.tasks.translation.metrics import BLEU_13A, CHRF_PLAIN, TRANSLATION_EDIT_RATE, chrf_plus_plus

from .commands import LITTLE, WORLD_TESTS, assert_done, assert_plain, assert_refused, no_room, regard


def test_figures_come_with_signatures_and_by_length(trained, corpus):
    answer = regard(
        "evaluate", trained, "--pairs", corpus(31), "--save", "new/figures.json", "--translations", "out.fr"
    )
    table = assert_done(answer)
    assert_plain(answer.output)
    assert answer.stderr == f"on 31 pairs: {corpus(31)}\n"
    figures = json.loads(Path("new/figures.json").read_text(encoding="utf-8"))
    pairs = list(read_pairs(corpus(31)))
    found = Path("out.fr").read_text(encoding="utf-8").splitlines()
    for metric in (BLEU_13A, CHRF_PLAIN, chrf_plus_plus(), TRANSLATION_EDIT_RATE):
        figure = metric.score(found, [pair.target for pair in pairs])
        assert figures["scores"][figure.name] == {"value": figure.value, "signature": figure.signature}
        assert f"{figure.value:6.2f}   {figure.signature}" in table
    assert figures["scores"]["BLEU"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert sum(bucket["sentences"] for bucket in figures["by_length"]) == 31
    assert figures["search"].startswith("Beam(size=5")
    assert "written: new/figures.json" in table


def test_translations_are_those_of_translate(trained, corpus):
    assert_done(regard("evaluate", trained, "--pairs", corpus(31), "--translations", "out.fr"))
    sources = "".join(f"{pair.source}\n" for pair in read_pairs(corpus(31)))
    assert Path("out.fr").read_text(encoding="utf-8") == assert_done(regard("translate", trained, "-", typed=sources))


@pytest.mark.parametrize("name", ["two.xz", "pairs.jsonl"])
def test_every_layout_of_files_is_measured_alike(name, trained, corpus):
    paths = write_pairs(read_pairs(corpus(7)), name, ("en", "fr")).paths
    words = [word for path in paths for word in ("--pairs", path)]
    wanted = assert_done(regard("evaluate", trained, "--pairs", corpus(7), "--beam", 1))
    assert assert_done(regard("evaluate", trained, *words, "--beam", 1)) == wanted


def test_without_pairs_it_takes_what_was_held_out(trained):
    assert f"sentences:{WORLD_TESTS}" in assert_done(regard("evaluate", trained, "--beam", 1))


def test_misaligned_and_empty_and_missing_pairs(trained, tmp_path):
    Path("a.en").write_text("the cat\nthe dog\n")
    Path("a.fr").write_text("le chat\n")
    Path("none.tsv").write_text("")
    Path("hole.tsv").write_text("the cat\t\n")
    Path("win.tsv").write_bytes("a café\tun café\n".encode("cp1252"))
    evaluate = ["evaluate", trained, "--pairs"]
    assert_refused(regard(*evaluate, "a.en", "--pairs", "a.fr"), "a.en:2: no partner, because a.fr ends after line 1;")
    assert_refused(regard(*evaluate, "none.tsv"), "none.tsv: no pair is left for test; give more, or files of its own")
    assert_refused(regard(*evaluate, "hole.tsv"), "hole.tsv:1: the target is empty; fill it in, remove it")
    assert_refused(regard(*evaluate, "win.tsv"), "win.tsv:1: not UTF-8 (byte 0xe9, the 6. of the line)")
    assert_refused(regard(*evaluate, "b.tsv"), f"b.tsv: no such file; check the name (looked in {tmp_path})")
    assert_refused(regard("evaluate", trained, "--split", "dev"), "Invalid value for '--split'")


def test_a_pair_of_ten_thousand_tokens(trained, corpus):
    path = corpus(7, rows={5: f"{'cat ' * 10_000}\tle chat"})
    why = "pair 5: 10,000 tokens; split it, or allow it with --max-length 10000"
    assert_refused(regard("evaluate", trained, "--pairs", path), why)


def test_a_split_that_a_model_of_files_has_not(corpus):
    assert_done(regard("train", "--train", corpus(), *LITTLE, "--steps", 1))
    assert_refused(regard("evaluate", "run", "--split", "test"), "data.test names no files; e.g. test = [")
    assert "sentences:1" in assert_done(regard("evaluate", "run"))


def test_a_place_that_cannot_be_written_is_refused_before_the_work(trained, tmp_path):
    for flag in ("--save", "--translations"):
        answer = regard("evaluate", trained, flag, tmp_path)
        assert_refused(answer, f"{tmp_path}: is a folder; name a file in it")
        assert answer.stdout == ""


def test_a_full_disk_still_shows_the_figures_and_keeps_what_was_there(trained, corpus):
    path = corpus(7)
    Path("figures.json").write_text("{}")
    with no_room(after=50):
        answer = regard("evaluate", trained, "--pairs", path, "--save", "figures.json")
    assert_refused(answer, "figures.json: cannot be written (File too large); make room, or choose another place")
    assert answer.stdout.startswith("BLEU  ")
    assert Path("figures.json").read_text() == "{}"


# --- COMET, by another interpreter ---

FAKE_PYTHON = """#!{python}
import sys
words = sys.argv[1:]
if words[0] == "-c":
    print("2.2.2")
elif words[:2] == ["-m", "comet.cli.score"]:
    given = dict(zip(words[2::2], words[3::2]))
    texts = [open(given[flag]).read().splitlines() for flag in ("-s", "-t", "-r")]
    assert given["--gpus"] == "0" and given["--model"] == "Unbabel/wmt22-comet-da" and words[-1] == "--quiet"
    assert len(texts[0]) == len(texts[1]) == len(texts[2]) == 7
    print("a notice on the way")
    for number in range(7):
        print(f"{{given['-t']}}\\tSegment {{number}}\\tscore: 0.1000")
    {end}
"""
SCORES = """print(f"{given['-t']}\\tscore: 0.8412")"""
FAILS = """sys.exit("no network")"""


def fake_python(code: str) -> str:
    path = Path("comet-python").absolute()
    path.write_text(code)
    path.chmod(0o755)
    return str(path)


def test_comet_is_scored_by_the_interpreter_that_is_named(trained, corpus):
    python = fake_python(FAKE_PYTHON.format(python=sys.executable, end=SCORES))
    words = ["evaluate", trained, "--on", corpus(7), "--device", "cpu", "--comet", python, "--save", "a.json"]
    output = assert_done(regard(*words))
    signature = "model:Unbabel/wmt22-comet-da|scale:100|version:2.2.2"
    assert f"COMET                         84.12   {signature}\n" in output
    saved = json.loads(Path("a.json").read_text())["scores"]["COMET"]
    assert (saved["value"], saved["signature"]) == (pytest.approx(84.12), signature)


def test_comet_that_fails_is_one_line_after_the_other_scores(trained, corpus):
    python = fake_python(FAKE_PYTHON.format(python=sys.executable, end=FAILS))
    answer = regard("evaluate", trained, "--on", corpus(7), "--device", "cpu", "--comet", python)
    assert_refused(answer, f"COMET fails: no network; try it alone: {python} -m comet.cli.score --help")
    assert answer.stdout.startswith("BLEU  ")


def test_comet_that_is_absent_is_said_before_anything_is_translated(trained, corpus):
    words = ["evaluate", trained, "--on", corpus(7), "--comet"]
    bare = fake_python("#!/bin/sh\nexit 1\n")
    answer = regard(*words, bare)
    assert_refused(answer, f"{bare} has no COMET; install it there: {bare} -m pip install unbabel-comet")
    assert answer.stdout == ""
    assert_refused(
        regard(*words, "no/python"), "no/python: No such file or directory; name the Python of an environment"
    )
    lonely = regard(*words[:-1], "--comet-model", "x")
    assert_refused(lonely, "--comet-model x is run by a Python that has COMET; add --comet PYTHON")
