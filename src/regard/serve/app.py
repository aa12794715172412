"""A shelf of models in; the web application out: its routes, what it refuses, and the headers on all it says."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
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
from regard.serve.door import BodyBudget, Door, RequestBody
from regard.serve.examples import Album
from regard.serve.scenes import Scenes
from regard.serve.shelf import Shelf
from regard.serve.wire import Answer, Refused, as_json
from regard.serve.workers import Workers

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
    "/api/generate": generating.generate,
}
TOLD: dict[str, Callable[[Request], Answer]] = {
    "/api/scenes": answers.new_scene,
    "/api/scenes/{id}/branch": writing.branch,
    "/api/compare": writing.compared,
    "/api/patterns": labs.patterns,
    "/api/lecture": labs.lecture,
}


@dataclass(frozen=True, eq=False)
class Resources:
    """What all requests share: what is answered from, who works, and how much they may send together."""

    desk: Desk
    workers: Workers
    bodies: BodyBudget


def app_of(shelf: Shelf, album: Album | None = None, *, token: str) -> Starlette:
    """The whole server for whoever knows the token; give it to uvicorn, bound to 127.0.0.1."""
    resources, page = Resources(Desk(shelf, Scenes(), album or Album()), Workers(), BodyBudget()), page_folder()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        resources.workers.close()
        resources.desk.album.close()

    routes = [Route("/", partial(index, page))]
    routes += [Route(path, partial(answered, resources, function)) for path, function in ASKED.items()]
    routes += [Route(path, partial(answered, resources, function), methods=["POST"]) for path, function in TOLD.items()]
    app = Starlette(
        routes=[*routes, Mount("/static", GZipMiddleware(StaticFiles(directory=page)))],
        exception_handlers={HTTPException: lost},
        lifespan=lifespan,
    )
    app.add_middleware(Door, token=token)
    return app


def page_folder() -> Path:
    return Path(str(files("regard.serve") / "page"))


async def index(page: Path, _: Asked) -> Response:
    return Response((page / "index.html").read_bytes(), media_type="text/html")


async def answered(resources: Resources, function: Callable[[Request], Answer], asked: Asked) -> Response:
    """In a worker's thread: nobody waits for somebody else's model."""
    body = RequestBody(resources.bodies)

    def work() -> Answer:
        table = body.table() if asked.method == "POST" else {}
        return begun(function, Request(resources.desk, asked.path_params, asked.query_params, table))

    try:
        if asked.method == "POST":
            await body.receive(asked)
        return response(await resources.workers.run(work), resources.workers)
    except ClientDisconnect:
        return Response(status_code=400)
    except asyncio.CancelledError:  # Ctrl-C, and this took longer than the server waits
        return mistake("the server ends; start it again", 503)
    except Refused as refused:
        return mistake(str(refused), refused.status)
    except ValueError as error:
        return mistake(str(error), 400)
    except Exception as error:  # never a stack trace to the page; the log has it
        logging.getLogger("regard").exception("while answering %s", asked.scope["path"])
        if any(sign in repr(error) for sign in ("MemoryError", "out of memory", "allocate memory")):
            return mistake("there is not enough memory for this; ask for a shorter text", 413)
        return mistake(f"something broke inside Regard ({type(error).__name__}); its log says more", 500)
    finally:
        body.drop()


def begun(function: Callable[[Request], Answer], request: Request) -> Answer:
    """Of an answer in parts the first is made at once: what is refused can then still be said."""
    answer = function(request)
    if isinstance(answer.body, bytes):
        return answer
    first = next(answer.body, b"")
    return replace(answer, body=chain([first], answer.body))


def response(answer: Answer, workers: Workers) -> Response:
    how: dict[str, Any] = {"media_type": answer.kind, "headers": dict(answer.headers)}
    if isinstance(answer.body, bytes):
        return Response(answer.body, **how)
    return StreamingResponse(workers.iterate(answer.body), **how)


def mistake(sentence: str, status: int) -> Response:
    body, again = as_json({"error": " ".join(sentence.split())}).body, {"Retry-After": "1"} if status == 429 else None
    return Response(body, status, again, media_type="application/json")


async def lost(asked: Asked, error: Any) -> Response:
    """An address that leads nowhere, or is asked the wrong way."""
    path = asked.scope["path"][:80]  # asked.url would read the query too, which may be no text
    if error.status_code == 405:
        return mistake(f"{asked.method} is not how {path} is asked", 405)
    return mistake(f"there is nothing at {path}; begin at /", error.status_code)
