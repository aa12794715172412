"""Progress of long work on stderr: bars, lines of training with its speed and the time left, and Ctrl-C."""

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from regard.training.run import TrainingRun
    from regard.training.step import Report

T = TypeVar("T")
FIRST_REPORT_SECONDS, REPORT_EVERY_SECONDS = 3.0, 10.0  # seconds
SMOOTH = 0.95  # decay of the running averages, per step


# --- bars ---


def with_progress(items: Iterable[T], what: str, total: int | Callable[[], int | None] | None = None) -> Iterable[T]:
    """A progress bar on stderr, if that is a terminal; only then `total` is called. One item needs none."""
    if total == 1:
        return items
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    shown = console.is_terminal
    if callable(total):
        total = total() if shown else None
    return track(items, what, total, console=console, transient=True, disable=not shown)


@contextmanager
def step_progress() -> "Iterator[Callable[[str, int, int | None], None]]":
    """A progress bar for steps one after the other: the name of each, what is done, and the total if it is known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def seen(what: str, done: int, total: int | None) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield seen


@contextmanager
def download_progress(name: str) -> "Iterator[Callable[[int, int | None], None]]":
    """A progress bar, updated with the bytes received and their total."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)

        def seen(arrived: int, total: int | None) -> None:
            progress.update(task, completed=arrived, total=total)

        yield seen


@contextmanager
def progress() -> "Iterator[Callable[[float], None]]":
    """A progress bar, updated with the fraction done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=1.0)
        yield lambda done: bar.update(task, completed=done)


# --- training ---


def progress_console(*, quiet: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, quiet=quiet)


def train_with_progress(
    fit: "TrainingRun", console: "Console", should_stop: Callable[[], bool] = lambda: False
) -> bool:
    """Train to the end, or until a signal or `should_stop` says to stop; True if it reached the end."""
    from regard.training.loop import DivergedError

    config, step = fit.config, fit.last_step
    with graceful_stop() as stop, progress_bar(console) as progress:
        task = progress.add_task("training", total=config.steps, completed=step, stats="")
        steps, running, pace = fit.steps(), RunningStats(), TimeEstimate(config.steps, repeat=not console.is_terminal)
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
                if fit.group.any(flag=stop.is_set() or should_stop()) and step < config.steps:
                    steps.close()  # writes a checkpoint
                    return False
        except DivergedError as error:
            raise ValueError(str(error)) from None
    if step < config.steps:
        console.print(
            f"early stopping at step {step:,}: no improvement in {config.patience} validations", soft_wrap=True
        )
    return True


def progress_bar(console: "Console") -> "Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
    held_out = "   ".join(f"{name} {value:.3f}" for name, value in (report.validation or {}).items())
    return f"step {report.step:>7,}   valid {held_out}   {running}   learning rate {report.rate:.2e}"


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
        from regard.training.loop import autocast_dtype, device_of
        from regard.training.run import measure_matmul_flops

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

    def seconds_per_step(self, step: int) -> float | None:
        """Once enough steps are measured. The first step, which includes warming up, is not."""
        if not self.first:
            self.first, self.began = step, self.clock()
            return None
        took = self.clock() - self.began
        if took < self.due:
            return None
        self.due = took + REPORT_EVERY_SECONDS if self.repeat else inf
        return took / (step - self.first)

    def line(self, step: int, running: RunningStats) -> str | None:
        """A line, if one is due."""
        if (seconds := self.seconds_per_step(step)) is None:
            return None
        left = format_duration(seconds * (self.steps - step))
        return f"step {step:>7,} of {self.steps:,}   {running}   about {left} left on this machine"


def format_duration(seconds: float) -> str:
    """Hours, minutes or seconds."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def format_bytes(count: float) -> str:
    """kB, MB or GB."""
    unit, size = next((one for one in (("GB", 1e9), ("MB", 1e6)) if count >= one[1]), ("kB", 1e3))
    return f"{count / size:,.{0 if count >= 100 * size else 1}f} {unit}"


@contextmanager
def graceful_stop() -> Iterator[Event]:
    """SIGINT, SIGTERM and SIGHUP set an event, which is read between two steps; a second signal stops at once.

    Signals that the caller ignores, as nohup does, stay ignored. Windows has no SIGHUP.
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
    # Python lets the main thread alone handle signals
    for number in numbers if current_thread() is main_thread() else ():
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
