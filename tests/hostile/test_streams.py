"""Texts without end, long texts, and a bad line among good ones: answered in turn, in bounded memory, or refused."""

import subprocess
import sys
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.files import CHUNK, chunks
from regard.data.labelled import NO_VALUE, TaggedSentence, read_conllu
from regard.decode import Greedy
from regard.decode.translation import translate_lines
from regard.tasks.autoencoding.task import reconstruct
from regard.tasks.registry import get_task
from regard.tasks.tagging.cli import tag_sentences
from regard.tasks.translation.cli import check_texts
from regard.tasks.vqa.cli import answer_lines
from tests.cli.commands import assert_done, assert_refused, regard
from tests.hostile.test_files import picture
from tests.see.untrained_models import LEARNERS, answerer, sentence_autoencoder, tagger, translator

STREAMED = ("translate", "tag", "classify", "rebuild", "answer")
LINES = ["the cat", "a dog", "the black cat", "the dog", "cat", "the mouse", "a black mouse"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folders = {task: tmp_path_factory.mktemp(task) for task in (*STREAMED, "write")}
    for task, folder in folders.items():
        LEARNERS[task]().save(folder)
    return folders


@pytest.fixture
def narrow(monkeypatch) -> None:
    """A few lines fill a chunk."""
    monkeypatch.setattr("regard.data.files.CHUNK", 20)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Tests run beside their files."""
    monkeypatch.chdir(tmp_path)
    Path("picture.png").write_bytes(picture())


def command(task: str, runs: dict[str, Path], file: object) -> list[object]:
    more = {"answer": ["picture.png", "--file", file], "translate": [file, "--format", "lines"]}
    return [task, runs[task], *more.get(task, [file])]


def write_lines(name: str, lines: list[str], bad: bytes = b"") -> None:
    Path(name).write_bytes("".join(f"{line}\n" for line in lines).encode() + bad)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", STREAMED)
def test_a_bad_line_ends_a_stream_and_leaves_no_file(task, runs, narrow):
    """On the terminal are answers to lines before it, as if it were not there; a file stays what it was."""
    write_lines("good.txt", LINES)
    wanted = assert_done(regard(*command(task, runs, "good.txt")))
    long = b"the " * 5000 + b"\n"
    where = f"bad.txt: sentence {len(LINES) + 1}" if task == "tag" else f"bad.txt:{len(LINES) + 1}"
    for bad, message in (
        (b"caf\xe9\n", f"bad.txt:{len(LINES) + 1}: not UTF-8"),
        (long, f"{where}: 5,000 tokens; split"),
    ):
        write_lines("bad.txt", LINES, bad)
        answer = regard(*command(task, runs, "bad.txt"))
        assert_refused(answer, message)
        assert answer.stdout
        assert wanted.startswith(answer.stdout)
        Path("out.txt").write_text("what was there")
        assert_refused(regard(*command(task, runs, "bad.txt"), "--out", "out.txt"), message)
        assert Path("out.txt").read_text() == "what was there"
    assert sorted(path.name for path in Path().iterdir()) == ["bad.txt", "good.txt", "out.txt", "picture.png"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", STREAMED)
def test_answers_do_not_hang_on_how_many_lines_are_held(task, runs, monkeypatch):
    write_lines("a.txt", LINES)
    found = set()
    for held in (1, 30, CHUNK):
        monkeypatch.setattr("regard.data.files.CHUNK", held)
        found.add(assert_done(regard(*command(task, runs, "a.txt"), "--out", f"{held}.out")) or held)
        found.add(Path(f"{held}.out").read_text())
    assert len(found) == 4, "one text, and three times nothing on the terminal"


def test_links_are_written_with_their_lines_or_not_at_all(runs, narrow):
    write_lines("a.txt", LINES)
    write_lines("bad.txt", LINES, b"caf\xe9\n")
    both = ["--out", "a.out", "--align", "a.links"]
    assert_refused(regard("translate", runs["translate"], "bad.txt", *both), f"bad.txt:{len(LINES) + 1}: not UTF-8")
    assert not Path("a.out").exists()
    assert not Path("a.links").exists()
    assert_done(regard("translate", runs["translate"], "a.txt", *both))
    assert [len(Path(name).read_text().splitlines()) for name in ("a.out", "a.links")] == [len(LINES)] * 2


def test_texts_without_end_are_answered_in_turn():
    learner = answerer()
    pixels = torch.zeros(learner.preprocessor.shape, dtype=torch.uint8)
    sentences = (TaggedSentence(tuple(line.split()), (NO_VALUE,) * len(line.split())) for line in cycle(LINES))
    for found in (
        translate_lines(translator(), cycle(LINES), Greedy()),
        check_texts(translator(), cycle(LINES), str, max_length=99),
        tag_sentences(tagger(), sentences, "stdin", 99),
        reconstruct(sentence_autoencoder(), cycle(LINES)),
        answer_lines(learner, pixels, cycle(LINES), 1, scores=False),
    ):
        assert len(list(islice(found, 3))) == 3


def test_a_chunk_holds_few_lines_or_few_letters():
    lines = ["a" * (n % 7) for n in range(1000)] + ["b" * CHUNK, "c"]
    cut = list(chunks(lines, 90))
    assert [line for some in cut for line in some] == lines
    assert max(map(len, cut)) == 90
    assert cut[-1] == ["c"]
    assert all(sum(map(len, some[:-1])) < CHUNK for some in cut)


def test_a_sentence_of_columns_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("regard.data.labelled.MAX_SENTENCE_BYTES", 1000)
    Path("a.conllu").write_text("# a comment\n" * 200)
    with pytest.raises(
        ValueError, match=r"a\.conllu:91: a sentence of more than 1,000 characters; end each with a blank line"
    ):
        list(read_conllu("a.conllu"))


# --- how long one may be ---

TOO_LONG = " ".join(["the"] * 50)


def test_questions_and_beginnings_have_a_length(runs):
    command = ["answer", runs["answer"], "picture.png"]
    assert_refused(
        regard(*command, TOO_LONG, "--max-length", 49),
        "the question: 50 tokens; split it, or allow it with --max-length 50",
    )
    assert_done(regard(*command, TOO_LONG, "--max-length", 50))
    write = ["write", runs["write"], "--tokens", 2]
    assert_refused(regard(*write, "the " * 20_000), "the prompt: 20,000 tokens; ")
    answer = regard(*write, "-", typed="the cat\n" * (CHUNK // 7 + 2))
    assert_refused(answer, f"stdin: more than {CHUNK:,} letters; pass only its last lines")
    assert answer.stdout == ""
    assert assert_done(regard(*write, "-", typed="")) == assert_done(regard(*write, "", typed=""))


MEASURED = {
    "translate": ("a.tsv", "{}\tle chat\n", "pair 2"),
    "tag": ("a.conllu", None, "sentence 2"),
    "classify": ("a.tsv", "{}\t{label}\n", "text 2"),
    "rebuild": ("a.txt", "{}\n", "sentence 2"),
}


@pytest.mark.parametrize("task", MEASURED)
def test_an_example_that_is_measured_has_a_length(task, runs):
    name, line, where = MEASURED[task]
    learner: Any = LEARNERS[task]()
    label = learner.labels.names[0] if task in ("tag", "classify") else ""
    texts = ["the cat", TOO_LONG]
    if line is None:
        rows = [[f"{n}\t{word}\t_\t{label}" + "\t_" * 6 for n, word in enumerate(text.split(), 1)] for text in texts]
        Path(name).write_text("".join("\n".join(some) + "\n\n" for some in rows))
    else:
        Path(name).write_text("".join(line.format(text, label=label) for text in texts))
    evaluate = ["evaluate", runs[task], "--on", name]
    assert_refused(
        regard(*evaluate, "--max-length", 49), f"{where}: 50 tokens; split it, or allow it with --max-length 50"
    )
    assert_done(regard(*evaluate, "--max-length", 50))


# --- how much memory that takes ---

SAYING_MEMORY = """
import resource, sys
from regard.cli import app
try:
    app()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("task", "tokens", "lines"), [("tag", 1000, 40), ("classify", 4096, 10)])
def test_lines_as_long_as_may_be_take_little_memory(task, tokens, lines, tmp_path):
    """The model that is trained when nothing is said about it; half of it is Python and torch."""
    kind = get_task(task)
    settings = kind.settings().with_changes({"text.kind": "words", "data.sentences": 200})
    task_model = kind.task_model.from_examples(kind.read(settings, "train", None).examples, settings)
    task_model.save(tmp_path / "run")
    write_lines("long.txt", [" ".join(["the"] * tokens)] * lines)
    words = [task, str(tmp_path / "run"), "long.txt", "--out", "out.txt", "--device", "cpu"]
    done = subprocess.run([sys.executable, "-c", SAYING_MEMORY, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(Path("out.txt").read_text().split()) >= lines
    assert int(done.stderr.split()[-1]) < 2**20, "KiB"
