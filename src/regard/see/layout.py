"""A view in; where each of its panels and lines of text stands out, in inches from the top left.

Sizes follow from the number of cells and the length of the labels, so nothing overlaps and nothing is measured twice.
"""

from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len

from regard.see.panel import Axis, Curve, Panel, Row, View

EDGE, GAP, LINE = 0.18, 0.34, 0.17  # around the figure, between panels, a line of small text
LETTER = 0.068  # a terminal cell's worth of label
CODE = 0.083  # a letter of the title
BELOW = 0.42  # room for a legend
LEGEND = 1.45  # at least so wide
SIDE = 2.5  # of a picture that is not made of square cells


@dataclass(frozen=True)
class Place:
    """A panel's own rectangle, and where its title begins."""

    panel: Panel | Curve
    x: float
    y: float
    width: float
    height: float
    title: float


@dataclass(frozen=True)
class Line:
    """A line of text."""

    text: str
    x: float
    y: float
    kind: str


@dataclass(frozen=True)
class Layout:
    width: float
    height: float
    places: tuple[Place, ...]
    lines: tuple[Line, ...]


def arrange(view: View) -> Layout:
    rows = [[measure(panel, view.side) for panel in row.panels] for row in view.rows]
    texts = [CODE * min(len(view.title), 56), *(0.95 + CODE * min(len(code), 48) for _, code in view.notes)]
    widths = [sum(s.left + s.taken for s in row) + GAP * (len(row) - 1) for row in rows]
    width = 2 * EDGE + max(widths + texts)
    letters = int((width - 2 * EDGE) / CODE)
    y, lines, places = EDGE, [], []
    for text in wrap(view.title, letters, max_lines=3, break_on_hyphens=False, placeholder=" …"):
        lines.append(Line(text, EDGE, y, "title"))
        y += 1.25 * LINE
    y += 0.4 * LINE if view.title else 0.0
    for row, sizes in zip(view.rows, rows, strict=True):
        if row.heading:
            lines.append(Line(row.heading, EDGE, y, "heading"))
            y += 1.7 * LINE
        placed = list(place(row, sizes, y))
        places += placed
        y = max(p.y + p.height for p in placed) + BELOW
    for name, code in view.notes:
        lines.append(Line(name, EDGE, y, "name"))
        for text in wrap(code, letters - 12, max_lines=3, break_on_hyphens=False, placeholder=" …"):
            lines.append(Line(text, EDGE + 0.95, y, "code"))
            y += 1.2 * LINE
    return Layout(width, y + EDGE / 2, tuple(places), tuple(lines))


def place(row: Row, sizes: list["Size"], y: float):
    x, above = EDGE, max(s.above for s in sizes)
    for panel, s in zip(row.panels, sizes, strict=True):
        x += s.left
        yield Place(panel, x, y + above, s.width, s.height, y + above - s.above)
        x += s.taken + GAP


# --- how large a panel is ---


@dataclass(frozen=True)
class Size:
    """The picture itself, and what its labels need to the left of it, above it, and past its right edge."""

    width: float
    height: float
    left: float
    above: float
    right: float = 0.0

    @property
    def taken(self) -> float:
        return max(self.width + self.right, LEGEND)


def measure(panel: Panel | Curve, side: float | None) -> Size:
    if isinstance(panel, Curve) or not panel.square:
        return Size(1.4 * (side or SIDE), side or SIDE, 0.42, above(panel.title, LINE))
    rows, columns = panel.values.shape
    cell = side / max(rows, columns) if side else cell_size(panel)
    left = LETTER * widest(panel.down) + 0.26 if panel.down.labels else 0.4
    last = panel.across.labels[-1] if panel.across.labels and slanted(panel.across, cell) else ""
    right = max(0.0, 0.71 * LETTER * cell_len(last) - cell / 2)
    return Size(cell * columns, cell * rows, left, above(panel.title, label_height(panel.across, cell)), right)


def above(title: str, labels: float) -> float:
    """A title, the name of the axis and its labels."""
    return (1.3 * LINE if title else 0.0) + 0.8 * LINE + labels


def cell_size(panel: Panel) -> float:
    """Room for a number in each cell while there are few; then as small as the labels allow."""
    most = max(panel.values.shape)
    readable = 0.15 if panel.down.labels or panel.across.labels else 0.0
    return max(min(0.42, 2.9 / most), min(readable, 10 / most))


def widest(axis: Axis) -> int:
    return max(map(cell_len, axis.labels or ("",)))


def slanted(axis: Axis, cell: float) -> bool:
    """Are the labels too long to lie side by side?"""
    return LETTER * widest(axis) + 0.05 > cell


def label_height(axis: Axis, cell: float) -> float:
    if axis.labels is None or not slanted(axis, cell):
        return 0.8 * LINE
    return 0.71 * LETTER * widest(axis) + 0.1
