"""A batch's own data, written to in place: no plan made before is trusted, and none keeps the batch alive."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.attention import Causal, Documents, Edges, Global, Padding, Pattern, Recipe, Window, attend
from regard.attention.backends import flex, gather
from regard.attention.backends.block_sparse import BlockSparseTiles
from regard.attention.block_map import EMPTY, is_immutable

N = 23


class Shown(Pattern):
    """Somebody's own pattern: a table, compared by identity."""

    def __init__(self, table: Tensor):
        self.table = table

    def sees(self, b, h, i, j):
        return self.table[i, j]


@dataclass(frozen=True, eq=False)
class ShownFrozen(Pattern):
    table: Tensor

    def sees(self, b, h, i, j):
        return self.table[i, j]


@dataclass(frozen=True, eq=False, slots=True)
class ShownInSlots(Pattern):
    table: Tensor

    def sees(self, b, h, i, j):
        return self.table[i, j]


@dataclass(frozen=True)
class Near(Pattern):
    """Somebody's own pattern that is a value."""

    size: int

    def sees(self, b, h, i, j):
        return (i - j).abs() < self.size


class Nearer(Near):
    """A subclass that is no dataclass may hold what its frozen base does not know of."""

    def __init__(self, table: Tensor):
        super().__init__(2)
        self.table = table

    def sees(self, b, h, i, j):
        return self.table[i, j]


def sight() -> Tensor:
    """Near the diagonal, and near the other one once it is rewritten."""
    return (torch.arange(N)[:, None] - torch.arange(N)).abs() < 3


# makes the data, and the pattern that holds them
HOLDERS = {
    "lengths": (lambda: torch.tensor([N, 7]), Padding),
    "lengths in a window": (lambda: torch.tensor([N, 7]), lambda x: Window(3) & Padding(x)),
    "texts": (lambda: torch.arange(N).div(5, rounding_mode="floor")[None], lambda x: Causal() & Documents(x)),
    "edges": (lambda: torch.randint(0, N, (2, 40)), Edges),
    "a table": (sight, Shown),
    "a table met by a window": (sight, lambda x: Shown(x) & (Window(2) | Global(1))),
    "a frozen table": (sight, ShownFrozen),
    "a table in slots": (sight, ShownInSlots),
    "a table beside a frozen base": (sight, Nearer),
}


def rewrite(data: Tensor) -> None:
    data.copy_(data.flip(-1) if data.dtype == torch.bool or data.dim() == 1 else (data * 3 + 1) % N)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {4: 1.0})


@pytest.mark.parametrize("holder", HOLDERS)
def test_data_written_to_in_place_are_read_again(holder, monkeypatch):
    monkeypatch.setattr(flex, "SIZE", 4)
    make, of = HOLDERS[holder]
    data = make()
    recipe = Recipe(pattern=of(data))
    q, k, v = torch.randn(3, 2, 2, N, 5, dtype=torch.double)
    for _ in range(3):
        want, got = (attend(q, k, v, recipe, backend=name) for name in ("reference", "gather"))
        assert_close(got, want)
        blocks = flex.block_mask(recipe, q, k, 0, recipe.pattern.sees).to_dense()[0, 0]
        assert torch.equal(blocks != 0, recipe.pattern.blocks(N, N, 4).dense() != EMPTY)
        rewrite(data)


@pytest.mark.parametrize("holder", HOLDERS)
def test_no_cache_keeps_a_batch_alive(holder):
    make, of = HOLDERS[holder]
    data = make()
    pattern, q = of(data), torch.randn(2, 2, N, 5)
    attend(q, q, q, Recipe(pattern=pattern), backend="gather")
    BlockSparseTiles.of(pattern, N, N)
    left = weakref.ref(data)
    del data, pattern
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("holder", HOLDERS)
def test_data_written_to_before_the_backward_pass_are_told(holder):
    """As torch does for any tensor that a gradient needs."""
    make, of = HOLDERS[holder]
    data, q = make(), torch.randn(2, 2, N, 5, requires_grad=True)
    out = attend(q, q, q, Recipe(pattern=of(data)), backend="gather")
    rewrite(data)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_what_can_never_change_is_a_value():
    table = sight()
    assert all(map(is_immutable, (Window(3), Causal() & ~Window(1) | Global(2), Near(3), Near(3) & Window(5))))
    patterns = (Shown(table), ShownFrozen(table), ShownInSlots(table), Nearer(table), Padding(torch.tensor([3])))
    assert not any(map(is_immutable, (*patterns, Near(3) & Shown(table))))
    one, two = (gather.make_plan(Near(3), N, N, 0) for _ in range(2))
    assert one is two
