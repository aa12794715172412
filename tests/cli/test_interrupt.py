"""Runs that were stopped: every command takes them as they stand, and training goes on with other settings."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from typer.main import get_command

from regard.cli import app
from regard.cli import progress as train_progress
from regard.tasks.translation.task import TranslationSettings, Translator

from .commands import LITTLE, assert_done, assert_refused, held, regard
from .test_start_from_run import TASKS, VERBS

SMALL = ["--set", "data.sentences=300", "--set", "data.max_length=6", *LITTLE]
TYPED = {
    "translate": "the cat\n",
    "tag": "the cat\n",
    "classify": "the cat\n",
    "generate": "the",
    "autoencode": "the cat\n",
}


def stopped(folder: Path, *words: object) -> Path:
    """A run stopped by Ctrl-C at its first validation, at step 2 of 9."""
    printed = train_progress.validation_line

    def interrupted(report, running):
        signal.raise_signal(signal.SIGINT)
        return printed(report, running)

    often = ["--steps", 9, "--set", "train.validate_every=2", "--set", "train.schedule=constant"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_progress, "validation_line", interrupted)
        answer = regard("train", *words, *often, "--out", folder)
    assert answer.exit_code == 130, answer.output
    return folder


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Path:
    return stopped(tmp_path_factory.mktemp("stopped") / "run", *SMALL)


@pytest.fixture
def copy(translator, tmp_path) -> Path:
    return Path(shutil.copytree(translator, tmp_path / "run"))


def notice(run: Path) -> str:
    return f"{run} was stopped at step 2 of 9; using its best checkpoint (step 2)\n"


def log(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


# --- as it stands ---


@pytest.mark.sampled(3)
@pytest.mark.parametrize("task", TASKS)
def test_a_stopped_run_of_every_task_is_used_as_it_stands(task, tmp_path):
    run = stopped(tmp_path / "run", "--task", task, "--set", f"data.{TASKS[task]}")
    answer = regard(
        *([VERBS[task], run, "-"] if VERBS[task] in TYPED else ["evaluate", run]), typed=TYPED.get(VERBS[task])
    )
    assert_done(answer)
    assert answer.stderr.startswith(notice(run))
    assert [(line["step"], sorted(line)) for line in log(run)] == [
        (1, ["loss", "rate", "step", "time", "tokens_per_second"]),
        (2, ["loss", "rate", "step", "time", "tokens_per_second", "validation"]),
    ]


def test_a_stopped_run_is_evaluated_started_from_and_given_as_a_checkpoint(translator, tmp_path):
    few = ["--on", tmp_path / "few.tsv"]
    (tmp_path / "few.tsv").write_text("the cat\tle chat\n")
    assert regard("evaluate", translator, *few).stderr == f"{notice(translator)}on 1 pair: {tmp_path / 'few.tsv'}\n"
    at = translator / "checkpoints/00000002"
    assert_done(regard("evaluate", at, *few))
    assert_done(regard("translate", at, "-", typed="the cat\n"))
    starts = [["--start", translator], ["--start", translator, "--checkpoint", "last"], ["--start", at]]
    for number, words in enumerate(starts):
        answer = regard("train", *words, "--steps", 1, "--out", tmp_path / str(number))
        assert_done(answer)
        assert (notice(translator) in answer.stderr) == (number == 0)


def test_a_stopped_translator_translates_aligns_and_is_looked_into(translator, tmp_path):
    for words in (["translate", translator, "-"], ["look", translator, "the cat"]):
        answer = regard(*words, typed="the cat\n")
        assert_done(answer)
        assert answer.stderr.startswith(notice(translator))
    assert_done(regard("translate", translator, "-", "--align", tmp_path / "links", typed="the cat\nthe dog\n"))
    assert len((tmp_path / "links").read_text().splitlines()) == 2


@pytest.mark.parametrize("checkpoint", ["best", "last", "2"])
def test_a_checkpoint_that_is_asked_for_needs_no_notice(translator, checkpoint):
    answer = regard("translate", translator, "-", "--checkpoint", checkpoint, typed="the cat\n")
    assert_done(answer)
    assert "stopped" not in answer.stderr
    why = f"{translator} has no whole checkpoint 3; choose from last, best, 2"
    assert_refused(regard("evaluate", translator, "--checkpoint", 3), why)


def test_every_command_that_reads_a_model_takes_a_checkpoint():
    commands = get_command(app).commands  # type: ignore[attr-defined]
    reading = {
        name: {option for one in command.params for option in one.opts}
        for name, command in commands.items()
        if any(one.name in ("model", "runs", "start") and "--model" not in one.opts for one in command.params)
    }
    assert reading.keys() >= {"translate", "evaluate", "look", "serve", "train", *VERBS.values()}
    assert [name for name, options in reading.items() if "--checkpoint" not in options] == []


def test_in_python_it_is_said_by_the_log(translator, caplog):
    one = Translator.load(translator)
    assert [record.getMessage() for record in caplog.records] == [notice(translator).strip()]
    last = Translator.load(translator, checkpoint=2)
    assert all(x.equal(y) for x, y in zip(one.model.parameters(), last.model.parameters(), strict=True))


# --- going on with other settings ---


@pytest.mark.parametrize("steps", [2, 5, 13])
def test_a_run_goes_on_for_as_many_steps_as_are_asked_for(steps, copy, tmp_path):
    answer = regard("train", "--out", copy, "--steps", steps)
    assert_done(answer)
    assert f"changed: train.steps = {steps} (was 9)\n" in answer.stderr
    assert "schedule gives other rates" not in answer.stderr  # it is constant
    changes = [(line["step"], line["changed"]) for line in log(copy) if "changed" in line]
    assert changes == [(2, {"train.steps": [9, steps]})]
    straight = ["--steps", steps, "--set", "train.validate_every=2", "--set", "train.schedule=constant"]
    if steps > 2:  # a run of two steps would have a shorter warm-up
        warmup = ["--set", f"train.warmup_steps={TranslationSettings.load(copy / 'settings.toml').train.warmup_steps}"]
        assert_done(regard("train", *SMALL, *straight, *warmup, "--out", tmp_path / "straight"))
        assert held(copy) == held(tmp_path / "straight")


def test_a_run_with_files_goes_on_with_its_own(corpus, tmp_path, monkeypatch):
    run = stopped(tmp_path / "run", "--train", corpus(), *LITTLE)
    monkeypatch.chdir("/")
    answer = regard("train", "--out", run, "--steps", 3)
    assert_done(answer)
    assert "40 pairs, 1 for validation" in answer.stderr
    assert TranslationSettings.load(run / "settings.toml").data.train == (str(tmp_path / "train.tsv"),)


def test_a_rate_that_was_planned_otherwise_is_said(copy):
    answer = regard("train", "--out", copy, "--set", "train.schedule=cosine", "--seed", 3)
    assert_done(answer)
    assert (
        "the cosine schedule gives other learning rates from step 2 on, so the weights will not be those of"
        in answer.stderr
    )
    assert "changed: train.seed = 3 (was 0)\n" in answer.stderr


def test_what_makes_another_model_is_refused_and_changes_nothing(copy):
    before = held(copy)
    why = f"{copy} holds a run with layers = 1, not layers = 2; choose another --out, or resume it: regard train"
    assert_refused(regard("train", "--out", copy, "--set", "model.layers=2"), why)
    why = f'{copy} holds a run with task = "translation", not task = "tagging"'
    assert_refused(regard("train", "--out", copy, "--task", "tagging"), why)
    assert_refused(
        regard("train", "--out", copy, "--steps", 1), f"{copy} has taken 2 steps already, more than 1; ask for"
    )
    assert held(copy) == before


# --- what a run says of itself ---


def test_the_log_holds_every_validation(corpus, tmp_path):
    words = ["train", "--train", corpus(), *LITTLE, "--set", "train.validate_every=2", "--out", tmp_path / "run"]
    assert_done(regard(*words, "--steps", 5))
    lines = log(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 4, 5]
    assert ["validation" in line for line in lines] == [False, True, True, True]
    assert all(line["validation"]["loss"] > 0 and line["loss"] > 0 and line["time"] for line in lines[1:])


def test_settings_that_replace_a_run_without_a_checkpoint_begin_a_new_log(corpus, tmp_path):
    run = tmp_path / "run"
    assert_done(regard("train", "--train", corpus(), *LITTLE, "--steps", 2, "--out", run))
    shutil.rmtree(run / "checkpoints")
    (run / "model.safetensors").unlink()
    assert_done(regard("train", "--train", corpus(), *LITTLE, "--steps", 1, "--set", "model.layers=2", "--out", run))
    assert [line["step"] for line in log(run)] == [1]


def test_defaults_follow_the_data_and_are_said(corpus, tmp_path, monkeypatch):
    def stop(self):
        raise ValueError("enough")

    monkeypatch.setattr("regard.training.run.TrainingRun.steps", stop)
    answer = regard("train", "--train", corpus(101), "--out", tmp_path / "run")
    assert_refused(answer, "enough")
    assert answer.stderr.splitlines()[1] == "400 steps of 512 tokens (≈ 100 epochs), 500 subwords, to fit 100 pairs"


def test_a_start_with_few_steps_leaves_its_warm_up(trained, corpus, tmp_path):
    given = ["train", "--start", trained, "--train", corpus(), "--steps", 30]
    assert_done(regard(*given, "--out", tmp_path / "mine"))
    assert TranslationSettings.load(tmp_path / "mine/settings.toml").train.warmup_steps == 3
    assert_done(regard(*given, "--set", "train.warmup_steps=20", "--out", tmp_path / "other"))
    assert TranslationSettings.load(tmp_path / "other/settings.toml").train.warmup_steps == 20


def test_a_pipe_hears_of_the_steps_and_the_time_left_as_they_pass(corpus, tmp_path, monkeypatch):
    for name in ("FIRST_REPORT_SECONDS", "REPORT_EVERY_SECONDS"):
        monkeypatch.setattr(train_progress, name, 0.0)
    answer = regard("train", "--train", corpus(), *LITTLE, "--steps", 5, "--out", tmp_path / "run")
    assert_done(answer)
    progress = [line.split()[:4] for line in answer.stderr.splitlines() if "left on this machine" in line]
    assert progress == [["step", step, "of", "5"] for step in "234"]  # the first warms up, the last is validated
