"""Scores to the best few, in an order that is always the same."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def best(scores: Float[Tensor, "n v"], count: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """The `count` best of every row and their ids, best first; of equals the lower id first."""
    count = min(count, scores.shape[-1])
    if count == scores.shape[-1]:
        return torch.sort(scores, dim=-1, descending=True, stable=True)
    values, ids = scores.topk(count, -1)
    # topk orders equals as it likes. Inside the list two stable sorts repair that; at its border, where some equals
    # are in and others out, the whole row has to be sorted. Both are rare, and the second is dear.
    ids, order = ids.sort(-1)
    values, again = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    ids, last = ids.gather(-1, again), values[:, -1:]
    torn = ((scores >= last).sum(-1) > count) & (last[:, 0] > -torch.inf)
    if torn.any():
        sorted_values, sorted_ids = torch.sort(scores[torn], dim=-1, descending=True, stable=True)
        values[torn], ids[torn] = sorted_values[:, :count], sorted_ids[:, :count]
    return values, ids
