"""A bound on time and memory, within which hostile input is read or refused."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS, BYTES = 10, 2**30  # for one file; beyond what the process has already


class Late(BaseException):
    """Not an error that anybody answers."""


@contextmanager
def bounded(seconds: float = SECONDS, memory: int = BYTES) -> Iterator[None]:
    """What takes longer, or more memory, fails."""

    def late(*_: object) -> None:
        raise Late(f"not done in {seconds} seconds")

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory, hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)
