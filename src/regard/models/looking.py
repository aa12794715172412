"""A recurrent decoder's question in, its context out: one head, any recipe, over the encoder's states."""

from dataclasses import dataclass, replace

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Additive, Full, Padding, Recipe, Score, Steps
from regard.layers.cells import Parts
from regard.models.seq2seq import Attending, Memory


@dataclass(frozen=True, eq=False)
class Annotations(Memory):
    """The encoder's state at every source word, as keys and as values, and the decoder's first state."""

    keys: Float[Tensor, "b 1 s key"]
    values: Float[Tensor, "b 1 s states"]
    lengths: Int[Tensor, " b"]
    first: Parts


@dataclass(frozen=True)
class Prepared(Score):
    """vᵀ tanh(W q + k), k being U h already: computed once for a sentence instead of once for every word."""

    score: Additive

    def misfit(self, d, c):
        return None

    def compare(self, q, k):
        pair = rearrange(self.score.W(q), "b h i m -> b h i 1 m") + rearrange(k, "b h j m -> b h 1 j m")
        return einsum(torch.tanh(pair), self.score.v, "b h i j m, m -> b h i j")


class Looking(nn.Module):
    """c_t = Σ_j α_tj h_j, the weights α by the recipe."""

    def __init__(self, recipe: Recipe):
        super().__init__()
        if recipe.beside:
            raise ValueError(
                f"{recipe.position} is added to embeddings, which this attention does not see; a recurrent "
                "encoder knows the order of its words: leave the position out"
            )
        self.recipe, self.learned = recipe, recipe.learned()

    @property
    def additive(self) -> Additive | None:
        """The score whose U h can be known beforehand; keys that are to be turned must come as they are."""
        return self.recipe.score if isinstance(self.recipe.score, Additive) and not self.recipe.inside else None

    def remember(self, states: Float[Tensor, "b s states"], lengths: Int[Tensor, " b"], first: Parts) -> Annotations:
        values = rearrange(states, "b s states -> b 1 s states")
        keys = additive.U(values).to(values.dtype) if (additive := self.additive) else values
        return Annotations(keys, values, lengths, first)

    def forward(
        self, q: Float[Tensor, "b t hidden"], at: int, memory: Annotations, attending: Attending
    ) -> tuple[Float[Tensor, "b t states"], Steps | None]:
        recipe = self.recipe.while_training() if self.training else self.recipe
        padding = Padding(memory.lengths)
        recipe = replace(recipe, pattern=padding if recipe.pattern == Full() else recipe.pattern & padding)
        if additive := self.additive:
            recipe = replace(recipe, score=Prepared(additive))
        query = rearrange(q, "b t hidden -> b 1 t hidden").to(memory.values.dtype)
        context, seen = attending(query, memory.keys, memory.values, recipe, at)
        return rearrange(context, "b 1 t states -> b t states"), seen
