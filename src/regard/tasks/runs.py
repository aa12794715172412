"""Runs: the folders below a folder, each with its settings, size, progress and best validation, without its model.

Nothing of a run is executed: parts of a user's own are not needed to read what it has reached.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard.models.safetensors_io import shapes_in
from regard.tasks.config import read_tables, read_task_name
from regard.tasks.pretrained import settings_path
from regard.tasks.registry import get_task
from regard.training.checkpoint import CHECKPOINTS, SETTINGS, WEIGHTS, checkpoints, read_state, resolve_run
from regard.training.run import LOG_FILE, read_log


@dataclass(frozen=True)
class BestValidation:
    """The validation by which the best checkpoint is chosen: the metric, its value and the step."""

    metric: str
    value: float
    step: int

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.3f} (step {self.step:,})"


@dataclass(frozen=True)
class RunSummary:
    """What a run has reached.

    Args:
        model: its kind.
        settings: by table and key, such as train.steps.
        parameters: weights of the model, buffers included; None before the first checkpoint.
        step: of the newest checkpoint.
        steps: how many it shall take.
        finished: whether it has its final weights.
        validations: the figures of each, with its step.
        updated: when it was last trained.
    """

    folder: Path
    task: str
    model: str
    settings: Mapping[str, Any] = field(repr=False)
    parameters: int | None
    step: int
    steps: int
    finished: bool
    best_metric: str
    validations: tuple[Mapping[str, float], ...] = field(repr=False)
    updated: datetime

    @property
    def best(self) -> BestValidation | None:
        """The least loss, or the most of another metric; None before the first validation."""
        points = self.curve(self.best_metric)
        if not points:
            return None
        choose = min if self.best_metric == "loss" else max
        step, value = choose(points, key=lambda point: point[1])
        return BestValidation(self.best_metric, value, step)

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) of every validation that has found a number."""
        found = [(int(one["step"]), one.get(metric)) for one in self.validations]
        return [(step, value) for step, value in found if isinstance(value, int | float) and math.isfinite(value)]

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.folder),
            "task": self.task,
            "model": self.model,
            "parameters": self.parameters,
            "step": self.step,
            "steps": self.steps,
            "finished": self.finished,
            "best": vars(self.best) if self.best else None,
            "updated": self.updated.isoformat(timespec="seconds"),
        }


@dataclass(frozen=True)
class DamagedRun:
    """A run that cannot be read, and why."""

    folder: Path
    error: str

    def to_json(self) -> dict[str, Any]:
        return {"run": str(self.folder), "error": self.error}


def find_runs(folder: Path) -> list[RunSummary | DamagedRun]:
    """Every run in a folder and below it, in the order of their paths."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name one that holds runs")
    return [summarize_or_explain(path) for path in sorted(iterate_run_folders(folder))]


def iterate_run_folders(folder: Path) -> Iterator[Path]:
    """Those with settings beside a log, checkpoints or weights; and with a log but no settings, which are lost."""
    for path in {found.parent for name in (SETTINGS, LOG_FILE) for found in folder.rglob(name)}:
        if any((path / name).exists() for name in (LOG_FILE, CHECKPOINTS, WEIGHTS)):
            yield path


def summarize_or_explain(folder: Path) -> RunSummary | DamagedRun:
    try:
        return summarize_run(folder)
    except (ValueError, OSError) as error:
        return DamagedRun(folder, str(error))


def summarize_run(folder: Path) -> RunSummary:
    """What a run, or the run of a checkpoint, has reached; one that is damaged is refused."""
    folder, _ = resolve_run(folder)
    path = settings_path(folder)
    saved = checkpoints(folder / CHECKPOINTS)
    newest = next(((one, state) for one in reversed(saved) if (state := read_state(one))), None)
    if saved and newest is None:
        raise ValueError(f"{folder / CHECKPOINTS}: no checkpoint is whole; restore one, or train again")
    log = read_log(folder)
    finished = (folder / WEIGHTS).exists()
    weights = folder / WEIGHTS if finished else newest and newest[0] / WEIGHTS
    logged = {line["step"]: {"step": line["step"], **line["validation"]} for line in log if "validation" in line}
    validations = newest[1]["progress"].get("history", ()) if newest else [logged[step] for step in sorted(logged)]
    settings = read_flat_settings(path)
    if not isinstance(steps := settings.get("train.steps"), int):
        raise ValueError(f"{path}: train.steps = {steps!r} should be a whole number")
    return RunSummary(
        folder,
        read_task_name(path),
        str(settings.get("model.kind")),
        settings,
        sum(math.prod(shape) for shape in shapes_in(weights).values()) if weights else None,
        int(newest[0].name) if newest else log[-1]["step"] if log and finished else 0,
        steps,
        finished,
        str(settings.get("train.best_metric")),
        tuple(validations),
        last_time(log) or datetime.fromtimestamp(path.stat().st_mtime, UTC),
    )


def last_time(log: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When the last line of a log was written, if it says so."""
    try:
        return datetime.fromisoformat(log[-1]["time"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def read_flat_settings(path: Path) -> dict[str, Any]:
    """By table and key; those of a run with parts of a user's own as they stand, since nothing of theirs is run."""
    tables = read_tables(path)
    task = get_task(read_task_name(path))
    if "parts" not in tables:
        return task.settings.load(path).to_flat_dict()
    usual = task.settings().to_flat_dict()
    return usual | {
        f"{table}.{key}": value
        for table, lines in tables.items()
        if isinstance(lines, dict)
        for key, value in lines.items()
    }
