"""Bottlenecks: the vectors of a text's tokens to a latent of fixed size, k vectors of width m."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import AttentionSites, MultiHeadAttention, Padding, SiteName
from regard.layers.pooling import Pooling

X = Float[Tensor, "b t width"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
Latent = Float[Tensor, "b k m"]


class Bottleneck(nn.Module, ABC):
    """Abstract: all that a decoder knows of a text. Padding changes nothing, whatever it holds."""

    @abstractmethod
    def forward(self, x: X, tokens: Tokens, lengths: Lengths) -> Latent: ...


class PooledBottleneck(Bottleneck):
    """Without attention: z = b + W pool(x), one vector, cut into k of width m.

    Args:
        pooling: to one vector: LastPooling is the state after the whole text, MeanPooling the mean.
        width: of the tokens' vectors.
        latents, latent: k and m.
    """

    attention_sites: ClassVar[AttentionSites] = {"pooling": SiteName("", "pooled", "source")}

    def __init__(self, pooling: Pooling, width: int, *, latents: int, latent: int):
        super().__init__()
        self.pooling, self.latents, self.squeeze = pooling, latents, nn.Linear(width, latents * latent)

    def forward(self, x, tokens, lengths):
        return rearrange(self.squeeze(self.pooling(x, tokens, lengths)), "b (k m) -> b k m", k=self.latents)


class AttentionBottleneck(Bottleneck):
    """With attention: k learned queries attend to all tokens, and each output is a vector of width m.

    The queries are the same for every text.

    Args:
        width: of the tokens' vectors.
        latents, latent: k and m.
        heads: of each query; they share the width of the tokens' vectors.
    """

    attention_sites: ClassVar[AttentionSites] = {"attention": SiteName("", "latents", "source")}

    def __init__(self, width: int, *, latents: int, latent: int, heads: int = 1):
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide vectors of width {width}; choose a divisor")
        self.queries = nn.Parameter(torch.randn(latents, latent))
        self.attention = MultiHeadAttention(latent, heads=heads, head=width // heads, memory=width)

    def forward(self, x, tokens, lengths):
        return self.attention(repeat(self.queries, "k m -> b k m", b=len(x)), x, pattern=Padding(lengths))
