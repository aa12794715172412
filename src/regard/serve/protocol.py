"""HTTP/1.1 with a read deadline: a request that is not sent to its end in time is answered 408, and its line is closed.

uvicorn's own limits hold for lines that are silent between two requests; a client that sends half of a request, or one
byte a second, would keep its line for ever.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

READ_SECONDS = 20.0  # from the first moment that a request is waited for to its last byte
LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class DeadlineProtocol(H11Protocol):
    """uvicorn's protocol, which makes one of these for every connection, and what it does when bytes come."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.deadline is not None:
            self.deadline.cancel()

    def watch(self) -> None:
        """More bytes do not put it off: only the end of the request ends it."""
        waits = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if waits and self.deadline is None:
            self.deadline = self.loop.call_later(READ_SECONDS, self.late)
        elif not waits and self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def late(self) -> None:
        if self.transport.is_closing():
            return
        begun, answered = self.conn.trailing_data[0], self.conn.our_state is not h11.SEND_RESPONSE
        if begun if self.conn.their_state is h11.IDLE else not answered:
            self.transport.write(LATE)
        self.transport.close()
