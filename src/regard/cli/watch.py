"""A run's steps in; a progress bar with loss, speed and time left out, and a checkpoint when someone presses Ctrl-C."""

import signal
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
    from regard.train.fit import Fit
    from regard.train.loop import Report

FIRST_TOLD, TOLD_EVERY = 3.0, 10.0  # seconds
SMOOTH = 0.95  # how much of the old a running figure keeps at each step


class Track(Protocol):
    """Whoever wants to know about every step besides the person at the terminal."""

    def __call__(self, report: "Report") -> None: ...


def watch(fit: "Fit", console: Console, track: Track | None = None) -> bool:
    """Run to the end, or until someone asks to stop; True if it reached the end."""
    from regard.train.loop import Diverged

    plan, step = fit.plan, fit.done
    with asked_to_stop() as stop, bar(console) as progress:
        task = progress.add_task("training", total=plan.steps, completed=step, said="")
        steps, running, pace = fit.steps(), Running(), Pace(plan.steps, again=not console.is_terminal)
        try:
            for report in steps:
                step = report.step
                running.add(report)
                progress.update(task, completed=step, said=str(running))
                if report.validation:
                    running.measure(fit)
                    progress.console.print(validated(report, running), highlight=False, soft_wrap=True)
                elif line := pace.told(step, running):
                    progress.console.print(line, highlight=False, soft_wrap=True)
                if track:
                    track(report)
                if stop.is_set() and step < plan.steps:
                    steps.close()  # writes a checkpoint
                    return False
        except Diverged as error:
            raise ValueError(str(error)) from None
    if step < plan.steps:
        console.print(f"stopped at step {step:,}: {plan.patience} validations in a row were no better", soft_wrap=True)
    return True


def bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )


def validated(report: "Report", running: "Running") -> str:
    held_out = (report.validation or {})["loss"]
    return f"step {report.step:>7,}   held out {held_out:.3f}   {running}   rate {report.rate:.2e}"


class Running:
    """A smooth loss, and the speed since the first step, which pays for warming up, was done.

    A GPU's losses are looked at when they have arrived: to ask for the newest would keep it waiting.
    """

    def __init__(self) -> None:
        self.loss, self.tokens, self.began = float("nan"), 0, time.perf_counter()
        self.late: deque[Report] = deque()
        self.share: float | None = None  # of a second's products of matrices that one token asks for

    def add(self, report: "Report") -> None:
        self.late.append(report)
        while self.late and self.late[0].sent.arrived:
            arrived = self.late.popleft()
            if self.loss != self.loss:
                self.loss, self.began = arrived.loss, time.perf_counter()
            else:
                self.loss = SMOOTH * self.loss + (1 - SMOOTH) * arrived.loss
                self.tokens += arrived.tokens

    @property
    def speed(self) -> float:
        return self.tokens / max(1e-9, time.perf_counter() - self.began)

    def measure(self, fit: "Fit") -> None:
        """Once, on a GPU, when training has begun: exact steps must be the first to use it."""
        from regard.train.loop import device_of, narrow
        from regard.train.speed import matrix_rate

        device = device_of(fit.job.model)
        if self.share is None and fit.job.flops and device.type == "cuda":
            self.share = fit.job.flops / matrix_rate(device, narrow(fit.plan))

    def __str__(self) -> str:
        used = "" if self.share is None else f" ({self.speed * self.share:.0%} of the matrix rate)"
        return f"loss {self.loss:.3f}   {self.speed:,.0f} tokens/s{used}"


class Pace:
    """How long a run will take on this machine: said once the first steps have shown it; where no bar is, again."""

    def __init__(self, steps: int, *, again: bool, clock: Callable[[], float] = time.perf_counter):
        self.steps, self.again, self.clock = steps, again, clock
        self.first, self.began, self.due = 0, 0.0, FIRST_TOLD

    def told(self, step: int, running: Running) -> str | None:
        """A line, if it is time for one. The first step, which pays for warming up, is not measured."""
        if not self.first:
            self.first, self.began = step, self.clock()
            return None
        took = self.clock() - self.began
        if took < self.due:
            return None
        self.due = took + TOLD_EVERY if self.again else inf
        left = took / (step - self.first) * (self.steps - step)
        return f"step {step:>7,} of {self.steps:,}   {running}   about {span(left)} left on this machine"


def span(seconds: float) -> str:
    """As people say it."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


@contextmanager
def asked_to_stop() -> Iterator[Event]:
    """Ctrl-C, a polite kill or a closed terminal only asks, and is answered between two steps; a second stops at once.

    What the caller ignores, as nohup does, stays ignored.
    """
    stop = Event()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before: dict[int, Callable | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


# --- curves ---


def require_tensorboard() -> None:
    if find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs a package that is missing; pip install 'regard[track]'")


@contextmanager
def curves(folder: Path, after: int) -> Iterator[Track]:
    """For TensorBoard, in `folder`; what an interrupted run drew beyond step `after` is drawn again."""
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
