"""Attention core: the modules without weights that every attention and every gate of every model passes.

They keep nothing, so that a forward hook can see them, or replace what they return, whatever the model around them is:
see hooks.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.backends import choose, masked
from regard.attention.functional import attend, prepare
from regard.attention.recipe import Recipe
from regard.ops import dispatch

MAX_CELLS = 2**26  # weights that the reference may form at once, where nobody asks for gradients
CELLS_AT_ONCE = 2**22  # and those that it forms at once of more

AttentionKernel = Callable[[Tensor, Tensor, Tensor, Recipe], Tensor]


@dataclass(eq=False)
class ThreadHook:
    """A forward hook, or one before it, for the calls of one thread alone: a model may serve several at once."""

    function: Callable[..., Any]
    thread: int
    active: bool = True

    def __call__(self, module: nn.Module, *call: Any) -> Any:
        # another thread's call may meet a hook that is being removed, and then comes without its named arguments
        return self.function(module, *call) if self.is_current else None

    @property
    def is_current(self) -> bool:
        return self.active and get_ident() == self.thread


def is_hooked(module: nn.Module) -> bool:
    """Does this thread record or edit what the module computes?"""
    hooks = *module._forward_hooks.values(), *module._forward_pre_hooks.values()
    return any(isinstance(hook, ThreadHook) and hook.is_current for hook in hooks)


class AttentionCore(nn.Module):
    """Every attention of every model passes here: `attend`, or a kernel that computes the same in another order."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recipe: Recipe,
        *,
        q_index: int = 0,
        k_index: int = 0,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
        backend: str | None = None,
        kernel: AttentionKernel | None = None,
    ) -> Tensor:
        if kernel is not None:
            return kernel(q, k, v, recipe)
        if q_positions is None and backend is None and masked.is_decoding(recipe):
            return masked.attend(recipe, q, k, v)
        given = {"k_index": k_index, "q_positions": q_positions, "k_positions": k_positions, "backend": backend}
        if not must_split(q, k, v, recipe, q_index, **given):
            return attend(q, k, v, recipe, q_index=q_index, **given)
        # the reference forms every weight at once, so of a long text it gets some queries at a time
        parts = q.split(max(1, CELLS_AT_ONCE // (q.shape[1] * k.shape[2])), 2)
        starts = accumulate((part.shape[2] for part in parts), initial=q_index)
        split = [attend(part, k, v, recipe, q_index=at, **given) for part, at in zip(parts, starts, strict=False)]
        return torch.cat(split, 2)


def must_split(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe,
    q_index: int,
    *,
    k_index: int,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    backend: str | None,
) -> bool:
    """Whether the reference would run it and form too many weights at once: then it gets some queries at a time. No
    gradient may need all weights, and no row depend on another. Code that is traced must not ask for the length."""
    if torch.is_grad_enabled() or dispatch.is_exporting() or torch.compiler.is_compiling():
        return False
    few = q.shape[1] * q.shape[2] * k.shape[2] <= MAX_CELLS
    if few or q_positions is not None or k_positions is not None or not recipe.normaliser.row_wise:
        return False
    return (backend or choose(recipe, *prepare(q, k, v, recipe, q_index, k_index))[0]) == "reference"


class GateCore(nn.Module):
    """Weights without queries pass here: gates of channels, static poolings.

    Args:
        note: what a reader must know of these weights.
    """

    def __init__(self, note: str):
        super().__init__()
        self.note = note

    def forward(self, weights: Tensor) -> Tensor:
        return weights
