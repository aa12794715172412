"""`regard serve`, `regard api`: the microscope in a browser; models over HTTP."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import LoadOptions, model_folders, with_option_groups

PORT, API_PORT = 8642, 8643
MIN_KEY = 16  # characters of an API key


@with_option_groups
def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run folders, folders of their checkpoints, or names; default: all models of regard models.",
            metavar="RUN...",
            callback=model_folders,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 picks any free port.")] = PORT,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,  # noqa: FBT002
    with_api: Annotated[bool, typer.Option("--api", help="Answer as `regard api` does, too.")] = False,  # noqa: FBT002
    load: LoadOptions = LoadOptions(),
) -> None:
    """Serve the microscope: attention of every layer, head and step, interventions, masks, lectures. Ctrl-C stops it.

    Only this machine can reach it, the printed URL holds the access token, and it makes no outgoing requests.

    Example: `regard serve run --open`

    Example: `regard serve en-fr --open` (a model that is shipped; without a name, all of them)

    Example: `regard serve transformer bahdanau --port 8000`

    Example: `regard serve run --parts mine.py` (a run with parts of your own)

    Example: `regard serve run --api` (the page, and the routes of `regard api` without keys)
    """
    from regard.serve import server
    from regard.serve.model_store import ModelStore
    from regard.tasks.model_packages import packaged_models

    server.require_serve_extra()
    folders = runs or [model.folder for model in packaged_models()]
    if not folders:
        raise ValueError("no model given; name a run folder, or pip install regard-models")
    with server.open_socket(port) as here:
        models = ModelStore.from_folders(folders, load.torch_device, load.checkpoint, load.own_parts)
        token = server.new_token()
        where = server.page_url(here, token)
        typer.echo(f"{where}\nCtrl-C stops it.")
        if open_:
            server.open_page(where)
        if not with_api:
            server.serve(models, here, token)
            return
        from regard.serve.api import Api, create_api
        from regard.serve.app import create_app

        api = Api(models)
        server.serve_api(api, create_api(api, page=create_app(models, token=token)), here)


# --- the API ---


@dataclass(frozen=True)
class ApiOptions:
    """How many requests the API takes on, and how long they may last."""

    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a request, from its arrival on.")] = 60.0
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Sentences and texts that may wait; more are refused with 429.")
    ] = 256
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Token budget of a running batch: source tokens × beams.")
    ] = 4096
    workers: Annotated[int, typer.Option(min=0, help="Threads that compute, a core each; 0 for all cores.")] = 0
    processes: Annotated[
        bool,
        typer.Option(help="A process beside each worker for beam search, which shares the weights (Linux, on a CPU)."),
    ] = True
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes of a request.")] = 4 * 2**20


@with_option_groups
def api(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, folders of their checkpoints, or names: regard models lists them.",
            metavar="RUN...",
            callback=model_folders,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks any free port.")] = API_PORT,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all, behind a proxy.")] = "127.0.0.1",
    precision: Annotated[str, typer.Option(help="Of translation: float32, bfloat16, or int8 on a CPU.")] = "float32",
    exported: Annotated[
        Path | None,
        typer.Option(help="The run's model as `regard export` wrote it for ctranslate2 or onnx, to run it."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="A file of API keys, one a line; or the variable REGARD_API_KEYS.")
    ] = None,
    cors: Annotated[list[str] | None, typer.Option(help="An origin whose pages may ask, as https://my.site.")] = None,
    limits: ApiOptions = ApiOptions(),
    load: LoadOptions = LoadOptions(),
) -> None:
    """Serve models over HTTP: every task, translation as LibreTranslate has it, completions as OpenAI has them.

    Requests of all clients share running batches. GET /openapi.json describes the routes, /metrics is for Prometheus.
    SIGTERM finishes what was accepted; SIGHUP loads the models again.

    Example: `regard api run`

    Example: `regard api en-fr en-de shakespeare --host 0.0.0.0 --keys keys.txt`

    Example: `regard api run --precision int8`

    Example: `regard api run --exported ct2` (a folder that `regard export` wrote)
    """
    from regard.serve import server
    from regard.serve.model_store import ModelStore

    server.require_serve_extra()
    from regard.serve.api import Api, ApiLimits, create_api
    from regard.serve.scheduler import log_json
    from regard.serve.security import HOSTS

    secrets = read_keys(keys)
    loopback = host in HOSTS
    if not loopback and not secrets:
        typer.echo(f"regard: {host} can be reached by others, and there are no API keys; use --keys FILE", err=True)
    with server.open_socket(port, host) as here:
        models = ModelStore.from_folders(runs, load.torch_device, load.checkpoint, load.own_parts)
        state = Api(models, limits=ApiLimits(**vars(limits)), keys=secrets, precision=precision, exported=exported)
        log_json()
        typer.echo(f"http://{host}:{here.getsockname()[1]}/openapi.json\nCtrl-C stops it.")
        server.serve_api(state, create_api(state, loopback=loopback, origins=cors or []), here)


def read_keys(file: Path | None) -> list[str]:
    """From the file, or else from REGARD_API_KEYS; never from the command line, which others can see."""
    import os

    text = (
        os.environ.get("REGARD_API_KEYS", "").replace(",", "\n") if file is None else file.read_text(encoding="utf-8")
    )
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if file is not None and not found:
        raise ValueError(f"{file} holds no key; write one a line")
    if short := [key for key in found if len(key) < MIN_KEY]:
        raise ValueError(f"an API key of {len(short[0])} characters can be guessed; use at least {MIN_KEY}")
    return found
