"""Worker threads: requests run a few at a time, too many are refused at once, and one that takes too long is stopped.

    answer = await workers.run(function)         Refused (429) where too many wait, (413) where its time is up

A thread cannot be killed, and what a model computes knows nothing of a server, so there is nobody who would ask
whether to go on. Python can raise an exception inside another thread, at its next line of Python; the thread then
unwinds as after any other exception and ends, and with it all that it had set for itself (torch's gradient mode, ...).
"""

import asyncio
import ctypes
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from time import monotonic
from typing import Generic, TypeVar

from regard.serve.wire import Refused

THREADS, WAITING = 4, 16
SECONDS = 60.0  # that a request may be worked on
PATIENCE = 10.0  # seconds that it waits for a thread
TICK = 0.2  # seconds until somebody looks whether a thread died
LAST = 1.0  # seconds that a thread is given to unwind when the server ends

Value = TypeVar("Value")


class OutOfTime(BaseException):
    """Raised inside a job, wherever it is; no Exception, which the job might take for a mistake of its own."""


class Job(Generic[Value]):
    """A function that some thread will run, and its answer."""

    def __init__(self, function: Callable[[], Value]):
        self.function = function
        self.answer: Future[Value] = Future()
        self.lock = Lock()
        self.begun: float | None = None
        self.thread: int | None = None  # that runs it now
        self.stopped = False

    def run(self) -> bool:
        """Whether the thread may go on with another job."""
        with self.lock:
            if self.stopped or not self.answer.set_running_or_notify_cancel():
                return True
            self.begun, self.thread = monotonic(), get_ident()
        value, trouble = None, None
        try:
            value = self.function()
        except BaseException as error:  # whoever waits for the answer is told
            trouble = error
        with self.lock:  # from here on nothing is raised in this thread, which now holds others' locks
            self.thread = None
            if self.stopped:
                raise_in(get_ident(), None)
                return False
        if trouble is None:
            self.answer.set_result(value)  # type: ignore[arg-type]
        else:
            self.answer.set_exception(trouble)
        return True

    def stop(self, why: Refused) -> None:
        """Whoever waits hears why, whatever the thread still does; an answer that was found stays."""
        with self.lock:
            if self.begun is not None and self.thread is None:
                return
            self.stopped = True
            if self.thread is not None:
                raise_in(self.thread, OutOfTime)
        with suppress(InvalidStateError):  # stopped before, or nobody waits
            self.answer.set_exception(why)


def raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """At its next line of Python; None takes back what was not raised yet."""
    what = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)


class Workers:
    """So many threads, and so many jobs that wait for one. Any event loop may ask."""

    def __init__(
        self,
        *,
        threads: int = THREADS,
        waiting: int = WAITING,
        seconds: float = SECONDS,
        patience: float = PATIENCE,
    ):
        self.most, self.most_waiting, self.seconds, self.patience = threads, waiting, seconds, patience
        self.threads: list[Thread] = []
        self.waiting: deque[Job] = deque()
        self.running: set[Job] = set()
        self.signals: SimpleQueue[int] = SimpleQueue()  # 1 for every job; 0 ends a thread
        self.lock = Lock()
        self.closed = False

    async def run(self, function: Callable[[], Value]) -> Value:
        """Its answer, unless too many wait already, or for too long, or it takes too long."""
        with self.lock:
            if len(self.waiting) >= self.most_waiting:
                raise busy()
        return await self.finished(function, self.patience)

    async def iterate(self, parts: Iterator[Value]) -> AsyncIterator[Value]:
        """Part after part of an answer that was begun: it may wait for a thread, but is not refused any more."""
        end = object()
        while (part := await self.finished(lambda: next(parts, end), self.seconds)) is not end:
            yield part  # type: ignore[misc]

    async def finished(self, function: Callable[[], Value], patience: float) -> Value:
        job = Job(function)
        last = monotonic() + patience
        with self.lock:
            self.waiting.append(job)
        self.signals.put(1)
        answer = asyncio.wrap_future(job.answer)
        try:
            while job.begun is None and not answer.done() and monotonic() < last:
                self.ensure_threads()
                await asyncio.wait([answer], timeout=min(TICK, patience))
            if job.begun is None and not answer.done():
                job.stop(busy())
            elif job.begun is not None:
                await asyncio.wait([answer], timeout=job.begun + self.seconds - monotonic())
                job.stop(too_long(self.seconds))
            return await answer
        finally:
            answer.cancel()  # no thread begins what nobody waits for
            with self.lock, suppress(ValueError):
                self.waiting.remove(job)

    # --- threads ---

    def ensure_threads(self) -> None:
        """As many threads as there should be: those that were stopped are replaced once they are gone."""
        with self.lock:
            self.threads = [one for one in self.threads if one.is_alive()]
            while len(self.threads) < self.most and not self.closed:
                # a daemon: whatever it still does, the process can end
                self.threads.append(Thread(target=self.work, name="regard worker", daemon=True))
                self.threads[-1].start()

    def work(self) -> None:
        with suppress(OutOfTime):
            while self.signals.get():
                with self.lock:
                    if not self.waiting:
                        continue
                    job = self.waiting.popleft()
                    self.running.add(job)
                try:
                    if not job.run():
                        return
                finally:
                    with self.lock:
                        self.running.discard(job)

    def close(self) -> None:
        """Nothing is begun any more, and what runs is stopped."""
        with self.lock:
            self.closed = True
            jobs, threads = [*self.waiting, *self.running], list(self.threads)
            self.waiting.clear()
        for job in jobs:
            job.stop(busy())
        for _ in threads:
            self.signals.put(0)
        last = monotonic() + LAST
        for thread in threads:
            thread.join(max(0.0, last - monotonic()))


def busy() -> Refused:
    return Refused("too much is asked at once; ask again in a moment", 429)


def too_long(seconds: float) -> Refused:
    return Refused(f"this takes longer than the {seconds:.0f} s that a request may take; ask for a shorter text", 413)
