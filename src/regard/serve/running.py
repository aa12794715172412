"""Models and a port in; the page served on this machine alone, until somebody ends it."""

import socket
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote

from regard.serve.examples import Album
from regard.serve.shelf import Shelf

HOST = "127.0.0.1"


def listening(port: int) -> socket.socket:
    """A socket that nobody but this machine can reach; port 0 is any that is free."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
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


def address(here: socket.socket, state: Mapping[str, str] | None = None) -> str:
    """Where the page is, and what it shows first."""
    parts = "&".join(f"{name}={quote(value, safe='')}" for name, value in (state or {}).items() if value)
    return f"http://{HOST}:{here.getsockname()[1]}/{f'#{parts}' if parts else ''}"


def open_page(where: str) -> None:
    """In the browser; some do not come back before they are closed, so nobody waits."""
    threading.Thread(target=webbrowser.open, args=(where,), daemon=True).start()


def run(shelf: Shelf, here: socket.socket, album: Album | None = None) -> None:
    import uvicorn

    from regard.serve.app import app_of

    config = uvicorn.Config(app_of(shelf, album), log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    with suppress(KeyboardInterrupt):  # the usual way to end it
        uvicorn.Server(config).run(sockets=[here])


def require() -> None:
    """The page needs two packages that the rest does not."""
    try:
        import starlette
        import uvicorn

        del starlette, uvicorn
    except ImportError as error:
        raise ValueError(f"the page needs {error.name}; install it: pip install 'regard[serve]'") from None
