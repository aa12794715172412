"""Benchmark harness: cases, implementations, timed samples, correctness, ratios, plots, and the record of a result."""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regard.training.run import describe_hardware

# by the path of this file, not the working directory: code of another folder must not be run
CHECKOUT = Path(__file__).resolve().parents[4]


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """The conditions of a measurement, the same for every implementation.

    Args:
        quick: small sizes and few rounds, as a smoke test.
        rounds: samples of each implementation; None: as many as the case sets.
        peers: a folder with a virtual environment for each toolkit that needs its own.
        data: the folder of known corpora; None: the miniature world.
        folder: for temporary files.
    """

    device: str
    quick: bool
    threads: int
    rounds: int | None
    peers: Path
    data: Path | None
    folder: Path


@dataclass(frozen=True, eq=False)
class TimingSample:
    """One sample: its seconds, its amount (calls, tokens), and its output, which is checked."""

    seconds: float
    amount: float
    output: Any

    @property
    def speed(self) -> float:
        return self.amount / self.seconds


@dataclass(frozen=True, eq=False)
class Implementation:
    """One implementation of a case. A RuntimeError means that it failed."""

    name: str
    run: Callable[[], TimingSample]


@dataclass(frozen=True)
class MissingPeer:
    """A peer that could not be run, why, and the remedy."""

    name: str
    why: str


@dataclass(frozen=True)
class Verdict:
    """The error of an output as text, and whether it is small enough."""

    message: str
    correct: bool = True


@dataclass(frozen=True, eq=False)
class Case:
    """One size or kind of a benchmark.

    Args:
        ours: the variants of Regard, of which the fastest correct one is compared with the peers.
        judge: checks an output against Regard's; the variants of Regard are checked against the first of them.
        rounds: samples of each implementation; `warmup` more come first and are not counted.
    """

    name: str
    ours: tuple[Implementation, ...]
    peers: tuple[Implementation, ...]
    missing: tuple[MissingPeer, ...]
    judge: Callable[[Any, Any], Verdict]
    rounds: int
    warmup: int = 0

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        return self.ours + self.peers


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A benchmark: its cases, and the unit of its results.

    `cases` are generated one by one, so that only one is in memory; a MissingPeer among them cannot be measured here.
    """

    name: str
    about: str
    unit: Literal["ms", "tokens/s"]
    cases: Callable[[BenchmarkSettings], Iterator[Case | MissingPeer]]

    def displayed(self, speed: float) -> float:
        """A speed, in calls or tokens a second, in the unit of the benchmark."""
        return 1e3 / speed if self.unit == "ms" else speed


# --- measuring ---


QUICK_ROUNDS = 2


@dataclass(frozen=True)
class BenchmarkResult:
    """The result of one implementation on one case.

    Args:
        ours: whether it is a variant of Regard.
        state: correct, wrong (another output), or failed (no output).
        message: the error of the output, or why there is none.
        speed: the median, in calls or tokens a second; `slowest` and `fastest` are the extremes.
        compared_with: the variant of Regard it is compared with; None for Regard itself, and unless it is correct.
        ratio: how many times as fast that variant was; `ratio_min` and `ratio_max` are the extremes over the rounds.
    """

    case: str
    implementation: str
    ours: bool
    state: Literal["correct", "wrong", "failed"]
    message: str
    speed: float | None = None
    slowest: float | None = None
    fastest: float | None = None
    compared_with: str | None = None
    ratio: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    speeds: tuple[float, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the command must fail: a wrong output of any implementation, or none of Regard."""
        return self.state == "wrong" or (self.state == "failed" and self.ours)


def count_rounds(case: Case, setting: BenchmarkSettings) -> int:
    return setting.rounds or (min(QUICK_ROUNDS, case.rounds) if setting.quick else case.rounds)


def measure(case: Case, setting: BenchmarkSettings, on_sample: Callable[[str], None]) -> list[BenchmarkResult]:
    """`on_sample` is called with the name of the implementation after every sample."""
    samples: dict[str, list[TimingSample]] = {way.name: [] for way in case.implementations}
    troubles: dict[str, str] = {}
    for number in range(case.warmup + count_rounds(case, setting)):
        for way in case.implementations:
            if way.name not in troubles:
                try:
                    sample = way.run()
                except RuntimeError as trouble:
                    troubles[way.name] = first_line(trouble)
                else:
                    samples[way.name] += [sample] if number >= case.warmup else []
            on_sample(way.name)
    able = {name: found for name, found in samples.items() if name not in troubles}
    ours, best = [], None
    for way in case.ours:
        first = able.get(case.ours[0].name)
        ours.append(summarize(case, way, able.get(way.name), first, troubles.get(way.name), ours=True))
        if ours[-1].state == "correct" and (best is None or (ours[-1].speed or 0.0) > (best.speed or 0.0)):
            best = ours[-1]
    reference = able[best.implementation] if best else None
    others = [
        summarize(case, way, able.get(way.name), reference, troubles.get(way.name), ours=False) for way in case.peers
    ]
    return ours + [with_ratio(one, best) if best else one for one in others]


def summarize(
    case: Case,
    way: Implementation,
    samples: list[TimingSample] | None,
    reference: list[TimingSample] | None,
    trouble: str | None,
    *,
    ours: bool,
) -> BenchmarkResult:
    if samples is None:
        return BenchmarkResult(case.name, way.name, ours, "failed", trouble or "")
    speeds = [sample.speed for sample in samples]
    verdict = case.judge(samples[-1].output, (reference or samples)[-1].output)
    return BenchmarkResult(
        case.name,
        way.name,
        ours,
        "correct" if verdict.correct else "wrong",
        verdict.message,
        statistics.median(speeds),
        min(speeds),
        max(speeds),
        speeds=tuple(speeds),
    )


def with_ratio(they: BenchmarkResult, best: BenchmarkResult) -> BenchmarkResult:
    if they.state != "correct":
        return they
    ratios = [we / them for we, them in zip(best.speeds, they.speeds, strict=True)]
    return replace(
        they,
        compared_with=best.implementation,
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
    )


def first_line(trouble: RuntimeError) -> str:
    return next((line.strip() for line in str(trouble).splitlines() if line.strip()), type(trouble).__name__)


def format_number(figure: float) -> str:
    """Three significant digits, or all before the decimal point."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


# --- timed calls ---


MIN_SECONDS = 0.2  # seconds of a sample, in as many calls as that takes
MIN_SECONDS_QUICK = 0.02
ROUNDING = 16  # units in the last place, relative to the largest number, that count as rounding
MAX_ERROR_RATIO = 2.0  # of the error of plain torch in the same dtype (Dao et al.'s rule for flash attention)

Outputs = Sequence[Tensor]  # outputs and gradients


def timed_calls(name: str, function: Callable[[], Outputs], setting: BenchmarkSettings) -> Implementation:
    def go() -> TimingSample:
        least, count, began = MIN_SECONDS_QUICK if setting.quick else MIN_SECONDS, 0, clock(setting.device)
        while True:
            found, count = function(), count + 1
            if (taken := clock(setting.device) - began) >= least:
                return TimingSample(taken, count, found)

    return Implementation(name, go)


def clock(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def with_gradients(outputs: Tensor, upstream: Tensor, *inputs: Tensor) -> Outputs:
    """The outputs, and the gradients of the inputs."""
    return [outputs.detach(), *torch.autograd.grad(outputs, inputs, upstream)]


def missing_package(package: str, module: str) -> MissingPeer | None:
    """None if it is installed and can be imported."""
    try:
        import_module(module)
    except ImportError as error:
        why = "not installed" if find_spec(module) is None else f"cannot be loaded ({error})"
        return MissingPeer(package, f"{why}; pip install {package}")
    return None


@dataclass(frozen=True, eq=False)
class ReferenceResult:
    """The outputs in float64, and those of plain torch in the dtype of the benchmark.

    `select` takes the part that is compared out of the outputs: one sentence and head is enough, and costs little.
    """

    exact: Outputs
    plain: Outputs
    select: Callable[[Outputs], Outputs]

    def judge(self, found: Outputs, _: Outputs) -> Verdict:
        dtype = found[0].dtype
        worst, correct = 0.0, True
        for mine, plain, exact in zip(self.select(found), self.plain, self.exact, strict=True):
            size = float(exact.abs().max())
            off, allowed = (float((x.double() - exact).abs().max()) / size for x in (mine, plain))
            correct = correct and off <= max(MAX_ERROR_RATIO * allowed, ROUNDING * torch.finfo(dtype).eps)
            worst = max(worst, off) if off == off else float("nan")
        return Verdict(f"off by {worst:.0e}", correct=correct)


# --- plot ---


if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, BAR, HEAD = 7.5, 0.34, 0.75  # inches


def plot_results(benchmark: Benchmark, rows: list[BenchmarkResult]) -> "Figure":
    from matplotlib.figure import Figure

    from regard.see.plots.layout import FRAME, INK, MUTED, VISIBLE, WORDS

    cases = list(dict.fromkeys(row.case for row in rows))
    shown = {case: [row for row in rows if row.case == case and row.speed is not None] for case in cases}
    heights = [HEAD + BAR * max(1, len(shown[case])) for case in cases]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.3), layout="constrained")
    panels = figure.subplots(len(cases), squeeze=False, height_ratios=heights)[:, 0]
    for axes, case in zip(panels, cases, strict=True):
        for index, row in enumerate(shown[case]):
            figure_, *ends = (benchmark.displayed(speed or 0.0) for speed in (row.speed, row.slowest, row.fastest))
            colour = VISIBLE if row.ours else FRAME if row.state == "correct" else "none"
            error = [[max(0.0, figure_ - min(ends))], [max(0.0, max(ends) - figure_)]]
            axes.barh(index, figure_, 0.7, xerr=error, color=colour, edgecolor=FRAME, ecolor=MUTED)
            note = "WRONG" if row.state == "wrong" else f"Regard is {row.ratio:.2f}× as fast" if row.ratio else ""
            axes.text(
                max(ends),
                index,
                f"  {format_number(figure_)}  {note}",
                va="center",
                color=INK,
                fontsize=8,
                family=WORDS,
            )
        axes.set_yticks(range(len(shown[case])), [row.implementation for row in shown[case]], fontsize=8, family=WORDS)
        axes.invert_yaxis()
        axes.margins(x=0.3)
        axes.set_title(case, loc="left", fontsize=9, family=WORDS, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=MUTED)
    better = "lower is better" if benchmark.unit == "ms" else "higher is better"
    panels[-1].set_xlabel(f"{benchmark.unit} ({better})", fontsize=8, family=WORDS, color=MUTED)
    return figure


# --- the record of a result ---


def git_commit() -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def benchmark_record(command: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What every file of results holds: the figures, the command that produced them, and the hardware."""
    return {"command": command, "commit": git_commit(), "machine": describe_hardware(), **more, "rows": rows}
