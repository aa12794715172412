"""Start-up: `regard --help` and the first answer of `regard translate`, beside a bare `import torch`, in turns.

    python benchmarks/startup.py [--rounds 7]

Each is a process of its own. The ratios are of processor time, which other processes on the machine hardly change; the
seconds by the clock are the least of all rounds, and the record says how busy the machine was.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track
from rich.table import Table

from machine import write

SENTENCE = "the black cat ate the mouse"
BARE = "import torch"  # what all else is compared with
COMMAND = "from regard.__main__ import main; main()"


def measure(code: str, *words: str) -> dict[str, float]:
    """Seconds that a process takes by the clock, and of the processor."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
    seconds, after = time.perf_counter() - began, os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "processor": processor}


def train_translator(folder: Path) -> Path:
    """The model of `make demo`, trained for as long as it takes to have weights."""
    few = ["--set", "data.sentences=2000", "--steps", "10"]
    subprocess.run([sys.executable, "-c", COMMAND, "train", *few, "--out", str(folder)], check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Start-up beside a bare import torch.")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with TemporaryDirectory() as folder:
        run = train_translator(Path(folder) / "run")
        jobs = {
            "python": ("pass",),
            BARE: (BARE,),
            "regard --help": (COMMAND, "--help"),
            "regard settings --json": (COMMAND, "settings", "--json"),
            'regard translate RUN "text"': (COMMAND, "translate", str(run), SENTENCE),
        }
        for job in jobs.values():
            measure(*job)  # files are read from the disk, and compiled
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
        for _ in track(range(rounds), description="starting"):
            for name, job in jobs.items():
                samples[name].append(measure(*job))
    bare = [one["processor"] for one in samples[BARE]]
    rows = []
    for name, some in samples.items():
        ratios = [one["processor"] / torch for one, torch in zip(some, bare, strict=True)]
        rows.append(
            {
                "what": name,
                "seconds": min(one["seconds"] for one in some),
                "processor": statistics.median(one["processor"] for one in some),
                "ratio": statistics.median(ratios),
                "spread": [min(ratios), max(ratios)],
            }
        )
    table = Table("", "least seconds", "processor, s", f"times {BARE}", "from", "to")
    for row in rows:
        numbers = (row["seconds"], row["processor"], row["ratio"], *row["spread"])
        table.add_row(row["what"], *(f"{number:.2f}" for number in numbers))
    Console().print(table)
    load = os.getloadavg()[0]  # processes that wanted a core, in the last minute; these are one of them
    print(write("startup", f"python benchmarks/startup.py --rounds {rounds}", rows, rounds=rounds, load=load))


if __name__ == "__main__":
    main()
