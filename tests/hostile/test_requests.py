"""Hostile requests: every route fuzzed, requests half-sent, too many or too dear; a sentence each time, never a 5xx."""

import asyncio
import gc
import importlib
import json
import os
import random
import signal
import socket
import time
import weakref
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from io import BytesIO
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from PIL import Image

from regard.see import trace_model
from regard.serve import app as serving
from regard.serve import security
from regard.serve import server as serve_server
from regard.serve.app import GET_ROUTES, POST_ROUTES, create_app
from regard.serve.encoding import ApiResponse, RequestError, json_response
from regard.serve.exports import export_bytes
from regard.serve.model_store import ModelStore
from regard.serve.security import BodyBudget
from regard.serve.trace_cache import ENTRY_BYTES, ArrayCache, CachedTrace, TraceCache
from regard.serve.workers import Workers
from tests.forks import start_program
from tests.see.untrained_models import CAT, image_classifier, tagger
from tests.serve.client import TOKEN, assert_sentence, client_of, example, learners, post_trace, site_path, visitor

ROOT = Path(__file__).parents[2]
COOKIE = f"regard-80={TOKEN}"


@pytest.fixture
def machine(monkeypatch) -> Any:
    """benchmarks/machine.py, which knows how much memory a process holds."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("machine")


def held_mib(machine: Any) -> float:
    machine.forget_peak()
    return machine.peak_mib()


@contextmanager
def costs(machine: Any, *, mib: float, seconds: float) -> Iterator[None]:
    """What happens meanwhile may take at most so much; the time is the processor's, whoever else is at work."""
    before, start = held_mib(machine), time.process_time()
    yield
    grown, spent = machine.peak_mib() - before, time.process_time() - start
    print(f"{grown:.0f} MiB, {spent:.2f} s")
    assert grown < mib
    assert spent < seconds


# --- requests that nobody should send ---


@dataclass(frozen=True)
class Sent:
    """A request as bytes, which no client of good manners would let through."""

    method: str
    path: str
    query: bytes = b""
    headers: dict[str, bytes] = field(default_factory=dict)
    parts: tuple[bytes, ...] = (b"",)


async def tell(app: Any, sent: Sent, *, whole: bool = True) -> tuple[int, dict[bytes, bytes], bytes]:
    """The status, headers and body of the answer; a request that is not whole ends when its client is gone."""
    headers = {"host": b"127.0.0.1", "cookie": COOKIE.encode()} | sent.headers
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": sent.method, "scheme": "http"}
    scope |= {"path": sent.path, "raw_path": quote(sent.path).encode(), "root_path": "", "query_string": sent.query}
    scope |= {"headers": [(name.encode(), value) for name, value in headers.items()]}
    scope |= {"server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9), "state": {}}
    waiting, received = list(sent.parts), []

    async def receive() -> dict[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting) or not whole}
        await asyncio.sleep(0.2 if not whole else 3600)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        received.append(message)

    await app(scope, receive, send)
    start = received[0]
    return start["status"], dict(start["headers"]), b"".join(one.get("body", b"") for one in received[1:])


HUGE = [
    "-1",
    "0",
    "1",
    "2",
    "7",
    "00",
    "1e9",
    "+3",
    "²",
    "٣",
    "0x10",
    "1_0",
    "2147483648",
    "9" * 9,
    "9" * 19,
    "9" * 400,
]
ODD = ["", " ", ".", "..", "%00", "\0", "a/b", "‮", "é", "\ud800", "<script>", "'; --", "x" * 3000, "null", "[]", "{}"]
NUMBERS = [-1, 0, 1, 2, 3, 5, 31, 2**31, 2**63, 10**400, -(2**63), 0.5, -0.0, 1e308, float("nan"), float("inf")]
LEAVES = ["Full()", "Causal()", "Before()", "Window({n})", "Strided({n})", "Prefix({n})", "Global({n})", "Random({n})"]
LEAVES += ["Random({n}, seed={n})", "Block({n})", "Block({n}, Causal())", "Window(size={n})", "Bilinear({n})", "{n}"]
STATES = ["same-origin", "none", "same-site", "cross-site", ""]
NAMES = [
    "model",
    "text",
    "question",
    "target",
    "beam",
    "more",
    "checkpoint",
    "edits",
    "picture",
    "trace",
    "site",
    "head",
]
NAMES += ["query", "key", "step", "token", "before", "after", "pattern", "length", "x", "wq", "wo", "mask", "scaled"]
QUERY = ["size", "rows", "columns", "top", "bottom", "left", "right", "stage", "format", "site", "head", "query", "key"]
QUERY += ["count", "kind", "length", "width", "heads", "model", "text", "beam", "more", "edits", "token", "colour"]
MEANT = {
    "stage": ["scores", "scaled", "masked", "weights"],
    "kind": ["sinusoidal", "rotary", "alibi", "t5", "learned"],
    "format": [*["npz", "csv", "html"] * 9, "svg"],
    "model": ["translate", "tag", "write", "picture", "answer", "graph", "rebuild", "bahdanau", "cnn", "classify"],
    "text": [CAT, "the cat", "example 2", "a", "Martin-0"],
    "mask": ["full", "causal", "before"],
}


class Fuzzer:
    """Requests about traces that exist, more or less as they should be."""

    def __init__(self, seed: int, traces: list[dict[str, Any]]):
        self.random, self.traces = random.Random(seed), traces
        self.sites = [site["name"] for trace in traces for site in trace["sites"]] + ["none", "encoder.0"]

    def one(self, some: Any) -> Any:
        return self.random.choice(some)

    def often(self, share: float) -> bool:
        return self.random.random() < share

    def request(self) -> Sent:
        posts = self.often(0.4)
        method = (
            ("POST" if posts else "GET") if self.often(0.95) else self.one(["HEAD", "PUT", "DELETE", "BREW", "get"])
        )
        path = self.one(
            [*POST_ROUTES]
            if posts
            else [*GET_ROUTES, *GET_ROUTES, "/", "/static/js/main.js", "/static/../app.py", "/x"]
        )
        for name in ("id", "site", "head", "query", "key", "step", "name"):
            path = path.replace(f"{{{name}}}", self.part(name))
        query = {self.one(QUERY): None for _ in range(self.random.randrange(4))}
        query |= (
            {"format": None} if path.endswith("/export") else {}
        )  # without one a picture is drawn, which takes long
        query = {name: self.written(name) for name in query}
        body = (
            json.dumps(self.body(path)) if self.often(0.95) else self.one(["{", "", "[1]", "\ud800", "[" * 9999, "nul"])
        )
        sent, raw = body.encode("utf-8", "surrogatepass"), urlencode(query, errors="surrogatepass").encode()
        cut = self.random.randrange(len(sent) + 1)
        raw = raw if self.often(0.97) else self.random.randbytes(9)
        return Sent(method, path, raw, self.headers(), (sent[:cut], sent[cut:]) if posts else (b"",))

    def headers(self) -> dict[str, bytes]:
        found = {"content-type": b"application/json"}
        if self.often(0.05):
            found["content-type"] = self.one([b"", b"text/plain", b"application/json; charset=utf-16", b"\xff"])
        if self.often(0.05):
            found["host"] = self.one([b"", b"evil.example", b"localhost:1", b"[::1]:80", b"127.0.0.1:", b"\xff:80"])
        if self.often(0.05):
            found["cookie"] = self.one(
                [b"", b"regard-80=", b"=;=;;", COOKIE.encode() + b"x", b"\xff=\xfe", b"a" * 9999]
            )
        if self.often(0.05):
            found["sec-fetch-site"] = self.one(STATES).encode()
        if self.often(0.05):
            found["origin"] = self.one([b"http://127.0.0.1", b"null", b"", b"http://evil.example", b"\xff"])
        if self.often(0.1):
            found["accept-encoding"], found["range"] = b"gzip, br;q=x", b"bytes=5-1,-9"
        return found

    def part(self, name: str) -> str:
        """Of a path."""
        if self.often(0.1):
            return self.one(ODD + HUGE).replace("\ud800", "?")
        match name:
            case "id":
                return self.one(self.traces)["id"]
            case "site":
                return self.one(self.sites)
            case "name":
                return self.one(MEANT["model"])
        return self.one(["0", "1", "2", "5"])

    def written(self, name: str) -> str:
        """Behind the question mark."""
        if name in MEANT and self.often(0.8):
            return self.one(MEANT[name])
        return self.one(self.sites) if name == "site" and self.often(0.8) else str(self.one(HUGE + ODD))

    def body(self, path: str) -> dict[str, Any]:
        match path.rpartition("/")[2]:
            case "patterns":
                usual = {"pattern": self.pattern(), "length": self.one([1, 2, 7, 64, 300, 1000, 5000, *NUMBERS])}
            case "branch":
                usual = {"step": self.one([0, 1, *NUMBERS]), "token": self.one([3, 9, *NUMBERS])}
            case "compare":
                usual = {name: self.one(self.traces)["id"] for name in ("before", "after")}
            case "lecture":
                usual = {"x": self.matrix()} if self.often(0.5) else {"trace": self.one(self.traces)["id"]}
                usual |= {} if "x" in usual else {"site": self.one(self.sites), "head": self.one([0, 1, *NUMBERS])}
            case _:
                usual = {"model": self.one(MEANT["model"]), "text": self.one(MEANT["text"]), "more": 2, "beam": 2}
                usual = {name: value for name, value in usual.items() if name in ("model", "text") or self.often(0.2)}
                usual |= {"edits": self.edits()} if self.often(0.3) else {}
        while self.often(0.3):
            usual[self.one(NAMES)] = self.value(3)
        return usual

    def pattern(self) -> str:
        if self.often(0.1):
            return str(self.one(ODD))
        parts = [
            self.one(LEAVES).format(n=self.one([*NUMBERS, 1, 2, 8, 64])) for _ in range(self.random.randrange(1, 5))
        ]
        text = parts[0]
        for part in parts[1:]:
            text = self.one([f"{text} & {part}", f"{part} | ({text})", f"~({text}) | {part}", f"Block(3, {text})"])
        return text

    def matrix(self) -> list[Any]:
        wide = self.random.randrange(1, 10)
        return [[self.one([*NUMBERS, 1, 2]) for _ in range(wide)] for _ in range(self.random.randrange(10))]

    def edits(self) -> Any:
        kinds = ["off", "weights", "masks", "swaps", "temperatures", "shut", "fly"]
        edit = {
            "site": self.one([*self.sites, "*"]),
            "head": 0,
            "query": 1,
            "key": 0,
            "value": 0.5,
            "word": 1,
            "to": "cat",
        }
        found = {name: value for name, value in edit.items() if self.often(0.6)}
        found |= {self.one([*edit]): self.value(1)} if self.often(0.3) else {}
        return {self.one(kinds): [found]} if self.often(0.9) else self.value(2)

    def value(self, depth: int) -> Any:
        if not depth or self.often(0.6):
            return self.one([*NUMBERS, *ODD, *HUGE, None, True, CAT])
        if self.often(0.5):
            return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
        return {str(self.one(NAMES)): self.value(depth - 1) for _ in range(self.random.randrange(3))}


def assert_answered(sent: Sent, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
    """Not by a mistake of ours, and what is refused by one sentence."""
    assert status < 500, (sent, body)
    if "range" in sent.headers and sent.path.startswith("/static/"):  # a file's own words about its ranges
        assert status < 400 or b"\n" not in body
    elif status >= 400 and sent.method != "HEAD":
        assert list(json.loads(body)) == ["error"], (sent, body)
        assert b"Traceback" not in body
    assert b"content-security-policy" in headers
    assert (status == 429) == (b"retry-after" in headers)


async def fuzz(app: Any, fuzzer: Fuzzer, count: int, each: Callable[[int], None] = lambda n: None) -> Counter[int]:
    found: Counter[int] = Counter()
    for number in range(count):
        sent = fuzzer.request()
        status, headers, body = await asyncio.wait_for(tell(app, sent), 60)
        assert_answered(sent, status, headers, body)
        found[status] += 1
        each(number)
    return found


@contextmanager
def fuzzed(seed: int) -> Iterator[tuple[Any, Fuzzer]]:
    models = learners()
    with client_of(ModelStore.from_models(models)) as client:
        traces = [post_trace(client, example(client, kind)) for kind in models]
        yield client.app, Fuzzer(seed, traces)


def test_seven_hundred_hostile_requests_are_each_answered():
    with fuzzed(7) as (app, fuzzer):
        found = asyncio.run(fuzz(app, fuzzer, 700))
    assert found[200] > 140, found  # a good part gets past the door
    assert found[400] > 70, found
    assert {403, 404, 405} <= set(found)


@pytest.fixture
def default_gc() -> Iterator[None]:
    """Python's own thresholds, as the server has them: the suite collects cycles so rarely that it seems to grow."""
    suites = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*suites)


@pytest.mark.slow
@pytest.mark.usefixtures("default_gc")
def test_a_hundred_thousand_hostile_requests_leave_the_memory_flat(machine):
    """After the first 20,000, in which every route is used and malloc's free lists fill. The traces that are kept still
    grow, by some 2 MiB of the hundreds that they may take."""
    sizes: dict[int, float] = {}

    def each(number: int) -> None:
        if (number + 1) % 20_000 == 0:
            sizes[number + 1] = held_mib(machine)

    with fuzzed(11) as (app, fuzzer):
        start = time.monotonic()
        found = asyncio.run(fuzz(app, fuzzer, 100_000, each))
    print(f"{time.monotonic() - start:.0f} s, {dict(found)}, {sizes} MiB")
    assert max(sizes.values()) < 1.05 * sizes[20_000]


def test_a_refused_request_is_freed_without_the_garbage_collector():
    """A cycle of the exception and its frames would hold the request until a full collection, which is rare."""
    workers, arrays = Workers(), []

    def refuse() -> None:
        array = np.zeros(9)
        arrays.append(weakref.ref(array))
        raise RequestError("no")

    async def send() -> None:
        with suppress(RequestError):
            await workers.run(refuse)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(send())
        workers.close()
        assert arrays[0]() is None
    finally:
        gc.enable()


# --- half-sent requests, against a real server ---


@pytest.fixture(scope="module")
def store() -> ModelStore:
    return ModelStore.from_models({"tag": tagger()})


@contextmanager
def real_server(store: ModelStore) -> Iterator[tuple[Any, int]]:
    """uvicorn as `regard serve` starts it, and its port."""
    server = serve_server.create_server(create_app(store, token=TOKEN))
    with serve_server.open_socket(0) as here:
        thread = Thread(target=server.run, kwargs={"sockets": [here]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield server, here.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)


def connected(port: int, sent: bytes) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port), timeout=60)
    line.sendall(sent)
    return line


def whole_request(port: int, path: str = "/api/models") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: regard-{port}={TOKEN}\r\n\r\n".encode()


def everything(line: socket.socket) -> bytes:
    found = b""
    while part := line.recv(65536):
        found += part
    return found


def drip(line: socket.socket) -> None:
    """A byte now and then: more of them do not put the end off."""
    for _ in range(150):
        line.sendall(b"y")
        time.sleep(0.1)


def test_three_hundred_half_sent_requests_are_timed_out_and_nobody_waits_for_them(store, monkeypatch):
    monkeypatch.setattr(security, "READ_SECONDS", 0.7)
    with real_server(store) as (_, port):
        whole = whole_request(port, "/")
        post = whole.replace(b"GET /", b"POST /api/traces").replace(
            b"\r\n\r\n", b"\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        unread = whole.replace(b"\r\n\r\n", b"\r\nContent-Length: 99\r\n\r\n{")  # a GET, answered before its body came
        started = [b"", b"G", whole[:-2], whole[:-2] + b"X: " + b"y" * 9999, post, unread, whole + b"GET /api"]
        lines = [connected(port, started[number % len(started)]) for number in range(300)]
        start = time.monotonic()
        dripping, late = connected(port, b"GET / HTTP/1.1\r\nX: "), connected(port, whole)
        assert late.recv(65536).startswith(b"HTTP/1.1 200 ")  # meanwhile everybody else is served
        late.close()
        with pytest.raises(OSError, match=r"reset|[Bb]roken|abort"):
            drip(dripping)
        received = [everything(line) for line in lines]
        assert time.monotonic() - start < 60
        for line in (dripping, *lines):
            line.close()
    for sent, reply in zip([*started * 43][:300], received, strict=True):
        answered = sent in (unread, started[-1])
        wanted = b"HTTP/1.1 200 " if answered else b"" if not sent else b"HTTP/1.1 408 "
        assert reply[:13] == wanted, (sent, reply)


def test_a_line_that_is_used_again_and_again_stays_open_and_sends_at_once(store, monkeypatch):
    """Without TCP_NODELAY each answer waits some 40 ms until the client has said that it got the first half."""
    monkeypatch.setattr(security, "READ_SECONDS", 0.8)
    with real_server(store) as (server, port), closing(HTTPConnection("127.0.0.1", port, timeout=60)) as line:
        for _ in range(8):
            line.request("GET", "/api/models", headers={"Cookie": f"regard-{port}={TOKEN}"})
            assert json.loads(line.getresponse().read())["models"]
            (connection,) = server.server_state.connections
            plain = connection.transport.get_extra_info("socket")
            assert plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            time.sleep(0.15)


ENDLESS = """
import sys, time
from functools import partial
from pathlib import Path
from regard.serve import app, server
from tests.hostile.test_requests import TOKEN, ModelStore, connected, tagger, whole_request
def sleep(request):
    Path(sys.argv[1]).write_text("asleep")
    time.sleep(1000)  # outside of Python: nothing can stop it
app.GET_ROUTES["/api/models"] = sleep
server.create_server = partial(server.create_server, graceful=0.5)
with server.open_socket(0) as here:
    lines = [connected(here.getsockname()[1], whole_request(here.getsockname()[1])) for _ in range(40)]
    server.serve(ModelStore.from_models({"tag": tagger()}), here, TOKEN)
"""


def test_ctrl_c_ends_the_server_whatever_it_works_on(tmp_path):
    process = start_program(ENDLESS, tmp_path, tmp_path / "asleep")
    said = tmp_path / "err"
    while not (tmp_path / "asleep").exists():
        assert process.is_alive(), said.read_text()
        time.sleep(0.05)
    time.sleep(0.3)  # all are taken on
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(timeout=120)
    assert process.exitcode == 0, said.read_text()
    assert "Traceback" not in said.read_text()


# --- too many ---


def with_answer(monkeypatch, function: Callable[[Any], ApiResponse]) -> None:
    monkeypatch.setitem(GET_ROUTES, "/api/positions", function)


def test_too_many_at_once_are_refused_and_the_page_is_still_served(store, monkeypatch):
    started, go_on = [], Event()
    with_answer(monkeypatch, lambda request: started.append(1) or json_response({"went on": go_on.wait(120)}))
    monkeypatch.setattr(serving, "Workers", partial(Workers, threads=2, waiting=3))
    slow, quick = Sent("GET", "/api/positions"), Sent("GET", "/")

    async def crowd(app: Any) -> None:
        first = [asyncio.create_task(tell(app, slow)) for _ in range(2)]
        while len(started) < 2:
            await asyncio.sleep(0.05)
        later = [asyncio.create_task(tell(app, slow)) for _ in range(9)]
        done, waiting = set(), set(later)
        while len(done) < 6:
            refused, waiting = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert refused
            done |= refused
        assert sorted(one.result()[0] for one in done) == [429] * 6
        for one in done:
            _, headers, body = one.result()
            assert headers[b"retry-after"] == b"1"
            assert json.loads(body) == {"error": "too many requests; retry in a moment"}
        assert (await asyncio.wait_for(tell(app, quick), 60))[0] == 200
        go_on.set()
        assert [status for status, _, _ in await asyncio.gather(*first, *waiting)] == [200] * 5

    with client_of(store) as client:
        asyncio.run(crowd(client.app))


def test_who_waited_too_long_is_told(store, monkeypatch):
    started, go_on = Event(), Event()
    with_answer(monkeypatch, lambda request: started.set() or json_response({"went on": go_on.wait(120)}))
    monkeypatch.setattr(serving, "Workers", partial(Workers, threads=1, queue_timeout=0.3))
    with client_of(store) as client, ThreadPoolExecutor(2) as people:
        first = people.submit(client.get, "/api/positions")
        assert started.wait(60)
        assert_sentence(people.submit(client.get, "/api/models").result(60), 429, "too many requests; retry in")
        go_on.set()
        assert first.result(60).status_code == 200


def test_what_takes_too_long_is_answered_and_stopped(store, monkeypatch):
    ended = Event()

    def endless(request: Any) -> ApiResponse:
        try:
            while True:
                np.zeros(9).sum()
        except Exception:  # no way to go on
            return endless(request)
        finally:
            ended.set()

    with_answer(monkeypatch, endless)
    monkeypatch.setattr(serving, "Workers", partial(Workers, threads=1, time_limit=1))
    with client_of(store) as client:
        for _ in range(2):  # with one thread: the next has it only if the last was stopped
            ended.clear()
            start = time.monotonic()
            assert_sentence(client.get("/api/positions"), 413, "time limit of 1 s; send a shorter text")
            assert 1 <= time.monotonic() - start < 20
            assert ended.wait(60)
            assert client.get("/api/models").status_code == 200


def test_a_stream_that_nobody_reads_holds_no_thread(store, monkeypatch):
    monkeypatch.setattr(serving, "Workers", partial(Workers, threads=1))
    with_answer(monkeypatch, lambda request: ApiResponse(b"x" * 1000 for _ in count()))
    with client_of(store) as client:

        async def read_a_little(app: Any) -> None:
            stream = asyncio.create_task(tell(app, Sent("GET", "/api/positions")))
            await asyncio.sleep(0.2)
            assert (await asyncio.wait_for(tell(app, Sent("GET", "/api/models")), 60))[0] == 200
            stream.cancel()
            await asyncio.wait([stream])

        asyncio.run(read_a_little(client.app))
        assert client.get("/api/models").status_code == 200


def test_bodies_are_counted_while_they_are_held(store, monkeypatch):
    budget = BodyBudget(most=20)
    monkeypatch.setattr(serving, "BodyBudget", lambda: budget)
    half = Sent("POST", "/api/traces", headers={"content-type": b"application/json"}, parts=(b'{"text": ',))
    with client_of(store) as client:

        async def send() -> list[int]:
            found = await asyncio.gather(*(tell(client.app, half, whole=False) for _ in range(3)))
            return [status for status, _, _ in found]

        assert asyncio.run(send()) == [400, 400, 429]
        assert budget.in_use == 0
        assert_sentence(client.post("/api/traces", json={"text": CAT}), 429, "bytes in flight; retry in")
        assert budget.in_use == 0
        assert client.post("/api/lecture", json={}).status_code == 200


# --- too dear ---


@pytest.mark.parametrize(
    ("pattern", "length", "status"),
    [
        ("Random(1000000000)", 4, 400),
        ("Random(1000000000)", 2**20, 400),
        ("Block(7, ~Random(65))", 4, 400),
        (" | ".join(["Random(64)"] * 30), 2**20, 400),
        ("Random(64)", 2**20, 413),
        ("Causal() & (" * 35 + "Causal()" + ")" * 35, 2**20, 413),
        ("Global(1) | (" * 35 + "Causal()" + ")" * 35, 4096, 200),
        ("Block(4294967296, Full())", 4096, 200),
        ("Block(9223372036854775807, Causal())", 4097, 200),
        ("Random(3) & Block(5, Causal())", 2**18, 200),
    ],
)
def test_a_pattern_takes_little_time_and_memory_or_is_refused(store, machine, pattern, length, status):
    with client_of(store) as client, costs(machine, mib=400, seconds=30 if status == 200 else 2):
        answer = client.post("/api/patterns", json={"pattern": pattern, "length": length})
        assert answer.status_code == status, answer.text
        if status != 200:
            assert_sentence(answer, status, "use fewer")


def picture_of(side: int) -> str:
    written = BytesIO()
    Image.new("RGB", (side, side)).save(written, "PNG", compress_level=1)
    return b64encode(written.getvalue()).decode()


@pytest.mark.parametrize(("side", "status"), [(8192, 400), (1024, 200)])
def test_eight_large_pictures_at_once_take_the_memory_of_few(machine, side, status):
    """Of 8,192 × 8,192 pixels, eight took 10.3 GB; of 1,024 × 1,024, each is 3 MB in the open, several times."""
    with client_of(ModelStore.from_models({"picture": image_classifier()})) as client, ThreadPoolExecutor(8) as people:
        picture = picture_of(side)
        with costs(machine, mib=200, seconds=30):
            sent = [{"picture": picture, "text": "x", "edits": {"shut": []} if n else {}} for n in range(8)]
            answers = list(people.map(lambda body: client.post("/api/traces", json=body), sent))
    assert [answer.status_code for answer in answers] == [status] * 8
    if status == 400:
        assert_sentence(answers[0], 400, "8192 x 8192 pixels are more than the 16777216 that are read")


def test_a_table_of_weights_takes_little_more_memory_than_its_file(machine):
    showing = CachedTrace("it", "tag", trace_model(tagger(), " ".join([CAT] * 36)), CAT)
    with costs(machine, mib=60, seconds=30):
        assert 12 < len(export_bytes(showing, "csv", "encoder.0", 0)) / 2**20 < 20


def test_thumbnails_of_every_size_are_counted():
    arrays = ArrayCache(max_bytes=2**20)
    showing = CachedTrace("it", "tag", trace_model(tagger(), " ".join([CAT] * 30)), CAT, arrays=arrays)
    for size in range(4, 180, 5):
        statistics, pictures = showing.overview("encoder.0", size)
        assert pictures.shape[0] == len(statistics.entropy) == 3
        assert arrays.nbytes <= 2**20
    again = showing.overview("encoder.0", 174)
    assert again is showing.overview("encoder.0", 174)
    assert arrays.nbytes > 2**18


def test_what_is_kept_is_never_more_than_its_bound_or_one_array():
    chance, arrays = random.Random(3), ArrayCache(max_bytes=20_000)
    for _ in range(500):
        key = chance.randrange(40)
        found = arrays.get(key, lambda: (np.zeros(chance.randrange(300), np.uint8),))
        assert arrays.get(key, lambda: pytest.fail("made again")) is found
        held = sum(one.nbytes + ENTRY_BYTES for (one,) in arrays.entries.values())
        assert arrays.nbytes == held <= 20_000


# --- traces in use ---


def test_a_trace_in_use_is_never_forgotten_and_a_new_one_is_refused_instead(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("regard.serve.trace_cache.monotonic", lambda: now[0])
    trace, traces = trace_model(tagger(), CAT), TraceCache(max_traces=3, keep_seconds=0.4)
    make = [
        partial(traces.get_or_create, key, lambda number: CachedTrace(number, "tag", trace, CAT)) for key in range(9)
    ]
    ids = [one().id for one in make[:3]]
    with pytest.raises(RequestError, match="3 traces are in use") as refused:
        make[3]()
    assert refused.value.status == 429
    assert [traces[number].id for number in ids] == ids
    assert make[0]().id == ids[0]
    now[0] += 0.3
    assert traces[ids[1]].id == ids[1]
    now[0] += 0.2
    fourth = make[3]()
    assert {ids[1], fourth.id} <= set(traces.entries)
    assert len(traces.entries) == 3


@pytest.mark.parametrize("people", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_no_trace_of_many_people_is_lost_while_they_read_it(store, people):
    with client_of(store) as client:

        def person(number: int) -> set[int]:
            mine, found = visitor(client.app), set()

            def ask(send: Callable[[], Any]) -> Any:
                last = time.monotonic() + 300
                while (answer := send()).status_code == 429 and time.monotonic() < last:
                    time.sleep(0.1)
                found.add(answer.status_code)
                return answer

            for word in ("the", "cat"):
                trace = ask(lambda: mine.post("/api/traces", json={"text": f"{CAT} {word} {number}"})).json()  # noqa: B023
                ask(lambda: mine.get(f"{site_path(trace, 'encoder.0')}/heads/0/cells"))  # noqa: B023
            return found

        with ThreadPoolExecutor(people) as threads:
            assert set.union(*threads.map(person, range(people))) == {200}
