"""regard vectors: learnt from texts, asked for neighbours, and given to a classifier that then knows their words."""

from pathlib import Path

import pytest

from regard.data.tokenizers.base import UNK
from regard.models.baselines import WordVectors
from regard.models.encoder import SequenceClassifier
from regard.tasks.sequence_classification.task import TextClassifier
from regard.world import World

from .commands import assert_done, assert_refused, regard


@pytest.fixture
def sentences() -> list[str]:
    return [World(max_length=6).sentence(number).text() for number in range(200)]


def learnt(sentences: list[str], *more: object) -> str:
    Path("a.txt").write_text("\n".join(sentences) + "\n")
    return assert_done(regard("vectors", "learn", "a.txt", "--width", 8, "--epochs", 1, "--out", "v.txt", *more))


def test_vectors_are_learnt_the_same_way_twice(sentences):
    output = learnt(sentences, "--least", 2)
    found = WordVectors.load("v.txt")
    assert output == f"trained: v.txt, {len(found.words):,} words\n"
    before = Path("v.txt").read_bytes()
    learnt(sentences, "--least", 2)
    assert Path("v.txt").read_bytes() == before
    learnt(sentences, "--least", 2, "--seed", 1)
    assert Path("v.txt").read_bytes() != before


def test_neighbours_are_those_of_the_vectors(sentences):
    learnt(sentences, "--least", 1)
    output = assert_done(regard("vectors", "near", "v.txt", "the", "--count", 3))
    wanted = WordVectors.load("v.txt").neighbours("the", 3)
    assert output == "the: " + "  ".join(f"{word} {cosine:.2f}" for word, cosine in wanted) + "\n"
    assert_refused(regard("vectors", "near", "v.txt", "zebra"), "'zebra' has no vector among these")


def test_a_classifier_starts_from_them_and_knows_words_it_was_not_shown(sentences):
    learnt([*sentences, "zebra zebra the zebra"], "--least", 1)
    rows = [f"{text}\t{'long' if len(text.split()) > 4 else 'short'}" for text in sentences[:60]]
    Path("train.tsv").write_text("\n".join(rows) + "\n")
    train = [
        "train",
        "--task",
        "sequence_classification",
        "--train",
        "train.tsv",
        "--set",
        "text.kind=words",
        "--steps",
        2,
    ]
    train += ["--set", "words.kind=file", "--set", "model.kind=gru", "--set", "model.hidden=8"]
    wide = ["--set", "model.model=8", "--out", "run"]
    assert_done(regard(*train, *wide, "--set", "words.file=v.txt"))
    found, model = WordVectors.load("v.txt"), TextClassifier.load(Path("run"))
    assert model.ids("zebra") != [UNK]
    assert isinstance(model.model, SequenceClassifier)
    table = model.model.encoder.embedding.weight
    one, other = (table[model.ids(word)[0]] for word in ("zebra", "the"))
    ratio = found["zebra"].norm() / found["the"].norm()
    assert (one.norm() / other.norm()).item() == pytest.approx(ratio.item(), rel=1e-4)
    assert Path(model.settings.words.file).is_absolute()
    assert_refused(
        regard(*train, *wide[:2], "--out", "b"), "words.kind = 'file' needs words.file = the path of vectors"
    )
    narrow = [*train, "--set", "model.model=4", "--set", "words.file=v.txt", "--out", "c"]
    assert_refused(
        regard(*narrow), f"{Path('v.txt').absolute()}: vectors of width 8; set model.model to that, not to 4"
    )


def test_bad_vectors_and_no_text():
    Path("v.txt").write_text("2 3\na 1 2 3\nb 1 2\n")
    assert_refused(regard("vectors", "near", "v.txt", "a"), "v.txt:3: 'b' has 2 numbers, not 3 as the first line says")
    assert_refused(regard("vectors", "learn"), "no text to train on; name files, or a corpus with --corpus")
    assert_refused(regard("vectors", "learn", "none.txt"), "none.txt: no such file; check the name")
