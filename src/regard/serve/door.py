"""Whoever asks in; only this machine's own page gets through, with a body of bearable size, and safe headers go out."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request as Asked
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.wire import Refused, as_json

HOSTS = ("127.0.0.1", "localhost", "[::1]")
MOST_BYTES = 12 * 2**20
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Door:
    """A name that somebody else's DNS gave to this machine, or a page of another origin, is not let in."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if why := objection(Headers(scope=scope), scope["path"]):
            await Response(as_json({"error": why}).body, 403, media_type="application/json")(scope, receive, safely)
            return
        await self.app(scope, receive, safely)


def objection(headers: Headers, path: str) -> str | None:
    host = headers.get("host", "")
    if bare(host) not in HOSTS:
        return f"{host[:80]!r} is not this machine; open the page at http://127.0.0.1"
    origin = headers.get("origin")
    elsewhere = origin is not None and origin.partition("://")[2] != host
    # a picture or a frame of another page asks without an origin, but browsers say so
    if elsewhere or (path.startswith("/api/") and headers.get("sec-fetch-site") == "cross-site"):
        return "another page may not ask this server; open its own"
    return None


def bare(host: str) -> str:
    """Without the port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


async def body_of(asked: Asked) -> Mapping[str, Any]:
    """The JSON that was sent: a table."""
    if asked.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused("send JSON, with Content-Type: application/json")
    held = bytearray()
    async for part in asked.stream():
        held += part
        if len(held) > MOST_BYTES:
            raise Refused(f"more than {MOST_BYTES // 2**20} MB were sent; send less", 413)
    try:
        body = json.loads(held)
    except (ValueError, RecursionError):
        raise Refused("what was sent is no JSON; send a table such as {}") from None
    if not isinstance(body, dict):
        raise Refused("what was sent is no table; send one such as {}")
    return body
