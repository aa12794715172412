"""Words of two sides in; the states that enter both stacks out, each twice: drop(√width · table[word] + places[at]).

Twice the same numbers, as `residual_step` has it: what the first sub-layer reads, and what goes around it. On a GPU by
the kernels of `entry_kernel`, elsewhere by the same steps in plain torch, noise of dropout included.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function

from regard.layers.hashed_dropout import hashed_dropout, too_many
from regard.layers.residual_step import Noise, wide

Entered = tuple[Tensor, Tensor, Tensor, Tensor]  # the first side's states, twice, and the second's


def enter_both(
    table: Float[Tensor, "v width"],
    words: tuple[Int[Tensor, "n s"], Int[Tensor, "n t"]],
    places: Float[Tensor, "longest width"],
    at: tuple[Int[Tensor, "n s"], Int[Tensor, "n t"]],
    noise: Noise,
) -> Entered:
    """Both by one table, whose gradient is as large as itself, be its words few or many. Places learn nothing."""
    assert not places.requires_grad
    both = (torch.cat([part.flatten() for part in parts]) for parts in (words, at))
    return Enter.apply(table, *both, places, noise, *(part.shape for part in words))


class Enter(Function):
    """In terms of two operations that compilers and recordings take as they are."""

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, words: Tensor, at: Tensor, places: Tensor, noise: Noise, *shapes: torch.Size
    ) -> Entered:
        if noise.share:
            too_many(table.new_empty((len(words), table.shape[1]), device="meta"))
        both = entry_step(table, words, at, places, noise.seed, noise.share)
        ctx.save_for_backward(words, noise.seed)
        ctx.share, ctx.size = noise.share, len(table)
        one, other = (
            part.view(*shape, -1) for part, shape in zip(both.split([s.numel() for s in shapes]), shapes, strict=True)
        )
        return one, one.view_as(one), other, other.view_as(other)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        words, seed = ctx.saved_tensors
        rows = entry_step_back(*(grad.contiguous() for grad in grads), seed, ctx.share)
        dtable = torch.ops.aten.embedding_dense_backward(rows, words, ctx.size, -1, False)  # noqa: FBT003
        return dtable, None, None, None, None, None, None


@torch.library.custom_op("regard::entry_step", mutates_args=())
def entry_step(table: Tensor, words: Tensor, at: Tensor, places: Tensor, seed: Tensor, share: float) -> Tensor:
    if table.is_cuda:
        from regard.layers.entry_kernel import enter

        return enter(table, words, at, places, seed, share)
    found = wide(table)[words] * table.shape[1] ** 0.5 + wide(places)[at]
    return hashed_dropout(found, share, seed).to(table.dtype)


@torch.library.custom_op("regard::entry_step_back", mutates_args=())
def entry_step_back(one: Tensor, more: Tensor, other: Tensor, rest: Tensor, seed: Tensor, share: float) -> Tensor:
    """Of each word's vector, those of both sides one behind the other, before a word's own are summed."""
    width, pairs = one.shape[-1], ((one, more), (other, rest))
    if one.is_cuda:
        from regard.layers.entry_kernel import leave

        return leave(pairs, seed, share)
    met = torch.cat([(wide(a) + wide(b)).view(-1, width) for a, b in pairs])
    return (hashed_dropout(met, share, seed) * width**0.5).to(one.dtype)


entry_step.register_fake(lambda table, words, *rest: table.new_empty((len(words), table.shape[1])))
entry_step_back.register_fake(
    lambda one, more, other, rest, *how: one.new_empty(
        (one.numel() // one.shape[-1] + other.numel() // one.shape[-1], one.shape[-1])
    )
)
