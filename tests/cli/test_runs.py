"""regard runs and regard compare: what runs have reached, damaged ones among them, and two of them side by side."""

import json
import shutil
from pathlib import Path

import pytest

from regard.models.safetensors_io import named_tensors
from regard.tasks.runs import RunSummary, find_runs, summarize_run
from regard.tasks.translation.task import Translator

from .commands import LITTLE, WORLD_TESTS, assert_done, assert_plain, assert_refused, regard


@pytest.fixture(scope="module")
def tuned(trained, train) -> Path:
    """The trained translator, two steps further."""
    return train("--init-from", trained, "--steps", 2, "--set", "train.validate_every=1")


@pytest.fixture(scope="module")
def tagger(train) -> Path:
    options = ["--task", "tagging", "--set", "data.sentences=200", "--set", "train.best_metric=accuracy"]
    return train(*options, *LITTLE, "--steps", 2)


@pytest.fixture
def folder(trained, tuned, tagger, tmp_path) -> Path:
    """Three whole runs, one of them deeper, and four that are damaged in different ways."""
    for name, run in {"one": trained, "deep/two": tuned, "tagger": tagger}.items():
        shutil.copytree(run, tmp_path / name)
    for name in ("settings", "weights", "state", "lost"):
        shutil.copytree(tuned, tmp_path / f"bad/{name}")
    (tmp_path / "bad/settings/settings.toml").write_text("[train\n")
    (tmp_path / "bad/weights/model.safetensors").write_bytes(b"torn")
    for state in (tmp_path / "bad/state/checkpoints").glob("*/state.json"):
        state.write_text("{}")
    (tmp_path / "bad/lost/settings.toml").unlink()
    (tmp_path / "no run").mkdir()
    (tmp_path / "no run/settings.toml").write_text("[tool]\n")
    return tmp_path


# --- runs ---


def test_runs_are_listed_best_first_with_their_figures_and_damaged_ones_by_their_errors(folder, trained):
    answer = regard("runs", folder)
    printed = assert_done(answer)
    assert_plain(answer.output)
    head, first, second, third, *damaged = printed.splitlines()
    assert head.split() == ["run", "task", "model", "parameters", "steps", "best", "validation", "last", "trained"]
    assert {first.split()[0], second.split()[0]} == {"one", "deep/two"}
    values = [float(line.split("loss ")[1].split()[0]) for line in (first, second)]
    assert values == sorted(values)
    assert third.split()[:2] == ["tagger", "tagging"]
    assert "accuracy 0." in third
    weights = sum(tensor.numel() for tensor in named_tensors(Translator.load(trained).model).values())
    (one,) = (line for line in (first, second) if line.startswith("one "))
    assert f"{weights:,}  100 / 100  loss " in one
    assert [line.split(": damaged: ")[0] for line in damaged] == [
        f"bad/{name}" for name in ("lost", "settings", "state", "weights")
    ]
    whys = ["settings.toml is missing", "the settings are no TOML", "no checkpoint is whole", "is damaged or no safet"]
    assert all(why in line for why, line in zip(whys, damaged, strict=True)), damaged


def test_json_has_the_same(folder):
    found = json.loads(assert_done(regard("runs", folder, "--json", "--sort", "path")))
    assert [one["run"] for one in found[:3]] == [str(folder / name) for name in ("deep/two", "one", "tagger")]
    keys = {"run", "task", "model", "parameters", "step", "steps", "finished", "best", "updated"}
    assert found[0].keys() == keys
    assert (found[0]["step"], found[0]["steps"], found[0]["finished"]) == (2, 2, True)
    assert all("error" in one for one in found[3:])
    newest = json.loads(assert_done(regard("runs", folder, "--json", "--sort", "time")))[:3]
    assert [one["updated"] for one in newest] == sorted((one["updated"] for one in newest), reverse=True)


def test_a_folder_without_runs_is_refused(tmp_path):
    assert_refused(regard("runs", tmp_path), f"{tmp_path}: no runs in it or below; train one with regard train --out")
    assert_refused(regard("runs", tmp_path / "none"), f"{tmp_path / 'none'}: no such folder; name one that holds runs")


def test_a_run_that_was_stopped_and_one_before_its_first_checkpoint(tuned, tmp_path):
    run = Path(shutil.copytree(tuned, tmp_path / "run"))
    (run / "model.safetensors").unlink()
    shutil.rmtree(run / "checkpoints/00000002")
    stopped = summarize_run(run)
    assert (stopped.step, stopped.steps, stopped.finished) == (1, 2, False)
    assert summarize_run(run / "checkpoints/00000001").folder == run
    shutil.rmtree(run / "checkpoints")
    (found,) = find_runs(tmp_path)
    assert isinstance(found, RunSummary)
    assert (found.step, found.parameters) == (0, None)
    assert [step for step, _ in found.curve("loss")] == [1, 2]  # from the log
    (run / "log.jsonl").write_text('{"step": 1, "time": "soon", "validation": {"loss": "low"}}\n')
    assert summarize_run(run).best is None


# --- compare ---


def test_settings_curves_and_figures_side_by_side(trained, tuned, tmp_path):
    output = assert_done(regard("compare", trained, tuned, "--out", tmp_path / "curves.png"))
    assert_plain(output)
    lines = output.splitlines()
    assert lines[0].split() == [str(trained), str(tuned)]
    assert [line.split()[1:] for line in lines if line.startswith("train.steps ")] == [["100", "2"]]
    assert not [line for line in lines if line.startswith("model.layers")]
    assert "valid loss by step" in lines
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "BLEU" not in output


def test_translations_are_tested_by_paired_bootstrap_on_the_same_test_set(trained, tuned):
    words = ["compare", trained, tuned, "--split", "test", "--beam", 1, "--json"]
    found = json.loads(assert_done(regard(*words)))
    assert (found["test"]["on"], found["test"]["examples"]) == (["world, test"], WORLD_TESTS)
    assert list(found["test"]["scores"]) == ["BLEU", "chrF", "chrF++", "TER", "exact match"]
    score = found["test"]["scores"]["BLEU"]
    assert "bs:1000|seed:12345" in score["test"]["signature"]
    assert 0 < score["test"]["p_value"] <= 1
    assert found["settings"]["train.steps"] == [100, 2]
    assert [line["step"] for line in found["validations"][1]] == [1, 2]


def test_a_run_differs_from_itself_by_nothing(tagger):
    output = assert_done(regard("compare", tagger, tagger, "--split", "valid"))
    assert "settings are the same" in output
    assert "valid accuracy by step" in output
    (accuracy,) = (line for line in output.splitlines() if line.startswith("accuracy ") and "±" in line)
    assert accuracy.split()[-2:] == ["+0.00", "1.000"]
    assert "accuracy: words:" in output


def test_what_cannot_be_compared_is_refused_in_one_line(trained, tuned, tagger, corpus, tmp_path):
    why = f"{trained} is for the task 'translation', {tagger} for 'tagging'; compare runs of one task"
    assert_refused(regard("compare", trained, tagger), why)
    both = ["compare", trained, tuned]
    assert_refused(regard(*both, "--on", "a.tsv", "--split", "test"), "--on a.tsv and --split test are two test sets")
    assert_refused(regard(*both, "--beam", 2), "--beam and penalties are for translating a test set; name one with")
    assert_refused(regard("compare", trained, tmp_path), f"{tmp_path} holds no model: settings.toml is missing")
    other = tmp_path / "other"
    assert_done(regard("train", "--train", corpus(), *LITTLE, "--steps", 1, "--out", other))
    why = f"{trained} and {other} have other pairs in world, valid; name one test set with --on"
    assert_refused(regard("compare", trained, other, "--split", "valid"), why)
    lower = tmp_path / "lower"
    words = ["--set", "text.lowercase=true", "--steps", 1, "--out", lower]
    assert_done(regard("train", "--train", corpus(), *LITTLE, *words))
    why = "the scores cannot be compared: BLEU is nrefs:1|case:mixed"
    assert_refused(regard("compare", other, lower, "--on", corpus(), "--beam", 1), why)
    assert_refused(regard("compare", tagger, tagger, "--split", "valid", "--beam", 1), "--beam and penalties are for")


def test_curves_that_are_not_there_yet(tuned, tmp_path):
    young = Path(shutil.copytree(tuned, tmp_path / "young"))
    shutil.rmtree(young / "checkpoints")
    (young / "log.jsonl").unlink()
    assert "one of the runs has no validation yet" in assert_done(regard("compare", tuned, young))
    refused = regard("compare", tuned, young, "--out", tmp_path / "a.png")
    assert_refused(refused, f"{tmp_path / 'a.png'}: one of the runs has no validation yet, so there is nothing to draw")
