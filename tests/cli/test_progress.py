"""Progress of long work: a bar on a terminal, the time that is left, sizes in bytes, and signals that are ignored."""

import signal
from io import StringIO

import pytest
import torch
from rich.console import Console

from regard.cli.progress import RunningStats, TimeEstimate, format_bytes, graceful_stop, progress_bar
from regard.training.step import AsyncScalars, Report


def test_a_terminal_sees_a_bar_with_loss_speed_and_time_left():
    out = StringIO()
    with progress_bar(Console(file=out, force_terminal=True, width=100)) as progress:
        running = RunningStats()
        running.add(Report(1, rate=0.1, tokens=70, scalars=AsyncScalars(torch.tensor([2.5, 1.0, 0.0]))))
        progress.add_task("training", total=10, completed=4, stats=str(running))
    assert "4/10" in out.getvalue()
    assert "loss 2.500   0 tokens/s" in out.getvalue()
    assert "--:--" in out.getvalue()


def test_the_time_left_is_said_once_to_a_terminal_and_again_to_a_pipe():
    for again, output in ((False, [4]), (True, [4, 14, 24])):
        now = iter(range(1000))
        pace, running = (
            TimeEstimate(1001, repeat=again, clock=lambda now=now: float(next(now))),
            RunningStats(),
        )
        lines = {step: pace.line(step, running) for step in range(1, 31)}
        assert [step for step, line in lines.items() if line] == output
        assert (lines[4] or "").endswith("about 17 minutes left on this machine")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (900, "0.9 kB"),
        (99_900, "99.9 kB"),
        (249_000, "249 kB"),
        (1.54e6, "1.5 MB"),
        (123e6, "123 MB"),
        (7.1e10, "71.0 GB"),
    ],
)
def test_bytes(count, text):
    assert format_bytes(count) == text


def test_what_the_caller_ignores_stays_ignored():
    """As nohup ignores that the terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with graceful_stop() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
