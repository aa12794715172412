"""A number or a label in; the signs of a terminal that stand for it out, as wide as asked for."""

from rich.cells import cell_len, set_cell_size

from regard.see.panel import Scale

SEES, HIDDEN, PARTLY = "■", "·", "▒"
SHADES = " ░▒▓█"
AGAINST = " -=≡≣"  # shades of what is below 0, where that must be told from what is above
EIGHTHS = " ▏▎▍▌▋▊▉"
SCREEN = 80  # so wide is an ordinary window

Colour = tuple[float, float, float]


def shade(scale: Scale, value: float) -> str:
    return SHADES[round(scale.share(value) * (len(SHADES) - 1))] if value == value else "?"


def signed_shade(scale: Scale, value: float) -> str:
    """The more it is, the darker, on either side of 0."""
    level = round(min(1.0, abs(value) / scale.high) * (len(SHADES) - 1))
    return (AGAINST if value < 0 else SHADES)[level]


def bar(share: float, width: int) -> str:
    """A bar of a length from 0 to 1, to an eighth of a letter."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def padded(label: str, width: int, *, right: bool = False) -> str:
    return " " * max(0, width - cell_len(label)) + label if right else set_cell_size(label, width)


def tinted(text: str, ink: Colour, ground: Colour) -> str:
    """A text in 24-bit colours, each from 0 to 1."""
    front, back = (";".join(str(round(255 * part)) for part in colour) for colour in (ink, ground))
    return f"\x1b[38;2;{front};48;2;{back}m{text}\x1b[0m"
