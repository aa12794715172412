"""A scale in; the small strip below a panel that says what its colours mean out."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.see.marks import OUTLINE
from regard.see.panel import Scale
from regard.see.style import FADED, FRAME, HATCH, HIDDEN, MIXED, MUTED, PLAIN, SEEN, colours

HEIGHT = 0.07


def legend(
    figure: Figure, scale: Scale, at: tuple[float, float], width: float, *, hidden: str, hatch: bool, outlined: str = ""
) -> None:
    """Stands at (x, y) inches from the top left, below a panel so wide; says what is `hidden` or `outlined`, if any."""
    wide, high = figure.get_size_inches()
    axes = figure.add_axes((at[0] / wide, 1 - (at[1] + HEIGHT) / high, width / wide, HEIGHT / high))
    axes.axis("off")
    unseen: dict[str, Any] = {"hatch": "////////", "edgecolor": HATCH} if hatch else {"edgecolor": FRAME}
    match scale.kind:
        case "mask":
            after = key(axes, 0.0, "may look", facecolor=SEEN, edgecolor=SEEN)
            key(axes, after, "hidden", facecolor=HIDDEN, **unseen)
        case "blocks":
            after = key(axes, 0.0, "full", facecolor=SEEN, edgecolor=SEEN)
            after = key(axes, after, "mixed", facecolor=MIXED, edgecolor=MIXED)
            key(axes, after, "empty", facecolor=HIDDEN, edgecolor=FRAME)
        case _:
            keys = (0.75 if hidden else 0.0) + (0.34 + 0.06 * len(outlined) if outlined else 0.0)
            length = max(0.7, min(1.3, width - keys)) if keys else min(width, 1.6)
            ramp(axes, scale, length)
            after = length + 0.16
            if hidden:
                after = key(axes, after, hidden, facecolor=HIDDEN, **unseen)
            if outlined:
                key(axes, after, outlined, facecolor="none", edgecolor=OUTLINE, linewidth=1.4)
    axes.set(xlim=(0, width), ylim=(0, HEIGHT))  # last, for an image moves them


def key(axes: Axes, x: float, meaning: str, *, linewidth: float = 0.5, **look: Any) -> float:
    """A patch of colour and its meaning; says where the next may stand."""
    axes.add_patch(Rectangle((x, -0.02), 0.11, 0.11, linewidth=linewidth, clip_on=False, **look))
    axes.text(x + 0.16, HEIGHT / 2, meaning, fontsize=6.5, color=MUTED, family=PLAIN, va="center")
    return x + 0.3 + 0.06 * len(meaning)


def ramp(axes: Axes, scale: Scale, width: float) -> None:
    """Every colour of the scale between its lowest and its highest number."""
    steps = int(scale.high) + 1 if scale.kind == "kinds" else 128
    extent = (0.0, width, 0.0, HEIGHT)
    shades = np.linspace(0, 1, steps)[None]
    if scale.kind == "glow":  # over the lightest and over the darkest that may lie below it
        grey = np.array([[FADED[1]], [FADED[0]]])
        axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="none")
    axes.imshow(shades, cmap=colours(scale), extent=extent, aspect="auto", interpolation="none", clip_on=False)
    axes.add_patch(Rectangle((0, 0), width, HEIGHT, fill=False, edgecolor=FRAME, linewidth=0.5, clip_on=False))
    below, beyond = "≤ " if scale.kind == "dimming" else "", "≥ " if scale.beyond else ""
    style = {"fontsize": 6.5, "color": MUTED, "family": PLAIN, "va": "top"}
    axes.text(0, -0.03, f"{below}{number(scale.low)}", ha="left", **style)
    axes.text(width, -0.03, f"{beyond}{number(scale.high)}", ha="right", **style)
    axes.text(width / 2, -0.03, scale.name if width > 1.1 else "", ha="center", **style)


def number(x: float) -> str:
    return f"{x:.2g}".replace("-", "−")
