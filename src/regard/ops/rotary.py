"""Rotary positions on a GPU: one pass over queries or keys; and how the frequencies of their pairs may be scaled.

    (x₁, x₂) → magnitude · (x₁ cos a − x₂ sin a, x₁ sin a + x₂ cos a),    a = position × frequency

for each pair of features. Of a head only the first features, two for each frequency, are turned; the others stay. The
gradient is turned back. The plain torch form is that of `Rotary` in attention/position.py.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops import dispatch

Pairs = Literal["adjacent", "halves"]  # of features: two side by side, or one from each half


class FrequencyScaling(ABC):
    """Abstract: other rotations than those of the training, for longer texts; see `position_variants`.

    Examples:
        >>> class Halved(FrequencyScaling):  # every pair turns half as fast
        ...     def scale(self, frequency):
        ...         return frequency / 2
        >>> Rotary(scaling=Halved()).rotate(torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([2]))  # by 1 radian
        tensor([[[[0.5403, 0.8415]]]])
    """

    @abstractmethod
    def scale(self, frequency: Tensor) -> Tensor:
        """Angles per token of all pairs, scaled."""

    @property
    def magnitude(self) -> float:
        """By which rotated queries and keys are multiplied."""
        return 1.0


def use_fused(x: Tensor) -> bool:
    """Tokens whose features lie side by side; a compiler fuses the plain form by itself."""
    return dispatch.use_fused(x) and x.numel() > 0 and x.stride(3) == 1 and not torch.compiler.is_compiling()


def rotate_fused(
    x: Float[Tensor, "b h t d"],
    positions: Int[Tensor, "*b t"],
    frequency: Float[Tensor, " pairs"],
    *,
    pairs: Pairs,
    magnitude: float = 1.0,
) -> Float[Tensor, "b h t d"]:
    """Each token's pairs turned by its position; angles are float64, as `frequency` is."""
    from regard.ops.rotary_triton import RotaryFunction  # only here is Triton needed

    return RotaryFunction.apply(x, positions, frequency, pairs == "adjacent", magnitude)  # type: ignore[return-value]
