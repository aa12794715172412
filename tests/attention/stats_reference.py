"""Reference statistics: every statistic by its definition, from the whole matrix of weights."""

from functools import partial

import pytest
import torch
from torch import testing

from regard.attention import Recipe, stats, steps
from regard.attention import stats as probes_file
from regard.attention.stats import AttentionStats, StatsRequest, attention_stats
from tests.attention.test_parity import B, D, T

TOP = 3
ALL = StatsRequest(
    rows=(7, 2),
    columns=(0, 5, 3),
    top=TOP,
    map=(3, 5),
    peaks=(5, 2),
    mass=True,
    entropy=True,
    log_sum_exp=True,
)


def small_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several bands, several tiles of heads and keys, even at a few tokens."""
    monkeypatch.setattr(stats, "ROWS", 4)
    monkeypatch.setattr(stats, "CELLS_AT_ONCE", {"cpu": 300, "cuda": 300})
    monkeypatch.setattr(probes_file, "CHUNK", 2)


def pool_map(weights: torch.Tensor, size: tuple[int, int], reduce: str) -> torch.Tensor:
    """A map by its definition, one axis after the other."""
    for dim, cells in ((2, size[0]), (3, size[1])):
        which = torch.arange(weights.shape[dim], device=weights.device) * cells // weights.shape[dim]
        parts = [weights.index_select(dim, (which == cell).nonzero().flatten()) for cell in range(cells)]
        nothing = torch.zeros_like(weights.narrow(dim, 0, 1))
        kept = [part if part.shape[dim] else nothing for part in parts]
        weights = torch.cat([p.sum(dim, True) if reduce == "sum" else p.amax(dim, True) for p in kept], dim)  # noqa: FBT003
    return weights if reduce == "sum" else weights.clamp(min=0)


def assert_stats(
    seen: AttentionStats,
    weights: torch.Tensor,
    scores: torch.Tensor,
    visible: torch.Tensor,
    wanted: StatsRequest,
    **within: float,
):
    """Every statistic against the whole matrix of weights, within a tolerance of torch's own or this one."""
    assert_close = partial(testing.assert_close, **within)
    assert_close(seen.rows, weights[:, :, list(wanted.rows)])
    assert_close(seen.columns, weights[..., list(wanted.columns)])
    assert_close(seen.mass, weights.sum(2))
    assert wanted.map is not None
    assert wanted.peaks is not None
    assert_close(seen.map, pool_map(weights, wanted.map, "sum"))
    assert_close(seen.peaks, pool_map(weights, wanted.peaks, "max"))
    assert_close(seen.log_sum_exp, scores.masked_fill(~visible, -torch.inf).logsumexp(-1))
    p = weights / weights.sum(-1, keepdim=True)
    want = -torch.where(weights == 0, 0.0, p * p.log()).sum(-1)
    want = want.masked_fill((weights < 0).any(-1), torch.nan)
    assert_close(seen.entropy, want, equal_nan=True)
    if not wanted.top:
        assert seen.top is None
        return
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


def assert_agrees(recipe: Recipe, groups: int = 6, new: int = T, wanted: StatsRequest = ALL, dtype=torch.double, **at):
    q = torch.randn(B, 6, new, D, dtype=dtype)
    k = torch.randn(B, groups, T, D, dtype=dtype)
    at = at or {"q_index": T - new}
    want = steps(q, k, k, recipe, **at)
    assert_stats(attention_stats(q, k, recipe, wanted, **at), want.weights, want.adjusted, want.visible, wanted)
