"""A picture and the weights laid over it in; the colours of its pixels out, for a figure or a terminal."""

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor

from regard.see.panel import Laid
from regard.see.style import FADED, colours, norm

Colours = Float[Tensor, "h w 3"]
LIGHTNESS = (0.299, 0.587, 0.114)


def coloured(pixels: Float[Tensor, "c h w"]) -> Colours:
    """Red, green and blue; grey is all three."""
    return rearrange(pixels.clamp(0, 1).expand(3, -1, -1), "c h w -> h w c")


def faded(pixels: Float[Tensor, "c h w"]) -> Colours:
    """The same in grey, so that what is laid over it has the colours for itself."""
    grey = (coloured(pixels) * torch.tensor(LIGHTNESS, dtype=pixels.dtype)).sum(-1)
    dark, light = FADED
    return repeat(dark + (light - dark) * grey, "h w -> h w c", c=3)


def blended(pixels: Float[Tensor, "c h w"], laid: Laid) -> Colours:
    """The faded picture with each patch's glow over it."""
    base = faded(pixels)
    over = torch.from_numpy(colours(laid.scale)(norm(laid.scale)(spread(laid.weights, *base.shape[:2]).numpy())))
    opacity = over[..., 3:]
    return base * (1 - opacity) + over[..., :3] * opacity


def spread(weights: Float[Tensor, "y x"], rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """One number for each of so many rows and columns: that of the patch it lies in."""
    y, x = ((torch.arange(n) + 0.5) * k // n for n, k in zip((rows, columns), weights.shape, strict=True))
    return weights[y.long()][:, x.long()]


def shrunk(pixels: Float[Tensor, "c h w"], most: int) -> Float[Tensor, "c h w"]:
    """At most so many columns: each pixel the mean of a square of them; what does not fill a square is cut off."""
    _, rows, columns = pixels.shape
    size = -(-columns // most)
    kept = pixels[:, : max(size, rows // size * size), : columns // size * size]
    return reduce(kept, "c (h p) (w q) -> c h w", "mean", p=min(size, kept.shape[1]), q=size)
