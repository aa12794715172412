"""Words typed in a terminal in; pictures of parts and recipes, and who runs them, out."""

from pathlib import Path
from typing import Annotated

import typer


def draw(
    what: Annotated[str, typer.Argument(help='A part such as "Causal() & Window(4)", or a name such as bigbird.')],
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens.")] = 32,
    save: Annotated[Path | None, typer.Option(help="Write a picture here (.png, .svg or .pdf) instead.")] = None,
) -> None:
    """Draw a pattern, a position or a recipe: in the terminal, or into a file.

    Example: `regard draw "Causal() & Window(4)"`

    Example: `regard draw rotary --tokens 64 --save rotary.svg`
    """
    from regard import see
    from regard.attention import Sizes
    from regard.see.asked import asked

    thing = asked(what, Sizes(heads=4, head=8, tokens=tokens, window=8, block=4))
    if save is None:
        typer.echo(see.ascii(thing, tokens=tokens))
    else:
        typer.echo(f"drawn: {see.save(see.draw(thing, tokens=tokens), save)}")


def explain(
    what: Annotated[str, typer.Argument(help="A name such as bigbird, a recipe's TOML file, or a part.")],
    tokens: Annotated[int, typer.Option(min=1, max=2**20, help="How many tokens.")] = 4096,
    heads: Annotated[int, typer.Option(min=1, help="How many heads.")] = 8,
    width: Annotated[int, typer.Option(min=1, help="How wide a head is.")] = 64,
    grad: Annotated[bool, typer.Option("--grad/--no-grad", help="Will it be trained?")] = True,  # noqa: FBT002
) -> None:
    """Say which backend runs a recipe, and why the others do not.

    Example: `regard explain bigbird --tokens 65536 --no-grad`

    Example: `regard explain "Causal() & Window(512)"`
    """
    import torch

    from regard.attention import Sizes
    from regard.attention import explain as explained
    from regard.see.asked import as_recipe, asked
    from regard.see.views import code

    recipe = as_recipe(asked(what, Sizes(heads=heads, head=width, tokens=tokens)))
    for part in ("score", "position", "pattern", "normaliser"):
        typer.echo(f"{part:<11} {code(getattr(recipe, part))}")
    typer.echo(f"{'on':<11} {tokens:,} tokens, {heads} heads of width {width}, {'with' if grad else 'no'} gradients\n")
    with torch.set_grad_enabled(grad):
        typer.echo(str(explained(recipe, torch.zeros(1, heads, tokens, width))))


def gallery(folder: Annotated[Path, typer.Argument(help="Where gallery.md and its pictures go.")]) -> None:
    """Draw every named attention and position, and the page that shows them.

    Example: `regard gallery docs`
    """
    from regard import see

    typer.echo(f"drawn: {see.gallery(folder)}")
