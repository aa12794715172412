"""Layers of vision models: an image as patches, and gates that weigh feature maps by channel or by position.

The gates are attention without queries: every channel or position has a weight between 0 and 1, without softmax.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float, Num
from torch import Tensor, nn

from regard.attention import AttentionSites, EmbeddingPosition, GateCore, SiteName

# --- patches ---


Grid = tuple[int, int]  # how many patches down, and how many across


def grid_of(height: int, width: int, size: int) -> Grid:
    """How many patches of `size` x `size` pixels an image has."""
    if size < 1:
        raise ValueError(f"a patch has 1 pixel a side or more, not {size}")
    if height % size or width % size or not height or not width:
        raise ValueError(
            f"patches of {size} x {size} pixels do not tile an image of {height} x {width}; "
            "choose a size that divides both, or resize the image"
        )
    return height // size, width // size


def patch(x: Float[Tensor, "b c height width"], size: int) -> Float[Tensor, "b t pixels"]:
    """Each patch flattened, pixel after pixel."""
    grid_of(x.shape[2], x.shape[3], size)
    return rearrange(x, "b c (y p) (x q) -> b (y x) (p q c)", p=size, q=size)


def unpatch(patches: Float[Tensor, "b t pixels"], size: int, grid: Grid) -> Float[Tensor, "b c height width"]:
    """The image again: the inverse of `patch`."""
    check_grid(patches.shape[1], grid)
    return rearrange(patches, "b (y x) (p q c) -> b c (y p) (x q)", y=grid[0], p=size, q=size)


def overlay(weights: Num[Tensor, "*any t"], size: int, grid: Grid) -> Num[Tensor, "*any height width"]:
    """One number for each patch, repeated over all its pixels: a heat map of attention."""
    check_grid(weights.shape[-1], grid)
    return repeat(weights, "... (y x) -> ... (y p) (x q)", y=grid[0], p=size, q=size)


def check_grid(patches: int, grid: Grid) -> None:
    if patches != grid[0] * grid[1]:
        raise ValueError(
            f"{patches} patches are no grid of {grid[0]} x {grid[1]}; leave the class token out, or give another grid"
        )


class Patches(nn.Module):
    """x_p E + b: each patch, flattened, becomes a token by one linear map (Dosovitskiy et al. 2021, eq. 1)."""

    def __init__(self, size: int, width: int, *, channels: int = 3):
        super().__init__()
        grid_of(size, size, size)
        self.size, self.width, self.channels = size, width, channels
        self.project = nn.Linear(size * size * channels, width)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t model"]:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"images are (batch, {self.channels} channels, rows, columns), not {tuple(x.shape)}; "
                "read them in the mode the model was made for"
            )
        return self.project(patch(x, self.size))


class ConvolutionalPatches(nn.Module):
    """Convolutions of stride 2, each with norm and ReLU, then one of 1 x 1: a patch knows a little of its neighbours.

    Instead of one linear map a few small ones, with which a Transformer learns in fewer steps (Xiao et al. 2021).
    """

    def __init__(self, size: int, width: int, *, channels: int = 3):
        super().__init__()
        if size < 2 or size & (size - 1):
            raise ValueError(f"patches of {size} x {size} pixels cannot be halved to 1; choose 2, 4, 8 or 16")
        self.size, self.width, self.channels = size, width, channels
        halvings = size.bit_length() - 1
        widths = [channels, *(max(1, width >> halvings - 1 - n) for n in range(halvings))]
        self.downsample = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
                    nn.GroupNorm(1, outputs),
                    nn.ReLU(),
                )
                for inputs, outputs in pairwise(widths)
            )
        )
        self.project = nn.Conv2d(width, width, 1)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t model"]:
        grid_of(x.shape[2], x.shape[3], self.size)
        return rearrange(self.project(self.downsample(x)), "b m y x -> b (y x) m")


PATCHES: dict[str, type[Patches] | type[ConvolutionalPatches]] = {
    "linear": Patches,
    "convolution": ConvolutionalPatches,
}


@dataclass(eq=False)
class LearnedGridPosition(nn.Module, EmbeddingPosition):
    """A learned vector for each row of patches and one for each column; a patch gets the sum of its two."""

    rows: int
    columns: int
    model: int

    def __post_init__(self):
        super().__init__()
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"{self}: a grid has at least one row and one column")
        # so that the sum of the two is as large as a learned position in a text
        scale = (2 * self.model) ** -0.5
        self.row = nn.Parameter(torch.randn(self.rows, self.model) * scale)
        self.column = nn.Parameter(torch.randn(self.columns, self.model) * scale)

    def table(self, positions, model):
        if positions.shape[-1] > self.rows * self.columns:
            raise ValueError(
                f"{self} has {self.rows * self.columns} patches, not {positions.shape[-1]}; make the grid larger"
            )
        return self.row[positions // self.columns] + self.column[positions % self.columns]


# --- channel and spatial attention ---


Maps = Float[Tensor, "b c h w"]


class FeatureGate(nn.Module, ABC):
    """Abstract: a gate multiplies feature maps by weights between 0 and 1."""

    def __init__(self):
        super().__init__()
        self.core = GateCore("a gate: each weight by itself, between 0 and 1")

    @abstractmethod
    def weights(self, x: Maps) -> Float[Tensor, "b gc gh gw"]:
        """The weights; an axis of size 1 broadcasts."""

    def forward(self, x: Maps) -> Maps:
        return x * self.core(self.weights(x))


class SqueezeExcite(FeatureGate):
    """s = σ(W₂ ReLU(W₁ z + b₁) + b₂), z the mean of each channel: one weight a channel (Hu et al. 2018, eq. 2-4).

    The mean is taken over the whole map, so an image with a black border has other weights than the image alone.
    """

    attention_sites: ClassVar[AttentionSites] = {"": SiteName("", "pooled", "channels")}

    def __init__(self, channels: int, *, reduction: int = 16):
        super().__init__()
        if not 1 <= reduction <= channels:
            raise ValueError(
                f"reduction = {reduction} leaves none of {channels} channels, or adds some; choose 1 to {channels}"
            )
        self.squeeze, self.excite = (
            nn.Linear(channels, channels // reduction),
            nn.Linear(channels // reduction, channels),
        )

    def weights(self, x):
        z = reduce(x, "b c h w -> b c", "mean")
        return rearrange(torch.sigmoid(self.excite(torch.relu(self.squeeze(z)))), "b c -> b c 1 1")


class SpatialAttention(FeatureGate):
    """M = σ(f([mean over channels; maximum over channels])), f a convolution: one weight a position.

    The spatial gate of CBAM (Woo et al. 2018, eq. 3).
    """

    attention_sites: ClassVar[AttentionSites] = {"": SiteName("", "pooled", "places")}

    def __init__(self, *, kernel: int = 7):
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel = {kernel} has no centre; choose an odd number")
        self.convolve = nn.Conv2d(2, 1, kernel, padding=kernel // 2)

    def weights(self, x):
        mean, most = (reduce(x, "b c h w -> b 1 h w", how) for how in ("mean", "max"))
        return torch.sigmoid(self.convolve(torch.cat((mean, most), 1)))
