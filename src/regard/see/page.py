"""Recipes, positions and the widths of their pictures in; the gallery's page as Markdown out."""

from regard.attention.catalogue import Sizes
from regard.attention.given import Given
from regard.attention.normaliser import Softmax
from regard.attention.notation import leaves
from regard.attention.pattern import Full
from regard.attention.position import NoPosition, Position
from regard.attention.recipe import Recipe
from regard.see.captions import POSITION_LINES, RECIPE_LINES, line_for
from regard.see.views import code, mask

INTRODUCTION = """\
# The gallery

Every attention that has a name here, drawn by `regard gallery docs`. Each picture shows who may look at whom (queries
down, keys across, blue = may look) beside the weights the recipe gives on one fixed example, in which each query looks
for a place along a bent line. Under it stands the recipe as a file holds it. In Python a recipe is
`regard.attention.named("bigbird")`; any other is drawn by `regard draw "Causal() & Window(8)"`.

<img src="gallery/overview.png" width="{width}" alt="attention = score × position × pattern × normaliser">
"""

SECTIONS = {
    "score": "How well a query matches a key",
    "pattern": "Who may look at whom",
    "normaliser": "How scores become weights",
}
PLACES = "Where a token is"


def written(recipes: dict[str, Recipe], positions: dict[str, Position], widths: dict[str, int], sizes: Sizes) -> str:
    page = [INTRODUCTION.format(width=widths["overview"] // 2), contents(recipes, positions)]
    for part, title in SECTIONS.items():
        page.append(f"## {title}")
        for name, recipe in recipes.items():
            if differs(recipe) == part:
                alt = f"who may look at whom in {name} attention, and its weights"
                page += [f"### {name}", line_for(name, RECIPE_LINES), picture(slug(name), alt, widths)]
                page += [sees(recipe, sizes), held(recipe)]
    page.append(f"## {PLACES}")
    for name, position in positions.items():
        page += [f"### {name} position", line_for(name, POSITION_LINES)]
        if position != NoPosition():
            page.append(picture(f"position-{slug(name)}", f"{name} position", widths))
        page.append(f"```toml\nposition = {code(position)!r}\n```")
    return "\n\n".join(text.strip() for text in page) + "\n"


def contents(recipes: dict[str, Recipe], positions: dict[str, Position]) -> str:
    lines = ["| | |", "| --- | --- |"]
    for part, title in SECTIONS.items():
        links = (f"[{name}](#{slug(name)})" for name, recipe in recipes.items() if differs(recipe) == part)
        lines.append(f"| {title} | {' · '.join(links)} |")
    lines.append(f"| {PLACES} | {' · '.join(f'[{name}](#{slug(name)}-position)' for name in positions)} |")
    return "\n".join(lines)


def differs(recipe: Recipe) -> str:
    """The part for which a recipe is known."""
    if recipe.normaliser != Softmax():
        return "normaliser"
    return "pattern" if recipe.pattern != Full() else "score"


def picture(name: str, alt: str, widths: dict[str, int]) -> str:
    """Half as wide as it was drawn, so that it is sharp on every screen."""
    return f'<img src="gallery/{name}.png" width="{widths[name] // 2}" alt="{alt}">'


def sees(recipe: Recipe, sizes: Sizes) -> str:
    """What each row of the mask sees, in words."""
    seen = mask(recipe.pattern, sizes.tokens, sizes.tokens)[0].sum(1)
    least, most, share = int(seen.min()), int(seen.max()), float(seen.sum()) / sizes.tokens**2
    each = f"{most}" if least == most else f"{least} to {most}"
    keys = "key" if most == 1 else "keys"
    blocks = recipe.pattern.blocks(sizes.tokens, block=sizes.block).counted()
    empty = (
        f"; {blocks['empty']} of {sum(blocks.values())} blocks of {sizes.block} are empty" if blocks["empty"] else ""
    )
    return f"Each of {sizes.tokens} rows sees {each} {keys}, {share:.0%} of all pairs{empty}."


def held(recipe: Recipe) -> str:
    """The recipe as TOML; one that holds the data of a batch has none, and is shown by its parts."""
    if not any(isinstance(part, Given) for part in leaves(recipe.pattern)):
        return f"```toml\n{recipe.to_toml()}```"
    return f"It holds the data of one batch, so no file describes it:\n\n```text\n{code(recipe)}\n```"


def slug(name: str) -> str:
    """As a file and as an anchor of a page: small letters, digits and hyphens."""
    return "".join(sign for sign in name.lower().replace(" ", "-") if sign.isalnum() or sign == "-")
