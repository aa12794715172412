"""The API under load: its own clients on this machine against `regard api`, in processes of their own.

    python benchmarks/api_load.py                     trains a small translator first; writes results/api-load.json
    python benchmarks/api_load.py --train                 only that, and ends: before the machine is left alone
    python benchmarks/api_load.py --only throughput half  under four minutes once they are trained; writes them into
                                                          the results' file, in which the other parts stay

throughput   one client that waits for each answer, then 64 at once: sentences a second; the command line's answers
completions  one client of a language model, then 16 at once: the server's CPU time for a token; the model's own texts
half         requests that arrive at random, half as many as 64 clients get answered, in turns with one client alone, as
             a machine's speed drifts: the 99th percentile of the latency, against the median of one alone and against
             its 99th percentile
term         64 clients, and kill -TERM: requests on open connections that were not answered
malformed    10,000 bodies that are no requests: answers above 499
hang_up      500 clients that close the connection in the middle of a stream: the server's memory before and after
"""

import argparse
import asyncio
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import RESULTS, write
from regard.world import World, translation_pairs

PARTS = ("throughput", "completions", "half", "term", "malformed", "hang_up")
CLIENTS, SENTENCES = 64, 400
WRITERS, PROMPTS, NEW_TOKENS = 16, 40, 50
ALONE_SECONDS, LOAD_SECONDS, HALF_SECONDS, TERM_SECONDS = 15.0, 120.0, 60.0, 3.0
TURNS = 6  # of one client alone, and of half the load
MALFORMED, HANG_UPS = 10_000, 500
COMMAND = [sys.executable, "-m", "regard"]


# --- the server ---


@dataclass
class Running:
    """A server, and where it listens."""

    process: subprocess.Popen[str]
    port: int

    def processes(self) -> list[int]:
        """The server, and its search processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    def cpu_seconds(self) -> float:
        """Of all threads and processes so far: what a request costs, whatever else runs on the machine."""
        spent = 0
        for pid in self.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
        return spent / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """Resident now, what processes share counted once."""
        found = 0
        for pid in self.processes():
            status = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found += int(re.findall(r"(?m)^Pss:\s+(\d+)", status)[0])
        return found / 1024


@contextmanager
def serving(*runs: Path, options: tuple[str, ...] = ()) -> Iterator[Running]:
    command = [*COMMAND, "api", *map(str, runs), "--port", "0", *options]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            found = Running(process, int(re.findall(r":(\d+)/", process.stdout.readline())[0]))
            asyncio.run(until_ready(found.port))
            yield found
        finally:
            process.terminate()
            process.wait(90)
            log.seek(0)
            for entry in log:
                if '"level": "error"' in entry:
                    print(entry, file=sys.stderr, end="")


async def until_ready(port: int) -> None:
    for _ in range(600):
        try:
            async with connection(port) as client:
                if (await client.ask("GET", "/ready"))[0] == 200:
                    return
        except OSError:
            await asyncio.sleep(0.1)
    raise SystemExit("the server is not ready after a minute")


# --- clients ---


class ConnectionLost(Exception):
    """The server closed the connection before it answered."""


@dataclass
class Client:
    """One connection, which is kept open from request to request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    closed: bool = False

    async def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            answer = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(re.findall(r"content-length: (\d+)", answer)[0])
            content = await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as lost:
            raise ConnectionLost from lost
        self.closed = "connection: close" in answer
        return int(answer.split()[1]), content


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@dataclass
class Tally:
    """What clients saw: seconds of each answer, by status, and answers that are not the command line's."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    differing: int = 0
    lost: int = 0

    def count(self, status: object) -> None:
        self.statuses[str(status)] = self.statuses.get(str(status), 0) + 1

    def add(self, other: "Tally") -> None:
        self.seconds += other.seconds
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count
        self.differing += other.differing
        self.lost += other.lost

    @property
    def errors(self) -> int:
        return sum(n for status, n in self.statuses.items() if status not in ("200", "429"))

    def quantile(self, share: float) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


Ask = Callable[[Client, str, str, Tally], Awaitable[int]]


def translate_body(text: str) -> bytes:
    return json.dumps({"q": text, "source": "en", "target": "fr"}).encode()


async def translate_once(client: Client, text: str, expected: str, tally: Tally) -> int:
    begin = time.perf_counter()
    status, content = await client.ask("POST", "/translate", translate_body(text))
    tally.count(status)
    if status == 200:
        tally.seconds.append(time.perf_counter() - begin)
        tally.differing += json.loads(content)["translatedText"] != expected
    return status


async def complete_once(client: Client, text: str, expected: str, tally: Tally) -> int:
    begin = time.perf_counter()
    body = {"model": "writer", "prompt": text, "max_tokens": NEW_TOKENS, "temperature": 0.8, "seed": len(text)}
    status, content = await client.ask("POST", "/v1/completions", json.dumps(body).encode())
    tally.count(status)
    if status == 200:
        tally.seconds.append(time.perf_counter() - begin)
        tally.differing += json.loads(content)["choices"][0]["text"] != expected
    return status


async def closed_loop(
    port: int, known: dict[str, str], clients: int, seconds: float, ask: Ask = translate_once, *, first: int = 0
) -> tuple[Tally, float]:
    """Clients that ask again as soon as they are answered, the first with this number; answers a second."""
    tally, texts, end = Tally(), list(known), time.perf_counter() + seconds

    async def run(number: int) -> None:
        draw = random.Random(number)
        async with connection(port) as client:
            while time.perf_counter() < end:
                text = draw.choice(texts)
                if await ask(client, text, known[text], tally) == 429:
                    await asyncio.sleep(0.05)

    begin = time.perf_counter()
    await asyncio.gather(*(run(first + number) for number in range(clients)))
    return tally, len(tally.seconds) / (time.perf_counter() - begin)


async def open_loop(port: int, known: dict[str, str], rate: float, seconds: float, seed: int) -> Tally:
    """Requests that arrive at random, so many a second, whether others were answered or not."""
    tally, texts, draw = Tally(), list(known), random.Random(seed)
    idle, tasks = list[Client](), list[asyncio.Task[None]]()

    async def one(text: str) -> None:
        begin = time.perf_counter()
        while idle and idle[-1].reader.at_eof():  # closed by the server, as nobody asked for a while
            idle.pop().writer.close()
        client = idle.pop() if idle else Client(*await asyncio.open_connection("127.0.0.1", port))
        await translate_once(client, text, known[text], tally)
        tally.seconds[-1] = time.perf_counter() - begin
        idle.append(client)

    end, due = time.perf_counter() + seconds, time.perf_counter()
    while due < end:
        due += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(draw.choice(texts))))
    await asyncio.gather(*tasks)
    for client in idle:
        client.writer.close()
    return tally


async def until_closed(server: Running, known: dict[str, str]) -> Tally:
    """kill -TERM while all clients wait for answers; each goes on until its connection is closed or refused."""
    tally, texts = Tally(), list(known)

    async def run(number: int) -> None:
        draw = random.Random(number)
        while True:
            try:
                async with connection(server.port) as client:
                    while not client.closed:
                        text = draw.choice(texts)
                        await translate_once(client, text, known[text], tally)
            except ConnectionLost:
                tally.lost += 1
                return
            except OSError:  # nobody listens any more: it was not accepted
                return

    running = [asyncio.create_task(run(number)) for number in range(CLIENTS)]
    await asyncio.sleep(TERM_SECONDS)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*running)
    return tally


# --- bodies that are no requests, and clients that go away ---


def malformed_bodies(count: int) -> Iterator[tuple[str, str, bytes]]:
    """Bytes at random, bodies cut short or with a byte changed, values of other types: path, content type, body."""
    draw = random.Random(0)
    paths = ("/translate", "/v1/completions", "/models/translator/translate", "/models/translator/attention")
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        10**400,
        1e308,
        "",
        "\ud800",
        "\0",
        [],
        [[]] * 9,
        {"a": {}},
        "x" * 9999,
        ["en"] * 200,
    ]
    names = ["q", "source", "target", "format", "alternatives", "model"]
    names += ["prompt", "max_tokens", "n", "stop", "texts", "beam"]
    for _ in range(count):
        good = {"q": "the cat", "source": "en", "target": "fr", "model": "writer", "texts": ["a"], "text": "a cat"}
        kind = draw.choice(("application/json",) * 4 + ("application/x-www-form-urlencoded", "text/html"))
        match draw.randrange(4):
            case 0:
                body = draw.randbytes(draw.randrange(200))
            case 1:
                body = json.dumps(good).encode()[: draw.randrange(60)]
            case 2:
                body = bytearray(json.dumps(good).encode())
                body[draw.randrange(len(body))] = draw.randrange(256)
            case _:
                body = json.dumps(good | {name: draw.choice(values) for name in draw.sample(names, 3)}).encode()
        yield draw.choice(paths), kind, bytes(body)


async def send_malformed(port: int, count: int) -> Tally:
    tally, bodies = Tally(), malformed_bodies(count)

    async def run() -> None:
        async with connection(port) as client:
            for path, kind, body in bodies:
                status, _ = await client.ask("POST", path, body, kind)
                tally.count(status)

    await asyncio.gather(*(run() for _ in range(8)))
    return tally


async def hang_up(port: int, count: int) -> None:
    """Half of them in the middle of a stream, half while they wait for a translation."""
    body = json.dumps({"model": "writer", "prompt": "the", "max_tokens": 2000, "stream": True}).encode()

    async def run(number: int) -> None:
        async with connection(port) as client:
            path, sent = ("/v1/completions", body) if number % 2 else ("/translate", translate_body("the cat " * 40))
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            client.writer.write(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
            await client.writer.drain()
            if number % 2:
                await client.reader.readuntil(b"data: ")
            await asyncio.sleep(0.02)
            client.writer.transport.abort()

    for first in range(0, count, 20):
        await asyncio.gather(*(run(number) for number in range(first, min(count, first + 20))))


async def running_jobs(port: int) -> float:
    async with connection(port) as client:
        _, text = await client.ask("GET", "/metrics")
    return sum(float(value) for value in re.findall(rb"(?m)^regard_(?:running|waiting)_jobs (\S+)", text))


# --- models, and what the command line says ---


def train_models(folder: Path) -> tuple[Path, Path]:
    """A small translator of the miniature world, and a language model."""
    import regard

    translator, writer = folder / "translator", folder / "writer"
    if not (translator / "model.safetensors").exists():
        small = {"data.sentences": 20_000, "data.max_length": 12, "text.kind": "words", "text.joint": False}
        how = {"train.steps": 400, "train.batch_size": 768, "train.learning_rate": 2e-3, "train.warmup_steps": 60}
        regard.train(
            out=translator, size="small", **small, **how, **{"model.dropout": 0.0, "train.validate_every": 200}
        )
    if not (writer / "model.safetensors").exists():
        regard.train("language_modeling", out=writer, steps=60)
    return translator, writer


def command_line(run: Path, texts: list[str]) -> dict[str, str]:
    found = subprocess.run(
        [*COMMAND, "translate", str(run), "-"],
        input="\n".join(texts) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(texts, found.stdout.splitlines(), strict=True))


# --- the measurements ---


def measure_throughput(server: Running, known: dict[str, str]) -> dict[str, Any]:
    begin = server.cpu_seconds()
    alone, one = asyncio.run(closed_loop(server.port, known, 1, ALONE_SECONDS))
    middle = server.cpu_seconds()
    own, begun = time.process_time(), time.perf_counter()
    many, rate = asyncio.run(closed_loop(server.port, known, CLIENTS, LOAD_SECONDS))
    own, begun = time.process_time() - own, time.perf_counter() - begun
    return {
        "alone_cpu_ms": 1e3 * (middle - begin) / len(alone.seconds),
        "cpu_ms": 1e3 * (server.cpu_seconds() - middle) / len(many.seconds),
        "client_cpu_ms": 1e3 * own / len(many.seconds),  # of this process, on the same cores
        "client_share_of_a_core": own / begun,
        "server_cores": (server.cpu_seconds() - middle) / begun,
        "alone_per_second": one,
        "alone_median_ms": 1e3 * alone.quantile(0.5),
        "alone_p99_ms": 1e3 * alone.quantile(0.99),
        "clients": CLIENTS,
        "per_second": rate,
        "ratio": rate / one,
        "median_ms": 1e3 * many.quantile(0.5),
        "p99_ms": 1e3 * many.quantile(0.99),
        "answers": many.statuses,
        "errors": many.errors + alone.errors,
        "differing": many.differing + alone.differing,
    }


def own_texts(writer: Path, prompts: list[str]) -> dict[str, str]:
    """What the model generates after each prompt alone."""
    import regard

    generator: Any = regard.load(writer).task_model
    return {text: generator.generate(text, tokens=NEW_TOKENS, seed=len(text)).generated for text in prompts}


def measure_completions(server: Running, known: dict[str, str]) -> dict[str, Any]:
    asyncio.run(closed_loop(server.port, known, WRITERS, 2.0, complete_once))  # warm
    found: dict[str, Any] = {"tokens": NEW_TOKENS, "clients": WRITERS, "errors": 0, "differing": 0}
    for name, clients in (("alone", 1), ("together", WRITERS)):
        begin = server.cpu_seconds()
        tally, rate = asyncio.run(closed_loop(server.port, known, clients, ALONE_SECONDS, complete_once))
        spent = server.cpu_seconds() - begin
        found[f"{name}_cpu_ms_per_token"] = 1e3 * spent / (len(tally.seconds) * NEW_TOKENS)
        found[f"{name}_tokens_per_second"] = rate * NEW_TOKENS
        found["errors"] += tally.errors
        found["differing"] += tally.differing
    found["cpu_ratio"] = found["alone_cpu_ms_per_token"] / found["together_cpu_ms_per_token"]
    return found


def measure_half(port: int, known: dict[str, str], rate: float) -> dict[str, Any]:
    alone, half = Tally(), Tally()
    for turn in range(TURNS):
        alone.add(asyncio.run(closed_loop(port, known, 1, ALONE_SECONDS / TURNS, first=turn))[0])
        half.add(asyncio.run(open_loop(port, known, rate, HALF_SECONDS / TURNS, turn)))
    return {
        "per_second": rate,
        "alone_median_ms": 1e3 * alone.quantile(0.5),
        "alone_p99_ms": 1e3 * alone.quantile(0.99),
        "median_ms": 1e3 * half.quantile(0.5),
        "p99_ms": 1e3 * half.quantile(0.99),
        "median_over_alone": half.quantile(0.5) / alone.quantile(0.5),
        "p99_over_alone": half.quantile(0.99) / alone.quantile(0.5),
        "p99_over_p99_alone": half.quantile(0.99) / alone.quantile(0.99),
        "errors": half.errors + alone.errors,
        "differing": half.differing + alone.differing,
    }


def measure(translator: Path, writer: Path, parts: list[str], options: tuple[str, ...]) -> dict[str, Any]:
    pairs = translation_pairs(World(min_length=3, max_length=12), "fr", SENTENCES, "test")
    known, found = command_line(translator, [source for source, _ in pairs]), dict[str, Any]()
    with serving(translator, writer, options=options) as server:
        asyncio.run(closed_loop(server.port, known, CLIENTS, 3.0))  # warm
        if {"throughput", "half"} & {*parts}:
            found["throughput"] = measure_throughput(server, known)
            print(found["throughput"], flush=True)
            if "half" in parts:
                found["half"] = measure_half(server.port, known, found["throughput"]["per_second"] / 2)
                print(found["half"], flush=True)
        if "completions" in parts:
            found["completions"] = measure_completions(server, own_texts(writer, list(known)[:PROMPTS]))
            print(found["completions"], flush=True)
        if "malformed" in parts:
            tally = asyncio.run(send_malformed(server.port, MALFORMED))
            above = sum(n for status, n in tally.statuses.items() if int(status) >= 500)
            found["malformed"] = {"bodies": MALFORMED, "statuses": tally.statuses, "server_errors": above}
            print(found["malformed"], flush=True)
        if "hang_up" in parts:
            asyncio.run(hang_up(server.port, 100))  # warm
            before = server.memory_mib()
            asyncio.run(hang_up(server.port, HANG_UPS))
            time.sleep(2.0)
            left = asyncio.run(running_jobs(server.port))
            found["hang_up"] = {
                "clients": HANG_UPS,
                "before_mib": before,
                "after_mib": server.memory_mib(),
                "jobs_left": left,
            }
            print(found["hang_up"], flush=True)
        if "term" in parts:
            tally = asyncio.run(until_closed(server, known))
            code = server.process.wait(90)
            answered = {"answers": tally.statuses, "differing": tally.differing}
            found["term"] = {"clients": CLIENTS, **answered, "lost": tally.lost, "exit_code": code}
            print(found["term"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", type=Path, default=Path("out") / "api-load", help="where the models are, or are trained"
    )
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--options", nargs="*", default=[], help="of regard api, as workers=1")
    parser.add_argument("--train", action="store_true", help="train the models, and end")
    given = parser.parse_args()
    options = tuple(word for one in given.options for word in (f"--{one.partition('=')[0]}", one.partition("=")[2]))
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    models = train_models(given.models)
    if given.train:
        return
    found = measure(*models, given.only, options)
    load = os.getloadavg()[1]  # of the last five minutes: above the number of cores, wall times say little
    if "throughput" in given.only and not options:
        command = shlex.join(["python", "benchmarks/api_load.py", *sys.argv[1:]])
        path = RESULTS / "api-load.json"
        if {*given.only} != {*PARTS} and path.exists():  # the others as they were measured before
            found = json.loads(path.read_text())["rows"][0] | found
        print(write("api-load", command, [found], load_average=load))
    elif given.only == ["completions"]:
        command = shlex.join(["python", "benchmarks/api_load.py", "--only", "completions", *map(str, given.options)])
        print(write("api-completions", command, [found["completions"]], load_average=load))


if __name__ == "__main__":
    main()
