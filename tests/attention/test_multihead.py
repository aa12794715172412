"""Multi-head attention: caches, grouping, crossing, packing, dropout."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    POSITIONS,
    RECIPES,
    Causal,
    Clipped,
    DependencyTree,
    Dot,
    Feature,
    Hard,
    KVCache,
    LayerForm,
    LayerOptions,
    Linformer,
    MultiHeadAttention,
    PackedSequences,
    Padding,
    Proportional,
    Recipe,
    RecipeSizes,
    RelativeVectors,
    Rotary,
    Sampled,
    TopK,
    TreePath,
    Window,
    attend,
    explain,
    get_recipe,
    no_projection,
    reinforce,
)
from regard.attention.backends.linear import LinearState
from tests.narrowing import assert_is_instance, not_none

SIZES = RecipeSizes(heads=6, head=4, tokens=11, window=3, block=2)
READS_ON = ["causal", "strictly before", "sliding window", "strided", "documents", "causal linear"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pieces", [[1] * 11, [5, 1, 5], [10, 1], [11]], ids=str)
@pytest.mark.parametrize("position", [name for name in POSITIONS if name not in ("sinusoidal", "learned")])
@pytest.mark.parametrize("name", READS_ON)
def test_reading_in_pieces_is_reading_at_once(name, position, pieces):
    layer = MultiHeadAttention(7, heads=6, groups=3, head=4, recipe=get_recipe(name, position, SIZES)).double()
    x, cache, parts = torch.randn(2, 11, 7, dtype=torch.double), KVCache(), []
    for piece in x.split(pieces, 1):
        part, cache = layer.extend(piece, cache)
        parts.append(part)
    assert_close(torch.cat(parts, 1), layer(x))
    assert cache.length == 11


def test_a_cache_is_a_value():
    """Going on twice from the same cache gives the same answer twice: nothing was written into it."""
    layer = MultiHeadAttention(8, heads=2, recipe=Recipe(pattern=Causal())).double()
    x = torch.randn(1, 5, 8, dtype=torch.double)
    _, cache = layer.extend(x[:, :4])
    once, twice = layer.extend(x[:, 4:], cache)[0], layer.extend(x[:, 4:], cache)[0]
    assert torch.equal(once, twice)
    assert cache.length == 4


def test_linear_attention_remembers_a_state_of_fixed_size():
    layer = MultiHeadAttention(8, heads=2, recipe=get_recipe("causal linear", "rotary", RecipeSizes(heads=2, head=4)))
    sizes = []
    cache = KVCache()
    for _ in range(5):
        _, cache = layer.extend(torch.randn(1, 3, 8), cache)
        state = assert_is_instance(cache.past, LinearState)
        sizes.append(state.kv.numel() + assert_is_instance(state.k, Tensor).numel())
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_grouped_heads_are_full_heads_with_repeated_keys(groups):
    grouped = MultiHeadAttention(12, heads=6, groups=groups, head=2).double()
    full = MultiHeadAttention(12, heads=6, head=2).double()
    full.load_state_dict(
        {
            name: weight
            if not name.startswith(("key", "value"))
            else weight.unflatten(0, (groups, 2)).repeat_interleave(6 // groups, 0).flatten(0, 1)
            for name, weight in grouped.state_dict().items()
        }
    )
    x = torch.randn(2, 5, 12, dtype=torch.double)
    assert_close(grouped(x), full(x))


def test_crossing_attends_to_another_text_of_another_width():
    layer = MultiHeadAttention(6, heads=2, options=LayerOptions(memory=10)).double()
    x, memory = torch.randn(2, 3, 6, dtype=torch.double), torch.randn(2, 5, 10, dtype=torch.double)
    output, seen = layer.look(x, memory)
    assert seen.weights.shape == (2, 2, 3, 5)
    assert_close(layer(x, memory), output)
    order = torch.randperm(5)
    assert_close(layer(x, memory[:, order]), output)


@pytest.mark.parametrize("position", [name for name in POSITIONS if name not in ("sinusoidal", "learned")])
def test_packed_sequences_do_not_meet(position):
    layer = MultiHeadAttention(
        8, heads=2, recipe=Recipe(pattern=Causal(), position=POSITIONS[position](RecipeSizes(heads=2, head=4)))
    ).double()
    texts = [torch.randn(n, 8, dtype=torch.double) for n in (3, 1, 7)]
    packed = PackedSequences.of(texts)
    apart = packed.split(layer(packed.x, pattern=packed.pattern))
    for text, got in zip(texts, apart, strict=True):
        assert_close(got, layer(text[None])[0])
    assert packed.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6]


def test_long_packed_sequences_skip_the_blocks_between_them():
    layer = MultiHeadAttention(8, heads=1)
    texts = [torch.randn(n, 8) for n in (700, 900, 500)]
    packed = PackedSequences.of(texts)
    for text, got in zip(texts, packed.split(layer(packed.x, pattern=packed.pattern)), strict=True):
        assert_close(got, layer(text[None])[0], rtol=1e-4, atol=1e-5)


def test_a_tree_reaches_the_layer():
    recipe = Recipe(position=RelativeVectors(TreePath(2), head=4))
    layer = MultiHeadAttention(8, heads=2, recipe=recipe).double()
    x = torch.randn(1, 6, 8, dtype=torch.double)
    cat, chain = (
        DependencyTree.from_governors(torch.tensor([[3, 3, 4, 0, 6, 4]])),
        DependencyTree.from_governors(torch.tensor([[0, 1, 2, 3, 4, 5]])),
    )
    assert not torch.allclose(layer(x, tree=cat), layer(x, tree=chain))
    # a chain is a row: its paths are distances
    row = MultiHeadAttention(8, heads=2, recipe=Recipe(position=RelativeVectors(Clipped(2), head=4))).double()
    row.load_state_dict(layer.state_dict())
    assert_close(layer(x, tree=chain), row(x))
    with pytest.raises(ValueError, match="needs the sentences' trees"):
        layer(x)


def test_learned_parts_are_the_layers_parameters_and_get_gradients():
    for name in RECIPES:
        layer = MultiHeadAttention(
            8, heads=2, recipe=get_recipe(name, "t5", RecipeSizes(heads=2, head=4, tokens=5))
        ).double()
        assert any("position" in parameter for parameter, _ in layer.named_parameters())
        if layer.recipe.normaliser == Hard():  # a choice has no slope: it learns by `reinforce`
            continue
        layer(torch.randn(1, 5, 8, dtype=torch.double)).sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters()), name


def test_a_fresh_recipe_shares_no_weights():
    recipe = get_recipe("bahdanau", "t5", RecipeSizes(heads=2, head=4))
    fresh = recipe.fresh()
    assert fresh.to_toml() == recipe.to_toml()
    assert not set(map(id, recipe.learned().parameters())) & set(map(id, fresh.learned().parameters()))


def test_dropout_works_while_training_alone():
    layer = MultiHeadAttention(8, heads=2, dropout=0.5)
    x = torch.randn(1, 9, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_sparse_attention_drops_the_same_weights_going_back():
    """The block backend attends again for the backward pass, so it must draw the same noise again."""
    from regard.attention import AttentionDropout, attend
    from regard.attention.backends import gather

    q, k, v = (torch.randn(1, 1, 9, 3, dtype=torch.double, requires_grad=True) for _ in range(3))
    recipe = Recipe(pattern=Window(3), normaliser=AttentionDropout(0.3))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(7)
        return attend(q, k, v, recipe, backend="gather")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "SIZES", {2: 1.0})
        assert torch.autograd.gradcheck(run, (q, k, v))


# --- hard attention ---


def test_hard_attention_samples_while_training_and_chooses_otherwise():
    layer = MultiHeadAttention(8, heads=2, recipe=Recipe(normaliser=Hard()))
    x = torch.randn(1, 50, 8)
    draws = torch.stack([layer.look(x)[1].weights for _ in range(20)])
    assert draws.std(0).max() > 0
    assert draws.unique().tolist() == [0.0, 1.0]
    layer.eval()
    seen = layer.look(x)[1]
    assert torch.equal(seen.weights.argmax(-1), seen.scores.argmax(-1))


def test_sampled_attention_has_the_softmax_distribution():
    scores = torch.log(torch.tensor([1.0, 2.0, 3.0, 4.0])).expand(1, 1, 20_000, 4)
    visible = torch.tensor([True, True, False, True]).expand_as(scores)
    frequencies = Sampled().weigh(scores, visible).mean((0, 1, 2))
    expected = torch.tensor([1.0, 2.0, 0.0, 4.0]) / 7
    spread = (expected * (1 - expected) / 20_000).sqrt()
    assert ((frequencies - expected).abs() <= 4.5 * spread).all()


def test_the_log_probability_is_that_of_the_key_drawn():
    scores = torch.log(torch.tensor([1.0, 3.0])).expand(1, 1, 40, 2)
    visible = torch.ones_like(scores, dtype=torch.bool)
    weights = Sampled().weigh(scores, visible)
    logs = Sampled().log_probability(scores, visible, weights)
    assert_close(logs.exp()[0, 0], (weights * torch.tensor([0.25, 0.75])).sum(-1)[0, 0])


@pytest.mark.parametrize("baseline", [0.0, 2.0])
def test_reinforce_has_the_right_mean_with_any_baseline(baseline):
    """Against the exact gradient of E[reward] = Σ p(key) reward(key); the baseline only changes the spread."""
    rewards = torch.tensor([1.0, 2.0, 4.0], dtype=torch.double)
    scores = torch.tensor([0.3, -0.2, 0.5], dtype=torch.double, requires_grad=True)
    exact = torch.autograd.grad((scores.softmax(0) * rewards).sum(), scores)[0]
    many = 40_000
    rows = scores.expand(1, 1, many, 3)
    visible = torch.ones_like(rows, dtype=torch.bool)
    weights = Sampled().weigh(rows, visible)
    loss = reinforce(
        Sampled().log_probability(rows, visible, weights)[0, 0],
        (weights @ rewards)[0, 0],
        torch.full((many,), baseline, dtype=torch.double),
    )
    estimate = -torch.autograd.grad(loss, scores)[0]
    assert_close(estimate, exact, rtol=0, atol=0.03)


def test_a_draw_among_the_best_knows_its_probability():
    scores = torch.log(torch.tensor([1.0, 3.0, 4.0])).expand(1, 1, 40, 3)
    visible = torch.ones_like(scores, dtype=torch.bool)
    normaliser = TopK(2, Sampled())
    weights = normaliser.weigh(scores, visible)
    logs = not_none(normaliser.log_probability(scores, visible, weights))
    assert_close(logs.exp()[0, 0], (weights * torch.tensor([0, 3 / 7, 4 / 7])).sum(-1)[0, 0])


def test_the_layer_gives_log_probabilities_to_train_with():
    layer = MultiHeadAttention(8, heads=2, recipe=Recipe(score=Dot(), normaliser=Hard()))
    output, seen = layer.look(torch.randn(1, 5, 8))
    log_probability = not_none(seen.log_probability)
    assert log_probability.shape == (1, 2, 5)
    loss = reinforce(log_probability, output.mean().expand(1, 2, 5), torch.zeros(1, 2, 5))
    loss.backward()
    assert not_none(layer.get_parameter("query.weight").grad).abs().sum() > 0


def test_straight_through_is_hard_forwards_and_soft_backwards():
    from regard.attention import StraightThrough

    scores = torch.randn(1, 1, 3, 5, dtype=torch.double, requires_grad=True)
    visible = torch.ones_like(scores, dtype=torch.bool)
    weights = StraightThrough(temperature=0.7).weigh(scores, visible)
    assert weights.unique().tolist() == [0.0, 1.0]
    assert (weights.sum(-1) == 1).all()
    grad = torch.autograd.grad((weights * torch.randn_like(weights)).sum(), scores)[0]
    assert grad.abs().sum() > 0
    assert_close(grad.sum(-1), torch.zeros(1, 1, 3, dtype=torch.double))


@dataclass(frozen=True)
class OwnForm(LayerForm):
    def check(self, recipe, heads, groups, head):
        pass


def test_a_form_that_no_layer_builds_is_not_passed_over():
    with pytest.raises(ValueError, match=r"InducingPoints or Linformer, not OwnForm\(\)"):
        MultiHeadAttention(8, heads=2, form=OwnForm())


# --- Linformer ---


@pytest.mark.parametrize("heads", [1, 2])
def test_linformer_ignores_padding(heads):
    layer = MultiHeadAttention(8, heads=2, form=Linformer(max_length=9, rank=3, heads=heads)).double()
    x = torch.randn(1, 5, 8, dtype=torch.double)
    padded = torch.cat((x, torch.randn(1, 2, 8, dtype=torch.double)), 1)
    assert_close(layer(padded, pattern=Padding(torch.tensor([5])))[:, :5], layer(x))


def test_per_head_mixtures_differ_and_shared_ones_do_not():
    k = torch.randn(1, 1, 5, 4).expand(1, 2, 5, 4)
    shared, own = Linformer(5, rank=3)(k, k)[0], Linformer(5, rank=3, heads=2)(k, k)[0]
    assert torch.equal(shared[:, 0], shared[:, 1])
    assert not torch.equal(own[:, 0], own[:, 1])


def test_what_linformer_cannot_do_is_refused():
    mix = Linformer(max_length=4, rank=2)
    with pytest.raises(ValueError, match="cannot be applied any more"):
        MultiHeadAttention(8, heads=2, recipe=Recipe(pattern=Causal()), form=mix)
    layer = MultiHeadAttention(8, heads=2, form=mix)
    with pytest.raises(ValueError, match="at most 4 tokens, not 5"):
        layer(torch.zeros(1, 5, 8))
    with pytest.raises(ValueError, match="Padding alone"):
        layer(torch.zeros(1, 4, 8), pattern=Causal())
    with pytest.raises(ValueError, match="cannot use a KV cache"):
        layer.extend(torch.zeros(1, 4, 8))
    with pytest.raises(ValueError, match="3 heads, but there are 2"):
        MultiHeadAttention(8, heads=2, form=Linformer(4, 2, heads=3))(torch.zeros(1, 4, 8))


def test_qk_norm_norms_each_head_before_it_is_rotated():
    """The same layer without the norm, whose queries and keys are normed by hand."""
    layer = MultiHeadAttention(
        6, heads=2, head=4, recipe=Recipe(position=Rotary()), options=LayerOptions(head_norm=nn.RMSNorm)
    ).double()
    norms = [assert_is_instance(norm, nn.RMSNorm) for norm in (layer.query_norm, layer.key_norm)]
    with torch.no_grad():
        norms[0].weight.copy_(torch.arange(1, 5))
        norms[1].weight.copy_(torch.arange(4, 0, -1))
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    q, k, v = (rearrange(part(x), "b t (h d) -> b h t d", h=2) for part in (layer.query, layer.key, layer.value))
    q, k = (
        y / (y.square().mean(-1, keepdim=True) + torch.finfo(y.dtype).eps).sqrt() * norm.weight
        for y, norm in zip((q, k), norms, strict=True)
    )
    heads = attend(q, k, v, layer.recipe, backend="reference")
    assert_close(layer(x), layer.output(rearrange(heads, "b h t d -> b t (h d)")))


def test_absent_projections_need_one_width():
    with pytest.raises(ValueError, match="widths must agree"):
        MultiHeadAttention(6, heads=2, options=LayerOptions(memory=4, projection=no_projection))


def test_rotary_needs_an_even_head():
    with pytest.raises(ValueError, match="odd"):
        MultiHeadAttention(9, heads=3, recipe=Recipe(position=Rotary()))(torch.zeros(1, 2, 9))


def test_linear_attention_reads_padded_sentences_without_their_matrix():
    """The ends of sentences only leave keys out of the sums."""
    lengths, recipe = torch.tensor([7, 3, 0]), Recipe(score=Feature(), normaliser=Proportional())
    q, k, v = torch.randn(3, 3, 2, 7, 5, dtype=torch.float64)
    for pattern in (Padding(lengths), Causal() & Padding(lengths), Padding(lengths) & Causal()):
        padded = replace(recipe, pattern=pattern)
        assert str(explain(padded, q)).startswith("linear")
        assert_close(attend(q, k, v, padded), attend(q, k, v, padded, backend="reference"))


def test_former_keywords_still_work_and_say_what_they_are_now():
    mix = Linformer(max_length=9, rank=3)
    cases: tuple[tuple[dict[str, Any], str, Any], ...] = (
        ({"compress": mix}, "form=...", lambda layer: layer.form is mix),
        ({"head_norm": nn.RMSNorm}, r"LayerOptions\(head_norm=...\)", lambda layer: layer.query_norm is not None),
        ({"memory": 5}, r"LayerOptions\(memory=...\)", lambda layer: layer.key.in_features == 5),
        ({"backend": "sdpa"}, r"LayerOptions\(backend=...\)", lambda layer: layer.backend == "sdpa"),
        ({"projection": no_projection}, "projection", lambda layer: isinstance(layer.query, nn.Identity)),
    )
    for given, now, found in cases:
        with pytest.warns(DeprecationWarning, match=now):
            layer = MultiHeadAttention(8, heads=2, **given)
        assert found(layer)
    with pytest.raises(TypeError, match="has no argument 'bias'; see LayerOptions"):
        MultiHeadAttention(8, heads=2, bias=False)
