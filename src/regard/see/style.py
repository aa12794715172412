"""The house style: colours that a colour-blind reader can tell apart, and fonts that have the letters."""

from functools import cache
from itertools import islice

import numpy as np
from matplotlib.colors import Colormap, FuncNorm, LinearSegmentedColormap, ListedColormap, Normalize, PowerNorm
from matplotlib.font_manager import fontManager
from matplotlib.ft2font import FT2Font

from regard.see.panel import Scale

INK, MUTED, FRAME, PAPER = "#1c2331", "#6a7280", "#aeb5bf", "#ffffff"
HIDDEN, HATCH, SEEN, MIXED = "#ebe7e0", "#d3ccc1", "#1f4e8c", "#8fb4dc"

# white to ink: lightness falls all the way, so that the order of weights survives a grey printer
BLUES = LinearSegmentedColormap.from_list("regard", ["#fbfdff", "#cfe2f3", "#86b3dc", "#3a74b4", "#1f4e8c", "#0c2347"])
# orange and blue differ for every kind of colour blindness
SIGNED = LinearSegmentedColormap.from_list(
    "regard signed", ["#7a2e05", "#c85a17", "#f2b27a", "#fdfcfa", "#93bce0", "#2f69ad", "#0f2f5f"]
)

# nothing to vermilion, over a picture in grey: what weighs nothing is not covered
FADED = (0.52, 0.97)  # black and white of such a picture: nothing laid over it is lost in the dark
GLOW = LinearSegmentedColormap.from_list(
    "regard glow", [(0.96, 0.62, 0.1, 0.0), (0.95, 0.47, 0.02, 0.62), (0.8, 0.2, 0.0, 0.92)]
)

WORDS, CODE = "DejaVu Sans", "DejaVu Sans Mono"  # both come with matplotlib, so pictures are alike everywhere
GENERIC = {WORDS: "sans-serif", CODE: "monospace"}  # for those who open an SVG and have neither
PLAIN = (WORDS, "sans-serif")
LAST_RESORT = "Last Resort High-Efficiency"  # likewise; a box that names the script of a letter nobody has


def colours(scale: Scale) -> Colormap:
    match scale.kind:
        case "mask":
            return ListedColormap([HIDDEN, SEEN])
        case "blocks":
            return ListedColormap([HIDDEN, MIXED, SEEN])
        case "weights" | "roots" | "dimming":
            return BLUES.with_extremes(bad=HIDDEN)
        case "glow":
            return GLOW
        case "signed":
            return SIGNED.with_extremes(bad=HIDDEN)
        case "kinds":
            return SIGNED.resampled(int(scale.high) + 1)


def norm(scale: Scale) -> Normalize:
    """From a value to its share of the colours."""
    if scale.kind == "dimming":
        return FuncNorm((np.exp, np.log), vmin=scale.low, vmax=scale.high, clip=True)
    if scale.kind == "roots":
        return PowerNorm(0.5, scale.low, scale.high, clip=True)
    half = 0.5 if scale.kind == "kinds" else 0.0  # each kind has a colour of its own
    return Normalize(scale.low - half, scale.high + half)


def fonts(text: str, first: str = WORDS) -> list[str]:
    """Font families that between them have every letter of a text."""
    own = letters(next(font.fname for font in fontManager.ttflist if font.name == first and font.style == "normal"))
    others = [family for letter in sorted(set(text)) if ord(letter) not in own for family in holders(letter)]
    return list(dict.fromkeys([first, GENERIC[first], *others]))


@cache
def holders(letter: str) -> list[str]:
    """The first installed family, by name, that can draw a letter, and what stands in where none can."""
    installed = sorted((font.name, font.fname) for font in fontManager.ttflist if font.style == "normal")
    able = (name for name, path in installed if name != LAST_RESORT and ord(letter) in letters(path))
    return [*islice(able, 1), *islice((name for name, _ in installed if name == LAST_RESORT), 1)]


@cache
def letters(path: str) -> frozenset[int]:
    """The letters of a font file; none of a font of fixed bitmaps, which cannot be drawn at every size."""
    font = FT2Font(path)
    return frozenset(font.get_charmap()) if font.scalable else frozenset()
