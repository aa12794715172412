"""Bottlenecks: the vectors of a text's tokens to a latent of fixed size, k vectors of width m."""

from abc import ABC, abstractmethod

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, Padding
from regard.layers.pooling import Pooling

X = Float[Tensor, "b t width"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
Latent = Float[Tensor, "b k m"]
EntryWeights = Float[Tensor, "b h k t"]  # the weight of each token in each latent vector


class Bottleneck(nn.Module, ABC):
    """Abstract: all that a decoder knows of a text. Padding changes nothing, whatever it holds."""

    @abstractmethod
    def forward(self, x: X, tokens: Tokens, lengths: Lengths) -> Latent: ...

    @abstractmethod
    def look(self, x: X, tokens: Tokens, lengths: Lengths) -> tuple[Latent, EntryWeights]:
        """As `forward`, and the weight of each token in each vector."""


class PooledBottleneck(Bottleneck):
    """Without attention: z = b + W pool(x), one vector, cut into k of width m.

    Args:
        pooling: to one vector: LastPooling is the state after the whole text, MeanPooling the mean.
        width: of the tokens' vectors.
        latents, latent: k and m.
    """

    def __init__(self, pooling: Pooling, width: int, *, latents: int, latent: int):
        super().__init__()
        self.pooling, self.latents, self.squeeze = pooling, latents, nn.Linear(width, latents * latent)

    def forward(self, x, tokens, lengths):
        return self.look(x, tokens, lengths)[0]

    def look(self, x, tokens, lengths):
        pooled = self.pooling.look(x, tokens, lengths)
        latent = rearrange(self.squeeze(pooled.vector), "b (k m) -> b k m", k=self.latents)
        return latent, repeat(pooled.weights, "b t -> b 1 k t", k=self.latents)


class AttentionBottleneck(Bottleneck):
    """With attention: k learned queries attend to all tokens, and each output is a vector of width m.

    The queries are the same for every text.

    Args:
        width: of the tokens' vectors.
        latents, latent: k and m.
        heads: of each query; they share the width of the tokens' vectors.
    """

    def __init__(self, width: int, *, latents: int, latent: int, heads: int = 1):
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide vectors of width {width}; choose a divisor")
        self.queries = nn.Parameter(torch.randn(latents, latent))
        self.attention = MultiHeadAttention(latent, heads=heads, head=width // heads, memory=width)

    def forward(self, x, tokens, lengths):
        return self.attention(self.expand_queries(x), x, pattern=Padding(lengths))

    def look(self, x, tokens, lengths):
        latent, steps = self.attention.look(self.expand_queries(x), x, pattern=Padding(lengths))
        return latent, steps.weights

    def expand_queries(self, x: X) -> Latent:
        return repeat(self.queries, "k m -> b k m", b=len(x))
