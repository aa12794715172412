"""A view in, text out: shades for a terminal. Widths are measured in cells, so that wide letters stand in line."""

from rich.cells import cell_len, set_cell_size

from regard.see.numbers import brief
from regard.see.panel import Curve, Panel, View

SEES, HIDDEN, PARTLY = "■", "·", "▒"
SHADES = " ░▒▓█"
BARS = "▁▂▃▄▅▆▇█"
SPACED = 40  # cells a side that stand apart; more would not fit an ordinary window


def printed(view: View, *, numbers: bool = False) -> str:
    """Every panel as lines of text, one below the other, under its title if there are several."""
    several, blocks = len(view.panels()) > 1, []
    for row in view.rows:
        blocks += [row.heading] if row.heading else []
        for panel in row.panels:
            text = bars(panel) if isinstance(panel, Curve) else cells(panel, numbers=numbers)
            blocks.append(f"{panel.title}\n{text}" if several and panel.title else text)
    blocks += ["\n".join(f"{name:<11} {code}" for name, code in view.notes)] if view.notes else []
    return "\n\n".join(blocks)


def cells(panel: Panel, *, numbers: bool) -> str:
    rows, columns = panel.values.shape
    named = panel.across.labels is not None or panel.down.labels is not None
    if not named and not numbers:
        return "\n".join(bare(panel, i) for i in range(rows))
    across = panel.across.labels or tuple(map(str, range(columns)))
    down = panel.down.labels or tuple(map(str, range(rows)))
    width = max(7 if numbers else 2, *map(cell_len, across))
    margin = max(map(cell_len, down))
    head = " " * margin + "".join(f"  {padded(label, width)}" for label in across)
    body = (
        padded(label, margin, right=True)
        + "".join(f"  {cell(panel, i, j, width, numbers=numbers)}" for j in range(columns))
        for i, label in enumerate(down)
    )
    return "\n".join([head.rstrip(), *body])


def bare(panel: Panel, i: int) -> str:
    """A row without labels: about as wide as it is high."""
    columns = panel.values.shape[1]
    if panel.scale.kind == "kinds":
        return " ".join(f"{int(x):>{len(str(int(panel.scale.high)))}}" for x in panel.values[i])
    signs = [sign(panel, i, j) for j in range(columns)]
    if panel.scale.kind in ("mask", "blocks"):
        return (" " if columns <= SPACED else "").join(signs)
    return "".join(sign * 2 if panel.square and columns <= SPACED else sign for sign in signs)


def cell(panel: Panel, i: int, j: int, width: int, *, numbers: bool) -> str:
    """One cell of a labelled table: a shade as wide as its column, or a short one and the number."""
    mark = sign(panel, i, j)
    if panel.scale.kind == "kinds":
        return padded(f"{int(panel.values[i, j])}", width)
    if mark in (SEES, HIDDEN) or panel.scale.kind == "blocks":
        return padded(mark, width)
    return padded(f"{mark * 2} {brief(float(panel.values[i, j]))}", width) if numbers else mark * width


def sign(panel: Panel, i: int, j: int) -> str:
    value, scale = float(panel.values[i, j]), panel.scale
    if panel.visible is not None and not panel.visible[i, j]:
        return HIDDEN
    if scale.kind == "mask":
        return SEES if value else HIDDEN
    if scale.kind == "blocks":
        return (HIDDEN, PARTLY, SEES)[int(value)]
    return SHADES[round(scale.share(value) * (len(SHADES) - 1))] if value == value else "?"


def padded(label: str, width: int, *, right: bool = False) -> str:
    return " " * max(0, width - cell_len(label)) + label if right else set_cell_size(label, width)


def bars(curve: Curve) -> str:
    """A curve as one line of bars, between its least and its greatest value."""
    least, most = float(curve.y.min()), float(curve.y.max())
    signs = (BARS[round((y - least) / ((most - least) or 1.0) * (len(BARS) - 1))] for y in curve.y.tolist())
    return f"{''.join(signs)}  {brief(least)} to {brief(most)}"
