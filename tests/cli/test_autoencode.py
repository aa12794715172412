"""regard rebuild, and train, evaluate and look for autoencoders: lines in and out, what lies between, and refusals."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from regard.tasks.autoencoding.cli import bottleneck_weights, length_groups
from regard.tasks.autoencoding.task import SentenceAutoencoder, evaluate_autoencoder

from .commands import assert_done, assert_plain, assert_refused, regard

LITTLE = ["--set", "model.model=24", "--set", "model.hidden=32", "--set", "model.latents=3", "--set", "model.latent=11"]
WORLD = ["--set", "data.sentences=13", "--set", "data.max_length=5", "--rate", "1e-2", "--tokens", 80, "--steps", 120]


@pytest.fixture(scope="module")
def run(train) -> Path:
    return train("--task", "autoencoding", *LITTLE, *WORLD)


@pytest.fixture(scope="module")
def learnt(run) -> Sequence[str]:
    return SentenceAutoencoder.load(run).settings.data.read("train").examples


def test_a_line_for_a_line(run, learnt):
    text = f"{learnt[0]}\n\n{learnt[1]}\n"
    output = assert_done(regard("autoencode", run, "-", typed=text))
    assert_plain(output)
    assert output == text
    Path("a.txt").write_text(text)
    regard("autoencode", run, "a.txt", "--out", "b.txt")
    assert Path("b.txt").read_text() == output


def test_between_two_sentences(run, learnt):
    for count in (2, 5, 7):
        points = [] if count == 5 else ["--points", count]
        output = assert_done(regard("autoencode", run, "--interpolate", *learnt[:2], *points)).splitlines()
        assert (len(output), output[0], output[-1]) == (count, learnt[0], learnt[1])


def test_the_map_of_a_file(run, learnt):
    Path("a.txt").write_text("".join(f"{line}\n" for line in learnt))
    output = regard("autoencode", run, "a.txt", "--latents", "a.png")
    assert "drawn: a.png" in output.stderr
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert len(assert_done(output).splitlines()) == len(learnt)
    assert_refused(
        regard("autoencode", run, "-", "--latents", "a.png", typed=f"{learnt[0]}\n"),
        "stdin: a plot of latents needs 2 sentences or more, not 1; leave out --latents",
    )


def test_groups_of_lengths():
    assert length_groups(["a", "a b", "a b c"]) == ["up to 2 words", "up to 2 words", "up to 3 words"]
    assert length_groups(["a"] * 3 + ["a b c"]) == ["up to 1 words"] * 3 + ["over 1 words"]


def test_sentences_that_come_back_and_words_in_place(run, learnt):
    Path("gold.txt").write_text(f"{learnt[0]}\n{learnt[1]} Zaphod\n")
    output = assert_done(regard("evaluate", run, "--on", "gold.txt", "--save", "a.json", "--outputs", "said.txt"))
    assert "rebuilt exactly  50.00 %   sentences:2" in output
    figures = json.loads(Path("a.json").read_text())
    assert figures["exact"] == 50.0
    assert 0 < figures["in_place"] < 100
    assert sum(row["sentences"] for row in figures["by_length"]) == 2
    assert Path("said.txt").read_text().splitlines()[0] == learnt[0]


def test_an_unknown_word_is_wrong_whatever_is_written_for_it(run):
    found = evaluate_autoencoder(SentenceAutoencoder.load(run), ["Zaphod"])
    assert (found.exact_match, found.right, found.tokens) == (0.0, 0, 1)


def test_looking_at_what_entered_which_latent(run, learnt):
    output = assert_done(regard("look", run, learnt[0], "--save", "a.png"))
    assert output.startswith(f"{learnt[0]}\n{learnt[0]}\n")
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert assert_done(regard("look", run, learnt[0], "--every")).count("head ") == 4
    one, other = (assert_done(regard("look", run, learnt[0], "--head", f"bottleneck:{n}")) for n in (0, 1))
    assert one != other
    read, heads = bottleneck_weights(SentenceAutoencoder.load(run), learnt[0])
    assert heads.shape == (4, 3, len(read.words) + 1)
    assert heads.sum(-1).flatten().tolist() == pytest.approx([1.0] * 12)
    assert_refused(regard("look", run, "the cat", "--head", "x:0"), "--head x:0: write LAYER:HEAD, one of bottleneck:0")
    assert_refused(regard("look", run, "the cat", "--word", "cat"), "--word means nothing to a model that rebuilds")


def test_files_can_be_trained_on(learnt):
    Path("a.txt").write_text("".join(f"{line}\n" for line in learnt))
    train = [
        "train",
        "--task",
        "autoencoding",
        "--model",
        "transformer",
        "--train",
        "a.txt",
        "--steps",
        2,
        "--tokens",
        90,
    ]
    assert_done(regard(*train, "--set", "text.kind=bytes", "--out", "run"))
    assert len(assert_done(regard("autoencode", "run", "a.txt")).splitlines()) == len(learnt)
    Path("a.txt").write_text("the cat\n \nthe dog\n")
    assert_refused(regard(*train, "--out", "bad"), f"{Path('a.txt').absolute()}:2: an empty line; fill it in, remove")


def test_what_is_refused(run, learnt):
    answer = regard("autoencode", run, "-", typed="a\nZaphod\n")
    assert (
        answer.stderr == "regard: stdin:1: out-of-vocabulary words, which cannot be reconstructed; in 2 of 2 in all\n"
    )
    assert answer.exit_code == 0
    assert_refused(regard("autoencode", run, "no.txt"), "no.txt: no such file; check the name")
    assert_refused(
        regard("autoencode", run, "--interpolate", learnt[0], " "), "there is no way from or to an empty sentence"
    )
    assert_refused(regard("autoencode", run, "--interpolate", "a"), "Option '--interpolate' requires 2 arguments")
    assert_refused(
        regard("autoencode", run, "a.txt", "--interpolate", "a", "b"), "--interpolate takes two sentences; leave"
    )
    assert_refused(regard("autoencode", run, "-", "--points", 3, typed="a\n"), "--points 3 needs two sentences; add")
    assert_refused(
        regard("autoencode", run, "-", "--longest", 2, typed="a\na b c\n"), "stdin:2: 3 tokens; split it, or"
    )
    Path("a.txt").write_bytes(b"caf\xe9\n")
    assert_refused(regard("autoencode", run, "a.txt"), "a.txt:1: not UTF-8")
