"""Block maps: the truth about every block, without forming n x n."""

import time
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention import (
    Block,
    Causal,
    Documents,
    Edges,
    Global,
    Padding,
    Pattern,
    Random,
    Strided,
    Window,
)
from regard.attention import block_map as blocks_module
from regard.attention.block_map import EMPTY, FULL, MIXED
from tests.attention.patterns import dense, patterns


def states(visible: torch.Tensor, block: int) -> torch.Tensor:
    """The slow truth: cut the dense mask into blocks and count."""
    rows = []
    for some in visible.split(block, 0):
        rows.append([])
        for part in some.split(block, 1):
            rows[-1].append(FULL if part.all() else MIXED if part.any() else EMPTY)
    return torch.tensor(rows, dtype=torch.uint8)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(patterns, st.integers(1, 23), st.integers(1, 23), st.integers(1, 6), st.integers(0, 9))
def test_the_map_agrees_with_the_dense_mask(pattern, n_q, n_k, block, start):
    found = pattern.blocks(n_q, n_k, block, start=start)
    truth = states(dense(pattern, n_q, n_k, start=start)[0, 0], block)
    assert torch.equal(found.dense(), truth), pattern
    counted = {name: int((truth == state).sum()) for name, state in (("empty", 0), ("mixed", 1), ("full", 2))}
    assert found.counts() == counted
    row, col = found.visible_blocks()
    assert torch.equal(torch.stack((row, col)).T.long(), (truth != EMPTY).nonzero())


@pytest.mark.parametrize(("pattern", "state"), [(Global(4) | ~Global(4), FULL), (Global(4) & ~Global(4), EMPTY)])
def test_two_halves_of_a_block_make_it_full_and_have_nothing_in_common(pattern, state):
    """Of the block at 3 ... 5, 5 of 9 cells are global and 4 are not: the bounds of their union are 5 and 9 cells, of
    what they share 0 and 4, so that only its cells can tell."""
    assert (pattern.blocks(9, 9, 3).dense() == state).all()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(patterns, st.integers(1, 23), st.integers(1, 6))
def test_without_patience_the_map_is_still_safe(pattern, n, block):
    """Doubtful blocks stay mixed: what is called empty or full is, and nothing visible is lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "PATIENCE", 0)
        found = pattern.blocks(n, n, block).dense()
    truth = states(dense(pattern, n)[0, 0], block)
    assert ((found == truth) | (found == MIXED)).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(patterns, st.lists(st.integers(1, 17), min_size=2, max_size=3), st.integers(1, 5))
def test_a_batch_is_mapped_for_all_its_sentences_at_once(pattern, lengths, block):
    together = pattern & Padding(torch.tensor(lengths))
    each = torch.stack([states((dense(pattern, 17) & (torch.arange(17) < n))[0, 0], block) for n in lengths])
    found = together.blocks(17, 17, block).dense()
    expected = torch.where((each == FULL).all(0), FULL, torch.where((each == EMPTY).all(0), EMPTY, MIXED)).to(
        torch.uint8
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("block", [1, 3, 4, 8])
def test_documents_and_graphs_are_mapped_too(block):
    documents = Causal() & Documents(torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 0, 0]]))
    edges = Edges(torch.randint(0, 12, (2, 20)))
    for pattern in (documents, edges, edges | documents):
        assert torch.equal(pattern.blocks(12, 12, block).dense(), states(dense(pattern, 12)[0, 0], block))


class Diamond(Pattern):
    """A pattern of the user's own that says nothing about blocks."""

    def sees(self, b, h, i, j):
        return i + j < 9


def test_a_pattern_that_only_knows_who_sees_whom_is_mapped_as_well():
    assert torch.equal(Diamond().blocks(8, 8, 3).dense(), states(dense(Diamond(), 8)[0, 0], 3))
    mixed = Diamond() & Causal()
    assert torch.equal(mixed.blocks(8, 8, 3).dense(), states(dense(mixed, 8)[0, 0], 3))


@pytest.mark.parametrize(
    "pattern",
    [
        Causal() & Window(512),
        Window(512) | Global(1),
        Block(64, Window(2) | Global(1) | Random(3, seed=0)),
        Causal() & (Window(128) | Strided(128)),
    ],
    ids=str,
)
def test_a_quarter_of_a_million_tokens(pattern):
    """A mask would take 64 GiB. benchmarks/block_maps.py goes to a million and measures."""
    tracemalloc.start()
    began = time.perf_counter()
    counted = pattern.blocks(2**18, block=128).counts()
    assert time.perf_counter() - began < 30
    assert tracemalloc.get_traced_memory()[1] < 200e6  # what Python holds; torch is measured by the benchmark
    tracemalloc.stop()
    assert sum(counted.values()) == 2**22
    assert counted["mixed"] + counted["full"] < 2**22


def test_lengths_that_make_no_sense_are_refused():
    for wrong in ((0, 4, 2), (4, 0, 2), (4, 4, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            Causal().blocks(*wrong)
