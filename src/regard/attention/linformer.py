"""Linformer: projects n keys and values to `rank` mixtures, so that attention costs n × rank (Wang et al. 2020)."""

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.batch_patterns import Padding
from regard.attention.pattern import Full, Pattern
from regard.attention.recipe import Recipe
from regard.attention.text_positions import Segments


@dataclass(eq=False)
class Linformer(nn.Module):
    """head = softmax(q (E k)ᵀ / √d) (F v)  (eq. 7). E and F are shared by all heads, or one for each of `heads`.

    Every mixed key holds something of every token, so which token a query attends to is lost: patterns are
    out, and padding is taken out of the mixture before it is made. A shorter sequence uses the first columns of E, F.

    Examples:
        >>> layer = MultiHeadAttention(8, heads=2, compress=Linformer(max_length=64, rank=4))
        >>> output, seen = layer.look(torch.randn(1, 50, 8))
        >>> output.shape, seen.weights.shape  # 50 × 4 weights instead of 50 × 50
        (torch.Size([1, 50, 8]), torch.Size([1, 2, 50, 4]))
    """

    max_length: int
    rank: int
    heads: int = 1

    def __post_init__(self):
        super().__init__()
        self.E, self.F = (
            nn.Parameter(torch.randn(self.heads, self.rank, self.max_length) * self.rank**-0.5) for _ in range(2)
        )

    def check_recipe(self, recipe: Recipe) -> None:
        """Nothing that depends on where a key stands can be applied to mixtures."""
        if recipe.pattern != Full():
            raise ValueError(f"{self} mixes all keys, so {recipe.pattern} cannot be applied any more; use Full()")
        if recipe.query_key_positions or recipe.score_positions:
            raise ValueError(
                f"{self} mixes all keys, so they have no position any more; {recipe.position} cannot be used"
            )

    def mix(self, k: Tensor, v: Tensor, pattern: Pattern | None, segments: Segments | None) -> tuple[Tensor, Tensor]:
        """The mixtures of one text's keys and values, without those of padding."""
        if segments is not None:
            raise ValueError(f"{self} mixes all keys of a row, and so those of several texts; do not pack")
        if isinstance(pattern, Padding):
            kept = torch.arange(k.shape[2], device=k.device) < pattern.lengths[:, None]
            k, v = (y.masked_fill(~kept[:, None, :, None], 0.0) for y in (k, v))
        elif pattern is not None:
            raise ValueError(f"{self} mixes all keys; of patterns it understands Padding alone, not {pattern}")
        return self(k, v)

    def forward(
        self, k: Float[Tensor, "b g j d"], v: Float[Tensor, "b g j e"]
    ) -> tuple[Float[Tensor, "b g r d"], Float[Tensor, "b g r e"]]:
        tokens = k.shape[2]
        if tokens > self.max_length:
            raise ValueError(f"{self} mixes at most {self.max_length} tokens, not {tokens}: raise `max_length`")
        if self.heads not in (1, k.shape[1]):
            raise ValueError(f"{self} has mixtures for {self.heads} heads, but there are {k.shape[1]} key heads")
        E, F = (weight[:, :, :tokens].expand(k.shape[1], -1, -1) for weight in (self.E, self.F))
        return einsum(E, k, "g r j, b g j d -> b g r d"), einsum(F, v, "g r j, b g j e -> b g r e")
