"""Matplotlib figures: draws every panel of a view, and its legends, and saves it, always to the same bytes."""

import math
import warnings
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import IO, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator
from rich.cells import cell_len

from regard.data.files import open_atomic
from regard.see.plots import panels
from regard.see.plots.layout import (
    CODE,
    FRAME,
    GREY_RANGE,
    HATCH,
    HIDDEN,
    INK,
    LETTER,
    LINE,
    LIST,
    MIXED,
    MUTED,
    PAPER,
    PIECES,
    PLAIN_FONTS,
    SENTENCE,
    VISIBLE,
    WORDS,
    TextLine,
    colormap,
    fonts,
    labels_slant,
    lay_out,
    layout_words,
    line_tops,
    neighbour_plot_size,
    normalize,
    text_style,
    to_grey_pixels,
    to_rgb_pixels,
)

MIN_CELL_FOR_NUMBERS = {
    "weights": 0.34,
    "roots": 0.34,
    "signed": 0.34,
    "dimming": 0.34,
    "kinds": 0.2,
}  # inches: so wide a cell holds one
MAX_RULED_CELLS = {"mask": 40}  # cells a side that are told apart by thin lines; where colours run smoothly, fewer
MAX_HATCHED_CELLS = 24  # cells a side that are hatched where hidden; smaller ones are merely grey
MOST_LABELS = 64
MOST_SIGNS = 16  # along one line
OUTLINE_COLOUR = "#d55e00"  # vermilion, told from the blues by every eye; a line of paper beside it shows it in grey
# told apart by colour, and by sign and stroke where there is none
LINE_COLOURS = (VISIBLE, "#d55e00", "#009e73", "#b4558d", "#3fa0dc", "#8a6d00", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
LINE_STYLES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (3, 3)))


def draw_matrix(axes: Axes, panel: panels.Panel, cell: float) -> None:
    """The cells as one image; hidden ones are masked, so that they cannot be taken for 0."""
    rows, columns = panel.values.shape
    hidden = None if panel.visible is None else ~panel.visible.numpy()
    shown = np.ma.masked_array(panel.values.numpy(), mask=np.ma.nomask if hidden is None else hidden)
    axes.imshow(shown, cmap=colormap(panel.scale), norm=normalize(panel.scale), interpolation="none", aspect="auto")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    draw_axis_labels(axes, panel.across, columns, cell, side="x")
    draw_axis_labels(axes, panel.down, rows, cell, side="y")
    draw_frame(axes)
    hidden = ~panel.values.bool().numpy() if panel.scale.kind == "mask" else hidden
    if hidden is not None and is_hatched(panel):
        draw_hatching(axes, hidden)
    if panel.square and max(rows, columns) <= MAX_RULED_CELLS.get(panel.scale.kind, MAX_HATCHED_CELLS):
        draw_grid_lines(axes, rows, columns, cell)
    if panel.outline is not None:
        draw_outlines(axes, [(x - 0.5, y - 0.5, 1.0, 1.0) for y, x in panel.outline.cells.nonzero().tolist()], cell)
    if panel.square and cell >= MIN_CELL_FOR_NUMBERS.get(panel.scale.kind, math.inf):
        write_numbers(axes, panel, hidden)


def is_hatched(panel: panels.Panel) -> bool:
    return max(panel.values.shape) <= MAX_HATCHED_CELLS


def draw_axis_labels(axes: Axes, axis: panels.Axis, count: int, cell: float, *, side: str) -> None:
    """Tokens where they have names, else a few numbers."""
    along = axes.xaxis if side == "x" else axes.yaxis
    along.set_label_text(axis.name, fontsize=7, color=MUTED, family=PLAIN_FONTS)
    along.labelpad = 3
    if axis.labels is None:
        along.set_ticks(list(tick_positions(count)))
        texts = [str(tick) for tick in tick_positions(count)]
    else:
        chosen = range(0, count, -(-count // MOST_LABELS))
        along.set_ticks(list(chosen))
        texts = [axis.labels[n] for n in chosen]
    size = 6.5 if axis.labels is None else min(8.5, max(4.5, 50 * cell))
    style = {"fontsize": size, "color": MUTED if axis.labels is None else INK, "family": fonts("".join(texts))}
    lean = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if side == "x" and labels_slant(axis, cell) else {}
    along.set_ticklabels(texts, parse_math=False, **style, **(lean if axis.labels else {}))


def tick_positions(count: int) -> range:
    step = 1
    while (count - 1) // step > 6:
        step *= 2
    return range(0, count, step)


def draw_frame(axes: Axes) -> None:
    axes.tick_params(length=0, pad=2.5)
    for spine in axes.spines.values():
        spine.set(color=FRAME, linewidth=0.6)


def draw_grid_lines(axes: Axes, rows: int, columns: int, cell: float) -> None:
    """Thin lines of paper between the cells."""
    ends = [((-0.5, y - 0.5), (columns - 0.5, y - 0.5)) for y in range(1, rows)]
    ends += [((x - 0.5, -0.5), (x - 0.5, rows - 0.5)) for x in range(1, columns)]
    if ends:
        path = Outline([point for pair in ends for point in pair], [Outline.MOVETO, Outline.LINETO] * len(ends))
        axes.add_patch(PathPatch(path, fill=False, edgecolor=PAPER, linewidth=min(1.0, 5 * cell)))


def draw_hatching(axes: Axes, hidden: np.ndarray) -> None:
    """Hatching over the hidden cells, run by run."""
    corners = []
    for y, row in enumerate(hidden):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(int), [0])))) - 0.5
        corners += [
            ((a, y - 0.5), (b, y - 0.5), (b, y + 0.5), (a, y + 0.5), (a, y - 0.5))
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]
    if not corners:
        return
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY] * len(corners)
    path = Outline([point for box in corners for point in box], codes)
    patch = PathPatch(path, facecolor=HIDDEN, edgecolor=HATCH, linewidth=0, hatch="/////")
    axes.add_patch(patch)


def draw_outlines(axes: Axes, boxes: list[tuple[float, float, float, float]], cell: float) -> None:
    """A line just inside each box (x, y, width, height), and one of paper inside that; `cell` inches are one unit."""
    wide = min(1.7, 7 * cell)  # points
    for colour, linewidth in ((PAPER, 1.8 * wide), (OUTLINE_COLOUR, wide)):
        inset, points, codes = linewidth / 144 / cell, [], []
        for x, y, width, height in boxes:
            left, top, right, bottom = x + inset, y + inset, x + width - inset, y + height - inset
            points += [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
            codes += [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
        axes.add_patch(
            PathPatch(Outline(points, codes), fill=False, edgecolor=colour, linewidth=linewidth, joinstyle="miter")
        )


def write_numbers(axes: Axes, panel: panels.Panel, hidden: np.ndarray | None) -> None:
    """Each number in its cell, in the ink that can be read there."""
    paint, scaled = colormap(panel.scale), normalize(panel.scale)
    values = panel.values.numpy()
    for (y, x), value in np.ndenumerate(values):
        if abs(value) < panel.annotate_from or (hidden is not None and hidden[y, x]):
            continue
        axes.text(
            x,
            y,
            panels.format_number(float(value)).replace("-", "−"),
            ha="center",
            va="center",
            fontsize=7,
            family=PLAIN_FONTS,
            color=ink_on(paint(float(scaled(value)))),
        )


def ink_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever stands out more on a colour: by WCAG's luminance one of them does, by 4.58 : 1."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3])
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else PAPER


# --- curves ---


def draw_curve(axes: Axes, shown: panels.Curve) -> None:
    axes.axhline(0, color=FRAME, linewidth=0.6)
    axes.plot(shown.x.numpy(), shown.y.numpy(), color=VISIBLE, linewidth=1.4, solid_capstyle="round")
    axes.margins(x=0.0, y=0.08)
    axes.set_xlabel(shown.x_label, fontsize=7, color=MUTED, family=PLAIN_FONTS, labelpad=2)
    draw_open_frame(axes)
    axes.locator_params(nbins=5)


def draw_open_frame(axes: Axes) -> None:
    axes.tick_params(labelsize=6.5, labelcolor=MUTED, length=2, color=FRAME, labelfontfamily=PLAIN_FONTS)
    for name, spine in axes.spines.items():
        spine.set(color=FRAME, linewidth=0.6, visible=name in ("left", "bottom"))


def draw_curves(axes: Axes, shown: panels.Curves, width: float, height: float) -> None:
    """Lines that differ in colour, sign and stroke; each name stands where its line ends, as far as there is room."""
    low, high = shown.y_min, shown.y_max - shown.y_min
    ends = [low + end for end in space_labels([one.y[-1] - low for one in shown.series], 0.16 * high / height, high)]
    axes.yaxis.grid(color=FRAME, linewidth=0.4, alpha=0.6)
    for n, (series, end) in enumerate(zip(shown.series, ends, strict=True)):
        look = {
            "color": LINE_COLOURS[n % len(LINE_COLOURS)],
            "marker": MARKERS[n % len(MARKERS)],
            "linestyle": LINE_STYLES[n % len(LINE_STYLES)],
            "linewidth": 1.5,
            "markersize": 4.5,
            "markeredgecolor": PAPER,
            "markeredgewidth": 0.5,
            "clip_on": False,
        }
        some = -(-len(series.x) // MOST_SIGNS)
        axes.plot(series.x, series.y, label=series.name, zorder=3, markevery=some, **look)
        place = axes.get_yaxis_transform()
        x = [1 + inches / width for inches in (0.12, 0.28, 0.44)]
        axes.add_artist(Line2D(x, [end] * 3, transform=place, markevery=[1], **look))
        style = {"fontsize": 8, "color": INK, "family": fonts(series.name), "parse_math": False}
        axes.text(1 + 0.5 / width, end, series.name, transform=place, va="center_baseline", **style)
    if shown.count_label:
        write_counts(axes, shown, width, height)
    else:
        axes.set(ylim=(shown.y_min, shown.y_max))
        axes.margins(x=0.05)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel(shown.x_label, fontsize=7, color=MUTED, family=PLAIN_FONTS, labelpad=2)
    axes.set_title(shown.y_label, fontsize=7, color=MUTED, family=PLAIN_FONTS, loc="left", x=-0.3 / width, pad=7)
    draw_open_frame(axes)


def write_counts(axes: Axes, shown: panels.Curves, width: float, height: float) -> None:
    """Under the axis its numbers, as many as have room, and under each how many cases there are."""
    counts = shown.counts_by_x()
    least, most = min(counts), max(counts)
    around = 0.05 * (most - least) or 1.0
    axes.set(xlim=(least - around, most + around), ylim=(0, shown.y_max))
    letters = max(map(len, (*counts.values(), *(f"{x:g}" for x in counts))))
    apart = (0.12 + 0.06 * letters) * (most - least + 2 * around) / width
    places: list[float] = []
    for x in counts:
        places += [x] if not places or x - places[-1] >= apart else []
    axes.set_xticks(places, [f"{x:g}" for x in places])
    style = {"transform": axes.get_xaxis_transform(), "fontsize": 6, "color": MUTED, "family": PLAIN_FONTS, "va": "top"}
    for x in places:
        axes.text(x, -0.22 / height, counts[x], ha="center", **style)
    style |= {"transform": axes.transAxes, "ha": "right"}
    axes.text(-0.12 / width, -0.22 / height, shown.count_label, **style)
    axes.set_xlabel(shown.x_label, fontsize=7, color=MUTED, family=PLAIN_FONTS, labelpad=14)


def space_labels(heights: list[float], apart: float, most: float) -> list[float]:
    """Heights moved as little as keeps them `apart`, in their order, between 0 and the most."""
    apart = min(apart, most / max(1, len(heights) - 1))
    order = sorted(range(len(heights)), key=lambda n: heights[n])
    # less its own share of the distances, each height must not fall below the one before: those that do are averaged
    pools: list[list[float]] = []
    for rank, n in enumerate(order):
        pools.append([heights[n] - rank * apart])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    free = [fmean(pool) for pool in pools for _ in pool]
    room = most - apart * (len(heights) - 1)
    found = {n: min(max(free[rank], 0.0), room) + rank * apart for rank, n in enumerate(order)}
    return [found[n] for n in range(len(heights))]


# --- labels at the side ---


SIDE_LABEL_SPACING, SIDE_LABEL_OFFSET = 0.16, 0.24  # inches: from one text to the next, and from the plane to the texts


def draw_side_labels(axes: Axes, shown: panels.ScatterPlot, width: float, height: float, top: float) -> None:
    """To the right of the plane, from its foot to `top` (a share of its height), as near to their points as may be."""
    low, high = zip(axes.get_xlim(), axes.get_ylim(), strict=True)
    places = [
        tuple((float(shown.points[n, axis]) - low[axis]) / (high[axis] - low[axis]) for axis in (0, 1))
        for n, _ in shown.annotations
    ]
    ends = space_labels([y for _, y in places], SIDE_LABEL_SPACING / height, top)
    free = {"transform": axes.transAxes, "scalex": False, "scaley": False, "clip_on": False}
    for (_, text), (x, y), end in zip(shown.annotations, places, ends, strict=True):
        axes.plot([x, 1 + 0.06 / width, 1 + 0.2 / width], [y, end, end], color=FRAME, linewidth=0.6, zorder=2, **free)
        axes.plot([x], [y], "o", markersize=7.5, markeredgecolor=INK, markeredgewidth=0.7, color="none", **free)
        style = {"fontsize": 7.5, "color": INK, "family": fonts(text), "parse_math": False}
        axes.text(1 + SIDE_LABEL_OFFSET / width, end, text, transform=axes.transAxes, va="center_baseline", **style)


# --- images and charts ---


def draw_image(axes: Axes, shown: panels.ImagePanel) -> None:
    """The pixels as they are; in grey where weights are laid over them, each patch on its own square."""
    _, rows, columns = shown.pixels.shape
    extent = (0.0, float(columns), float(rows), 0.0)
    base = to_rgb_pixels(shown.pixels) if shown.overlay is None else to_grey_pixels(shown.pixels)
    axes.imshow(base.numpy(), extent=extent, interpolation="none", aspect="auto")
    if shown.overlay is not None:
        axes.imshow(
            shown.overlay.weights.numpy(),
            cmap=colormap(shown.overlay.scale),
            norm=normalize(shown.overlay.scale),
            extent=extent,
            interpolation="bilinear" if shown.overlay.smooth else "none",
            aspect="auto",
        )
    axes.set(xticks=[], yticks=[], xlim=extent[:2], ylim=extent[2:])
    for spine in axes.spines.values():
        spine.set(color=FRAME, linewidth=0.6)


def draw_bars(axes: Axes, shown: panels.BarChart) -> None:
    count = len(shown.values)
    axes.yaxis.grid(color=FRAME, linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.bar(range(count), shown.values.tolist(), width=0.8, color=VISIBLE, linewidth=0)
    axes.set(xlim=(-0.7, count - 0.3), ylim=(0, shown.max_value), yticks=[0, shown.max_value / 2, shown.max_value])
    axes.set_yticklabels([panels.format_number(y) for y in (0.0, shown.max_value / 2, shown.max_value)])
    axes.set_xlabel(shown.x_label, fontsize=7, color=MUTED, family=PLAIN_FONTS, labelpad=2)
    draw_open_frame(axes)


def draw_bar_list(axes: Axes, shown: panels.BarList) -> None:
    """Name, bar and number on a line each; a unit of the axes is an inch."""
    high, longest = LIST
    middle = LETTER * max(map(cell_len, shown.names)) + 0.1
    for n, (name, value) in enumerate(zip(shown.names, shown.values, strict=True)):
        y, length = n * high, longest * max(0.0, value) / shown.max_value
        axes.add_patch(Rectangle((middle, y + 0.2 * high), length, 0.6 * high, facecolor=VISIBLE, linewidth=0))
        style = {"fontsize": 8.5, "color": INK, "family": fonts(name), "parse_math": False}
        axes.text(middle - 0.1, y + high / 2, name, ha="right", va="center_baseline", **style)
        number = panels.format_number(value).replace("-", "−")
        style = {"fontsize": 7, "color": MUTED, "family": PLAIN_FONTS}
        axes.text(middle + length + 0.06, y + high / 2, number, va="center_baseline", **style)
    axes.axvline(middle, color=FRAME, linewidth=0.6)
    axes.set(xlim=(0, middle + longest + 0.4), ylim=(high * len(shown.names), 0))
    axes.axis("off")


def draw_scatter(axes: Axes, shown: panels.ScatterPlot, width: float, height: float) -> None:
    """A colour and a sign for each group, named at the right."""
    for n, name in enumerate(shown.names):
        own = shown.points[[group == n for group in shown.groups]]
        look = {
            "color": LINE_COLOURS[n % len(LINE_COLOURS)],
            "marker": MARKERS[n % len(MARKERS)],
            "linestyle": "none",
            "markersize": 5.0,
            "markeredgecolor": PAPER,
            "markeredgewidth": 0.5,
            "clip_on": False,
        }
        axes.plot(own[:, 0].numpy(), own[:, 1].numpy(), label=name, zorder=3, **look)
        y = 0.97 - 0.18 * n / height
        axes.plot([1 + 0.12 / width], [y], transform=axes.transAxes, scalex=False, scaley=False, **look)
        style = {"fontsize": 8, "color": INK, "family": fonts(name), "parse_math": False}
        axes.text(1 + 0.24 / width, y, name, transform=axes.transAxes, va="center_baseline", **style)
    axes.margins(0.08)
    draw_side_labels(axes, shown, width, height, 0.9 - 0.18 * len(shown.names) / height)
    axes.set_xlabel(shown.x_label, fontsize=7, color=MUTED, family=PLAIN_FONTS, labelpad=2)
    axes.set_ylabel(shown.y_label, fontsize=7, color=MUTED, family=PLAIN_FONTS, labelpad=2)
    draw_open_frame(axes)
    axes.locator_params(nbins=5)


# --- neighbour plots ---


MAX_EDGE_WIDTH = 9.0  # points, of the line that weighs most
CENTRE_RADIUS = 0.11  # inches
MIN_LABELLED_SHARE = 0.1  # lines of a smaller share have no number: it would hide them


def draw_neighbour_plot(axes: Axes, shown: panels.NeighbourPlot) -> None:
    """A unit of the axes is an inch. What the node keeps for itself is a ring around it, as wide as a line would be."""
    width, height = neighbour_plot_size(shown)
    for (x, y), name, weight, kind in zip(shown.positions(), shown.names, shown.weights, shown.kinds[1:], strict=True):
        share = weight / shown.max_weight
        axes.plot([0, x], [0, y], color=FRAME, linewidth=0.4, zorder=1)
        axes.plot([0, x], [0, y], color=VISIBLE, linewidth=MAX_EDGE_WIDTH * share, solid_capstyle="butt", zorder=2)
        draw_node(axes, x, y, kind, 7.0)
        draw_node_label(axes, name, x, y)
        if share >= MIN_LABELLED_SHARE:
            draw_edge_weight(axes, weight, 0.66 * x, 0.66 * y)
    ring = MAX_EDGE_WIDTH * shown.self_weight / shown.max_weight
    around = CENTRE_RADIUS + ring / 144
    axes.add_patch(Circle((0, 0), around, fill=False, edgecolor=VISIBLE, linewidth=ring, zorder=4))
    draw_node(axes, 0.0, 0.0, shown.kinds[0], 11.0)
    kept = (
        f"\n{panels.format_number(shown.self_weight)} itself"
        if shown.self_weight / shown.max_weight >= MIN_LABELLED_SHARE
        else ""
    )
    text, below = shown.centre + kept, around + ring / 144 + 0.06
    axes.text(0, -below, text, ha="center", va="top", zorder=7, **node_font(text), bbox=LABEL_BACKGROUND)
    axes.set(xlim=(-width / 2, width / 2), ylim=(-height / 2, height / 2))
    axes.axis("off")


LABEL_BACKGROUND = {"facecolor": PAPER, "edgecolor": "none", "boxstyle": "round,pad=0.1"}


def draw_node(axes: Axes, x: float, y: float, kind: int, size: float) -> None:
    look = {"color": LINE_COLOURS[kind % len(LINE_COLOURS)], "marker": MARKERS[kind % len(MARKERS)]}
    middle = x == y == 0
    edge = {"markeredgecolor": OUTLINE_COLOUR if middle else PAPER, "markeredgewidth": 1.2 if middle else 0.6}
    axes.plot([x], [y], markersize=size, zorder=6, **look, **edge)


def draw_node_label(axes: Axes, name: str, x: float, y: float) -> None:
    """Outside the circle, turned away from it."""
    side = "left" if x > 0.01 else "right" if x < -0.01 else "center"
    out = LETTER * (x > 0.01) - LETTER * (x < -0.01)
    axes.text(
        x + 1.4 * out, y + (0.0 if out else 0.16 * (1 if y > 0 else -1)), name, ha=side, va="center", **node_font(name)
    )


def node_font(text: str) -> dict:
    return {"fontsize": 7.5, "color": INK, "family": fonts(text), "parse_math": False}


def draw_edge_weight(axes: Axes, weight: float, x: float, y: float) -> None:
    style = {"fontsize": 6.5, "color": INK, "family": PLAIN_FONTS, "ha": "center", "va": "center", "zorder": 5}
    axes.text(x, y, panels.format_number(weight), **style, bbox=LABEL_BACKGROUND)


# --- words ---


def draw_strip(axes: Axes, shown: panels.Strip) -> None:
    """Words on their shades; a unit of the axes is an inch."""
    kind, boxes = text_style(shown), layout_words(shown)
    tops = line_tops(shown, boxes)
    edge = FRAME if kind is SENTENCE and shown.has_weights else "none"
    font = CODE if kind is PIECES else WORDS
    for place, (x, line, width) in enumerate(boxes):
        y, colour = tops[line], word_colour(shown, place)
        axes.add_patch(
            Rectangle((x, y), width, kind.height, facecolor=colour, edgecolor=edge, linewidth=0.4, clip_on=False)
        )
        ink = ink_on(colour) if shown.has_weight(place) else INK
        draw_word(axes, shown.words[place], (x + width / 2, y + kind.height / 2), kind.points, ink, font)
        for n, text in enumerate(shown.texts_below(place)):
            ink = MUTED if place not in shown.errors else INK if n else OUTLINE_COLOUR
            draw_word(axes, text, (x + width / 2, y + kind.height + (n + 0.6) * LINE), 7, ink)
    if shown.highlight is not None:
        x, line, width = boxes[shown.highlight]
        draw_outlines(axes, [(x, tops[line], width, kind.height)], cell=1.0)
    axes.set(xlim=(0, max(x + width for x, _, width in boxes)), ylim=(tops[-1] - kind.leading, 0))
    axes.axis("off")


def word_colour(shown: panels.Strip, place: int) -> tuple[float, float, float, float]:
    """What is behind a word: paper where no word has a weight, the grey of hidden cells where this one has none."""
    if not shown.has_weights:
        return (1.0, 1.0, 1.0, 0.0)
    if not shown.has_weight(place):
        red, green, blue = (int(HIDDEN[n : n + 2], 16) / 255 for n in (1, 3, 5))
        return (red, green, blue, 1.0)
    return colormap(shown.scale)(float(normalize(shown.scale)(float(shown.weights[place]))))


def draw_word(axes: Axes, text: str, at: tuple[float, float], points: float, colour: str, font: str = WORDS) -> None:
    if text:
        style = {"fontsize": points, "color": colour, "family": fonts(text, font), "parse_math": False}
        axes.text(*at, text, ha="center", va="center_baseline", **style)


# --- legends and the whole figure ---


LEGEND_HEIGHT = 0.07


def draw_legend(
    figure: Figure,
    scale: panels.ColourScale,
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


def draw_colour_bar(axes: Axes, scale: panels.ColourScale, width: float) -> None:
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


def draw_view(view: panels.View) -> ViewFigure:
    layout = lay_out(view)
    figure = ViewFigure(figsize=(layout.width, layout.height), facecolor=PAPER, dpi=144)
    for line in layout.lines:
        draw_text_line(figure, line)
    hidden = {p.scale: "hidden" for p in view.panels() if isinstance(p, panels.Panel) and not p.all_visible}
    hidden |= {p.scale: p.missing_label for p in view.panels() if isinstance(p, panels.Strip) and not p.all_visible}
    for place in layout.places:
        axes = add_axes_at(figure, place.x, place.y, place.width, place.height)
        draw_text_line(figure, TextLine(place.panel.title, place.x, place.title, "panel"))
        match place.panel:
            case panels.Curve():
                draw_curve(axes, place.panel)
            case panels.Curves():
                draw_curves(axes, place.panel, place.width, place.height)
            case panels.Strip():
                draw_strip(axes, place.panel)
            case panels.ImagePanel():
                draw_image(axes, place.panel)
            case panels.BarChart():
                draw_bars(axes, place.panel)
            case panels.NeighbourPlot():
                draw_neighbour_plot(axes, place.panel)
            case panels.BarList():
                draw_bar_list(axes, place.panel)
            case panels.ScatterPlot():
                draw_scatter(axes, place.panel, place.width, place.height)
            case panels.Panel():
                draw_matrix(axes, place.panel, place.width / place.panel.values.shape[1])
        if place.legend and (scale := panels.scale_of(place.panel)):
            outlined = place.panel.outline if isinstance(place.panel, panels.Panel) else None
            draw_legend(
                figure,
                scale,
                (place.x, place.y + place.height + 0.09),
                place.width,
                hidden=hidden.get(scale, ""),
                hatch=isinstance(place.panel, panels.Panel) and is_hatched(place.panel),
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
    """Write a figure as its suffix says (.png, .svg or .pdf); the same figure always gives the same bytes.

    Examples:
        >>> from regard.attention import Rotary
        >>> save(draw(Rotary(), tokens=16, width=8), "rotary.svg").name
        'rotary.svg'
    """
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
