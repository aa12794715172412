"""The log-probabilities of all tokens in; those of the tokens that may come next out."""

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.decode.limits import Allowed
from regard.decode.request import Row
from regard.text.vocabulary import BOS, EOS, PAD


def permitted(scores: Float[Tensor, "n v"], rows: Sequence[Row], allowed: Allowed) -> Float[Tensor, "n v"]:
    """The log-probabilities of what may come next, untouched, and -∞ for all that may not."""
    if not scores.amax(-1).isfinite().all():
        raise ValueError("the model gives probabilities that are not numbers: its weights are broken (nan or infinite)")
    never = {PAD, BOS, *allowed.never} | ({EOS} if len(rows[0].written) < allowed.shortest else set())
    open_ = scores.index_fill(-1, known(never, scores), -torch.inf)
    for n, row in enumerate(rows):
        if row.forced is not None:  # even a token that may never come otherwise
            only, values = known([row.forced], scores), scores[n]
        elif allowed.rule is not None:
            only, values = known(allowed.rule(row.written), scores), open_[n]
        else:
            continue
        open_[n] = torch.full_like(values, -torch.inf).index_copy(0, only, values[only])
    return open_


def known(tokens: Collection[int], scores: Float[Tensor, "n v"]) -> Tensor:
    """The tokens as an index, all of them in the vocabulary."""
    if strange := [token for token in tokens if not 0 <= token < scores.shape[-1]]:
        raise ValueError(f"token {strange[0]} is not in the vocabulary of {scores.shape[-1]}")
    return torch.tensor(sorted(set(tokens)), dtype=torch.long, device=scores.device)
