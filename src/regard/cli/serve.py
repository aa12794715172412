"""Folders of trained models in; the microscope, a page about what they attend to, out, on this machine alone."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Checkpoint, Device, device_of

PORT = 8642


def serve(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of their checkpoints.", metavar="RUN...")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 takes any that is free.")] = PORT,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,  # noqa: FBT002
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Show the page that looks into models: every layer, head and step, what-ifs, masks, lectures. Ctrl-C ends it.

    Only this machine can reach it, only whoever has the printed address may, and it asks nothing of any other.

    Example: `regard serve run --open`

    Example: `regard serve transformer bahdanau --port 8000`
    """
    from regard.serve import running
    from regard.serve.shelf import Shelf

    running.require()
    with running.listening(port) as here:
        shelf, token = Shelf.of(runs, device_of(device), checkpoint), running.new_token()
        where = running.address(here, token)
        typer.echo(f"{where}\nCtrl-C ends it.")
        if open_:
            running.open_page(where)
        running.run(shelf, here, token)
