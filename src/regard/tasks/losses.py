"""Shared losses: float32 logits, and the symmetric KL divergence of R-Drop."""

import torch
from jaxtyping import Float
from torch import Tensor


def to_float32(logits: Tensor) -> Tensor:
    """At least float32: a softmax over a vocabulary needs it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def symmetric_kl(logits: Float[Tensor, "two_b *places v"]) -> Float[Tensor, "b *places"]:
    """How far two passes under different dropout disagree, the first half of the batch against the second.

    KL(p ‖ q) + KL(q ‖ p) = Σ (p − q)(log p − log q), at every place (R-Drop, Liang et al. 2021).
    """
    p, q = logits.log_softmax(-1).chunk(2)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1)
