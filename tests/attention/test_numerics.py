"""Numerics: large scores, half precision, ties, hidden keys, widths that only seem to fit, and empty inputs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    AttentionDropout,
    Bilinear,
    Causal,
    Clipped,
    DependencyTree,
    Documents,
    Feature,
    Hard,
    Padding,
    Proportional,
    Recipe,
    RelativeBias,
    RelativeVectors,
    Sampled,
    Sigmoid,
    Softmax,
    Sparsemax,
    StatsRequest,
    StraightThrough,
    TopK,
    TreeDepth,
    TreePath,
    attend,
    attention_stats,
    explain,
    steps,
)
from regard.attention.backends import gather
from regard.attention.backends.hard import hard_attention
from regard.see.edits import EditedNormaliser, SiteEdits
from tests.attention import naive

DTYPES = {torch.bfloat16: 3e38, torch.float16: 6e4, torch.float32: 3e38}
TREES = DependencyTree.from_governors(torch.tensor([[2, 0, 2], [0, 1, 2], [2, 3, 0]]))


def everything(scores: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


# --- large scores and half precision ---


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.sampled_from(list(DTYPES)), st.integers(1, 40), st.floats(-1, 1), st.floats(0.01, 3), st.integers(0, 2**31))
def test_sparsemax_is_right_however_large_the_scores(dtype, keys, offset, spread, seed):
    noise = torch.randn(keys, generator=torch.Generator().manual_seed(seed))
    scores = (noise * spread + offset**7 * DTYPES[dtype] * 0.9).clamp(-DTYPES[dtype], DTYPES[dtype]).to(dtype)
    weights = Sparsemax().weigh(scores.view(1, 1, 1, -1), everything(scores).view(1, 1, 1, -1)).flatten()
    want = naive.weigh(Sparsemax(), scores.double(), [True] * keys, 0)
    assert weights.dtype == dtype
    assert_close(weights.double(), want, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("near", [0.0, 10.0, 100.0, 3e7])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sparsemax_of_a_thousand_keys_sums_to_one(dtype, near):
    near = min(near, DTYPES[dtype] / 2)
    scores = (torch.randn(1, 1, 2, 1024) + near).to(dtype)
    total = Sparsemax().weigh(scores, everything(scores)).double().sum(-1)
    assert_close(total, torch.ones_like(total), rtol=0, atol=0.01)


def test_proportional_weights_survive_a_total_that_float16_cannot_hold():
    scores = torch.full((1, 1, 1, 4000), 100.0, dtype=torch.float16)
    weights = Proportional().weigh(scores, everything(scores))
    assert_close(weights.double(), torch.full_like(weights, 1 / 4000, dtype=torch.double), rtol=1e-3, atol=0)


@pytest.mark.parametrize("normaliser", [Sampled(), StraightThrough(), TopK(4, Sampled())], ids=str)
def test_equal_keys_are_drawn_equally_often_in_half_precision(normaliser):
    scores = torch.full((1, 1, 40_000, 4), 20.0, dtype=torch.bfloat16)
    shares = normaliser.weigh(scores, everything(scores)).double().mean(2)
    assert_close(shares, torch.full_like(shares, 0.25), rtol=0, atol=0.01)  # four standard deviations


def test_the_log_probability_of_a_draw_is_not_rounded_to_half_precision():
    scores = torch.randn(1, 1, 9, 300).bfloat16()
    weights = Sampled().weigh(scores, everything(scores))
    found = Sampled().log_probability(scores, everything(scores), weights)
    want = Sampled().log_probability(scores.double(), everything(scores), weights.double())
    assert found is not None
    assert want is not None
    assert_close(found.double(), want, rtol=1e-5, atol=1e-5)


def test_a_sigmoid_near_one_still_has_a_slope_in_half_precision():
    scores = torch.full((1, 1, 1, 1), 6.5, dtype=torch.bfloat16, requires_grad=True)
    Sigmoid().weigh(scores, everything(scores)).sum().backward()
    assert scores.grad is not None
    assert_close(
        scores.grad.item(), torch.tensor(6.5).sigmoid().mul(1 - torch.tensor(6.5).sigmoid()).item(), rtol=0.01, atol=0
    )


def test_the_only_visible_key_pulls_nothing_in_half_precision():
    recipe = Recipe(position=RelativeBias(Clipped(2), heads=2).bfloat16(), pattern=Padding(torch.tensor([1])))
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out = attend(q, k, v, recipe, backend="relative")
    of_q, of_k = torch.autograd.grad(out, (q, k), torch.randn_like(out))
    assert (of_q == 0).all()
    assert (of_k == 0).all()


# --- hidden keys ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("normaliser", [Softmax(), Proportional(), Sigmoid()], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hidden_key_of_any_size_is_not_felt_by_exponential_features(backend, normaliser, dtype, monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {2: 1.0})
    recipe = Recipe(score=Feature("exp"), pattern=Padding(torch.tensor([6, 4])), normaliser=normaliser)
    q, k, v = (torch.randn(2, 2, 6, 4).to(dtype) for _ in range(3))
    found = []
    for size in (0.0, 1e4):
        k[1, :, 4:] = size
        inputs = tuple(x.clone().requires_grad_() for x in (q, k, v))
        try:
            out = attend(inputs[0], inputs[1], inputs[2], recipe, backend=backend)
        except ValueError as why:
            assert "cannot run this recipe" in str(why)
            return
        found.append((out, *torch.autograd.grad(out.sum(), inputs)))
    assert_close(found[1], found[0])


def test_exponential_features_stay_exponential_within_their_range():
    x = torch.tensor([-3.0, 0.0, 2.0, 80.0])
    assert_close(Feature("exp").fold_k(x), x.exp())


# --- what weighs most ---


@pytest.mark.parametrize("keys", [768, 833, 895])
@pytest.mark.parametrize("normaliser", [Hard(), Softmax(), Sparsemax()], ids=str)
def test_the_top_holds_keys_that_exist(normaliser, keys):
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, keys, 4)
    k[..., -1, :] = q[:, :, 0] * 1000  # the last key has all the weight
    recipe = Recipe(normaliser=normaliser)
    top = attention_stats(q, k, recipe, StatsRequest(top=3)).top
    assert top is not None
    weights = steps(q, k, k, recipe).weights
    assert_close(top.weights, weights.topk(3).values)
    found = weights.gather(-1, top.keys.clamp(min=0))
    assert_close(torch.where(top.keys < 0, 0.0, found), top.weights)


# --- widths and trees that do not fit ---


@pytest.mark.parametrize("backend", [None, "reference", "relative", "gather"])
@pytest.mark.parametrize("width", [1, 3, 9])
def test_relative_vectors_are_not_broadcast_over_values(width, backend):
    q, k, v = torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, width)
    recipe = Recipe(position=RelativeVectors(Clipped(2), head=8))
    with pytest.raises(ValueError, match=f"adds to values of width 8, not {width}"):
        attend(q, k, v, recipe, backend=backend)


def test_relative_vectors_add_to_the_keys_of_a_bilinear_score():
    """q W (k + a): what is added is as wide as a key, whatever the width of a query."""
    score, vectors = Bilinear(8, key=12).double(), RelativeVectors(Clipped(2), head=12).double()
    recipe = Recipe(score=score, position=vectors)
    q, k, v = (torch.randn(1, 1, 4, width, dtype=torch.double) for width in (8, 12, 12))
    a = vectors.keys[Clipped(2).bucket(torch.tensor(0), torch.arange(4)[:, None], torch.arange(4))]
    want = torch.einsum("id,de,ije->ij", q[0, 0], score.weight, k[0, 0] + a)
    assert_close(steps(q, k, v, recipe).adjusted[0, 0], want)
    assert explain(recipe, q, k).backend
    assert attention_stats(q, k, recipe).mass is not None
    with pytest.raises(ValueError, match="adds to heads of width 8, not 12"):
        attend(q, k, v, replace(recipe, position=RelativeVectors(Clipped(2), head=8)))


@pytest.mark.parametrize(
    "position",
    [RelativeBias(TreePath(2), heads=1), RelativeVectors(TreePath(2), head=4)],
    ids=lambda x: type(x).__name__,
)
def test_a_tree_for_each_sentence_or_one_for_all(position):
    x, recipe = torch.randn(2, 1, 3, 4), Recipe(position=position)
    with pytest.raises(ValueError, match="data for 3 sentences, q for 2"):
        attend(x, x, x, recipe.with_tree(tree=TREES))
    shared, repeated = (DependencyTree(TREES.ancestors[rows]) for rows in ([1], [1, 1]))
    assert_close(attend(x, x, x, recipe.with_tree(tree=shared)), attend(x, x, x, recipe.with_tree(tree=repeated)))


@pytest.mark.parametrize("at", [torch.arange(3), torch.arange(3).expand(2, -1)], ids=["shared", "own"])
def test_depths_of_a_tree_for_each_sentence_or_one_for_all(at):
    x, recipe = torch.randn(2, 3, 8), Recipe(position=TreeDepth())
    with pytest.raises(ValueError, match="data for 3 sentences, x for 2"):
        recipe.with_tree(tree=TREES).embed(x, at)
    shared, repeated = (
        recipe.with_tree(tree=DependencyTree(TREES.ancestors[rows])).embed(x, at) for rows in ([1], [1, 1])
    )
    assert_close(shared, repeated)


def test_the_keys_ids_alone_may_differ_between_sentences(monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {2: 1.0})
    ids = Documents(torch.zeros(1, 5).long(), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 1]]))
    x = torch.randn(2, 1, 5, 4)
    want = attend(x, x, x, Recipe(pattern=ids), backend="reference")
    assert (want[1] != 0).any()
    assert_close(attend(x, x, x, Recipe(pattern=ids), backend="gather"), want)


# --- training forms ---


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: TopK(2, inner),
        lambda inner: AttentionDropout(0.5, inner),
        lambda inner: AttentionDropout(0.5, TopK(2, inner)),
        lambda inner: EditedNormaliser(inner, SiteEdits("decoder"), 0, (0,)),
    ],
    ids=["top-k", "dropout", "both", "edited"],
)
def test_what_wraps_hard_attention_trains_it(wrap):
    for training in (Sampled(), StraightThrough()):
        assert wrap(Hard(training=training)).for_training() == wrap(training)


def test_hard_attention_among_the_best_keys_learns():
    scores = torch.randn(1, 1, 5, 7, requires_grad=True)
    normaliser = TopK(3, Hard(training=StraightThrough())).for_training()
    weights = normaliser.weigh(scores, everything(scores))
    (grad,) = torch.autograd.grad(weights, scores, torch.randn_like(weights))
    assert (grad != 0).sum() == 5 * 3


def test_a_dropped_draw_keeps_its_log_probability():
    scores = torch.randn(1, 1, 200, 3)
    weights = AttentionDropout(0.5, Sampled()).weigh(scores, everything(scores))
    found = AttentionDropout(0.5, Sampled()).log_probability(scores, everything(scores), weights)
    assert_close(found, torch.where(weights > 0, scores.log_softmax(-1), 0.0).sum(-1))
    assert (weights.sum(-1) == 0).any()


# --- nothing at all ---


@pytest.mark.parametrize("normaliser", [Hard(), Sampled()], ids=str)
@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)], ids=str)
def test_hard_attention_chooses_nothing_among_nothing(sizes, normaliser):
    b, i, j = sizes
    q, k, v = (torch.randn(b, 2, n, 4, requires_grad=True) for n in (i, j, j))
    found = hard_attention(q, k, v, Recipe(pattern=Causal(), normaliser=normaliser))
    assert found.out.shape == (b, 2, i, 4)
    assert (found.key == -1).all() or j
    loss = found.out.sum() + found.log_probability.sum()
    assert all((grad == 0).all() for grad in torch.autograd.grad(loss, (q, k, v)))


@pytest.mark.parametrize("normaliser", [Softmax(), Hard(), Sparsemax()], ids=str)
@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, 0, 3), (2, 3, 0)], ids=str)
def test_a_probe_of_nothing_finds_nothing(sizes, normaliser):
    b, n_q, n_k = sizes
    q, k, pattern = torch.randn(b, 1, n_q, 4), torch.randn(b, 1, n_k, 4), Causal() & Padding(torch.ones(b).long())
    found = attention_stats(
        q, k, Recipe(pattern=pattern, normaliser=normaliser), StatsRequest(top=2, mass=True, entropy=True)
    )
    assert found.top is not None
    assert found.mass is not None
    assert found.top.keys.shape == (b, 1, n_q, 2)
    assert (found.top.keys == -1).all()
    assert (found.mass == 0).all()
