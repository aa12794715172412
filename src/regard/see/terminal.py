"""A view in, text out: shades for a terminal. Widths are measured in cells, so that wide letters stand in line."""

from math import ceil
from textwrap import wrap

from rich.cells import cell_len

from regard.see.labels import short
from regard.see.numbers import brief
from regard.see.panel import Bars, Curve, Curves, Laid, Listed, Panel, Picture, Points, Row, Shown, Strip, View
from regard.see.printed_pictures import abreast, columns, entries, pixels, plot
from regard.see.printed_words import words
from regard.see.shades import HIDDEN, PARTLY, SCREEN, SEES, bar, padded, shade
from regard.see.star import Star

BARS = "▁▂▃▄▅▆▇█"
SPACED = 40  # cells a side that stand apart; more would not fit an ordinary window
CUT = 12  # cells of a label where room is short
ABREAST = 5  # columns of bars side by side
WIDEST = 36  # such a column
MARK = "●"  # beside the shade of an outlined cell that has no room for brackets


def printed(view: View, *, numbers: bool = False, colour: bool = False) -> str:
    """Every panel as lines of text, one below the other, under its title if there are several."""
    several, blocks = len(view.panels()) > 1, []
    for row in view.rows:
        blocks += [row.heading] if row.heading else []
        blocks += panels_of(row, several=several, numbers=numbers, colour=colour)
    notes = (f"{name:<11} {code}" if name else code for name, code in view.notes)
    blocks += ["\n".join(notes)] if view.notes else []
    return "\n\n".join(blocks)


def panels_of(row: Row, *, several: bool, numbers: bool, colour: bool) -> list[str]:
    texts = [text_of(panel, numbers=numbers, colour=colour) for panel in row.panels]
    if all(isinstance(panel, Picture | Listed) for panel in row.panels):
        return abreast([(panel.title, text) for panel, text in zip(row.panels, texts, strict=True)])
    return [
        f"{panel.title}\n{text}" if panel.title and (several or isinstance(panel, Strip)) else text
        for panel, text in zip(row.panels, texts, strict=True)
    ]


def text_of(panel: Shown, *, numbers: bool, colour: bool) -> str:
    match panel:
        case Curve():
            return bars(panel)
        case Curves():
            return "\n\n".join(table(panel, n) for n in range(0, len(panel.series), ABREAST))
        case Strip():
            return words(panel, numbers=numbers, colour=colour)
        case Picture(laid=Laid(weights=weights, scale=scale)) if numbers:
            return cells(Panel("", weights, scale), numbers=True)
        case Picture():
            return pixels(panel, colour=colour)
        case Bars():
            return columns(panel)
        case Star():
            return entries(Listed("", (panel.centre, *panel.names), (panel.itself, *panel.weights), panel.most))
        case Listed():
            return entries(panel)
        case Points():
            return plot(panel)
        case Panel():
            return cells(panel, numbers=numbers)


# --- matrices ---


def cells(panel: Panel, *, numbers: bool) -> str:
    rows, columns = panel.values.shape
    named = panel.across.labels is not None or panel.down.labels is not None
    if not named and not numbers:
        return "\n".join(bare(panel, i) for i in range(rows))
    across = panel.across.labels or tuple(map(str, range(columns)))
    down = panel.down.labels or tuple(map(str, range(rows)))
    widths = [max(7 if numbers else 2, *map(cell_len, across))] * columns
    if not numbers and wide(down, widths) > SCREEN:
        across, down = (tuple(short(label, CUT) for label in labels) for labels in (across, down))
        widths = [max(2, cell_len(label)) for label in across]
        if wide(down, widths) > SCREEN:
            return upright(panel, across, down)
    margin = max(map(cell_len, down))
    head = " " * margin + "".join(f"  {padded(label, width)}" for label, width in zip(across, widths, strict=True))
    body = []
    for i, label in enumerate(down):
        row, before = padded(label, margin, right=True), " "
        for j, width in enumerate(widths):
            left, right = "[]" if outlined(panel, i, j) else "  "
            row += f"{before}{left}{cell(panel, i, j, width, numbers=numbers)}"
            before = right
        body.append(row + before.rstrip())
    return "\n".join([head.rstrip(), *body, *explained(panel, "[ ]")])


def wide(down: tuple[str, ...], widths: list[int]) -> int:
    return max(map(cell_len, down)) + sum(widths) + 2 * len(widths)


def upright(panel: Panel, across: tuple[str, ...], down: tuple[str, ...]) -> str:
    """As `cells`, but columns two wide, their labels written downwards and the rows' cut to fit."""
    columns = [letters(label) for label in across]
    margin = min(max(map(cell_len, down)), max(CUT // 2, SCREEN - 1 - 2 * len(columns)))
    deep = max(map(len, columns))
    columns = [[""] * (deep - len(column)) + column for column in columns]
    head = [" " * (margin + 1) + "".join(padded(column[n], 2) for column in columns) for n in range(deep)]
    body = []
    for i, label in enumerate(down):
        signs = (cell(panel, i, j, 2, numbers=False) for j in range(len(columns)))
        marked = (sign[0] + MARK if outlined(panel, i, j) else sign for j, sign in enumerate(signs))
        body.append(f"{padded(short(label, margin), margin, right=True)} {''.join(marked)}")
    return "\n".join([*(line.rstrip() for line in head), *body, *explained(panel, MARK)])


def letters(label: str) -> list[str]:
    """What stands in one place of a terminal each: a letter with its accents, an emoji with all its parts."""
    found: list[str] = []
    for sign in label:
        if found and (cell_len(sign) == 0 or found[-1].endswith("\u200d")):
            found[-1] += sign
        else:
            found.append(sign)
    return found


def outlined(panel: Panel, i: int, j: int) -> bool:
    return panel.outlined is not None and bool(panel.outlined.cells[i, j])


def explained(panel: Panel, mark: str) -> list[str]:
    return [] if panel.outlined is None else ["", f"{mark} {panel.outlined.meaning}"]


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
    return shade(scale, value)


# --- curves ---


def bars(curve: Curve) -> str:
    """A curve as one line of bars, between its least and its greatest value."""
    least, most = float(curve.y.min()), float(curve.y.max())
    signs = (BARS[round((y - least) / ((most - least) or 1.0) * (len(BARS) - 1))] for y in curve.y.tolist())
    return f"{''.join(signs)}  {brief(least)} to {brief(most)}"


def table(curves: Curves, first: int) -> str:
    """The x down, one column of bars per line: each column is its curve turned on its side."""
    shown, counts = curves.series[first : first + ABREAST], curves.counts()
    at = [f"{x:g}" for x in counts]
    margin, counted = max(map(len, at)), max(map(len, (curves.counted, *counts.values())))
    width = min(WIDEST, (SCREEN - margin - counted - 2) // len(shown) - 2)
    full = 10 * ceil(max(y for series in curves.series for y in series.y) / 10) or 10

    names = [wrap(series.name, width) for series in shown]
    deep = max(map(len, names))
    heads = zip(*([""] * (deep - len(name)) + name for name in names), strict=True)
    rows = [("", curves.counted if n == deep - 1 else "", *head) for n, head in enumerate(heads)]
    lines = [dict(zip(series.x, series.y, strict=True)) for series in shown]
    for text, (x, count) in zip(at, counts.items(), strict=True):
        cells = (f"{y[x]:5.1f} {bar(y[x] / full, width - 6)}" if x in y else "    –" for y in lines)
        rows.append((text, count, *cells))
    body = (
        f"{x:>{margin}}  {count:>{counted}}" + "".join(f"  {padded(cell, width)}" for cell in cells)
        for x, count, *cells in rows
    )
    return "\n".join([f"{curves.up} by {curves.across}; a full bar is {full}", "", *(line.rstrip() for line in body)])
