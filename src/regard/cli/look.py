"""A trained model and something to read in; what it says and where it looked, in a terminal or a picture, out."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import BeamSize, Device, Longest, Model, device_of, file_for
from regard.cli.tasks import Looking, task_at


def look(
    model: Model,
    text: Annotated[str, typer.Argument(help="The sentence, or the file of a picture.")],
    question: Annotated[str | None, typer.Argument(help="About the picture.")] = None,
    target: Annotated[str | None, typer.Option(help="Its translation; without one, the model's own.")] = None,
    head: Annotated[str | None, typer.Option(help="LAYER:HEAD; without it, the heads that tell most.")] = None,
    every: Annotated[bool, typer.Option("--every", help="All layers and heads, side by side.")] = False,  # noqa: FBT002
    word: Annotated[str | None, typer.Option(help="What decided what was made of this word?")] = None,
    save: Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg or .pdf) as well.")] = None,
    beam: BeamSize = 5,
    longest: Longest = 1000,
    device: Device = "auto",
) -> None:
    """Show what a model makes of a sentence, and where it looked for that.

    Example: `regard look run "the black cat ate the mouse"`

    Example: `regard look run "the black cat ate the mouse" --every --save heads.png`

    Example: `regard look run "the man carries the light box" --word light`

    Example: `regard look shapes picture.png --save overlay.png`

    Example: `regard look answers picture.png "what colour is the circle"`
    """
    from regard import see

    save = save and file_for(save)
    if every and (head or word):
        raise ValueError("--every shows all heads and words; leave it out, or --head and --word")
    if not text.strip():
        raise ValueError("the sentence is empty; give at least one word")
    task = task_at(model)
    learner = task.load(model, device_of(device))
    if question is not None and learner.settings.task != "answer":
        raise ValueError(f"{model} is for the task {learner.settings.task!r}, and answers no questions; give one text")
    said, view = task.look(learner, model, text, Looking(head, every, word, target, beam, longest, question))
    typer.echo(f"{said}\n\n{see.ascii(view)}")
    if save:
        typer.echo(f"\ndrawn: {see.save(see.draw(view), save)}")
