"""A picture with its attention, bars, a list or points in; their lines for a terminal out."""

import re

import torch
from rich.cells import cell_len

from regard.see.labels import short
from regard.see.numbers import brief
from regard.see.panel import Bars, Listed, Picture, Points
from regard.see.pixels import LIGHTNESS, blended, coloured, shrunk, spread
from regard.see.shades import SCREEN, SHADES, bar, padded, shade, tinted

WIDEST = 36  # columns of a picture: two of them stand side by side
COLUMNS = "▁▂▃▄▅▆▇█"
LONGEST_BAR = 16
PLOT = (17, 48)  # lines and columns
SIGNS = "ox+*#@%&"
NUMBERS = "123456789"  # points whose text stands below
MEETING = "?"  # where points of several groups lie
COLOUR = re.compile("\x1b\\[[0-9;]*m")


# --- pictures ---


def pixels(shown: Picture, *, colour: bool) -> str:
    """Two rows of pixels in a line: in colour each its own, without it their mean, or the weights that lie there."""
    small = shrunk(shown.pixels, WIDEST)
    _, rows, columns = small.shape
    if colour:
        tints = coloured(small) if shown.laid is None else blended(small, shown.laid)
        return "\n".join(
            half_blocks(tints[y].tolist(), tints[min(y + 1, rows - 1)].tolist()) for y in range(0, rows, 2)
        )
    lines = -(-rows // 2)
    if shown.laid is not None:
        weights = spread(shown.laid.weights, lines, columns).tolist()
        return framed(["".join(shade(shown.laid.scale, weight) for weight in row) for row in weights])
    grey = (coloured(small) * torch.tensor(LIGHTNESS, dtype=small.dtype)).sum(-1)
    means = [grey[2 * y : 2 * y + 2].mean(0).tolist() for y in range(lines)]
    return framed(["".join(SHADES[round(g * (len(SHADES) - 1))] for g in row) for row in means])


def framed(lines: list[str]) -> str:
    across = "─" * len(lines[0])
    return "\n".join([f"┌{across}┐", *(f"│{line}│" for line in lines), f"└{across}┘"])


def half_blocks(upper: list, lower: list) -> str:
    return "".join(tinted("▀", tuple(above), tuple(below)) for above, below in zip(upper, lower, strict=True))


def abreast(blocks: list[tuple[str, str]], gap: int = 3) -> list[str]:
    """Texts under their titles, side by side as far as a window is wide."""
    shelves, used = [[]], 0
    for title, text in blocks:
        lines = text.split("\n")
        width = max(map(seen_len, lines))
        title = short(title, SCREEN)
        width = max(width, min(cell_len(title), SCREEN))
        if used and used + gap + width > SCREEN:
            shelves, used = [*shelves, []], 0
        used += width + (gap if used else 0)
        shelves[-1].append((width, [title, *lines]))
    return ["\n".join(side_by_side(shelf, gap)) for shelf in shelves if shelf]


def side_by_side(shelf: list[tuple[int, list[str]]], gap: int) -> list[str]:
    deep, titled = max(len(lines) for _, lines in shelf), any(lines[0] for _, lines in shelf)
    rows = [
        (" " * gap)
        .join(
            line + " " * (width - seen_len(line))
            for width, lines in shelf
            for line in [lines[n] if n < len(lines) else ""]
        )
        .rstrip()
        for n in range(deep)
    ]
    return rows if titled else rows[1:]


def seen_len(line: str) -> int:
    """How many cells a line takes, colours left out."""
    return cell_len(COLOUR.sub("", line))


# --- bars, lists, points ---


def columns(shown: Bars) -> str:
    """A bar of one sign each, in lines; what is 0 is blank."""
    share = (min(1.0, max(0.0, value / shown.most)) for value in shown.values.tolist())
    signs = "".join(COLUMNS[round(s * (len(COLUMNS) - 1))] if s else " " for s in share)
    lines = [signs[n : n + SCREEN] for n in range(0, len(signs), SCREEN)]
    least, most = (brief(float(f(shown.values))) for f in (torch.min, torch.max))
    return "\n".join([*lines, f"{least} to {most}; a full bar is {brief(shown.most)}"])


def entries(shown: Listed) -> str:
    margin = max(map(cell_len, shown.names))
    numbers = [brief(value) for value in shown.values]
    wide = max(map(len, numbers))
    return "\n".join(
        f"{padded(name, margin, right=True)} {number:>{wide}} {bar(max(0.0, value) / shown.most, LONGEST_BAR)}".rstrip()
        for name, number, value in zip(shown.names, numbers, shown.values, strict=True)
    )


def plot(shown: Points) -> str:
    """Each point as the sign of its group."""
    lines, wide = PLOT
    field = [[" "] * wide for _ in range(lines)]
    low, high = shown.at.amin(0), shown.at.amax(0)
    share = (shown.at - low) / (high - low).where(high > low, torch.ones(()).to(low))
    for (x, y), group in zip(share.tolist(), shown.groups, strict=True):
        line, column = round((1 - y) * (lines - 1)), round(x * (wide - 1))
        sign = SIGNS[group % len(SIGNS)]
        field[line][column] = sign if field[line][column] in (" ", sign) else MEETING
    for sign, (n, _) in zip(NUMBERS, shown.written, strict=False):
        x, y = share[n].tolist()
        field[round((1 - y) * (lines - 1))][round(x * (wide - 1))] = sign
    body = ["│" + "".join(row).rstrip() for row in field]
    names = [f"{SIGNS[n % len(SIGNS)]} {name}" for n, name in enumerate(shown.names)]
    meets = any(MEETING in row for row in field)
    return "\n".join(
        [
            *body,
            "└" + "─" * wide,
            f"{shown.across} across, {shown.up} up",
            *names,
            *([f"{MEETING} several"] if meets else []),
            *(f"{sign} {text}" for sign, (_, text) in zip(NUMBERS, shown.written, strict=False)),
        ]
    )
