"""Exact resume: killed at any moment and started again, a run ends with the same bytes as one that never was."""

import json
import random
import resource
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.training import ConstantSchedule, TrainConfig, checkpoint, checkpoints, loop, train
from regard.training.checkpoint import prune_checkpoints, read_valid_state
from tests.training import toy
from tests.training.killed_runs import LONG, MOMENTS, OVERFLOWING, RUNS, SHORT, Soon, fit, live, lives

FIRST = next(iter(SHORT))


def files(folder: Path) -> dict[str, bytes]:
    """All that a run leaves behind, but for the file that was locked and the log, which knows the time."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "log.jsonl")
    }


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, optimiser, progress and figures of every checkpoint that is left, and the mean in the end."""
    ours, theirs = files(one), files(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def newest(folder: Path) -> Path:
    return checkpoints(folder / "checkpoints")[-1]


def progress(folder: Path) -> dict:
    return json.loads((newest(folder) / "state.json").read_text())["progress"]


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:99])


@pytest.fixture(scope="module", params=[*SHORT, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def straight(request, tmp_path_factory) -> tuple[str, Path]:
    """A run from the beginning to the end."""
    folder = tmp_path_factory.mktemp("straight")
    assert live(request.param, folder).exitcode == 0
    return request.param, folder


def test_the_runs_have_something_to_get_wrong(straight):
    name, folder = straight
    state, train = progress(folder), RUNS[name].train
    assert len(state["history"]) >= (16 if name in LONG else 7)
    assert state["epoch"] >= (5 if name in LONG else 2)
    assert (state["step"] < train.steps) == bool(train.patience)
    assert state["worse"] == train.patience or not train.patience
    assert (0 < state["scaler"].get("scale", 0) < OVERFLOWING) == (train.precision == "float16")


# --- kill -9 ---


@pytest.mark.parametrize("runs", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_ten_times_it_ends_with_the_same_bytes(straight, tmp_path, runs):
    """In the short form the moments are shared out among the runs."""
    (name, folder), chance = straight, random.Random(0)
    last = progress(folder)["step"]
    moments = chance.sample([*MOMENTS, None, None, None], len(MOMENTS) + 3)[list(RUNS).index(name) % runs :: runs]
    lived = []
    for number, moment in enumerate(moments):
        lived.append(live(name, tmp_path, moment or soon(tmp_path, chance)))
        if number in ((4, 7) if runs == 1 else (len(moments) - 1,)):  # and the disk forgets some of it
            tear(newest(tmp_path) / ("model.safetensors" if number == 4 else "state.json"))
    lived.append(live(name, tmp_path, Soon(last - 5, seconds=0)))
    assert [life.killed for life in lived] == [True] * (len(moments) + 1)
    assert all(life.steps and life.steps[-1] < last for life in lived)
    assert live(name, tmp_path).exitcode == 0
    assert_same_run(folder, tmp_path)


def soon(folder: Path, chance: random.Random) -> Soon:
    done = max((int(path.name) for path in checkpoints(folder / "checkpoints")), default=0)
    return Soon(done + chance.randint(1, 7), chance.uniform(0, 0.03))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_happens_at_the_moment_it_names(tmp_path, moment):
    """What lies in the folder after each of these deaths, so that they are what the proof takes them for."""
    assert live(FIRST, tmp_path, moment).killed
    saved = tmp_path / "checkpoints"
    drafts = {path.name: sorted(part.name for part in path.iterdir()) for path in saved.glob(".*-*")}
    model, optimiser, state = "model.safetensors", "optimiser.safetensors", "state.json"
    assert (
        drafts
        == {
            "in the file of the weights": {".draft-00000004": [model]},
            "after the file of the weights": {".draft-00000004": [model]},
            "after the file of the optimiser": {".draft-00000004": [model, optimiser]},
            "before the rename": {".draft-00000004": [model, optimiser, state]},
            "after the rename": {},
            "in deleting": {".gone-00000002": [optimiser, state]},
        }[moment]
    )
    assert all(read_valid_state(path) for path in checkpoints(saved))
    last = {"after the rename": 4, "in deleting": 8}.get(moment, 2)
    assert newest(tmp_path).name == f"{last:08d}"


# --- leaving by the door ---


class Rude:
    """Ctrl-C in the n-th call of a function."""

    def __init__(self, function, call: int):
        self.function, self.before = function, iter(range(1, call))

    def __call__(self, *args, **more):
        if next(self.before, None) is None:
            raise KeyboardInterrupt
        return self.function(*args, **more)


def toy_run(folder: Path, until: int = 19) -> None:
    """Nineteen steps, or fewer if someone leaves."""
    steps = train(toy.fresh(), toy.Data(), toy.loss, toy.plan(19, keep=3), folder, toy.validate)
    for report in steps:
        if report.step == until:
            steps.close()


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (loop, "one_step"),
        (loop, "record_validation"),
        (checkpoint, "write_checkpoint"),
        (loop, "prune_checkpoints"),
    ],
)
def test_ctrl_c_anywhere_leaves_no_trace_in_the_end(tmp_path, monkeypatch, module, where):
    toy_run(tmp_path / "straight")
    for call in (3, 1, 2):
        monkeypatch.setattr(module, where, Rude(getattr(module, where), call))
        with pytest.raises(KeyboardInterrupt):
            toy_run(tmp_path / "left")
        monkeypatch.undo()
    toy_run(tmp_path / "left", 17)
    toy_run(tmp_path / "left")
    assert_same_run(tmp_path / "straight", tmp_path / "left")


def test_killed_before_it_tidied_up_for_the_last_time(tmp_path, monkeypatch):
    toy_run(tmp_path / "straight")
    toy_run(tmp_path / "killed", 17)
    monkeypatch.setattr(loop, "prune_checkpoints", Rude(prune_checkpoints, 2))  # at 18, then at 19
    with pytest.raises(KeyboardInterrupt):
        toy_run(tmp_path / "killed")
    monkeypatch.undo()
    assert newest(tmp_path / "killed").name == "00000019"
    toy_run(tmp_path / "killed")
    assert_same_run(tmp_path / "straight", tmp_path / "killed")


def test_where_someone_left_stays_until_a_later_checkpoint_is_there(tmp_path):
    def steps():
        return train(
            toy.fresh(), toy.Data(), toy.loss, TrainConfig(ConstantSchedule(0.01), 19, checkpoint_every=7), tmp_path
        )

    seen = []
    for reports in (3, 1, 3):
        run = steps()
        for _ in range(reports):
            next(run)
        seen.append([int(path.name) for path in checkpoints(tmp_path / "checkpoints")])
        run.close()
    assert seen == [[], [3], [7]]


def test_patience_is_counted_across_a_restart(tmp_path):
    values = iter([3.0, 2.0, 2.5, 2.5, 1.0])
    reports = []
    for until in (13, 40):
        steps = train(
            toy.fresh(), toy.Data(), toy.loss, toy.plan(40, patience=2), tmp_path, lambda _: {"loss": next(values)}
        )
        for report in steps:
            reports.append(report.step)
            if report.step == until:
                steps.close()
    assert reports == list(range(1, 17))


def test_a_run_that_is_complete_stays_as_it_is(tmp_path):
    first = toy.run(tmp_path, 8)
    before = files(tmp_path)
    again = toy.fresh()
    assert list(train(again, toy.Data(), toy.loss, toy.plan(8), tmp_path, toy.validate)) == []
    assert files(tmp_path) == before
    assert all(torch.equal(x, y) for x, y in zip(first.parameters(), again.parameters(), strict=True))


# --- what else may lie in the folder ---


def test_torn_checkpoints_never_take_the_place_of_whole_ones(tmp_path):
    toy.run(tmp_path, 12)
    for path in checkpoints(tmp_path / "checkpoints")[-2:]:
        tear(path / "model.safetensors")
    steps = train(toy.fresh(), toy.Data(), toy.loss, toy.plan(12, keep=1), tmp_path)
    assert [next(steps).step, next(steps).step] == [9, 10]
    left = checkpoints(tmp_path / "checkpoints")
    assert left[-1].name == "00000010"
    assert all(read_valid_state(path) for path in left)


@pytest.mark.parametrize("torn", [1, 2])
def test_if_nothing_is_whole_only_a_single_checkpoint_is_thrown_away(tmp_path, torn):
    toy.run(tmp_path, 2 * torn)
    for path in checkpoints(tmp_path / "checkpoints"):
        tear(path / "state.json")
    before, steps = files(tmp_path), train(toy.fresh(), toy.Data(), toy.loss, toy.plan(9), tmp_path)
    if torn == 1:
        assert next(steps).step == 1
        assert not checkpoints(tmp_path / "checkpoints")
    else:
        with pytest.raises(ValueError, match=r"all 2 checkpoints in .* are damaged; to start again, move"):
            next(steps)
        assert files(tmp_path) == before


def test_what_is_no_checkpoint_is_left_alone(tmp_path):
    (tmp_path / "checkpoints/2-copied-by-hand").mkdir(parents=True)
    (tmp_path / "checkpoints/00000003").write_text("a file")
    toy.run(tmp_path, 8, keep=1)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} >= {"2-copied-by-hand", "00000003", "00000008"}


def test_a_disk_that_is_really_full_loses_nothing(tmp_path):
    toy.run(tmp_path, 4)
    before, (soft, hard) = files(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # what the system refuses, as it does on a full disk
    try:
        with pytest.raises(ValueError, match=r"File too large.*earlier ones are untouched"):
            toy.run(tmp_path, 8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == before


def test_two_cannot_train_in_one_folder(tmp_path):
    with lives(FIRST, tmp_path) as process:
        with pytest.raises(ValueError, match=f"process {process.pid} is training in .* already; wait until"):
            next(fit(FIRST, tmp_path).steps())
        process.kill()
        process.join()
    steps = fit(FIRST, tmp_path).steps()
    next(steps)
    with pytest.raises(ValueError, match="this process itself is training in"):
        next(fit(FIRST, tmp_path).steps())
    steps.close()
    assert next(fit(FIRST, tmp_path).steps()).step > 1


# --- the same bits from the same numbers ---


class Table(nn.Module):
    """A table read by so many cells at once, as relative positions are, that several threads add up its gradient."""

    def __init__(self):
        super().__init__()
        self.values, self.cells = nn.Parameter(torch.zeros(7, 5)), torch.arange(70_001) % 7

    def forward(self, x):
        return self.values[self.cells] * x[:, None]


def norms(folder: Path, *, exact: bool) -> list[float]:
    def summed(model, x):
        wide = torch.randn(70_001, generator=torch.Generator().manual_seed(1)).exp()
        return model(wide).sum(), len(x)

    torch.set_num_threads(4)
    return [
        each.norm
        for each in train(
            Table(), toy.Data(), summed, TrainConfig(ConstantSchedule(1.0), 20, deterministic=exact), folder
        )
    ]


def test_several_threads_give_the_same_bits(tmp_path):
    first, *others = [norms(tmp_path / str(number), exact=True) for number in range(4)]
    assert others == [first] * 3


def test_torch_is_left_as_it_was_found(tmp_path):
    for reports in train(toy.fresh(), toy.Data(), toy.loss, toy.plan(3), tmp_path):
        assert reports
        assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ValueError, match=r"conjuring has no algorithm that gives the same bits.*deterministic = false"):
        list(train(toy.fresh(), toy.Data(), conjuring, toy.plan(5), tmp_path))
    assert not torch.are_deterministic_algorithms_enabled()


def conjuring(model, x):
    """As torch refuses what it cannot do in a fixed order."""
    assert torch.are_deterministic_algorithms_enabled()
    raise RuntimeError("conjuring does not have a deterministic implementation, but you set 'torch.use_…")


def test_steps_skipped_in_a_row_are_counted_across_a_restart(tmp_path):
    def broken(model, x):
        summed, count = toy.loss(model, x)
        return summed * torch.nan, count

    steps = train(toy.fresh(), toy.Data(), broken, toy.plan(50), tmp_path)
    assert [next(steps).step for _ in range(7)] == list(range(1, 8))
    steps.close()
    with pytest.raises(loop.DivergedError, match=r"step 10: .* 10 times in a row"):
        list(train(toy.fresh(), toy.Data(), broken, toy.plan(50), tmp_path))


def test_a_validation_that_is_no_number_is_never_the_best(tmp_path):
    values = iter([float("nan"), 3.0, float("nan"), 4.0])
    list(train(toy.fresh(), toy.Data(), toy.loss, toy.plan(16), tmp_path, lambda _: {"loss": next(values)}))
    assert (progress(tmp_path)["best"], progress(tmp_path)["best_step"], progress(tmp_path)["worse"]) == (3.0, 8, 2)


def test_an_early_best_is_kept_to_the_end(tmp_path):
    values = iter([3.0, 1.0, *[2.0] * 8])
    list(train(toy.fresh(), toy.Data(), toy.loss, toy.plan(40, keep=2), tmp_path, lambda _: {"loss": next(values)}))
    assert [int(path.name) for path in checkpoints(tmp_path / "checkpoints")] == [8, 38, 40]
