"""A task is one folder and one line of the table: it trains, resumes, is evaluated, looked at and shown in the page."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.see import trace_model
from regard.serve.model_store import ModelStore
from regard.tasks import registry
from regard.tasks.registry import TASKS, get_commands, get_task
from regard.training.run import TrainingRun
from tests.cli.commands import assert_done, assert_refused, regard
from tests.serve.client import client_of, post_trace

from .new_task.task import TASK, LengthClassifier, LengthSettings

SOURCE = Path(registry.__file__).parents[1]
CAT = "the black cat ate the mouse"


@pytest.fixture(autouse=True)
def line_of_the_table(monkeypatch):
    monkeypatch.setitem(TASKS, TASK.name, f"{__package__}.new_task")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, TASK.name, f"{__package__}.new_task")
        folder = tmp_path_factory.mktemp("new") / "run"
        output = assert_done(regard("train", "--task", TASK.name, "--out", folder, "--device", "cpu"))
    assert output == f"trained: {folder}; try: regard evaluate {folder}\n"
    return folder


def test_the_table_finds_it():
    assert get_task("sentence_length") is TASK
    assert get_commands("sentence_length") is None


def test_it_is_trained_and_loads(run):
    found = LengthClassifier.load(run)
    assert found.settings.train.steps == 6
    assert_done(regard("train", "--out", run, "--device", "cpu"))  # nothing is left to do


def test_an_interrupted_run_ends_with_the_same_weights(run, tmp_path):
    settings = LengthSettings.of_world()
    examples, held_out = (TASK.read(settings, split).examples for split in ("train", "valid"))
    steps = TrainingRun(LengthClassifier.from_examples(examples, settings).job(examples, held_out), tmp_path).steps()
    next(report for report in steps if report.step == 4)
    steps.close()
    assert_done(regard("train", "--out", tmp_path, "--device", "cpu"))
    straight, resumed = (load_file(folder / "model.safetensors") for folder in (run, tmp_path))
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_it_is_evaluated(run, tmp_path):
    output = assert_done(regard("evaluate", run, "--device", "cpu", "--save", tmp_path / "metrics.json"))
    assert re.match(r"accuracy [\d.]+ %\n", output)
    assert json.loads((tmp_path / "metrics.json").read_text())["right"] >= 0
    assert_refused(regard("evaluate", run, "--beam", "2"), "--beam and penalties are for translations")


def test_it_is_looked_at(run, tmp_path):
    trace = trace_model(run, CAT)
    output = assert_done(regard("look", run, CAT, "--device", "cpu"))
    assert output.splitlines()[0] == trace.output_text
    assert trace.output_text in ("short", "long")
    page = tmp_path / "look.html"
    assert_done(regard("look", run, CAT, "--device", "cpu", "--save", page))
    assert CAT in page.read_text()
    assert_refused(regard("look", run, CAT, "--target", "le chat"), "target means nothing to a model for the task")
    assert_refused(regard("look", run, CAT, "--head", "none:7"), "--head none:7: write LAYER:HEAD")


def test_a_trace_is_the_models_own_output(run):
    found, trace = LengthClassifier.load(run), trace_model(run, CAT)
    tokens, lengths, _ = found.batch([(CAT, 0)])
    assert torch.equal(trace.predictions.logits, found.model(tokens, lengths))
    assert trace.axes["text"].labels == tuple(CAT.split())


def test_it_is_shown_in_the_page(run):
    with client_of(ModelStore.from_folders([run])) as client:
        (card,) = client.get("/api/models").json()["models"]
        assert (card["task"], card["example"], card["picture"]) == ("sentence_length", CAT, False)
        answer = post_trace(client, {"model": card["name"], "text": card["example"]})
        assert answer["output_text"] in ("short", "long")
        assert answer["axes"]["text"] == CAT.split()
        assert answer["unknown"] == list(trace_model(run, CAT).out_of_vocabulary)
        assert client.get(f"/api/models/{card['name']}/checkpoints").json()["checkpoints"]


# --- and nothing else names a task ---


def test_no_file_of_see_serve_or_cli_names_a_task_model():
    """They go through the table; what is of translation alone is excepted: its tour, benchmark and pairs."""
    names = {type(get_task(name)).task_model.__name__ for name in TASKS if name != TASK.name}
    exceptions = {SOURCE / "cli" / name for name in ("demo.py", "benchmarks/training.py", "data.py")}
    for package in ("see", "serve", "cli"):
        for path in {*(SOURCE / package).rglob("*.py")} - exceptions:
            tree = ast.parse(path.read_text())
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
            assert not used & names, f"{path} names {used & names}"


def test_no_file_of_see_or_serve_asks_for_the_name_of_a_task():
    for package in ("see", "serve"):
        for path in [*(SOURCE / package).rglob("*.py"), *(SOURCE / package).rglob("*.js")]:
            found = [name for name in TASKS if re.search(rf"""["']{name}["']""", path.read_text())]
            assert not found, f"{path} names the task {found}"
