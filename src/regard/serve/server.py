"""Servers: uvicorn for the page, on 127.0.0.1 with an access token, and for the API, which answers all it accepted."""

import asyncio
import gc
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from regard.serve.model_store import MediaStore, ModelStore

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server

    from regard.serve.api import Api
    from regard.serve.trace_cache import CorpusStore

HOST = "127.0.0.1"
DRAIN_SECONDS = 0.5  # for requests that are on their way when the API is to end
GC_THRESHOLD = 50_000  # as of a process that lives long; at its start the command line looks for garbage less often
API_GC_THRESHOLD = 2_000  # that of 50,000 took 50 ms, in which no request was answered


def open_socket(port: int, host: str = HOST) -> socket.socket:
    """A listening socket, on 127.0.0.1 unless another host is given; port 0 picks any free port."""
    # asyncio sets TCP_NODELAY only if the protocol of the socket is IPPROTO_TCP
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(1024)
    except OSError as error:
        found.close()
        raise ValueError(
            f"port {port} of {host} cannot be used ({error.strerror}); choose another: --port 0 picks any free port"
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


def create_server(app: "ASGIApp", *, graceful: float = 2, **settings: Any) -> "Server":
    """A configured uvicorn server; run it on a listening socket. It waits so long for what is under way at its end."""
    import uvicorn

    from regard.serve.security import DeadlineProtocol

    settings = {"http": DeadlineProtocol, "log_level": "warning", "access_log": False} | settings
    return uvicorn.Server(uvicorn.Config(app, ws="none", timeout_graceful_shutdown=int(graceful), **settings))


def serve(
    models: ModelStore,
    here: socket.socket,
    token: str,
    media: MediaStore | None = None,
    corpora: "CorpusStore | None" = None,
) -> None:
    from regard.serve.app import create_app

    gc.set_threshold(GC_THRESHOLD)
    with suppress(KeyboardInterrupt):  # the usual way to stop it
        create_server(create_app(models, media, corpora, token=token)).run(sockets=[here])


def serve_api(api: "Api", app: "ASGIApp", here: socket.socket) -> None:
    """Until SIGTERM or Ctrl-C: then what was accepted is finished. SIGHUP loads the models again."""
    gc.set_threshold(API_GC_THRESHOLD)
    gc.freeze()  # a search through all that was loaded held every answer up for a third of a second
    server = create_server(app, graceful=api.limits.timeout + 1, log_config=None, timeout_keep_alive=20)

    async def run() -> None:
        loop, reloads = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def drain() -> None:
            """No new connections; requests on open ones are still answered, and then it ends."""
            server.force_exit, api.draining = api.draining, True  # asked twice, it does not wait
            for listener in server.servers:
                listener.close()
            loop.call_later(DRAIN_SECONDS, setattr, server, "should_exit", True)  # noqa: FBT003

        def reload() -> None:
            reloads.add(task := asyncio.ensure_future(api.reload_logged()))
            task.add_done_callback(reloads.discard)

        setattr(server, "handle_exit", lambda *_: loop.call_soon_threadsafe(drain))  # noqa: B010  (uvicorn's drops some)
        if sys.platform != "win32":
            loop.add_signal_handler(signal.SIGHUP, reload)
        await server.serve(sockets=[here])

    asyncio.run(run())


def require_serve_extra() -> None:
    """Refuses with a remedy if the packages of the extra `serve` are missing."""
    try:
        import fastapi
        import prometheus_client
        import starlette
        import uvicorn

        del fastapi, prometheus_client, starlette, uvicorn
    except ImportError as error:
        raise ValueError(f"the server needs {error.name}; install it: pip install 'regard[serve]'") from None
