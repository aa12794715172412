"""Probes: every statistic is the one of the reference's own weights, and no n × n matrix exists on the way."""

import math
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.attention import (
    RECIPES,
    WORKED,
    Additive,
    Bilinear,
    Causal,
    Documents,
    Dot,
    Dropped,
    Edges,
    Feature,
    Full,
    Hard,
    Padding,
    Pattern,
    Prefix,
    Proportional,
    Recipe,
    ReLU,
    Sampled,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopK,
    Window,
    named,
    probing,
    steps,
)
from regard.attention import probes as probes_file
from regard.attention.probes import Probed, Wanted, probe
from tests.attention.patterns import dense, patterns
from tests.attention.test_parity import AT_ATTENTION, EXTRAS, SIZES, B, D, T, build

TOP = 3
ALL = Wanted(
    rows=(7, 2),
    columns=(0, 5, 3),
    top=TOP,
    map=(3, 5),
    peaks=(5, 2),
    mass=True,
    entropy=True,
    log_sum_exp=True,
)
some = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def _small_bands(monkeypatch):
    """Several bands, several tiles of heads and keys, even at a few tokens."""
    monkeypatch.setattr(probing, "ROWS", 4)
    monkeypatch.setattr(probing, "CELLS_AT_ONCE", {"cpu": 300, "cuda": 300})
    monkeypatch.setattr(probes_file, "CHUNK", 2)


def pooled(weights: torch.Tensor, size: tuple[int, int], reduce: str) -> torch.Tensor:
    """A map by its definition, one axis after the other."""
    for dim, cells in ((2, size[0]), (3, size[1])):
        which = torch.arange(weights.shape[dim]) * cells // weights.shape[dim]
        parts = [weights.index_select(dim, (which == cell).nonzero().flatten()) for cell in range(cells)]
        nothing = torch.zeros_like(weights.narrow(dim, 0, 1))
        kept = [part if part.shape[dim] else nothing for part in parts]
        weights = torch.cat([p.sum(dim, True) if reduce == "sum" else p.amax(dim, True) for p in kept], dim)  # noqa: FBT003
    return weights if reduce == "sum" else weights.clamp(min=0)


def assert_probed(seen: Probed, weights: torch.Tensor, scores: torch.Tensor, visible: torch.Tensor, wanted: Wanted):
    """Every statistic against the whole matrix of weights."""
    assert_close(seen.rows, weights[:, :, list(wanted.rows)])
    assert_close(seen.columns, weights[..., list(wanted.columns)])
    assert_close(seen.mass, weights.sum(2))
    assert wanted.map is not None
    assert wanted.peaks is not None
    assert_close(seen.map, pooled(weights, wanted.map, "sum"))
    assert_close(seen.peaks, pooled(weights, wanted.peaks, "max"))
    assert_close(seen.log_sum_exp, scores.masked_fill(~visible, -torch.inf).logsumexp(-1))
    p = weights / weights.sum(-1, keepdim=True)
    want = -torch.where(weights == 0, 0.0, p * p.log()).sum(-1)
    want = want.masked_fill((weights < 0).any(-1), torch.nan)
    assert_close(seen.entropy, want, equal_nan=True)
    assert seen.top is not None
    best = weights.clamp(min=0).topk(min(wanted.top, weights.shape[-1])).values
    assert_close(seen.top.weights[..., : best.shape[-1]], best)
    assert (seen.top.weights[..., best.shape[-1] :] == 0).all()
    # equal weights may be named in any order, so the keys are judged by what they weigh, each named once
    named_keys = seen.top.keys.clamp(min=0)
    assert_close(torch.where(seen.top.keys < 0, 0.0, weights.gather(-1, named_keys)), seen.top.weights)
    assert ((seen.top.keys < 0) == (seen.top.weights <= 0)).all()
    ranked = seen.top.keys.sort(-1).values
    assert ((ranked.diff(dim=-1) > 0) | (ranked[..., 1:] < 0)).all()


def assert_agrees(recipe: Recipe, groups: int = 6, new: int = T, wanted: Wanted = ALL, dtype=torch.double, **at):
    q = torch.randn(B, 6, new, D, dtype=dtype)
    k = torch.randn(B, groups, T, D, dtype=dtype)
    at = at or {"q_at": T - new}
    want = steps(q, k, k, recipe, **at)
    assert_probed(probe(q, k, recipe, wanted, **at), want.weights, want.adjusted, want.visible, wanted)


# --- worked by hand ---


def test_two_keys_on_paper():
    """Scores log 1, log 3 and log 2, log 2: the weights are ¼ ¾ and ½ ½."""
    q = torch.eye(2, dtype=torch.double)[None, None]
    k = torch.tensor([[1.0, 2.0], [3.0, 2.0]], dtype=torch.double).log()[None, None]
    wanted = Wanted(rows=(0,), columns=(1,), top=1, map=(1, 1), peaks=(1, 2), mass=True, entropy=True, log_sum_exp=True)
    seen = probe(q, k, Recipe(score=Dot()), wanted)
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


@pytest.mark.parametrize("case", WORKED, ids=lambda case: case.name)
def test_the_worked_examples_are_seen_row_by_row(case):
    q, k, v = case.qkv()
    every = tuple(range(q.shape[2]))
    seen = probe(q, k, case.recipe, Wanted(rows=every, mass=True))
    want = steps(q, k, v, case.recipe).weights
    assert_close(seen.rows, want)
    assert_close(seen.mass, want.sum(2))


# --- the whole catalogue ---


@pytest.mark.parametrize("position", [*AT_ATTENTION, *EXTRAS])
@pytest.mark.parametrize("name", RECIPES)
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
    q_at, k_at = torch.randperm(T), torch.stack((torch.randperm(T), torch.randperm(T)))
    for recipe in (named("sliding window", "rotary", SIZES), named("causal", "alibi", SIZES), named("causal linear")):
        assert_agrees(recipe, groups=3, q_at=q_at, k_at=k_at)


@dataclass(frozen=True)
class EveryOtherHead(Pattern):
    """Even heads see the past, odd ones everything."""

    def sees(self, b, h, i, j):
        return (j <= i) | (h % 2 == 1)


@pytest.mark.parametrize("normaliser", [Softmax(), Sparsemax()])
def test_a_pattern_that_differs_from_head_to_head(normaliser, monkeypatch):
    for cells in (50, 2**20):  # one head at a time, then all together
        monkeypatch.setattr(probing, "CELLS_AT_ONCE", {"cpu": cells, "cuda": cells})
        assert_agrees(Recipe(pattern=EveryOtherHead(), normaliser=normaliser), groups=3)


def test_keys_on_both_sides_of_a_gap_keep_their_names(monkeypatch):
    """The first key and the nearest few: what lies between is skipped, and must not shift what follows."""
    monkeypatch.setattr(probing, "ROWS", 2)
    for normaliser in (Softmax(), Sparsemax()):
        recipe = Recipe(pattern=Prefix(1) | Window(2), normaliser=normaliser)
        assert any(len(reach.runs) > 1 for reach in probing.reaches(recipe.pattern, T, T, 0))
        assert_agrees(recipe, groups=3, wanted=replace(ALL, columns=(10, 0, 9, 7)))


@pytest.mark.parametrize("name", ["scaled dot", "bigbird", "sigmoid", "sparsemax", "bahdanau"])
def test_single_precision(name):
    with torch.no_grad():
        assert_agrees(named(name, "none", SIZES), groups=3, dtype=torch.float32)


@pytest.mark.parametrize("name", ["scaled dot", "luong general", "bahdanau"])
@pytest.mark.parametrize("position", ["none", "t5", "alibi"])
def test_half_precision_is_probed_in_single(name, position):
    """The same numbers, held in half precision, give what they give in single: only q and k themselves are rounded."""
    recipe = named(name, position, SIZES)
    recipe.learned().to(torch.bfloat16)
    q, k = torch.randn(2, B, 6, T, D, dtype=torch.bfloat16)
    seen = probe(q, k, recipe, ALL)
    assert next(iter(recipe.learned().parameters()), q).dtype == torch.bfloat16
    recipe.learned().float()
    want = probe(q.float(), k.float(), recipe, ALL)
    assert seen.mass is not None
    assert seen.mass.dtype == torch.float32
    for got, wish in ((seen.rows, want.rows), (seen.mass, want.mass), (seen.entropy, want.entropy)):
        assert_close(got, wish)


@pytest.mark.parametrize("rows", [1, 3, 4, 16])
@pytest.mark.parametrize("cells", [7, 64, 2**20])
def test_the_size_of_bands_changes_nothing(rows, cells, monkeypatch):
    monkeypatch.setattr(probing, "ROWS", rows)
    monkeypatch.setattr(probing, "CELLS_AT_ONCE", {"cpu": cells, "cuda": cells})
    for name in ("bigbird", "bahdanau"):
        recipe = build(name, "alibi")
        assert recipe is not None
        with torch.no_grad():
            assert_agrees(recipe, groups=3, new=7, wanted=replace(ALL, rows=(6, 0)))


def test_the_largest_of_many_are_found_by_chunks():
    weights = torch.randn(2, 3, 5, 67).softmax(-1)
    keys, best = probes_file.largest(weights, 3)
    want = weights.topk(3)
    assert torch.equal(best, want.values)
    assert torch.equal(keys, want.indices)


# --- who sees nothing ---


@pytest.mark.parametrize("normaliser", [Softmax(), Sigmoid(), ReLU(), Proportional(), Sparsemax(), TopK(2), Hard()])
def test_a_query_that_sees_nothing_weighs_nothing(normaliser):
    score = Feature() if normaliser == Proportional() else Dot()
    blind = Recipe(score=score, pattern=Causal() & ~Causal(), normaliser=normaliser)
    half = Recipe(score=score, pattern=Window(1) & Padding(torch.tensor([5, 0])), normaliser=normaliser)
    q, k = torch.randn(2, B, 6, T, D, dtype=torch.double)
    for recipe, rows in ((blind, slice(None)), (half, slice(5, None))):
        seen = probe(q, k, recipe, replace(ALL, rows=(9, 10)))
        assert seen.rows is not None
        assert seen.entropy is not None
        assert seen.log_sum_exp is not None
        assert seen.top is not None
        assert (seen.rows == 0).all()
        assert (seen.entropy[:, :, rows] == 0).all()
        assert (seen.log_sum_exp[:, :, rows] == -torch.inf).all()
        assert (seen.top.keys[:, :, rows] == -1).all()
        assert (seen.top.weights[:, :, rows] == 0).all()


def test_a_hidden_key_cannot_be_felt():
    """NaN in the padding changes no bit of any statistic."""
    recipe = Recipe(pattern=Padding(torch.tensor([7, 6])))
    q, k = torch.randn(2, B, 6, T, D)
    clean = probe(q, k, recipe, ALL)
    k[:, :, 7:] = torch.nan
    k[1, :, 6] = torch.nan
    noisy = probe(q, k, recipe, ALL)
    for name in ("rows", "columns", "map", "peaks", "mass", "entropy", "log_sum_exp"):
        assert torch.equal(vars(clean)[name], vars(noisy)[name]), name


# --- laws ---


@some
@given(patterns, st.sampled_from([Softmax(), Sparsemax(), TopK(2), Hard()]), st.integers(0, 2**31))
def test_mass_and_map_sum_to_the_number_of_queries_that_see(pattern, normaliser, seed):
    q, k = torch.randn(2, 1, 2, T, 5, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    seen = probe(q, k, Recipe(pattern=pattern, normaliser=normaliser), ALL)
    visible = dense(pattern, T)
    seeing = visible.any(-1).sum().double()
    assert seen.mass is not None
    assert seen.map is not None
    assert seen.entropy is not None
    assert seen.top is not None
    assert_close(seen.mass.sum(-1), seeing.expand(1, 2))
    assert_close(seen.map.sum((2, 3)), seeing.expand(1, 2))
    keys = visible.sum(-1).clamp(min=1)
    assert (seen.entropy >= -1e-12).all()
    assert (seen.entropy <= keys.log() + 1e-12).all()
    assert (seen.top.weights.sum(-1) <= 1 + 1e-12).all()


@some
@given(st.integers(1, 13), st.integers(1, 13), st.integers(1, 12), st.integers(1, 12))
def test_a_map_of_any_size_holds_every_weight_once(rows, columns, n_q, n_k):
    q, k = torch.randn(1, 2, n_q, 5, dtype=torch.double), torch.randn(1, 1, n_k, 5, dtype=torch.double)
    size = rows, columns
    seen, weights = probe(q, k, Recipe(), Wanted(map=size, peaks=size)), steps(q, k, k).weights
    assert_close(seen.map, pooled(weights, size, "sum"))
    assert_close(seen.peaks, pooled(weights, size, "max"))


def test_a_map_as_large_as_the_weights_is_the_weights():
    q, k = torch.randn(2, B, 6, T, D, dtype=torch.double)
    assert_close(
        probe(q, k, Recipe(pattern=Window(3)), Wanted(map=(T, T))).map,
        steps(q, k, k, Recipe(pattern=Window(3))).weights,
    )


def test_entropy_is_log_sum_exp_less_the_mean_score():
    """H = lse - Σ p s: what a kernel computes by attending with the keys as values."""
    q, k = torch.randn(2, B, 6, T, D, dtype=torch.double)
    seen = probe(q, k, Recipe(score=Dot()), Wanted(entropy=True, log_sum_exp=True))
    attended = steps(q, k, k, Recipe(score=Dot())).output
    assert seen.log_sum_exp is not None
    assert_close(seen.entropy, seen.log_sum_exp - (q * attended).sum(-1))


# --- only what is wanted, and no more memory than that ---


def test_what_is_not_wanted_is_not_there():
    q, k = torch.randn(2, B, 6, T, D)
    seen = probe(q, k, Recipe(), Wanted(mass=True))
    assert {name for name, value in vars(seen).items() if value is not None} == {"mass"}


class Counting(Full):
    """Everybody sees everybody, and the cells asked about are counted."""

    def __init__(self):
        object.__setattr__(self, "asked", [])

    def sees(self, b, h, i, j):
        self.asked.append(i.shape[2] * j.shape[3])  # type: ignore[attr-defined]
        return super().sees(b, h, i, j)


def test_rows_alone_cost_no_more_than_those_rows():
    q, k = torch.randn(2, B, 6, T, D)
    pattern = Counting()
    probe(q, k, Recipe(pattern=pattern), Wanted(rows=(3, 8)))
    assert 0 < sum(pattern.asked) <= 2 * T * B  # type: ignore[attr-defined]


def test_a_window_costs_its_own_width(monkeypatch):
    """Twice the length, twice the cells; the empty blocks are never scored."""
    monkeypatch.setattr(probing, "ROWS", 16)

    def cells(n: int) -> int:
        q = torch.randn(1, 1, n, 2)
        call = probing.Call.of(Recipe(pattern=Window(16)), *probes_file.prepare(q, q, q, Recipe(), None, None))
        return sum(band.weights.numel() for band in call.bands(probing.reaches(Window(16), n, n, 0)))

    assert cells(512) < 512 * 3 * 16 + 1
    assert cells(1024) < 2.1 * cells(512)


MEMORY = """
import sys
sys.path.insert(0, "benchmarks")
import torch
from machine import forget_peak, peak_mib
from regard.attention import Recipe, read
from regard.attention.probes import Wanted, probe
torch.set_num_threads(1)
every = dict(mass=True, entropy=True, log_sum_exp=True)
wanted = Wanted(rows=(0, 5), columns=(0, 3), top=8, map=(64, 64), peaks=(16, 16), **every)
q, k = torch.randn(2, 1, 1, 8192, 16)
recipe = Recipe(pattern=read(sys.argv[1]))
probe(q[:, :, :256], k[:, :, :256], recipe, wanted)
forget_peak()
before = peak_mib()
probe(q, k, recipe, wanted)
print(peak_mib() - before)
"""


@pytest.mark.parametrize("pattern", ["Full()", "Causal() & Window(512)"])
def test_eight_thousand_tokens_need_far_less_than_their_weights(pattern):
    """The matrix of weights alone would be 256 MiB."""
    done = subprocess.run([sys.executable, "-c", MEMORY, pattern], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 96


# --- mistakes ---


@pytest.mark.parametrize("normaliser", [Sampled(), Dropped(0.1), TopK(3, Sampled())])
def test_what_draws_at_random_is_objected_to(normaliser):
    q = torch.randn(1, 1, T, D)
    with pytest.raises(ValueError, match="draws at random"):
        probe(q, q, Recipe(normaliser=normaliser), ALL)


def test_mistakes_are_named_with_their_remedy():
    q = torch.randn(1, 1, T, D)
    with pytest.raises(ValueError, match="nothing is wanted"):
        Wanted()
    with pytest.raises(ValueError, match="top=-1"):
        Wanted(top=-1)
    with pytest.raises(ValueError, match=r"map=\(0, 5\)"):
        Wanted(map=(0, 5))
    with pytest.raises(ValueError, match="rows: there is no 11 among 11"):
        probe(q, q, Recipe(), Wanted(rows=(0, 11)))
    with pytest.raises(ValueError, match="columns: there is no -1 among 11"):
        probe(q, q, Recipe(), Wanted(columns=(-1,)))
    with pytest.raises(ValueError, match="widths"):
        probe(q, q[..., :3], Recipe(score=Bilinear(D)), ALL)


def test_more_keys_than_there_are_leave_places_empty():
    q = torch.randn(1, 1, 3, D)
    seen = probe(q, q, Recipe(score=Additive(D, 7)), Wanted(top=5))
    assert seen.top is not None
    assert (seen.top.keys[..., 3:] == -1).all()
    assert (seen.top.keys[..., :3].sort(-1).values == torch.arange(3)).all()


def test_no_gradient_is_kept():
    q = torch.randn(1, 1, T, D, requires_grad=True)
    seen = probe(q, q, Recipe(), Wanted(mass=True))
    assert seen.mass is not None
    assert not seen.mass.requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("position", ["none", "rotary", "t5", "shaw"])
@pytest.mark.parametrize("name", ["scaled dot", "sliding window", "bigbird", "luong general", "sparsemax"])
def test_the_gpu_sees_what_the_cpu_sees(name, position):
    recipe = build(name, position)
    assert recipe is not None
    q, k = torch.randn(B, 6, T, D, dtype=torch.double), torch.randn(B, 3, T, D, dtype=torch.double)
    want = probe(q, k, recipe, ALL)
    recipe.learned().cuda()
    seen = probe(q.cuda(), k.cuda(), recipe, ALL)
    for statistic in ("rows", "columns", "map", "peaks", "mass", "entropy", "log_sum_exp"):
        assert_close(vars(seen)[statistic].cpu(), vars(want)[statistic])
    assert seen.top is not None
    assert want.top is not None
    assert_close(seen.top.weights.cpu(), want.top.weights)
