"""A batch's own data, written to in place: no plan made before is trusted, and none keeps the batch alive."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.testing import assert_close

from regard.attention import Causal, Documents, Edges, Global, Padding, Pattern, Recipe, Window, attend
from regard.attention.backends import block_sparse, flex, gather
from regard.attention.backends.block_sparse import BlockSparseTiles, tiling_objections
from regard.attention.block_map import EMPTY, is_immutable
from regard.attention.parts import tensors
from regard.attention.pattern import Positions
from tests.attention import patterns
from tests.attention.patterns import of_a_batch, tiled

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


class Farther(Near):
    """Another: equal to every other of its size, whatever stands beside it."""

    def __init__(self, size: int, further: int):
        super().__init__(size)
        self.further = further

    def sees(self, b, h, i, j):
        return (i - j).abs() < self.size + self.further


@dataclass(eq=False)
class Adjustable(Pattern):
    """Somebody's own pattern that may be written to, compared by identity."""

    size: int

    def sees(self, b, h, i, j):
        return (i - j).abs() < self.size


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
    for backend in (gather, block_sparse):
        monkeypatch.setattr(backend, "SIZES", {4: 1.0})
    monkeypatch.setattr(flex, "SIZE", 4)
    block_sparse.choose_tiling.cache_clear()  # of another size
    yield
    block_sparse.choose_tiling.cache_clear()


def assert_planned_for(pattern: Pattern, n: int) -> None:
    """Every backend that plans has planned for this pattern as it is now."""
    q, k, v = torch.randn(3, 2, 2, n, 5, dtype=torch.double)
    want, got = (attend(q, k, v, Recipe(pattern=pattern), backend=name) for name in ("reference", "gather"))
    assert_close(got, want)
    blocks = flex.block_mask(Recipe(pattern=pattern), q, k, 0, pattern.sees).to_dense()[0, 0]
    assert torch.equal(blocks != 0, pattern.blocks(n, n, 4).dense() != EMPTY)
    if not tiling_objections(pattern, n, n):
        seen = Positions.of(q, k, 0, 0).grid(2, 1).visible(pattern)[:, 0]
        assert torch.equal(tiled(BlockSparseTiles.of(pattern, n, n), n).expand_as(seen), seen)


@pytest.mark.parametrize("holder", HOLDERS)
def test_data_written_to_in_place_are_read_again(holder):
    make, of = HOLDERS[holder]
    data = make()
    pattern = of(data)
    for _ in range(3):
        assert_planned_for(pattern, N)
        rewrite(data)


@settings(deadline=None, max_examples=40)
@given(of_a_batch)
def test_data_of_any_pattern_written_to_in_place_are_read_again(pattern):
    assert_planned_for(pattern, patterns.N)
    for data in tensors(pattern):
        data.copy_(data.flip(-1))
    assert_planned_for(pattern, patterns.N)


def test_attributes_written_to_are_read_again():
    adjustable, one, other = Adjustable(2), Farther(2, 0), Farther(2, 7)
    assert_planned_for(adjustable, N)
    adjustable.size = 9
    assert_planned_for(adjustable, N)
    assert one == other
    for pattern in (one, other):
        assert_planned_for(pattern, N)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("holder", HOLDERS)
def test_no_cache_keeps_a_batch_alive(holder):
    """Neither the tensor nor, by a view of it, its memory."""
    make, of = HOLDERS[holder]
    memory = make().numpy()
    data = torch.from_numpy(memory)
    pattern, q = of(data), torch.randn(2, 2, N, 5)
    attend(q, q, q, Recipe(pattern=pattern), backend="gather")
    flex.block_mask(Recipe(pattern=pattern), q, q, 0, pattern.sees)
    tiles = BlockSparseTiles.of(pattern, N, N)
    if tiles.segment_ids is not None:
        tiles.segment_ids.reach(4)
        tiles.segment_ids.reached(4)
    left = weakref.ref(data), weakref.ref(memory)
    del data, memory, pattern, tiles
    gc.collect()
    assert left[0]() is None
    assert left[1]() is None


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
