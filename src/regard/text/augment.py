"""Pictures, a seed and an epoch in; the same pictures moved, turned, mirrored, partly hidden or mixed out.

    augmented(pixels, rows, by=(Crop(4), Flip()), seed=0, epoch=3)
    Mix(up=0.5, cut=0.5).apply(pixels, others, *draws)      and how much of each is the first

What happens to a picture depends on (seed, epoch, its row in the whole set) alone: not on its batch, not on those
before it, so that a run can be resumed anywhere and batches may be cut in any way.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import pi

import numpy as np
import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from regard.text.order import keys_of, seeded

Pixels = UInt8[Tensor, "n c h w"]
Draws = Int[Tensor, "n 2"]
Rows = Sequence[int] | NDArray[np.int64]
BITS = 31  # each picture draws two whole numbers of so many bits


class Change(ABC):
    """Abstract: each picture is changed by its own two draws, whole numbers below 2**31."""

    @abstractmethod
    def apply(self, pixels: Pixels, draws: Draws) -> Pixels: ...


def augmented(pixels: Pixels, rows: Rows, *, by: Sequence[Change], seed: int, epoch: int) -> Pixels:
    """The pictures changed by each of `by` in turn; rows[n] is where picture n stands in the whole set."""
    if len(rows) != len(pixels):
        raise ValueError(f"{len(pixels)} pictures need as many rows, not {len(rows)}")
    draws = [drawn(rows, seed, epoch, place).to(pixels.device) for place in range(len(by))]
    return changed(pixels, draws, by) if len(pixels) else pixels


def changed(pixels: Pixels, draws: Iterable[Draws], by: Sequence[Change]) -> Pixels:
    """By each of `by` in turn and its draws, on the device where all of them are: nothing is asked of it."""
    for change, own in zip(by, draws, strict=True):
        pixels = change.apply(pixels, own)
    return pixels


def drawn(rows: Rows, seed: int, epoch: int, place: int) -> Draws:
    """Two whole numbers of 31 bits for each row; `place` tells what they are for."""
    found = keys_of(seeded(seed, epoch, place), np.asarray(rows, dtype=np.uint64))
    both = np.stack((found >> np.uint64(33), found & np.uint64(2**BITS - 1)), 1)
    return torch.from_numpy(both.astype(np.int64))


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


@dataclass(frozen=True)
class Grey(Change):
    """This share of the pictures lose their colours, so that what they show is not told by these alone."""

    share: float

    def __post_init__(self):
        if not 0 <= self.share <= 1:
            raise ValueError(f"{self}: a share of all pictures lies between 0 and 1")

    def apply(self, pixels, draws):
        faded = reduce(pixels.int(), "n c h w -> n 1 h w", "sum") // pixels.shape[1]
        chosen = rearrange(shares(draws[:, 0]) < self.share, "n -> n 1 1 1")
        return torch.where(chosen, faded.to(torch.uint8), pixels)


@dataclass(frozen=True)
class Pose(Change):
    """Turned by up to `turn` degrees either way, and made up to `stretch` percent larger or smaller along each axis."""

    turn: int = 0
    stretch: int = 0

    def __post_init__(self):
        if not 0 <= self.turn <= 180 or not 0 <= self.stretch < 100:
            raise ValueError(f"{self}: a turn is 0 to 180 degrees, a stretch 0 to 99 percent")

    def apply(self, pixels, draws):
        angle = (2 * shares(draws[:, 0]) - 1) * (self.turn * pi / 180)
        # one draw is left for two axes: its upper half, and its lower
        halves = torch.stack((draws[:, 1] >> 16, (draws[:, 1] & 0x7FFF)), 1) / 2.0**15
        size = 1 + (2 * halves - 1) * (self.stretch / 100)
        height, width = pixels.shape[2:]
        # places are counted from -1 to 1 along each side, however long it is
        down, right = angle.sin() * (width / height), -angle.sin() * (height / width)
        turned = torch.stack((angle.cos(), right, down, angle.cos()), 1)
        by = rearrange(turned, "n (i j) -> n i j", i=2) / size[:, None]
        grid = affine_grid(torch.cat((by, torch.zeros_like(by[:, :, :1])), 2), list(pixels.shape), align_corners=False)
        return grid_sample(pixels.float(), grid, align_corners=False).round().to(torch.uint8)


def shares(draws: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """From 0 to 1, without 1."""
    return (draws >> (BITS - 24)) / 2.0**24


@dataclass(frozen=True)
class Mix:
    """Some pictures are mixed with another: as two slides laid over each other, or by a rectangle cut from the other.

    Args:
        up: the share of pictures that are laid over each other (mixup, Zhang et al. 2018).
        cut: the share of those with a rectangle of the other (CutMix, Yun et al. 2019).
    """

    up: float = 0.0
    cut: float = 0.0

    def __post_init__(self):
        if min(self.up, self.cut) < 0 or self.up + self.cut > 1:
            raise ValueError(f"{self}: each is a share of all pictures, from 0 to 1, and so are the two together")

    def apply(self, pixels: Pixels, others: Pixels, kinds: Draws, places: Draws) -> tuple[Pixels, Float[Tensor, " n"]]:
        """The pictures, and how much of each is its own; draws choose the kind and the share, and the middle."""
        chosen, share = shares(kinds[:, 0]), shares(kinds[:, 1])
        wide = rearrange(share, "n -> n 1 1 1")
        laid = (wide * pixels + (1 - wide) * others).round().to(torch.uint8)
        inside = []
        for axis, length in enumerate(pixels.shape[2:]):
            half = (1 - share).sqrt() * length / 2
            middle = shares(places[:, axis]) * length
            at = torch.arange(length, device=pixels.device) + 0.5
            inside.append((at - middle[:, None]).abs() < half[:, None])
        taken = rearrange(inside[0], "n h -> n 1 h 1") & rearrange(inside[1], "n w -> n 1 1 w")
        kept = 1 - taken.float().mean((1, 2, 3))
        is_cut, is_laid = chosen < self.cut, (chosen >= self.cut) & (chosen < self.cut + self.up)
        mixed = torch.where(rearrange(is_cut, "n -> n 1 1 1") & taken, others, pixels)
        mixed = torch.where(rearrange(is_laid, "n -> n 1 1 1"), laid, mixed)
        return mixed, torch.where(is_cut, kept, torch.where(is_laid, share, 1.0))
