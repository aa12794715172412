"""A trained model and something to read in; what it says and where it looked, in a terminal, a file or a page, out."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import BeamSize, Checkpoint, Device, Longest, Model, device_of, file_for
from regard.cli.tasks import Looking, task_at

if TYPE_CHECKING:
    from regard.serve.scenes import Showing
    from regard.tasks.job import Learner

PAGES = (".html", ".npz", ".csv")  # written from a scene; other files are pictures


def look(
    model: Model,
    text: Annotated[str | None, typer.Argument(help="A sentence, the file of a picture, or a node's name.")] = None,
    question: Annotated[str | None, typer.Argument(help="About the picture.")] = None,
    target: Annotated[str | None, typer.Option(help="Its translation; without one, the model's own.")] = None,
    head: Annotated[str | None, typer.Option(help="LAYER:HEAD; without it, the heads that tell most.")] = None,
    every: Annotated[bool, typer.Option("--every", help="All layers and heads, side by side.")] = False,  # noqa: FBT002
    word: Annotated[str | None, typer.Option(help="What decided what was made of this word?")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf), a page (.html) or numbers (.npz, .csv).")
    ] = None,
    others: Annotated[list[Path] | None, typer.Option("--with", help="Another model, to compare on the page.")] = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="In a terminal, open the page as well.")] = True,  # noqa: FBT002
    beam: BeamSize = 5,
    longest: Longest = 1000,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Show what a model makes of a sentence, and where it looked for that: in the terminal, and on a page beside it.

    Example: `regard look run`

    Example: `regard look run "the black cat ate the mouse"`

    Example: `regard look run "the black cat ate the mouse" --every --save heads.png`

    Example: `regard look run "the black cat ate the mouse" --save look.html`

    Example: `regard look run "the man carries the light box" --word light --no-page`

    Example: `regard look transformer "the black cat ate the mouse" --with bahdanau`

    Example: `regard look shapes picture.png --save overlay.png`

    Example: `regard look answers picture.png "what colour is the circle"`
    """
    from regard import see

    save, opens = save and file_for(save), page and sys.stdout.isatty() and save is None
    if every and (head or word):
        raise ValueError("--every shows all heads and words; leave it out, or --head and --word")
    if text is None and not opens:
        wanted = task_at(model).reads
        raise ValueError(f"there is nothing to read; give {wanted}, or start the page: regard serve {model}")
    if text is not None and not text.strip():
        raise ValueError("the sentence is empty; give at least one word")
    task = task_at(model)
    learner = task.load(model, device_of(device), checkpoint)
    if question is not None and learner.settings.task != "answer":
        raise ValueError(f"{model} is for the task {learner.settings.task!r}, and answers no questions; give one text")
    if text is not None:
        said, view = task.look(learner, model, text, Looking(head, every, word, target, beam, longest, question))
        typer.echo(f"{said}\n\n{see.ascii(view)}")
        if save and save.suffix.lower() in PAGES:
            showing = scene(learner, model, text, question, target, beam)
            typer.echo(f"\nwritten: {write(showing, head, save)}")
        elif save:
            typer.echo(f"\ndrawn: {see.save(see.draw(view), save)}")
    if opens:
        opened(model, others or [], text, question, device_of(device), checkpoint)


# --- a page, or numbers, in a file ---


def scene(learner: "Learner", model: Path, text: str, question: str | None, target: str | None, beam: int) -> "Showing":
    from regard.see import scene_of
    from regard.serve.scenes import Showing
    from regard.tasks.kept import Kept

    assert isinstance(learner, Kept)
    searched = beam if learner.settings.task in ("translate", "rebuild") else None
    made = scene_of(learner, text, question=question, target=target, beam=searched)
    return Showing("copy", model.resolve().name, made, Path(text).name if made.picture is not None else text, model)


def write(showing: "Showing", head: str | None, save: Path) -> Path:
    from regard.serve.exports import exported
    from regard.text.files import whole

    site, _, number = head.rpartition(":") if head else ("", "", "")
    body = exported(showing, save.suffix[1:].lower(), site or None, int(number) if number.isdecimal() else None)
    with whole(save) as file:
        file.write(body)
    return save


# --- the page in a browser ---


def opened(
    model: Path, others: list[Path], text: str | None, question: str | None, device: str, checkpoint: str | None
) -> None:
    from base64 import b64encode

    from regard.serve import running
    from regard.serve.examples import Album
    from regard.serve.shelf import Shelf

    try:
        running.require()
    except ValueError as missing:
        if text is None:
            raise
        typer.echo(f"\n{missing}", err=True)
        return
    shelf, album = Shelf.of([model, *others], device, checkpoint), Album()
    first = next(iter(shelf.books))
    if text is not None and shelf.learner(first).settings.task in ("picture", "answer"):
        text = album.put(b64encode(Path(text).read_bytes()).decode())
    with running.listening(0) as here:
        token = running.new_token()
        where = running.address(here, token, {"model": first, "text": text or "", "question": question or ""})
        typer.echo(f"\n{where}\nCtrl-C ends it.")
        running.open_page(where)
        running.run(shelf, here, token, album)
