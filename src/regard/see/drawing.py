"""Anything that can be seen in; a figure or a text out."""

from functools import singledispatch
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from regard.attention.backends.reference import Steps
from regard.attention.pattern import Pattern
from regard.attention.position import Position
from regard.attention.recipe import Recipe
from regard.see.alignment import Alignment, alignment_view
from regard.see.graph import Neighbourhood, neighbourhood_view
from regard.see.lengths import Lengths, lengths_view
from regard.see.paint import paint
from regard.see.panel import View
from regard.see.places import position_view
from regard.see.recipes import recipe_view
from regard.see.terminal import printed
from regard.see.views import pattern_view, steps_view, weights_view


@singledispatch
def look(thing: object, **how: Any) -> View:
    """The panels that show a thing."""
    raise ValueError(
        f"cannot draw a {type(thing).__name__}; a pattern, position, recipe, steps or a tensor of weights can be, "
        "and an Alignment, Lengths, a Neighbourhood or a View"
    )


look.register(Pattern, pattern_view)
look.register(Position, position_view)
look.register(Recipe, recipe_view)
look.register(Steps, steps_view)
look.register(Tensor, weights_view)
look.register(Alignment, alignment_view)
look.register(Lengths, lengths_view)
look.register(Neighbourhood, neighbourhood_view)


@look.register
def as_it_is(view: View) -> View:
    return view


Seen = Pattern | Position | Recipe | Steps | Tensor | Alignment | Lengths | Neighbourhood | View


def draw(thing: Seen, **how: Any) -> Figure:
    """A thing as a figure; give it to `save`, or show it in a notebook.

    draw(Causal() & Window(8), tokens=32, block=4)     tokens: how many, or which; block: its block map too
    draw(Rotary(), tokens=64, width=64)                width: of the model or head, where the scheme leaves it open
    draw(weights, tokens=[...], queries=[...])         (i, j), (h, i, j) or (1, h, i, j); visible=... marks the hidden
    draw(steps(q, k, v, recipe), tokens=[...])         scores → adjusted → visible → weights
    draw(recipe, tokens=48)                            its mask, its weights on an example, its four parts
    draw(Alignment(source, target, weights, gold))     who was translated by whom; title=... stands above
    draw(Lengths(curves))                              scores by sentence length; title=... stands above
    draw(Neighbourhood.of(graph, looked, "Anna-3", "layers.0"))     a node of a graph among its neighbours
    draw(stack(strip(words, weights), strip(...)))     sentences, each word on its shade
    draw(overlay(pixels, [(name, weights), ...]))      any other view: of pictures, tags, texts, neighbours, growth
    """
    return paint(look(thing, **how))


def ascii(thing: Seen, *, numbers: bool = False, colour: bool = False, **how: Any) -> str:
    """The same as text for a terminal; takes what `draw` takes.

    numbers     print each weight beside its shade
    colour      pictures and words in the 24-bit colours of a terminal that has them, instead of shades
    """
    return printed(look(thing, **how), numbers=numbers, colour=colour)
