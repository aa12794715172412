"""Build stages: records of what has ended, by which settings, in which time; a stage that ended is not run again."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard.data.files import write_text_atomic
from regard.training.run import describe_hardware


class BuildStoppedError(Exception):
    """The time is over, or somebody has asked to stop; the argument is the stage that goes on next time."""


Figures = Mapping[str, Any]


def ignore(stage: str, seconds: float | None) -> None:
    """The default: nobody is told of stages."""


@dataclass(frozen=True, eq=False)
class StageRecords:
    """The records of the stages in a folder.

    Args:
        stop: whether the time is over; asked before a stage begins.
        device: that of the stages, unless one says otherwise.
        report: is told which stage begins; and, with its seconds, which has ended.
    """

    folder: Path
    stop: Callable[[], bool]
    device: str
    report: Callable[[str, float | None], object] = ignore

    def run(
        self, name: str, settings: Mapping[str, Any], work: Callable[[], Figures | None], device: str = ""
    ) -> Figures:
        """The figures of a stage, which is run unless its record says that it ended; None from it asks to stop."""
        path, device = self.folder / f"{name}.json", device or self.device
        wanted = json.loads(json.dumps(dict(settings)))
        record = json.loads(path.read_bytes()) if path.exists() else {"settings": wanted, "seconds": 0.0}
        if changed := [
            key for key in {**wanted, **record["settings"]} if wanted.get(key) != record["settings"].get(key)
        ]:
            raise ValueError(
                f"{path}: this stage was made with other {' and '.join(changed)}; choose another --out, or remove "
                "what it made, and this"
            )
        if "figures" in record:
            return record["figures"]
        if self.stop():
            raise BuildStoppedError(name)
        self.report(f"{self.folder.parent.name}, {name}", None)
        hardware, kind = describe_hardware(), "cuda" if device.startswith("cuda") else "cpu"
        record |= {"kind": kind, "device": hardware["gpu"] if kind == "cuda" else hardware["cpu"]}
        write_json(path, record)  # its settings hold even if it is killed
        began, figures = time.perf_counter(), None
        try:
            figures = work()
        finally:
            record["seconds"] += time.perf_counter() - began
            ended = {"figures": dict(figures), "ended": datetime.now(UTC).isoformat()} if figures is not None else {}
            write_json(path, record | ended)
        if figures is None:
            raise BuildStoppedError(name)
        self.report(f"{self.folder.parent.name}, {name}", record["seconds"])
        return figures

    def has_ended(self, name: str) -> bool:
        path = self.folder / f"{name}.json"
        return path.exists() and "figures" in json.loads(path.read_bytes())

    def listed(self) -> list[dict[str, Any]]:
        """Name, seconds and device of every stage that ended, the first one first."""
        found = ((path.stem, json.loads(path.read_bytes())) for path in sorted(self.folder.glob("*.json")))
        ended = sorted(((n, one) for n, one in found if "figures" in one), key=lambda stage: stage[1]["ended"])
        return [{"name": name} | {key: one[key] for key in ("seconds", "kind", "device")} for name, one in ended]


def write_json(path: Path, what: Mapping[str, Any]) -> None:
    write_text_atomic(path, json.dumps(what, indent=1, ensure_ascii=False) + "\n")
