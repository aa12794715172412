"""Whoever asks in; only the page of whoever started the server gets through, and safe headers go out.

Every user of a machine can reach its 127.0.0.1, so an address is not enough: the server prints one with a token, the
first visit with it sets a cookie, and nothing is told without one of the two.
"""

import json
import secrets
from collections.abc import Mapping
from threading import Lock
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request as Asked
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.wire import Refused, as_json

HOSTS = ("127.0.0.1", "localhost", "[::1]")
MOST_BYTES = 12 * 2**20  # of one request
MOST_HELD = 8 * MOST_BYTES  # of all requests that are still being sent or answered
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
    """Without the token nobody gets in, nor by a name that somebody else's DNS gave this machine, nor another page."""

    def __init__(self, app: ASGIApp, token: str):
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        asked = Asked(scope)
        # a browser tells cookies apart by the host alone, and another server may listen at another of its ports
        cookie = f"regard-{(scope['server'] or ('', 0))[1]}"
        visits = scope["path"] == "/" and self.knows(asked.query_params.get("token"))
        why = objection(asked.headers, scope["path"])
        if not why and not visits and not self.knows(asked.cookies.get(cookie)):
            why = "this page is for whoever started it; open the address with ?token= that the terminal shows"

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if visits and not why:
                    headers.append("Set-Cookie", f"{cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        if why:
            await Response(as_json({"error": why}).body, 403, media_type="application/json")(scope, receive, safely)
            return
        await self.app(scope, receive, safely)

    def knows(self, token: str | None) -> bool:
        """In a time that does not tell how much of it is right."""
        return token is not None and secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


def objection(headers: Headers, path: str) -> str | None:
    host = headers.get("host", "")
    if bare(host) not in HOSTS:
        return f"{host[:80]!r} is not this machine; open the page at http://127.0.0.1"
    origin = headers.get("origin")
    elsewhere = origin is not None and origin.partition("://")[2] != host
    # a picture or a frame of another page asks without an origin, but browsers say so; to them a page at another port
    # is of the same site. A link to the page itself may stand anywhere
    if elsewhere or (path != "/" and headers.get("sec-fetch-site", "none") not in ("same-origin", "none")):
        return "another page may not ask this server; open its own"
    return None


def bare(host: str) -> str:
    """Without the port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


class BodyBudget:
    """Counts the bytes of all budget that are held at once."""

    def __init__(self, most: int = MOST_HELD):
        self.most, self.held, self.lock = most, 0, Lock()

    def add(self, count: int) -> None:
        with self.lock:
            if self.held + count > self.most:
                raise Refused("too much is sent at once; send it again in a moment", 429)
            self.held += count

    def remove(self, count: int) -> None:
        with self.lock:
            self.held -= count


class RequestBody:
    """What was sent with one request, held until it is answered."""

    def __init__(self, budget: BodyBudget):
        self.budget, self.held = budget, bytearray()

    async def receive(self, asked: Asked) -> None:
        if asked.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refused("send JSON, with Content-Type: application/json")
        async for part in asked.stream():
            if len(self.held) + len(part) > MOST_BYTES:
                raise Refused(f"more than {MOST_BYTES // 2**20} MB were sent; send less", 413)
            self.budget.add(len(part))
            self.held += part

    def table(self) -> Mapping[str, Any]:
        """As JSON."""
        try:
            body = json.loads(self.held)
        except (ValueError, RecursionError):
            raise Refused("what was sent is no JSON; send a table such as {}") from None
        if not isinstance(body, dict):
            raise Refused("what was sent is no table; send one such as {}")
        return body

    def drop(self) -> None:
        self.budget.remove(len(self.held))
        self.held = bytearray()  # a thread that was stopped may still look at the other
