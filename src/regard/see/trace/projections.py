"""Projections: the inputs and the W of one head's queries, keys and values."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import MultiHeadAttention


@dataclass(frozen=True, eq=False)
class HeadProjection:
    """One head's q, k or v before any rotation: x W + b."""

    x: Float[Tensor, "b t m"]
    weight: Float[Tensor, "m d"]
    bias: Float[Tensor, " d"] | None


@dataclass(frozen=True, eq=False)
class Projections:
    """The vectors of queries and of keys, and the matrices of all heads."""

    x: Float[Tensor, "b i m"]
    memory: Float[Tensor, "b j w"]
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear

    @staticmethod
    def of(layer: MultiHeadAttention, x: Tensor, memory: Tensor | None) -> "Projections | None":
        """None where keys are mixtures of several tokens, or nothing is projected."""
        query, key, value = layer.query, layer.key, layer.value
        if layer.compress is not None or not isinstance(query, nn.Linear):
            return None
        assert isinstance(key, nn.Linear)
        assert isinstance(value, nn.Linear)
        return Projections(x, x if memory is None else memory, query, key, value)

    def head_projection(self, part: str, number: int, width: int) -> HeadProjection:
        """The query of a head, or the key or the value of a group: q, k or v."""
        layer = {"q": self.query, "k": self.key, "v": self.value}[part]
        some = slice(number * width, (number + 1) * width)
        bias = None if layer.bias is None else layer.bias.detach()[some]
        return HeadProjection(self.x if part == "q" else self.memory, layer.weight.detach()[some].T, bias)
