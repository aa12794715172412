"""Scheduler: continuous batching: the jobs of all clients advance together, step by step, within a token budget.

A worker is a thread with one core. At every step it takes waiting jobs as far as its budget goes, they join the batch
of their key, all batches advance by one step, and what is finished, cancelled or late leaves at once. Beam searches
run in processes of their own, where they can: threads that compute beside each other wait for Python's lock at each of
the thousand small operations of a step.
Metrics (Prometheus) and logs (a JSON line for every request) say how it goes.
"""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from operator import attrgetter
from threading import Condition, Thread
from time import monotonic
from typing import Any
from weakref import WeakSet

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from regard.decode.beam import Beam
from regard.decode.continuous import ContinuousBeamSearch
from regard.decode.search import DecodingRequest, Hypothesis
from regard.decode.text_generation import ContinuousGeneration, GeneratedToken, TextRequest
from regard.models.transformer import Transformer
from regard.serve.encoding import RequestError
from regard.serve.workers import limit_arenas

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of one application; `GET /metrics` writes them out."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.requests = Counter("regard_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "regard_request_seconds", "Latency.", ["route"], buckets=SECONDS, registry=self.registry
        )
        self.first_token = Histogram(
            "regard_first_token_seconds", "To the first token.", buckets=SECONDS, registry=self.registry
        )
        self.waiting = Gauge("regard_waiting_jobs", "Sentences or texts in the queue.", registry=self.registry)
        self.running = Gauge("regard_running_jobs", "Sentences or texts in running batches.", registry=self.registry)
        self.batch_size = Histogram(
            "regard_batch_size", "Jobs of a batch at a step.", buckets=BATCH_SIZES, registry=self.registry
        )
        self.tokens = Counter("regard_tokens", "Tokens read and written.", ["direction"], registry=self.registry)
        self.rejected = Counter("regard_rejected", "Requests refused as the queue was full.", registry=self.registry)
        self.cancelled = Counter("regard_cancelled", "Requests whose client has gone.", registry=self.registry)
        self.reloads = Counter("regard_reloads", "Models loaded again.", ["outcome"], registry=self.registry)

    def count_search(self, given: "SearchJob", found: Sequence[Hypothesis]) -> None:
        self.tokens.labels("read").inc(len(given.source) + 1)
        self.tokens.labels("written").inc(len(found[0].scores))

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with the fields of its `extra={"fields": {...}}`; no text of a client is logged."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **vars(record).get("fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_json(level: int = logging.INFO) -> None:
    """The records of `regard`, uvicorn and asyncio as lines of JSON on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("regard", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def log_error(error: Exception) -> None:
    """Ours alone, not a client's."""
    if not isinstance(error, ValueError):
        logging.getLogger("regard").error("error in a batch", exc_info=error)


START_SECONDS = 20.0  # for a forked process to answer
JOIN_STEPS = 3  # sentences join a running search at every third step: to encode two at once costs little more than one
ARENAS = 4  # of malloc: the event loop's, and the workers'
END = object()
PAST_DEADLINE = "the request passed its deadline; send less, or allow more time"
NUMBERS = count()


class Job:
    """One sentence, text or call of a client; made on the event loop that waits for it, advanced by a worker.

    Args:
        key: jobs of one key share a batch.
        batch: makes the batch of the key.
        given: what the batch reads.
        tokens: its share of the budget.
        deadline: by `time.monotonic`.
        pool: the processes that take it instead of a worker, as long as there are any; `given` is a `SearchJob` then.
    """

    def __init__(
        self,
        key: Hashable,
        batch: "Callable[[], RunningBatch]",
        given: Any,
        *,
        tokens: int,
        deadline: float,
        pool: "SearchPool | None" = None,
    ):
        self.key, self.batch, self.given = key, batch, given
        self.tokens, self.deadline, self.pool = tokens, deadline, pool
        self.index, self.cancelled = next(NUMBERS), False
        self.loop, self.future, self.parts = asyncio.get_running_loop(), asyncio.Future(), asyncio.Queue()

    # --- on the event loop ---

    async def stream(self) -> AsyncIterator[Any]:
        """The parts as they are sent; then the error, if it failed."""
        while (part := await self.parts.get()) is not END:
            yield part
        self.future.result()

    def settle(self, value: Any, error: Exception | None) -> None:
        if not self.future.done():
            self.future.set_result(value) if error is None else self.future.set_exception(error)
            self.future.exception()  # a client that has gone reads it no more
        self.parts.put_nowait(END)

    # --- on a worker ---

    def send(self, part: Any) -> None:
        self.call(self.parts.put_nowait, part)

    def finish(self, value: Any = None) -> None:
        self.call(self.settle, value, None)

    def fail(self, error: Exception) -> None:
        self.call(self.settle, None, error)

    def call(self, function: Callable[..., Any], *given: Any) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(function, *given)

    def objection(self, now: float) -> RequestError | None:
        """Why it goes on no more."""
        if self.cancelled:
            return RequestError("the client closed the connection", 499)
        return RequestError(PAST_DEADLINE, 408) if (now > self.deadline) else None


# --- batches ---


class RunningBatch(ABC):
    """Abstract: the jobs of one key, which advance together. It is used by one worker."""

    @abstractmethod
    def add(self, jobs: Sequence[Job]) -> None:
        """They join at the next step."""

    @abstractmethod
    def step(self) -> list[Job]:
        """All jobs one step on; those that are finished have their answer."""

    @abstractmethod
    def remove(self, jobs: Sequence[Job]) -> None: ...


@dataclass(frozen=True)
class SearchJob:
    """What the job of a sentence gives: its tokens, those that its translation begins with, and how it is searched."""

    source: tuple[int, ...]
    prefix: tuple[int, ...]
    beam: Beam


class BeamBatch(RunningBatch):
    """Beam search over sentences of different ages, in a worker's thread."""

    def __init__(self, model: Transformer, beam: Beam, metrics: Metrics):
        self.search, self.jobs, self.metrics = ContinuousBeamSearch(model, beam), dict[int, Job](), metrics

    def add(self, jobs):
        self.jobs |= {job.index: job for job in jobs}
        self.search.add([DecodingRequest(job.given.source, job.given.prefix, job.index) for job in jobs])

    def step(self):
        done = []
        for index, found in self.search.step().items():
            done.append(self.jobs.pop(index))
            self.metrics.count_search(done[-1].given, found)
            done[-1].finish(found)
        return done

    def remove(self, jobs):
        self.search.remove({job.index for job in jobs})
        for job in jobs:
            del self.jobs[job.index]


# --- searches in processes of their own ---


class SearchProcess:
    """A forked process with the model, whose weights it shares, and the jobs that it has now."""

    def __init__(self, model: Transformer):
        self.jobs, self.tokens = dict[int, Job](), 0
        context = get_context("fork")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=run_searches, args=(there, model), name="regard search", daemon=True)
        with warnings.catch_warnings():  # of threads, which hold locks that nobody would release in the new process
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        there.close()
        # it ends when this end of the pipe is closed: with this object, or at exit, where terminating it would not help
        Finalize(self, self.pipe.close, exitpriority=0)
        if not self.pipe.poll(START_SECONDS):  # such a lock was held
            self.process.kill()
            raise OSError(f"a search process does not answer within {START_SECONDS:.0f} s")
        self.pipe.recv()

    def hold(self, job: Job) -> None:
        self.jobs[job.index] = job
        self.tokens += job.tokens

    def release(self, index: int) -> Job | None:
        """The job, unless it has left before."""
        if (job := self.jobs.pop(index, None)) is not None:
            self.tokens -= job.tokens
        return job

    def send(self, method: str, given: Any) -> None:
        with suppress(OSError):  # it has died, and reading from it says so
            self.pipe.send((method, given))

    def receive(self) -> tuple[dict[int, Any], list[int]]:
        """The hypotheses of jobs that have ended, or their error; and how many sentences were in each step since."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            gone = RuntimeError(f"a search process has ended (exit code {self.process.exitcode})")
            return dict.fromkeys(self.jobs, gone), []


class SearchPool:
    """The search processes of one model. The event loop hands them sentences and reads what they found by itself: a
    thread between them would wait for Python's lock, step by step.

    Where no process can be forked, or all have died, workers take the jobs.
    """

    def __init__(self, model: Transformer, processes: int, scheduler: "Scheduler"):
        self.model, self.scheduler = model, scheduler
        self.waiting, self.processes = deque[Job](), list[SearchProcess]()
        if sys.platform == "linux":
            self.processes += [SearchProcess(model) for _ in range(processes)]

    @property
    def jobs(self) -> list[Job]:
        return [*self.waiting, *(job for process in self.processes for job in process.jobs.values())]

    # --- on the event loop ---

    def job(self, key: Hashable, given: SearchJob, deadline: float) -> Job:
        batch = partial(BeamBatch, self.model, given.beam, self.scheduler.metrics)
        tokens = (len(given.source) + 1) * given.beam.size
        return Job(key, batch, given, tokens=tokens, deadline=deadline, pool=self)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Each to the process with the fewest tokens, as far as its budget goes."""
        self.waiting += jobs
        self.processes = [one for one in self.processes if one.jobs or one.process.is_alive()]
        if not self.processes:
            self.scheduler.enqueue(self.waiting)
            self.waiting = deque()
        now, taken = monotonic(), dict[SearchProcess, list[Job]]()
        while self.waiting:
            process = min(self.processes, key=attrgetter("tokens"))
            if process.jobs and process.tokens + self.waiting[0].tokens > self.scheduler.max_tokens:
                break
            job = self.waiting.popleft()
            if why := job.objection(now):
                job.settle(None, why)
                continue
            if not process.jobs:
                job.loop.add_reader(process.pipe.fileno(), self.receive, process, job.loop)
            process.hold(job)
            taken.setdefault(process, []).append(job)
        for process, some in taken.items():
            process.send("add", [(job.index, job.given, job.deadline) for job in some])

    def receive(self, process: SearchProcess, loop: asyncio.AbstractEventLoop) -> None:
        """Settles the jobs that have ended; then others have room."""
        ended, sizes = process.receive()
        metrics = self.scheduler.metrics
        for size in sizes:
            metrics.batch_size.observe(size)
        for index, found in ended.items():
            if (job := process.release(index)) is None:  # it was cancelled meanwhile
                continue
            if isinstance(found, Exception):
                log_error(found)
                job.settle(None, found)
            else:
                metrics.count_search(job.given, found)
                job.settle(found, None)
        if not process.jobs:
            loop.remove_reader(process.pipe.fileno())
        self.submit([])

    def cancel(self) -> None:
        """What was cancelled leaves."""
        for job in [one for one in self.waiting if one.cancelled]:
            self.waiting.remove(job)
            job.settle(None, job.objection(0))
        for process in self.processes:
            if gone := [job for job in process.jobs.values() if job.cancelled]:
                process.send("remove", [job.index for job in gone])
                for job in gone:
                    process.release(job.index)
                    job.settle(None, job.objection(0))
                if not process.jobs:
                    gone[0].loop.remove_reader(process.pipe.fileno())
        self.submit([])


class RunningSearches:
    """What a search process runs: a beam search for each kind of beam, which sentences join and leave at any step.

    Args:
        ended: hypotheses or an error for every sentence that is done and was not reported.
        sizes: how many sentences each step had since the last report.
        idle: the search that was over last, whose memory the next one of its kind may use.
    """

    def __init__(self, model: Transformer):
        self.model, self.searches = model, dict[Beam, ContinuousBeamSearch]()
        self.deadlines, self.ended, self.sizes = dict[int, float](), dict[int, Any](), list[int]()
        self.idle: ContinuousBeamSearch | None = None

    def add(self, jobs: Iterable[tuple[int, SearchJob, float]]) -> None:
        by_beam = dict[Beam, list[DecodingRequest]]()
        for index, given, deadline in jobs:
            self.deadlines[index] = deadline
            try:
                request = DecodingRequest(given.source, given.prefix, index)
                by_beam.setdefault(given.beam, []).append(request)
            except ValueError as error:
                self.fail([index], error)
        for beam, requests in by_beam.items():
            if (search := self.searches.get(beam)) is None:
                search, self.idle = self.idle, None
            if search is None or search.beam != beam:
                search = ContinuousBeamSearch(self.model, beam)
            try:
                search.add(requests)
                self.searches[beam] = search
            except Exception as error:
                self.fail([one.index for one in requests], error)

    def remove(self, indices: Collection[int]) -> None:
        for beam, search in [*self.searches.items()]:
            if any(one.index in indices for one in search.requests):
                search.remove(indices)
            if not search.requests:
                self.idle = self.searches.pop(beam)
        for index in indices:
            self.deadlines.pop(index, None)

    def step(self) -> None:
        now = monotonic()
        if late := [index for index, deadline in self.deadlines.items() if now > deadline]:
            self.remove(late)
            self.fail(late, RequestError(PAST_DEADLINE, 408))
        for beam, search in [*self.searches.items()]:
            self.sizes.append(len(search.requests))
            try:
                found = search.step()
            except Exception as error:  # what is left of the search is in no known state
                self.fail([one.index for one in self.searches.pop(beam).requests], error)
                continue
            self.ended |= found
            for index in found:
                del self.deadlines[index]
            if not search.requests:
                self.idle = self.searches.pop(beam)

    def fail(self, indices: Sequence[int], error: Exception) -> None:
        if not isinstance(error, RequestError):  # not all errors can be sent
            error = ValueError(str(error)) if isinstance(error, ValueError) else RuntimeError(repr(error))
        self.ended |= dict.fromkeys(indices, error)
        for index in indices:
            self.deadlines.pop(index, None)

    def report(self) -> tuple[dict[int, Any], list[int]]:
        found, self.ended, self.sizes = (self.ended, self.sizes), {}, []
        return found


def run_searches(pipe: Connection, model: Transformer) -> None:
    """The process: step after step while it has sentences, until nobody holds the other end of the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # for the server, which lets searches end
        signal.signal(number, signal.SIG_IGN)
    close_files_but(pipe.fileno())
    gc.freeze()  # to look for garbage among what both have would copy it
    torch.set_num_threads(1)
    running, added, since = RunningSearches(model), dict[int, tuple[int, SearchJob, float]](), 0
    try:
        pipe.send(None)
        while True:
            while not (running.searches or running.ended or added) or pipe.poll():
                method, given = pipe.recv()
                if method == "add":
                    added |= {one[0]: one for one in given}
                else:
                    running.remove([index for index in given if added.pop(index, None) is None])
            if since >= JOIN_STEPS or not running.searches:
                running.add(added.values())
                added, since = {}, 0
            running.step()
            since += 1
            if running.ended:
                pipe.send(running.report())
    except (EOFError, OSError):
        os._exit(0)  # what a forked process inherited is not its own to clean up


def close_files_but(kept: int) -> None:
    """The server's connections and the pipes of other processes, which would stay open here when it closes them."""
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2 and number != kept:
            with suppress(OSError):
                os.close(number)


# --- calls and texts ---


class CallBatch(RunningBatch):
    """One call for all jobs: they come with lists of inputs, and each takes its part of the outputs.

    Where the call fails each job is tried alone, so that a client's bad input is its own.

    Args:
        call: from a list of inputs to their outputs.
    """

    def __init__(self, call: Callable[[list[Any]], Sequence[Any]]):
        self.call, self.jobs = call, list[Job]()

    def add(self, jobs):
        self.jobs += jobs

    def step(self):
        jobs, self.jobs = self.jobs, []
        try:
            found = iter(self.call([one for job in jobs for one in job.given]))
            answers = [[next(found) for _ in job.given] for job in jobs]
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].fail(error)
                return jobs
            return [done for job in jobs for done in self.alone(job)]
        for job, answer in zip(jobs, answers, strict=True):
            job.finish(answer)
        return jobs

    def alone(self, job: Job) -> list[Job]:
        self.jobs = [job]
        return self.step()

    def remove(self, jobs):
        self.jobs = [job for job in self.jobs if job not in jobs]


@dataclass(eq=False)
class TokenFeed:
    """The tokens of a text as an iterator that is fed from step to step."""

    waiting: deque[GeneratedToken] = field(default_factory=deque)
    closed: bool = False

    def __iter__(self) -> Iterator[GeneratedToken]:
        while self.waiting or not self.closed:
            yield self.waiting.popleft()


@dataclass(frozen=True)
class GenerationJob:
    """What a text's job gives: the prompt and how it is continued, and from its tokens the parts that are sent: one for
    every token, and those at the end."""

    request: TextRequest
    parts: Callable[[Iterator[GeneratedToken]], Iterator[Any]]


class GenerationBatch(RunningBatch):
    """Texts that a language model continues together; a job's `given` is a `GenerationJob`, whose parts are sent as
    they come. A part that has a `finish` is a text's last.

    Args:
        batch: makes the batch of texts.
    """

    def __init__(self, batch: Callable[[], ContinuousGeneration], metrics: Metrics):
        self.batch, self.metrics, self.jobs = batch(), metrics, dict[int, Job]()
        self.streams: dict[int, tuple[TokenFeed, Iterator[Any]]] = {}

    def add(self, jobs):
        for job in jobs:
            feed, given = TokenFeed(), job.given
            self.jobs[job.index], self.streams[job.index] = job, (feed, given.parts(iter(feed)))
            self.batch.add([replace(given.request, index=job.index)])
            self.metrics.tokens.labels("read").inc(len(given.request.prompt))

    def step(self):
        step, done = self.batch.step(), list[Job]()
        finished = {*step.finished}
        for index, tokens in step.tokens.items():
            job = self.jobs[index]
            try:
                if self.send(job, tokens, last=index in finished):
                    job.finish()
                    done.append(job)
            except Exception as error:
                job.fail(error)
                done.append(job)
        self.metrics.tokens.labels("written").inc(sum(map(len, step.tokens.values())))
        self.remove(done)
        return done

    def send(self, job: Job, tokens: Sequence[GeneratedToken], *, last: bool) -> bool:
        """Whether the text is finished."""
        feed, parts = self.streams[job.index]
        for token in tokens:
            feed.waiting.append(token)
            part = next(parts)
            job.send(part)
            if part.finish is not None:
                return True
        if last:
            feed.closed = True
            for part in parts:
                job.send(part)
        return last

    def remove(self, jobs):
        self.batch.remove({job.index for job in jobs})
        for job in jobs:
            del self.jobs[job.index], self.streams[job.index]


# --- workers ---


@dataclass(eq=False)
class Worker:
    """A thread, and what it runs: its jobs, and the batch of each key."""

    thread: Thread | None = None
    jobs: list[Job] = field(default_factory=list)
    batches: dict[Hashable, RunningBatch] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(job.tokens for job in self.jobs)

    def release(self, done: Sequence[Job]) -> None:
        gone = {*done}
        self.jobs = [job for job in self.jobs if job not in gone]
        keys = {job.key for job in self.jobs}
        for key in self.batches.keys() - keys:
            del self.batches[key]


class Scheduler:
    """Waiting jobs, and the workers that take them.

    Args:
        workers: how many; each uses one core.
        max_waiting: jobs that wait at most; more are refused.
        max_tokens: the budget of a worker, source tokens × beams; one job alone may exceed it.
    """

    def __init__(self, metrics: Metrics, *, workers: int, max_waiting: int, max_tokens: int):
        self.metrics, self.max_waiting, self.max_tokens = metrics, max_waiting, max_tokens
        self.waiting, self.changed, self.closing, self.ending = deque[Job](), Condition(), False, False
        self.pools: WeakSet[SearchPool] = WeakSet()  # those that had jobs
        metrics.waiting.set_function(self.count_waiting)
        metrics.running.set_function(self.count_running)
        self.workers = [Worker() for _ in range(workers)]
        limit_arenas(ARENAS)

    def start(self) -> None:
        for number, worker in enumerate(self.workers):
            # a daemon, so that the process can exit
            worker.thread = Thread(target=self.work, args=(worker,), name=f"regard worker {number}", daemon=True)
            worker.thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """All of them, or none if too many wait."""
        if self.closing:
            raise RequestError("the server is shutting down; ask another one", 503)
        if self.count_waiting() + len(jobs) > self.max_waiting:
            self.metrics.rejected.inc()
            raise RequestError("too many requests; retry in a moment", 429)
        for pool in {job.pool for job in jobs if job.pool is not None}:
            self.pools.add(pool)
            pool.submit([job for job in jobs if job.pool is pool])
        if own := [job for job in jobs if job.pool is None]:
            self.enqueue(own)

    def enqueue(self, jobs: Iterable[Job]) -> None:
        """For the workers."""
        with self.changed:
            self.waiting += jobs
            self.changed.notify_all()

    def count_waiting(self) -> int:
        return len(self.waiting) + sum(len(pool.waiting) for pool in self.pools)

    def count_running(self) -> int:
        pooled = sum(len(pool.jobs) - len(pool.waiting) for pool in self.pools)
        return pooled + sum(len(worker.jobs) for worker in self.workers)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """They leave at the next step."""
        for job in jobs:
            job.cancelled = True
        for pool in {job.pool for job in jobs if job.pool is not None}:
            pool.cancel()
        with self.changed:
            self.changed.notify_all()

    async def close(self) -> None:
        """Ends when nothing waits or runs any more."""
        self.closing = True
        for pool in [*self.pools]:
            await asyncio.gather(*(job.future for job in pool.jobs), return_exceptions=True)
        with self.changed:
            self.ending = True
            self.changed.notify_all()
        for worker in self.workers:
            if worker.thread is not None:
                await asyncio.to_thread(worker.thread.join)

    # --- on a worker ---

    def work(self, worker: Worker) -> None:
        torch.set_num_threads(1)
        while (jobs := self.take(worker)) is not None:
            self.admit(worker, jobs)
            for key, batch in list(worker.batches.items()):
                self.advance(worker, key, batch)

    def take(self, worker: Worker) -> list[Job] | None:
        """The jobs that join at the next step: the worker's share of all; None at the end."""
        with self.changed:
            while not self.waiting and not worker.jobs:
                if self.ending:
                    return None
                self.changed.wait()
            taken, running = list[Job](), worker.tokens
            share = (sum(one.tokens for one in self.workers) + sum(job.tokens for job in self.waiting)) / len(
                self.workers
            )
            while self.waiting and (
                not running or (running < share and running + self.waiting[0].tokens <= self.max_tokens)
            ):
                taken.append(self.waiting.popleft())
                running += taken[-1].tokens
            worker.jobs += taken
            return taken

    def admit(self, worker: Worker, jobs: Sequence[Job]) -> None:
        now, by_key = monotonic(), dict[Hashable, list[Job]]()
        for job in jobs:
            by_key.setdefault(job.key, []).append(job)
        for key, group in by_key.items():
            self.drop(worker, None, [(job, why) for job in group if (why := job.objection(now))])
            if group := [job for job in group if job in worker.jobs]:
                try:
                    batch = worker.batches.get(key) or group[0].batch()
                    batch.add(group)
                    worker.batches[key] = batch
                except Exception as error:
                    self.drop(worker, None, [(job, error) for job in group])

    def advance(self, worker: Worker, key: Hashable, batch: RunningBatch) -> None:
        mine = [job for job in worker.jobs if job.key == key]
        now = monotonic()
        if late := [(job, why) for job in mine if (why := job.objection(now))]:
            self.drop(worker, batch, late)
            if len(late) == len(mine):
                return
        self.metrics.batch_size.observe(len(mine) - len(late))
        try:
            worker.release(batch.step())
        except Exception as error:  # what is left of the batch is in no known state
            del worker.batches[key]
            self.drop(worker, None, [(job, error) for job in worker.jobs if job.key == key])

    def drop(self, worker: Worker, batch: RunningBatch | None, jobs: Sequence[tuple[Job, Exception]]) -> None:
        """Jobs that end without a result."""
        if not jobs:
            return
        if batch is not None:
            batch.remove([job for job, _ in jobs])
        for job, why in jobs:
            log_error(why)
            job.fail(why)
        worker.release([job for job, _ in jobs])
