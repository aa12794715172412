"""Style: colour maps that colour-blind readers can tell apart, fonts that have the characters, image pixels."""

from functools import cache
from itertools import islice

import numpy as np
import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from matplotlib.colors import Colormap, FuncNorm, LinearSegmentedColormap, ListedColormap, Normalize, PowerNorm
from matplotlib.font_manager import fontManager
from matplotlib.ft2font import FT2Font
from torch import Tensor

from regard.see.plots.panels import ColourScale, PatchOverlay

INK, MUTED, FRAME, PAPER = "#1c2331", "#6a7280", "#aeb5bf", "#ffffff"
HIDDEN, HATCH, VISIBLE, MIXED = "#ebe7e0", "#d3ccc1", "#1f4e8c", "#8fb4dc"

# white to ink: lightness falls all the way, so that the order of weights survives a grey printer
BLUES = LinearSegmentedColormap.from_list("regard", ["#fbfdff", "#cfe2f3", "#86b3dc", "#3a74b4", "#1f4e8c", "#0c2347"])
# orange and blue differ for every kind of colour blindness
SIGNED = LinearSegmentedColormap.from_list(
    "regard signed", ["#7a2e05", "#c85a17", "#f2b27a", "#fdfcfa", "#93bce0", "#2f69ad", "#0f2f5f"]
)

# nothing to vermilion, over a picture in grey: what weighs nothing is not covered
GREY_RANGE = (0.52, 0.97)  # black and white of such a picture: nothing laid over it is lost in the dark
OVERLAY_COLORMAP = LinearSegmentedColormap.from_list(
    "regard glow", [(0.96, 0.62, 0.1, 0.0), (0.95, 0.47, 0.02, 0.62), (0.8, 0.2, 0.0, 0.92)]
)

WORDS, CODE = "DejaVu Sans", "DejaVu Sans Mono"  # both come with matplotlib, so pictures are alike everywhere
GENERIC = {WORDS: "sans-serif", CODE: "monospace"}  # for those who open an SVG and have neither
PLAIN_FONTS = (WORDS, "sans-serif")
LAST_RESORT = "Last Resort High-Efficiency"  # likewise; a box that names the script of a letter nobody has


def colormap(scale: ColourScale) -> Colormap:
    match scale.kind:
        case "mask":
            return ListedColormap([HIDDEN, VISIBLE])
        case "blocks":
            return ListedColormap([HIDDEN, MIXED, VISIBLE])
        case "weights" | "roots" | "dimming":
            return BLUES.with_extremes(bad=HIDDEN)
        case "glow":
            return OVERLAY_COLORMAP
        case "signed":
            return SIGNED.with_extremes(bad=HIDDEN)
        case "kinds":
            return SIGNED.resampled(int(scale.high) + 1)


def normalize(scale: ColourScale) -> Normalize:
    """From a value to its share of the colours."""
    if scale.kind == "dimming":
        return FuncNorm((np.exp, np.log), vmin=scale.low, vmax=scale.high, clip=True)
    if scale.kind == "roots":
        return PowerNorm(0.5, scale.low, scale.high, clip=True)
    half = 0.5 if scale.kind == "kinds" else 0.0  # each kind has a colour of its own
    return Normalize(scale.low - half, scale.high + half)


def fonts(text: str, first: str = WORDS) -> list[str]:
    """Font families that between them have every letter of a text."""
    own = characters_of(
        next(font.fname for font in fontManager.ttflist if font.name == first and font.style == "normal")
    )
    others = [family for letter in sorted(set(text)) if ord(letter) not in own for family in fonts_with(letter)]
    return list(dict.fromkeys([first, GENERIC[first], *others]))


@cache
def fonts_with(letter: str) -> list[str]:
    """The first installed family, by name, that can draw a letter, and what stands in where none can."""
    installed = sorted((font.name, font.fname) for font in fontManager.ttflist if font.style == "normal")
    able = (name for name, path in installed if name != LAST_RESORT and ord(letter) in characters_of(path))
    return [*islice(able, 1), *islice((name for name, _ in installed if name == LAST_RESORT), 1)]


@cache
def characters_of(path: str) -> frozenset[int]:
    """The letters of a font file; none of a font of fixed bitmaps, which cannot be drawn at every size."""
    font = FT2Font(path)
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


# --- pixels ---


RGB = Float[Tensor, "h w 3"]
LUMA = (0.299, 0.587, 0.114)


def to_rgb_pixels(pixels: Float[Tensor, "c h w"]) -> RGB:
    """Red, green and blue; grey is all three."""
    return rearrange(pixels.clamp(0, 1).expand(3, -1, -1), "c h w -> h w c")


def to_grey_pixels(pixels: Float[Tensor, "c h w"]) -> RGB:
    """The same in grey, so that what is laid over it has the colours for itself."""
    grey = (to_rgb_pixels(pixels) * torch.tensor(LUMA, dtype=pixels.dtype)).sum(-1)
    dark, light = GREY_RANGE
    return repeat(dark + (light - dark) * grey, "h w -> h w c", c=3)


def blend_overlay(pixels: Float[Tensor, "c h w"], laid: PatchOverlay) -> RGB:
    """The faded picture with each patch's glow over it."""
    base = to_grey_pixels(pixels)
    over = torch.from_numpy(
        colormap(laid.scale)(normalize(laid.scale)(upsample_patches(laid.weights, *base.shape[:2]).numpy()))
    )
    opacity = over[..., 3:]
    return base * (1 - opacity) + over[..., :3] * opacity


def upsample_patches(weights: Float[Tensor, "y x"], rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """One number for each of so many rows and columns: that of the patch it lies in."""
    y, x = ((torch.arange(n) + 0.5) * k // n for n, k in zip((rows, columns), weights.shape, strict=True))
    return weights[y.long()][:, x.long()]


def downsample(pixels: Float[Tensor, "c h w"], most: int) -> Float[Tensor, "c rows columns"]:
    """At most so many columns: each pixel the mean of a square of them; what does not fill a square is cut off."""
    _, rows, columns = pixels.shape
    size = -(-columns // most)
    kept = pixels[:, : max(size, rows // size * size), : columns // size * size]
    return reduce(kept, "c (h p) (w q) -> c h w", "mean", p=min(size, kept.shape[1]), q=size)
