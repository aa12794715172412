"""Log-probabilities to a drawn token: temperature, top-k, nucleus."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.limits import Longest
from regard.decode.ranking import best
from regard.decode.request import Row
from regard.decode.walk import Walker


@dataclass(frozen=True)
class Sample(Walker):
    """Each token drawn from the model's distribution, sharpened and cut; `draws` translations of every sentence.

    Args:
        temperature: below 1 sharpens the distribution, above 1 flattens it.
        top_k: only so many of the most probable tokens are kept.
        top_p: of those, the fewest that together reach this probability (Holtzman et al. 2020).
        seed: the same seed gives the same draws for a sentence, whatever it is batched with.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    draws: int = 1
    longest: Longest = Longest()

    def __post_init__(self):
        if not self.temperature >= 1e-6:
            raise ValueError(f"a temperature is positive, not {self.temperature}; for the best token alone use Greedy")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} keeps no token: at least 1, or None for all of them")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is no probability above 0 and up to 1; 1 keeps every token")
        if self.seed < 0 or self.draws < 1:
            raise ValueError(f"seed {self.seed} must not be negative, and draws {self.draws} at least 1")

    @property
    def width(self) -> int:
        return self.draws

    def choose(self, scores: Float[Tensor, "n v"], rows: Sequence[Row]) -> Int[Tensor, " n"]:
        probabilities, tokens = self.kept(scores)
        at = draw(probabilities, [self.uniform(row) for row in rows])
        return tokens.gather(-1, rearrange(at, "n -> n 1"))[:, 0]

    def kept(self, scores: Float[Tensor, "n v"]) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
        """The probabilities to draw from and their tokens; what is cut off has 0. They need not add up to 1."""
        if self.top_k is None and self.top_p == 1:  # nothing is cut, so nothing need be sorted, which is dear
            tokens = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
            return self.sharpened(scores), tokens
        values, tokens = best(scores, scores.shape[-1] if self.top_k is None else self.top_k)
        probabilities = self.sharpened(values)
        if self.top_p == 1:  # rounding may carry the sum to 1 before the last token
            return probabilities, tokens
        before = probabilities.cumsum(-1) - probabilities  # the token that crosses p has less than p before it
        return torch.where(before < self.top_p, probabilities, 0.0), tokens

    def sharpened(self, scores: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """softmax(scores / temperature); all 0 where nothing may come."""
        return torch.where(scores > -torch.inf, (scores / self.temperature).softmax(-1), 0.0)

    def uniform(self, row: Row) -> float:
        """A number in [0, 1) that belongs to this sentence, draw and place alone."""
        return float(np.random.default_rng([self.seed, row.request.index, row.draw, len(row.written)]).random())


def draw(probabilities: Float[Tensor, "n k"], uniform: Sequence[float]) -> Int[Tensor, " n"]:
    """Where the running sum of the probabilities, as large as they are together, passes the number drawn."""
    reached = probabilities.cumsum(-1)
    total = reached[:, -1]
    number = torch.tensor(uniform, dtype=reached.dtype, device=reached.device) * total
    # rounding may carry the number up to the sum itself, which nothing passes
    number = number.minimum(total.nextafter(torch.zeros_like(total)))
    return (reached <= rearrange(number, "n -> n 1")).sum(-1).clamp_max(probabilities.shape[-1] - 1)
