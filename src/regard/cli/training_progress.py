"""Progress of a training run: progress bar, time estimate, Ctrl-C and TensorBoard."""

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from regard.train.run import TrainingRun
    from regard.train.step import Report

FIRST_REPORT_SECONDS, REPORT_EVERY_SECONDS = 3.0, 10.0  # seconds
SMOOTH = 0.95  # decay of the running averages, per step


class StepCallback(Protocol):
    """Called after every step."""

    def __call__(self, report: "Report") -> None: ...


def train_with_progress(fit: "TrainingRun", console: Console, track: StepCallback | None = None) -> bool:
    """Train to the end, or until a signal asks to stop; True if it reached the end."""
    from regard.train.loop import DivergedError

    plan, step = fit.config, fit.last_step
    with graceful_stop() as stop, progress_bar(console) as progress:
        task = progress.add_task("training", total=plan.steps, completed=step, stats="")
        steps, running, pace = fit.steps(), RunningStats(), TimeEstimate(plan.steps, repeat=not console.is_terminal)
        try:
            for report in steps:
                step = report.step
                running.add(report)
                progress.update(task, completed=step, stats=str(running))
                if report.validation:
                    running.measure(fit)
                    progress.console.print(validation_line(report, running), highlight=False, soft_wrap=True)
                elif line := pace.line(step, running):
                    progress.console.print(line, highlight=False, soft_wrap=True)
                if track:
                    track(report)
                if stop.is_set() and step < plan.steps:
                    steps.close()  # writes a checkpoint
                    return False
        except DivergedError as error:
            raise ValueError(str(error)) from None
    if step < plan.steps:
        console.print(f"early stopping at step {step:,}: no improvement in {plan.patience} validations", soft_wrap=True)
    return True


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[stats]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )


def validation_line(report: "Report", running: "RunningStats") -> str:
    held_out = (report.validation or {})["loss"]
    return f"step {report.step:>7,}   valid loss {held_out:.3f}   {running}   learning rate {report.rate:.2e}"


class RunningStats:
    """Running averages: the loss, and the tokens per second since the first step, which includes warming up.

    Losses of a GPU are read when they have arrived: reading the newest would make it wait.
    """

    def __init__(self) -> None:
        self.loss, self.tokens, self.started_at = float("nan"), 0, time.perf_counter()
        self.pending: deque[Report] = deque()
        self.flops_share: float | None = None  # of a second at the matmul peak, per token

    def add(self, report: "Report") -> None:
        self.pending.append(report)
        while self.pending and self.pending[0].scalars.is_ready:
            arrived = self.pending.popleft()
            if self.loss != self.loss:
                self.loss, self.started_at = arrived.loss, time.perf_counter()
            else:
                self.loss = SMOOTH * self.loss + (1 - SMOOTH) * arrived.loss
                self.tokens += arrived.tokens

    @property
    def speed(self) -> float:
        return self.tokens / max(1e-9, time.perf_counter() - self.started_at)

    def measure(self, fit: "TrainingRun") -> None:
        """Once, on a GPU, after training has begun: deterministic steps must be the first to use it."""
        from regard.train.hardware import measure_matmul_flops
        from regard.train.loop import autocast_dtype, device_of

        device = device_of(fit.job.model)
        if self.flops_share is None and fit.job.flops and device.type == "cuda":
            self.flops_share = fit.job.flops / measure_matmul_flops(device, autocast_dtype(fit.config))

    def __str__(self) -> str:
        used = "" if self.flops_share is None else f" ({self.speed * self.flops_share:.0%} of the matmul peak)"
        return f"loss {self.loss:.3f}   {self.speed:,.0f} tokens/s{used}"


class TimeEstimate:
    """Estimates the remaining time from the first steps: printed once; repeatedly where there is no progress bar."""

    def __init__(self, steps: int, *, repeat: bool, clock: Callable[[], float] = time.perf_counter):
        self.steps, self.repeat, self.clock = steps, repeat, clock
        self.first, self.began, self.due = 0, 0.0, FIRST_REPORT_SECONDS

    def line(self, step: int, running: RunningStats) -> str | None:
        """A line, if one is due. The first step, which includes warming up, is not measured."""
        if not self.first:
            self.first, self.began = step, self.clock()
            return None
        took = self.clock() - self.began
        if took < self.due:
            return None
        self.due = took + REPORT_EVERY_SECONDS if self.repeat else inf
        left = took / (step - self.first) * (self.steps - step)
        return f"step {step:>7,} of {self.steps:,}   {running}   about {format_duration(left)} left on this machine"


def format_duration(seconds: float) -> str:
    """Hours, minutes or seconds."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


@contextmanager
def graceful_stop() -> Iterator[Event]:
    """SIGINT, SIGTERM and SIGHUP set an event, which is read between two steps; a second signal stops at once.

    Windows has no SIGHUP.     Signals that the caller ignores, as nohup does, stay ignored.
    """
    stop = Event()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before: dict[int, Callable | int | None] = {}
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


# --- TensorBoard ---


def require_tensorboard() -> None:
    if find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs a package that is missing; pip install 'regard[track]'")


@contextmanager
def tensorboard_callback(folder: Path, after: int) -> Iterator[StepCallback]:
    """Writes scalars into `folder`; those of an interrupted run beyond step `after` are purged."""
    from torch.utils.tensorboard import SummaryWriter

    def track(report: "Report") -> None:
        figures = {"loss": report.loss, "rate": report.rate, "gradient norm": report.norm}
        for name, value in (report.validation or {}).items():
            figures[f"held out {name}"] = value
        for name, value in figures.items():
            writer.add_scalar(name, value, report.step)
        if report.validation:
            writer.flush()

    with SummaryWriter(folder, purge_step=after + 1) as writer:
        yield track
