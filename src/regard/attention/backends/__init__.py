"""Ways to run a recipe, best first. Each says why it cannot or should not; the reference objects to nothing."""

from typing import Protocol

from torch import Tensor

from regard.attention.backends import block, flex, fused, linear, reference, sdpa
from regard.attention.kernels import additive_tiled, hard_tiled, rectified_tiled, relative_tiled
from regard.attention.places import Places
from regard.attention.recipe import Recipe


class Backend(Protocol):
    """A module with three functions."""

    def objections(self, recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
        """Why it cannot run the recipe; empty if it can."""
        ...

    def doubts(self, recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
        """Why it had better not, though it could (too small, too dense, too large a mask)."""
        ...

    def attend(self, recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor: ...


BACKENDS: dict[str, Backend] = {
    "linear": linear,
    "additive": additive_tiled,
    "relative": relative_tiled,
    "hard": hard_tiled,
    "rectified": rectified_tiled,
    "fused": fused,
    "flex": flex,
    "block": block,
    "sdpa": sdpa,
    "reference": reference,
}


def choose(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> tuple[str, dict[str, list[str]]]:
    """The first backend with neither objection nor doubt, and what those before it said."""
    said: dict[str, list[str]] = {}
    for name, backend in BACKENDS.items():
        said[name] = backend.objections(recipe, q, k, places) or backend.doubts(recipe, q, k, places)
        if not said[name]:
            return name, {other: why for other, why in said.items() if why}
    raise AssertionError("the reference objects to nothing")
