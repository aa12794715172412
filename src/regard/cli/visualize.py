"""`regard draw`, `explain`, `gallery`: recipes and their parts as pictures, and which backend runs them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    PartsOption,
    load_parts,
)

if TYPE_CHECKING:
    pass


def draw(
    what: Annotated[str, typer.Argument(help='A part such as "Causal() & Window(4)", or a name such as bigbird.')],
    tokens: Annotated[int, typer.Option(min=1, help="Number of tokens.")] = 32,
    save: Annotated[Path | None, typer.Option(help="Write a plot here (.png, .svg or .pdf) instead.")] = None,
    parts: PartsOption = None,
) -> None:
    """Draw a pattern, a position, a recipe, or layers of the gallery: in the terminal, or into a file.

    Example: `regard draw "Causal() & Window(4)"`

    Example: `regard draw "3 gated delta : 1 full"`

    Example: `regard draw "NativeSparse(block=4, k=2, window=6)"`

    Example: `regard draw rotary --tokens 64 --save rotary.svg`

    Example: `regard draw "Causal() & EveryOther()" --parts mine.py`
    """
    from regard import see
    from regard.attention import RecipeSizes
    from regard.see.gallery import is_layer_name, layers_view
    from regard.see.plots.draw import build_view, parse_thing

    own_parts, sizes = load_parts(parts, None).named, RecipeSizes(heads=4, head=8, tokens=tokens, window=8, block=4)
    layers = is_layer_name(what)
    view = layers_view(what, sizes) if layers else build_view(parse_thing(what, sizes, own_parts), tokens=tokens)
    typer.echo(see.ascii(view) if save is None else f"drawn: {see.save(see.draw(view), save)}")


def explain(
    what: Annotated[str, typer.Argument(help="A name such as bigbird, a recipe's TOML file, or a part.")],
    tokens: Annotated[int, typer.Option(min=1, max=2**20, help="Number of tokens.")] = 4096,
    heads: Annotated[int, typer.Option(min=1, help="Number of heads.")] = 8,
    width: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 64,
    grad: Annotated[bool, typer.Option("--grad/--no-grad", help="With gradients or without.")] = True,  # noqa: FBT002
    parts: PartsOption = None,
) -> None:
    """Explain which backend runs a recipe, and why the others object.

    Example: `regard explain bigbird --tokens 65536 --no-grad`

    Example: `regard explain "Causal() & Window(512)"`
    """
    import torch

    from regard.attention import Pattern, RecipeSizes
    from regard.attention import explain as explained
    from regard.attention.sparse_patterns import is_content
    from regard.see.plots.draw import as_recipe, parse_thing
    from regard.see.plots.recipe_views import bind_example_gate, one_line_repr

    sizes, own_parts = RecipeSizes(heads=heads, head=width, tokens=tokens), load_parts(parts, None).named
    recipe = as_recipe(thing := parse_thing(what, sizes, own_parts))
    for name, part in recipe.parts().items():
        typer.echo(f"{name:<11} {one_line_repr(part)}")
    typer.echo(f"{'on':<11} {tokens:,} tokens, {heads} heads of width {width}, {'with' if grad else 'no'} gradients")
    if isinstance(thing, Pattern) and not is_content(thing):
        from regard.serve.playground import describe_mask

        found = describe_mask(thing, tokens)
        about = "" if found["exact"] else "about "
        typer.echo(
            f"{'cells':<11} {about}{found['cells']:,} of {tokens**2:,}, {100 * found['share']:.6g} % of full attention"
        )
    typer.echo("")
    recipe = bind_example_gate(recipe, heads, tokens, width) if recipe.gate.values else recipe
    with torch.set_grad_enabled(grad):
        typer.echo(str(explained(recipe, torch.zeros(1, heads, tokens, width))))


def gallery(folder: Annotated[Path, typer.Argument(help="The folder of gallery.md and its plots.")]) -> None:
    """Draw every named recipe and position, and the page that shows them.

    Example: `regard gallery docs`
    """
    from regard.see.gallery import write_gallery

    typer.echo(f"drawn: {write_gallery(folder)}")
