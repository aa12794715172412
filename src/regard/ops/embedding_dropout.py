"""Fused embedding with dropout: dropout(√width · table[token] + positions[position]) of the tokens of two sides.

Each result is returned twice, as in `dropout_add_layernorm`: for the first sub-layer, and for the residual path around
it. On a GPU by the kernels of `dropout_triton`, elsewhere by the same steps in plain torch, with the same
dropout mask.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function

from regard.ops.dispatch import widen
from regard.ops.dropout import check_index_range, hashed_dropout
from regard.ops.dropout_add_layernorm import DropoutNoise

EmbeddedSides = tuple[Tensor, Tensor, Tensor, Tensor]  # the first side's states, twice, and the second's


def embedding_dropout(
    table: Float[Tensor, "v width"],
    tokens: tuple[Int[Tensor, "n s"], Int[Tensor, "n t"]],
    positions: Float[Tensor, "longest width"],
    position_ids: tuple[Int[Tensor, "n s"], Int[Tensor, "n t"]],
    noise: DropoutNoise,
) -> EmbeddedSides:
    """Both sides by one table, whose gradient is dense, however few the tokens. Positions are not learned."""
    assert not positions.requires_grad
    both = (torch.cat([part.flatten() for part in parts]) for parts in (tokens, position_ids))
    return EmbeddingDropoutFunction.apply(table, *both, positions, noise, *(part.shape for part in tokens))


class EmbeddingDropoutFunction(Function):
    """In terms of two custom ops, which compilers and CUDA graphs take as they are."""

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        tokens: Tensor,
        position_ids: Tensor,
        positions: Tensor,
        noise: DropoutNoise,
        *shapes: torch.Size,
    ) -> EmbeddedSides:
        if noise.p:
            check_index_range(table.new_empty((len(tokens), table.shape[1]), device="meta"))
        both = embedding_dropout_op(table, tokens, position_ids, positions, noise.seed, noise.p)
        ctx.save_for_backward(tokens, noise.seed)
        ctx.p, ctx.size = noise.p, len(table)
        one, other = (
            part.view(*shape, -1) for part, shape in zip(both.split([s.numel() for s in shapes]), shapes, strict=True)
        )
        return one, one.view_as(one), other, other.view_as(other)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        tokens, seed = ctx.saved_tensors
        rows = embedding_dropout_backward(*(grad.contiguous() for grad in grads), seed, ctx.p)
        dtable = torch.ops.aten.embedding_dense_backward(rows, tokens, ctx.size, -1, False)  # noqa: FBT003
        return dtable, None, None, None, None, None, None


@torch.library.custom_op("regard::embedding_dropout", mutates_args=())
def embedding_dropout_op(
    table: Tensor, tokens: Tensor, position_ids: Tensor, positions: Tensor, seed: Tensor, p: float
) -> Tensor:
    if table.is_cuda:
        from regard.ops.dropout_triton import launch_embedding_forward

        return launch_embedding_forward(table, tokens, position_ids, positions, seed, p)
    x = widen(table)[tokens] * table.shape[1] ** 0.5 + widen(positions)[position_ids]
    return hashed_dropout(x, p, seed).to(table.dtype)


@torch.library.custom_op("regard::embedding_dropout_backward", mutates_args=())
def embedding_dropout_backward(
    one: Tensor, more: Tensor, other: Tensor, rest: Tensor, seed: Tensor, p: float
) -> Tensor:
    """The gradient of each token's vector, both sides concatenated, before those of the same token are summed."""
    width, pairs = one.shape[-1], ((one, more), (other, rest))
    if one.is_cuda:
        from regard.ops.dropout_triton import launch_embedding_backward

        return launch_embedding_backward(pairs, seed, p)
    grads = torch.cat([(widen(a) + widen(b)).view(-1, width) for a, b in pairs])
    return (hashed_dropout(grads, p, seed) * width**0.5).to(one.dtype)


embedding_dropout_op.register_fake(lambda table, tokens, *rest: table.new_empty((len(tokens), table.shape[1])))
embedding_dropout_backward.register_fake(
    lambda one, more, other, rest, *how: one.new_empty(
        (one.numel() // one.shape[-1] + other.numel() // one.shape[-1], one.shape[-1])
    )
)
