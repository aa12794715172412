"""Benchmark results: written with the machine they were measured on; measurements in a process of their own."""

import argparse
import json
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from regard.cli.benchmarks.harness import benchmark_record
from regard.training.run import read_file

RESULTS = Path(__file__).parent / "results"
SECONDS = "seconds.json"  # in a run's folder: how long it trained, over all its resumptions


def forget_peak() -> None:
    """Start the peak of this process anew, where the system can (Linux)."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """The most memory this process has held since the peak was forgotten (or since it began)."""
    for line in read_file("/proc/self/status").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib / 1024 if sys.platform != "darwin" else kib / 2**20


def alone(function: Callable[..., Any], *args: Any) -> Any:
    """The function's answer from a fresh process, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def write(name: str, command: str, rows: list[dict[str, Any]], **more: Any) -> Path:
    """benchmarks/results/NAME.json: the figures, the command that made them, and the machine."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(benchmark_record(command, rows, **more), indent=1) + "\n")
    return path


def add_recipe_options(parser: argparse.ArgumentParser, *, out: str) -> None:
    import torch

    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path, help="the folder that holds known corpora")
    parser.add_argument("--out", type=Path, required=True, help=out)
    parser.add_argument("--test", action="store_true", help="measure on the test set too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def spent(folder: Path) -> float:
    path = folder / SECONDS
    return json.loads(path.read_text()) if path.exists() else 0.0


def spend(folder: Path, seconds: float) -> None:
    (folder / SECONDS).write_text(json.dumps(seconds))
