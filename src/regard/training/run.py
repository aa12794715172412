"""Training run: trains a task's model in a folder, resumes if interrupted, and writes the final weights.

A run's folder holds what the task describes (settings.toml and the like) from the start, checkpoints/ and log.jsonl
while it runs, and in the end model.safetensors: the average of the last checkpoints, or the best of them.

The log has a line for every few seconds of training, every validation and every change of settings:

{"step": 300, "loss": 2.31, "rate": 0.001, "tokens_per_second": 5210.3, "time": "2026-01-31T12:00:05+00:00"}
{"step": 400, "loss": 2.25, …, "validation": {"loss": 2.4}}
{"step": 400, "changed": {"train.steps": [1000, 2000]}, "time": …}

A run that was killed resumes from its newest checkpoint, so later steps come again: the later line holds.
"""

import json
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from regard.models.safetensors_io import load_weights, write_weights
from regard.training.checkpoint import average
from regard.training.config import TrainConfig, TrainingJob, make_train_config
from regard.training.corpus import PackedCorpus
from regard.training.loop import train
from regard.training.run_folder import CHECKPOINTS, WEIGHTS, FolderLock, checkpoints, lock_folder, read_valid_state
from regard.training.step import Report


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A job and its folder; its lock, if the caller holds one already."""

    job: TrainingJob
    folder: Path
    lock: FolderLock | None = None

    def __post_init__(self):
        if self.job.train.packed and not isinstance(self.job.data, PackedCorpus):
            raise ValueError("train.packed = true: only sentence pairs can be packed; leave it out")
        if self.job.train.cuda_graph and self.job.capture_objection:
            raise ValueError(f"train.cuda_graph = true is not possible: {self.job.capture_objection}; leave it out")

    @property
    def config(self) -> TrainConfig:
        return make_train_config(self.job.train, self.job.width)

    @property
    def last_step(self) -> int:
        """The step of the newest checkpoint."""
        return max(
            (int(path.name) for path in checkpoints(self.folder / CHECKPOINTS) if read_valid_state(path)), default=0
        )

    def steps(self) -> Generator[Report]:
        """Train, a report for each step; leaving early saves. The finished model is written at the end."""
        job = self.job
        # around all of it, since a second process would overwrite the description
        with nullcontext() if self.lock else lock_folder(self.folder):
            check_steps(self.folder, self.config)
            note, log = job.describe(self.folder), TrainingLog(self.folder)
            with closing(train(job.model, job.data, job.loss, self.config, self.folder, job.validate)) as steps:
                for report in steps:
                    (self.folder / WEIGHTS).unlink(missing_ok=True)  # of an earlier end, if the run is extended
                    log.add(report)
                    yield report
            write_final_weights(job.model, job.train.average_checkpoints, self.folder, note)


def check_steps(folder: Path, config: TrainConfig) -> None:
    """A run cannot be made shorter than it is already."""
    steps = [int(path.name) for path in checkpoints(folder / CHECKPOINTS)]
    if steps and steps[-1] > config.steps:
        raise ValueError(
            f"{folder} has taken {steps[-1]:,} steps already, more than {config.steps:,}; ask for at least as many, or "
            f"use a checkpoint as it is: {', '.join(map(str, steps))}"
        )


def write_final_weights(model: nn.Module, count: int, folder: Path, note: str = "") -> None:
    """The average of the `count` newest checkpoints; for a count of 1, the best by validation."""
    paths = [path for path in checkpoints(folder / CHECKPOINTS) if read_valid_state(path)]
    best = json.loads((paths[-1] / "state.json").read_text())["progress"]["best_step"]
    chosen = paths[-count:] if count > 1 else [path for path in paths if int(path.name) == best] or paths[-1:]
    final = folder / WEIGHTS
    write_weights(average(chosen), final, note)
    load_weights(model, final)
    model.eval()


# --- the log ---


LOG_FILE = "log.jsonl"
LOG_INTERVAL = 5.0  # seconds


def write_line(folder: Path, step: int, **what: Any) -> None:
    """Append a line. A run does not fail because its log cannot be written: its checkpoints report a full disk."""
    line = json.dumps({"step": step, **what, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    with suppress(OSError), (folder / LOG_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@dataclass
class TrainingLog:
    """The log of a run's steps. On a GPU figures are written when they have arrived, without waiting for them."""

    folder: Path
    pending: deque[Report] = field(default_factory=deque)
    tokens: int = 0
    since: float = field(default_factory=time.perf_counter)

    def add(self, report: Report) -> None:
        self.pending.append(report)
        while self.pending and (self.pending[0].validation or self.pending[0].scalars.is_ready):
            self.write(self.pending.popleft())

    def write(self, report: Report) -> None:
        self.tokens += report.tokens
        took = time.perf_counter() - self.since
        if took < LOG_INTERVAL and not report.validation:
            return
        what: dict[str, Any] = {"loss": finite_or_none(report.loss), "rate": report.rate}
        what["tokens_per_second"] = round(self.tokens / max(took, 1e-9), 1)
        if report.validation:
            what["validation"] = finite_figures(report.validation)
        write_line(self.folder, report.step, **what)
        self.tokens, self.since = 0, time.perf_counter()


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return value if value - value == 0 else None


def finite_figures(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in figures.items()}
