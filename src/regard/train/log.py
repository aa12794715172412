"""The log of a run: log.jsonl, a line for every few seconds of training, every validation and every change of settings.

{"step": 300, "loss": 2.31, "rate": 0.001, "tokens_per_second": 5210.3, "time": "2026-01-31T12:00:05+00:00"}
{"step": 400, "loss": 2.25, …, "validation": {"loss": 2.4}}
{"step": 400, "changed": {"train.steps": [1000, 2000]}, "time": …}

A run that was killed goes on from its newest checkpoint, so steps behind it come again: the later line holds.
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

from regard.train.figures import Report

FILE = "log.jsonl"
EVERY = 5.0  # seconds


def write_line(folder: Path, step: int, **what: Any) -> None:
    """Behind the others. No run ends because its log cannot be written: of a full disk its checkpoints tell."""
    line = json.dumps({"step": step, **what, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    with suppress(OSError), (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@dataclass
class Log:
    """Of the steps as they are taken. On a GPU figures are written when they have arrived, for to ask makes it wait."""

    folder: Path
    late: deque[Report] = field(default_factory=deque)
    tokens: int = 0
    since: float = field(default_factory=time.perf_counter)

    def add(self, report: Report) -> None:
        self.late.append(report)
        while self.late and (self.late[0].validation or self.late[0].sent.arrived):
            self.arrived(self.late.popleft())

    def arrived(self, report: Report) -> None:
        self.tokens += report.tokens
        took = time.perf_counter() - self.since
        if took < EVERY and not report.validation:
            return
        what: dict[str, Any] = {"loss": number(report.loss), "rate": report.rate}
        what["tokens_per_second"] = round(self.tokens / max(took, 1e-9), 1)
        if report.validation:
            what["validation"] = numbers(report.validation)
        write_line(self.folder, report.step, **what)
        self.tokens, self.since = 0, time.perf_counter()


def number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if value - value == 0 else None


def numbers(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: number(value) for name, value in figures.items()}
