"""Image overlays: weights of patches over an image, and gates of channels as bars.

Each patch is a square of one shade, because there is one weight for it; `smooth` blurs what is known no finer.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.see.plots.attention_maps import assert_weights, to_cpu_double
from regard.see.plots.panels import (
    BarChart,
    ColourScale,
    ImagePanel,
    PanelRow,
    PatchOverlay,
    View,
    grid,
    truncate_label,
    visible_text,
)

IMAGES_PER_ROW = 5
SMALL, LARGE = 1.2, 2.4  # inches: an image among those of many heads, and among few
MAX_IMAGE_NAME_CELLS = 24  # terminal cells of an image's name
PLAIN_IMAGE_TITLE = "the image"

Pixels = Float[Tensor, "c h w"]
Map = Float[Tensor, "y x"]


def overlay_view(
    pixels: Pixels, attention_maps: Sequence[tuple[str, Map]], *, title: str = "", smooth: bool = False
) -> View:
    """The image, then one copy for each (name, weights of its patches): a word of a question, a head, a layer.

    overlay_view(pixels, list(zip(words, weights, strict=True)), title="attention of each word")
    """
    base = check_pixels(pixels)
    maps = [(image_name(name), check_patches(weights, base)) for name, weights in attention_maps]
    if not maps:
        raise ValueError("there is nothing to lay over the image; give at least one (name, weights)")
    scale = shared_scale([weights for _, weights in maps])
    copies = [ImagePanel(name, base, PatchOverlay(weights, scale, smooth)) for name, weights in maps]
    rows = grid([ImagePanel(PLAIN_IMAGE_TITLE, base), *copies], IMAGES_PER_ROW)
    side = LARGE if len(maps) < IMAGES_PER_ROW // 2 + 1 else None
    return View((PanelRow(rows[0].panels, heading=title), *rows[1:]), side=side)


def overlay_heads_view(
    pixels: Pixels, layers: Mapping[str, Float[Tensor, "heads y x"]], *, title: str = "", smooth: bool = False
) -> View:
    """The image, then a row for each layer with one copy for each of its heads, all on one scale."""
    base = check_pixels(pixels)
    maps = {layer: [check_patches(weights, base) for weights in heads] for layer, heads in layers.items()}
    if not any(maps.values()):
        raise ValueError("there is no head to show; a model without attention has none")
    scale = shared_scale([weights for heads in maps.values() for weights in heads])
    rows = [PanelRow((ImagePanel(PLAIN_IMAGE_TITLE, base),), heading=title)]
    for layer, heads in maps.items():
        panels = [
            ImagePanel(f"head {n}", base, PatchOverlay(weights, scale, smooth)) for n, weights in enumerate(heads)
        ]
        first, *others = grid(panels, IMAGES_PER_ROW + 1)
        rows += [PanelRow(first.panels, heading=image_name(layer)), *others]
    return View(tuple(rows), side=SMALL)


def gates_view(
    pixels: Pixels,
    *,
    spatial: Sequence[tuple[str, Map]] = (),
    channels: Sequence[tuple[str, Float[Tensor, " _"]]] = (),
    title: str = "",
) -> View:
    """The gates of a convolutional network: of each position, laid over the image, and of each channel, as bars."""
    base, scale = check_pixels(pixels), ColourScale("glow", 0.0, 1.0, "gate")
    copies = [
        ImagePanel(image_name(name), base, PatchOverlay(check_gate(name, check_patches(at, base)), scale))
        for name, at in spatial
    ]
    first, *others = grid([ImagePanel(PLAIN_IMAGE_TITLE, base), *copies], IMAGES_PER_ROW)
    rows = [PanelRow(first.panels, heading=title), *others]
    for name, weights in channels:
        if weights.dim() != 1 or not len(weights):
            raise ValueError(f"{name!r} has one weight for each channel, shape (channels,), not {tuple(weights.shape)}")
        assert_weights(weights)
        rows.append(PanelRow((BarChart(image_name(name), check_gate(name, to_cpu_double(weights)), "channel"),)))
    return View(tuple(rows))


# --- checks ---


def check_pixels(pixels: Tensor) -> Tensor:
    if pixels.dim() != 3 or pixels.shape[0] not in (1, 3) or not pixels.numel():
        raise ValueError(
            f"an image is (1 or 3 channels, rows, columns), not {tuple(pixels.shape)}; draw one at a time: pixels[0]"
        )
    shown = to_cpu_double(pixels)
    wrong = shown[~((shown >= 0) & (shown <= 1))]
    if len(wrong):
        raise ValueError(
            f"pixels lie between 0 and 1, but {float(wrong[0]):g} is among them; undo what was done to them, "
            "such as a division by their spread, or divide by 255"
        )
    return shown


def check_patches(weights: Tensor, pixels: Tensor) -> Tensor:
    """One weight for each patch, and no more patches than pixels."""
    if weights.dim() != 2 or not weights.numel():
        raise ValueError(f"weights of patches are (rows, columns), not {tuple(weights.shape)}")
    if weights.shape[0] > pixels.shape[1] or weights.shape[1] > pixels.shape[2]:
        sizes = (" x ".join(map(str, shape)) for shape in (weights.shape, pixels.shape[1:]))
        raise ValueError("{} patches do not fit an image of {} pixels".format(*sizes))
    assert_weights(weights)
    return to_cpu_double(weights)


def check_gate(name: str, weights: Tensor) -> Tensor:
    if float(weights.max()) > 1:
        raise ValueError(f"a gate lies between 0 and 1, but {name!r} has {float(weights.max()):g}")
    return weights


def shared_scale(maps: Sequence[Tensor]) -> ColourScale:
    return ColourScale("glow", 0.0, float(torch.stack([weights.max() for weights in maps]).max()) or 1.0, "weight")


def image_name(name: str) -> str:
    return truncate_label(visible_text(name), MAX_IMAGE_NAME_CELLS)
