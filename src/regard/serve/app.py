"""A shelf of models in; the web application out: its routes, what it refuses, and the headers on all it says."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Asked
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from regard.serve import answers, exports, generating, labs, writing
from regard.serve.answers import Request
from regard.serve.asking import Desk
from regard.serve.door import Door, body_of
from regard.serve.examples import Album
from regard.serve.scenes import Scenes
from regard.serve.shelf import Shelf
from regard.serve.wire import Answer, Refused, as_json

SITE = "/api/scenes/{id}/sites/{site}"
HEAD = SITE + "/heads/{head}"
ASKED: dict[str, Callable[[Request], Answer]] = {
    "/api/models": answers.models,
    "/api/models/{name}/checkpoints": answers.checkpoints,
    "/api/scenes/{id}": answers.scene,
    "/api/scenes/{id}/overview": answers.overview,
    "/api/scenes/{id}/statistics": answers.statistics,
    "/api/scenes/{id}/picture": answers.picture,
    "/api/scenes/{id}/next/{step}": writing.next_tokens,
    "/api/scenes/{id}/next/{step}/tokens": writing.best_tokens,
    "/api/scenes/{id}/beam": writing.beam,
    "/api/scenes/{id}/export": exports.export,
    SITE + "/thumbnails": answers.thumbnails,
    SITE + "/gate": answers.gate,
    HEAD + "/map": answers.map_of,
    HEAD + "/cells": answers.cells,
    HEAD + "/rows/{query}": answers.row,
    HEAD + "/columns/{key}": answers.column,
    HEAD + "/pair": answers.pair,
    HEAD + "/check": answers.check,
    "/api/positions": labs.positions,
}
TOLD: dict[str, Callable[[Request], Answer]] = {
    "/api/scenes": answers.new_scene,
    "/api/scenes/{id}/branch": writing.branch,
    "/api/compare": writing.compared,
    "/api/patterns": labs.patterns,
    "/api/lecture": labs.lecture,
}


def app_of(shelf: Shelf, album: Album | None = None) -> Starlette:
    """The whole server; give it to uvicorn, bound to 127.0.0.1."""
    desk, page = Desk(shelf, Scenes(), album or Album()), page_folder()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        desk.album.close()

    routes = [Route("/", partial(index, page)), Route("/api/generate", partial(stream, desk))]
    routes += [Route(path, partial(answered, desk, function)) for path, function in ASKED.items()]
    routes += [Route(path, partial(answered, desk, function), methods=["POST"]) for path, function in TOLD.items()]
    app = Starlette(
        routes=[*routes, Mount("/static", GZipMiddleware(StaticFiles(directory=page)))],
        exception_handlers={HTTPException: lost},
        lifespan=lifespan,
    )
    app.add_middleware(Door)
    return app


def page_folder() -> Path:
    return Path(str(files("regard.serve") / "page"))


async def index(page: Path, _: Asked) -> Response:
    return Response((page / "index.html").read_bytes(), media_type="text/html")


async def stream(desk: Desk, asked: Asked) -> Response:
    return StreamingResponse(generating.events(desk, dict(asked.query_params)), media_type="text/event-stream")


async def answered(desk: Desk, function: Callable[[Request], Answer], asked: Asked) -> Response:
    """In a thread of its own: nobody waits for somebody else's model."""
    try:
        body = await body_of(asked) if asked.method == "POST" else {}
        request = Request(desk, asked.path_params, asked.query_params, body)
        return response(await run_in_threadpool(begun, function, request))
    except ClientDisconnect:
        return Response(status_code=400)
    except Refused as refused:
        return mistake(str(refused), refused.status)
    except ValueError as error:
        return mistake(str(error), 400)
    except Exception as error:  # never a stack trace to the page; the log has it
        logging.getLogger("regard").exception("while answering %s", asked.url.path)
        if any(sign in repr(error) for sign in ("MemoryError", "out of memory", "allocate memory")):
            return mistake("there is not enough memory for this; ask for a shorter text", 413)
        return mistake(f"something broke inside Regard ({type(error).__name__}); its log says more", 500)


def begun(function: Callable[[Request], Answer], request: Request) -> Answer:
    """Of an answer in parts the first is made at once: what is refused can then still be said."""
    answer = function(request)
    if isinstance(answer.body, bytes):
        return answer
    first = next(answer.body, b"")
    return replace(answer, body=chain([first], answer.body))


def response(answer: Answer) -> Response:
    how: dict[str, Any] = {"media_type": answer.kind, "headers": dict(answer.headers)}
    if isinstance(answer.body, bytes):
        return Response(answer.body, **how)
    return StreamingResponse(answer.body, **how)


def mistake(sentence: str, status: int) -> Response:
    return Response(as_json({"error": " ".join(sentence.split())}).body, status, media_type="application/json")


async def lost(asked: Asked, error: Any) -> Response:
    """An address that leads nowhere, or is asked the wrong way."""
    if error.status_code == 405:
        return mistake(f"{asked.method} is not how {asked.url.path[:80]} is asked", 405)
    return mistake(f"there is nothing at {asked.url.path[:80]}; begin at /", error.status_code)
