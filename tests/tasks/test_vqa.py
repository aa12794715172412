"""The answer task: reading questions, batches, loss, exact resume, saving and loading, and what is refused."""

import json
import math
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from regard.models.vision import VQAConfig
from regard.tasks.config import TokenizerSettings
from regard.tasks.image_batches import AugmentSettings
from regard.tasks.vqa.task import (
    ImageQuestion,
    QuestionAnswerer,
    QuestionBatches,
    VQABatch,
    VQAData,
    VQASettings,
    evaluate_vqa,
    order_by_image,
    read_known_part,
    read_known_questions,
    vqa_loss,
)
from regard.training.config import TrainSettings
from tests.tasks.resume_check import assert_resumes
from tests.training.jobs import train_on_world

TINY = VQAConfig(patch=8, image_layers=1, question_layers=1, layers=1, model=12, heads=3, hidden=17, dropout=0.1)
SETTINGS = VQASettings(
    data=VQAData(images=53, each=1, most=2),
    text=TokenizerSettings(kind="words"),
    augment=AugmentSettings(crop=1),
    model=TINY,
    train=TrainSettings(batch_size=7, steps=6, warmup_steps=2, validate_every=2, checkpoint_every=2),
)


def some(count: int, split: str = "train") -> list[ImageQuestion]:
    return SETTINGS.data.read(split).examples[:count]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def train_questions() -> list[ImageQuestion]:
    return some(53)


def drawn(folder: Path, *names: str) -> Path:
    for n, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 50 * n % 251, dtype=np.uint8)).save(path)
    return folder


# --- reading ---


def test_settings_survive_a_file():
    for one in (SETTINGS, VQASettings.of_world()):
        assert VQASettings.from_toml(one.to_toml()) == one
    with pytest.raises(ValueError, match="a question is about one picture"):
        VQASettings.from_toml('task = "answer"\n[augment]\ncutmix = 0.5')


def test_the_world_asks_about_its_pictures(train_questions):
    assert len(train_questions) == 53
    assert {one.kind for one in train_questions} <= {"colour", "shape", "presence", "count", "place"}
    assert all(one.picture.pixels.shape == (3, 32, 32) for one in train_questions)
    assert train_questions[0].text.split()[0] in ("what", "how", "is")


def test_several_questions_share_a_picture():
    found = VQAData(images=5, each=3, most=2).read("train").examples
    assert [found.index(one) // 3 for one in found] == [n for n in range(5) for _ in range(3)]
    assert len({one.picture for one in found}) == 5
    assert len({one.text for one in found}) > 5
    alone = VQAData(images=5, each=1, most=2).read("train").examples
    assert [one.text for one in alone] == [one.text for one in found[::3]]


def test_the_world_holds_out_what_it_is_told_to():
    default = VQASettings.of_world().data
    assert default.held_out == "pictures"
    for held_out, numbers in (("pictures", {"zero", "one"}), ("compositions", {"one"})):
        found = replace(default, held_out=held_out).read("valid").examples
        assert {one.answer for one in found if one.kind == "count"} == numbers
    with pytest.raises(ValueError, match=r"held_out = 'colours' is unknown; choose from compositions, pictures"):
        VQAData(held_out="colours")


@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_a_list_of_ones_own_is_read(ending, tmp_path):
    drawn(tmp_path, "a.png", "more/b.png")
    rows = [("a.png", "is it dark", "yes"), ("more/b.png", "is it dark", "no"), ("a.png", "what is it", "night")]
    names = ("picture", "question", "answer")
    lines = ["\t".join(row) if ending == "tsv" else json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    path = tmp_path / f"questions.{ending}"
    path.write_text("".join(f"{line}\n" for line in lines))
    for place in (path, tmp_path):  # the list, or the folder that holds it
        found = VQAData(corpus="files", train=(), test=(str(place),)).read("test").examples
        assert [(one.text, one.answer) for one in found] == [row[1:] for row in rows]
        assert found[0].picture is found[2].picture
        assert found[1].picture.pixels.unique().tolist() == [50]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.png\twhat is it", r"questions.tsv:2: 2 columns; a line is picture, tab, question, tab, answer"),
        ("a.png\t \tcat", r"questions.tsv:2: the question is empty"),
        ("b.png\twhat is it\tcat", r"questions.tsv:2: there is no image .*b.png; check the name"),
        ("torn.png\twhat is it\tcat", r"torn.png: not a complete PNG or JPEG image"),
        ("large.png\twhat is it\tcat", r"large.png has 9 x 9 pixels, those before it 8 x 8; resize them"),
    ],
)
def test_a_list_with_a_mistake_names_the_line(line, message, tmp_path):
    drawn(tmp_path, "a.png")
    Image.fromarray(np.zeros((9, 9, 3), dtype=np.uint8)).save(tmp_path / "large.png")
    (tmp_path / "torn.png").write_bytes(b"\x89PNG torn")
    path = tmp_path / "questions.tsv"
    path.write_text(f"a.png\twhat is it\tdog\n{line}\n")
    with pytest.raises(ValueError, match=message):
        VQAData(corpus="files", test=(str(path),)).read("test")


def test_questions_about_one_picture_stay_together(tmp_path):
    read_known_part.cache_clear()
    home = drawn(tmp_path / "train", *(f"images/{n}.png" for n in range(25)))
    entries = [[f"is it {word}", "yes", n] for n in range(25) for word in ("dark", "light")]
    (home / "questions.json").write_text(json.dumps(entries))
    (tmp_path / "easy_vqa").mkdir()
    with tarfile.open(tmp_path / "easy_vqa" / "easy_vqa.tar", "w") as tar:
        tar.add(home, "easy_vqa/train")
    train, valid = (read_known_questions("easy_vqa", split, tmp_path) for split in ("train", "valid"))
    assert (len(train), len(valid)) == (46, 4)
    assert {one.picture.name for one in valid} == {"images/11", "images/23"}
    with pytest.raises(ValueError, match="mnist holds no questions"):
        read_known_questions("mnist", "train", tmp_path)
    read_known_part.cache_clear()


# --- loss and contracts ---


def test_the_loss_by_hand():
    """p = ¼, ¾ for both questions, whose answers are the second and the first: log 4/3 + log 4."""

    class Fixed(torch.nn.Module):
        def forward(self, pixels, tokens, lengths, about):
            return torch.tensor([[0.0, math.log(3.0)]]).expand(len(tokens), 2)

    tokens, lengths, about = torch.ones(2, 5, dtype=torch.int64), torch.tensor([5, 2]), torch.tensor([0, 0])
    batch = VQABatch(torch.zeros(1, 3, 8, 8), tokens, lengths, about, torch.tensor([1, 0]))
    summed, count = vqa_loss(0.0)(Fixed(), (batch, 2))
    assert count == 2
    assert_close(summed.item(), math.log(4 / 3) + math.log(4), rtol=1e-6, atol=1e-6)


def test_questions_about_one_picture_come_together():
    three = [replace(one, text=text) for one in some(7) for text in ("is it red", "is it round", "is it there")]
    answerer = QuestionAnswerer.from_examples(three, SETTINGS)
    data = answerer.job(three, three[:1]).data
    assert isinstance(data, QuestionBatches)
    rows = order_by_image(data, 0)
    assert sorted(rows) == list(range(21))
    assert [len(set(rows[n : n + 3] // 3)) for n in range(0, 21, 3)] == [1] * 7
    assert rows.tolist() != order_by_image(data, 1).tolist()
    ((batch, count),) = data.at(0, 0)
    made = data.materialize(batch)
    assert (count, len(made.pixels)) == (7, 3)
    assert made.image_index.bincount().sort().values.tolist() == [1, 3, 3]


def test_a_question_is_answered_alone(train_questions):
    answerer = QuestionAnswerer.from_examples(train_questions, SETTINGS)
    answerer.model.eval()
    together = answerer.probabilities(train_questions[:11])
    assert_close(together[4:5], answerer.probabilities(train_questions[4:5]))
    with pytest.raises(ValueError, match="the question is empty; give at least one word"):
        answerer.probabilities([replace(train_questions[0], text="  ")])
    with pytest.raises(ValueError, match="'what is it': the label 'fish' is not known"):
        answerer.label_ids([replace(train_questions[0], text="what is it", answer="fish")])


def test_a_run_that_was_left_ends_with_the_same_bits(train_questions, tmp_path):
    held_out = some(5, "valid")
    known = {one.answer for one in train_questions}
    held_out = [replace(one, answer=one.answer if one.answer in known else "yes") for one in held_out]

    fresh = partial(QuestionAnswerer.from_examples, train_questions, SETTINGS)
    assert_resumes(fresh, train_questions, held_out, tmp_path, cut=3)


def test_a_model_is_kept_and_loaded_with_its_words(train_questions, tmp_path):
    answerer = QuestionAnswerer.from_examples(train_questions, SETTINGS)
    answerer.model.eval()
    answerer.save(tmp_path / "run")
    again = QuestionAnswerer.load(tmp_path / "run")
    assert torch.equal(again.probabilities(train_questions[:3]), answerer.probabilities(train_questions[:3]))
    (tmp_path / "run" / "labels.json").write_text((tmp_path / "run" / "labels.json").read_text().replace("yes", "yea"))
    with pytest.raises(ValueError, match=r"labels.json is not what the weights were trained with"):
        QuestionAnswerer.load(tmp_path / "run")


@pytest.mark.slow
def test_every_kind_of_question_about_the_world_is_learnt(tmp_path):
    _, held_out = train_on_world(QuestionAnswerer, tmp_path)
    found = evaluate_vqa(QuestionAnswerer.load(tmp_path), held_out)
    assert set(found.by_kind) == {"colour", "shape", "presence", "count"}
    for right, train_questions in found.by_kind.values():
        assert right / train_questions >= 0.95, found.table()
