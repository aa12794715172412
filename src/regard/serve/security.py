"""Access token, security headers, body limits and a read deadline.

Every user of a machine can reach its 127.0.0.1, so the server prints a URL with a token; the first request with it sets
a cookie, and a request without token or cookie is refused.
"""

import asyncio
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from threading import Lock
from typing import Any

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.encoding import RequestError, json_response

HOSTS = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY_BYTES = 12 * 2**20  # of one request
MAX_BODY_BYTES_TOTAL = 8 * MAX_BODY_BYTES  # of all requests in flight
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


class HTTPMiddleware(ABC):
    """Abstract: ASGI middleware of HTTP requests; what is none passes through."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.handle if scope["type"] == "http" else self.app)(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class SecurityMiddleware(HTTPMiddleware):
    """Refuses requests without the token, under another host name (DNS rebinding), or from another origin."""

    def __init__(self, app: ASGIApp, token: str):
        super().__init__(app)
        self.token = token

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HTTPRequest(scope)
        # browsers separate cookies by host, not by port, and another server may listen on another port
        cookie = f"regard-{(scope['server'] or ('', 0))[1]}"
        visits = scope["path"] == "/" and self.accepts(request.query_params.get("token"))
        why = objection(request.headers, scope["path"])
        if not why and not visits and not self.accepts(request.cookies.get(cookie)):
            why = "token missing; open the URL with ?token= printed in the terminal"

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if visits and not why:
                    headers.append("Set-Cookie", f"{cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        if why:
            await Response(json_response({"error": why}).body, 403, media_type="application/json")(
                scope, receive, safely
            )
            return
        await self.app(scope, receive, safely)

    def accepts(self, token: str | None) -> bool:
        """Compares in constant time."""
        return token is not None and secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


def objection(headers: Headers, path: str) -> str | None:
    host = headers.get("host", "")
    if without_port(host) not in HOSTS:
        return f"{host[:80]!r} is not this machine; open the page at http://127.0.0.1"
    origin = headers.get("origin")
    elsewhere = origin is not None and origin.partition("://")[2] != host
    # an image or a frame of another page sends no Origin, but browsers send Sec-Fetch-Site; to them another port is the
    # same site. A link to the page itself may come from anywhere
    if elsewhere or (path != "/" and headers.get("sec-fetch-site", "none") not in ("same-origin", "none")):
        return "cross-origin request refused; open the server's own page"
    return None


def without_port(host: str) -> str:
    """The host without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


class BodyBudget:
    """Bounds the bytes of all request bodies in memory."""

    def __init__(self, most: int = MAX_BODY_BYTES_TOTAL):
        self.limit, self.in_use, self.lock = most, 0, Lock()

    def add(self, count: int) -> None:
        with self.lock:
            if self.in_use + count > self.limit:
                raise RequestError("too many request bytes in flight; retry in a moment", 429)
            self.in_use += count

    def remove(self, count: int) -> None:
        with self.lock:
            self.in_use -= count


class RequestBody:
    """The body of one request, in memory until it is answered."""

    def __init__(self, budget: BodyBudget):
        self.budget, self.data = budget, bytearray()

    async def receive(self, request: HTTPRequest) -> None:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RequestError("send JSON, with Content-Type: application/json")
        async for part in request.stream():
            if len(self.data) + len(part) > MAX_BODY_BYTES:
                raise RequestError(f"more than {MAX_BODY_BYTES // 2**20} MB were sent; send less", 413)
            self.budget.add(len(part))
            self.data += part

    def json(self) -> Mapping[str, Any]:
        """The body as a JSON object."""
        try:
            body = json.loads(self.data)
        except (ValueError, RecursionError):
            raise RequestError("the body is not JSON; send an object such as {}") from None
        if not isinstance(body, dict):
            raise RequestError("the body is not a JSON object; send one such as {}")
        return body

    def release(self) -> None:
        self.budget.remove(len(self.data))
        self.data = bytearray()  # a stopped thread may still read the other


# --- read deadline ---


READ_SECONDS = 20.0  # from the start of waiting for a request to its last byte
MAX_HELD = 2**16  # bytes that wait to be sent with others
TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class JoinedWrites:
    """A transport that sends what is written in one turn of the event loop at once: the head of a response with its
    body, which would otherwise be two packets, for each of which the system wakes the client up."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self.transport, self.loop, self.held = transport, loop, bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        if data and not self.held:
            self.loop.call_soon(self.flush)
        self.held += data
        if len(self.held) > MAX_HELD:  # the transport says when a client reads too slowly
            self.flush()

    def flush(self) -> None:
        held, self.held = self.held, bytearray()
        if held:
            self.transport.write(held)

    def close(self) -> None:
        self.flush()
        self.transport.close()


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, one per connection, with a deadline for receiving a request."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self.update_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.deadline is not None:
            self.deadline.cancel()

    def update_deadline(self) -> None:
        """More bytes do not extend it: only the end of the request cancels it."""
        waits = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if waits and self.deadline is None:
            self.deadline = self.loop.call_later(READ_SECONDS, self.on_deadline)
        elif not waits and self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def on_deadline(self) -> None:
        if self.transport.is_closing():
            return
        started, answered = self.conn.trailing_data[0], self.conn.our_state is not h11.SEND_RESPONSE
        if started if self.conn.their_state is h11.IDLE else not answered:
            self.transport.write(TIMEOUT_RESPONSE)
        self.transport.close()
