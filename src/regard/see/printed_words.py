"""A sentence or a text in; its lines for a terminal out, shades below the words, or the words on their colours."""

from matplotlib.colors import to_rgb
from rich.cells import cell_len

from regard.see.drawn_words import shade as colour_of
from regard.see.layout import ends, flowed
from regard.see.marks import ink_on
from regard.see.numbers import brief
from regard.see.panel import Strip
from regard.see.shades import AGAINST, HIDDEN, SCREEN, SHADES, padded, shade, signed_shade, tinted


def words(strip: Strip, *, numbers: bool, colour: bool) -> str:
    """Under each word its shade, its number if wanted, and what stands below it; the outlined word is in brackets."""
    shaded = strip.shaded and not colour
    columns = [column(strip, n, shaded=shaded, numbers=numbers and strip.shaded) for n in range(len(strip.words))]
    widths = [max(4 if numbers and strip.shaded else 1, *map(cell_len, texts)) for texts in columns]
    gap = 0 if strip.close else 1
    lines: dict[int, list[list[str]]] = {}
    for n, (texts, (_, line)) in enumerate(zip(columns, flowed(widths, SCREEN, gap, ends(strip)), strict=True)):
        rows = lines.setdefault(line, [[] for _ in texts])
        for height, (row, text) in enumerate(zip(rows, texts, strict=True)):
            text = text * widths[n] if shaded and height == 1 else padded(text, widths[n])
            row.append(on_colour(strip, n, text) if colour and height == 0 else text)
    always = len(columns[0]) - len(strip.below)
    kept = (row for rows in lines.values() for n, row in enumerate(rows) if n < always or "".join(row).strip())
    text = "\n".join((" " * gap).join(row).rstrip() for row in kept)
    explained = keys(strip) if shaded else []
    return "\n".join([text, *([""] if explained else []), *explained])


def column(strip: Strip, n: int, *, shaded: bool, numbers: bool) -> list[str]:
    """A word, the sign of its shade, its number, and what stands below."""
    word = f"[{strip.words[n]}]" if n == strip.at else strip.words[n]
    number = brief(float(strip.weights[n])) if strip.shows(n) else ""
    return [word, *([sign(strip, n)] if shaded else []), *([number] if numbers else []), *strip.under(n)]


def sign(strip: Strip, place: int) -> str:
    if not strip.shows(place):
        return HIDDEN
    value = float(strip.weights[place])
    return signed_shade(strip.scale, value) if strip.scale.kind == "signed" else shade(strip.scale, value)


def keys(strip: Strip) -> list[str]:
    """What signs mean that do not explain themselves."""
    least, most = brief(strip.scale.low), brief(strip.scale.high)
    signs = f"{SHADES.strip()} above 0 to {most}, {AGAINST.strip()} below 0 to {least}"
    absent = f"{HIDDEN} {strip.absent}"
    return [signs] * (strip.scale.kind == "signed") + [absent] * (not strip.whole)


def on_colour(strip: Strip, place: int, text: str) -> str:
    if not strip.shaded:
        return text
    red, green, blue, opacity = colour_of(strip, place)
    return tinted(text, to_rgb(ink_on((red, green, blue, opacity))), (red, green, blue))
