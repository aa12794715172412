"""Experiment tracking: a run's settings and figures in TensorBoard, Weights & Biases or MLflow, by their own libraries.

Where the figures go is for each library to say, by its own environment variables: WANDB_PROJECT, WANDB_MODE=offline,
MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME. TensorBoard reads the folder tensorboard/ of the run.

A resumed run is the same tracked run: tracking.json in its folder holds the id that the library knows it by.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self
from uuid import uuid4

from regard.data.files import require_small_file, write_text_atomic

RUN_IDS = "tracking.json"
MAX_PARAM_LETTERS = 500  # of a setting in MLflow

TrackedStep = tuple[int, Mapping[str, float]]  # a step's number, and its figures by name


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is started with.

    Args:
        folder: of the run; its name is that of the tracked run.
        settings: by table and key, such as train.steps.
        last_step: the last step that was tracked before; 0 for a new run.
    """

    folder: Path
    settings: Mapping[str, Any]
    last_step: int = 0

    def read_id(self, library: str) -> str | None:
        """The id of the tracked run that this one continues."""
        return read_run_ids(self.folder).get(library) if self.last_step else None

    def save_id(self, library: str, run_id: str) -> None:
        """Keep the id for the time when the run is resumed."""
        ids = read_run_ids(self.folder) | {library: run_id}
        write_text_atomic(self.folder / RUN_IDS, json.dumps(ids) + "\n")


def read_run_ids(folder: Path) -> dict[str, str]:
    path = folder / RUN_IDS
    if not path.exists():
        return {}
    try:
        ids = json.loads(require_small_file(path).read_text(encoding="utf-8"))
    except ValueError:
        ids = None
    if not isinstance(ids, dict) or not all(isinstance(one, str) for one in ids.values()):
        raise ValueError(f"{path}: does not hold the ids of tracked runs; delete it to begin a new tracked run")
    return ids


class Tracker(Protocol):
    """Shows the figures of a run while it is trained."""

    @classmethod
    def start(cls, run: TrackedRun) -> Self:
        """A new tracked run with its settings, or the one that is continued."""
        ...

    def log(self, steps: Sequence[TrackedStep]) -> None:
        """The figures of some steps, in rising order, none of which was logged before."""
        ...

    def finish(self, *, completed: bool) -> None:
        """The end of training, or of this part of it."""
        ...


@dataclass(frozen=True, eq=False)
class TensorBoardTracker:
    """Event files in the folder tensorboard/ of the run."""

    writer: Any

    @classmethod
    def start(cls, run: TrackedRun) -> Self:
        from torch.utils.tensorboard import SummaryWriter

        # a process that was killed may have written steps of which the log knows nothing
        writer = SummaryWriter(run.folder / "tensorboard", purge_step=run.last_step + 1)
        writer.add_text("settings", "\n".join(f"    {name} = {value!r}" for name, value in run.settings.items()))
        return cls(writer)

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step, figures in steps:
            for name, value in figures.items():
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, *, completed: bool) -> None:
        self.writer.close()


@dataclass(frozen=True, eq=False)
class WandbTracker:
    """A run of Weights & Biases; its local files are in the folder wandb/ of the run."""

    run: Any

    @classmethod
    def start(cls, run: TrackedRun) -> Self:
        import wandb  # type: ignore[import-not-found]

        run_id = run.read_id("wandb") or uuid4().hex[:8]
        run.save_id("wandb", run_id)
        return cls(
            wandb.init(
                id=run_id,
                resume="allow",
                name=run.folder.absolute().name,
                dir=str(run.folder),
                config=dict(run.settings),
                allow_val_change=True,  # a run may be resumed with more steps
            )
        )

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step, figures in steps:
            self.run.log(dict(figures), step=step)

    def finish(self, *, completed: bool) -> None:
        self.run.finish(exit_code=0 if completed else 130)


@dataclass(frozen=True, eq=False)
class MLflowTracker:
    """A run of MLflow; its settings are those it was started with, since MLflow lets none change."""

    run_id: str

    @classmethod
    def start(cls, run: TrackedRun) -> Self:
        import mlflow  # type: ignore[import-not-found]

        known = run.read_id("mlflow")
        run_id = mlflow.start_run(run_id=known, run_name=None if known else run.folder.absolute().name).info.run_id
        if known is None:
            run.save_id("mlflow", run_id)
            mlflow.log_params({name: str(value)[:MAX_PARAM_LETTERS] for name, value in run.settings.items()})
        return cls(run_id)

    def log(self, steps: Sequence[TrackedStep]) -> None:
        from mlflow.entities import Metric  # type: ignore[import-not-found]
        from mlflow.tracking import MlflowClient  # type: ignore[import-not-found]

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for step, figures in steps for name, value in figures.items()]
        MlflowClient().log_batch(self.run_id, metrics=metrics)

    def finish(self, *, completed: bool) -> None:
        import mlflow  # type: ignore[import-not-found]

        mlflow.end_run("FINISHED" if completed else "KILLED")


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MLflowTracker,
}


def require_tracker(name: str) -> None:
    """Refuses a tracker that does not exist, or whose library is not installed."""
    if name not in TRACKERS:
        raise ValueError(f"no tracker is called {name!r}; choose from {', '.join(TRACKERS)}")
    if find_spec(name) is None:
        raise ValueError(f"tracking by {name} needs a package that is missing; pip install 'regard[{name}]'")


def start_tracker(name: str, run: TrackedRun) -> Tracker:
    """A tracker by name; what its library objects to becomes one line."""
    require_tracker(name)
    try:
        return TRACKERS[name].start(run)
    except Exception as error:  # each library has exceptions of its own
        lines = str(error).strip().splitlines() or [type(error).__name__]
        kept = f", or delete {run.folder / RUN_IDS} to begin a new tracked run" if run.read_id(name) else ""
        raise ValueError(f"{name} does not start: {lines[0].rstrip('.')}; mend that, or leave it out{kept}") from error
