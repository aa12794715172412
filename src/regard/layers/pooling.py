"""Pooling: the vectors of a text's tokens to one vector, with the weight of each token in it.

Static poolings weigh a token by its id and its position; attention weighs it by its vector, which may depend on the
context. An empty text gives 0.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, one_hot

from regard.attention import Additive, AttentionCore, Full, NoPosition, Padding, Recipe, Softmax, steps

X = Float[Tensor, "b t m"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
Weights = Float[Tensor, "b t"]
Vector = Float[Tensor, "b m"]


@dataclass(frozen=True, eq=False)
class Pooled:
    """The text's vector, the weight of each token, and log p of the token that hard attention sampled, if it did."""

    vector: Vector
    weights: Weights
    log_probability: Float[Tensor, " b"] | None = None


def token_mask(tokens: Tokens, lengths: Lengths) -> Bool[Tensor, "b t"]:
    """Which positions hold a token; the rest is padding."""
    return torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]


class Pooling(nn.Module, ABC):
    """Abstract: `look` is the definition. Padding changes nothing, whatever it holds."""

    @abstractmethod
    def look(self, x: X, tokens: Tokens, lengths: Lengths) -> Pooled:
        """The vector and the weights; text b ends after lengths[b] tokens."""

    def forward(self, x: X, tokens: Tokens, lengths: Lengths) -> Vector:
        return self.look(x, tokens, lengths).vector


class StaticPooling(Pooling):
    """Abstract: Σ_t w_t x_t, with weights that do not depend on the vectors: "static attention" (fourth lecture)."""

    @abstractmethod
    def weights(self, tokens: Tokens, lengths: Lengths) -> Weights:
        """One for each token, 0 on padding."""

    def look(self, x, tokens, lengths):
        weights = self.weights(tokens, lengths).to(x.dtype)
        return Pooled(einsum(weights, x, "b t, b t m -> b m"), weights)


class MeanPooling(StaticPooling):
    """Every token has the same weight."""

    def weights(self, tokens, lengths):
        return token_mask(tokens, lengths) / lengths.clamp(min=1)[:, None].double()


class LastPooling(StaticPooling):
    """The last token alone: of a recurrent encoder, the state after the whole text."""

    def weights(self, tokens, lengths):
        at = (lengths - 1).clamp(min=0)
        return (one_hot(at, tokens.shape[1]).bool() & token_mask(tokens, lengths)).to(torch.get_default_dtype())


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

    def look(self, x, tokens, lengths):
        visible = token_mask(tokens, lengths)[..., None]
        best, by = x.masked_fill(~visible, -torch.inf).max(1)
        some = lengths[:, None] > 0
        chosen = (one_hot(by, x.shape[1]) * some[..., None]).to(x.dtype)
        return Pooled(torch.where(some, best, 0.0), chosen.mean(1))


class AttentionPooling(Pooling):
    """One learned query attends to all tokens (Yang et al. 2016); the recipe says how scores become weights.

    Soft or hard is a value: Recipe(normaliser=Hard(Sampled())) takes the best token, and samples one while training;
    the log-probability that `look` then returns is what `reinforce` needs. Hard(StraightThrough()) needs no REINFORCE.

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

    def look(self, x, tokens, lengths):
        computed = steps(*self.query_keys_values(x), self.effective_recipe(lengths))
        drawn = computed.log_probability
        return Pooled(
            rearrange(computed.output, "b 1 1 m -> b m"),
            rearrange(computed.weights, "b 1 1 t -> b t"),
            None if drawn is None else rearrange(drawn, "b 1 1 -> b"),
        )

    def query_keys_values(self, x: X) -> tuple[Tensor, Tensor, Tensor]:
        q = repeat(self.query.to(x.dtype), "m -> b 1 1 m", b=len(x))
        k = rearrange(x, "b t m -> b 1 t m")
        return q, k, k

    def effective_recipe(self, lengths: Lengths) -> Recipe:
        recipe = self.recipe.for_training() if self.training else self.recipe
        return replace(recipe, pattern=Padding(lengths))
