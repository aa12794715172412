"""The vectors of a text's words in, one vector for the text out, and how much each word weighs in it.

Static poolings weigh a word by what it is and where it stands; attention weighs it by its vector, which may know the
words around. A text without words gives 0.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, one_hot

from regard.attention import Additive, Full, NoPosition, Padding, Recipe, Softmax, attend, steps

X = Float[Tensor, "b t m"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
Weights = Float[Tensor, "b t"]
Vector = Float[Tensor, "b m"]


@dataclass(frozen=True, eq=False)
class Pooled:
    """The text's vector, each word's share in it, and log p of the word drawn where hard attention draws one."""

    vector: Vector
    weights: Weights
    log_probability: Float[Tensor, " b"] | None = None


def real(tokens: Tokens, lengths: Lengths) -> Bool[Tensor, "b t"]:
    """Which places hold a word; the rest is padding."""
    return torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]


class Pooling(nn.Module, ABC):
    """Abstract: `look` is the definition. Padding changes nothing, whatever stands there."""

    @abstractmethod
    def look(self, x: X, tokens: Tokens, lengths: Lengths) -> Pooled:
        """The vector and the weights; text b ends after lengths[b] words."""

    def forward(self, x: X, tokens: Tokens, lengths: Lengths) -> Vector:
        return self.look(x, tokens, lengths).vector


class Static(Pooling):
    """Abstract: Σ_t w_t x_t, the weights known before a single vector is: "static attention" (fourth lecture)."""

    @abstractmethod
    def weights(self, tokens: Tokens, lengths: Lengths) -> Weights:
        """One for each word, 0 on padding."""

    def look(self, x, tokens, lengths):
        weights = self.weights(tokens, lengths).to(x.dtype)
        return Pooled(einsum(weights, x, "b t, b t m -> b m"), weights)


class Mean(Static):
    """Every word weighs the same."""

    def weights(self, tokens, lengths):
        return real(tokens, lengths) / lengths.clamp(min=1)[:, None].double()


class Last(Static):
    """The last word alone: of a recurrent reader, the state after the whole text."""

    def weights(self, tokens, lengths):
        at = (lengths - 1).clamp(min=0)
        return (one_hot(at, tokens.shape[1]).bool() & real(tokens, lengths)).to(torch.get_default_dtype())


class TokenWeights(Static):
    """softmax over the text of a_w, one number for each word of the vocabulary, which the network learns.

    "We provide the network a weight matrix to update" (fourth lecture). All start equal: the mean.
    """

    def __init__(self, size: int):
        super().__init__()
        self.importance = nn.Parameter(torch.zeros(size))

    def weights(self, tokens, lengths):
        visible = real(tokens, lengths)
        scores = embedding(tokens.where(visible, 0), self.importance[:, None])[..., 0]
        return rearrange(Softmax().weigh(scores[:, None, None], visible[:, None, None]), "b 1 1 t -> b t")


class Max(Pooling):
    """The largest value of each feature. A word's weight is the share of the features that it gave."""

    def look(self, x, tokens, lengths):
        visible = real(tokens, lengths)[..., None]
        best, by = x.masked_fill(~visible, -torch.inf).max(1)
        some = lengths[:, None] > 0
        gave = (one_hot(by, x.shape[1]) * some[..., None]).to(x.dtype)
        return Pooled(torch.where(some, best, 0.0), gave.mean(1))


class Attention(Pooling):
    """One learned query asks all words (Yang et al. 2016); the recipe says how scores become weights.

    Soft or hard is a value: Recipe(normaliser=Hard(Sampled())) takes the best word, and draws one while training;
    the log-probability that `look` then gives is what `reinforce` wants. Hard(StraightThrough()) needs no reinforcing.

    Args:
        width: of the vectors.
        recipe: score and normaliser; `Recipe(score=Additive(width, hidden))` is Bahdanau's small network.
    """

    def __init__(self, width: int, *, recipe: Recipe = Recipe()):
        super().__init__()
        if recipe.pattern != Full() or recipe.position != NoPosition():
            raise ValueError(
                f"a learned query stands at no place, so {recipe.position} and {recipe.pattern} mean nothing to it; "
                "leave position and pattern out, or give them to the encoder's recipe"
            )
        if why := recipe.score.misfit(width, width):
            raise ValueError(why)
        self.recipe, self.learned = recipe, recipe.learned()
        self.query = nn.Parameter(torch.randn(width) * width**-0.5)

    @staticmethod
    def additive(width: int, hidden: int) -> "Attention":
        return Attention(width, recipe=Recipe(score=Additive(width, hidden)))

    def forward(self, x, tokens, lengths):
        return rearrange(attend(*self.asked(x), self.recipe_for(lengths)), "b 1 1 m -> b m")

    def look(self, x, tokens, lengths):
        seen = steps(*self.asked(x), self.recipe_for(lengths))
        drawn = seen.log_probability
        return Pooled(
            rearrange(seen.output, "b 1 1 m -> b m"),
            rearrange(seen.weights, "b 1 1 t -> b t"),
            None if drawn is None else rearrange(drawn, "b 1 1 -> b"),
        )

    def asked(self, x: X) -> tuple[Tensor, Tensor, Tensor]:
        q = repeat(self.query.to(x.dtype), "m -> b 1 1 m", b=len(x))
        k = rearrange(x, "b t m -> b 1 t m")
        return q, k, k

    def recipe_for(self, lengths: Lengths) -> Recipe:
        recipe = self.recipe.while_training() if self.training else self.recipe
        return replace(recipe, pattern=Padding(lengths))
