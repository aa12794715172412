"""Attention statistics: what holds for all weights, what costs nothing, the memory it takes, and errors."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.attention import (
    Additive,
    AttentionDropout,
    Bilinear,
    Causal,
    Dot,
    Feature,
    Full,
    Hard,
    Padding,
    Proportional,
    Recipe,
    ReLU,
    Sampled,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopK,
    Window,
    stats,
    steps,
)
from regard.attention.functional import prepare
from regard.attention.stats import StatsRequest, attention_stats
from tests.attention.patterns import dense, patterns
from tests.attention.stats_reference import ALL, pool_map, small_bands
from tests.attention.test_parity import B, D, T
from tests.forks import run_program

some = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def _small_bands(monkeypatch):
    small_bands(monkeypatch)


# --- who sees nothing ---


@pytest.mark.parametrize("normaliser", [Softmax(), Sigmoid(), ReLU(), Proportional(), Sparsemax(), TopK(2), Hard()])
def test_a_query_that_sees_nothing_weighs_nothing(normaliser):
    score = Feature() if normaliser == Proportional() else Dot()
    blind = Recipe(score=score, pattern=Causal() & ~Causal(), normaliser=normaliser)
    half = Recipe(score=score, pattern=Window(1) & Padding(torch.tensor([5, 0])), normaliser=normaliser)
    q, k = torch.randn(2, B, 6, T, D, dtype=torch.double)
    for recipe, rows in ((blind, slice(None)), (half, slice(5, None))):
        seen = attention_stats(q, k, recipe, replace(ALL, rows=(9, 10)))
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
    clean = attention_stats(q, k, recipe, ALL)
    k[:, :, 7:] = torch.nan
    k[1, :, 6] = torch.nan
    noisy = attention_stats(q, k, recipe, ALL)
    for name in ("rows", "columns", "map", "peaks", "mass", "entropy", "log_sum_exp"):
        assert torch.equal(vars(clean)[name], vars(noisy)[name]), name


# --- laws ---


@some
@given(patterns, st.sampled_from([Softmax(), Sparsemax(), TopK(2), Hard()]), st.integers(0, 2**31))
def test_mass_and_map_sum_to_the_number_of_queries_that_see(pattern, normaliser, seed):
    q, k = torch.randn(2, 1, 2, T, 5, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    seen = attention_stats(q, k, Recipe(pattern=pattern, normaliser=normaliser), ALL)
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
    seen, weights = attention_stats(q, k, Recipe(), StatsRequest(map=size, peaks=size)), steps(q, k, k).weights
    assert_close(seen.map, pool_map(weights, size, "sum"))
    assert_close(seen.peaks, pool_map(weights, size, "max"))


def test_a_map_as_large_as_the_weights_is_the_weights():
    q, k = torch.randn(2, B, 6, T, D, dtype=torch.double)
    assert_close(
        attention_stats(q, k, Recipe(pattern=Window(3)), StatsRequest(map=(T, T))).map,
        steps(q, k, k, Recipe(pattern=Window(3))).weights,
    )


def test_entropy_is_log_sum_exp_less_the_mean_score():
    """H = lse - Σ p s: what a kernel computes by attending with the keys as values."""
    q, k = torch.randn(2, B, 6, T, D, dtype=torch.double)
    seen = attention_stats(q, k, Recipe(score=Dot()), StatsRequest(entropy=True, log_sum_exp=True))
    attended = steps(q, k, k, Recipe(score=Dot())).output
    assert seen.log_sum_exp is not None
    assert_close(seen.entropy, seen.log_sum_exp - (q * attended).sum(-1))


# --- only what is wanted, and no more memory than that ---


def test_what_is_not_wanted_is_not_there():
    q, k = torch.randn(2, B, 6, T, D)
    seen = attention_stats(q, k, Recipe(), StatsRequest(mass=True))
    assert {name for name, value in vars(seen).items() if value is not None} == {"mass"}


class Counting(Full):
    """Everybody sees everybody, and the cells evaluated are counted."""

    def __init__(self):
        object.__setattr__(self, "evaluated", [])

    def sees(self, b, h, i, j):
        self.evaluated.append(i.shape[2] * j.shape[3])  # type: ignore[attr-defined]
        return super().sees(b, h, i, j)


def test_rows_alone_cost_no_more_than_those_rows():
    q, k = torch.randn(2, B, 6, T, D)
    pattern = Counting()
    attention_stats(q, k, Recipe(pattern=pattern), StatsRequest(rows=(3, 8)))
    assert 0 < sum(pattern.evaluated) <= 2 * T * B  # type: ignore[attr-defined]


def test_a_window_costs_its_own_width(monkeypatch):
    """Twice the length, twice the cells; the empty blocks are never scored."""
    monkeypatch.setattr(stats, "ROWS", 16)

    def cells(n: int) -> int:
        q = torch.randn(1, 1, n, 2)
        call = stats.StatsCall.of(*prepare(q, q, q, Recipe(pattern=Window(16)), None, None))
        return sum(band.weights.numel() for band in call.bands(stats.key_runs(Window(16), n, n, 0)))

    assert cells(512) < 512 * 3 * 16 + 1
    assert cells(1024) < 2.1 * cells(512)


MEMORY = """
import sys
import torch
from machine import forget_peak, peak_mib
from regard.attention import Recipe, parse_part
from regard.attention.stats import StatsRequest, attention_stats
torch.set_num_threads(1)
every = dict(mass=True, entropy=True, log_sum_exp=True)
wanted = StatsRequest(rows=(0, 5), columns=(0, 3), top=8, map=(64, 64), peaks=(16, 16), **every)
q, k = torch.randn(2, 1, 1, 8192, 16)
recipe = Recipe(pattern=parse_part(sys.argv[1]))
attention_stats(q[:, :, :256], k[:, :, :256], recipe, wanted)
forget_peak()
before = peak_mib()
attention_stats(q, k, recipe, wanted)
print(peak_mib() - before)
"""


@pytest.mark.parametrize("pattern", [pytest.param("Full()", marks=pytest.mark.slow), "Causal() & Window(512)"])
def test_eight_thousand_tokens_need_far_less_than_their_weights(pattern):
    """The matrix of weights alone would be 256 MiB."""
    done = run_program(MEMORY, pattern)
    assert done.code == 0, done.err
    assert float(done.out) < 96


# --- mistakes ---


@pytest.mark.parametrize("normaliser", [Sampled(), AttentionDropout(0.1), TopK(3, Sampled())])
def test_what_draws_at_random_is_objected_to(normaliser):
    q = torch.randn(1, 1, T, D)
    with pytest.raises(ValueError, match="samples, and its weights differ"):
        attention_stats(q, q, Recipe(normaliser=normaliser), ALL)


def test_mistakes_are_named_with_their_remedy():
    q = torch.randn(1, 1, T, D)
    with pytest.raises(ValueError, match="nothing is requested"):
        StatsRequest()
    with pytest.raises(ValueError, match="top=-1"):
        StatsRequest(top=-1)
    with pytest.raises(ValueError, match=r"map=\(0, 5\)"):
        StatsRequest(map=(0, 5))
    with pytest.raises(ValueError, match="rows: there is no 11 among 11"):
        attention_stats(q, q, Recipe(), StatsRequest(rows=(0, 11)))
    with pytest.raises(ValueError, match="columns: there is no -1 among 11"):
        attention_stats(q, q, Recipe(), StatsRequest(columns=(-1,)))
    with pytest.raises(ValueError, match="widths"):
        attention_stats(q, q[..., :3], Recipe(score=Bilinear(D)), ALL)


def test_more_keys_than_there_are_leave_places_empty():
    q = torch.randn(1, 1, 3, D)
    seen = attention_stats(q, q, Recipe(score=Additive(D, 7)), StatsRequest(top=5))
    assert seen.top is not None
    assert (seen.top.keys[..., 3:] == -1).all()
    assert (seen.top.keys[..., :3].sort(-1).values == torch.arange(3)).all()


def test_no_gradient_is_kept():
    q = torch.randn(1, 1, T, D, requires_grad=True)
    seen = attention_stats(q, q, Recipe(), StatsRequest(mass=True))
    assert seen.mass is not None
    assert not seen.mass.requires_grad
