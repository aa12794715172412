"""R-Drop loss: the cross-entropy of two passes over the same tokens, and the divergence between the two.

With p and q of the two passes, a = log p, b = log q, the loss of a token (Liang et al. 2021) is

    ½ (loss by p) + ½ (loss by q) + w ½ (KL(p ‖ q) + KL(q ‖ p)),        KL(p ‖ q) + KL(q ‖ p) = Σ (p − q)(a − b)

and its gradients by the scores of p, and likewise of q, are ½ (p − (1 − ε)[y] − ε/v) and

    w ½ (p_j ((a_j − b_j) − Σ p (a − b)) + p_j − q_j).

As in linear_cross_entropy.py they are known as soon as the scores are, so a chunk's scores are discarded at once.
"""

from typing import Any

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function
from torch.nn.functional import linear, log_softmax

from regard.ops.dispatch import no_autocast
from regard.ops.linear_cross_entropy import (
    IGNORED,
    LossInputs,
    LossOptions,
    add_product,
    check_shapes,
    default_budget,
    scale_by,
)


def rdrop_loss(
    x: Float[Tensor, "two_n m"],
    table: Float[Tensor, "v m"],
    bias: Float[Tensor, " v"],
    targets: Int[Tensor, " two_n"],
    *,
    weight: float,
    smoothing: float = 0.0,
    ignore_index: int = IGNORED,
    budget: int | None = None,
) -> Float[Tensor, ""]:
    """Summed over the tokens; the second half of the rows are the first half's tokens in another pass.

    Args:
        weight: w, of the divergence.
        smoothing, ignore_index, budget: as in `linear_cross_entropy`.
    """
    budget = default_budget(x, table) if budget is None else budget
    check_shapes(x, table, bias, targets, smoothing, budget)
    if len(x) % 2:
        raise ValueError(f"{len(x)} states are not two passes over the same tokens; give each token's state twice")
    return RDropFunction.apply(x, table, bias, targets, LossOptions(smoothing, ignore_index, budget), weight)


class RDropFunction(Function):
    """The summed loss; its gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, table: Tensor, bias: Tensor, targets: Tensor, options: LossOptions, weight: float
    ) -> Tensor:
        inputs = LossInputs.of(x, table, bias, targets, options)
        smoothing = options.smoothing / 2
        losses, dx = inputs.row_mask.new_empty(len(x)), torch.empty_like(x)
        dtable = dbias = None
        with no_autocast(x):
            for first, second in paired_chunks(inputs):
                states, counts = (torch.cat((part[first], part[second])) for part in (inputs.x, inputs.row_mask))
                chunk_losses, ds = loss_and_gradient(inputs, states, inputs.targets[first], weight)
                dstates = inputs.grad_states(ds, smoothing)
                for rows, loss, part in zip((first, second), chunk_losses.chunk(2), dstates.chunk(2), strict=True):
                    losses[rows], dx[rows] = loss, part
                dtable = add_product(dtable, ds.T, states, inputs.wide)
                total = (ds.T @ counts.to(ds.dtype)).to(inputs.wide)
                dbias = total if dbias is None else dbias.add_(total)
                del ds  # before the next chunk needs memory
            assert dtable is not None
            if smoothing:
                dtable -= smoothing / len(table) * inputs.x.sum(0, dtype=inputs.wide)
        ctx.save_for_backward(*inputs.finish_gradients(dx, dtable, dbias, smoothing, (table.dtype, bias.dtype)))
        return inputs.zero_ignored(losses).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled():
            raise ValueError(
                "create_graph=True needs a second derivative, which this loss does not have; train without one"
            )
        return *(scale_by(part, grad) for part in ctx.saved_tensors), None, None, None


def paired_chunks(inputs: LossInputs) -> list[tuple[slice, slice]]:
    """The rows of each chunk's tokens in both passes."""
    half = len(inputs.x) // 2
    rows = max(1, (inputs.chunks[0].stop or 1) // 2)
    firsts = [slice(begin, min(begin + rows, half)) for begin in range(0, half, rows)]
    return [(first, slice(first.start + half, first.stop + half)) for first in firsts]


def loss_and_gradient(
    inputs: LossInputs, states: Float[Tensor, "two_r m"], targets: Int[Tensor, "r 1"], weight: float
) -> tuple[Float[Tensor, " two_r"], Float[Tensor, "two_r v"]]:
    """The loss of these rows, a pair's divergence in its first, and the gradient by the scores without the ε/v."""
    scores = linear(states, inputs.table, inputs.bias)
    hit = 1 - inputs.options.smoothing
    if scores.is_cuda and inputs.wide == torch.float32:
        from regard.ops.linear_triton import rdrop_rows

        losses, target_scores = rdrop_rows(scores, targets, hit, weight)
        ds = scores
    else:
        log_p = log_softmax(scores, -1, dtype=inputs.wide)
        a, b = log_p.chunk(2)
        (p, q), difference = log_p.exp().chunk(2), a - b
        kl_p, kl_q = ((each * difference).sum(-1, keepdim=True) for each in (p, q))
        wide = torch.cat(
            (p + weight * (p * (difference - kl_p) + p - q), q + weight * (q * (kl_q - difference) + q - p)),
        )
        both_targets = repeat(targets, "r 1 -> (two r) 1", two=2)
        ds = (
            wide.scatter_add_(1, both_targets, torch.full_like(both_targets, -hit, dtype=wide.dtype))
            .mul_(0.5)
            .to(scores.dtype)
        )
        target_scores = scores.gather(1, both_targets)[:, 0].to(inputs.wide)
        losses = -log_p.gather(1, both_targets)[:, 0] / 2
        losses[: len(p)] += weight / 2 * (kl_p - kl_q)[:, 0]
    if inputs.options.smoothing:
        mean = states.to(inputs.wide) @ inputs.mean_embedding + inputs.mean_bias
        losses = losses + inputs.options.smoothing / 2 * (target_scores - mean)
    return losses, ds
