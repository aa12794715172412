"""A folder in; a page with a picture of every named attention and position, and the contact sheet, out.

The same bytes come out every time, so that a change of the page is a change of the catalogue.
"""

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import torch
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.progress import track

from regard.attention.catalogue import POSITIONS, RECIPES, Sizes
from regard.attention.position import NoPosition
from regard.see.overview import overview
from regard.see.page import slug, written
from regard.see.paint import paint, save
from regard.see.places import position_view
from regard.see.recipes import recipe_view

Made = TypeVar("Made")

SIZES = Sizes(heads=4, head=8, tokens=64, window=8, block=4)
COLOURS = 160  # enough for a smooth ramp and its text; keeps a picture small


def gallery(folder: str | Path) -> Path:
    """Write folder/gallery.md and its pictures, and say where the page is."""
    folder = Path(folder)
    pictures: dict[str, Callable[[], Figure]] = {"overview": lambda: overview(SIZES)}
    recipes = {name: fresh(lambda make=make: make(SIZES, NoPosition())) for name, make in RECIPES.items()}
    positions = {name: fresh(lambda make=make: make(SIZES)) for name, make in POSITIONS.items()}
    for name, recipe in recipes.items():
        pictures[slug(name)] = lambda recipe=recipe: paint(replace(recipe_view(recipe, tokens=SIZES.tokens), notes=()))
    for name, position in positions.items():
        if position != NoPosition():
            pictures[f"position-{slug(name)}"] = lambda position=position: paint(position_view(position))
    widths = {}
    for name, make in track(pictures.items(), "drawing the gallery", console=Console(stderr=True)):
        widths[name] = keep(fresh(make), folder / "gallery" / f"{name}.png")

    page = folder / "gallery.md"
    page.write_text(written(recipes, positions, widths, SIZES), encoding="utf-8")
    return page


def fresh(make: Callable[[], Made]) -> Made:
    """Made with the same random weights every time, and without touching anybody else's random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def keep(figure: Figure, path: Path) -> int:
    """Write a figure as a small PNG, and say how wide it is."""
    save(figure, path)
    picture = Image.open(BytesIO(path.read_bytes())).convert("RGB")
    small = picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return picture.width
