"""regard classify: a label for a line, from files, pipes and the keyboard; its figures, and what each word weighed."""

import json
from pathlib import Path

import pytest
import torch

from regard.models.baselines import BagOfWordsClassifier
from regard.tasks.sequence_classification.cli import prompt_loop, sum_by_word
from regard.tasks.sequence_classification.task import TextClassifier, collate
from regard.world import World
from tests.narrowing import assert_is_instance
from tests.see.untrained_models import translator

from .commands import LITTLE, WORLD_TESTS, assert_done, assert_plain, assert_refused, output_lines, regard

NAMES = ("negative", "neutral", "positive")
WORLD = ["--set", "data.sentences=700", "--set", "data.max_length=6", "--rate", "0.01", "--steps", "60"]
COUNTED = ["--model", "embed", "--set", "words.kind=one-hot", "--set", "pooling.kind=log-ratio"]


@pytest.fixture(scope="session")
def judge(train) -> Path:
    """The folder of a small Transformer that labels sentences."""
    return train("--task", "sequence_classification", *WORLD, *LITTLE)


@pytest.fixture(scope="session")
def counting(train) -> Path:
    """The same, by counted words and pairs of words."""
    pairs = [*COUNTED, "--set", "words.ngrams=2", "--set", "words.buckets=997"]
    return train("--task", "sequence_classification", *WORLD, *pairs, "--tokens", 300)


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return [" ".join(World(max_length=6).sentence(number).words) for number in range(30)]


# --- a label for a line ---


def test_a_file_and_a_pipe_give_the_same_labels(judge, sentences):
    Path("texts").write_text("".join(f"{line}\n" for line in sentences))
    found = output_lines(regard("classify", judge, "texts"))
    assert len(found) == 30
    assert set(found) <= set(NAMES)
    assert output_lines(regard("classify", judge, "-", typed=Path("texts").read_text())) == found
    answer = regard("classify", judge, "texts", "--out", "new/labels")
    assert assert_done(answer) == ""
    assert "classified: new/labels\n" in answer.stderr
    assert Path("new/labels").read_text().splitlines() == found


def test_scores_are_probabilities_and_the_label_has_the_largest(judge, sentences):
    typed = "\n".join(sentences)
    scored = [line.split("\t") for line in output_lines(regard("classify", judge, "-", "--scores", typed=typed))]
    every = [line.split("\t") for line in output_lines(regard("classify", judge, "-", "--every", typed=typed))]
    for (label, probability), cells in zip(scored, every, strict=True):
        of = {name: float(value) for name, value in (cell.split("=") for cell in cells)}
        assert tuple(of) == NAMES
        assert sum(of.values()) == pytest.approx(1, abs=2e-4)
        assert max(of.values()) == of[label] == float(probability)


def test_an_empty_line_stays_empty_unless_it_is_refused(judge):
    found = output_lines(regard("classify", judge, "-", typed="the cat sleeps\n\nthe dog sleeps\n"))
    assert (len(found), found[1]) == (3, "")
    assert_refused(regard("classify", judge, "-", "--strict", typed="the cat\n\n"), "stdin:2: the line is empty")


def test_a_line_that_is_too_long_is_named(judge):
    answer = regard("classify", judge, "-", "--longest", 3, typed="the cat\nthe cat sees me\n")
    assert_refused(answer, "stdin:2: 4 tokens; split it, or allow it with --max-length 4")


def test_lines_are_classified_as_they_are_typed(judge, type_lines, capsys):
    type_lines("the beautiful girl smiles", "so " * 9, "the cat sleeps", "")
    prompt_loop(TextClassifier.load(judge), 8, scores=True, all_labels=False)
    output = capsys.readouterr()
    assert [line.split("\t")[0] in NAMES for line in output.out.splitlines()] == [True, True]
    assert "regard: this line: 9 tokens" in output.err


def test_what_is_no_classifier_is_refused(tmp_path):
    assert_refused(regard("classify", "nowhere", "-", typed="x"), "nowhere holds no model")
    translator().save(tmp_path)
    assert_refused(regard("classify", tmp_path, "-", typed="x"), f"{tmp_path}/settings.toml: the task is 'translation'")


# --- figures ---


def test_figures_count_right_labels(judge):
    output = assert_done(regard("evaluate", judge, "--save", "figures.json", "--outputs", "said"))
    figures = json.loads(Path("figures.json").read_text())
    assert figures["texts"] == WORLD_TESTS
    assert figures["accuracy"] == pytest.approx(100 * figures["right"] / WORLD_TESTS)
    assert f"accuracy {figures['accuracy']:.2f} %   texts:{WORLD_TESTS}|labels:3" in output
    by_label = figures["by_label"]
    assert tuple(by_label) == NAMES
    assert sum(one["texts"] for one in by_label.values()) == WORLD_TESTS
    recalled = sum(one["texts"] * one["recall"] for one in by_label.values()) / WORLD_TESTS
    assert recalled == pytest.approx(figures["accuracy"])
    assert len(Path("said").read_text().splitlines()) == WORLD_TESTS


def test_figures_on_paper(judge):
    """Of three texts, two are given the right label: the model's own for two, another's for the third."""
    texts = ["the cat sleeps", "the dog sleeps", "the girl loves the beautiful cat"]
    found = output_lines(regard("classify", judge, "-", typed="\n".join(texts)))
    wrong = next(name for name in NAMES if name != found[2])
    Path("three.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(texts, [*found[:2], wrong], strict=True)))
    output = assert_done(regard("evaluate", judge, "--on", "three.tsv"))
    assert output.startswith("accuracy 66.67 %   texts:3|labels:3\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("the cat\tpositive\tmore", "wrong.tsv:1: 3 columns; a line is text, tab, label, which are 2"),
        ("the cat\tsplendid", "text 1: the label 'splendid' is not known; the known ones are negative, neutral"),
        ("\tpositive", "wrong.tsv:1: the text is empty"),
    ],
)
def test_wrong_files_are_refused(line, message, judge):
    Path("wrong.tsv").write_text(f"{line}\n")
    assert_refused(regard("evaluate", judge, "--on", "wrong.tsv"), message)


# --- look ---


def test_words_are_shown_with_their_weights(judge):
    output = assert_done(regard("look", judge, "the beautiful girl smiles", "--save", "look.png"))
    assert "the beautiful girl smiles\n" in output
    assert any(f"{name}, " in output for name in NAMES)
    assert_plain(output.replace("\n", ""))
    assert Path("look.png").stat().st_size > 1000


def test_of_counted_words_is_shown_what_each_says(counting):
    output = assert_done(regard("look", counting, "the beautiful girl smiles", "--save", "look.svg"))
    assert "speaks for" in output
    assert "together the words add" in output


def test_what_words_say_adds_up_to_the_score(counting):
    """The words' shares, pairs divided between their two words, and the bias give the difference of the scores."""
    classifier, text = TextClassifier.load(counting), "the beautiful girl smiles"
    model, batch = assert_is_instance(classifier.model, BagOfWordsClassifier), collate([(classifier.terms(text), 0)])
    with torch.inference_mode():
        parts = model.token_contributions(batch.terms, batch.lengths)[0, :, 2]
        whole = model(batch.terms, batch.lengths)[0, 2] - model.c[2]
    shares = sum_by_word(classifier, text, parts)
    assert len(shares) == 4
    assert float(shares.sum()) == pytest.approx(float(whole), abs=1e-5)


def test_every_head_of_a_transformer_can_be_seen(judge, counting):
    output = assert_done(regard("look", judge, "the cat sleeps", "--every"))
    assert "head 0" in output
    assert_refused(regard("look", counting, "the cat sleeps", "--every"), "there is no head to show")


@pytest.mark.parametrize("option", ["--word", "--head", "--target"])
def test_what_a_classifier_does_not_have_is_refused(option, judge):
    assert_refused(regard("look", judge, "the cat sleeps", option, "cat"), f"{option} is for translations")


def test_a_classifier_of_an_unknown_kind_is_refused(tmp_path):
    answer = regard(
        "train", "--task", "sequence_classification", "--set", "words.kind=one-hot", "--out", tmp_path / "run"
    )
    assert_refused(answer, "words.kind = 'one-hot' cannot be read by model.kind = 'transformer'")
