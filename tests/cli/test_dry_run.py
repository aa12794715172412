"""regard train --dry-run: the recipe of a run, its size, memory and time; nothing is trained or written."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from regard.cli import progress as train_progress
from regard.cli.progress import format_bytes
from regard.training import run as training_run
from regard.training.checkpoint import is_validation_step
from regard.training.config import TrainConfig
from regard.training.step import ConstantSchedule

from .commands import LITTLE, assert_done, assert_plain, assert_refused, held, regard


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_progress, "FIRST_REPORT_SECONDS", 0.0)  # two steps will do


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_prints_a_recipe_and_writes_nothing(corpus, tmp_path):
    words = ["train", "--train", corpus(101), *LITTLE, "--steps", 5, "--seed", 3, "--set", "validate_every=2"]
    before = files(tmp_path)
    answer = regard(*words, "--out", "run", "--dry-run")
    recipe = assert_done(answer)
    assert not Path("run").exists()
    assert files(tmp_path) == before
    tables = tomllib.loads(recipe)
    assert (tables["task"], tables["train"]["steps"], tables["train"]["seed"]) == ("translation", 5, 3)
    assert tables["data"]["train"] == [str(tmp_path / "train.tsv")]
    assert_plain(answer.stderr)
    data, length, model, memory, time = answer.stderr.splitlines()
    assert data.startswith("100 pairs, 1 for validation; transformer with ")
    assert length.startswith("5 steps of 300 tokens (")
    parameters = int(re.search(r"with ([\d,]+) parameters", data)[1].replace(",", ""))  # type: ignore[index]
    size, training = format_bytes(4 * parameters), format_bytes(16 * parameters)
    assert model == (
        f"model: {parameters:,} parameters, {size}; to train, with gradients and the state of AdamW, {training}"
    )
    assert re.fullmatch(r"memory: about [\d,.]+ [MG]B at its peak, with Python, torch and the data", memory)
    assert re.fullmatch(
        r"time: about \d+ seconds on this machine: 5 steps of [\d,]+ ms, 3 validations of [\d.]+ s", time
    )

    Path("recipe.toml").write_text(recipe)
    assert assert_done(regard("train", "recipe.toml", "--dry-run")) == recipe
    assert_done(regard("train", "recipe.toml", "--out", "by_recipe"))
    assert_done(regard(*words, "--out", "by_flags"))
    assert held(Path("by_recipe")) == held(Path("by_flags"))


def test_a_run_that_is_extended_stays_as_it_is(copied):
    before = files(copied)
    answer = regard("train", "--out", copied, "--steps", 150, "--dry-run")
    assert tomllib.loads(assert_done(answer))["train"]["steps"] == 150
    assert "; resuming from step 100" in answer.stderr
    assert "changed: train.steps = 150 (was 100)" in answer.stderr
    assert ": 50 steps of " in answer.stderr
    assert files(copied) == before
    answer = regard("train", "--out", copied, "--dry-run")
    assert tomllib.loads(assert_done(answer)) == tomllib.loads((copied / "settings.toml").read_text())
    assert answer.stderr.endswith("time: none; all 100 steps are done\n")
    assert_refused(regard("train", "--out", copied, "--steps", 7, "--dry-run"), f"{copied} has taken 100 steps already")
    assert_refused(
        regard("train", "--out", copied, "--to", "de", "--dry-run"), f"{copied} holds a run with another data"
    )
    assert files(copied) == before


def test_the_time_is_that_of_the_steps_and_validations_that_are_left(copied, monkeypatch):
    monkeypatch.setattr(training_run, "measure_steps", lambda run, pace: 2.0)
    monkeypatch.setattr(training_run, "measure_validation", lambda run: 3.0)
    for every, message in (
        (50, "103 seconds on this machine: 50 steps of 2,000 ms, 1 validations of 3.0 s"),
        (1, "4 min"),
    ):
        answer = regard("train", "--out", copied, "--steps", 150, "--set", f"validate_every={every}", "--dry-run")
        assert_done(answer)
        assert f"time: about {message}" in answer.stderr


def test_a_fine_tuned_model_is_measured(trained, corpus):
    answer = regard("train", "--init-from", trained, "--train", corpus(), "--steps", 3, "--out", "mine", "--dry-run")
    assert_done(answer)
    assert f"initialised with the weights and the vocabulary of {trained}" in answer.stderr
    assert "3 steps of " in answer.stderr
    assert not Path("mine").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--task", "vqa", "--set", "images=100", "--set", "train.batch_size=8"],
        ["--task", "node_classification", "--set", "people=40"],
        ["--task", "tagging", "--set", "sentences=50", "--precision", "bfloat16"],
    ],
)
def test_every_kind_of_batch_is_measured(words):
    answer = regard("train", *words, "--steps", 2, "--dry-run")
    assert_done(answer)
    assert re.search(r"time: about \d+ seconds on this machine: 2 steps of ", answer.stderr)
    assert not Path("run").exists()


def test_mistakes_are_those_of_the_training():
    assert_refused(regard("train", "--set", "train.steps=0", "--dry-run"), "train.steps = 0 should be at least 1")
    Path("run").write_text("a poem")
    assert_refused(regard("train", "--dry-run"), "run: is a file, not a folder; choose another path")


def test_a_run_that_diverges_at_once_is_refused(monkeypatch, corpus):
    monkeypatch.setattr(train_progress, "FIRST_REPORT_SECONDS", 60.0)
    words = ["--rate", "1e18", "--set", "warmup_steps=0", "--set", "max_grad_norm=0", "--steps", 60, "--dry-run"]
    answer = regard("train", "--train", corpus(), *LITTLE, *words)
    assert answer.exit_code == 2
    assert "times in a row; lower the learning rate" in answer.stderr


def test_validations_are_counted():
    for steps, every in ((10, 3), (9, 3), (2, 5), (7, 1)):
        config = TrainConfig(ConstantSchedule(1.0), steps, validate_every=every)
        for done in range(steps):
            expected = sum(is_validation_step(config, step) for step in range(done + 1, steps + 1))
            assert config.validations_between(done, steps) == expected


def test_where_no_peak_is_known_there_is_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert training_run.measure_memory(torch.device("cpu")) is None
