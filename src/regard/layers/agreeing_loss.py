"""States of two passes over the same words in; what the wanted words cost, and how far the passes disagree, out.

R-Drop (Liang et al. 2021): with p and q of the two passes, a = log p, b = log q, a word costs

    ½ (cost by p) + ½ (cost by q) + w ½ (KL(p ‖ q) + KL(q ‖ p)),        KL(p ‖ q) + KL(q ‖ p) = Σ (p − q)(a − b)

and its gradients by the scores of p, and likewise of q, are ½ (p − (1 − ε)[y] − ε/v) and

    w ½ (p_j ((a_j − b_j) − Σ p (a − b)) + p_j − q_j).

As in vocabulary_loss.py they are known as soon as the scores are, so a chunk of words is forgotten after its turn.
"""

from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function
from torch.nn.functional import linear, log_softmax

from regard.layers.vocabulary_loss import IGNORED, Given, Terms, added, budget_of, check, narrow_by_hand, scaled


def agreeing_loss(
    x: Float[Tensor, "two_n m"],
    table: Float[Tensor, "v m"],
    bias: Float[Tensor, " v"],
    wanted: Int[Tensor, " two_n"],
    *,
    weight: float,
    smoothing: float = 0.0,
    ignored: int = IGNORED,
    budget: int | None = None,
) -> Float[Tensor, ""]:
    """Summed over the words; the second half of the rows are the first half's words in another pass.

    Args:
        weight: w, how much agreeing counts.
        smoothing, ignored, budget: as in `vocabulary_loss`.
    """
    budget = budget_of(x, table) if budget is None else budget
    check(x, table, bias, wanted, smoothing, budget)
    if len(x) % 2:
        raise ValueError(f"{len(x)} states are not two passes over the same words; give each word's state twice")
    return Agreeing.apply(x, table, bias, wanted, Terms(smoothing, ignored, budget), weight)


class Agreeing(Function):
    """The sum of the costs; its gradients are made on the way there."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, table: Tensor, bias: Tensor, wanted: Tensor, terms: Terms, weight: float
    ) -> Tensor:
        given = Given.of(x, table, bias, wanted, terms)
        share = terms.smoothing / 2
        costs, dx = given.counts.new_empty(len(x)), torch.empty_like(x)
        dtable = dbias = None
        with narrow_by_hand(x):
            for first, second in halves(given):
                states, counts = (torch.cat((part[first], part[second])) for part in (given.x, given.counts))
                found, ds = differentiated(given, states, given.wanted[first], weight)
                dstates = given.dstates(ds, share)
                for rows, cost, part in zip((first, second), found.chunk(2), dstates.chunk(2), strict=True):
                    costs[rows], dx[rows] = cost, part
                dtable = added(dtable, ds.T, states, given.wide)
                total = (ds.T @ counts.to(ds.dtype)).to(given.wide)
                dbias = total if dbias is None else dbias.add_(total)
                del ds  # before the next chunk needs room
            assert dtable is not None
            assert dbias is not None
            if share:
                dtable -= share / len(table) * given.x.sum(0, dtype=given.wide)
                dbias -= share / len(table) * given.counts.sum()
        dx.masked_fill_(rearrange(given.counts == 0, "n -> n 1"), 0.0)
        ctx.save_for_backward(dx, dtable.to(table.dtype), dbias.to(bias.dtype))
        return given.counting(costs).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled():
            raise ValueError("create_graph=True asks for a second derivative, which this loss has not")
        return *(scaled(part, grad) for part in ctx.saved_tensors), None, None, None


def halves(given: Given) -> list[tuple[slice, slice]]:
    """The rows of each chunk's words in both passes."""
    half = len(given.x) // 2
    rows = max(1, (given.chunks[0].stop or 1) // 2)
    firsts = [slice(begin, min(begin + rows, half)) for begin in range(0, half, rows)]
    return [(first, slice(first.start + half, first.stop + half)) for first in firsts]


def differentiated(
    given: Given, states: Float[Tensor, "two_r m"], wanted: Int[Tensor, "r 1"], weight: float
) -> tuple[Float[Tensor, " two_r"], Float[Tensor, "two_r v"]]:
    """What these rows cost, a pair's disagreement with its first, and ∂/∂s of it, less what all words share."""
    scores = linear(states, given.table, given.bias)
    hit = 1 - given.terms.smoothing
    if scores.is_cuda and given.wide == torch.float32:
        from regard.layers.vocabulary_kernel import turn_pairs

        costs, picked = turn_pairs(scores, wanted, hit, weight)
        ds = scores
    else:
        log_p = log_softmax(scores, -1, dtype=given.wide)
        a, b = log_p.chunk(2)
        (p, q), apart = log_p.exp().chunk(2), a - b
        far_p, far_q = ((each * apart).sum(-1, keepdim=True) for each in (p, q))
        wide = torch.cat(
            (p + weight * (p * (apart - far_p) + p - q), q + weight * (q * (far_q - apart) + q - p)),
        )
        twice = repeat(wanted, "r 1 -> (two r) 1", two=2)
        ds = wide.scatter_add_(1, twice, torch.full_like(twice, -hit, dtype=wide.dtype)).mul_(0.5).to(scores.dtype)
        picked = scores.gather(1, twice)[:, 0].to(given.wide)
        costs = -log_p.gather(1, twice)[:, 0] / 2
        costs[: len(p)] += weight / 2 * (far_p - far_q)[:, 0]
    if given.terms.smoothing:
        mean = states.to(given.wide) @ given.mean_word + given.mean_bias
        costs = costs + given.terms.smoothing / 2 * (picked - mean)
    return costs, ds
