"""A picture and how much each patch or channel of it weighs in; the weights laid over the picture, or as bars, out.

Each patch is a square of one shade, because there is one weight for it; `smooth` blurs what is known no finer.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.see.alignment import assert_weights, plain
from regard.see.labels import readable, short
from regard.see.panel import Bars, Laid, Picture, Row, Scale, View, grid

ABREAST = 5  # pictures in a row
SMALL, LARGE = 1.2, 2.4  # inches: a picture among those of many heads, and among few
LONGEST = 24  # terminal cells of a picture's name
AS_IT_IS = "the picture"

Pixels = Float[Tensor, "c h w"]
Map = Float[Tensor, "y x"]


def overlay(pixels: Pixels, looks: Sequence[tuple[str, Map]], *, title: str = "", smooth: bool = False) -> View:
    """The picture, then one copy for each (name, weights of its patches): a word of a question, a head, a layer.

    overlay(pixels, list(zip(words, weights, strict=True)), title="where it looked for each word")
    """
    base = given(pixels)
    maps = [(name_of(name), checked(weights, base)) for name, weights in looks]
    if not maps:
        raise ValueError("there is nothing to lay over the picture; give at least one (name, weights)")
    scale = shared([weights for _, weights in maps])
    copies = [Picture(name, base, Laid(weights, scale, smooth)) for name, weights in maps]
    rows = grid([Picture(AS_IT_IS, base), *copies], ABREAST)
    side = LARGE if len(maps) < ABREAST // 2 + 1 else None
    return View((Row(rows[0].panels, heading=title), *rows[1:]), side=side)


def overlay_heads(
    pixels: Pixels, layers: Mapping[str, Float[Tensor, "heads y x"]], *, title: str = "", smooth: bool = False
) -> View:
    """The picture, then a row for each layer with one copy for each of its heads, all on one scale."""
    base = given(pixels)
    maps = {layer: [checked(weights, base) for weights in heads] for layer, heads in layers.items()}
    if not any(maps.values()):
        raise ValueError("there is no head to show; a model without attention has none")
    scale = shared([weights for heads in maps.values() for weights in heads])
    rows = [Row((Picture(AS_IT_IS, base),), heading=title)]
    for layer, heads in maps.items():
        panels = [Picture(f"head {n}", base, Laid(weights, scale, smooth)) for n, weights in enumerate(heads)]
        first, *others = grid(panels, ABREAST + 1)
        rows += [Row(first.panels, heading=name_of(layer)), *others]
    return View(tuple(rows), side=SMALL)


def gates(
    pixels: Pixels,
    *,
    places: Sequence[tuple[str, Map]] = (),
    channels: Sequence[tuple[str, Float[Tensor, " c"]]] = (),
    title: str = "",
) -> View:
    """What a convolutional network lets through: of each place, laid over the picture, and of each channel, as bars."""
    base, scale = given(pixels), Scale("glow", 0.0, 1.0, "gate")
    copies = [Picture(name_of(name), base, Laid(gate(name, checked(at, base)), scale)) for name, at in places]
    first, *others = grid([Picture(AS_IT_IS, base), *copies], ABREAST)
    rows = [Row(first.panels, heading=title), *others]
    for name, weights in channels:
        if weights.dim() != 1 or not len(weights):
            raise ValueError(f"{name!r} has one weight for each channel, shape (channels,), not {tuple(weights.shape)}")
        assert_weights(weights)
        rows.append(Row((Bars(name_of(name), gate(name, plain(weights)), "channel"),)))
    return View(tuple(rows))


# --- what comes in ---


def given(pixels: Tensor) -> Tensor:
    if pixels.dim() != 3 or pixels.shape[0] not in (1, 3) or not pixels.numel():
        raise ValueError(
            f"a picture is (1 or 3 channels, rows, columns), not {tuple(pixels.shape)}; draw one at a time: pixels[0]"
        )
    shown = plain(pixels)
    wrong = shown[~((shown >= 0) & (shown <= 1))]
    if len(wrong):
        raise ValueError(
            f"pixels lie between 0 and 1, but {float(wrong[0]):g} is among them; undo what was done to them, "
            "such as a division by their spread, or divide by 255"
        )
    return shown


def checked(weights: Tensor, pixels: Tensor) -> Tensor:
    """One weight for each patch, and no more patches than pixels."""
    if weights.dim() != 2 or not weights.numel():
        raise ValueError(f"weights of patches are (rows, columns), not {tuple(weights.shape)}")
    if weights.shape[0] > pixels.shape[1] or weights.shape[1] > pixels.shape[2]:
        sizes = (" x ".join(map(str, shape)) for shape in (weights.shape, pixels.shape[1:]))
        raise ValueError("{} patches do not fit a picture of {} pixels".format(*sizes))
    assert_weights(weights)
    return plain(weights)


def gate(name: str, weights: Tensor) -> Tensor:
    if float(weights.max()) > 1:
        raise ValueError(f"a gate lies between 0 and 1, but {name!r} has {float(weights.max()):g}")
    return weights


def shared(maps: Sequence[Tensor]) -> Scale:
    return Scale("glow", 0.0, float(torch.stack([weights.max() for weights in maps]).max()) or 1.0, "weight")


def name_of(name: str) -> str:
    return short(readable(name), LONGEST)
