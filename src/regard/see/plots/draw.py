"""Drawing: draw, ascii and show of anything that has a view, and the parser of what a user asks to draw.

A user names an attention of the catalogue, or types a part or a recipe's TOML.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.attention.backends.reference import Steps
from regard.attention.catalogue import CONTENT_RECIPES, GATED_RECIPES, POSITIONS, RECIPES, RecipeSizes, get_recipe
from regard.attention.gate import Gate, StateGate, Unnormalised
from regard.attention.normaliser import Normaliser, Softmax
from regard.attention.parts import PARTS, attach_own_parts, own_parts_of, parse_part
from regard.attention.pattern import Causal, Pattern
from regard.attention.position import Position
from regard.attention.recipe import Recipe
from regard.attention.score import Cosine, ScaledDot, Score
from regard.data.files import require_small_file
from regard.see.edits import Edits
from regard.see.plots.attention_maps import Alignment, alignment_view
from regard.see.plots.charts import LengthCurves, Neighbourhood, lengths_view, neighbourhood_view
from regard.see.plots.mpl_figure import ViewFigure, draw_view
from regard.see.plots.panels import View
from regard.see.plots.recipe_views import (
    pattern_view,
    position_view,
    recipe_view,
    steps_view,
    weights_view,
)
from regard.see.plots.terminal import render_view
from regard.see.trace import Trace, trace_model
from regard.tasks.pretrained import PretrainedModel

if TYPE_CHECKING:
    from regard.serve.exports import NotebookFrame
    from regard.serve.widget import MicroscopeWidget


@singledispatch
def build_view(thing: object, **how: Any) -> View:
    """The panels that show a thing.

    Examples:
        >>> view = build_view(torch.tensor([[0.6, 0.4], [0.0, 1.0]]), tokens=["the", "cat"])
        >>> view.rows[0].panels[0].across.labels
        ('the', 'cat')
        >>> print(ascii(view))
             the  cat
        the  ▒▒▒  ▒▒▒
        cat       ███
    """
    raise ValueError(
        f"cannot draw a {type(thing).__name__}; a pattern, position, recipe, steps or a tensor of weights can be, "
        "and an Alignment, LengthCurves, a Neighbourhood or a View"
    )


build_view.register(Pattern, pattern_view)
build_view.register(Position, position_view)
build_view.register(Recipe, recipe_view)
build_view.register(Steps, steps_view)
build_view.register(Tensor, weights_view)
build_view.register(Alignment, alignment_view)
build_view.register(LengthCurves, lengths_view)
build_view.register(Neighbourhood, neighbourhood_view)


@build_view.register
def view_unchanged(view: View) -> View:
    return view


Drawable = Pattern | Position | Recipe | Steps | Tensor | Alignment | LengthCurves | Neighbourhood | View


def draw(thing: Drawable, **how: Any) -> ViewFigure:
    """A thing as a matplotlib figure; give it to `save`, or let a notebook show it as a cell's last line.

    - `draw(Causal() & Window(8), tokens=32, block=4)`: tokens: how many, or which; block: its block map too
    - `draw(Rotary(), tokens=64, width=64)`: width: of the model or head, where the scheme leaves it open
    - `draw(weights, tokens=[...], queries=[...])`: (i, j), (h, i, j) or (1, h, i, j); `visible` marks the hidden
    - `draw(steps(q, k, v, recipe), tokens=[...])`: scores → adjusted → visible → weights
    - `draw(recipe, tokens=48)`: its mask, its weights on an example, its four parts
    - `draw(Alignment(source, target, weights, gold))`: who was translated by whom; `title` stands above
    - `draw(LengthCurves(curves))`: scores by sentence length; `title` stands above
    - `draw(Neighbourhood.of(graph, attention, "Anna-3", "blocks.0"))`: a node of a graph among its neighbours
    - `draw(stack(strip(words, weights), strip(...)))`: sentences, each word on its shade
    - `draw(overlay_view(pixels, [(name, weights), ...]))`: any other view: of pictures, tags, texts, neighbours

    Examples:
        >>> from matplotlib.figure import Figure
        >>> from regard.attention import Causal, Window
        >>> figure = draw(Causal() & Window(8), tokens=32, block=4)
        >>> isinstance(figure, Figure), save(figure, "window.png").name
        (True, 'window.png')
    """
    return draw_view(build_view(thing, **how))


def ascii(thing: Drawable, *, numbers: bool = False, colour: bool = False, **how: Any) -> str:
    """The same as text for a terminal; takes what `draw` takes.

    Args:
        numbers: print each weight beside its shade.
        colour: pictures and words in the 24-bit colours of a terminal that has them, instead of shades.

    Examples:
        >>> from regard.attention import Causal, Global, Window
        >>> print(ascii(Causal() & (Window(2) | Global(1)), tokens=5))
        ■ · · · ·
        ■ ■ · · ·
        ■ ■ ■ · ·
        ■ · ■ ■ ·
        ■ · · ■ ■
        >>> print(ascii(torch.tensor([[0.6, 0.4], [0.2, 0.8]]), tokens=["the", "cat"], numbers=True))
             the      cat
        the  ▓▓ 0.60  ▒▒ 0.40
        cat  ░░ 0.20  ██ 0.80
    """
    return render_view(build_view(thing, **how), numbers=numbers, colour=colour)


# --- notebooks ---


def show(
    model: PretrainedModel | Path | str | Trace,
    text: str = "",
    *,
    question: str | None = None,
    target: str | None = None,
    edits: Edits = Edits(),
    site: str | None = None,
    head: int | None = None,
) -> "NotebookFrame":
    """The microscope of one trace in a notebook's cell, without a server: overview, matrix, lines and more.

    Args:
        model: a trained model, the folder of its run, or a trace.
        text, question, target, edits: as `trace_model` takes them.
        site, head: what the page shows first.

    Examples:
        >>> frame = show("run", "the cat sleeps", target="le chat dort", site="decoder.0.cross", head=1)
        >>> "le chat dort" in frame.html, frame._repr_html_()[:8]
        (True, '<iframe ')
    """
    from regard.serve.exports import NotebookFrame, standalone_page
    from regard.serve.trace_cache import CachedTrace

    trace = (
        model if isinstance(model, Trace) else trace_model(model, text, question=question, target=target, edits=edits)
    )
    folder = Path(model) if isinstance(model, (str, Path)) else None
    media = trace.request.task.inputs.kind in ("image", "audio")
    title = Path(trace.request.text).name if media else trace.request.text
    name = trace.task if folder is None else folder.resolve().name
    return NotebookFrame(standalone_page(CachedTrace("copy", name, trace, title, folder), site=site, head=head))


def widget(
    model: PretrainedModel | Path | str | Trace,
    text: str = "",
    *,
    question: str | None = None,
    target: str | None = None,
    edits: Edits = Edits(),
    site: str | None = None,
    head: int | None = None,
    height: int = 760,
) -> "MicroscopeWidget":
    """The whole microscope, live in a notebook's cell: what is selected and edited in it are values of the widget, and
    setting them changes the page. It needs `pip install 'regard[notebook]'`.

    Args:
        model, text, question, target, edits, site, head: as `show` takes them.
        height: of the cell, in pixels.

    Examples:
        >>> seen = widget("run", "the cat sleeps", target="le chat dort", site="decoder.0.cross", head=1)
        >>> seen.site, seen.head, seen.trace.output_text
        ('decoder.0.cross', 1, 'le chat dort')
        >>> seen.edits = Edits(off=(HeadOff("decoder.0.cross", 1),))
        >>> seen.trace.site("decoder.0.cross").weights(head=1).sum().item()
        0.0
    """
    try:
        from regard.serve.widget import MicroscopeWidget
    except ImportError as error:
        raise ValueError(f"a widget needs {error.name}; install it: pip install 'regard[notebook]'") from None
    trace = (
        model if isinstance(model, Trace) else trace_model(model, text, question=question, target=target, edits=edits)
    )
    return MicroscopeWidget(trace, site=site, head=head, height=height)


# --- what a user typed ---


# what comes of parts that are well written but do not go together, such as Causal() & 3
PARSE_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError)
TOML_RECIPE = re.compile(rf"\s*({'|'.join(field.name for field in fields(Recipe))})\s*=")


def parse_thing(text: str, sizes: RecipeSizes, own_parts: Mapping[str, Any] = {}) -> Pattern | Position | Recipe:
    """A name of the catalogue, a recipe's TOML or the path of it, or a part such as "Causal() & Window(4)"."""
    if text in RECIPES | GATED_RECIPES | CONTENT_RECIPES:
        return get_recipe(text, sizes=sizes)
    if text in POSITIONS:
        return POSITIONS[text](sizes)
    try:
        thing = parse_text(attach_own_parts(text, own_parts))
        build_view(thing, tokens=2)
    except PARSE_ERRORS as error:
        raise ValueError(f"{text!r} does not work: {type(error).__name__} {error}") from None
    return thing


def parse_text(text: str) -> Pattern | Position | Recipe:
    if text.endswith(".toml"):
        return parse_file(Path(text), own_parts_of(text))
    if TOML_RECIPE.match(text):
        return Recipe.from_toml(text)
    if "(" not in text:
        raise ValueError(f"nothing is called {text!r}{suggest_name(text)}")
    part = parse_part(text)
    if isinstance(part, Pattern | Position):
        return part
    if isinstance(part, Score):
        return Recipe(score=part)
    if isinstance(part, Normaliser):
        return Recipe(normaliser=part)
    if isinstance(part, Gate):
        normaliser = Unnormalised() if isinstance(part, StateGate) else Softmax()
        score = Cosine(1.0) if part.delta else ScaledDot()  # of longer keys the delta rule makes ever larger weights
        return Recipe(score=score, pattern=Causal(), normaliser=normaliser, gate=part)
    raise ValueError(
        f"{text!r} is no score, position, pattern, normaliser or gate; try RelativeVectors(Clipped(4), head=8)"
    )


def parse_file(path: Path, own_parts: Mapping[str, Any] = {}) -> Recipe:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}; a recipe file is what recipe.to_toml() writes")
    try:
        text = require_small_file(path).read_text(encoding="utf-8")
        return Recipe.from_toml(attach_own_parts(text, own_parts))
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def suggest_name(text: str) -> str:
    """What comes closest to a name that nothing has."""
    from regard.see.gallery import LAYER_CAPTIONS  # which draws by what is above

    if text in LAYER_CAPTIONS:
        return ", but a layer or several are: `regard draw` shows them"
    names = *RECIPES, *GATED_RECIPES, *CONTENT_RECIPES, *POSITIONS, *LAYER_CAPTIONS
    known = {name.lower(): name for name in names} | {name.lower(): f"{name}()" for name in PARTS}
    near = get_close_matches(text.lower(), known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {known[near[0]]!r}?"
    return f"; names are {', '.join(names)}; or write a part such as 'Causal() & Window(4)'"


def as_recipe(thing: Pattern | Position | Recipe) -> Recipe:
    """A part by itself makes a recipe whose other parts are the Transformer's."""
    if isinstance(thing, Recipe):
        return thing
    return Recipe(pattern=thing) if isinstance(thing, Pattern) else Recipe(position=thing)
