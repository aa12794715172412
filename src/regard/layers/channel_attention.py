"""Channel and spatial attention: gates that weigh feature maps by channel or by position.

These gates are attention without queries: every channel or position has a weight between 0 and 1, without softmax.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import AttentionSites, GateCore, SiteName

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
