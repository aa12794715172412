"""Block-sparse tiles: worked on paper, reassembled for any pattern, and never more than they must be."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.attention.backends import block_sparse
from regard.attention.backends import block_sparse as backends_block_sparse
from regard.attention.backends.block_sparse import (
    WHOLE,
    Band,
    BlockSparseTiles,
    SegmentIds,
    TileLists,
    tiling_objections,
)
from regard.attention.batch_patterns import Documents, Edges, PackedSequences, Padding
from regard.attention.pattern import Causal, Full, Pattern, Positions, Window
from regard.attention.recipe import Recipe
from regard.attention.sparse_patterns import Block, Global, Random, Strided
from tests.attention.patterns import dense, patterns, put_together


@pytest.fixture
def _fours(monkeypatch):
    monkeypatch.setattr(backends_block_sparse, "SIZES", {4: 1.0})
    forget()
    yield
    forget()


def forget() -> None:
    for function in (backends_block_sparse.choose_tiling, backends_block_sparse.tile_lists):
        function.cache_clear()


def listed(pattern: Pattern, n_q: int, n_k: int, start: int = 0) -> TileLists:
    """As lists, whether or not two numbers would do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends_block_sparse, "band_of", lambda *_: None)
        forget()
        found = backends_block_sparse.tile_lists(pattern, n_q, n_k, start, torch.device("cpu"))
        forget()
    return found


# --- two numbers ---


@pytest.mark.parametrize(
    ("pattern", "ends"),
    [
        (Window(512), (-511, 511)),
        (Causal(), (0, 999)),
        (Causal() & Window(512), (0, 511)),
        (Causal() & ~Window(1), (1, 999)),
        (Full(), (-999, 999)),
        (Causal() & ~Causal(), (1, 0)),
    ],
)
def test_a_band_is_two_numbers(pattern, ends):
    always = BlockSparseTiles.of(pattern, 1000, 1000).static
    assert always == Band(*ends)


def test_a_band_knows_where_its_queries_stand():
    assert BlockSparseTiles.of(Causal(), 3, 10, start=7).static == Band(0, 9)


@pytest.mark.usefixtures("_fours")
def test_what_has_holes_is_no_band():
    assert isinstance(BlockSparseTiles.of(Strided(2), 11, 11).static, TileLists)
    assert isinstance(BlockSparseTiles.of(Causal() & ~(Window(5) & ~Window(2)), 11, 11).static, TileLists)


# --- lists ---


@pytest.mark.usefixtures("_fours")
def test_a_list_worked_on_paper():
    """Eight tokens, tiles of four, everybody sees neighbours and the first token."""
    found = BlockSparseTiles.of(Window(2) | Global(1), 8, 8).static
    assert isinstance(found, TileLists)
    rows = found.of_queries
    assert rows.firsts.tolist() == [0, 2, 4]
    assert rows.columns.tolist() == [0, 1, 0, 1]
    assert len(set(rows.masks.tolist())) == len(found.masks) == 4
    corner = found.masks[int(rows.masks[2])]  # queries 4 to 7, keys 0 to 3: the first key, and 3 from 4
    assert corner.tolist() == [[1, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert found.of_keys.columns.tolist() == [0, 1, 0, 1]
    assert found.of_keys.masks.tolist() == [rows.masks.tolist()[n] for n in (0, 2, 1, 3)]


@settings(max_examples=60, deadline=None, derandomize=True)
@example(Block(1, Causal()), 2, 3, 1, 2)  # queries between two tiles of keys
@given(patterns, st.integers(1, 13), st.integers(1, 17), st.integers(0, 5), st.sampled_from([2, 3, 4, 8]))
def test_tiles_put_together_are_the_pattern(pattern, n, m, start, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends_block_sparse, "SIZES", {size: 1.0})
        found = listed(pattern, n, m, start)
    want = dense(pattern, n, m, start=start)[0, 0]
    assert torch.equal(put_together(found, found.of_queries, n, m), want)
    assert torch.equal(put_together(found, found.of_keys, m, n, transposed=True), want.T)
    assert len(found.masks) == len(found.masks.flatten(1).unique(dim=0))


@pytest.mark.usefixtures("_fours")
def test_the_number_of_masks_does_not_grow_with_the_length():
    """Nor does anybody ask for more: a diagonal has one mask, however long."""
    for pattern in (Window(7) | Global(1), Strided(8), Causal() & ~(Window(9) & ~Window(3))):
        short, long = (listed(pattern, n, n) for n in (64, 256))
        assert len(short.masks) == len(long.masks) < 20


def test_a_pattern_of_blocks_needs_no_mask_at_its_own_size():
    found = BlockSparseTiles.of(Block(64, Window(2) | Global(1) | Random(3)), 1024, 1024).static
    assert isinstance(found, TileLists)
    assert (found.size, len(found.masks)) == (64, 0)
    assert (found.of_queries.masks == WHOLE).all()


@pytest.mark.usefixtures("_fours")
def test_edges_are_listed_and_not_remembered():
    edges = Edges(torch.tensor([[0, 5, 9], [3, 5, 1]]))
    before = backends_block_sparse.tile_lists.cache_info().currsize
    found = BlockSparseTiles.of(edges, 11, 11).static
    assert isinstance(found, TileLists)
    assert torch.equal(put_together(found, found.of_queries, 11, 11), dense(edges, 11)[0, 0])
    assert backends_block_sparse.tile_lists.cache_info().currsize == before


@pytest.mark.usefixtures("_fours")
def test_lists_are_remembered():
    one, two = (BlockSparseTiles.of(Window(2) | Global(1), 40, 40).static for _ in range(2))
    assert one is two


# --- a batch's own data ---


def test_padding_is_a_length_per_sentence():
    tiles = BlockSparseTiles.of(Causal() & Padding(torch.tensor([5, 9])) & Padding(torch.tensor([7, 2])), 11, 11)
    assert tiles.lengths is not None
    assert tiles.lengths.tolist() == [5, 2]
    assert tiles.static == Band(0, 10)


def test_whom_a_tile_can_meet_worked_on_paper():
    """Texts of three and five tokens, tiles of four: the first tile holds both, the second only the longer."""
    names = BlockSparseTiles.of(Documents.from_lengths([3, 5]), 8, 8).segment_ids
    assert names is not None
    assert names.reach(4).tolist() == [[[0, 8, 0, 0], [3, 8, 3, 8]]]


def test_packed_targets_look_at_packed_sources():
    targets, sources = (PackedSequences.of([torch.zeros(n, 3) for n in lengths]) for lengths in ([2, 2, 4], [5, 1, 3]))
    pattern = targets.cross_pattern(sources)
    names = BlockSparseTiles.of(pattern, 8, 9).segment_ids
    assert names is not None
    assert names.reach(2).tolist() == [[[0, 5, 0, 5], [5, 6, 5, 6], [6, 9, 6, 9], [6, 9, 6, 9]]]
    assert names.reached(3).tolist() == [[[0, 2, 0, 2], [0, 4, 0, 0], [4, 8, 4, 8]]]
    assert dense(pattern, 8, 9)[0, 0].sum(1).tolist() == [5, 5, 1, 1, 3, 3, 3, 3]
    with pytest.raises(ValueError, match="3 sequences cannot attend to 1"):
        targets.cross_pattern(PackedSequences.of([torch.zeros(4, 3)]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=17), st.lists(st.integers(0, 4), min_size=1, max_size=13))
def test_whom_a_tile_can_meet_is_right_for_any_names(own, other):
    for order in (list, sorted):
        names = SegmentIds(*(torch.tensor([order(x)]) for x in (own, other)))
        queries, keys = names.queries[0], names.keys[0]
        for step in (1, 2, 4):
            for tile, (first, stop, sure, unsure) in enumerate(names.reach(4, step)[0].tolist()):
                seen = queries[4 * tile : 4 * tile + 4, None] == keys
                assert not seen[:, :first].any()
                assert not seen[:, max(0, stop) :].any()
                assert seen[:, sure:unsure].all()


def test_names_written_to_in_place_are_read_again():
    ids = torch.tensor([[0, 0, 1, 1, 1]])
    pattern = Documents(ids)
    for changed in (0, 1):
        ids[0, 1] = changed
        names = BlockSparseTiles.of(pattern, 5, 5).segment_ids
        assert names is not None
        assert names.reach(1)[0, 1].tolist() == [[0, 2, 0, 2], [1, 5, 1, 5]][changed]


# --- objections ---


def test_what_cannot_be_cut_into_tiles_is_said_in_a_sentence(monkeypatch):
    lengths, ids = torch.tensor([3, 5]), torch.zeros(1, 11, dtype=torch.long)
    assert "each batch element would need its own masks" in tiling_objections(Causal() | Padding(lengths), 11, 11)[0]
    assert "one packing, not of several" in tiling_objections(Documents(ids) & Documents(ids), 11, 11)[0]
    assert "names 11 queries" in tiling_objections(Documents(ids), 12, 11)[0]
    monkeypatch.setattr(backends_block_sparse, "CELLS_ASKED", 2**14)
    assert "too many to keep their masks" in tiling_objections(Random(2), 300, 300)[0]
    assert tiling_objections(Strided(3), 300, 300) == []
    with pytest.raises(ValueError, match="too many to keep"):
        BlockSparseTiles.of(Random(2), 300, 300)
    forget()


def test_the_backend_objects_on_a_cpu_and_doubts_what_others_do_better():
    q = torch.zeros(1, 2, 700, 8)
    positions = Positions.of(q, q, None, None)
    assert block_sparse.objections(Recipe(pattern=Window(5)), q, q, positions) == ["its kernels run on a GPU"]
    assert "dense kernels are faster" in block_sparse.discouraged(Recipe(pattern=Causal()), q, q, positions)[0]
    assert block_sparse.discouraged(Recipe(pattern=Window(5)), q, q, positions) == []
    mixed = (Strided(3) | Global(1)) & Documents.from_lengths([300, 400])
    assert "is no band" in block_sparse.discouraged(Recipe(pattern=mixed), q, q, positions)[0]
    few = q[:, :, :11]
    assert (
        "too few"
        in block_sparse.discouraged(Recipe(pattern=Window(5)), few, few, Positions.of(few, few, None, None))[0]
    )
