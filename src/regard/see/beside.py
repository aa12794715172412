"""Points of which some have a text in; those texts beside the plane, each at the end of a thin line, out."""

from matplotlib.axes import Axes

from regard.see.marks import spread
from regard.see.panel import Points
from regard.see.style import FRAME, INK, fonts

LINE, START = 0.16, 0.24  # inches: from one text to the next, and from the plane to the texts


def write_beside(axes: Axes, shown: Points, width: float, height: float, top: float) -> None:
    """To the right of the plane, from its foot to `top` (a share of its height), as near to their points as may be."""
    low, high = zip(axes.get_xlim(), axes.get_ylim(), strict=True)
    places = [
        tuple((float(shown.at[n, axis]) - low[axis]) / (high[axis] - low[axis]) for axis in (0, 1))
        for n, _ in shown.written
    ]
    ends = spread([y for _, y in places], LINE / height, top)
    free = {"transform": axes.transAxes, "scalex": False, "scaley": False, "clip_on": False}
    for (_, text), (x, y), end in zip(shown.written, places, ends, strict=True):
        axes.plot([x, 1 + 0.06 / width, 1 + 0.2 / width], [y, end, end], color=FRAME, linewidth=0.6, zorder=2, **free)
        axes.plot([x], [y], "o", markersize=7.5, markeredgecolor=INK, markeredgewidth=0.7, color="none", **free)
        style = {"fontsize": 7.5, "color": INK, "family": fonts(text), "parse_math": False}
        axes.text(1 + START / width, end, text, transform=axes.transAxes, va="center_baseline", **style)
