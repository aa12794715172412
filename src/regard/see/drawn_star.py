"""A node among its neighbours in; circles, and lines as wide as their weights, on matplotlib axes out."""

from matplotlib.axes import Axes
from matplotlib.patches import Circle

from regard.see.layout import LETTER, star_size
from regard.see.marks import LINE_COLOURS, OUTLINE, SIGNS
from regard.see.numbers import brief
from regard.see.star import Star
from regard.see.style import FRAME, INK, PAPER, PLAIN, SEEN, fonts

WIDEST = 9.0  # points, of the line that weighs most
CENTRE = 0.11  # inches
WRITTEN = 0.1  # lines of a smaller share have no number: it would hide them


def star(axes: Axes, shown: Star) -> None:
    """A unit of the axes is an inch. What the node keeps for itself is a ring around it, as wide as a line would be."""
    width, height = star_size(shown)
    for (x, y), name, weight, kind in zip(shown.places(), shown.names, shown.weights, shown.kinds[1:], strict=True):
        share = weight / shown.most
        axes.plot([0, x], [0, y], color=FRAME, linewidth=0.4, zorder=1)
        axes.plot([0, x], [0, y], color=SEEN, linewidth=WIDEST * share, solid_capstyle="butt", zorder=2)
        dot(axes, x, y, kind, 7.0)
        label(axes, name, x, y)
        if share >= WRITTEN:
            number(axes, weight, 0.66 * x, 0.66 * y)
    ring = WIDEST * shown.itself / shown.most
    around = CENTRE + ring / 144
    axes.add_patch(Circle((0, 0), around, fill=False, edgecolor=SEEN, linewidth=ring, zorder=4))
    dot(axes, 0.0, 0.0, shown.kinds[0], 11.0)
    kept = f"\n{brief(shown.itself)} itself" if shown.itself / shown.most >= WRITTEN else ""
    text, below = shown.centre + kept, around + ring / 144 + 0.06
    axes.text(0, -below, text, ha="center", va="top", zorder=7, **named(text), bbox=PATCH)
    axes.set(xlim=(-width / 2, width / 2), ylim=(-height / 2, height / 2))
    axes.axis("off")


PATCH = {"facecolor": PAPER, "edgecolor": "none", "boxstyle": "round,pad=0.1"}


def dot(axes: Axes, x: float, y: float, kind: int, size: float) -> None:
    look = {"color": LINE_COLOURS[kind % len(LINE_COLOURS)], "marker": SIGNS[kind % len(SIGNS)]}
    middle = x == y == 0
    edge = {"markeredgecolor": OUTLINE if middle else PAPER, "markeredgewidth": 1.2 if middle else 0.6}
    axes.plot([x], [y], markersize=size, zorder=6, **look, **edge)


def label(axes: Axes, name: str, x: float, y: float) -> None:
    """Outside the circle, turned away from it."""
    side = "left" if x > 0.01 else "right" if x < -0.01 else "center"
    out = LETTER * (x > 0.01) - LETTER * (x < -0.01)
    axes.text(
        x + 1.4 * out, y + (0.0 if out else 0.16 * (1 if y > 0 else -1)), name, ha=side, va="center", **named(name)
    )


def named(text: str) -> dict:
    return {"fontsize": 7.5, "color": INK, "family": fonts(text), "parse_math": False}


def number(axes: Axes, weight: float, x: float, y: float) -> None:
    style = {"fontsize": 6.5, "color": INK, "family": PLAIN, "ha": "center", "va": "center", "zorder": 5}
    axes.text(x, y, brief(weight), **style, bbox=PATCH)
