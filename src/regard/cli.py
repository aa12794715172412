"""Words typed in a terminal in; pictures, explanations and a walk through the lectures out.

Torch takes seconds to start, so each command imports what it needs by itself and `regard --help` answers at once.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

# what typer raises for a wrong command line: the base of its BadParameter, whether click is inside it or beside it
Mistyped = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])


class OneLine(TyperGroup):
    """A group of commands for which a user's mistake is one line on stderr, with the remedy, and exit code 2."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            code = super().main(*args, **(extra | {"standalone_mode": False}))
        except typer.Abort:
            sys.exit(130)
        except Mistyped as mistake:
            fail(f"{mistake.format_message().rstrip('.')}; see regard --help")
        except ValueError as mistake:
            fail(str(mistake))
        except OSError as mistake:
            fail(f"{mistake.filename}: {mistake.strerror}; choose another place")
        else:
            sys.exit(code if isinstance(code, int) else 0)


def fail(why: str) -> NoReturn:
    typer.echo(f"regard: {' '.join(why.split())}", err=True)
    sys.exit(2)


app = typer.Typer(cls=OneLine, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def regard(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,  # noqa: FBT002
) -> None:
    """Attention models you can build, train, run, trust and see."""
    if show_version:
        typer.echo(version("regard"))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
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


@app.command()
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


@app.command()
def gallery(folder: Annotated[Path, typer.Argument(help="Where gallery.md and its pictures go.")]) -> None:
    """Draw every named attention and position, and the page that shows them.

    Example: `regard gallery docs`
    """
    from regard import see

    typer.echo(f"drawn: {see.gallery(folder)}")


@app.command()
def demo(folder: Annotated[Path, typer.Option(help="Where the gallery is drawn.")] = Path("out")) -> None:
    """Walk through the lectures' example, a mask and an explanation, and draw the gallery.

    Example: `regard demo`
    """
    from rich.console import Console

    from regard.see.demo import demo as walk

    walk(Console(), folder)
