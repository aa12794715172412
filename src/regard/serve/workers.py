"""Worker threads: a thread pool with a queue limit and a time limit per request.

    answer = await workers.run(function)         RequestError 429 if too many wait, 413 if its time is up

A thread cannot be killed, and a model's computation does not poll for cancellation. Python can raise an exception
inside another thread, at its next bytecode; the thread then unwinds as after any other exception and ends, and with it
its thread-local state (torch's gradient mode, ...).
"""

import asyncio
import ctypes
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from regard.serve.encoding import ClosableIterator, RequestError

THREADS, WAITING = 4, 16
SECONDS = 60.0  # time limit of a request
QUEUE_SECONDS = 10.0  # time limit of waiting for a thread
POLL_SECONDS = 0.2  # how often dead threads are replaced
SHUTDOWN_SECONDS = 1.0  # for threads to unwind at shutdown
M_ARENA_MAX, ARENAS = -8, 2  # an option of glibc's mallopt; the main thread's arena, and one for all workers

Value = TypeVar("Value")


class WorkerTimeout(BaseException):
    """Raised inside a running job; a BaseException, so that `except Exception` does not catch it."""


def close_when_idle(parts: ClosableIterator[Any]) -> None:
    """As soon as no thread asks it for its next part any more."""
    while True:
        try:
            return parts.close()
        except ValueError:  # it is executing
            sleep(POLL_SECONDS)


class WorkItem(Generic[Value]):
    """A function for a worker thread, and the future of its result."""

    def __init__(self, function: Callable[[], Value]):
        self.function = function
        self.future: Future[Value] = Future()
        self.lock = Lock()
        self.started_at: float | None = None
        self.thread: int | None = None  # that runs it now
        self.stopped = False

    def run(self) -> bool:
        """Returns whether the thread may take another job."""
        with self.lock:
            if self.stopped or not self.future.set_running_or_notify_cancel():
                return True
            self.started_at, self.thread = monotonic(), get_ident()
        value, trouble = None, None
        try:
            value = self.function()
        except BaseException as error:  # passed on to the future
            trouble = error
        with self.lock:  # from here on nothing may be raised in this thread, which now holds shared locks
            self.thread = None
            if self.stopped:
                raise_in_thread(get_ident(), None)
                return False
        if trouble is None:
            self.future.set_result(value)  # type: ignore[arg-type]
        else:
            self.future.set_exception(trouble)
        del self, trouble  # the traceback refers to this frame: a reference cycle would keep the request in memory
        return True

    def stop(self, why: RequestError) -> None:
        """Sets the exception of the future, whatever the thread still does; a finished result stays."""
        with self.lock:
            if self.started_at is not None and self.thread is None:
                return
            self.stopped = True
            if self.thread is not None:
                raise_in_thread(self.thread, WorkerTimeout)
        with suppress(InvalidStateError):  # already stopped or cancelled
            self.future.set_exception(why)


def raise_in_thread(thread: int, kind: type[BaseException] | None) -> None:
    """At the thread's next bytecode; None clears an exception that was not raised yet."""
    what = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)


class Workers:
    """A bounded thread pool with a bounded queue, usable from any event loop."""

    def __init__(
        self,
        *,
        threads: int = THREADS,
        waiting: int = WAITING,
        time_limit: float = SECONDS,
        queue_timeout: float = QUEUE_SECONDS,
    ):
        self.max_threads, self.max_waiting, self.time_limit, self.queue_timeout = (
            threads,
            waiting,
            time_limit,
            queue_timeout,
        )
        self.threads: list[Thread] = []
        self.waiting: deque[WorkItem] = deque()
        self.running: set[WorkItem] = set()
        self.signals: SimpleQueue[int] = SimpleQueue()  # 1 for every job; 0 ends a thread
        self.lock = Lock()
        self.closed = False
        limit_arenas(ARENAS)

    async def run(self, function: Callable[[], Value]) -> Value:
        """The result; RequestError if the queue is full, or a time limit is exceeded."""
        with self.lock:
            if len(self.waiting) >= self.max_waiting:
                raise too_many_requests()
        return await self.run_item(function, self.queue_timeout)

    async def iterate(self, parts: ClosableIterator[Value]) -> AsyncIterator[Value]:
        """The parts of a stream that has begun: they may wait for a thread, but are not refused any more. Once nobody
        reads them, it is closed."""
        part = end = object()
        try:
            while (part := await self.run_item(lambda: next(parts, end), self.time_limit)) is not end:
                yield part  # type: ignore[misc]
        finally:
            if part is not end:
                with self.lock:
                    self.waiting.append(WorkItem(lambda: close_when_idle(parts)))
                self.signals.put(1)

    async def run_item(self, function: Callable[[], Value], timeout: float) -> Value:
        job = WorkItem(function)
        last = monotonic() + timeout
        with self.lock:
            self.waiting.append(job)
        self.signals.put(1)
        answer = asyncio.wrap_future(job.future)
        try:
            while job.started_at is None and not answer.done() and monotonic() < last:
                self.ensure_threads()
                await asyncio.wait([answer], timeout=min(POLL_SECONDS, timeout))
            if job.started_at is None and not answer.done():
                job.stop(too_many_requests())
            elif job.started_at is not None:
                await asyncio.wait([answer], timeout=job.started_at + self.time_limit - monotonic())
                job.stop(time_exceeded(self.time_limit))
            return await answer
        finally:
            answer.cancel()  # no thread starts an abandoned job
            with self.lock, suppress(ValueError):
                self.waiting.remove(job)
            del job, answer  # an exception refers to this frame, and both to the exception

    # --- threads ---

    def ensure_threads(self) -> None:
        """Starts missing threads: stopped ones are replaced once they are gone."""
        with self.lock:
            self.threads = [one for one in self.threads if one.is_alive()]
            while len(self.threads) < self.max_threads and not self.closed:
                # a daemon, so that the process can exit
                self.threads.append(Thread(target=self.work, name="regard worker", daemon=True))
                self.threads[-1].start()

    def work(self) -> None:
        with suppress(WorkerTimeout):
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
                    del job  # an idle thread keeps no result

    def close(self) -> None:
        """Stops the running jobs and refuses new ones."""
        with self.lock:
            self.closed = True
            jobs, threads = [*self.waiting, *self.running], list(self.threads)
            self.waiting.clear()
        for job in jobs:
            job.stop(too_many_requests())
        for _ in threads:
            self.signals.put(0)
        last = monotonic() + SHUTDOWN_SECONDS
        for thread in threads:
            thread.join(max(0.0, last - monotonic()))


def limit_arenas(count: int) -> None:
    """Sets how many arenas malloc creates: each keeps up to 64 MiB of freed memory, and every thread has its own."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, count)


def too_many_requests() -> RequestError:
    return RequestError("too many requests; retry in a moment", 429)


def time_exceeded(seconds: float) -> RequestError:
    return RequestError(f"the request exceeds its time limit of {seconds:.0f} s; send a shorter text", 413)
