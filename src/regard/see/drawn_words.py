"""A sentence or a text in; its words on their shades, and what is written below them, on matplotlib axes out."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from regard.see.layout import LINE, PIECES, SENTENCE, line_tops, set_as, word_boxes
from regard.see.marks import OUTLINE, ink_on, outline
from regard.see.panel import Strip
from regard.see.style import CODE, FRAME, HIDDEN, INK, MUTED, WORDS, colours, fonts, norm


def strip(axes: Axes, shown: Strip) -> None:
    """Words on their shades; a unit of the axes is an inch."""
    kind, boxes = set_as(shown), word_boxes(shown)
    tops = line_tops(shown, boxes)
    edge = FRAME if kind is SENTENCE and shown.shaded else "none"
    font = CODE if kind is PIECES else WORDS
    for place, (x, line, width) in enumerate(boxes):
        y, colour = tops[line], shade(shown, place)
        axes.add_patch(
            Rectangle((x, y), width, kind.height, facecolor=colour, edgecolor=edge, linewidth=0.4, clip_on=False)
        )
        ink = ink_on(colour) if shown.shows(place) else INK
        write(axes, shown.words[place], (x + width / 2, y + kind.height / 2), kind.points, ink, font)
        for n, text in enumerate(shown.under(place)):
            ink = MUTED if place not in shown.wrong else INK if n else OUTLINE
            write(axes, text, (x + width / 2, y + kind.height + (n + 0.6) * LINE), 7, ink)
    if shown.at is not None:
        x, line, width = boxes[shown.at]
        outline(axes, [(x, tops[line], width, kind.height)], cell=1.0)
    axes.set(xlim=(0, max(x + width for x, _, width in boxes)), ylim=(tops[-1] - kind.leading, 0))
    axes.axis("off")


def shade(shown: Strip, place: int) -> tuple[float, float, float, float]:
    """What is behind a word: paper where no word has a weight, the grey of hidden cells where this one has none."""
    if not shown.shaded:
        return (1.0, 1.0, 1.0, 0.0)
    if not shown.shows(place):
        red, green, blue = (int(HIDDEN[n : n + 2], 16) / 255 for n in (1, 3, 5))
        return (red, green, blue, 1.0)
    return colours(shown.scale)(float(norm(shown.scale)(float(shown.weights[place]))))


def write(axes: Axes, text: str, at: tuple[float, float], points: float, colour: str, font: str = WORDS) -> None:
    if text:
        style = {"fontsize": points, "color": colour, "family": fonts(text, font), "parse_math": False}
        axes.text(*at, text, ha="center", va="center_baseline", **style)
