"""Feature maps in, the same maps weighed out: by channel (what matters), or by place (where it matters).

These gates are attention without queries: every channel or place has one weight between 0 and 1, and nothing competes.
"""

from abc import ABC, abstractmethod

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

Maps = Float[Tensor, "b c h w"]


class Gate(nn.Module, ABC):
    """Abstract: a gate says how much of each number it lets through."""

    @abstractmethod
    def weigh(self, x: Maps) -> Float[Tensor, "b gc gh gw"]:
        """The weights; an axis of 1 serves all that lie along it."""

    def forward(self, x: Maps) -> Maps:
        return x * self.weigh(x)

    def look(self, x: Maps) -> tuple[Maps, Float[Tensor, "b gc gh gw"]]:
        """The output, and the weights that made it."""
        weights = self.weigh(x)
        return x * weights, weights


class SqueezeExcite(Gate):
    """s = σ(W₂ ReLU(W₁ z + b₁) + b₂), z the mean of each channel: one weight a channel (Hu et al. 2018, eq. 2-4).

    The mean is taken over the whole map, so a picture framed in black is weighed otherwise than the picture alone.
    """

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

    def weigh(self, x):
        z = reduce(x, "b c h w -> b c", "mean")
        return rearrange(torch.sigmoid(self.excite(torch.relu(self.squeeze(z)))), "b c -> b c 1 1")


class SpatialAttention(Gate):
    """M = σ(f([mean over channels; maximum over channels])), f a convolution: one weight a place.

    The spatial gate of CBAM (Woo et al. 2018, eq. 3).
    """

    def __init__(self, *, kernel: int = 7):
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel = {kernel} has no middle; choose an odd number")
        self.convolve = nn.Conv2d(2, 1, kernel, padding=kernel // 2)

    def weigh(self, x):
        mean, most = (reduce(x, "b c h w -> b 1 h w", how) for how in ("mean", "max"))
        return torch.sigmoid(self.convolve(torch.cat((mean, most), 1)))
