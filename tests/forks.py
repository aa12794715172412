"""Processes of their own, for signals, kill -9 and memory: each is the fork of one that has loaded what they need."""

import os
import sys
import traceback
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
# torch takes seconds to load; there is one such process, so that all its modules stand in one list
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("pytest", "torch._inductor.config", "regard.cli.main", "regard.decode.translation", "regard.training.run"),
        *("regard.world", "tests.cli.commands", "tests.training.killed_runs"),
    ]
)


@dataclass(frozen=True)
class Finished:
    code: int | None
    out: str
    err: str


def start_program(program: str, folder: Path | str, *arguments: object) -> BaseProcess:
    """`python -c program`, run at the root of the repository; what it says is written to `folder`, out and err."""
    process = FORKS.Process(target=run_here, args=(program, str(folder), [str(one) for one in arguments]))
    process.start()
    return process


def run_program(program: str, *arguments: object) -> Finished:
    """The same, to its end. Shapes are not checked in it, as they are in the process of the tests."""
    with TemporaryDirectory() as folder:
        process = start_program(program, folder, *arguments)
        process.join()
        return Finished(process.exitcode, *((Path(folder) / name).read_text() for name in ("out", "err")))


def run_here(program: str, folder: str, arguments: list[str]) -> None:
    os.chdir(ROOT)
    sys.argv[1:] = arguments
    sys.path[:0] = [str(ROOT / "benchmarks")]
    with open(f"{folder}/out", "w") as sys.stdout, open(f"{folder}/err", "w") as sys.stderr:
        try:
            exec(program, {"__name__": "__main__"})
        except Exception:
            traceback.print_exc()  # here, where stderr is still open
            sys.exit(1)
