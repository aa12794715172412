"""A server that answers as the microscope's does, with made arrays: the page can be tried without a model.

    python -m tests.serve.fake_server 8765

Models: "small" translates (hostile tokens among its own), "many" has 12 × 12 heads of 512 tokens, "long" reads as many
tokens as its text says.
"""

import json
import sys
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

import regard

PAGE = Path(regard.__file__).parent / "serve" / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self'"
)
WIDTH = 16
SOURCE = [
    "the",
    "black",
    "c",
    "at",
    "<script>window.bad=1</script>",
    "<img src=x onerror=window.bad=1>",
    "mouse",
    "</s>",
]
TARGET = ["le", "chat", "noir", "👩‍👩‍👧‍👦", "أكل الفأر", "\u202emirror", "a\u0301\u0323\u0302", "souris", "</s>"]
WORDS = {
    "source": [["the", 0, 0], ["black", 1, 1], ["cat", 2, 3], ["<b>", 4, 4], ["<i>", 5, 5], ["mouse", 6, 6]],
    "written": [[word, n, n] for n, word in enumerate(TARGET[:-1])],
}
GOLD = [[0, 0], [2, 1], [1, 2], [5, 7]]
ONE_AT_A_TIME = Lock()
KEPT: dict[str, dict[str, Any]] = {}  # traces that were asked for


def site(name: str, kind: str, heads: int, axes: tuple[str, str], sizes: tuple[int, int]) -> dict[str, Any]:
    pattern = "Causal()" if name.startswith("decoder") and kind == "self" else "Full()"
    return {
        "name": name,
        "kind": kind,
        "heads": heads,
        "queries": axes[0],
        "keys": axes[1],
        "n_q": sizes[0],
        "n_k": sizes[1],
        "score": "ScaledDot()",
        "position": "",
        "pattern": pattern,
        "normaliser": "Softmax()",
        "shown": True,
        "why": "",
    }


def name_of(request: dict[str, Any]) -> str:
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:12]


def trace(request: dict[str, Any]) -> dict[str, Any]:
    model, text = request["model"], request["text"]
    source, written = SOURCE, TARGET
    if model == "small":
        sites = [site(f"encoder.{n}", "self", 4, ("source", "source"), (8, 8)) for n in range(2)]
        sites += [site("decoder.0.self", "self", 4, ("written", "written"), (9, 9))]
        sites += [site("decoder.0.cross", "cross", 4, ("written", "source"), (9, 8))]
        gate = site("pool", "gate", 0, ("written", "source"), (0, 0))
        sites += [{**gate, "shown": False, "why": "its weights are learned once and answer no query"}]
    else:
        tokens = 512 if model == "many" else int(text)
        source, written = [f"w{n}" if n % 7 else f"longer-word-{n}" for n in range(tokens)], []
        layers, heads = (12, 12) if model == "many" else (1, 4)
        prefix = "layer" if model == "many" else "decoder"
        sites = [site(f"{prefix}.{n}", "self", heads, ("source", "source"), (tokens, tokens)) for n in range(layers)]
    small = model == "small"
    return {
        "id": name_of(request),
        "model": model,
        "task": "translation",
        "options": ["target", "beam"],
        "text": text,
        "output_text": " ".join(TARGET[:-1]) if small else "positive",
        "sites": sites,
        "output": None if small else {"labels": ["positive", "negative"], "probabilities": [0.75, 0.25]},
        "axes": {"source": source, "written": written} if small else {"source": source},
        "swappable": source,
        "words": WORDS if small else {"source": [[word, n, n] for n, word in enumerate(source)]},
        "steps": 0,
        "gold": GOLD if small else None,
        "picture": None,
        "edits": request.get("edits", {}),
        "python": "from regard.see import trace_model\n",
    }


def arrays(name: str, head: int, n_q: int, n_k: int) -> dict[str, NDArray[np.float32]]:
    with ONE_AT_A_TIME:
        return made(name, head, n_q, n_k)


@lru_cache(160)
def made(name: str, head: int, n_q: int, n_k: int) -> dict[str, NDArray[np.float32]]:
    """q, k, v and the stages of one head."""
    draw = np.random.default_rng([len(name), sum(name.encode()), head])
    places = np.linspace(0, 6, max(n_q, n_k))[:, None] * np.arange(1, WIDTH // 2 + 1)
    turns = np.concatenate([np.sin(places), np.cos(places)], 1)
    q = (turns[:n_q] * (1 + head) + draw.normal(size=(n_q, WIDTH))).astype(np.float32)
    k = (turns[:n_k] * 1.5 + draw.normal(size=(n_k, WIDTH))).astype(np.float32)
    v = draw.normal(size=(n_k, WIDTH)).astype(np.float32)
    products = q @ k.T
    scores = masked = products / np.float32(WIDTH**0.5)
    if name.startswith("decoder") and n_q == n_k:
        masked = np.where(np.tri(n_q, dtype=bool), scores, np.float32(-np.inf))
    raised = np.exp(masked - masked.max(1, keepdims=True))
    weights = raised / raised.sum(1, keepdims=True)
    visible = np.isfinite(masked).astype(np.float32)
    stages = {"products": products, "scores": scores, "visible": visible, "masked": masked, "weights": weights}
    return {"q": q, "k": k, "v": v, **stages}


def pooled(values: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    rows, columns = min(rows, values.shape[0]), min(columns, values.shape[1])
    down = np.arange(rows) * values.shape[0] // rows
    across = np.arange(columns) * values.shape[1] // columns
    return np.maximum.reduceat(np.maximum.reduceat(values, across, axis=1), down, axis=0)


class Refused(Exception):
    pass


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def send(self, body: bytes, kind: str, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Security-Policy", POLICY)
        with suppress(ConnectionError):  # a reader who left
            self.end_headers()
            self.wfile.write(body)

    def send_json(self, answer: object, status: int = 200) -> None:
        self.send(json.dumps(answer).encode(), "application/json", status)

    def array(self, values: NDArray[Any], **headers: str) -> None:
        shape = ",".join(map(str, values.shape))
        self.send(np.ascontiguousarray(values).tobytes(), "application/octet-stream", 200, X_Shape=shape, **headers)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["text"] == "refuse":
            self.send_json({"error": "<b>no</b> such word; take another"}, 400)
        else:
            KEPT[name_of(request)] = request
            self.send_json(trace(request))

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        try:
            if parts[0] == "api":
                return self.answer(parts[1:], {name: values[0] for name, values in parse_qs(url.query).items()})
            path = PAGE / ("/".join(parts[1:]) if parts[0] == "static" else "index.html")
            if not path.is_file():
                return self.send_json({"error": f"there is no {path.name}; ask for another"}, 404)
            return self.send(path.read_bytes(), KINDS[path.suffix], Cache_Control="max-age=600")
        except Refused as reason:
            return self.send_json({"error": str(reason)}, 404)

    def answer(self, parts: list[str], given: dict[str, str]) -> None:
        if parts == ["models"]:
            models = [("small", "the black cat"), ("many", "a long text"), ("long", "2048")]
            found = [{"name": name, "task": name, "what": f"the {name} one", "example": text} for name, text in models]
            return self.send_json({"models": [{**one, "question": False, "picture": False} for one in found]})
        if parts[1] not in KEPT:
            raise Refused("this trace was evicted; ask again")
        here = trace(KEPT[parts[1]])
        if parts[2] == "statistics":
            return self.send_json({one["name"]: self.statistics(one, here["gold"]) for one in here["sites"]})
        if parts[2] == "overview":
            return self.overview([one for one in here["sites"] if one["shown"]], int(given["size"]))
        spot = next((one for one in here["sites"] if one["name"] == parts[3]), None)
        if spot is None:
            raise Refused(f"there is no layer {parts[3]!r}; there are others")
        return self.head(arrays(spot["name"], int(parts[5]), spot["n_q"], spot["n_k"]), parts[6:], given)

    def overview(self, sites: list[dict[str, Any]], size: int) -> None:
        found = []
        for one in sites:
            shape = min(size, one["n_q"]), min(size, one["n_k"])
            heads = [arrays(one["name"], head, *shape)["weights"] for head in range(one["heads"])]
            found.append(np.round(255 * np.sqrt(np.stack(heads))).astype(np.uint8))
        shapes = ";".join(",".join(map(str, one.shape)) for one in found)
        self.send(b"".join(one.tobytes() for one in found), "application/octet-stream", X_Shape=shapes)

    def statistics(self, one: dict[str, Any], gold: object) -> dict[str, Any]:
        draw = np.random.default_rng(len(one["name"]))
        found = {name: draw.random(one["heads"]).tolist() for name in ("entropy", "distance", "sink", "largest")}
        return {**found, "aer": draw.random(one["heads"]).tolist() if gold and one["kind"] == "cross" else None}

    def head(self, found: dict[str, NDArray[np.float32]], parts: list[str], given: dict[str, str]) -> None:
        stage = given.get("stage", "weights")
        match parts:
            case ["map"]:
                part = window(found[stage], given)
                picture = pooled(part, int(given["rows"]), int(given["columns"]))
                if stage in ("weights", "visible"):
                    return self.array(np.round(255 * np.sqrt(picture)).astype(np.uint8))
                seen = np.isfinite(picture)
                low, high = float(picture[seen].min()), float(picture[seen].max())
                share = np.where(seen, 1 + 254 * (np.where(seen, picture, low) - low) / (high - low), 0)
                return self.array(np.round(share).astype(np.uint8), X_Range=f"{low},{high}")
            case ["cells"]:
                return self.array(window(found[stage], given))
            case ["rows", number]:
                return self.array(found[stage][int(number)])
            case ["columns", number]:
                return self.array(found[stage][:, int(number)])
            case ["check"]:
                return self.send_json({"difference": 2.4e-7, "tolerance": 1e-5})
            case ["pair"]:
                return self.send_json(pair(found, int(given["query"]), int(given["key"])))
        raise Refused(f"there is no {'/'.join(parts)}; ask for another")


def window(values: NDArray[np.float32], given: dict[str, str]) -> NDArray[np.float32]:
    top, bottom, left, right = (int(given[side]) for side in ("top", "bottom", "left", "right"))
    return values[top:bottom, left:right]


def pair(found: dict[str, NDArray[np.float32]], i: int, j: int) -> dict[str, Any]:
    q, k, v, weight = found["q"][i], found["k"][j], found["v"][j], found["weights"][i, j]
    return {
        "q": q.tolist(),
        "k": k.tolist(),
        "products": (q * k).tolist(),
        "dot": float(found["products"][i, j]),
        "scale": 1 / WIDTH**0.5,
        "bias": 0.0,
        "adjusted": float(found["scores"][i, j]),
        "visible": bool(np.isfinite(found["masked"][i, j])),
        "weight": float(weight),
        "v": v.tolist(),
        "added": (weight * v).tolist(),
    }


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who left is no error; any other is."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def start(port: int = 0, answers: type[BaseHTTPRequestHandler] = Answers) -> ThreadingHTTPServer:
    server = Server(("127.0.0.1", port), answers)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def serve_for_ever(answers: type[BaseHTTPRequestHandler]) -> None:
    """At the port that the command names, for a person to look at."""
    running = start(int(sys.argv[1]), answers)
    print(f"http://127.0.0.1:{running.server_port}/")
    while True:
        sleep(60)


if __name__ == "__main__":
    serve_for_ever(Answers)
