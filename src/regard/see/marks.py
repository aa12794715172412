"""One panel or curve in; its ink on matplotlib axes out."""

import math
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from regard.see.layout import slanted
from regard.see.numbers import brief
from regard.see.panel import Axis, Curve, Curves, Panel
from regard.see.style import FRAME, HATCH, HIDDEN, INK, MUTED, PAPER, PLAIN, SEEN, colours, fonts, norm

NUMBERS_FIT = {
    "weights": 0.34,
    "roots": 0.34,
    "signed": 0.34,
    "dimming": 0.34,
    "kinds": 0.2,
}  # inches: so wide a cell holds one
RULED = {"mask": 40}  # cells a side that are told apart by thin lines; where colours run smoothly, fewer
HATCHED = 24  # cells a side that are hatched where hidden; smaller ones are merely grey
MOST_LABELS = 64
MOST_SIGNS = 16  # along one line
OUTLINE = "#d55e00"  # vermilion, told from the blues by every eye; a line of paper beside it shows it in grey
# told apart by colour, and by sign and stroke where there is none
LINE_COLOURS = (SEEN, "#d55e00", "#009e73", "#b4558d", "#3fa0dc", "#8a6d00", INK)
SIGNS = ("o", "s", "^", "D", "v", "P", "X", "p")
STROKES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (3, 3)))


def matrix(axes: Axes, panel: Panel, cell: float) -> None:
    """The cells as one image; hidden ones are masked, so that they cannot be taken for 0."""
    rows, columns = panel.values.shape
    hidden = None if panel.visible is None else ~panel.visible.numpy()
    shown = np.ma.masked_array(panel.values.numpy(), mask=np.ma.nomask if hidden is None else hidden)
    axes.imshow(shown, cmap=colours(panel.scale), norm=norm(panel.scale), interpolation="none", aspect="auto")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    label(axes, panel.across, columns, cell, side="x")
    label(axes, panel.down, rows, cell, side="y")
    frame(axes)
    hidden = ~panel.values.bool().numpy() if panel.scale.kind == "mask" else hidden
    if hidden is not None and hatched(panel):
        hatch(axes, hidden)
    if panel.square and max(rows, columns) <= RULED.get(panel.scale.kind, HATCHED):
        rule(axes, rows, columns, cell)
    if panel.outlined is not None:
        outline(axes, [(x - 0.5, y - 0.5, 1.0, 1.0) for y, x in panel.outlined.cells.nonzero().tolist()], cell)
    if panel.square and cell >= NUMBERS_FIT.get(panel.scale.kind, math.inf):
        write_numbers(axes, panel, hidden)


def hatched(panel: Panel) -> bool:
    return max(panel.values.shape) <= HATCHED


def label(axes: Axes, axis: Axis, count: int, cell: float, *, side: str) -> None:
    """Tokens where they have names, else a few numbers."""
    along = axes.xaxis if side == "x" else axes.yaxis
    along.set_label_text(axis.name, fontsize=7, color=MUTED, family=PLAIN)
    along.labelpad = 3
    if axis.labels is None:
        along.set_ticks(list(round_numbers(count)))
        texts = [str(tick) for tick in round_numbers(count)]
    else:
        chosen = range(0, count, -(-count // MOST_LABELS))
        along.set_ticks(list(chosen))
        texts = [axis.labels[n] for n in chosen]
    size = 6.5 if axis.labels is None else min(8.5, max(4.5, 50 * cell))
    style = {"fontsize": size, "color": MUTED if axis.labels is None else INK, "family": fonts("".join(texts))}
    lean = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if side == "x" and slanted(axis, cell) else {}
    along.set_ticklabels(texts, parse_math=False, **style, **(lean if axis.labels else {}))


def round_numbers(count: int) -> range:
    step = 1
    while (count - 1) // step > 6:
        step *= 2
    return range(0, count, step)


def frame(axes: Axes) -> None:
    axes.tick_params(length=0, pad=2.5)
    for spine in axes.spines.values():
        spine.set(color=FRAME, linewidth=0.6)


def rule(axes: Axes, rows: int, columns: int, cell: float) -> None:
    """Thin lines of paper between the cells."""
    ends = [((-0.5, y - 0.5), (columns - 0.5, y - 0.5)) for y in range(1, rows)]
    ends += [((x - 0.5, -0.5), (x - 0.5, rows - 0.5)) for x in range(1, columns)]
    if ends:
        path = Path([point for pair in ends for point in pair], [Path.MOVETO, Path.LINETO] * len(ends))
        axes.add_patch(PathPatch(path, fill=False, edgecolor=PAPER, linewidth=min(1.0, 5 * cell)))


def hatch(axes: Axes, hidden: np.ndarray) -> None:
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
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(corners)
    path = Path([point for box in corners for point in box], codes)
    patch = PathPatch(path, facecolor=HIDDEN, edgecolor=HATCH, linewidth=0, hatch="/////")
    axes.add_patch(patch)


def outline(axes: Axes, boxes: list[tuple[float, float, float, float]], cell: float) -> None:
    """A line just inside each box (x, y, width, height), and one of paper inside that; `cell` inches are one unit."""
    wide = min(1.7, 7 * cell)  # points
    for colour, linewidth in ((PAPER, 1.8 * wide), (OUTLINE, wide)):
        inset, points, codes = linewidth / 144 / cell, [], []
        for x, y, width, height in boxes:
            left, top, right, bottom = x + inset, y + inset, x + width - inset, y + height - inset
            points += [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
            codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
        axes.add_patch(
            PathPatch(Path(points, codes), fill=False, edgecolor=colour, linewidth=linewidth, joinstyle="miter")
        )


def write_numbers(axes: Axes, panel: Panel, hidden: np.ndarray | None) -> None:
    """Each number in its cell, in the ink that can be read there."""
    paint, scaled = colours(panel.scale), norm(panel.scale)
    values = panel.values.numpy()
    for (y, x), value in np.ndenumerate(values):
        if value < panel.least or (hidden is not None and hidden[y, x]):
            continue
        axes.text(
            x,
            y,
            brief(float(value)).replace("-", "−"),
            ha="center",
            va="center",
            fontsize=7,
            family=PLAIN,
            color=ink_on(paint(float(scaled(value)))),
        )


def ink_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever stands out more on a colour: by WCAG's luminance one of them does, by 4.58 : 1."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3])
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else PAPER


# --- curves ---


def curve(axes: Axes, shown: Curve) -> None:
    axes.axhline(0, color=FRAME, linewidth=0.6)
    axes.plot(shown.x.numpy(), shown.y.numpy(), color=SEEN, linewidth=1.4, solid_capstyle="round")
    axes.margins(x=0.0, y=0.08)
    axes.set_xlabel(shown.across, fontsize=7, color=MUTED, family=PLAIN, labelpad=2)
    open_frame(axes)
    axes.locator_params(nbins=5)


def open_frame(axes: Axes) -> None:
    axes.tick_params(labelsize=6.5, labelcolor=MUTED, length=2, color=FRAME, labelfontfamily=PLAIN)
    for name, spine in axes.spines.items():
        spine.set(color=FRAME, linewidth=0.6, visible=name in ("left", "bottom"))


def curves(axes: Axes, shown: Curves, width: float, height: float) -> None:
    """Lines that differ in colour, sign and stroke; each name stands where its line ends, as far as there is room."""
    ends = spread([series.y[-1] for series in shown.series], 0.16 * shown.most / height, shown.most)
    axes.yaxis.grid(color=FRAME, linewidth=0.4, alpha=0.6)
    for n, (series, end) in enumerate(zip(shown.series, ends, strict=True)):
        look = {
            "color": LINE_COLOURS[n % len(LINE_COLOURS)],
            "marker": SIGNS[n % len(SIGNS)],
            "linestyle": STROKES[n % len(STROKES)],
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
    write_counts(axes, shown, width, height)
    axes.set_title(shown.up, fontsize=7, color=MUTED, family=PLAIN, loc="left", x=-0.3 / width, pad=7)
    open_frame(axes)


def write_counts(axes: Axes, shown: Curves, width: float, height: float) -> None:
    """Under the axis its numbers, as many as have room, and under each how many cases there are."""
    counts = shown.counts()
    least, most = min(counts), max(counts)
    around = 0.05 * (most - least) or 1.0
    axes.set(xlim=(least - around, most + around), ylim=(0, shown.most))
    letters = max(map(len, (*counts.values(), *(f"{x:g}" for x in counts))))
    apart = (0.12 + 0.06 * letters) * (most - least + 2 * around) / width
    places: list[float] = []
    for x in counts:
        places += [x] if not places or x - places[-1] >= apart else []
    axes.set_xticks(places, [f"{x:g}" for x in places])
    style = {"transform": axes.get_xaxis_transform(), "fontsize": 6, "color": MUTED, "family": PLAIN, "va": "top"}
    for x in places:
        axes.text(x, -0.22 / height, counts[x], ha="center", **style)
    style |= {"transform": axes.transAxes, "ha": "right"}
    axes.text(-0.12 / width, -0.22 / height, shown.counted, **style)
    axes.set_xlabel(shown.across, fontsize=7, color=MUTED, family=PLAIN, labelpad=14)


def spread(heights: list[float], apart: float, most: float) -> list[float]:
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
