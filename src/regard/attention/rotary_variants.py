"""Rotary variants: scaled frequencies for longer texts (Llama 3, YaRN, NTK), rows and columns of pictures, and xPos."""

from dataclasses import dataclass
from math import log, pi

import torch
from torch import Tensor

from regard.attention.position import QueryKeyPosition, Rotary
from regard.ops.rotary import FrequencyScaling, Pairs

# --- longer texts than those of the training ---


@dataclass(frozen=True)
class RotaryScaling(FrequencyScaling):
    """Slower rotations, for texts longer than those of the training, as in Llama 3.1 (Dubey et al. 2024, 3.2).

    What turns `fast` times or more in `length` tokens stays as it is, what turns `slow` times or fewer is slowed down
    by the factor, and in between both are mixed. With length = 1 everything is slowed down
    (position interpolation, Chen et al. 2023).

    Examples:
        >>> frequency = torch.tensor([1.0, 1e-3, 1e-5])  # 1304 turns in 8192 tokens, 1.3 turns, 0.01 turns
        >>> RotaryScaling(factor=8.0).scale(frequency) / frequency
        tensor([1.0000, 0.2136, 0.1250])
        >>> Rotary(theta=500000.0, pairs="halves", scaling=RotaryScaling(factor=8.0))
        Rotary(theta=500000.0, pairs='halves', scaling=RotaryScaling(factor=8.0, length=8192, slow=1.0, fast=4.0))
    """

    factor: float
    length: int = 8192
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self):
        if not self.factor > 0 or self.length < 1 or not 0 < self.slow < self.fast:
            raise ValueError(f"{self}: factor and length must be positive, and 0 < slow < fast")

    def scale(self, frequency):
        turns = self.length * frequency / (2 * pi)
        kept = ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return frequency * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class NTKScaling(FrequencyScaling):
    """A larger theta: the slowest pair is slowed down by the factor, the fastest not at all ("NTK-aware", 2023).

    theta · factor^(d / (d - 2)) instead of theta, so that pair p of n turns factor^(-p / (n - 1)) times as fast.

    Examples:
        >>> NTKScaling(factor=4.0).scale(torch.tensor([1.0, 0.1, 0.01]))  # times 1, 1/2, 1/4
        tensor([1.0000, 0.0500, 0.0025])
    """

    factor: float

    def __post_init__(self):
        if not self.factor > 0:
            raise ValueError(f"{self}: the factor must be positive")

    def scale(self, frequency):
        pair = torch.arange(len(frequency), dtype=frequency.dtype, device=frequency.device)
        return frequency * self.factor ** (-pair / max(1, len(frequency) - 1))


@dataclass(frozen=True)
class YarnScaling(FrequencyScaling):
    """YaRN (Peng et al. 2023): slowed down by pairs, and a magnitude of 0.1 log(factor) + 1.

    As in the paper's code, both are mixed along the pairs, from the one that turns `fast` times in `length` tokens to
    the one that turns `slow` times; rounded to whole pairs where `whole` says so (gpt-oss does not).

    Examples:
        >>> frequency = 10_000.0 ** -(torch.arange(8) / 8)
        >>> YarnScaling(factor=4.0, length=4096).scale(frequency) / frequency  # pairs 2 to 6
        tensor([1.0000, 1.0000, 1.0000, 0.8125, 0.6250, 0.4375, 0.2500, 0.2500])
        >>> YarnScaling(factor=4.0, length=4096).magnitude
        1.138629436111989
    """

    factor: float
    length: int
    slow: float = 1.0
    fast: float = 32.0
    whole: bool = True

    def __post_init__(self):
        if not self.factor >= 1 or self.length < 1 or not 0 < self.slow < self.fast:
            raise ValueError(f"{self}: factor at least 1, length positive, and 0 < slow < fast")

    @property
    def magnitude(self):
        return 0.1 * log(self.factor) + 1

    def scale(self, frequency):
        if len(frequency) < 2:
            raise ValueError(f"{self} mixes along the pairs of a head; two features are only one")
        step = (frequency[0] / frequency[1]).log()  # from pair to pair; a tensor, or a GPU would have to wait
        first, last = ((self.length * frequency[0] / (2 * pi * turns)).log() / step for turns in (self.fast, self.slow))
        first, last = (first.floor(), last.ceil()) if self.whole else (first, last)
        first, last = first.clamp(min=0), last.clamp(max=2 * len(frequency) - 1)
        pair = torch.arange(len(frequency), dtype=frequency.dtype, device=frequency.device)
        slowed = ((pair - first) / (last - first).clamp(min=1e-3)).clamp(0, 1)
        return frequency * (1 - slowed + slowed / self.factor)


# --- pictures ---


@dataclass(frozen=True)
class AxialRotary(QueryKeyPosition):
    """2-D rotary for pictures: half of the features are rotated by the row, half by the column (Heo et al. 2024).

    Tokens are the patches of a picture of `width` columns, row by row, after `first` tokens that belong to no place.

    Examples:
        >>> x = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 1, 4, 4)
        >>> AxialRotary(width=2).rotate(x, torch.arange(4))[0, 0]  # rows 0, 0, 1, 1 and columns 0, 1, 0, 1
        tensor([[1.0000, 0.0000, 1.0000, 0.0000],
                [1.0000, 0.0000, 0.5403, 0.8415],
                [0.5403, 0.8415, 1.0000, 0.0000],
                [0.5403, 0.8415, 0.5403, 0.8415]])
    """

    width: int
    theta: float = 100.0
    first: int = 0

    def __post_init__(self):
        if self.width < 1 or self.first < 0 or not self.theta > 0:
            raise ValueError(f"{self}: width and theta must be positive, first not negative")

    def rotate(self, x, positions):
        if x.shape[-1] % 4:
            raise ValueError(f"{self} rotates pairs of features by two axes; {x.shape[-1]} is no multiple of 4")
        cell = positions - self.first
        row = torch.where(cell < 0, 0, cell.div(self.width, rounding_mode="floor"))
        column = torch.where(cell < 0, 0, cell % self.width)
        axis = Rotary(self.theta)
        down, across = x.chunk(2, -1)
        return torch.cat((axis.rotate(down, row), axis.rotate(across, column)), -1)


# --- decay ---


@dataclass(frozen=True)
class XPos(QueryKeyPosition):
    """Rotary whose pairs also shrink with the distance, the slow ones slowly (xPos; Sun et al. 2022).

    Pair p of a query at i is multiplied by ζ_p^(i / scale) and that of a key at j by ζ_p^(-j / scale), with
    ζ_p = (2p / d + 0.4) / 1.4, so that a product has the factor ζ_p^((i - j) / scale). Made for causal attention: keys
    ahead would grow. In float32 positions may reach about 70 times the scale.

    Examples:
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 1, 2, 2)
        >>> position = XPos(scale=1.0)
        >>> q, k = position.rotate(x, torch.arange(2)), position.rotate_keys(x, torch.arange(2))
        >>> (q @ k.mT)[0, 0]  # ζ = 0.4 / 1.4 = 2/7: below the diagonal 2/7 cos 1, above it 7/2 cos 1
        tensor([[1.0000, 1.8911],
                [0.1544, 1.0000]])
    """

    theta: float = 10_000.0
    scale: float = 512.0
    pairs: Pairs = "adjacent"

    def __post_init__(self):
        if self.pairs not in ("adjacent", "halves") or not self.theta > 0 or not self.scale > 0:
            raise ValueError(f"{self}: theta and scale must be positive, and pairs 'adjacent' or 'halves'")

    def rotate(self, x, positions):
        return Rotary(self.theta, self.pairs).rotate(x, positions) * self.growth(x, positions, 1.0)

    def rotate_keys(self, k, positions):
        return Rotary(self.theta, self.pairs).rotate(k, positions) * self.growth(k, positions, -1.0)

    def growth(self, x: Tensor, positions: Tensor, sign: float) -> Tensor:
        """ζ_p^(± position / scale), for both features of each pair."""
        pair = torch.arange(0, x.shape[-1], 2, device=x.device, dtype=torch.float64) / x.shape[-1]
        factor = ((pair + 0.4) / 1.4) ** (sign * positions[..., None].double() / self.scale)
        both = factor.repeat_interleave(2, -1) if self.pairs == "adjacent" else torch.cat((factor, factor), -1)
        return (both[:, None] if both.dim() == 3 else both).to(x.dtype)
