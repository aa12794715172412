"""Runs uvicorn on 127.0.0.1 with an access token."""

import secrets
import socket
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from regard.serve.model_store import MediaStore, ModelStore

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server

HOST = "127.0.0.1"


def open_socket(port: int) -> socket.socket:
    """A listening socket on 127.0.0.1; port 0 picks any free port."""
    # asyncio sets TCP_NODELAY only if the protocol of the socket is IPPROTO_TCP
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()
    except OSError as error:
        found.close()
        raise ValueError(
            f"port {port} of {HOST} cannot be used ({error.strerror}); choose another: --port 0 picks any free port"
        ) from None
    return found


def new_token() -> str:
    """A random access token for one run of the server."""
    return secrets.token_urlsafe(24)


def page_url(here: socket.socket, token: str, state: Mapping[str, str] | None = None) -> str:
    """The URL of the page with the access token and its initial state."""
    parts = "&".join(f"{name}={quote(value, safe='')}" for name, value in (state or {}).items() if value)
    return f"http://{HOST}:{here.getsockname()[1]}/?token={token}{f'#{parts}' if parts else ''}"


def open_page(where: str) -> None:
    """Opens the browser in a thread, since some block until they are closed."""
    threading.Thread(target=webbrowser.open, args=(where,), daemon=True).start()


def create_server(app: "ASGIApp") -> "Server":
    """A configured uvicorn server; run it on a listening socket."""
    import uvicorn

    from regard.serve.security import DeadlineProtocol

    return uvicorn.Server(
        uvicorn.Config(
            app, http=DeadlineProtocol, ws="none", log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
    )


def serve(models: ModelStore, here: socket.socket, token: str, media: MediaStore | None = None) -> None:
    from regard.serve.app import create_app

    with suppress(KeyboardInterrupt):  # the usual way to stop it
        create_server(create_app(models, media, token=token)).run(sockets=[here])


def require_serve_extra() -> None:
    """Refuses with a remedy if the packages of the extra `serve` are missing."""
    try:
        import starlette
        import uvicorn

        del starlette, uvicorn
    except ImportError as error:
        raise ValueError(f"the page needs {error.name}; install it: pip install 'regard[serve]'") from None
