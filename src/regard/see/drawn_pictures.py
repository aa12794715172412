"""A picture with its attention, bars, a list or points in; their ink on matplotlib axes out."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from rich.cells import cell_len

from regard.see.beside import write_beside
from regard.see.layout import LETTER, LIST
from regard.see.marks import LINE_COLOURS, SIGNS, open_frame
from regard.see.numbers import brief
from regard.see.panel import Bars, Listed, Picture, Points
from regard.see.pixels import coloured, faded
from regard.see.style import FRAME, INK, MUTED, PAPER, PLAIN, SEEN, colours, fonts, norm


def picture(axes: Axes, shown: Picture) -> None:
    """The pixels as they are; in grey where weights are laid over them, each patch on its own square."""
    _, rows, columns = shown.pixels.shape
    extent = (0.0, float(columns), float(rows), 0.0)
    base = coloured(shown.pixels) if shown.laid is None else faded(shown.pixels)
    axes.imshow(base.numpy(), extent=extent, interpolation="none", aspect="auto")
    if shown.laid is not None:
        axes.imshow(
            shown.laid.weights.numpy(),
            cmap=colours(shown.laid.scale),
            norm=norm(shown.laid.scale),
            extent=extent,
            interpolation="bilinear" if shown.laid.smooth else "none",
            aspect="auto",
        )
    axes.set(xticks=[], yticks=[], xlim=extent[:2], ylim=extent[2:])
    for spine in axes.spines.values():
        spine.set(color=FRAME, linewidth=0.6)


def bars(axes: Axes, shown: Bars) -> None:
    count = len(shown.values)
    axes.yaxis.grid(color=FRAME, linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.bar(range(count), shown.values.tolist(), width=0.8, color=SEEN, linewidth=0)
    axes.set(xlim=(-0.7, count - 0.3), ylim=(0, shown.most), yticks=[0, shown.most / 2, shown.most])
    axes.set_yticklabels([brief(y) for y in (0.0, shown.most / 2, shown.most)])
    axes.set_xlabel(shown.across, fontsize=7, color=MUTED, family=PLAIN, labelpad=2)
    open_frame(axes)


def listed(axes: Axes, shown: Listed) -> None:
    """Name, bar and number on a line each; a unit of the axes is an inch."""
    high, longest = LIST
    middle = LETTER * max(map(cell_len, shown.names)) + 0.1
    for n, (name, value) in enumerate(zip(shown.names, shown.values, strict=True)):
        y, length = n * high, longest * max(0.0, value) / shown.most
        axes.add_patch(Rectangle((middle, y + 0.2 * high), length, 0.6 * high, facecolor=SEEN, linewidth=0))
        style = {"fontsize": 8.5, "color": INK, "family": fonts(name), "parse_math": False}
        axes.text(middle - 0.1, y + high / 2, name, ha="right", va="center_baseline", **style)
        number = brief(value).replace("-", "−")
        style = {"fontsize": 7, "color": MUTED, "family": PLAIN}
        axes.text(middle + length + 0.06, y + high / 2, number, va="center_baseline", **style)
    axes.axvline(middle, color=FRAME, linewidth=0.6)
    axes.set(xlim=(0, middle + longest + 0.4), ylim=(high * len(shown.names), 0))
    axes.axis("off")


def points(axes: Axes, shown: Points, width: float, height: float) -> None:
    """A colour and a sign for each group, named at the right."""
    for n, name in enumerate(shown.names):
        own = shown.at[[group == n for group in shown.groups]]
        look = {
            "color": LINE_COLOURS[n % len(LINE_COLOURS)],
            "marker": SIGNS[n % len(SIGNS)],
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
    write_beside(axes, shown, width, height, 0.9 - 0.18 * len(shown.names) / height)
    axes.set_xlabel(shown.across, fontsize=7, color=MUTED, family=PLAIN, labelpad=2)
    axes.set_ylabel(shown.up, fontsize=7, color=MUTED, family=PLAIN, labelpad=2)
    open_frame(axes)
    axes.locator_params(nbins=5)
