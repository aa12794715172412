"""Terminal rendering: views as text, with block characters or 24-bit ANSI colours."""

import re
from collections.abc import Sequence
from math import ceil
from textwrap import wrap

import torch
from jaxtyping import Float
from matplotlib.colors import to_rgb
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from regard.see.plots import panels
from regard.see.plots.layout import (
    LUMA,
    blend_overlay,
    downsample,
    flow_words,
    line_ends,
    to_rgb_pixels,
    upsample_patches,
)
from regard.see.plots.mpl_figure import ink_on, word_colour

VISIBLE_CHAR, HIDDEN_CHAR, MIXED_CHAR = "■", "·", "▒"
SHADES = " ░▒▓█"
NEGATIVE_SHADES = " -=≡≣"  # shades of what is below 0, where that must be told from what is above
NOT_A_NUMBER_CHAR = "?"
EIGHTHS = " ▏▎▍▌▋▊▉"
TERMINAL_WIDTH = 80  # so wide is an ordinary window

Colour = tuple[float, float, float]


def shade_char(scale: panels.ColourScale, value: float) -> str:
    return SHADES[round(scale.fraction(value) * (len(SHADES) - 1))] if value == value else NOT_A_NUMBER_CHAR


def signed_shade_char(scale: panels.ColourScale, value: float) -> str:
    """The more it is, the darker, on either side of 0."""
    if value != value:
        return NOT_A_NUMBER_CHAR
    level = round(min(1.0, abs(value) / scale.high) * (len(SHADES) - 1))
    return (NEGATIVE_SHADES if value < 0 else SHADES)[level]


def bar_text(share: float, width: int) -> str:
    """A bar of a length from 0 to 1, to an eighth of a letter."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def pad_cells(label: str, width: int, *, right: bool = False) -> str:
    return " " * max(0, width - cell_len(label)) + label if right else set_cell_size(label, width)


def ansi_coloured(text: str, ink: Colour, ground: Colour) -> str:
    """A text in 24-bit colours, each from 0 to 1."""
    front, back = (";".join(str(round(255 * part)) for part in colour) for colour in (ink, ground))
    return f"\x1b[38;2;{front};48;2;{back}m{text}\x1b[0m"


# --- images and charts ---


MAX_IMAGE_COLUMNS = 36  # columns of an image: two of them stand side by side
BAR_CHARS = "▁▂▃▄▅▆▇█"
LONGEST_BAR = 16
SCATTER_SIZE = (17, 48)  # lines and columns
GROUP_CHARS = "ox+*#@%&"
ANNOTATION_CHARS = "123456789"  # points whose text stands below
OVERLAP_CHAR = "?"  # where points of several groups lie
ANSI_ESCAPE = re.compile("\x1b\\[[0-9;]*m")


def render_image(shown: panels.ImagePanel, *, colour: bool) -> str:
    """Two rows of pixels in a line: in colour each its own, without it their mean, or the weights that lie there."""
    small = downsample(shown.pixels, MAX_IMAGE_COLUMNS)
    _, rows, columns = small.shape
    if colour:
        tints = to_rgb_pixels(small) if shown.overlay is None else blend_overlay(small, shown.overlay)
        return "\n".join(
            half_blocks(tints[y].tolist(), tints[min(y + 1, rows - 1)].tolist()) for y in range(0, rows, 2)
        )
    lines = -(-rows // 2)
    if shown.overlay is not None:
        weights = upsample_patches(shown.overlay.weights, lines, columns).tolist()
        return add_box(["".join(shade_char(shown.overlay.scale, weight) for weight in row) for row in weights])
    grey = (to_rgb_pixels(small) * torch.tensor(LUMA, dtype=small.dtype)).sum(-1)
    means = [grey[2 * y : 2 * y + 2].mean(0).tolist() for y in range(lines)]
    return add_box(["".join(SHADES[round(g * (len(SHADES) - 1))] for g in row) for row in means])


def add_box(lines: list[str]) -> str:
    across = "─" * len(lines[0])
    return "\n".join([f"┌{across}┐", *(f"│{line}│" for line in lines), f"└{across}┘"])


def half_blocks(upper: list, lower: list) -> str:
    return "".join(ansi_coloured("▀", tuple(above), tuple(below)) for above, below in zip(upper, lower, strict=True))


def columns_of_text(blocks: list[tuple[str, str]], gap: int = 3) -> list[str]:
    """Texts under their titles, side by side as far as a window is wide."""
    shelves, used = [[]], 0
    for title, text in blocks:
        lines = text.split("\n")
        width = max(map(printed_width, lines))
        title = panels.truncate_label(title, TERMINAL_WIDTH)
        width = max(width, min(cell_len(title), TERMINAL_WIDTH))
        if used and used + gap + width > TERMINAL_WIDTH:
            shelves, used = [*shelves, []], 0
        used += width + (gap if used else 0)
        shelves[-1].append((width, [title, *lines]))
    return ["\n".join(side_by_side(shelf, gap)) for shelf in shelves if shelf]


def side_by_side(shelf: list[tuple[int, list[str]]], gap: int) -> list[str]:
    deep, titled = max(len(lines) for _, lines in shelf), any(lines[0] for _, lines in shelf)
    rows = [
        (" " * gap)
        .join(
            line + " " * (width - printed_width(line))
            for width, lines in shelf
            for line in [lines[n] if n < len(lines) else ""]
        )
        .rstrip()
        for n in range(deep)
    ]
    return rows if titled else rows[1:]


def printed_width(line: str) -> int:
    """How many cells a line takes, colours left out."""
    return cell_len(ANSI_ESCAPE.sub("", line))


# --- bars, lists, points ---


def render_bars(shown: panels.BarChart) -> str:
    """A bar of one sign each, in lines; what is 0 is blank."""
    share = (min(1.0, max(0.0, value / shown.max_value)) for value in shown.values.tolist())
    signs = "".join(BAR_CHARS[round(s * (len(BAR_CHARS) - 1))] if s else " " for s in share)
    lines = [signs[n : n + TERMINAL_WIDTH] for n in range(0, len(signs), TERMINAL_WIDTH)]
    least, most = (panels.format_number(float(f(shown.values))) for f in (torch.min, torch.max))
    return "\n".join([*lines, f"{least} to {most}; a full bar is {panels.format_number(shown.max_value)}"])


def render_bar_list(shown: panels.BarList) -> str:
    margin = max(map(cell_len, shown.names))
    numbers = [panels.format_number(value) for value in shown.values]
    wide = max(map(len, numbers))
    bars = [bar_text(max(0.0, value) / shown.max_value, LONGEST_BAR) for value in shown.values]
    return "\n".join(
        f"{pad_cells(name, margin, right=True)} {number:>{wide}} {bar}".rstrip()
        for name, number, bar in zip(shown.names, numbers, bars, strict=True)
    )


def render_scatter(shown: panels.ScatterPlot) -> str:
    """Each point as the sign of its group."""
    lines, wide = SCATTER_SIZE
    share = to_shares(shown.points)
    field = point_field(share, shown.groups, SCATTER_SIZE)
    for sign, (n, _) in zip(ANNOTATION_CHARS, shown.annotations, strict=False):
        x, y = share[n].tolist()
        field[round((1 - y) * (lines - 1))][round(x * (wide - 1))] = sign
    body = ["│" + "".join(row).rstrip() for row in field]
    names = [f"{GROUP_CHARS[n % len(GROUP_CHARS)]} {name}" for n, name in enumerate(shown.names)]
    meets = any(OVERLAP_CHAR in row for row in field)
    return "\n".join(
        [
            *body,
            "└" + "─" * wide,
            f"{shown.x_label} across, {shown.y_label} up",
            *names,
            *([f"{OVERLAP_CHAR} several"] if meets else []),
            *(f"{sign} {text}" for sign, (_, text) in zip(ANNOTATION_CHARS, shown.annotations, strict=False)),
        ]
    )


def to_shares(points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """From 0 to 1 between the least and the greatest of each axis."""
    low, high = points.amin(0), points.amax(0)
    return (points - low) / (high - low).where(high > low, torch.ones(()).to(low))


def point_field(share: Float[Tensor, "n 2"], groups: Sequence[int], size: tuple[int, int]) -> list[list[str]]:
    """Lines of cells, each point as the sign of its group; where groups meet, another sign."""
    lines, wide = size
    field = [[" "] * wide for _ in range(lines)]
    for (x, y), group in zip(share.tolist(), groups, strict=True):
        line, column = round((1 - y) * (lines - 1)), round(x * (wide - 1))
        sign = GROUP_CHARS[group % len(GROUP_CHARS)]
        field[line][column] = sign if field[line][column] in (" ", sign) else OVERLAP_CHAR
    return field


# --- words ---


def render_strip(strip: panels.Strip, *, numbers: bool, colour: bool) -> str:
    """Under each word its shade, its number if wanted, and what stands below it; the outlined word is in brackets."""
    shaded = strip.has_weights and not colour
    columns = [
        word_column(strip, n, shaded=shaded, numbers=numbers and strip.has_weights) for n in range(len(strip.words))
    ]
    widths = [max(4 if numbers and strip.has_weights else 1, *map(cell_len, texts)) for texts in columns]
    gap = 0 if strip.keeps_spaces else 1
    lines: dict[int, list[list[str]]] = {}
    for n, (texts, (_, line)) in enumerate(
        zip(columns, flow_words(widths, TERMINAL_WIDTH, gap, line_ends(strip)), strict=True)
    ):
        rows = lines.setdefault(line, [[] for _ in texts])
        for height, (row, text) in enumerate(zip(rows, texts, strict=True)):
            text = text * widths[n] if shaded and height == 1 else pad_cells(text, widths[n])
            row.append(ansi_word(strip, n, text) if colour and height == 0 else text)
    always = len(columns[0]) - len(strip.rows_below)
    kept = (row for rows in lines.values() for n, row in enumerate(rows) if n < always or "".join(row).strip())
    text = "\n".join((" " * gap).join(row).rstrip() for row in kept)
    explained = strip_legend(strip) if shaded else []
    return "\n".join([text, *([""] if explained else []), *explained])


def word_column(strip: panels.Strip, n: int, *, shaded: bool, numbers: bool) -> list[str]:
    """A word, the sign of its shade, its number, and what stands below."""
    word = f"[{strip.words[n]}]" if n == strip.highlight else strip.words[n]
    number = panels.format_number(float(strip.weights[n])) if strip.has_weight(n) else ""
    return [
        word,
        *([word_shade_char(strip, n)] if shaded else []),
        *([number] if numbers else []),
        *strip.texts_below(n),
    ]


def word_shade_char(strip: panels.Strip, index: int) -> str:
    if not strip.has_weight(index):
        return HIDDEN_CHAR
    value = float(strip.weights[index])
    return signed_shade_char(strip.scale, value) if strip.scale.kind == "signed" else shade_char(strip.scale, value)


def strip_legend(strip: panels.Strip) -> list[str]:
    """What signs mean that do not explain themselves."""
    absent = f"{HIDDEN_CHAR} {strip.missing_label}"
    return [signed_legend(strip.scale)] * (strip.scale.kind == "signed") + [absent] * (not strip.all_visible)


def signed_legend(scale: panels.ColourScale) -> str:
    least, most = panels.format_number(scale.low), panels.format_number(scale.high)
    return f"{SHADES.strip()} above 0 to {most}, {NEGATIVE_SHADES.strip()} below 0 to {least}"


def ansi_word(strip: panels.Strip, index: int, text: str) -> str:
    if not strip.has_weights:
        return text
    red, green, blue, opacity = word_colour(strip, index)
    return ansi_coloured(text, to_rgb(ink_on((red, green, blue, opacity))), (red, green, blue))


# --- views ---


LINE_CHART_SIZE = (12, 60)  # lines and columns
CURVE_CHARS = "▁▂▃▄▅▆▇█"
MAX_SPACED_CELLS = 40  # cells a side that stand apart; more would not fit an ordinary window
SHORT_LABEL_CELLS = 12  # cells of a label where room is short
CURVES_PER_TABLE = 5  # columns of bars side by side
MAX_CURVE_COLUMN = 36  # such a column
OUTLINE_CHAR = "●"  # beside the shade of an outlined cell that has no room for brackets


def render_view(view: panels.View, *, numbers: bool = False, colour: bool = False) -> str:
    """Every panel as lines of text, one below the other, under its title if there are several."""
    several, blocks = len(view.panels()) > 1, []
    for row in view.rows:
        blocks += [row.heading] if row.heading else []
        blocks += render_row(row, several=several, numbers=numbers, colour=colour)
    notes = (f"{name:<11} {code}" if name else code for name, code in view.notes)
    blocks += ["\n".join(notes)] if view.notes else []
    return "\n\n".join(blocks)


def render_row(row: panels.PanelRow, *, several: bool, numbers: bool, colour: bool) -> list[str]:
    texts = [render_panel(panel, numbers=numbers, colour=colour) for panel in row.panels]
    if all(isinstance(panel, panels.ImagePanel | panels.BarList) for panel in row.panels):
        return columns_of_text([(panel.title, text) for panel, text in zip(row.panels, texts, strict=True)])
    return [
        f"{panel.title}\n{text}" if panel.title and (several or isinstance(panel, panels.Strip)) else text
        for panel, text in zip(row.panels, texts, strict=True)
    ]


def render_panel(panel: panels.AnyPanel, *, numbers: bool, colour: bool) -> str:
    match panel:
        case panels.Curve():
            return render_curve(panel)
        case panels.Curves(count_label=""):
            return render_line_chart(panel)
        case panels.Curves():
            return "\n\n".join(render_curves(panel, n) for n in range(0, len(panel.series), CURVES_PER_TABLE))
        case panels.Strip():
            return render_strip(panel, numbers=numbers, colour=colour)
        case panels.ImagePanel(overlay=panels.PatchOverlay(weights=weights, scale=scale)) if numbers:
            return render_matrix(panels.Panel("", weights, scale), numbers=True)
        case panels.ImagePanel():
            return render_image(panel, colour=colour)
        case panels.BarChart():
            return render_bars(panel)
        case panels.NeighbourPlot():
            return render_bar_list(
                panels.BarList("", (panel.centre, *panel.names), (panel.self_weight, *panel.weights), panel.max_weight)
            )
        case panels.BarList():
            return render_bar_list(panel)
        case panels.ScatterPlot():
            return render_scatter(panel)
        case panels.Panel():
            return render_matrix(panel, numbers=numbers)


# --- matrices ---


def render_matrix(panel: panels.Panel, *, numbers: bool) -> str:
    rows, columns = panel.values.shape
    named = panel.across.labels is not None or panel.down.labels is not None
    if not named and not numbers:
        return "\n".join(render_unlabelled_row(panel, i) for i in range(rows))
    across = panel.across.labels or tuple(map(str, range(columns)))
    down = panel.down.labels or tuple(map(str, range(rows)))
    widths = [max(7 if numbers else 2, *map(cell_len, across))] * columns
    if not numbers and table_width(down, widths) > TERMINAL_WIDTH:
        across, down = (
            tuple(panels.truncate_label(label, SHORT_LABEL_CELLS) for label in labels) for labels in (across, down)
        )
        widths = [max(2, cell_len(label)) for label in across]
        if table_width(down, widths) > TERMINAL_WIDTH:
            return render_vertical_labels(panel, across, down)
    margin = max(map(cell_len, down))
    head = " " * margin + "".join(f"  {pad_cells(label, width)}" for label, width in zip(across, widths, strict=True))
    body = []
    for i, label in enumerate(down):
        row, before = pad_cells(label, margin, right=True), " "
        for j, width in enumerate(widths):
            left, right = "[]" if is_outlined(panel, i, j) else "  "
            row += f"{before}{left}{render_cell(panel, i, j, width, numbers=numbers)}"
            before = right
        body.append(row + before.rstrip())
    return "\n".join([head.rstrip(), *body, *matrix_legend(panel, "[ ]")])


def table_width(down: tuple[str, ...], widths: list[int]) -> int:
    return max(map(cell_len, down)) + sum(widths) + 2 * len(widths)


def render_vertical_labels(panel: panels.Panel, across: tuple[str, ...], down: tuple[str, ...]) -> str:
    """As `render_matrix`, but columns two wide, their labels written downwards and the rows' cut to fit."""
    columns = [split_graphemes(label) for label in across]
    margin = min(max(map(cell_len, down)), max(SHORT_LABEL_CELLS // 2, TERMINAL_WIDTH - 1 - 2 * len(columns)))
    deep = max(map(len, columns))
    columns = [[""] * (deep - len(column)) + column for column in columns]
    head = [" " * (margin + 1) + "".join(pad_cells(column[n], 2) for column in columns) for n in range(deep)]
    body = []
    for i, label in enumerate(down):
        signs = (render_cell(panel, i, j, 2, numbers=False) for j in range(len(columns)))
        marked = (sign[0] + OUTLINE_CHAR if is_outlined(panel, i, j) else sign for j, sign in enumerate(signs))
        body.append(f"{pad_cells(panels.truncate_label(label, margin), margin, right=True)} {''.join(marked)}")
    return "\n".join([*(line.rstrip() for line in head), *body, *matrix_legend(panel, OUTLINE_CHAR)])


def split_graphemes(label: str) -> list[str]:
    """What stands in one place of a terminal each: a letter with its accents, an emoji with all its parts."""
    found: list[str] = []
    for sign in label:
        if found and (cell_len(sign) == 0 or found[-1].endswith("\u200d")):
            found[-1] += sign
        else:
            found.append(sign)
    return found


def is_outlined(panel: panels.Panel, i: int, j: int) -> bool:
    return panel.outline is not None and bool(panel.outline.cells[i, j])


def matrix_legend(panel: panels.Panel, mark: str) -> list[str]:
    outlined = [] if panel.outline is None else [f"{mark} {panel.outline.meaning}"]
    lines = [signed_legend(panel.scale)] * has_signed_shades(panel.scale) + outlined
    return ["", *lines] if lines else []


def has_signed_shades(scale: panels.ColourScale) -> bool:
    """Weights of which most are about 0, and a future of zeros is empty."""
    return scale.kind == "signed" and scale.name == "weight"


def render_unlabelled_row(panel: panels.Panel, i: int) -> str:
    """A row without labels: about as wide as it is high."""
    columns = panel.values.shape[1]
    if panel.scale.kind == "kinds":
        return " ".join(f"{int(x):>{len(str(int(panel.scale.high)))}}" for x in panel.values[i])
    signs = [cell_char(panel, i, j) for j in range(columns)]
    if panel.scale.kind in ("mask", "blocks"):
        return (" " if columns <= MAX_SPACED_CELLS else "").join(signs)
    return "".join(sign * 2 if panel.square and columns <= MAX_SPACED_CELLS else sign for sign in signs)


def render_cell(panel: panels.Panel, i: int, j: int, width: int, *, numbers: bool) -> str:
    """One cell of a labelled table: a shade as wide as its column, or a short one and the number."""
    mark = cell_char(panel, i, j)
    if panel.scale.kind == "kinds":
        return pad_cells(f"{int(panel.values[i, j])}", width)
    if mark in (VISIBLE_CHAR, HIDDEN_CHAR) or panel.scale.kind == "blocks":
        return pad_cells(mark, width)
    return (
        pad_cells(f"{mark * 2} {panels.format_number(float(panel.values[i, j]))}", width) if numbers else mark * width
    )


def cell_char(panel: panels.Panel, i: int, j: int) -> str:
    value, scale = float(panel.values[i, j]), panel.scale
    if panel.visible is not None and not panel.visible[i, j]:
        return HIDDEN_CHAR
    if scale.kind == "mask":
        return VISIBLE_CHAR if value else HIDDEN_CHAR
    if scale.kind == "blocks":
        return (HIDDEN_CHAR, MIXED_CHAR, VISIBLE_CHAR)[int(value)]
    if has_signed_shades(scale):
        return signed_shade_char(scale, value)
    return shade_char(scale, value)


# --- curves ---


def render_curve(curve: panels.Curve) -> str:
    """A curve as one line of bars, between its least and its greatest value."""
    least, most = float(curve.y.min()), float(curve.y.max())
    signs = (
        CURVE_CHARS[round((y - least) / ((most - least) or 1.0) * (len(CURVE_CHARS) - 1))] for y in curve.y.tolist()
    )
    return f"{''.join(signs)}  {panels.format_number(least)} to {panels.format_number(most)}"


def render_line_chart(curves: panels.Curves) -> str:
    """The points of every line in one field, each as the sign of its line."""
    points = torch.tensor([point for one in curves.series for point in zip(one.x, one.y, strict=True)])
    groups = [n for n, one in enumerate(curves.series) for _ in one.x]
    field = point_field(to_shares(points), groups, LINE_CHART_SIZE)
    (left, low), (right, high) = points.amin(0).tolist(), points.amax(0).tolist()
    ends = {0: panels.format_number(high), len(field) - 1: panels.format_number(low)}
    margin = max(map(len, ends.values()))
    body = [f"{ends.get(n, ''):>{margin}} │{''.join(row).rstrip()}" for n, row in enumerate(field)]
    first, last = f"{left:,.0f}", f"{right:,.0f}"
    names = [f"{GROUP_CHARS[n % len(GROUP_CHARS)]} {one.name}" for n, one in enumerate(curves.series)]
    meets = any(OVERLAP_CHAR in row for row in field)
    return "\n".join(
        [
            f"{curves.y_label} by {curves.x_label}",
            "",
            *body,
            f"{'':>{margin}} └{'─' * LINE_CHART_SIZE[1]}",
            f"{'':>{margin}}  {first}{last:>{LINE_CHART_SIZE[1] - len(first)}}",
            *names,
            *([f"{OVERLAP_CHAR} several"] if meets else []),
        ]
    )


def render_curves(curves: panels.Curves, first: int) -> str:
    """The x down, one column of bars per line: each column is its curve turned on its side."""
    shown, counts = curves.series[first : first + CURVES_PER_TABLE], curves.counts_by_x()
    at = [f"{x:g}" for x in counts]
    margin, counted = max(map(len, at)), max(map(len, (curves.count_label, *counts.values())))
    width = min(MAX_CURVE_COLUMN, (TERMINAL_WIDTH - margin - counted - 2) // len(shown) - 2)
    full = 10 * ceil(max(y for series in curves.series for y in series.y) / 10) or 10

    names = [wrap(series.name, width) for series in shown]
    deep = max(map(len, names))
    heads = zip(*([""] * (deep - len(name)) + name for name in names), strict=True)
    rows = [("", curves.count_label if n == deep - 1 else "", *head) for n, head in enumerate(heads)]
    lines = [dict(zip(series.x, series.y, strict=True)) for series in shown]
    for text, (x, count) in zip(at, counts.items(), strict=True):
        cells = (f"{y[x]:5.1f} {bar_text(y[x] / full, width - 6)}" if x in y else "    –" for y in lines)
        rows.append((text, count, *cells))
    body = (
        f"{x:>{margin}}  {count:>{counted}}" + "".join(f"  {pad_cells(cell, width)}" for cell in cells)
        for x, count, *cells in rows
    )
    return "\n".join(
        [f"{curves.y_label} by {curves.x_label}; a full bar is {full}", "", *(line.rstrip() for line in body)]
    )
