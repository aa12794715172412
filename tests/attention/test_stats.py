"""Attention statistics: each is that of the reference's own weights, and no n × n matrix exists on the way."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch.testing import assert_close

from regard.attention import (
    EXAMPLES,
    RECIPES,
    Causal,
    Documents,
    Dot,
    Edges,
    Full,
    Padding,
    Pattern,
    Prefix,
    Recipe,
    Softmax,
    Sparsemax,
    Window,
    get_recipe,
    stats,
    steps,
)
from regard.attention import stats as probes_file
from regard.attention.functional import prepare
from regard.attention.position import ScorePosition
from regard.attention.stats import StatsRequest, attention_stats
from tests.attention.stats_reference import ALL, assert_agrees, small_bands
from tests.attention.test_parity import PAIRS, SIZES, B, D, T, build


@pytest.fixture(autouse=True)
def _small_bands(monkeypatch):
    small_bands(monkeypatch)


# --- worked by hand ---


def test_two_keys_on_paper():
    """Scores log 1, log 3 and log 2, log 2: the weights are ¼ ¾ and ½ ½."""
    q = torch.eye(2, dtype=torch.double)[None, None]
    k = torch.tensor([[1.0, 2.0], [3.0, 2.0]], dtype=torch.double).log()[None, None]
    wanted = StatsRequest(
        rows=(0,), columns=(1,), top=1, map=(1, 1), peaks=(1, 2), mass=True, entropy=True, log_sum_exp=True
    )
    seen = attention_stats(q, k, Recipe(score=Dot()), wanted)
    assert seen.rows is not None
    assert seen.top is not None
    assert_close(seen.rows.flatten().tolist(), [0.25, 0.75])
    assert_close(seen.columns, torch.tensor([[[[0.75], [0.5]]]], dtype=torch.double))
    assert_close(seen.mass, torch.tensor([[[0.75, 1.25]]], dtype=torch.double))
    assert_close(seen.map, torch.tensor([[[[2.0]]]], dtype=torch.double))
    assert_close(seen.peaks, torch.tensor([[[[0.5, 0.75]]]], dtype=torch.double))
    quarter = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    assert_close(seen.entropy, torch.tensor([[[quarter, math.log(2)]]], dtype=torch.double))
    assert_close(seen.log_sum_exp, torch.tensor([[[math.log(4), math.log(4)]]], dtype=torch.double))
    assert seen.top.keys[0, 0, 0].tolist() == [1]
    assert_close(seen.top.weights.flatten().tolist(), [0.75, 0.5])


@pytest.mark.parametrize("case", EXAMPLES, ids=lambda case: case.name)
def test_the_worked_examples_are_seen_row_by_row(case):
    q, k, v = case.qkv()
    every = tuple(range(q.shape[2]))
    seen = attention_stats(q, k, case.recipe, StatsRequest(rows=every, mass=True))
    want = steps(q, k, v, case.recipe).weights
    assert_close(seen.rows, want)
    assert_close(seen.mass, want.sum(2))


# --- the whole catalogue ---


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "position"), PAIRS)
def test_every_statistic_is_that_of_the_reference(name, position):
    if (recipe := build(name, position)) is None:
        pytest.skip(f"{name} has no keys that {position} could add to")
    for groups, new in [(3, 8), (1, 11)]:
        with torch.no_grad():
            assert_agrees(recipe, groups, new)


@pytest.mark.parametrize("name", RECIPES)
def test_padding_on_top_of_any_pattern(name):
    recipe = build(name, "none")
    assert recipe is not None
    with torch.no_grad():
        assert_agrees(replace(recipe, pattern=recipe.pattern & Padding(torch.tensor([11, 6]))), groups=2)


def test_a_graph_and_documents_of_each_sentence():
    assert_agrees(Recipe(pattern=Edges(torch.randint(0, T, (2, 30)))))
    assert_agrees(Recipe(pattern=Causal() & Documents(torch.tensor([[0] * 5 + [1] * 6, [0] * 2 + [1] * 9]))), groups=3)


def test_places_given_one_by_one_are_seen_without_a_block_map():
    q_index, k_index = torch.randperm(T), torch.stack((torch.randperm(T), torch.randperm(T)))
    for recipe in (
        get_recipe("sliding window", "rotary", SIZES),
        get_recipe("causal", "alibi", SIZES),
        get_recipe("causal linear"),
    ):
        assert_agrees(recipe, groups=3, q_index=q_index, k_index=k_index)


@dataclass(frozen=True)
class EveryOtherHead(Pattern):
    """Even heads see the past, odd ones everything."""

    def sees(self, b, h, i, j):
        return (j <= i) | (h % 2 == 1)


@pytest.mark.parametrize("normaliser", [Softmax(), Sparsemax()])
def test_a_pattern_that_differs_from_head_to_head(normaliser, monkeypatch):
    for cells in (50, 2**20):  # one head at a time, then all together
        monkeypatch.setattr(stats, "CELLS_AT_ONCE", {"cpu": cells, "cuda": cells})
        assert_agrees(Recipe(pattern=EveryOtherHead(), normaliser=normaliser), groups=3)


def test_keys_on_both_sides_of_a_gap_keep_their_names(monkeypatch):
    """The first key and the nearest few: what lies between is skipped, and must not shift what follows."""
    monkeypatch.setattr(stats, "ROWS", 2)
    for normaliser in (Softmax(), Sparsemax()):
        recipe = Recipe(pattern=Prefix(1) | Window(2), normaliser=normaliser)
        assert any(len(reach.runs) > 1 for reach in stats.key_runs(recipe.pattern, T, T, 0))
        assert_agrees(recipe, groups=3, wanted=replace(ALL, columns=(10, 0, 9, 7)))


@pytest.mark.parametrize("name", ["scaled dot", "bigbird", "sigmoid", "sparsemax", "bahdanau"])
def test_single_precision(name):
    with torch.no_grad():
        assert_agrees(get_recipe(name, "none", SIZES), groups=3, dtype=torch.float32)


@pytest.mark.parametrize("name", ["scaled dot", "luong general", "bahdanau"])
@pytest.mark.parametrize("position", ["none", "t5", "alibi"])
def test_half_precision_is_probed_in_single(name, position):
    """The same numbers, held in half precision, give what they give in single: only q and k themselves are rounded."""
    recipe = get_recipe(name, position, SIZES)
    recipe.learned().to(torch.bfloat16)
    q, k = torch.randn(2, B, 6, T, D, dtype=torch.bfloat16)
    seen = attention_stats(q, k, recipe, ALL)
    assert next(iter(recipe.learned().parameters()), q).dtype == torch.bfloat16
    recipe.learned().float()
    want = attention_stats(q.float(), k.float(), recipe, ALL)
    assert seen.mass is not None
    assert seen.mass.dtype == torch.float32
    for got, wish in ((seen.rows, want.rows), (seen.mass, want.mass), (seen.entropy, want.entropy)):
        assert_close(got, wish)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 3, 4, 16])
@pytest.mark.parametrize("cells", [7, 64, 2**20])
def test_the_size_of_bands_changes_nothing(rows, cells, monkeypatch):
    monkeypatch.setattr(stats, "ROWS", rows)
    monkeypatch.setattr(stats, "CELLS_AT_ONCE", {"cpu": cells, "cuda": cells})
    for name in ("bigbird", "bahdanau"):
        recipe = build(name, "alibi")
        assert recipe is not None
        with torch.no_grad():
            assert_agrees(recipe, groups=3, new=7, wanted=replace(ALL, rows=(6, 0)))


@dataclass(frozen=True)
class Nothing(ScorePosition):
    """A position that adds 0 to every score: by the reference, since it might add anything."""

    def score_term(self, q, b, h, i, j):
        return torch.zeros((), dtype=q.dtype, device=q.device)


LENGTHS = torch.tensor([11, 6])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cells", [7, 300, 2**20])
@pytest.mark.parametrize(
    "pattern",
    [
        Full(),
        Causal(),
        Padding(LENGTHS),
        Causal() & Padding(LENGTHS),
        ~Padding(LENGTHS),  # of the first sentence nobody sees anything
        Window(2) & Padding(torch.tensor([11, 3])),  # the last queries of the second see nothing
    ],
    ids=str,
)
def test_softmax_of_products_in_shared_memory_is_that_of_the_reference(pattern, cells, monkeypatch):
    """Every bit of the weights, whichever band was written over; sums of them but for their order."""
    monkeypatch.setattr(stats, "CELLS_AT_ONCE", {"cpu": cells, "cuda": cells})
    q, k = torch.randn(B, 6, T, D), torch.randn(B, 3, T, D)
    plain, general = Recipe(pattern=pattern), Recipe(pattern=pattern, position=Nothing())
    assert [stats.StatsCall.of(*prepare(q, k, k, some, None, None)).is_plain for some in (plain, general)] == [
        True,
        False,
    ]
    seen, want = (attention_stats(q, k, some, ALL) for some in (plain, general))
    for name in ("rows", "columns", "map", "peaks", "mass", "log_sum_exp"):
        assert torch.equal(vars(seen)[name], vars(want)[name]), name
    assert_close(seen.entropy, want.entropy)
    assert seen.entropy is not None
    assert (seen.entropy >= 0).all()


def test_the_entropy_of_large_scores_is_as_exact_as_their_weights():
    """Scores of thousands: what is left of them in the weights are their differences."""
    q, k = torch.randint(-30, 31, (2, 1, 2, T, D)).float()  # so products are exact
    k[:, :, 1] = k[:, :, 0]
    k[:, :, 1, 0] += 1 / 64  # two keys that share what there is
    weights = steps(q, k, k, Recipe(score=Dot())).weights.double()
    want = -torch.special.xlogy(weights, weights).sum(-1)
    assert (want > 0.5).any()
    seen = attention_stats(q, k, Recipe(score=Dot()), StatsRequest(entropy=True)).entropy
    assert_close(seen, want.float(), atol=1e-6, rtol=1e-6)


def test_the_largest_of_many_are_found_by_chunks():
    weights = torch.randn(2, 3, 5, 67).softmax(-1)
    keys, best = probes_file.top_weights(weights, 3)
    want = weights.topk(3)
    assert torch.equal(best, want.values)
    assert torch.equal(keys, want.indices)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("position", ["none", "rotary", "t5", "shaw"])
@pytest.mark.parametrize("name", ["scaled dot", "sliding window", "bigbird", "luong general", "sparsemax"])
def test_the_gpu_sees_what_the_cpu_sees(name, position):
    recipe = build(name, position)
    assert recipe is not None
    q, k = torch.randn(B, 6, T, D, dtype=torch.double), torch.randn(B, 3, T, D, dtype=torch.double)
    want = attention_stats(q, k, recipe, ALL)
    recipe.learned().cuda()
    seen = attention_stats(q.cuda(), k.cuda(), recipe, ALL)
    for statistic in ("rows", "columns", "map", "peaks", "mass", "entropy", "log_sum_exp"):
        assert_close(vars(seen)[statistic].cpu(), vars(want)[statistic])
    assert seen.top is not None
    assert want.top is not None
    assert_close(seen.top.weights.cpu(), want.top.weights)
