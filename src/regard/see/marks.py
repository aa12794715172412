"""One panel or curve in; its ink on matplotlib axes out."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from regard.see.layout import slanted
from regard.see.numbers import brief
from regard.see.panel import Axis, Curve, Panel
from regard.see.style import FRAME, HATCH, HIDDEN, INK, MUTED, PAPER, PLAIN, SEEN, colours, fonts, norm

NUMBERS_FIT = {"weights": 0.34, "signed": 0.34, "dimming": 0.34, "kinds": 0.2}  # inches: so wide a cell holds one
RULED = {"mask": 40}  # cells a side that are told apart by thin lines; where colours run smoothly, fewer
HATCHED = 24  # cells a side that are hatched where hidden; smaller ones are merely grey
MOST_LABELS = 64


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
    size = 6.5 if axis.labels is None else min(8.5, max(4.5, 55 * cell))
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


def write_numbers(axes: Axes, panel: Panel, hidden: np.ndarray | None) -> None:
    """Each number in its cell, in the ink that can be read there."""
    paint, scaled = colours(panel.scale), norm(panel.scale)
    values = panel.values.numpy()
    for (y, x), value in np.ndenumerate(values):
        if hidden is not None and hidden[y, x]:
            continue
        red, green, blue, _ = paint(float(scaled(value)))
        light = 0.299 * red + 0.587 * green + 0.114 * blue
        axes.text(
            x,
            y,
            brief(float(value)).replace("-", "−"),
            ha="center",
            va="center",
            fontsize=7,
            family=PLAIN,
            color=INK if light > 0.55 else PAPER,
        )


def curve(axes: Axes, shown: Curve) -> None:
    axes.axhline(0, color=FRAME, linewidth=0.6)
    axes.plot(shown.x.numpy(), shown.y.numpy(), color=SEEN, linewidth=1.4, solid_capstyle="round")
    axes.margins(x=0.0, y=0.08)
    axes.set_xlabel(shown.across, fontsize=7, color=MUTED, family=PLAIN, labelpad=2)
    axes.tick_params(labelsize=6.5, labelcolor=MUTED, length=2, color=FRAME, labelfontfamily=PLAIN)
    axes.locator_params(nbins=5)
    for name, spine in axes.spines.items():
        spine.set(color=FRAME, linewidth=0.6, visible=name in ("left", "bottom"))
