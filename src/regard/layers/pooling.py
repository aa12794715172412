"""Pooling: the vectors of a text's tokens to one vector, and bottlenecks: to a latent, k vectors of width m.

Static poolings weigh a token by its id and its position; attention weighs it by its vector, which may depend on the
context. An empty text gives 0.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, one_hot

from regard.attention import (
    Additive,
    AttentionCore,
    AttentionSites,
    Full,
    GateCore,
    LayerOptions,
    MultiHeadAttention,
    NoPosition,
    Padding,
    Recipe,
    SiteName,
    Softmax,
)
from regard.attention.core import is_hooked

X = Float[Tensor, "b t m"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
Weights = Float[Tensor, "b t"]
Vector = Float[Tensor, "b m"]


def token_mask(tokens: Tokens, lengths: Lengths) -> Bool[Tensor, "b t"]:
    """Which positions hold a token; the rest is padding."""
    return torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]


class Pooling(nn.Module, ABC):
    """Abstract: the one vector of a text. Padding changes nothing, whatever it holds.

    The weight of each token passes a core, where it can be recorded: see `regard.attention.record_attention`.
    """

    attention_sites: ClassVar[AttentionSites] = {"": SiteName("", "pooled", "text")}

    @abstractmethod
    def forward(self, x: X, tokens: Tokens, lengths: Lengths) -> Vector:
        """Text b ends after lengths[b] tokens."""


class StaticPooling(Pooling):
    """Abstract: Σ_t w_t x_t, with weights that do not depend on the vectors: "static attention" (fourth lecture)."""

    def __init__(self):
        super().__init__()
        self.core = GateCore("known before any vector is")

    @abstractmethod
    def weights(self, tokens: Tokens, lengths: Lengths) -> Weights:
        """One for each token, 0 on padding."""

    def forward(self, x, tokens, lengths):
        return einsum(self.core(self.weights(tokens, lengths).to(x.dtype)), x, "b t, b t m -> b m")


class MeanPooling(StaticPooling):
    """Every token has the same weight."""

    def weights(self, tokens, lengths):
        return token_mask(tokens, lengths) / lengths.clamp(min=1)[:, None].double()


class LastPooling(StaticPooling):
    """The last token alone: of a recurrent encoder, the state after the whole text."""

    def weights(self, tokens, lengths):
        at = (lengths - 1).clamp(min=0)
        return (one_hot(at, tokens.shape[1]).bool() & token_mask(tokens, lengths)).to(torch.get_default_dtype())


class ClassTokenPooling(StaticPooling):
    """tanh(W x + b) of the first token's vector: BERT's pooler, whose texts begin with [CLS] (Devlin et al. 2019)."""

    def __init__(self, width: int):
        super().__init__()
        self.dense = nn.Linear(width, width)

    def weights(self, tokens, lengths):
        first = torch.arange(tokens.shape[1], device=tokens.device) == 0
        return (first & token_mask(tokens, lengths)).to(torch.get_default_dtype())

    def forward(self, x, tokens, lengths):
        return torch.tanh(self.dense(super().forward(x, tokens, lengths)))


class TokenWeightPooling(StaticPooling):
    """softmax over the text of a_w, one learned number for each token of the vocabulary.

    "We provide the network a weight matrix to update" (fourth lecture). All start equal: the mean.
    """

    def __init__(self, size: int):
        super().__init__()
        self.importance = nn.Parameter(torch.zeros(size))

    def weights(self, tokens, lengths):
        visible = token_mask(tokens, lengths)
        scores = embedding(tokens.where(visible, 0), self.importance[:, None])[..., 0]
        return rearrange(Softmax().weigh(scores[:, None, None], visible[:, None, None]), "b 1 1 t -> b t")


class MaxPooling(Pooling):
    """The largest value of each feature. A token's weight is the share of the features that are its own."""

    def __init__(self):
        super().__init__()
        self.core = GateCore("the share of the features that each word gave")

    def forward(self, x, tokens, lengths):
        visible = token_mask(tokens, lengths)[..., None]
        best, by = x.masked_fill(~visible, -torch.inf).max(1)
        some = lengths[:, None] > 0
        if is_hooked(self.core):
            share = (one_hot(by, x.shape[1]) * some[..., None]).to(x.dtype).mean(1)
            if self.core(share) is not share:
                raise ValueError("pooling takes the largest of each feature, and no weight of it can be switched off")
        return torch.where(some, best, 0.0)


class AttentionPooling(Pooling):
    """One learned query attends to all tokens (Yang et al. 2016); the recipe says how scores become weights.

    Soft or hard is a value: Recipe(normaliser=Hard(Sampled())) takes the best token, and samples one while training;
    its log-probability, which `record_steps` keeps, is what `reinforce` needs. Hard(StraightThrough()) needs no
    REINFORCE.

    Args:
        width: of the vectors.
        recipe: score and normaliser; `Recipe(score=Additive(width, hidden))` is Bahdanau's small network.
    """

    def __init__(self, width: int, *, recipe: Recipe = Recipe()):
        super().__init__()
        if recipe.pattern != Full() or recipe.position != NoPosition():
            raise ValueError(
                f"a learned query has no position, so {recipe.position} and {recipe.pattern} do not apply to it; "
                "leave position and pattern out, or give them to the encoder's recipe"
            )
        if why := recipe.score.shape_error(width, width):
            raise ValueError(why)
        self.recipe, self.learned, self.core = recipe, recipe.learned(), AttentionCore()
        self.query = nn.Parameter(torch.randn(width) * width**-0.5)

    @staticmethod
    def additive(width: int, hidden: int) -> "AttentionPooling":
        return AttentionPooling(width, recipe=Recipe(score=Additive(width, hidden)))

    def forward(self, x, tokens, lengths):
        return rearrange(self.core(*self.query_keys_values(x), self.effective_recipe(lengths)), "b 1 1 m -> b m")

    def query_keys_values(self, x: X) -> tuple[Tensor, Tensor, Tensor]:
        q = repeat(self.query.to(x.dtype), "m -> b 1 1 m", b=len(x))
        k = rearrange(x, "b t m -> b 1 t m")
        return q, k, k

    def effective_recipe(self, lengths: Lengths) -> Recipe:
        recipe = self.recipe.for_training() if self.training else self.recipe
        return replace(recipe, pattern=Padding(lengths))


# --- bottlenecks ---

States = Float[Tensor, "b t width"]
Latent = Float[Tensor, "b k m"]


class Bottleneck(nn.Module, ABC):
    """Abstract: all that a decoder knows of a text. Padding changes nothing, whatever it holds."""

    @abstractmethod
    def forward(self, x: States, tokens: Tokens, lengths: Lengths) -> Latent: ...


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
        self.attention = MultiHeadAttention(
            latent, heads=heads, head=width // heads, options=LayerOptions(memory=width)
        )

    def forward(self, x, tokens, lengths):
        return self.attention(repeat(self.queries, "k m -> b k m", b=len(x)), x, pattern=Padding(lengths))
