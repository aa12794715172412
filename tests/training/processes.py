"""Several processes that train one model: forks that join as those of torchrun do, killed or left to their end."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from regard.training.distributed import ProcessGroup, join_processes
from tests.forks import FORKS

SECONDS = 120.0  # within which processes end


def join(rank: int, size: int, port: int, errors: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    try:
        with join_processes("cpu") as group:
            work(group, *arguments)
    except ValueError as error:
        (errors / f"error-{rank}").write_text(str(error))
        raise SystemExit(2) from None


@contextmanager
def started(size: int, errors: Path, work: Callable[..., None], *arguments: Any) -> Iterator[list[ForkServerProcess]]:
    """`work(group, *arguments)` in so many processes; the message of one that fails is written to `errors`."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as that of torchrun, which outlives them
    processes = [
        FORKS.Process(target=join, args=(rank, size, store.port, errors, work, arguments), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def run_processes(size: int, errors: Path, work: Callable[..., None], *arguments: Any) -> list[int | None]:
    """To their end: their exit codes."""
    if size == 1:
        work(ProcessGroup(), *arguments)
        return [0]
    with started(size, errors, work, *arguments) as processes:
        return exit_codes(processes)


def exit_codes(processes: list[ForkServerProcess]) -> list[int | None]:
    end = time.monotonic() + SECONDS
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    return [process.exitcode for process in processes]


def messages(errors: Path) -> list[str]:
    return [path.read_text() for path in sorted(errors.glob("error-*"))]
