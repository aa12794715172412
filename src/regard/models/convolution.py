"""Convolutional network: a residual CNN for images, with channel or spatial attention.

model = ChannelCNN(3, classes=10, attention="channel")
with record_attention(model) as record:
    logits = model(images)
record.weights("stage.2.1")                        b c 1 1, one for each channel
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import AttentionSites, SiteName
from regard.layers.channel_attention import FeatureGate, SpatialAttention, SqueezeExcite

Maps = Float[Tensor, "b c h w"]
NewMaps = Float[Tensor, "b new_c new_h new_w"]
Pixels = Float[Tensor, "b c height width"]
Logits = Float[Tensor, "b classes"]
STAGES = 3  # each twice as wide as the one before, and half as high
GROUP = 16  # channels in a group of the group norm

GATES: dict[str, Callable[[int], FeatureGate] | None] = {
    "channel": lambda channels: SqueezeExcite(channels, reduction=min(16, channels)),
    "spatial": lambda channels: SpatialAttention(),
    "none": None,
}


Norm = Callable[[int], nn.Module]
# With batch norm an image's gradient depends on the other images of the batch while training, and its logits do not in
# `eval`; with group norm nothing ever does. Batch norm learns in fewer steps.
NORMS: dict[str, Norm] = {
    "group": lambda channels: nn.GroupNorm(max(1, channels // GROUP), channels),
    "batch": nn.BatchNorm2d,
}


def convolution(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class ConvolutionBlock(nn.Module):
    """x + gate(f(x)), f being norm, ReLU, convolution, twice (He et al. 2016 b)."""

    def __init__(self, inputs: int, outputs: int, *, norm: Norm, stride: int = 1, gate: FeatureGate | None = None):
        super().__init__()
        self.norm_in, self.norm_between = norm(inputs), norm(outputs)
        self.first, self.second = convolution(inputs, outputs, stride=stride), convolution(outputs, outputs)
        nn.init.zeros_(self.second.weight)  # a block starts as the identity (Goyal et al. 2017, 5.1)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else convolution(inputs, outputs, kernel=1, stride=stride)
        self.gate = gate

    def forward(self, x: Maps) -> NewMaps:
        activated = torch.relu(self.norm_in(x))
        y = self.second(torch.relu(self.norm_between(self.first(activated))))
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        return shortcut + (y if self.gate is None else self.gate(y))


class ChannelCNN(nn.Module):
    """Three stages of residual blocks with a gate on each, the mean of every channel, logits.

    Without gates, and with the norm of a batch, a wide residual network (Zagoruyko & Komodakis 2016).

    Args:
        channels: of an image: 3 for colours, 1 for grey.
        classes: how many there are.
        width: channels of the first stage; the last has four times as many.
        blocks: in each stage.
        attention: channel (squeeze-and-excitation), spatial (CBAM's) or none.
        norm: group or batch.
    """

    def __init__(
        self,
        channels: int = 3,
        *,
        classes: int,
        width: int = 64,
        blocks: int = 2,
        attention: str = "channel",
        norm: str = "group",
    ):
        super().__init__()
        if attention not in GATES:
            raise ValueError(f"attention is one of {', '.join(GATES)}, not {attention!r}")
        if norm not in NORMS:
            raise ValueError(f"norm is one of {', '.join(NORMS)}, not {norm!r}")
        if min(channels, classes, width, blocks) < 1:
            raise ValueError(
                f"channels = {channels}, classes = {classes}, width = {width}, blocks = {blocks}: each is at least 1"
            )
        if width > GROUP and width % GROUP:
            raise ValueError(f"width = {width} cannot be cut into groups of {GROUP} channels; choose a multiple")
        axis = "places" if attention == "spatial" else "channels"
        self.attention_sites: AttentionSites = {"stages.*-*.gate": SiteName("stage.*.*", "pooled", axis)}
        make_gate, widths = GATES[attention], [width, *(width * 2**stage for stage in range(STAGES))]
        self.channels, self.first = channels, convolution(channels, width)
        self.stages = nn.ModuleDict()
        for stage, (inputs, outputs) in enumerate(pairwise(widths)):
            for n in range(blocks):
                self.stages[f"{stage}-{n}"] = ConvolutionBlock(
                    outputs if n else inputs,
                    outputs,
                    norm=NORMS[norm],
                    stride=2 if stage and not n else 1,
                    gate=None if make_gate is None else make_gate(outputs),
                )
        # group norm leaves the means of the channels near each other: the second norm separates them again
        self.norm, self.vector_norm = NORMS[norm](widths[-1]), nn.LayerNorm(widths[-1])
        self.output = nn.Linear(widths[-1], classes)

    def forward(self, x: Pixels) -> Logits:
        # fast convolutions need channels last in memory, and the layers keep them so
        x = self.first(self.check_shape(x)).contiguous(memory_format=torch.channels_last)
        for block in self.stages.values():
            x = block(x)
        return self.output(self.vector_norm(reduce(torch.relu(self.norm(x)), "b c h w -> b c", "mean")))

    def check_shape(self, x: Pixels) -> Pixels:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(f"images are (batch, {self.channels} channels, rows, columns), not {tuple(x.shape)}")
        return x
