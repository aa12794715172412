"""Decoding constraints: which tokens may come next, and the mask over log-probabilities that enforces it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.decode.hypothesis import PartialHypothesis


@dataclass(frozen=True)
class Constraints:
    """Which tokens may come next. PAD and BOS never may.

    Args:
        banned: tokens that are never produced.
        min_length: how many tokens come before EOS may.
        allowed_next: from the tokens so far, all that may follow, EOS included where it may.
    """

    banned: frozenset[int] = frozenset()
    min_length: int = 0
    allowed_next: Callable[[tuple[int, ...]], Collection[int]] | None = None


def mask_disallowed(
    scores: Float[Tensor, "n v"], rows: Sequence[PartialHypothesis], constraints: Constraints
) -> Float[Tensor, "n v"]:
    """The log-probabilities unchanged where a token is allowed, and -∞ elsewhere."""
    if not scores.amax(-1).isfinite().all():
        raise ValueError(
            "the model's probabilities are not finite: its weights hold NaN or infinity; load another checkpoint"
        )
    banned = {PAD, BOS, *constraints.banned} | ({EOS} if len(rows[0].tokens) < constraints.min_length else set())
    vocabulary, device = scores.shape[-1], scores.device
    masked = scores.index_fill(-1, token_index(banned, vocabulary, device), -torch.inf)
    for n, row in enumerate(rows):
        if row.forced_token is not None:  # even a banned token
            only, values = token_index([row.forced_token], vocabulary, device), scores[n]
        elif constraints.allowed_next is not None:
            only, values = token_index(constraints.allowed_next(row.tokens), vocabulary, device), masked[n]
        else:
            continue
        masked[n] = torch.full_like(values, -torch.inf).index_copy(0, only, values[only])
    return masked


def token_index(tokens: Collection[int], vocabulary: int, device: torch.device) -> Int[Tensor, " tokens"]:
    """The tokens as an index tensor; all must be in the vocabulary."""
    if strange := [token for token in tokens if not 0 <= token < vocabulary]:
        raise ValueError(f"token {strange[0]} is not in the vocabulary of {vocabulary}")
    return torch.tensor(sorted(set(tokens)), dtype=torch.long, device=device)
