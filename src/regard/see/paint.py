"""A view in, a matplotlib figure out; a figure in, a file out."""

import warnings
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.see import drawn_pictures, drawn_star, drawn_words, marks
from regard.see.layout import Line, arrange
from regard.see.legend import legend
from regard.see.panel import Bars, Curve, Curves, Listed, Panel, Picture, Points, Strip, View, scale_of
from regard.see.star import Star
from regard.see.style import CODE, INK, MUTED, PAPER, WORDS, fonts
from regard.text.files import whole

# kind of line: font, size, colour
LINES = {
    "title": (CODE, 9.5, INK),
    "heading": (WORDS, 11.0, INK),
    "panel": (WORDS, 8.5, INK),
    "name": (WORDS, 8.0, MUTED),
    "code": (CODE, 8.0, INK),
}
# what would differ from one run to the next, or from one version to the next
UNSAID = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# how files are written, in force while one is
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "regard",
    "svg.fonttype": "none",  # text stays text: small, sharp and searchable
    "pdf.fonttype": 42,
    "font.sans-serif": [WORDS, "Helvetica", "Arial"],
    "font.monospace": [CODE, "Menlo", "Consolas"],
}


def paint(view: View) -> Figure:
    layout = arrange(view)
    figure = Figure(figsize=(layout.width, layout.height), facecolor=PAPER, dpi=144)
    for line in layout.lines:
        write(figure, line)
    hidden = {p.scale: "hidden" for p in view.panels() if isinstance(p, Panel) and not p.whole}
    hidden |= {p.scale: p.absent for p in view.panels() if isinstance(p, Strip) and not p.whole}
    for place in layout.places:
        axes = place_axes(figure, place.x, place.y, place.width, place.height)
        write(figure, Line(place.panel.title, place.x, place.title, "panel"))
        match place.panel:
            case Curve():
                marks.curve(axes, place.panel)
            case Curves():
                marks.curves(axes, place.panel, place.width, place.height)
            case Strip():
                drawn_words.strip(axes, place.panel)
            case Picture():
                drawn_pictures.picture(axes, place.panel)
            case Bars():
                drawn_pictures.bars(axes, place.panel)
            case Star():
                drawn_star.star(axes, place.panel)
            case Listed():
                drawn_pictures.listed(axes, place.panel)
            case Points():
                drawn_pictures.points(axes, place.panel, place.width, place.height)
            case Panel():
                marks.matrix(axes, place.panel, place.width / place.panel.values.shape[1])
        if place.legend and (scale := scale_of(place.panel)):
            outlined = place.panel.outlined if isinstance(place.panel, Panel) else None
            legend(
                figure,
                scale,
                (place.x, place.y + place.height + 0.09),
                place.width,
                hidden=hidden.get(scale, ""),
                hatch=isinstance(place.panel, Panel) and marks.hatched(place.panel),
                outlined=outlined.meaning if outlined else "",
            )
    return figure


def place_axes(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Axes at (x, y) inches from the top left."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((x / wide, 1 - (y + height) / high, width / wide, height / high))


def write(figure: Figure, line: Line) -> None:
    family, size, colour = LINES[line.kind]
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
    if path.suffix.lower() not in UNSAID:
        raise ValueError(f"cannot write {path.name!r}: a picture ends in {', '.join(UNSAID)}")
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings(), whole(path) as file:
        # a letter that no font of this machine has is drawn as a box, and stays itself in an SVG
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format=path.suffix[1:].lower(), metadata=UNSAID[path.suffix.lower()])
    return path
