"""A client of the server with small untrained models of every kind: what the tests of the server share."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from regard.serve import server as serve_server
from regard.serve.app import create_app
from regard.serve.model_store import ModelStore
from regard.tasks.pretrained import PretrainedModel
from tests.see.untrained_models import CAT, LEARNERS, image_classifier, translator

HERE = "http://127.0.0.1"
TOKEN = "token-of-the-tests"
KINDS = [*LEARNERS, "bahdanau", "cnn"]


def learners() -> dict[str, PretrainedModel]:
    return {name: make() for name, make in LEARNERS.items()} | {
        "bahdanau": translator("bahdanau"),
        "cnn": image_classifier("cnn"),
    }


@contextmanager
def client_of(store: ModelStore) -> Iterator[TestClient]:
    with visitor(create_app(store, token=TOKEN)) as client:
        yield client


@contextmanager
def served(store: ModelStore) -> Iterator[str]:
    """The address of the page of a real server, which ends with the block."""
    server = serve_server.create_server(create_app(store, token=TOKEN))
    with serve_server.open_socket(0) as here:
        thread = Thread(target=server.run, kwargs={"sockets": [here]})
        thread.start()
        yield serve_server.page_url(here, TOKEN)
        server.should_exit = True
        thread.join(timeout=120)


def visitor(app: Any) -> TestClient:
    """Who opened the address with the token once, as a browser does."""
    client = TestClient(app, base_url=HERE)
    client.get("/", params={"token": TOKEN}).raise_for_status()
    return client


def post_trace(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/api/traces", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def example(client: TestClient, kind: str) -> dict[str, Any]:
    """What a model of a kind is asked."""
    if kind in ("picture", "cnn"):
        return {"model": kind, "text": "example 2"}
    if kind == "answer":
        return {"model": kind, "text": "example 2", "question": "what colour is the circle"}
    if kind == "graph":
        (card,) = [one for one in client.get("/api/models").json()["models"] if one["name"] == kind]
        return {"model": kind, "text": card["example"]}
    return {"model": kind, "text": CAT}


def site_path(trace: dict[str, Any], site: str) -> str:
    return f"/api/traces/{trace['id']}/sites/{site}"


def floats(client: TestClient, path: str) -> np.ndarray:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "<f4").reshape([int(n) for n in answer.headers["X-Shape"].split(",")])


def octets(client: TestClient, path: str) -> np.ndarray:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, np.uint8).reshape([int(n) for n in answer.headers["X-Shape"].split(",")])


def events(text: str) -> list[tuple[str, Any]]:
    """Server-sent events, taken apart."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def row_in(event: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(event["row"]), "<f4")


def assert_sentence(answer: Any, status: int, message: str = "") -> str:
    """One sentence for a person, and nothing of what went on inside."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"].startswith("application/json")
    (sentence,) = answer.json().values()
    assert list(answer.json()) == ["error"]
    assert message in sentence, sentence
    assert "\n" not in sentence
    assert not any(word in sentence for word in ("Traceback", 'File "', "site-packages"))
    assert 10 < len(sentence) < 600
    return sentence
