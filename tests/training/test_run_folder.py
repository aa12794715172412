"""Which weights of a run a model is loaded from: the finished, the best, the last, or those of a step."""

from pathlib import Path

import pytest

from regard.models.safetensors_io import saveable_tensors, write_weights
from regard.training.checkpoint import (
    Progress,
    checkpoint_path,
    checkpoints,
    read_valid_state,
    resolve_run,
    resolve_weights,
    write_checkpoint,
)
from regard.training.config import TrainConfig
from regard.training.loop import make_optimiser
from regard.training.step import ConstantSchedule
from tests.training import toy

PLAN = TrainConfig(ConstantSchedule(0.1), 1000)


@pytest.fixture
def run(tmp_path) -> Path:
    """Stopped at step 300, with its best at 200."""
    model = toy.fresh()
    (tmp_path / "settings.toml").write_text("")
    for step, best in ((100, 100), (200, 200), (300, 200)):
        progress = Progress(step=step, best=1.0, best_step=best)
        write_checkpoint(tmp_path / "checkpoints", model, make_optimiser(model, PLAN, captured=False), progress)
    return tmp_path


def at(run: Path, step: int) -> Path:
    return checkpoint_path(run / "checkpoints", step) / "model.safetensors"


def finish(run: Path) -> None:
    write_weights(saveable_tensors(toy.fresh()), run / "model.safetensors")


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_stopped_run_loads_its_best_checkpoint_with_a_notice(run):
    chosen = resolve_weights(run)
    assert (chosen.run, chosen.file) == (run, at(run, 200))
    assert (
        chosen.stopped_notice(1000) == f"{run} was stopped at step 300 of 1,000; using its best checkpoint (step 200)"
    )


def test_a_state_whose_figures_were_changed_is_not_taken(run):
    """Its weights and its form are as they were written; the checksum tells that a number is not."""
    state = at(run, 300).with_name("state.json")
    assert read_valid_state(state.parent) is not None
    state.write_text(state.read_text().replace('"best": 1.0', '"best": 0.5'))
    assert read_valid_state(state.parent) is None
    assert resolve_weights(run, "last").file == at(run, 200)


def test_a_finished_run_gives_its_finished_weights(run):
    finish(run)
    assert (resolve_weights(run).file, resolve_weights(run).stopped_notice(1000)) == (run / "model.safetensors", "")


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("checkpoint", "step"), [("best", 200), ("last", 300), ("100", 100), (100, 100), ("00000300", 300)]
)
def test_a_named_checkpoint_is_loaded_without_a_notice(run, checkpoint, step, finished):
    if finished:
        finish(run)
    assert (resolve_weights(run, checkpoint).file, resolve_weights(run, checkpoint).stopped_notice(1000)) == (
        at(run, step),
        "",
    )


def test_the_folder_of_a_checkpoint_is_a_model(run, monkeypatch):
    assert resolve_weights(run / "checkpoints/00000100").file == at(run, 100)
    monkeypatch.chdir(run / "checkpoints/00000100")
    assert resolve_run(Path(".")) == (run, 100)
    with pytest.raises(ValueError, match="00000100 is a checkpoint itself; leave out the choice of 'last', or name"):
        resolve_weights(run / "checkpoints/00000100", "last")


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json"])
def test_damaged_checkpoints_are_passed_over(run, name):
    tear(run / "checkpoints/00000300" / name)
    assert (
        resolve_weights(run)
        .stopped_notice(1000)
        .endswith("was stopped at step 200 of 1,000; using its best checkpoint (step 200)")
    )
    with pytest.raises(ValueError, match="has no whole checkpoint 300; choose from last, best, 100, 200, 300"):
        resolve_weights(run, 300)
    tear(run / "checkpoints/00000200" / name)
    assert resolve_weights(run).file == at(run, 100)


def test_without_the_best_the_last_is_used(run):
    tear(at(run, 200))
    assert (
        resolve_weights(run)
        .stopped_notice(1000)
        .endswith("was stopped at step 300 of 1,000; using its last checkpoint (step 300)")
    )
    with pytest.raises(ValueError, match="has no whole checkpoint best; choose from last, 100"):
        resolve_weights(run, "best")


@pytest.mark.parametrize("chosen_checkpoint", ["worst", "-1", "150", "", "²"])
def test_what_is_not_there_is_refused(run, chosen_checkpoint):
    with pytest.raises(
        ValueError, match=f"has no whole checkpoint {chosen_checkpoint}; choose from last, best, 100, 200, 300"
    ):
        resolve_weights(run, chosen_checkpoint)


def test_a_run_without_a_checkpoint_is_refused(run):
    for path in checkpoints(run / "checkpoints"):
        tear(path / "state.json")
    with pytest.raises(ValueError, match=f"{run} has no checkpoint yet; train it: regard train --out {run}"):
        resolve_weights(run)
