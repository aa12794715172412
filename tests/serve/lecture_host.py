"""A tiny page around the lecture view, with the library behind it: what its tests and screenshots open in a browser."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import sleep

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import regard
from regard.see.sites import AttentionSite
from regard.see.trace import Trace
from regard.serve.playground import walk_through_example, walk_through_head

PAGE = Path(regard.__file__).parent / "serve" / "page"
POLICY = "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; base-uri 'none'; form-action 'self'"
HTML = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Lecture</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/style.css"><link rel="stylesheet" href="/static/lecture.css">
<script type="module" src="/host.js"></script></head>
<body><header class="top"><h1 class="brand">Regard</h1></header>
<div class="body wide"><main><div id="panel"></div></main></div></body></html>"""
SCRIPT = """import { store } from "/static/js/store.js"; import "/static/js/views/lecture.js";
const trace = (await (await fetch("/trace")).json()).trace;
const view = document.createElement("regard-lecture");
document.getElementById("panel").append(view);
store.addEventListener("change", () => view.show(trace, store.state)); view.show(trace, store.state);"""


def app(trace: Trace | None = None) -> Starlette:
    def page(request: Request) -> Response:
        return HTMLResponse(HTML, headers={"Content-Security-Policy": POLICY})

    def script(request: Request) -> Response:
        return Response(SCRIPT, media_type="text/javascript")

    def shown(request: Request) -> Response:
        return JSONResponse({"trace": trace and described(trace)})

    async def answered(request: Request) -> Response:
        try:
            request_body = json.loads(await request.body())
            return JSONResponse(
                on_model(trace, request_body)
                if trace and "trace" in request_body
                else walk_through_example(request_body)
            )
        except ValueError as problem:
            return JSONResponse({"error": str(problem)}, 400)

    routes = [Route("/", page), Route("/host.js", script), Route("/trace", shown)]
    routes += [Route("/api/lecture", answered, methods=["POST"]), Mount("/static", StaticFiles(directory=PAGE))]
    return Starlette(routes=routes)


def described(trace: Trace) -> dict:
    sites = [
        {
            "name": name,
            "heads": site.heads,
            "queries": site.site_name.queries,
            "keys": site.site_name.keys,
            "shown": True,
        }
        | {"n_q": site.shape[0], "n_k": site.shape[1]}
        for name, site in trace.sites.items()
        if isinstance(site, AttentionSite)
    ]
    return {"id": "1", "sites": sites, "axes": {name: list(axis.labels) for name, axis in trace.axes.items()}}


def on_model(trace: Trace, request_body: dict) -> dict:
    site = trace.site(request_body["site"])
    labels = {
        name: trace.axes[axis].labels
        for name, axis in (("queries", site.site_name.queries), ("keys", site.site_name.keys))
    }
    return walk_through_head(site, request_body["head"], request_body["query"], **labels)


@contextmanager
def serving(application: Starlette) -> Iterator[str]:
    """The address of a server that runs meanwhile."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", ws="none", lifespan="off"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(10)
