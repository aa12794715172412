"""Nothing in; one contact sheet of the whole idea out: score × position × pattern × normaliser."""

from dataclasses import replace

import torch
from matplotlib.figure import Figure

from regard.attention.attending import steps
from regard.attention.catalogue import POSITIONS, Sizes, named
from regard.attention.recipe import Recipe
from regard.attention.worked import WORKED
from regard.see import marks
from regard.see.example import black_cat, seen_by
from regard.see.layout import Line
from regard.see.paint import place_axes, write
from regard.see.panel import Axis, Panel, Scale
from regard.see.places import position_view
from regard.see.style import MUTED, PAPER, PLAIN
from regard.see.views import mask, weights_view

SCORES = ("scaled dot", "dot", "cosine", "luong general", "bahdanau", "linear")
PLACES = ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw")
PATTERNS = ("causal", "sliding window", "strided", "longformer", "bigbird", "documents")
NORMALISERS = ("scaled dot", "sparsemax", "top-k", "hard", "relu", "sigmoid")
CALLED = {"luong general": "general (Luong)", "bahdanau": "additive (Bahdanau)", "linear": "feature map"}

TILE, GAP, LEFT, TOP = 1.18, 0.2, 0.25, 0.95
ROW = TILE + 0.7


def overview(sizes: Sizes) -> Figure:
    """Learned parts get fresh weights, so seed torch beforehand."""
    rows = {
        "score": [weights_tile(CALLED.get(name, name), named(name, sizes=sizes), sizes) for name in SCORES],
        "position": [position_tile(name, sizes) for name in PLACES],
        "pattern": [mask_tile(name, named(name, sizes=sizes), sizes) for name in PATTERNS],
        "normaliser": [
            weights_tile("softmax" if name == "scaled dot" else name, named(name, sizes=sizes), sizes)
            for name in NORMALISERS
        ],
    }
    figure = Figure(figsize=(LEFT + 6 * (TILE + GAP) + 4.05, TOP + 4 * ROW - 0.05), facecolor=PAPER, dpi=128)
    wide, high = figure.get_size_inches()
    heading = "attention  =  score  ×  position  ×  pattern  ×  normaliser"
    figure.text(LEFT / wide, 1 - 0.25 / high, heading, fontsize=17, family=PLAIN, va="top")
    for r, (part, tiles) in enumerate(rows.items()):
        y = TOP + r * ROW
        write(figure, Line(part, LEFT, y - 0.12, "heading"))
        for t, tile in enumerate(tiles):
            paste(figure, tile, LEFT + t * (TILE + GAP), y + 0.34, TILE, TILE)
    x = LEFT + 6 * (TILE + GAP) + 0.85
    aligned, english, french = black_cat()
    labelled(
        figure, "French looks at English", weights_panel(aligned.weights, english, french), x, TOP + 0.42, cell=0.44
    )
    ahead = next(worked for worked in WORKED if worked.name == "look-ahead mask")
    told = ("<start>", "I", "am", "fine")
    seen = steps(*ahead.qkv(), ahead.recipe)
    panel = replace(weights_panel(seen.weights, told, told), visible=seen.visible[0, 0])
    labelled(figure, "a language model looks back", panel, x, TOP + 4 * ROW - 0.36 - 4 * 0.55, cell=0.55)
    return figure


# --- tiles: pictures without numbers ---


def weights_tile(title: str, recipe: Recipe, sizes: Sizes) -> Panel:
    seen = seen_by(recipe, sizes.tokens)
    weights = seen.weights[0, 0].double()
    return Panel(title, weights, Scale.of_rows(weights), seen.visible[0, 0])


def mask_tile(title: str, recipe: Recipe, sizes: Sizes) -> Panel:
    return Panel(title, mask(recipe.pattern, sizes.tokens, sizes.tokens)[0], Scale("mask"))


def position_tile(name: str, sizes: Sizes) -> Panel:
    """The first picture of a scheme."""
    panel = position_view(POSITIONS[name](sizes)).panels()[0]
    assert isinstance(panel, Panel)
    return replace(panel, title=name)


def paste(figure: Figure, panel: Panel, x: float, y: float, width: float, height: float) -> None:
    wide, high = figure.get_size_inches()
    axes = place_axes(figure, x, y, width, height)
    blank = replace(panel, down=Axis(""), across=Axis("feature"))
    marks.matrix(axes, blank, width / panel.values.shape[1])
    axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
    figure.text(x / wide, 1 - (y - 0.05) / high, panel.title, fontsize=8, family=PLAIN, color=MUTED, va="bottom")


# --- two panels to be read ---


def weights_panel(
    weights: torch.Tensor, tokens: list[str] | tuple[str, ...], queries: list[str] | tuple[str, ...]
) -> Panel:
    panel = weights_view(weights, tokens=tokens, queries=queries).panels()[0]
    assert isinstance(panel, Panel)
    return replace(panel, down=replace(panel.down, name=""), across=replace(panel.across, name=""))


def labelled(figure: Figure, title: str, panel: Panel, x: float, y: float, *, cell: float) -> None:
    rows, columns = panel.values.shape
    axes = place_axes(figure, x, y, cell * columns, cell * rows)
    marks.matrix(axes, panel, cell)
    write(figure, Line(title, x, y - 0.54, "heading"))
