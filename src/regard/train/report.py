"""Reports of training steps: figures copied from the device without waiting, and the log of a run, log.jsonl.

A GPU runs kernels long after the host launched them. To read one number is to wait for all of them, and meanwhile
nothing new is launched; so a step starts an asynchronous copy of its few figures, which are read when it is done.

The log has a line for every few seconds of training, every validation and every change of settings:

{"step": 300, "loss": 2.31, "rate": 0.001, "tokens_per_second": 5210.3, "time": "2026-01-31T12:00:05+00:00"}
{"step": 400, "loss": 2.25, …, "validation": {"loss": 2.4}}
{"step": 400, "changed": {"train.steps": [1000, 2000]}, "time": …}

A run that was killed resumes from its newest checkpoint, so later steps come again: the later line holds.
"""

import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AsyncScalars:
    """A few numbers that are copied asynchronously from the device to the host."""

    numbers: Tensor
    event: torch.cuda.Event | None = None

    @staticmethod
    def start_copy(numbers: Tensor) -> "AsyncScalars":
        if not numbers.is_cuda:
            return AsyncScalars(numbers)
        here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return AsyncScalars(here, event)

    @property
    def is_ready(self) -> bool:
        return self.event is None or self.event.query()

    def read(self) -> list[float]:
        """Waits for them, if need be."""
        if self.event is not None:
            self.event.synchronize()
        return self.numbers.tolist()


@dataclass(frozen=True)
class Report:
    """The figures of one step. Loss, norm and skips wait for the device when they are read."""

    step: int
    rate: float
    tokens: int
    scalars: AsyncScalars
    validation: dict[str, float] | None = None

    @property
    def loss(self) -> float:
        """The mean over the step's tokens."""
        return self.scalars.read()[0]

    @property
    def norm(self) -> float:
        """Of the gradient, before it was clipped."""
        return self.scalars.read()[1]

    @property
    def skips(self) -> int:
        """Steps in a row, up to this one, that were skipped because they were not finite."""
        return int(self.scalars.read()[2])

    @property
    def skipped(self) -> bool:
        return self.skips > 0


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
