"""Words of a command line in; what it answered out, and whether that is how a mistake is said."""

import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import typer
from typer import testing
from typer.testing import CliRunner, Result

from regard.cli import app
from regard.tasks import splits
from tests.forks import FORKS

# to make the commands anew for every line takes longer than most of them
testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]

# a model that trains in no time
LITTLE = ["--set", "text.kind=words", "--set", "model.layers=1", "--set", "model.model=16"]
LITTLE += ["--set", "model.hidden=24", "--set", "model.heads=2", "--tokens", "300"]
WORLD_TESTS = 53  # examples of the world to validate and to test on, instead of a thousand


def regard(*words: object, typed: str | bytes | None = None) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words], input=typed, prog_name="regard")


def assert_done(answer: Result) -> str:
    assert answer.exit_code == 0, f"{answer.output}\n{answer.exception!r}"
    return answer.stdout


def output_lines(answer: Result) -> list[str]:
    return assert_done(answer).splitlines()


def assert_refused(answer: Result, message: str) -> None:
    """One line on stderr, which begins with these words, and exit code 2; a run may have said what it trains on."""
    assert answer.exit_code == 2, f"{answer.output}\n{answer.exception!r}"
    mistakes = [line for line in answer.stderr.splitlines() if line.startswith("regard: ")]
    assert len(mistakes) == 1, answer.stderr
    assert mistakes[0].startswith(f"regard: {message}"), answer.stderr
    assert answer.stderr.endswith(f"{mistakes[0]}\n")
    assert "Traceback" not in answer.output


def assert_plain(text: str) -> None:
    """Nothing that only a terminal understands."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text), text


# --- in a process of its own, for signals, pipes, terminals and exit codes ---

PATIENCE = 300  # seconds


@dataclass(frozen=True)
class Started:
    process: BaseProcess
    out: Path
    err: Path

    def ends(self) -> int | None:
        """The exit code, and None if it does not end."""
        self.process.join(timeout=PATIENCE)
        return self.process.exitcode

    def send(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def until(self, happened: Callable[[], object]) -> None:
        """Wait for something that happens before the end, and within PATIENCE."""
        began = time.monotonic()
        while not happened():
            assert self.process.is_alive(), self.err.read_text()
            assert time.monotonic() - began < PATIENCE, f"it never came; said until now: {self.err.read_text()}"
            time.sleep(0.01)


def started(folder: Path, *words: object, **streams: str) -> Started:
    """`streams` are paths: of a file, a pipe, a terminal or /dev/full; without one, of a file in `folder`."""
    out, err = (Path(streams.get(name, folder / name)) for name in ("out", "err"))
    names = (streams.get("stdin", os.devnull), str(out), str(err))
    process = FORKS.Process(target=live, args=([str(word) for word in words], names, os.getcwd()))
    process.start()
    return Started(process, out, err)


def live(words: list[str], streams: tuple[str, str, str], folder: str) -> None:
    os.chdir(folder)
    splits.WORLD_TESTS = WORLD_TESTS
    with (
        open(streams[0], encoding="utf-8") as sys.stdin,
        open(streams[1], "w", encoding="utf-8") as sys.stdout,
        open(streams[2], "w", encoding="utf-8") as sys.stderr,
    ):
        app(words, prog_name="regard")


# --- a full disk ---


@contextmanager
def no_room(after: int) -> Iterator[None]:
    """As on a full disk: no file of this process grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def held(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with what it holds, but for locks and the log of a run, which knows the time."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "log.jsonl"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
