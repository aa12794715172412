"""Models and a port in; the page served to whoever started it, on this machine alone, until somebody ends it."""

import secrets
import socket
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from regard.serve.examples import Album
from regard.serve.shelf import Shelf

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server

HOST = "127.0.0.1"


def listening(port: int) -> socket.socket:
    """A socket that nobody but this machine can reach; port 0 is any that is free."""
    # asyncio sends small answers at once (TCP_NODELAY) only where a socket says that it is TCP
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()
    except OSError as error:
        found.close()
        raise ValueError(
            f"port {port} of {HOST} cannot be used ({error.strerror}); choose another: --port 0 takes any that is free"
        ) from None
    return found


def new_token() -> str:
    """For one run of the server; nobody can guess it."""
    return secrets.token_urlsafe(24)


def address(here: socket.socket, token: str, state: Mapping[str, str] | None = None) -> str:
    """Where the page is, for whoever knows the token, and what it shows first."""
    parts = "&".join(f"{name}={quote(value, safe='')}" for name, value in (state or {}).items() if value)
    return f"http://{HOST}:{here.getsockname()[1]}/?token={token}{f'#{parts}' if parts else ''}"


def open_page(where: str) -> None:
    """In the browser; some do not come back before they are closed, so nobody waits."""
    threading.Thread(target=webbrowser.open, args=(where,), daemon=True).start()


def server_of(app: "ASGIApp") -> "Server":
    """uvicorn as the page needs it; run it on a socket that listens."""
    import uvicorn

    from regard.serve.protocol import DeadlineProtocol

    return uvicorn.Server(
        uvicorn.Config(
            app, http=DeadlineProtocol, ws="none", log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
    )


def run(shelf: Shelf, here: socket.socket, token: str, album: Album | None = None) -> None:
    from regard.serve.app import app_of

    with suppress(KeyboardInterrupt):  # the usual way to end it
        server_of(app_of(shelf, album, token=token)).run(sockets=[here])


def require() -> None:
    """The page needs two packages that the rest does not."""
    try:
        import starlette
        import uvicorn

        del starlette, uvicorn
    except ImportError as error:
        raise ValueError(f"the page needs {error.name}; install it: pip install 'regard[serve]'") from None
