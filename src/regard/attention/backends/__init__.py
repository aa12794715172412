"""Backends: implementations of a recipe, best first; each says why it cannot or should not run it."""

from typing import Protocol

from torch import Tensor

from regard.attention.backends import (
    additive,
    block_sparse,
    elementwise,
    flex,
    gather,
    hard,
    linear,
    masked,
    packed,
    reference,
    relative,
    sdpa,
    state,
)
from regard.attention.pattern import Positions
from regard.attention.recipe import Recipe


class Backend(Protocol):
    """A module with three functions."""

    def objections(self, recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
        """Why it cannot run the recipe; empty if it can."""
        ...

    def discouraged(self, recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
        """Why it had better not, though it could (too small, too dense, too large a mask)."""
        ...

    def attend(self, recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor: ...


BACKENDS: dict[str, Backend] = {
    "linear": linear,
    "state": state,
    "additive": additive,
    "relative": relative,
    "hard": hard,
    "elementwise": elementwise,
    "packed": packed,
    "masked": masked,
    "block_sparse": block_sparse,
    "flex": flex,
    "gather": gather,
    "sdpa": sdpa,
    "reference": reference,
}
"""The backends by name, best first; `explain` says which one runs a recipe.

Examples:
    >>> list(BACKENDS)[-2:]
    ['sdpa', 'reference']
    >>> q = torch.ones(1, 1, 2, 4)
    >>> attend(q, q, q, backend="linear")
    Traceback (most recent call last):
        ...
    ValueError: linear cannot run this recipe: Softmax() is not proportional
"""


def choose(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> tuple[str, dict[str, list[str]]]:
    """The first backend that neither objects nor is discouraged, and the reasons of those before it."""
    reasons: dict[str, list[str]] = {}
    for name, backend in BACKENDS.items():
        reasons[name] = backend.objections(recipe, q, k, positions) or backend.discouraged(recipe, q, k, positions)
        if not reasons[name]:
            return name, {other: why for other, why in reasons.items() if why}
    raise AssertionError("the reference objects to nothing")
