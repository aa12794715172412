"""A view in; where each of its panels and lines of text stands out, in inches from the top left.

Sizes follow from the number of cells and the length of the labels, so nothing overlaps and nothing is measured twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len

from regard.see.labels import BREAK
from regard.see.panel import (
    Axis,
    Bars,
    Curve,
    Curves,
    Listed,
    Panel,
    Picture,
    Points,
    Row,
    Shown,
    Strip,
    View,
    scale_of,
)
from regard.see.star import AROUND, RADIUS, Star

EDGE, GAP, LINE = 0.18, 0.34, 0.17  # around the figure, between panels, a line of small text
LETTER = 0.068  # a terminal cell's worth of label
CODE = 0.083  # a letter of the title
HEADING = 0.09  # of a heading
BELOW = 0.42  # room for a legend
LEGEND = 1.45  # at least so wide
KEY = 0.5  # and this much wider if cells are outlined too
SIDE = 2.5  # of a picture that is not made of square cells
BROAD = 7.0  # of a sentence in one row
PICTURE = 1.55  # the longer side of a picture among others
BARS = 0.8  # the height of the longest bar
LIST = (0.21, 1.1)  # the height of a listed name, and the longest bar beside it


@dataclass(frozen=True)
class Type:
    """How words are set: all in inches but the size of the letters, which is in points."""

    letter: float  # a terminal cell's worth
    around: float  # the letters of a word
    height: float
    apart: float  # from word to word
    leading: float  # from line to line
    points: float


SENTENCE = Type(0.085, 0.12, 0.3, 0.05, 0.05, 9.5)
TEXT = Type(0.067, 0.09, 0.215, 0.02, 0.035, 8.0)  # a long one
PIECES = Type(0.0753, 0.0, 0.25, 0.0, 0.05, 9.0)  # one whose words hold their own blanks, every letter as wide
MANY = 60  # words of a text that is long


@dataclass(frozen=True)
class Place:
    """A panel's own rectangle, where its title begins, and whether the legend of its scale stands below it."""

    panel: Shown
    x: float
    y: float
    width: float
    height: float
    title: float
    legend: bool


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
    last = {scale: panel for panel in view.panels() if (scale := scale_of(panel))}
    rows = [[measure(panel, view.side) for panel in row.panels] for row in view.rows]
    texts = [CODE * min(len(view.title), 56), *(HEADING * cell_len(row.heading) for row in view.rows)]
    texts += [0.95 + CODE * min(len(code), 48) if name else LETTER * (len(code) + 1) for name, code in view.notes]
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
        placed = list(place(row, sizes, y, list(last.values())))
        places += placed
        y = max(p.y + p.height + below(p) for p in placed)
    for name, code in view.notes:
        lines += [Line(name, EDGE, y, "name")] if name else []
        x, letter, kind = (EDGE + 0.95, CODE, "code") if name else (EDGE, LETTER, "panel")
        for text in wrap(code, int((width - EDGE - x) / letter), max_lines=3, break_on_hyphens=False, placeholder=" …"):
            lines.append(Line(text, x, y, kind))
            y += 1.2 * LINE
    return Layout(width, y + EDGE / 2, tuple(places), tuple(lines))


def place(row: Row, sizes: list["Size"], y: float, last: list[Shown]):
    x, above = EDGE, max(s.above for s in sizes)
    for panel, s in zip(row.panels, sizes, strict=True):
        x += s.left
        legend = any(panel is other for other in last)
        yield Place(panel, x, y + above, s.width, s.height, y + above - s.above, legend)
        x += s.taken + GAP


def below(place: Place) -> float:
    """What stands under a panel: a legend, or the numbers of an axis; what has neither stands close."""
    if isinstance(place.panel, Curves):
        return BELOW + 0.5 * LINE
    return BELOW if place.legend or not isinstance(place.panel, Strip | Picture | Listed | Star) else 0.8 * LINE


# --- how large a panel is ---


@dataclass(frozen=True)
class Size:
    """The picture itself, and what its labels need to the left of it, above it, and past its right edge."""

    width: float
    height: float
    left: float
    above: float
    right: float = 0.0
    legend: float = LEGEND

    @property
    def taken(self) -> float:
        return max(self.width + self.right, self.legend)


def measure(panel: Shown, side: float | None) -> Size:
    if isinstance(panel, Curves):
        names = LETTER * max(cell_len(series.name) for series in panel.series)
        return Size(1.6 * (side or SIDE), side or SIDE, 0.62, above(panel.title, 0.3 * LINE), 0.55 + names)
    if isinstance(panel, Strip):
        boxes = word_boxes(panel)
        width, height = max(x + w for x, _, w in boxes), line_tops(panel, boxes)[-1] - set_as(panel).leading
        return Size(
            width, height, 0.0, titled(panel.title), beyond(panel.title, width), LEGEND if panel.shaded else 0.0
        )
    if isinstance(panel, Picture):
        _, rows, columns = panel.pixels.shape
        pixel = (side or PICTURE) / max(rows, columns)
        width = pixel * columns
        return Size(width, pixel * rows, 0.0, titled(panel.title), beyond(panel.title, width), 0.0)
    if isinstance(panel, Star):
        width, height = star_size(panel)
        return Size(width, height, 0.0, titled(panel.title), beyond(panel.title, width), 0.0)
    if isinstance(panel, Bars):
        return Size(BROAD, BARS, 0.42, titled(panel.title) + 0.4 * LINE)
    if isinstance(panel, Listed):
        width = LETTER * max(map(cell_len, panel.names)) + 0.1 + LIST[1] + 0.4
        return Size(width, LIST[0] * len(panel.names), 0.0, titled(panel.title), beyond(panel.title, width), 0.0)
    if isinstance(panel, Points):
        texts = (*panel.names, *(text for _, text in panel.written))
        names = LETTER * max(map(cell_len, texts)) + 0.3
        return Size(1.25 * (side or SIDE), side or SIDE, 0.42, titled(panel.title) + 0.3 * LINE, names)
    if isinstance(panel, Curve) or not panel.square:
        return Size(1.4 * (side or SIDE), side or SIDE, 0.42, above(panel.title, LINE))
    rows, columns = panel.values.shape
    cell = side / max(rows, columns) if side else cell_size(panel)
    left = LETTER * widest(panel.down) + 0.26 if panel.down.labels else 0.4
    last = panel.across.labels[-1] if panel.across.labels and slanted(panel.across, cell) else ""
    right = max(0.0, 0.71 * LETTER * cell_len(last) - cell / 2)
    legend = LEGEND + (KEY if panel.outlined else 0.0)
    return Size(cell * columns, cell * rows, left, above(panel.title, label_height(panel.across, cell)), right, legend)


def star_size(star: Star) -> tuple[float, float]:
    names = LETTER * max(map(cell_len, star.names), default=0) + 0.15
    return 2 * (RADIUS + names), 2 * (RADIUS + AROUND)


def titled(title: str) -> float:
    return 1.3 * LINE if title else 0.0


def beyond(title: str, width: float) -> float:
    """How far a title reaches past a panel so wide."""
    return max(0.0, LETTER * cell_len(title) - width)


def above(title: str, labels: float) -> float:
    """A title, the name of the axis and its labels."""
    return titled(title) + 0.8 * LINE + labels


def cell_size(panel: Panel) -> float:
    """Room for a number in each cell while there are few; then as small as the labels allow."""
    most = max(panel.values.shape)
    readable = 0.17 if panel.down.labels or panel.across.labels else 0.0
    broad = readable > 0 and panel.values.shape[0] == 1
    return max(min(0.42, (BROAD if broad else 2.9) / most), min(readable, 10 / most))


def widest(axis: Axis) -> int:
    return max(map(cell_len, axis.labels or ("",)))


def slanted(axis: Axis, cell: float) -> bool:
    """Are the labels too long to lie side by side?"""
    return LETTER * widest(axis) + 0.05 > cell


def label_height(axis: Axis, cell: float) -> float:
    if axis.labels is None or not slanted(axis, cell):
        return 0.8 * LINE
    return 0.71 * LETTER * widest(axis) + 0.1


# --- words in lines ---


Box = tuple[float, int, float]


def set_as(strip: Strip) -> Type:
    return PIECES if strip.close else TEXT if len(strip.words) > MANY else SENTENCE


def line_tops(strip: Strip, boxes: list[Box]) -> list[float]:
    """Where each line of words begins, and where one more would: below the words may stand rows of small text."""
    kind, tops = set_as(strip), [0.0]
    for line in range(boxes[-1][1] + 1):
        places = [n for n, (_, on, _) in enumerate(boxes) if on == line]
        rows = max((n + 1 for n, row in enumerate(strip.below) if any(row[place] for place in places)), default=0)
        tops.append(tops[-1] + kind.height + kind.leading + LINE * rows + (0.4 * LINE if rows else 0.0))
    return tops


def word_boxes(strip: Strip) -> list[Box]:
    """Where each word of a strip begins, on which line, and how wide it is."""
    kind = set_as(strip)
    widths = [
        max(
            kind.letter * cell_len(word) + kind.around,
            *(LETTER * cell_len(text) + kind.apart for text in strip.under(n)),
            0.0,
        )
        for n, word in enumerate(strip.words)
    ]
    places = flowed(widths, BROAD, kind.apart, ends(strip))
    return [(x, line, w) for (x, line), w in zip(places, widths, strict=True)]


def ends(strip: Strip) -> frozenset[int]:
    """The words after which a new line begins: pieces of a text may hold its line breaks."""
    return frozenset(n for n, word in enumerate(strip.words) if strip.close and word.endswith(BREAK))


def flowed(
    widths: Sequence[float], room: float, gap: float, ends: frozenset[int] = frozenset()
) -> list[tuple[float, int]]:
    """Where each word begins and on which line, when words of such widths fill lines from the left."""
    x, line, found = 0.0, 0, []
    for n, width in enumerate(widths):
        if x > 0 and (x + width > room or n - 1 in ends):
            x, line = 0.0, line + 1
        found.append((x, line))
        x += width + gap
    return found
