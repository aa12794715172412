"""Training loop: exact resume, gradient invariance, and steps that are not finite."""

import json

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.models.safetensors_io import load_weights, saveable_tensors
from regard.training import (
    ConstantSchedule,
    CosineSchedule,
    DivergedError,
    NoamSchedule,
    TrainConfig,
    average,
    checkpoints,
    train,
)
from regard.training import checkpoint as checkpoint_module
from regard.training.checkpoint import Progress, read_valid_state, record_validation
from tests.training.toy import Data, fresh, loss, plan, run, validate


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(one.parameters(), other.parameters(), strict=True))


# --- schedules, by hand ---


def test_noam_rises_in_a_line_and_falls_as_a_root():
    schedule = NoamSchedule(model=4, warmup=4)
    assert [round(schedule.rate(step), 6) for step in (1, 2, 4, 16)] == [0.0625, 0.125, 0.25, 0.125]


def test_cosine_rises_then_falls_to_the_least():
    schedule = CosineSchedule(peak=1.0, steps=10, warmup=2, minimum=0.2)
    assert [schedule.rate(step) for step in (1, 2)] == [0.5, 1.0]
    assert_close([schedule.rate(6), schedule.rate(10), schedule.rate(99)], [0.6, 0.2, 0.2])


def test_schedules_that_make_no_sense():
    for wrong in (lambda: CosineSchedule(1.0, steps=5, warmup=5), lambda: NoamSchedule(model=0)):
        with pytest.raises(ValueError, match="warm"):
            wrong()


# --- exact resume ---


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
def test_leaving_and_going_on_gives_the_same_weights_to_the_bit(tmp_path, cut):
    straight = run(tmp_path / "straight", 11)
    steps = train(fresh(), Data(), loss, plan(11), tmp_path / "cut", validate)
    for _ in range(cut):
        next(steps)
    steps.close()
    resumed = run(tmp_path / "cut", 11)
    assert same(straight, resumed)
    histories = [
        json.loads((tmp_path / name / "checkpoints/00000011/state.json").read_text()) for name in ("straight", "cut")
    ]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("torn", ["model.safetensors", "optimiser.safetensors", "state.json"])
def test_a_torn_checkpoint_is_passed_over(tmp_path, torn):
    straight = run(tmp_path / "a", 12)
    run(tmp_path / "b", 7)
    newest = checkpoints(tmp_path / "b" / "checkpoints")[-1]
    (newest / torn).write_bytes((newest / torn).read_bytes()[:20])
    assert read_valid_state(newest) is None
    assert same(straight, run(tmp_path / "b", 12))


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    run(tmp_path, 4)
    before = [path.name for path in checkpoints(tmp_path / "checkpoints")]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "save_tensors", full)
    with pytest.raises(ValueError, match="No space left on device; earlier ones are untouched"):
        run(tmp_path, 8)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == before
    monkeypatch.undo()
    assert same(run(tmp_path / "straight", 8), run(tmp_path, 8))


def test_only_the_newest_and_the_best_are_kept(tmp_path):
    run(tmp_path, 40, keep=2)
    kept = [int(path.name) for path in checkpoints(tmp_path / "checkpoints")]
    best = json.loads((tmp_path / "checkpoints" / "00000040" / "state.json").read_text())["progress"]["best_step"]
    assert set(kept) == {38, 40, best}


# --- gradient invariance ---


class Split(Data):
    """The same tokens of a step in other micro-batches."""

    def __init__(self, sizes: list[int]):
        self.sizes = sizes

    def at(self, epoch: int, index: int) -> list[Tensor]:
        return list(torch.cat(super().at(epoch, index)).split(self.sizes))


@pytest.mark.parametrize("sizes", [[29], [1, 28], [7, 7, 7, 8]])
def test_the_gradient_does_not_depend_on_how_the_tokens_are_split(tmp_path, sizes):
    models = []
    for name, data in (("a", Data()), ("b", Split(sizes))):
        model = fresh().double()
        model.dropout.p = 0.0
        list(train(model, data, loss, plan(5), tmp_path / name))
        models.append(model)
    assert_close(dict(models[0].named_parameters()), dict(models[1].named_parameters()))


# --- guards ---


def test_a_step_that_is_no_number_is_skipped_and_too_many_stop_the_run(tmp_path):
    def broken(model, x):
        summed, count = loss(model, x)
        return summed * torch.nan, count

    model, before = fresh(), fresh()
    with pytest.raises(DivergedError, match="not a number 10 times in a row; lower the learning rate"):
        list(train(model, Data(), broken, plan(50), tmp_path))
    assert same(model, before)


def test_patience_stops_a_run_that_gets_no_better(tmp_path):
    values = iter([3.0, 2.0, 2.5, 2.5, 1.0])
    reports = list(train(fresh(), Data(), loss, plan(40, patience=2), tmp_path, lambda _: {"loss": next(values)}))
    assert reports[-1].step == 16


def test_plans_that_make_no_sense():
    with pytest.raises(
        ValueError, match="precision = 'int8' is unknown; choose from float32, bfloat16, float16, bf16-pure"
    ):
        TrainConfig(ConstantSchedule(1.0), 5, precision="int8")
    with pytest.raises(ValueError, match="steps must be at least 1"):
        TrainConfig(ConstantSchedule(1.0), 0)


def test_weights_of_another_model_are_refused(tmp_path):
    run(tmp_path, 2)
    path = checkpoints(tmp_path / "checkpoints")[-1] / "model.safetensors"
    with pytest.raises(ValueError, match="belongs to another model"):
        load_weights(nn.Linear(3, 3), path)
    wider = fresh()
    wider.out = nn.Linear(7, 6)
    with pytest.raises(ValueError, match=r"is \(5,\), the model wants \(6,\)|is \(5, 7\), the model wants \(6, 7\)"):
        load_weights(wider, path)
    path.write_bytes(b"not weights")
    with pytest.raises(ValueError, match="damaged"):
        load_weights(fresh(), path)


def test_averaging_is_the_mean_of_the_weights(tmp_path):
    run(tmp_path, 6)
    paths = checkpoints(tmp_path / "checkpoints")[-3:]
    models = []
    for path in paths:
        models.append(fresh())
        load_weights(models[-1], path / "model.safetensors")
    mean = average(paths)
    for name, tensor in saveable_tensors(models[0]).items():
        expected = torch.stack([saveable_tensors(model)[name].double() for model in models]).mean(0)
        assert_close(mean[name], expected.to(tensor.dtype))


def test_training_learns(tmp_path):
    reports = list(train(fresh(), Data(), loss, plan(300), tmp_path))
    assert reports[-1].loss < 0.5 < 1.0 < reports[0].loss


def test_the_best_checkpoint_is_that_of_the_chosen_metric():
    rising = record_validation(
        record_validation(Progress(step=1), {"loss": 1.0, "accuracy": 0.5}, "accuracy"),
        {"loss": 2.0, "accuracy": 0.6},
        "accuracy",
    )
    assert rising.best == -0.6
    by_loss = record_validation(record_validation(Progress(step=1), {"loss": 1.0}), {"loss": 2.0})
    assert (by_loss.best, by_loss.worse) == (1.0, 1)
    with pytest.raises(ValueError, match="best = 'accuracy': validation finds only loss; choose one of them"):
        record_validation(Progress(), {"loss": 1.0}, "accuracy")
