"""The microscope's web application: its routes, error responses and lifespan."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from regard.serve import explanations, exports, generation, handlers, playground
from regard.serve.encoding import ApiResponse, ClosableIterator, RequestError, json_response
from regard.serve.handlers import ApiRequest, AppState
from regard.serve.model_store import MediaStore, ModelStore
from regard.serve.security import BodyBudget, RequestBody, SecurityMiddleware
from regard.serve.trace_cache import CorpusStore, TraceCache
from regard.serve.workers import Workers

SITE = "/api/traces/{id}/sites/{site}"
HEAD = SITE + "/heads/{head}"
GET_ROUTES: dict[str, Callable[[ApiRequest], ApiResponse]] = {
    "/api/models": handlers.list_models,
    "/api/models/{name}/checkpoints": handlers.list_checkpoints,
    "/api/traces/{id}": handlers.get_trace,
    "/api/traces/{id}/overview": handlers.overview,
    "/api/traces/{id}/statistics": handlers.statistics,
    "/api/traces/{id}/picture": handlers.image,
    "/api/traces/{id}/next/{step}": generation.next_tokens,
    "/api/traces/{id}/next/{step}/tokens": generation.top_tokens,
    "/api/traces/{id}/beam": generation.beam_tree,
    "/api/traces/{id}/explain": explanations.explanation,
    "/api/traces/{id}/export": exports.export,
    SITE + "/thumbnails": handlers.thumbnails,
    SITE + "/gate": handlers.gate,
    HEAD + "/map": handlers.attention_map,
    HEAD + "/cells": handlers.cells,
    HEAD + "/rows/{query}": handlers.row,
    HEAD + "/columns/{key}": handlers.column,
    HEAD + "/pair": handlers.token_pair,
    HEAD + "/row": handlers.terms_of_row,
    HEAD + "/check": handlers.check_output,
    "/api/positions": playground.positions,
    "/api/generate": generation.generate,
    "/api/corpora/{id}/statistics": explanations.statistics,
    "/api/corpora/{id}/neighbours": explanations.neighbours,
}
POST_ROUTES: dict[str, Callable[[ApiRequest], ApiResponse]] = {
    "/api/traces": handlers.create_trace,
    "/api/traces/{id}/branch": generation.branch,
    "/api/compare": generation.compare_traces,
    "/api/corpora": explanations.create_corpus,
    "/api/patterns": playground.patterns,
    "/api/lecture": playground.lecture_numbers,
}


@dataclass(frozen=True, eq=False)
class ServerResources:
    """Shared by all requests: models and traces, worker threads, and the budget of request bodies."""

    state: AppState
    workers: Workers
    bodies: BodyBudget


def create_app(
    models: ModelStore, media: MediaStore | None = None, store: CorpusStore | None = None, *, token: str
) -> Starlette:
    """The application, protected by the token; run it with uvicorn, bound to 127.0.0.1."""
    state, page = AppState(models, TraceCache(), media or MediaStore(), store or CorpusStore()), page_folder()
    resources = ServerResources(state, Workers(), BodyBudget())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        resources.workers.close()
        resources.state.media.close()

    routes = [Route("/", partial(index, page))]
    routes += [Route(path, partial(handle, resources, function)) for path, function in GET_ROUTES.items()]
    routes += [
        Route(path, partial(handle, resources, function), methods=["POST"]) for path, function in POST_ROUTES.items()
    ]
    app = Starlette(
        routes=[*routes, Mount("/static", GZipMiddleware(StaticFiles(directory=page)))],
        exception_handlers={HTTPException: handle_http_error},
        lifespan=lifespan,
    )
    app.add_middleware(SecurityMiddleware, token=token)
    return app


def page_folder() -> Path:
    return Path(str(files("regard.serve") / "page"))


async def index(page: Path, _: HTTPRequest) -> Response:
    return Response((page / "index.html").read_bytes(), media_type="text/html")


async def handle(
    resources: ServerResources, function: Callable[[ApiRequest], ApiResponse], request: HTTPRequest
) -> Response:
    """Runs the handler in a worker thread, so that the event loop stays responsive."""
    body = RequestBody(resources.bodies)

    def work() -> ApiResponse:
        table = body.json() if request.method == "POST" else {}
        return start_streaming(function, ApiRequest(resources.state, request.path_params, request.query_params, table))

    try:
        if request.method == "POST":
            await body.receive(request)
        return http_response(await resources.workers.run(work), resources.workers)
    except ClientDisconnect:
        return Response(status_code=400)
    except asyncio.CancelledError:  # Ctrl-C, and this took longer than the server waits
        return error_response("the server is shutting down; start it again", 503)
    except RequestError as refused:
        return error_response(str(refused), refused.status)
    except ValueError as error:
        return error_response(str(error), 400)
    except Exception as error:  # never a stack trace to the page; the log has it
        logging.getLogger("regard").exception("error in %s", request.scope["path"])
        if any(sign in repr(error) for sign in ("MemoryError", "out of memory", "allocate memory")):
            return error_response("not enough memory; send a shorter text", 413)
        return error_response(f"internal error ({type(error).__name__}); see the server log", 500)
    finally:
        body.release()


def start_streaming(function: Callable[[ApiRequest], ApiResponse], request: ApiRequest) -> ApiResponse:
    """Computes the first part of a stream at once: an error can then still be sent as a status."""
    answer = function(request)
    if isinstance(answer.body, bytes):
        return answer
    return replace(answer, body=StartedStream([next(answer.body, b"")], answer.body))


@dataclass(frozen=True, eq=False)
class StartedStream(Iterator[bytes]):
    """A stream whose first part is known already."""

    first: list[bytes]
    rest: ClosableIterator[bytes]

    def __next__(self) -> bytes:
        return self.first.pop() if self.first else next(self.rest)

    def close(self) -> None:
        self.rest.close()


def http_response(answer: ApiResponse, workers: Workers) -> Response:
    how: dict[str, Any] = {"media_type": answer.media_type, "headers": dict(answer.headers)}
    if isinstance(answer.body, bytes):
        return Response(answer.body, **how)
    return StreamingResponse(workers.iterate(answer.body), **how)


def error_response(sentence: str, status: int) -> Response:
    body = json_response({"error": " ".join(sentence.split())}).body
    return Response(body, status, {"Retry-After": "1"} if status == 429 else None, media_type="application/json")


async def handle_http_error(request: HTTPRequest, error: Any) -> Response:
    """Unknown paths (404) and wrong methods (405)."""
    path = request.scope["path"][:80]  # request.url would decode the query too, which may be invalid
    if error.status_code == 405:
        return error_response(f"method {request.method} is not allowed for {path}", 405)
    return error_response(f"there is nothing at {path}; begin at /", error.status_code)
