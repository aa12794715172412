"""regard ladder --family: recipes on one budget, killed and gone on with, and its page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from regard.tasks.language_modeling import family
from regard.tasks.language_modeling.family import (
    SIZES,
    Answers,
    FamilyLadder,
    FamilyRun,
    build_task,
    family_rungs,
    guess_accuracy,
    refuse_other_budget,
    train_one,
)
from regard.training.loop import train
from regard.world.long_inputs import TOWNS

from .commands import assert_done, assert_refused, regard

TINY = replace(
    SIZES["quick"], steps=4, rows=2, sequences=3, held_out=130, lengths=(16, 32), rates=(1e-3, 1e-2), seeds=(0, 1)
)
THREE = """
[softmax]
recipe = "softmax"
["my hybrid"]
recipe = ["score = 'Cosine(1.0)'\\nnormaliser = 'Unnormalised()'\\ngate = 'Delta()'\\nposition = 'Rotary()'",
 "position = 'Rotary()'"]
[latent]
recipe = "position = 'Rotary(fraction=0.5)'"
kv_rank = 8
rotary_head = 8
"""


@pytest.fixture
def _tiny(monkeypatch):
    monkeypatch.setitem(SIZES, "quick", TINY)


@pytest.mark.usefixtures("_tiny")
def test_the_family_is_compared_on_a_page_and_goes_on_where_it_was():
    Path("mine.toml").write_text(THREE)
    Path("text.txt").write_text("to be or not to be, that is the question\n" * 60)
    command = (
        "ladder",
        "--family",
        "--quick",
        "--recipes",
        "mine.toml",
        "--tasks",
        "recall,text.txt",
        "--out",
        "family",
    )
    page = assert_done(regard(*command, "--device", "cpu"))
    found = json.loads(Path("family/family.json").read_text())
    assert [(row["task"], row["recipe"], row["figure"], len(row["values"])) for row in found["rows"]] == [
        (task, recipe, figure, 2)
        for task, figure in (("recall", "accuracy"), ("text", "loss"))
        for recipe in ("softmax", "my hybrid", "latent")
    ]
    counts = [row["parameters"] for row in found["rows"] if row["task"] == "recall"]
    assert max(counts) < 1.02 * min(counts)
    for row in found["rows"]:  # the better of the two rates, by the first seed's validation
        runs = [json.loads(path.read_text()) for path in Path("family/runs").glob(f"{row['task']}*/*/*-0/result.json")]
        tried = {run["rate"]: run["figures"][row["figure"]] for run in runs if run["recipe"] == row["recipe"]}
        assert sorted(tried) == list(TINY.rates)
        assert row["values"][0] == tried[row["rate"]] == (min if row["figure"] == "loss" else max)(tried.values())
    for recipe, rows in found["speed"].items():
        assert [row["length"] for row in rows] == [16, 32], recipe
        assert min(min(row["train"], row["decode"], row["memory"]) for row in rows) > 0
    caches = {recipe: rows[1]["cache"] - rows[0]["cache"] for recipe, rows in found["speed"].items()}
    # 2 layers of keys and values, one such layer beside a state, and 2 layers of latents with a shared key; float32
    assert caches == {"softmax": 16 * 2 * 2 * 32 * 4, "my hybrid": 16 * 2 * 32 * 4, "latent": 16 * 2 * (8 + 8) * 4}
    for part in (
        "| my hybrid |",
        "best of 0.001, 0.01",
        "2 seeds",
        "256 B",
        f"| a guess, which looks nothing up | {build_task('recall', TINY).guess:.3f} | – | – | – |",
        "solved by none",
        "4 steps of 2 rows",
    ):
        assert part in page, part
    with Image.open("family/family-attention.png") as picture:
        assert min(picture.size) > 100

    more = (*command, "--device", "cpu", "--steps", "5")
    assert_refused(regard(*more), "family holds runs of steps = 4, not 5; use another folder: --out")
    Path("mine.toml").write_text(THREE.replace("kv_rank = 8", "kv_rank = 4"))
    assert_refused(
        regard(*more[:-2]), "family holds runs of [latent] = {'recipe': \"position = 'Rotary(fraction=0.5)'\""
    )
    Path("mine.toml").write_text(THREE)
    Path("family/budget.json").rename("budget.json")
    assert_refused(regard(*command, "--device", "cpu"), "family holds runs of an earlier version, which does not say")
    Path("budget.json").rename("family/budget.json")

    before = {path: path.stat().st_mtime_ns for path in Path("family/runs").rglob("result.json")}
    assert len(before) == 2 * 3 * 3  # two rates, and one seed more
    next(iter(before)).unlink()
    assert_done(regard(*command, "--device", "cpu"))
    after = {path: path.stat().st_mtime_ns for path in Path("family/runs").rglob("result.json")}
    assert len(after) == len(before)
    assert sum(after[path] != before[path] for path in before) == 1  # only what was missing


def test_a_folder_without_runs_takes_any_size(tmp_path):
    for size in (TINY, replace(TINY, steps=5)):
        refuse_other_budget(FamilyLadder(tmp_path, size, ("recall",), family_rungs(size)))
    assert json.loads((tmp_path / "budget.json").read_text())["steps"] == 5


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    """It stops after three of four steps, and is started again."""
    rungs = family_rungs(TINY)
    task = build_task("recall", TINY)
    wanted, weights = [], []
    for name, stop in (("whole", None), ("killed", 3)):
        ladder = FamilyLadder(tmp_path / name, TINY, ("recall",), rungs)
        run = FamilyRun("recall", "gated delta rule", ladder.config("gated delta rule", task.vocabulary), 1e-2, 0)

        def stopping(*args, stop=stop):
            for report in train(*args):
                yield report
                if report.step == stop:
                    raise KeyboardInterrupt

        monkeypatch.setattr(family, "train", stopping)
        if stop:
            with pytest.raises(KeyboardInterrupt):
                train_one(run, ladder, task)
            monkeypatch.setattr(family, "train", train)
        wanted.append(train_one(run, ladder, task)["figures"])
        weights.append((run.folder(ladder.out) / family.WEIGHTS).read_bytes())
    assert wanted[0] == wanted[1]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("name", ["recall", "retrieval", "listops"])
def test_the_loss_of_a_task_counts_its_answers_alone(name):
    """Tokens that stand behind the last answer's question are the answer: no other target, and the same for all."""
    task = build_task(name, TINY)
    ((batch, count),) = task.data(0, "cpu").at(0, 0)
    ((same, _),) = task.data(0, "cpu").at(0, 0)
    ((other, _),) = task.data(1, "cpu").at(0, 0)
    assert count == batch.asked.numel()
    assert torch.equal(batch.tokens, same.tokens)
    assert not torch.equal(batch.tokens, other.tokens)
    assert batch.tokens.shape == (TINY.sequences, task.length)
    assert int(batch.tokens.max()) < task.vocabulary
    answers = batch.tokens.gather(1, batch.asked + 1)
    if name == "recall":  # each asked key stands among the pairs, with that value behind it
        for row, asked, answer in zip(batch.tokens, batch.asked, answers, strict=True):
            pairs = dict(zip(row[: 2 * TINY.pairs : 2].tolist(), row[1 : 2 * TINY.pairs : 2].tolist(), strict=True))
            assert [pairs[int(key)] for key in row[asked]] == answer.tolist()
    elif name == "listops":
        assert batch.asked.tolist() == [[task.length - 2]] * TINY.sequences
    else:
        words = list(dict.fromkeys((*family.world_words(), *TOWNS, "where", "does", "live", "lives", "in", ".")))
        for row, asked, answer in zip(batch.tokens, batch.asked, answers, strict=True):
            text = [words[token] for token in row.tolist()]
            for at, town in zip(asked.tolist(), answer.tolist(), strict=True):
                person = text[at - 2]
                assert text[at - 4 : at + 1] == ["where", "does", person, "live", "."]
                assert f" {person} lives in {words[town]} . " in f" {' '.join(text)} "


def test_a_guess_is_the_answer_that_a_text_names_most_often():
    """Of 1 1 2 a guess is 1; of 1 2 it is either of them."""
    tokens = torch.tensor([[0, 1, 0, 1, 0, 2, 0, 1, 0, 2], [0, 1, 0, 2, 3, 3, 0, 1, 0, 1]])
    found = Answers(tokens, torch.tensor([[6, 8], [6, 8]]))
    assert guess_accuracy(found, 4, (1, 2)) == (1 + 0 + 0.5 + 0.5) / 4
    found = Answers(torch.tensor([[3, 1], [3, 1], [3, 2]]), torch.tensor([[0], [0], [0]]))
    assert guess_accuracy(found, 4, ()) == pytest.approx(2 / 3)


def test_a_mistake_is_refused_before_anything_is_trained():
    Path("bad.toml").write_text("[mine]\nrecipe = 'no such recipe'\n")
    assert_refused(regard("ladder", "--family", "--quick", "--recipes", "bad.toml"), "no recipe of layers is called")
    assert_refused(regard("ladder", "--family", "--quick", "--tasks", "recal"), "no task is called 'recal'")
    assert_refused(
        regard("ladder", "--family", "--size", "huge"), "no size of --family is called 'huge'; there are quick"
    )
    Path("bad.toml").write_text("recipe = 3\n")
    assert_refused(regard("ladder", "--family", "--recipes", "bad.toml"), "bad.toml names no recipe; give each a table")
