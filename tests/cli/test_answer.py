"""regard answer, and train, evaluate and look for questions about pictures; and what they refuse."""

from pathlib import Path

import pytest
from PIL import Image

from regard.world.shapes import ShapeWorld, draw_question

from .commands import assert_done, assert_plain, assert_refused, regard

LITTLE = ["--tokens", 16, "--set", "train.warmup_steps=1", "--set", "data.images=200", "--set", "model.image_layers=1"]
LITTLE += ["--set", "model.patch=8", "--set", "model.model=12", "--set", "model.heads=2", "--set", "model.hidden=16"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Tests run beside their files, where there is a picture and a list of questions about it."""
    monkeypatch.chdir(tmp_path)
    drawn_question = draw_question(ShapeWorld(most=2), 3)
    Image.fromarray(drawn_question.scene.pixels()).save("picture.png")
    question = f"picture.png\t{drawn_question.question.text}\t{drawn_question.question.answer}\n"
    Path("questions.tsv").write_text("picture.png\tis there a red circle\tno\n" + question * 2)


@pytest.fixture(scope="module")
def answering(train) -> Path:
    return train("--task", "vqa", *LITTLE, "--steps", 2)


def test_questions_are_answered_one_by_one_in_a_file_and_in_a_pipe(answering):
    question = "what colour is the circle"
    answer = regard("answer", answering, "picture.png", question)
    printed = assert_done(answer)
    assert_plain(answer.output)
    assert len(printed.splitlines()) == 1
    Path("asked.txt").write_text(f"{question}\nhow many squares are there\n")
    listed = assert_done(regard("answer", answering, "picture.png", "--file", "asked.txt"))
    assert listed.splitlines()[0] == printed.strip()
    piped = assert_done(regard("answer", answering, "picture.png", typed=f"{question}\n"))
    assert piped == printed
    assert_done(regard("answer", answering, "picture.png", question, "--best", 3, "--out", "answers.tsv"))
    cells = Path("answers.tsv").read_text().strip().split("\t")
    assert cells[0] == printed.strip()
    assert len(cells) == 6
    assert float(cells[1]) >= float(cells[3]) >= float(cells[5])


def test_it_is_measured_by_kind_or_by_answer(answering):
    output = assert_done(regard("evaluate", answering, "--on", "questions.tsv", "--outputs", "said.txt"))
    assert "questions:3|pictures:1" in output
    assert "no " in output
    assert len(Path("said.txt").read_text().splitlines()) == 3
    assert "presence" in assert_done(regard("evaluate", answering))


def test_where_each_word_looked(answering):
    question = "is there a red circle"
    output = assert_done(regard("look", answering, "picture.png", question, "--save", "look.png"))
    for word in (*question.split(), "last layer"):
        assert word in output
    assert Path("look.png").read_bytes().startswith(b"\x89PNG")
    assert "layer 0, head 1" in assert_done(regard("look", answering, "picture.png", question, "--head", "0:1"))
    assert "head 1" in assert_done(regard("look", answering, "picture.png", question, "--every"))


def test_what_is_refused(answering):
    Path("torn.png").write_bytes(b"\xff\xd8 torn")
    Path("asked.txt").write_text("what is it\n\n")
    refused = {
        "absent.png: no such file": ("absent.png", "what is it"),
        "torn.png: not a complete PNG or JPEG image": ("torn.png", "what is it"),
        "the question is empty; give at least one word": ("picture.png", "  "),
        "asked.txt:2: the question is empty": ("picture.png", "--file", "asked.txt"),
        "stdin: no question; give at least one": ("picture.png",),
        "give the question, or the file asked.txt, not both": ("picture.png", "what", "--file", "asked.txt"),
    }
    for message, words in refused.items():
        assert_refused(regard("answer", answering, *words), message)
    assert_refused(regard("look", answering, "picture.png"), f"{answering} answers questions: regard look")
    assert_refused(regard("look", answering, "picture.png", "what is it", "--word", "is"), "--word means nothing")
    Path("questions.tsv").write_text("picture.png\twhat is it\tfish\n")
    assert_refused(
        regard("evaluate", answering, "--on", "questions.tsv"), "'what is it': the label 'fish' is not known"
    )


def test_a_list_of_ones_own_is_trained_on():
    train = ["train", "--task", "vqa", "--train", "questions.tsv", *LITTLE, "--steps", 1, "--out", "own"]
    answer = regard(*train)
    assert_done(answer)
    assert "2 questions, 1 for validation" in answer.stderr
    Path("questions.tsv").write_text("picture.png\twhat is it\n")
    assert_refused(regard(*train[:-1], "other"), f"{Path.cwd() / 'questions.tsv'}:1: 2 columns; a line is picture")
