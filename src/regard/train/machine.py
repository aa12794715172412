"""The machine that a figure was measured on, in words, and the command and version that made the figure."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    import torch

    cpu = next(
        (line.split(":")[1].strip() for line in read("/proc/cpuinfo").splitlines() if line.startswith("model name")),
        platform.processor(),
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
    }


def read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def commit() -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def result(command: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What every file of results holds: the figures, the command that made them, and the machine."""
    return {"command": command, "commit": commit(), "machine": machine(), **more, "rows": rows}
