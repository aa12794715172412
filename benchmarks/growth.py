"""Growth with length: time and peak memory of attention, forward and backward pass, on the CPU.

    python benchmarks/growth.py              every kind, from 1,024 tokens on
    python benchmarks/growth.py --states     states of fixed size alone, from 4,096 tokens on

`seconds` is by the clock; `cpu_seconds` is what all threads of the process took, which holds where others work as well.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from machine import RESULTS, alone, forget_peak, peak_mib, write

HEADS, HEAD, RANK = 2, 64, 256
PATTERNS = {
    "full": "Full()",
    "window": "Window(512)",
    "bigbird": "Block(64, Window(2) | Global(1) | Random(3, seed=0))",
}
GATED = {"mamba-2": (), "gated delta rule": (), "gla": (HEAD,)}  # and the axes of their decays besides (b, h, n)
STATES = ["causal linear", *GATED]
KINDS = [*PATTERNS, "linformer", "linear", *STATES]
FIT_FROM = 4096


def job(kind: str, n: int):
    """A function that attends forwards and backwards once, and who runs it."""
    import torch

    from regard.attention import Linformer, Recipe, attend, explain, get_recipe, parse_part

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, n, HEAD, requires_grad=True) for _ in range(3))
    recipe = Recipe(pattern=parse_part(PATTERNS[kind])) if kind in PATTERNS else Recipe()
    recipe = get_recipe(kind) if "linear" in kind or kind in GATED else recipe
    if kind in GATED:
        decays = -0.1 * torch.rand(1, HEADS, n, *GATED[kind])
        betas = torch.rand(1, HEADS, n, requires_grad=True)
        values: dict[str, Any] = {"log_decay": decays.requires_grad_(), "beta": betas}
        recipe = recipe.with_gate(**{name: values[name] for name in recipe.gate.values})
    mix = Linformer(max_length=n, rank=RANK) if kind == "linformer" else None

    def run() -> None:
        keys, values = (k, v) if mix is None else mix(k, v)
        attend(q, keys, values, recipe).sum().backward()
        for x in (q, k, v):
            x.grad = None

    return run, explain(recipe, q, None if mix is None else mix(k, v)[0]).backend


def timed(run) -> tuple[float, float]:
    """By the clock, and of the processor."""
    began, used = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began, time.process_time() - used


def measure(kind: str, n: int) -> dict:
    """Median time and peak memory beyond what was there before, in this process."""
    import regard.attention  # loaded before the memory is measured  # noqa: F401

    forget_peak()
    before = peak_mib()
    run, backend = job(kind, n)
    first, used = timed(run)
    repeats = 0 if first > 20 else 1 if first > 5 else 3 if first > 1 else 7
    times, cpu = zip(*([timed(run) for _ in range(repeats)] or [(first, used)]), strict=True)
    return {
        "kind": kind,
        "tokens": n,
        "backend": backend,
        "seconds": statistics.median(times),
        "cpu_seconds": statistics.median(cpu),
        "mib": peak_mib() - before,
    }


def side_by_side(n: int) -> dict:
    """Window(512) and full attention taking turns in one process."""
    runs = {kind: job(kind, n)[0] for kind in ("window", "full")}
    for run in runs.values():
        run()
    times = {kind: [] for kind in runs}
    for _ in range(3):
        for kind, run in runs.items():
            times[kind].append(timed(run)[0])
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    return {"tokens": n, **medians, "ratio": medians["full"] / medians["window"]}


def exponent(rows: list[dict], kind: str, what: str) -> float:
    """The slope of log(what) against log(tokens), from FIT_FROM tokens up."""
    points = [(row["tokens"], row[what]) for row in rows if row["kind"] == kind and row["tokens"] >= FIT_FROM]
    if len(points) < 2:
        return float("nan")
    tokens, values = np.log(np.array(points)).T
    return float(np.polyfit(tokens, values, 1)[0])


def plot(rows: list[dict], path: Path) -> None:
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (what, label) in zip(figure.subplots(1, 2), (("seconds", "seconds"), ("mib", "peak MiB")), strict=True):
        for kind in KINDS:
            points = [(row["tokens"], row[what]) for row in rows if row["kind"] == kind]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=kind)
        axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label, title=f"{label}, forwards and backwards")
        axes.set_xticks(sorted({row["tokens"] for row in rows}), labels=[f"{row // 1024}k" for row in lengths(rows)])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def lengths(rows: list[dict]) -> list[int]:
    return sorted({row["tokens"] for row in rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=65536, help="the longest text, in tokens (default: %(default)s)")
    parser.add_argument("--states", action="store_true", help="causal linear attention and gated states alone")
    options = parser.parse_args()
    longest, kinds, shortest = options.longest, STATES if options.states else KINDS, 12 if options.states else 10
    tokens = [2**power for power in range(shortest, longest.bit_length())]
    jobs = [(kind, n) for n in tokens for kind in kinds]
    rows = [alone(measure, kind, n) for kind, n in track(jobs, description="growing")]
    measured = "seconds", "cpu_seconds", "mib"
    exponents = {kind: {what: exponent(rows, kind, what) for what in measured} for kind in kinds}
    table = Table("", *(f"{n // 1024}k" for n in tokens), "time ~ n^", "CPU time ~ n^", "memory ~ n^", "backend")
    for kind in kinds:
        mine = [row for row in rows if row["kind"] == kind]
        cells = [f"{row['seconds']:.3f} s\n{row['mib']:.0f} MiB" for row in mine]
        table.add_row(kind, *cells, *(f"{exponents[kind][what]:.2f}" for what in measured), mine[-1]["backend"])
    Console(width=150).print(table)
    sizes = {"heads": HEADS, "head": HEAD, "fitted from": FIT_FROM}
    if options.states:
        print(write("growth-states", "python benchmarks/growth.py --states", rows, sizes=sizes, exponents=exponents))
        return
    together = alone(side_by_side, min(16384, longest))
    print("Window(512) is {ratio:.1f} times faster than full attention at {tokens:,} tokens".format(**together))
    plot(rows, RESULTS / "growth.png")
    sizes |= {"linformer rank": RANK}
    command = "python benchmarks/growth.py"
    print(write("growth", command, rows, sizes=sizes, exponents=exponents, window_against_full=together))


if __name__ == "__main__":
    main()
