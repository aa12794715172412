"""Layout and style: where each panel and line of text of a view stands, in inches, and its colours and fonts.

Sizes follow from the number of cells and the length of the labels, so nothing overlaps and nothing is measured twice.
Colour maps can be told apart by colour-blind readers, and fonts have the characters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from textwrap import wrap

import numpy as np
import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from matplotlib.colors import Colormap, FuncNorm, LinearSegmentedColormap, ListedColormap, Normalize, PowerNorm
from matplotlib.font_manager import fontManager
from matplotlib.ft2font import FT2Font
from rich.cells import cell_len
from torch import Tensor

from regard.see.plots.panels import (
    NEWLINE_SIGN,
    RADIUS,
    VERTICAL_MARGIN,
    AnyPanel,
    Axis,
    BarChart,
    BarList,
    ColourScale,
    Curve,
    Curves,
    ImagePanel,
    NeighbourPlot,
    Panel,
    PanelRow,
    PatchOverlay,
    ScatterPlot,
    Strip,
    View,
    scale_of,
)

EDGE, GAP, LINE = 0.18, 0.34, 0.17  # around the figure, between panels, a line of small text
SHORT_NOTE = 100  # letters that stand on one line
LETTER = 0.068  # a terminal cell's worth of label
TITLE_LETTER = 0.083  # a letter of the title
HEADING = 0.09  # of a heading
LEGEND_SPACE = 0.42  # room for a legend
LEGEND = 1.45  # at least so wide
KEY = 0.5  # and this much wider if cells are outlined too
SIDE = 2.5  # of a picture that is not made of square cells
SENTENCE_WIDTH = 7.0  # of a sentence in one row
PICTURE = 1.55  # the longer side of a picture among others
BARS = 0.8  # the height of the longest bar
LIST = (0.21, 1.1)  # the height of a listed name, and the longest bar beside it


@dataclass(frozen=True)
class TextStyle:
    """How words are set: all in inches but the size of the letters, which is in points."""

    letter: float  # a terminal cell's worth
    padding: float  # the letters of a word
    height: float
    word_spacing: float  # from word to word
    leading: float  # from line to line
    points: float


SENTENCE = TextStyle(0.085, 0.12, 0.3, 0.05, 0.05, 9.5)
TEXT = TextStyle(0.067, 0.09, 0.215, 0.02, 0.035, 8.0)  # a long one
PIECES = TextStyle(0.0753, 0.0, 0.25, 0.0, 0.05, 9.0)  # one whose words hold their own blanks, every letter as wide
LONG_TEXT_WORDS = 60  # words of a text that is long


@dataclass(frozen=True)
class PanelPlacement:
    """A panel's own rectangle, where its title begins, and whether the legend of its scale stands below it."""

    panel: AnyPanel
    x: float
    y: float
    width: float
    height: float
    title: float
    legend: bool


@dataclass(frozen=True)
class TextLine:
    """A line of text."""

    text: str
    x: float
    y: float
    kind: str


@dataclass(frozen=True)
class Layout:
    width: float
    height: float
    places: tuple[PanelPlacement, ...]
    lines: tuple[TextLine, ...]


def lay_out(view: View) -> Layout:
    last = {scale: panel for panel in view.panels() if (scale := scale_of(panel))}
    rows = [[measure_panel(panel, view.side) for panel in row.panels] for row in view.rows]
    texts = [TITLE_LETTER * min(len(view.title), 56), *(HEADING * cell_len(row.heading) for row in view.rows)]
    texts += [note_width(*note) for note in view.notes]
    widths = [sum(s.left + s.total_width for s in row) + GAP * (len(row) - 1) for row in rows]
    width = 2 * EDGE + max(widths + texts)
    letters = int((width - 2 * EDGE) / TITLE_LETTER)
    y, lines, places = EDGE, [], []
    for text in wrap(view.title, letters, max_lines=3, break_on_hyphens=False, placeholder=" …"):
        lines.append(TextLine(text, EDGE, y, "title"))
        y += 1.25 * LINE
    y += 0.4 * LINE if view.title else 0.0
    for row, sizes in zip(view.rows, rows, strict=True):
        if row.heading:
            lines.append(TextLine(row.heading, EDGE, y, "heading"))
            y += 1.7 * LINE
        placed = list(place_row(row, sizes, y, list(last.values())))
        places += placed
        y = max(p.y + p.height + space_below(p) for p in placed)
    for name, code in view.notes:
        lines += [TextLine(name, EDGE, y, "name")] if name else []
        x, letter, kind = (EDGE + 0.95, TITLE_LETTER, "code") if name else (EDGE, LETTER, "panel")
        for text in wrap(code, int((width - EDGE - x) / letter), max_lines=3, break_on_hyphens=False, placeholder=" …"):
            lines.append(TextLine(text, x, y, kind))
            y += 1.2 * LINE
    return Layout(width, y + EDGE / 2, tuple(places), tuple(lines))


def note_width(name: str, code: str) -> float:
    """Where there is room for it; a long sentence is cut into lines."""
    if name:
        return 0.95 + TITLE_LETTER * min(len(code), 48)
    return LETTER * (min(len(code), max(SHORT_NOTE, len(code) // 3 + 10)) + 1)


def place_row(row: PanelRow, sizes: list["PanelSize"], y: float, last: list[AnyPanel]):
    x, above = EDGE, max(s.above for s in sizes)
    for panel, s in zip(row.panels, sizes, strict=True):
        x += s.left
        legend = any(panel is other for other in last)
        yield PanelPlacement(panel, x, y + above, s.width, s.height, y + above - s.above, legend)
        x += s.total_width + GAP


def space_below(place: PanelPlacement) -> float:
    """What stands under a panel: a legend, or the numbers of an axis; what has neither stands close."""
    if isinstance(place.panel, Curves):
        return LEGEND_SPACE + 0.5 * LINE
    return (
        LEGEND_SPACE
        if place.legend or not isinstance(place.panel, Strip | ImagePanel | BarList | NeighbourPlot)
        else 0.8 * LINE
    )


# --- how large a panel is ---


@dataclass(frozen=True)
class PanelSize:
    """The picture itself, and what its labels need to the left of it, above it, and past its right edge."""

    width: float
    height: float
    left: float
    above: float
    right: float = 0.0
    legend: float = LEGEND

    @property
    def total_width(self) -> float:
        return max(self.width + self.right, self.legend)


def measure_panel(panel: AnyPanel, side: float | None) -> PanelSize:
    if isinstance(panel, Curves):
        names = LETTER * max(cell_len(series.name) for series in panel.series)
        return PanelSize(1.6 * (side or SIDE), side or SIDE, 0.62, space_above(panel.title, 0.3 * LINE), 0.55 + names)
    if isinstance(panel, Strip):
        boxes = layout_words(panel)
        width, height = max(x + w for x, _, w in boxes), line_tops(panel, boxes)[-1] - text_style(panel).leading
        return PanelSize(
            width,
            height,
            0.0,
            title_height(panel.title),
            title_overhang(panel.title, width),
            LEGEND if panel.has_weights else 0.0,
        )
    if isinstance(panel, ImagePanel):
        _, rows, columns = panel.pixels.shape
        pixel = (side or PICTURE) / max(rows, columns)
        width = pixel * columns
        return PanelSize(width, pixel * rows, 0.0, title_height(panel.title), title_overhang(panel.title, width), 0.0)
    if isinstance(panel, NeighbourPlot):
        width, height = neighbour_plot_size(panel)
        return PanelSize(width, height, 0.0, title_height(panel.title), title_overhang(panel.title, width), 0.0)
    if isinstance(panel, BarChart):
        return PanelSize(SENTENCE_WIDTH, BARS, 0.42, title_height(panel.title) + 0.4 * LINE)
    if isinstance(panel, BarList):
        width = LETTER * max(map(cell_len, panel.names)) + 0.1 + LIST[1] + 0.4
        return PanelSize(
            width, LIST[0] * len(panel.names), 0.0, title_height(panel.title), title_overhang(panel.title, width), 0.0
        )
    if isinstance(panel, ScatterPlot):
        texts = (*panel.names, *(text for _, text in panel.annotations))
        names = LETTER * max(map(cell_len, texts)) + 0.3
        return PanelSize(1.25 * (side or SIDE), side or SIDE, 0.42, title_height(panel.title) + 0.3 * LINE, names)
    if isinstance(panel, Curve) or not panel.square:
        return PanelSize(1.4 * (side or SIDE), side or SIDE, 0.42, space_above(panel.title, LINE))
    rows, columns = panel.values.shape
    cell = side / max(rows, columns) if side else cell_size(panel)
    left = LETTER * widest_label(panel.down) + 0.26 if panel.down.labels else 0.4
    last = panel.across.labels[-1] if panel.across.labels and labels_slant(panel.across, cell) else ""
    right = max(0.0, 0.71 * LETTER * cell_len(last) - cell / 2)
    legend = LEGEND + (KEY if panel.outline else 0.0)
    return PanelSize(
        cell * columns, cell * rows, left, space_above(panel.title, label_height(panel.across, cell)), right, legend
    )


def neighbour_plot_size(star: NeighbourPlot) -> tuple[float, float]:
    names = LETTER * max(map(cell_len, star.names), default=0) + 0.15
    return 2 * (RADIUS + names), 2 * (RADIUS + VERTICAL_MARGIN)


def title_height(title: str) -> float:
    return 1.3 * LINE if title else 0.0


def title_overhang(title: str, width: float) -> float:
    """How far a title reaches past a panel so wide."""
    return max(0.0, LETTER * cell_len(title) - width)


def space_above(title: str, labels: float) -> float:
    """A title, the name of the axis and its labels."""
    return title_height(title) + 0.8 * LINE + labels


def cell_size(panel: Panel) -> float:
    """Room for a number in each cell while there are few; then as small as the labels allow."""
    most = max(panel.values.shape)
    readable = 0.17 if panel.down.labels or panel.across.labels else 0.0
    broad = readable > 0 and panel.values.shape[0] == 1
    return max(min(0.42, (SENTENCE_WIDTH if broad else 2.9) / most), min(readable, 10 / most))


def widest_label(axis: Axis) -> int:
    return max(map(cell_len, axis.labels or ("",)))


def labels_slant(axis: Axis, cell: float) -> bool:
    """Are the labels too long to lie side by side?"""
    return LETTER * widest_label(axis) + 0.05 > cell


def label_height(axis: Axis, cell: float) -> float:
    if axis.labels is None or not labels_slant(axis, cell):
        return 0.8 * LINE
    return 0.71 * LETTER * widest_label(axis) + 0.1


# --- words in lines ---


Box = tuple[float, int, float]


def text_style(strip: Strip) -> TextStyle:
    return PIECES if strip.keeps_spaces else TEXT if len(strip.words) > LONG_TEXT_WORDS else SENTENCE


def line_tops(strip: Strip, boxes: list[Box]) -> list[float]:
    """Where each line of words begins, and where one more would: below the words may stand rows of small text."""
    kind, tops = text_style(strip), [0.0]
    for line in range(boxes[-1][1] + 1):
        places = [n for n, (_, on, _) in enumerate(boxes) if on == line]
        rows = max((n + 1 for n, row in enumerate(strip.rows_below) if any(row[place] for place in places)), default=0)
        tops.append(tops[-1] + kind.height + kind.leading + LINE * rows + (0.4 * LINE if rows else 0.0))
    return tops


def layout_words(strip: Strip) -> list[Box]:
    """Where each word of a strip begins, on which line, and how wide it is."""
    kind = text_style(strip)
    widths = [
        max(
            kind.letter * cell_len(word) + kind.padding,
            *(LETTER * cell_len(text) + kind.word_spacing for text in strip.texts_below(n)),
            0.0,
        )
        for n, word in enumerate(strip.words)
    ]
    places = flow_words(widths, SENTENCE_WIDTH, kind.word_spacing, line_ends(strip))
    return [(x, line, w) for (x, line), w in zip(places, widths, strict=True)]


def line_ends(strip: Strip) -> frozenset[int]:
    """The words after which a new line begins: pieces of a text may hold its line breaks."""
    return frozenset(n for n, word in enumerate(strip.words) if strip.keeps_spaces and word.endswith(NEWLINE_SIGN))


def flow_words(
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


# --- colours, fonts and pixels ---


INK, MUTED, FRAME, PAPER = "#1c2331", "#6a7280", "#aeb5bf", "#ffffff"
HIDDEN, HATCH, VISIBLE, MIXED = "#ebe7e0", "#d3ccc1", "#1f4e8c", "#8fb4dc"

# white to ink: lightness falls all the way, so that the order of weights survives a grey printer
BLUES = LinearSegmentedColormap.from_list("regard", ["#fbfdff", "#cfe2f3", "#86b3dc", "#3a74b4", "#1f4e8c", "#0c2347"])
# orange and blue differ for every kind of colour blindness
SIGNED = LinearSegmentedColormap.from_list(
    "regard signed", ["#7a2e05", "#c85a17", "#f2b27a", "#fdfcfa", "#93bce0", "#2f69ad", "#0f2f5f"]
)

# nothing to vermilion, over a picture in grey: what weighs nothing is not covered
GREY_RANGE = (0.52, 0.97)  # black and white of such a picture: nothing laid over it is lost in the dark
OVERLAY_COLORMAP = LinearSegmentedColormap.from_list(
    "regard glow", [(0.96, 0.62, 0.1, 0.0), (0.95, 0.47, 0.02, 0.62), (0.8, 0.2, 0.0, 0.92)]
)

WORDS, CODE = "DejaVu Sans", "DejaVu Sans Mono"  # both come with matplotlib, so pictures are alike everywhere
GENERIC = {WORDS: "sans-serif", CODE: "monospace"}  # for those who open an SVG and have neither
PLAIN_FONTS = (WORDS, "sans-serif")
LAST_RESORT = "Last Resort High-Efficiency"  # likewise; a box that names the script of a letter nobody has


def colormap(scale: ColourScale) -> Colormap:
    match scale.kind:
        case "mask":
            return ListedColormap([HIDDEN, VISIBLE])
        case "blocks":
            return ListedColormap([HIDDEN, MIXED, VISIBLE])
        case "weights" | "roots" | "dimming":
            return BLUES.with_extremes(bad=HIDDEN)
        case "glow":
            return OVERLAY_COLORMAP
        case "signed":
            return SIGNED.with_extremes(bad=HIDDEN)
        case "kinds":
            return SIGNED.resampled(int(scale.high) + 1)


def normalize(scale: ColourScale) -> Normalize:
    """From a value to its share of the colours."""
    if scale.kind == "dimming":
        return FuncNorm((np.exp, np.log), vmin=scale.low, vmax=scale.high, clip=True)
    if scale.kind == "roots":
        return PowerNorm(0.5, scale.low, scale.high, clip=True)
    half = 0.5 if scale.kind == "kinds" else 0.0  # each kind has a colour of its own
    return Normalize(scale.low - half, scale.high + half)


def fonts(text: str, first: str = WORDS) -> list[str]:
    """Font families that between them have every letter of a text."""
    own = characters_of(
        next(font.fname for font in fontManager.ttflist if font.name == first and font.style == "normal")
    )
    others = [family for letter in sorted(set(text)) if ord(letter) not in own for family in fonts_with(letter)]
    return list(dict.fromkeys([first, GENERIC[first], *others]))


@cache
def fonts_with(letter: str) -> list[str]:
    """The first installed family, by name, that can draw a letter, and what stands in where none can."""
    installed = sorted((font.name, font.fname) for font in fontManager.ttflist if font.style == "normal")
    able = (name for name, path in installed if name != LAST_RESORT and ord(letter) in characters_of(path))
    return [*islice(able, 1), *islice((name for name, _ in installed if name == LAST_RESORT), 1)]


@cache
def characters_of(path: str) -> frozenset[int]:
    """The letters of a font file; none of a font of fixed bitmaps, which cannot be drawn at every size."""
    font = FT2Font(path)
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


# --- pixels ---


RGB = Float[Tensor, "h w 3"]
LUMA = (0.299, 0.587, 0.114)


def to_rgb_pixels(pixels: Float[Tensor, "c h w"]) -> RGB:
    """Red, green and blue; grey is all three."""
    return rearrange(pixels.clamp(0, 1).expand(3, -1, -1), "c h w -> h w c")


def to_grey_pixels(pixels: Float[Tensor, "c h w"]) -> RGB:
    """The same in grey, so that what is laid over it has the colours for itself."""
    grey = (to_rgb_pixels(pixels) * torch.tensor(LUMA, dtype=pixels.dtype)).sum(-1)
    dark, light = GREY_RANGE
    return repeat(dark + (light - dark) * grey, "h w -> h w c", c=3)


def blend_overlay(pixels: Float[Tensor, "c h w"], laid: PatchOverlay) -> RGB:
    """The faded picture with each patch's glow over it."""
    base = to_grey_pixels(pixels)
    over = torch.from_numpy(
        colormap(laid.scale)(normalize(laid.scale)(upsample_patches(laid.weights, *base.shape[:2]).numpy()))
    )
    opacity = over[..., 3:]
    return base * (1 - opacity) + over[..., :3] * opacity


def upsample_patches(weights: Float[Tensor, "y x"], rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """One number for each of so many rows and columns: that of the patch it lies in."""
    y, x = ((torch.arange(n) + 0.5) * k // n for n, k in zip((rows, columns), weights.shape, strict=True))
    return weights[y.long()][:, x.long()]


def downsample(pixels: Float[Tensor, "c h w"], most: int) -> Float[Tensor, "c rows columns"]:
    """At most so many columns: each pixel the mean of a square of them; what does not fill a square is cut off."""
    _, rows, columns = pixels.shape
    size = -(-columns // most)
    kept = pixels[:, : max(size, rows // size * size), : columns // size * size]
    return reduce(kept, "c (h p) (w q) -> c h w", "mean", p=min(size, kept.shape[1]), q=size)
