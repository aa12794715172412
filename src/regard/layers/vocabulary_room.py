"""Room for the scores of a chunk of rows, where one chunk after the other is computed.

To a CPU, memory that is new each time costs more than the softmax that is written to it: every page of it is fetched
from the system, filled with zeros, and given back.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Room:
    """Scores in the precision of products, and wide."""

    scores: Float[Tensor, "r v"]
    wide: Float[Tensor, "r v"]  # the same place, if products are that wide

    @staticmethod
    def of(rows: int, table: Float[Tensor, "v m"], wide: torch.dtype) -> "Room":
        scores = table.new_empty(rows, len(table))
        return Room(scores, scores if wide == scores.dtype else torch.empty_like(scores, dtype=wide))

    def filled(
        self, x: Float[Tensor, "r m"], table: Float[Tensor, "v m"], bias: Float[Tensor, " v"]
    ) -> tuple[Float[Tensor, "r v"], Float[Tensor, "r v"]]:
        """The scores of these rows, also wide; changing the one may change the other."""
        scores, wide = self.scores[: len(x)], self.wide[: len(x)]
        torch.addmm(bias, x, table.T, out=scores)
        return scores, scores if wide.dtype == scores.dtype else wide.copy_(scores)
