"""Pictures, a seed and an epoch in; the same pictures moved, mirrored or partly hidden out.

    augmented(pixels, rows, by=(Crop(4), Flip()), seed=0, epoch=3)

What happens to a picture depends on (seed, epoch, its row in the whole set) alone: not on its batch, not on those
before it, so that a run can be resumed anywhere and batches may be cut in any way.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.nn.functional import pad

from regard.text.order import key, seeded

Pixels = UInt8[Tensor, "n c h w"]
BITS = 31  # each picture draws two whole numbers of so many bits


class Change(ABC):
    """Abstract: each picture is changed by its own two draws, whole numbers below 2**31."""

    @abstractmethod
    def apply(self, pixels: Pixels, draws: Int[Tensor, "n 2"]) -> Pixels: ...


def augmented(pixels: Pixels, rows: Sequence[int], *, by: Sequence[Change], seed: int, epoch: int) -> Pixels:
    """The pictures changed by each of `by` in turn; rows[n] is where picture n stands in the whole set."""
    if len(rows) != len(pixels):
        raise ValueError(f"{len(pixels)} pictures need as many rows, not {len(rows)}")
    for place, change in enumerate(by):
        origin = seeded(seed, epoch, place)
        drawn = [key(origin, row) for row in rows]
        draws = torch.tensor([(draw >> 33, draw & (2**BITS - 1)) for draw in drawn], device=pixels.device)
        pixels = change.apply(pixels, draws) if len(pixels) else pixels
    return pixels


@dataclass(frozen=True)
class Crop(Change):
    """Framed in black, `padding` pixels wide, and cut out again anywhere: moved by up to `padding` each way."""

    padding: int

    def __post_init__(self):
        if self.padding < 0:
            raise ValueError(f"{self}: the frame is 0 pixels wide or more")

    def apply(self, pixels, draws):
        height, width = pixels.shape[2:]
        # x is below 2**31, so x · ways / 2**31 is below `ways`, each value equally often but for rounding
        first = (draws * (2 * self.padding + 1)) >> BITS
        down = first[:, :1] + torch.arange(height, device=pixels.device)
        right = first[:, 1:] + torch.arange(width, device=pixels.device)
        framed = pad(pixels, (self.padding,) * 4)
        n, c = (torch.arange(size, device=pixels.device) for size in pixels.shape[:2])
        places = rearrange(n, "n -> n 1 1 1"), rearrange(c, "c -> c 1 1")
        return framed[*places, rearrange(down, "n h -> n 1 h 1"), rearrange(right, "n w -> n 1 1 w")]


@dataclass(frozen=True)
class Flip(Change):
    """Every other picture, by chance, is seen in a mirror. Not for digits and letters."""

    def apply(self, pixels, draws):
        mirrored = rearrange(draws[:, 0] >> (BITS - 1), "n -> n 1 1 1").bool()
        return torch.where(mirrored, pixels.flip(-1), pixels)


@dataclass(frozen=True)
class Hide(Change):
    """A square of `size` pixels around any pixel is black; at the edge, what there is of it (DeVries & Taylor 2017)."""

    size: int

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"{self} hides nothing; give a size of at least 1, or leave it out")

    def apply(self, pixels, draws):
        inside = []
        for axis, length in enumerate(pixels.shape[2:]):
            first = ((draws[:, axis : axis + 1] * length) >> BITS) - self.size // 2
            at = torch.arange(length, device=pixels.device)
            inside.append((at >= first) & (at < first + self.size))
        hidden = rearrange(inside[0], "n h -> n 1 h 1") & rearrange(inside[1], "n w -> n 1 1 w")
        return pixels.masked_fill(hidden, 0)
