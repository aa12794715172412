"""Packed batches: several texts in each row, without padding between them."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

NO_SEGMENT = 0  # the segment of what fills up a row


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Tokens of several texts in each row.

    Args:
        tokens: their ids, text after text.
        segment_ids: to which text of its row each token belongs, counted from 1; NO_SEGMENT for what fills up the row.
        position_ids: its place in that text, counted from 0.
    """

    tokens: Int[Tensor, "n t"]
    segment_ids: Int[Tensor, "n t"]
    position_ids: Int[Tensor, "n t"]

    def to(self, device: torch.device | str) -> "PackedBatch":
        parts = (self.tokens, self.segment_ids, self.position_ids)
        return PackedBatch(*(part.to(device, non_blocking=True) for part in parts))
