"""Runs made longer or shorter: with the same schedule they end as if they had always been so."""

from pathlib import Path

import pytest

from regard.training import ConstantSchedule, TrainConfig, train
from regard.training.checkpoint import checkpoints
from tests.training import toy
from tests.training.test_resume import assert_same_run, progress
from tests.training.test_run import fit, weights


def varied(model) -> dict[str, float]:
    """Better and worse in turn, so that any validation may be the best."""
    return {"loss": float(model.out.weight.double().abs().sum() * 997) % 1}


def run(folder: Path, *ends: int, **more) -> None:
    for steps in ends:
        list(train(toy.fresh(), toy.Data(), toy.loss, toy.plan(steps, keep=2, **more), folder, varied))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ends", [(1, 17), (3, 17), (4, 17), (7, 17), (7, 9, 17), (13, 14, 15, 17), (15, 16), (16, 20)])
def test_extended_it_ends_with_the_same_bytes_as_a_run_that_never_ended_before(tmp_path, ends):
    run(tmp_path / "straight", ends[-1])
    run(tmp_path / "extended", *ends)
    assert_same_run(tmp_path / "straight", tmp_path / "extended")


def test_the_runs_have_something_to_get_wrong(tmp_path):
    """A validation that only the end asked for is the best of a run, or is followed by others in its history."""
    run(tmp_path, 7)
    assert progress(tmp_path)["history"][-1]["step"] == 7
    bests = set()
    for end in range(1, 18):
        run(tmp_path / str(end), end)
        bests.add(progress(tmp_path / str(end))["best_step"] == end)
    assert bests == {True, False}


def test_a_run_that_was_left_and_is_made_shorter(tmp_path):
    run(tmp_path / "straight", 11)
    steps = train(toy.fresh(), toy.Data(), toy.loss, toy.plan(400, keep=2), tmp_path / "left", varied)
    assert [next(steps).step for _ in range(9)][-1] == 9
    steps.close()
    run(tmp_path / "left", 11)
    assert_same_run(tmp_path / "straight", tmp_path / "left")


def test_patience_does_not_count_the_validation_of_an_earlier_end(tmp_path):
    values = iter([1.0, 2.0, 2.0, 2.0, 2.0, 0.0])  # at 4 and at the end, 7; at 8, 12 and 16
    for steps in (7, 40):
        plan = toy.plan(steps, patience=3)
        reports = list(train(toy.fresh(), toy.Data(), toy.loss, plan, tmp_path, lambda _: {"loss": next(values)}))
    assert reports[-1].step == 16


def test_with_fewer_steps_in_an_epoch_it_goes_on_with_the_next(tmp_path):
    class Few(toy.Data):
        def steps(self, epoch: int) -> int:
            return 2 if epoch < 1 else 1

    run(tmp_path, 2)  # the third step of the first epoch would be next
    state = progress(tmp_path)
    assert (state["epoch"], state["index"]) == (0, 2)
    list(train(toy.fresh(), Few(), toy.loss, toy.plan(4), tmp_path, toy.validate))
    assert (progress(tmp_path)["epoch"], progress(tmp_path)["index"]) == (3, 0)


# --- a run in its folder ---


def test_while_a_finished_run_is_extended_its_finished_weights_are_not_taken_for_it(tmp_path):
    list(fit(tmp_path, schedule="constant").steps())
    steps = fit(tmp_path, schedule="constant", steps=11).steps()
    next(steps)
    assert not (tmp_path / "model.safetensors").exists()
    steps.close()
    list(fit(tmp_path, schedule="constant", steps=11).steps())
    list(fit(tmp_path / "straight", schedule="constant", steps=11).steps())
    ours, theirs = weights(tmp_path), weights(tmp_path / "straight")
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_a_run_cannot_be_made_shorter_than_it_is(tmp_path):
    list(fit(tmp_path).steps())
    before = (tmp_path / "settings.toml").read_text()
    with pytest.raises(ValueError, match=r"has taken 7 steps already, more than 5; ask for at least as many, or use"):
        next(fit(tmp_path, steps=5).steps())
    assert (tmp_path / "settings.toml").read_text() == before


def test_a_run_is_finished_where_it_stands(tmp_path):
    for report in (steps := fit(tmp_path, steps=400).steps()):
        if report.step == 4:
            steps.close()
    assert list(fit(tmp_path, steps=4).steps()) == []
    best = progress(tmp_path)["best_step"]
    ours, theirs = weights(tmp_path), weights(tmp_path / f"checkpoints/{best:08d}")
    assert best == 3
    assert all(ours[name].equal(theirs[name]) for name in theirs)


# --- numbers ---


@pytest.mark.parametrize("steps", range(1, 10))
def test_a_run_too_short_to_skip_ten_steps_does_not_end_with_what_is_no_number(tmp_path, steps):
    def broken(model, x):
        summed, count = toy.loss(model, x)
        return summed * float("inf"), count

    plan = TrainConfig(ConstantSchedule(1e30), steps, checkpoint_every=2)
    with pytest.raises(
        Exception, match=r"step \d: no validation is a number; lower the learning rate \(it was 1e\+30\)"
    ):
        list(train(toy.fresh(), toy.Data(), broken, plan, tmp_path, lambda _: {"loss": float("nan"), "accuracy": 0.5}))


def test_weights_that_are_no_numbers_are_never_kept(tmp_path):
    model = toy.fresh()
    steps = train(model, toy.Data(), toy.loss, toy.plan(9), tmp_path)
    assert [next(steps).step, next(steps).step] == [1, 2]
    model.inner.weight.data[3, 2] = float("nan")
    with pytest.raises(Exception, match=r"not a number|not every weight is a number"):
        list(steps)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["00000002"]
