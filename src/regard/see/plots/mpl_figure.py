"""Matplotlib figures: draws a view with its legends and saves it, always to the same bytes."""

import warnings
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.data.files import open_atomic
from regard.see.plots import mpl_draw
from regard.see.plots.layout import TextLine, lay_out
from regard.see.plots.mpl_draw import OUTLINE_COLOUR
from regard.see.plots.panels import (
    BarChart,
    BarList,
    ColourScale,
    Curve,
    Curves,
    ImagePanel,
    NeighbourPlot,
    Panel,
    ScatterPlot,
    Strip,
    View,
    scale_of,
)
from regard.see.plots.style import (
    CODE,
    FRAME,
    GREY_RANGE,
    HATCH,
    HIDDEN,
    INK,
    MIXED,
    MUTED,
    PAPER,
    PLAIN_FONTS,
    VISIBLE,
    WORDS,
    colormap,
    fonts,
)

LEGEND_HEIGHT = 0.07


def draw_legend(
    figure: Figure,
    scale: ColourScale,
    at: tuple[float, float],
    width: float,
    *,
    hidden: str,
    hatch: bool,
    outlined: str = "",
) -> None:
    """Stands at (x, y) inches from the top left, below a panel so wide; says what is `hidden` or `outlined`, if any."""
    wide, high = figure.get_size_inches()
    axes = figure.add_axes((at[0] / wide, 1 - (at[1] + LEGEND_HEIGHT) / high, width / wide, LEGEND_HEIGHT / high))
    axes.axis("off")
    unseen: dict[str, Any] = {"hatch": "////////", "edgecolor": HATCH} if hatch else {"edgecolor": FRAME}
    match scale.kind:
        case "mask":
            after = draw_legend_key(axes, 0.0, "may attend", facecolor=VISIBLE, edgecolor=VISIBLE)
            draw_legend_key(axes, after, "hidden", facecolor=HIDDEN, **unseen)
        case "blocks":
            after = draw_legend_key(axes, 0.0, "full", facecolor=VISIBLE, edgecolor=VISIBLE)
            after = draw_legend_key(axes, after, "mixed", facecolor=MIXED, edgecolor=MIXED)
            draw_legend_key(axes, after, "empty", facecolor=HIDDEN, edgecolor=FRAME)
        case _:
            keys = (0.75 if hidden else 0.0) + (0.34 + 0.06 * len(outlined) if outlined else 0.0)
            length = max(0.7, min(1.3, width - keys)) if keys else min(width, 1.6)
            draw_colour_bar(axes, scale, length)
            after = length + 0.16
            if hidden:
                after = draw_legend_key(axes, after, hidden, facecolor=HIDDEN, **unseen)
            if outlined:
                draw_legend_key(axes, after, outlined, facecolor="none", edgecolor=OUTLINE_COLOUR, linewidth=1.4)
    axes.set(xlim=(0, width), ylim=(0, LEGEND_HEIGHT))  # last, for an image moves them


def draw_legend_key(axes: Axes, x: float, meaning: str, *, linewidth: float = 0.5, **look: Any) -> float:
    """A patch of colour and its meaning; says where the next may stand."""
    axes.add_patch(Rectangle((x, -0.02), 0.11, 0.11, linewidth=linewidth, clip_on=False, **look))
    axes.text(x + 0.16, LEGEND_HEIGHT / 2, meaning, fontsize=6.5, color=MUTED, family=PLAIN_FONTS, va="center")
    return x + 0.3 + 0.06 * len(meaning)


def draw_colour_bar(axes: Axes, scale: ColourScale, width: float) -> None:
    """Every colour of the scale between its lowest and its highest number."""
    steps = int(scale.high) + 1 if scale.kind == "kinds" else 128
    extent = (0.0, width, 0.0, LEGEND_HEIGHT)
    shades = np.linspace(0, 1, steps)[None]
    if scale.kind == "glow":  # over the lightest and over the darkest that may lie below it
        grey = np.array([[GREY_RANGE[1]], [GREY_RANGE[0]]])
        axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="none")
    axes.imshow(shades, cmap=colormap(scale), extent=extent, aspect="auto", interpolation="none", clip_on=False)
    axes.add_patch(Rectangle((0, 0), width, LEGEND_HEIGHT, fill=False, edgecolor=FRAME, linewidth=0.5, clip_on=False))
    below, beyond = "≤ " if scale.kind == "dimming" else "", "≥ " if scale.extends_above else ""
    style = {"fontsize": 6.5, "color": MUTED, "family": PLAIN_FONTS, "va": "top"}
    axes.text(0, -0.03, f"{below}{format_tick(scale.low)}", ha="left", **style)
    axes.text(width, -0.03, f"{beyond}{format_tick(scale.high)}", ha="right", **style)
    axes.text(width / 2, -0.03, scale.name if width > 1.1 else "", ha="center", **style)


def format_tick(x: float) -> str:
    return f"{x:.2g}".replace("-", "−")


# --- figures ---


# kind of line: font, size, colour
TEXT_LINE_STYLES = {
    "title": (CODE, 9.5, INK),
    "heading": (WORDS, 11.0, INK),
    "panel": (WORDS, 8.5, INK),
    "name": (WORDS, 8.0, MUTED),
    "code": (CODE, 8.0, INK),
}
# what would differ from one run to the next, or from one version to the next
OMITTED_METADATA = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# how files are written, in force while one is
SAVE_RC: dict[Any, Any] = {
    "svg.hashsalt": "regard",
    "svg.fonttype": "none",  # text stays text: small, sharp and searchable
    "pdf.fonttype": 42,
    "font.sans-serif": [WORDS, "Helvetica", "Arial"],
    "font.monospace": [CODE, "Menlo", "Consolas"],
}


class ViewFigure(Figure):
    """A figure that a notebook shows by itself; one made without pyplot would be a line of text there."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        write_figure(self, buffer, ".png")
        return buffer.getvalue()


def draw_view(view: View) -> ViewFigure:
    layout = lay_out(view)
    figure = ViewFigure(figsize=(layout.width, layout.height), facecolor=PAPER, dpi=144)
    for line in layout.lines:
        draw_text_line(figure, line)
    hidden = {p.scale: "hidden" for p in view.panels() if isinstance(p, Panel) and not p.all_visible}
    hidden |= {p.scale: p.missing_label for p in view.panels() if isinstance(p, Strip) and not p.all_visible}
    for place in layout.places:
        axes = add_axes_at(figure, place.x, place.y, place.width, place.height)
        draw_text_line(figure, TextLine(place.panel.title, place.x, place.title, "panel"))
        match place.panel:
            case Curve():
                mpl_draw.draw_curve(axes, place.panel)
            case Curves():
                mpl_draw.draw_curves(axes, place.panel, place.width, place.height)
            case Strip():
                mpl_draw.draw_strip(axes, place.panel)
            case ImagePanel():
                mpl_draw.draw_image(axes, place.panel)
            case BarChart():
                mpl_draw.draw_bars(axes, place.panel)
            case NeighbourPlot():
                mpl_draw.draw_neighbour_plot(axes, place.panel)
            case BarList():
                mpl_draw.draw_bar_list(axes, place.panel)
            case ScatterPlot():
                mpl_draw.draw_scatter(axes, place.panel, place.width, place.height)
            case Panel():
                mpl_draw.draw_matrix(axes, place.panel, place.width / place.panel.values.shape[1])
        if place.legend and (scale := scale_of(place.panel)):
            outlined = place.panel.outline if isinstance(place.panel, Panel) else None
            draw_legend(
                figure,
                scale,
                (place.x, place.y + place.height + 0.09),
                place.width,
                hidden=hidden.get(scale, ""),
                hatch=isinstance(place.panel, Panel) and mpl_draw.is_hatched(place.panel),
                outlined=outlined.meaning if outlined else "",
            )
    return figure


def add_axes_at(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Axes at (x, y) inches from the top left."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((x / wide, 1 - (y + height) / high, width / wide, height / high))


def draw_text_line(figure: Figure, line: TextLine) -> None:
    family, size, colour = TEXT_LINE_STYLES[line.kind]
    wide, high = figure.get_size_inches()
    figure.text(
        line.x / wide,
        1 - line.y / high,
        line.text,
        fontsize=size,
        color=colour,
        family=fonts(line.text, family),
        va="top",
        parse_math=False,
    )


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as its suffix says (.png, .svg or .pdf); the same figure always gives the same bytes."""
    path = Path(path)
    if path.suffix.lower() not in OMITTED_METADATA:
        raise ValueError(f"cannot write {path.name!r}: a picture ends in {', '.join(OMITTED_METADATA)}")
    with open_atomic(path) as file:
        write_figure(figure, file, path.suffix.lower())
    return path


def write_figure(figure: Figure, file: IO[bytes], suffix: str) -> None:
    with matplotlib.rc_context(SAVE_RC), warnings.catch_warnings():
        # a letter that no font of this machine has is drawn as a box, and stays itself in an SVG
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format=suffix[1:], metadata=OMITTED_METADATA[suffix])
