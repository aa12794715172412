"""Tracking: settings and figures in TensorBoard, Weights & Biases and MLflow; each step once, also of a resumed run."""

import json
import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from regard.training.run import TrainingLog, last_logged_step, read_log
from regard.training.tracking import TRACKERS, TrackedRun, WandbTracker, require_tracker, start_tracker
from tests.cli.commands import LITTLE, assert_done, assert_refused, regard
from tests.cli.conftest import corpus  # noqa: F401  (a fixture)

from .test_run import fit

SETTINGS = {"train.steps": 7, "model.kind": "transformer"}


class FakeWandb(ModuleType):
    """Runs by their ids: config, and what was logged at which step."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.runs: dict[str, SimpleNamespace] = {}
        self.exit_codes: list[int] = []

    def init(self, *, id, resume, name, dir, config, allow_val_change):
        assert resume == "allow"
        assert allow_val_change
        assert Path(dir).is_dir()
        run = self.runs.setdefault(id, SimpleNamespace(name=name, config={}, steps=[]))
        run.config |= config
        run.log = lambda figures, step: run.steps.append((step, figures))
        run.finish = lambda exit_code: self.exit_codes.append(exit_code)
        return run


class FakeMLflow(ModuleType):
    """Runs by their ids; params that change are refused, as MLflow does."""

    def __init__(self):
        super().__init__("mlflow")
        self.__spec__ = ModuleSpec("mlflow", None)
        self.runs: dict[str, SimpleNamespace] = {}
        self.active = ""
        self.ends: list[str] = []

    def start_run(self, run_id=None, run_name=None):
        if run_id is not None and run_id not in self.runs:
            raise RuntimeError(f"Run '{run_id}' not found.\nSecond line")
        self.active = run_id or f"run{len(self.runs)}"
        self.runs.setdefault(self.active, SimpleNamespace(name=run_name, params={}, steps=[]))
        return SimpleNamespace(info=SimpleNamespace(run_id=self.active))

    def log_params(self, params):
        assert not self.runs[self.active].params
        self.runs[self.active].params = params

    def end_run(self, status):
        self.ends.append(status)


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def mlflow(monkeypatch) -> FakeMLflow:
    fake = FakeMLflow()

    class Client:
        def log_batch(self, run_id, *, metrics):
            for name, value, _, step in metrics:
                fake.runs[run_id].steps.append((step, {name: value}))

    entities, tracking = ModuleType("mlflow.entities"), ModuleType("mlflow.tracking")
    entities.Metric = lambda *four: four  # type: ignore[attr-defined]
    tracking.MlflowClient = Client  # type: ignore[attr-defined]
    for name, module in {"mlflow": fake, "mlflow.entities": entities, "mlflow.tracking": tracking}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake


def tracked_fit(folder: Path, name: str, **train):
    run = fit(folder, **train)
    return type(run)(run.job, folder, None, start_tracker(name, TrackedRun(folder, SETTINGS, last_logged_step(folder))))


def steps_of(run: SimpleNamespace, figure: str) -> list[int]:
    return [step for step, figures in run.steps if figure in figures]


def train_left_and_resumed(folder: Path, name: str) -> None:
    """Left after step 5, whose checkpoint is lost, so that step 5 comes again."""
    folder.mkdir()
    for report in (steps := tracked_fit(folder, name).steps()):
        if report.step == 5:
            steps.close()
    shutil.rmtree(folder / "checkpoints/00000005")
    assert [report.step for report in tracked_fit(folder, name).steps()] == [5, 6, 7]


def test_wandb_continues_the_same_run_and_gets_each_step_once(wandb, tmp_path):
    train_left_and_resumed(tmp_path / "run", "wandb")
    ((run_id, run),) = wandb.runs.items()
    assert json.loads((tmp_path / "run/tracking.json").read_text()) == {"wandb": run_id}
    assert (run.name, run.config) == ("run", SETTINGS)
    assert steps_of(run, "train/loss") == [1, 2, 3, 4, 5, 6, 7]
    assert steps_of(run, "valid/loss") == [3, 6, 7]
    assert {"train/learning_rate", "train/gradient_norm"} <= run.steps[0][1].keys()
    assert "train/tokens_per_second" in run.steps[0][1]
    assert wandb.exit_codes == [130, 0]


def test_mlflow_continues_the_same_run_and_gets_each_step_once(mlflow, tmp_path):
    train_left_and_resumed(tmp_path / "run", "mlflow")
    (run,) = mlflow.runs.values()
    assert (run.name, run.params) == ("run", {"train.steps": "7", "model.kind": "transformer"})
    assert steps_of(run, "train/loss") == [1, 2, 3, 4, 5, 6, 7]
    assert steps_of(run, "valid/loss") == [3, 6, 7]
    assert mlflow.ends == ["KILLED", "FINISHED"]


def test_a_tracked_run_that_is_gone_is_one_line(mlflow, tmp_path):
    (tmp_path / "tracking.json").write_text('{"mlflow": "lost"}')
    with pytest.raises(
        ValueError, match=r"^mlflow does not start: Run 'lost' not found; mend that, .*or delete .*tracking"
    ):
        start_tracker("mlflow", TrackedRun(tmp_path, SETTINGS, last_step=3))
    (tmp_path / "tracking.json").write_text("[]")
    with pytest.raises(ValueError, match=r"tracking\.json: does not hold the ids of tracked runs; delete it"):
        start_tracker("mlflow", TrackedRun(tmp_path, SETTINGS, last_step=3))


def test_a_tracker_that_fails_does_not_stop_the_run(wandb, tmp_path, caplog):
    run = tracked_fit(tmp_path, "wandb")

    def fail(figures, step):
        raise ConnectionError("no route to host")

    assert isinstance(run.tracker, WandbTracker)
    run.tracker.run.log = fail
    assert len(list(run.steps())) == 7
    (record,) = caplog.records
    assert record.getMessage() == "WandbTracker fails, and gets no further figures of this run: no route to host"
    assert wandb.exit_codes == []


# --- the log, which knows what was tracked ---


def test_a_torn_last_line_is_left_out_and_any_other_is_named(tmp_path):
    assert read_log(tmp_path) == []
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "loss": 2.5}\n{"step": 3, "lo')
    assert read_log(tmp_path) == [{"step": 1, "loss": 2.5}]
    assert last_logged_step(tmp_path) == 1
    log.write_text('{"step": 1}\n{"step": "2"}\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl:2: not a line of a training log; delete that line"):
        read_log(tmp_path)


def test_a_run_that_is_left_ends_its_log_where_it_was_left(tmp_path):
    for report in (steps := fit(tmp_path, validate_every=100, checkpoint_every=100).steps()):
        if report.step == 5:
            steps.close()
    assert [line["step"] for line in read_log(tmp_path)] == [1, 5]


def test_an_error_of_a_step_is_not_hidden_by_the_log(tmp_path):
    with pytest.raises(RuntimeError, match="of a step"), TrainingLog.open(tmp_path, None):
        raise RuntimeError("of a step")


# --- by the command ---


def test_tensorboard_shows_every_step_once_even_if_it_was_taken_twice(corpus, tmp_path):  # noqa: F811
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    words = ["train", "--train", corpus(), *LITTLE, "--steps", 4, "--set", "train.validate_every=2"]
    assert_done(regard(*words, "--track", "tensorboard", "--out", tmp_path / "run"))
    shutil.rmtree(tmp_path / "run/checkpoints/00000004")
    assert "resuming from step 2" in regard(*words, "--tensorboard", "--out", tmp_path / "run").stderr
    drawn = event_accumulator.EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    assert [point.step for point in drawn.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [point.step for point in drawn.Scalars("valid/loss")] == [2, 4]
    assert {"train/learning_rate", "train/gradient_norm"} <= set(drawn.Tags()["scalars"])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_library_that_is_missing_is_named_before_anything_is_done(name, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.training.tracking.find_spec", lambda _: None)
    answer = regard("train", "--track", name, "--out", tmp_path / "run")
    assert_refused(answer, f"tracking by {name} needs a package that is missing; pip install 'regard[{name}]'")
    assert not (tmp_path / "run").exists()


def test_another_tracker_is_refused():
    with pytest.raises(ValueError, match="no tracker is called 'excel'; choose from tensorboard, wandb, mlflow"):
        require_tracker("excel")
