"""Notebook widget: the microscope in a cell, live, its selection and its edits as values of Python (anywidget).

    seen = regard.see.widget("run", "the black cat ate the mouse")
    seen.site, seen.head, seen.query, seen.key, seen.edits, seen.trace
    seen.head = 3
    seen.observe(lambda change: print(change["new"]), "edits")

The page runs in a frame without an origin; its requests come as messages of the widget, and the server's own handlers
answer them. No port is opened, and nothing is requested from anywhere.
"""

import json
from base64 import b64encode
from collections.abc import Generator, Mapping
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

import anywidget
import traitlets
from starlette.routing import compile_path

from regard.see.edits import Edits
from regard.see.trace import Trace
from regard.serve.app import GET_ROUTES, POST_ROUTES
from regard.serve.encoding import ApiResponse, RequestError, json_response
from regard.serve.exports import bundle_page, page_file
from regard.serve.handlers import ApiRequest, AppState
from regard.serve.model_store import MediaStore, ModelStore
from regard.serve.trace_cache import TraceCache

NAMES = ("text", "question", "target", "view", "site", "head", "query", "key", "edits")  # of the page's state


@cache
def compiled_routes() -> list[tuple[str, Any, Any]]:
    """Method, pattern of the path, and handler."""
    tables = (("GET", GET_ROUTES), ("POST", POST_ROUTES))
    return [(method, compile_path(path)[0], handler) for method, table in tables for path, handler in table.items()]


def answer(state: AppState, content: Mapping[str, Any]) -> tuple[int, ApiResponse]:
    """The status and the response to a request of the page."""
    try:
        for method, pattern, handler in compiled_routes():
            if method == content["method"] and (found := pattern.match(content["path"])):
                body = json.loads(content["body"]) if content.get("body") else {}
                return 200, handler(ApiRequest(state, found.groupdict(), content["query"], body))
        raise RequestError(f"there is nothing at {content['path'][:80]}", 404)
    except RequestError as refused:
        return refused.status, json_response({"error": " ".join(str(refused).split())})
    except ValueError as error:
        return 400, json_response({"error": " ".join(str(error).split())})


def edits_to_json(edits: Edits, _: Any) -> dict[str, Any]:
    return edits.to_dict()


def edits_from_json(value: Any, _: Any) -> Edits:
    return Edits.from_dict(value or {})


class MicroscopeWidget(anywidget.AnyWidget):
    """The page of one model; what is chosen and edited in it are its values, and setting them changes the page."""

    _esm = page_file("js/widget.js")
    page = traitlets.Unicode().tag(sync=True)
    names = traitlets.List(list(NAMES)).tag(sync=True)
    height = traitlets.Int(760).tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)
    target = traitlets.Unicode("", allow_none=True).tag(sync=True)
    view = traitlets.Unicode("matrix").tag(sync=True)
    site = traitlets.Unicode().tag(sync=True)
    head = traitlets.Int(0, min=0).tag(sync=True)
    query = traitlets.Int(0, min=0).tag(sync=True)
    key = traitlets.Int(0, min=0).tag(sync=True)
    edits = traitlets.Instance(Edits, ()).tag(sync=True, to_json=edits_to_json, from_json=edits_from_json)

    def __init__(self, trace: Trace, *, site: str | None = None, head: int | None = None, height: int = 760):
        request, name = trace.request, trace.task
        text, media, kind = request.text, MediaStore(), request.task.inputs.kind
        if kind in ("image", "audio"):
            if request.array is not None:
                raise ValueError("a widget reads pictures and sounds from files; give a path")
            text = media.put(kind, b64encode(Path(text).read_bytes()).decode())
        self.state = AppState(ModelStore.from_models({name: request.task_model}), TraceCache(), media)
        self.streams: dict[int, Event] = {}
        values: dict[str, Any] = {"text": text, "question": request.question or "", "edits": request.edits}
        values |= {"target": request.target, "view": "start" if site is None else "matrix"}
        values |= {"site": site or "", "head": head or 0}
        first = {"model": name, **values, "edits": request.edits.to_dict()}
        first = {key: value for key, value in first.items() if value not in (None, "", {}, 0)}
        page = bundle_page({"first": first, "names": list(NAMES)}, "Regard", live=True)
        super().__init__(page=page, height=height, **values)
        self.on_msg(self.handle_message)

    @property
    def trace(self) -> Trace:
        """What the page shows now."""
        body = {"text": self.text, "question": self.question, "edits": self.edits.to_dict()}
        return self.state.trace_of_body(body | ({"target": self.target} if self.target else {})).trace

    def handle_message(self, _: Any, content: dict[str, Any], buffers: list[bytes]) -> None:
        """A request of the page, or word that it listens to a stream no longer."""
        if content.get("kind") == "close":
            if (stopped := self.streams.pop(content["id"], None)) is not None:
                stopped.set()
        elif content.get("stream"):
            stopped = self.streams[content["id"]] = Event()
            Thread(target=self.stream, args=(content, stopped), name="regard widget", daemon=True).start()
        else:
            status, found = answer(self.state, content)
            body = found.body if isinstance(found.body, bytes) else b"".join(found.body)
            headers = {"Content-Type": found.media_type, **found.headers}
            self.send({"kind": "answer", "id": content["id"], "status": status, "headers": headers}, [body])

    def stream(self, content: dict[str, Any], stopped: Event) -> None:
        """Part after part of an answer, until it is over or nobody listens."""
        _, found = answer(self.state, content)
        # what is refused is an event too, for a page cannot read the status of a stream
        refused = isinstance(found.body, bytes) and [b"event: error\ndata: " + found.body + b"\n\n"]
        parts = refused or found.body
        message = {"kind": "answer", "id": content["id"], "over": False}
        for part in parts:
            if stopped.is_set():
                break
            self.send(message, [part])
        if isinstance(parts, Generator):
            parts.close()
        self.send(message | {"over": True}, [b""])
        self.streams.pop(content["id"], None)
