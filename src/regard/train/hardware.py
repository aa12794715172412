"""Hardware: what a benchmark ran on, the record of its results, and the measured FLOP/s of a device."""

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch


def describe_hardware() -> dict[str, Any]:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in read_file("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
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


def read_file(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def git_commit() -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def benchmark_record(command: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What every file of results holds: the figures, the command that produced them, and the hardware."""
    return {"command": command, "commit": git_commit(), "machine": describe_hardware(), **more, "rows": rows}


def measure_matmul_flops(device: torch.device | str, dtype: torch.dtype = torch.bfloat16, *, size: int = 8192) -> float:
    """FLOP/s of one large matrix product on a GPU: what a model's utilisation is measured against."""
    a, b, c = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
    for _ in range(3):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize(device)
    began, times = time.perf_counter(), 20
    for _ in range(times):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize(device)
    return 2.0 * size**3 * times / (time.perf_counter() - began)
