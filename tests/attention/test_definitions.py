"""Definitions whose breach no other test noticed; found by planting errors (benchmarks/mutants.py)."""

from math import cos, log, pi, sin

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.attention import block_map as blocks_module
from regard.attention.backends import flex
from regard.attention.batch_patterns import Documents, Padding
from regard.attention.block_map import FULL, MIXED
from regard.attention.catalogue import RecipeSizes, get_recipe
from regard.attention.functional import attend, steps
from regard.attention.normaliser import AttentionDropout, Proportional, ReLU
from regard.attention.parts import parse_part
from regard.attention.pattern import Causal
from regard.attention.position import NoPosition, Rotary
from regard.attention.position_variants import (
    Alibi,
    AxialRotary,
    Clipped,
    CoPE,
    DependencyTree,
    Learned,
    LogBuckets,
    NTKScaling,
    RelativeBias,
    RotaryScaling,
    TreeDepth,
    YarnScaling,
)
from regard.attention.recipe import Recipe
from regard.attention.scaled_score import GivenScale, score_with_scale
from regard.attention.score import Cosine, Dot, Feature, ScaledDot
from regard.attention.softmax_variants import Sampled, StraightThrough, reinforce
from regard.attention.sparse_patterns import Block
from tests.attention.patterns import dense
from tests.narrowing import not_none

LOG = torch.log(torch.arange(0, 10, dtype=torch.double))  # LOG[n] is log n: softmax weights become fractions


def row(*numbers: float | Tensor) -> Tensor:
    """One sentence, one head, one query."""
    return torch.tensor(numbers, dtype=torch.double)[None, None, None]


def everything(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


# --- scores ---


def test_the_cosine_of_three_four_and_the_second_axis_is_four_fifths():
    assert_close(Cosine(temperature=5.0).compare(row(3, 4), row(0, 2)).item(), 4.0)


def test_a_score_takes_the_scale_that_is_given():
    q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 4.0]]]])
    assert GivenScale(0.25).compare(q, k).item() == 11 / 4
    assert [score_with_scale(scale, 16) for scale in (0.25, 0.3)] == [ScaledDot(), GivenScale(0.3)]


def test_the_feature_maps_relu_and_exp():
    assert Feature("relu").compare(row(-1, 2), row(3, 5)).item() == 2 * 5
    assert_close(Feature("exp").compare(row(LOG[2], LOG[3]), row(LOG[5], 0)).item(), 2.0 * 5 + 3 * 1)


# --- patterns ---


def test_documents_of_keys_differ_from_those_of_queries_when_crossing():
    """Two queries, of texts 0 and 1, and three keys, of texts 1, 1 and 0."""
    pattern = Documents(torch.tensor([[0, 1]]), key_segment_ids=torch.tensor([[1, 1, 0]]))
    assert dense(pattern, 2, 3)[0, 0].int().tolist() == [[0, 0, 1], [1, 1, 0]]


def test_paddings_are_equal_if_their_lengths_are():
    """Block maps are remembered by pattern, so what is equal must be the same."""
    assert Padding(torch.tensor([3, 1])) == Padding(torch.tensor([3, 1]))
    assert Padding(torch.tensor([3, 1])) != Padding(torch.tensor([1, 3]))


def test_the_last_block_of_an_uneven_text_is_not_full_though_most_of_it_is():
    """Seven tokens in pairs, each pair seeing the pairs before: the fifth token does not see the seventh."""
    assert not dense(Block(2, Causal()), 7)[0, 0, 4, 6]
    assert Block(2, Causal()).blocks(7, block=4).dense().tolist() == [[MIXED, 0], [FULL, MIXED]]


def test_a_map_made_two_rows_at_a_time_is_the_map(monkeypatch):
    monkeypatch.setattr(blocks_module, "ROWS_AT_ONCE", 2 * 3)
    assert Causal().blocks(6, block=2).dense().tolist() == [[MIXED, 0, 0], [FULL, MIXED, 0], [FULL, FULL, MIXED]]


@pytest.mark.parametrize(
    ("name", "window", "rows"),
    [
        ("prefix", 2, ["11000", "11000", "11100", "11110", "11111"]),
        ("longformer", 2, ["11111", "11100", "11110", "10111", "10011"]),
        ("never itself", 2, ["01111", "10111", "11011", "11101", "11110"]),
        ("dilated window", 3, ["10100", "01010", "10101", "01010", "00101"]),
        ("local blocks", 2, ["11000", "11000", "00110", "00110", "00001"]),
    ],
)
def test_the_catalogue_means_what_it_says(name, window, rows):
    pattern = get_recipe(name, sizes=RecipeSizes(window=window, block=2)).pattern
    assert ["".join(map(str, seen)) for seen in dense(pattern, 5)[0, 0].int().tolist()] == rows


# --- normalisers ---


def test_what_a_rate_of_three_quarters_leaves_counts_four_times():
    scores = row(*[1.0] * 100)
    assert AttentionDropout(0.75, ReLU()).weigh(scores, everything(scores)).unique().tolist() == [0, 4]


def test_the_log_probability_knows_of_positions():
    """Scores 0 and biases log 1, log 2, log 3 for the key before, at and after: chances of 1, 2 and 3 sixths."""
    bias = RelativeBias(Clipped(1), heads=1).double()
    with torch.no_grad():
        bias.weight.copy_(LOG[1:4])
    x = torch.zeros(1, 1, 3, 1, dtype=torch.double)
    seen = steps(x[:, :, :1], x, x, Recipe(score=Dot(), position=bias, normaliser=Sampled()), q_index=1)
    chances = torch.tensor([1, 2, 3], dtype=torch.double) / 6
    assert_close(not_none(seen.log_probability).exp().item(), (seen.weights * chances).sum().item())


def test_reinforce_on_paper():
    """-(2·(-1) + 0·(-2)) / 2 = 1; the reward is a number, not something to be improved."""
    log_probability = torch.tensor([-1.0, -2.0], requires_grad=True)
    reward, baseline = torch.tensor([3.0, 5.0], requires_grad=True), torch.tensor([1.0, 5.0])
    loss = reinforce(log_probability, reward, baseline)
    assert loss.item() == 1.0
    by_log, by_reward = torch.autograd.grad(loss, (log_probability, reward), allow_unused=True)
    assert by_log.tolist() == [-1.0, 0.0]
    assert by_reward is None


def test_straight_through_draws_with_the_softmax_probability():
    scores = torch.stack((LOG[1], LOG[3])).expand(1, 1, 20_000, 2)
    share = StraightThrough().weigh(scores, everything(scores))[..., 1].mean().item()
    assert abs(share - 3 / 4) < 4.5 * (3 / 16 / 20_000) ** 0.5


def test_straight_through_is_softer_backwards_when_hot():
    """So hot that two keys weigh ½ each whatever the noise: the derivative of softmax is then ½·½ / temperature."""
    scores = row(0.3, -0.2).requires_grad_()
    weights = StraightThrough(temperature=1e9).weigh(scores, everything(scores))
    grad = torch.autograd.grad(weights[..., 0].sum(), scores)[0]
    assert_close((1e9 * grad).flatten().tolist(), [0.25, -0.25])


# --- positions ---


def test_no_position_added_changes_nothing():
    assert (NoPosition() + Rotary()).parts() == (Rotary() + NoPosition()).parts() == (Rotary(),)


def test_learned_places_are_read_where_the_tokens_stand():
    scheme = Learned(3, 2)
    with torch.no_grad():
        scheme.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert scheme.table(torch.tensor([2, 1]), 2).tolist() == [[5, 6], [3, 4]]
    with pytest.raises(ValueError, match="has positions 0 to 2"):
        scheme.table(torch.tensor([3]), 2)


def test_the_second_pair_of_four_features_turns_a_hundred_times_slower():
    """10000^(-2/4) = 1/100, so at position 100 it has rotated by one radian."""
    rotated = Rotary().rotate(row(0, 0, 1, 0), torch.tensor([100])).flatten()
    assert_close(rotated.tolist(), [0.0, 0.0, cos(1), sin(1)])


def test_what_turns_seldom_within_a_text_is_slowed_down():
    """4, 2 and ½ turns in 100 tokens: kept from 3 on, slowed down by 4 up to 1, half of both between them."""
    frequency = 2 * pi * torch.tensor([4.0, 2.0, 0.5]) / 100
    scaled = RotaryScaling(factor=4.0, length=100, slow=1.0, fast=3.0).scale(frequency)
    assert_close(scaled / frequency, torch.tensor([1.0, 1 / 2 + 1 / 8, 1 / 4]))


def test_a_larger_theta_slows_the_slowest_pair_by_the_factor_and_the_fastest_not_at_all():
    assert_close(NTKScaling(factor=4.0).scale(torch.tensor([1.0, 0.1, 0.01])), torch.tensor([1.0, 0.05, 0.0025]))


def test_yarn_mixes_along_whole_pairs():
    """64, 32, 16, ... turns: 24 lie between pairs 1 and 2, 3 between 4 and 5, so that 1 to 5 are slowed down evenly."""
    frequency, scaling = 0.5 ** torch.arange(8.0), YarnScaling(factor=2.0, length=402, slow=3.0, fast=24.0)
    expected = torch.tensor([1, 1, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5])
    assert_close(scaling.scale(frequency) / frequency, expected)
    assert scaling.magnitude == pytest.approx(1 + 0.1 * log(2))


def test_patches_turn_by_their_row_and_then_by_their_column():
    """Of a picture two patches wide the second one stands in row 0 and column 1."""
    found = AxialRotary(width=2).rotate(torch.tensor([[[[1.0, 0.0, 1.0, 0.0]]]]), torch.tensor([1]))
    assert_close(found.flatten(), torch.tensor([1.0, 0.0, cos(1), sin(1)]))


def test_contextual_positions_count_back_from_the_query():
    """Scores of 0 open every gate by a half: the keys stand at 1½, 1 and ½, and e[p] is 10 p."""
    position = CoPE(max_position=2, head=1)
    position.vectors.data = torch.tensor([[0.0], [10.0], [20.0]])
    q, k = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 3, 1)
    seen = steps(q, k, k, Recipe(position=position))
    assert_close((seen.adjusted - seen.scores).detach()[0, 0], torch.tensor([[15.0, 10.0, 5.0]]))


@pytest.mark.parametrize("position", [Rotary(), Alibi(heads=3)], ids=str)
def test_every_sentence_has_places_of_its_own(position):
    """Two sentences, one from position 0 and one from position 4: each gives what it gives alone."""
    q, k, v = torch.randn(3, 2, 3, 7, 4, dtype=torch.double)
    at, recipe = torch.tensor([[0, 1], [4, 5]]), Recipe(position=position, pattern=Causal())
    both = attend(q[:, :, :2], k, v, recipe, q_index=at)
    for b in range(2):
        alone = attend(q[b : b + 1, :, :2], k[b : b + 1], v[b : b + 1], recipe, q_index=int(at[b, 0]))
        assert_close(both[b : b + 1], alone)


def test_t5_buckets_one_way():
    """32 buckets for the past: distances 0 to 15 are their own, 128 and more are the last; the future is bucket 0."""
    ahead = torch.tensor([0, -1, -15, -16, -1000, 1, 50])
    zero = torch.zeros_like(ahead)
    assert LogBuckets(bidirectional=False).bucket(zero, zero, ahead).tolist() == [0, 1, 15, 16, 31, 0, 0]


def test_depths_are_told_by_waves_of_the_given_theta():
    """100^(-2/4) = 1/10: at depth 1 the second pair is sin and cos of 1/10."""
    scheme = TreeDepth(theta=100.0).with_tree(DependencyTree.from_governors(torch.tensor([[0, 1], [2, 0]])))
    deep = torch.tensor([sin(0.1), cos(0.1)], dtype=torch.double)
    assert_close(scheme.table(torch.arange(2), 4)[0, 1, 2:], deep)
    # position 1 of the first sentence and position 0 of the second are the deep ones
    waves = scheme.table(torch.tensor([[1], [0]]), 4)
    assert_close(waves[:, 0, 2:], deep.expand(2, 2))


# --- positions ---


def test_keys_that_stand_later_are_not_seen_though_they_are_the_first_there_are():
    q, k, v = torch.randn(3, 1, 1, 2, 4, dtype=torch.double)
    assert (attend(q, k, v, Recipe(pattern=Causal()), k_index=3) == 0).all()


def test_queries_may_leave_places_out():
    q, k, v = torch.randn(3, 1, 1, 3, 4, dtype=torch.double)
    recipe = Recipe(pattern=Causal())
    some = attend(q[:, :, [0, 2]], k, v, recipe, q_index=torch.tensor([0, 2]))
    assert_close(some, attend(q, k, v, recipe)[:, :, [0, 2]])


# --- backends ---


def test_the_first_query_of_linear_attention_sees_the_first_key_however_many_follow():
    q, k, v = torch.randn(3, 1, 1, 5, 4, dtype=torch.double)
    recipe = Recipe(score=Feature(), pattern=Causal(), normaliser=Proportional())
    assert_close(attend(q[:, :, :1], k, v, recipe), v[:, :, :1])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", ["flex", "gather", "sdpa", "reference"])
def test_two_biases_add_up(backend):
    """log 2 for the key before, log 3 for the key after: weights of 2, 1 and 3 sixths; added, of 4, 1 and 9."""
    scheme = RelativeBias(Clipped(1), heads=1).double()
    with torch.no_grad():
        scheme.weight.copy_(LOG[[2, 1, 3]])
        x, v = torch.zeros(1, 1, 3, 3, dtype=torch.double), torch.eye(3, dtype=torch.double)[None, None]
        once, twice = (
            attend(x[:, :, :1], x, v, Recipe(position=position), q_index=1, backend=backend).flatten()
            for position in (scheme, scheme + scheme)
        )
    assert_close(once * 6, torch.tensor([2.0, 1.0, 3.0], dtype=torch.double))
    assert_close(twice * 14, torch.tensor([4.0, 1.0, 9.0], dtype=torch.double))


@pytest.mark.parametrize(("start", "mixed", "full"), [(0, [0, 1, 2], [0, 1, 2]), (128, [1, 2], [1, 2])])
def test_flex_is_told_which_blocks_are_mixed_and_which_are_full(start, mixed, full):
    """384 keys are three blocks of 128: the one on the diagonal is mixed, all before it are full."""
    k = torch.zeros(1, 1, 384, 4)
    q = k[:, :, start:]
    mask = flex.block_mask(Recipe(pattern=Causal()), q, k, start, lambda b, h, i, j: j <= i + start)
    assert mask.kv_num_blocks.flatten().tolist() == [1] * len(mixed)
    assert mask.kv_indices[0, 0, :, 0].tolist() == mixed
    assert not_none(mask.full_kv_num_blocks).flatten().tolist() == full
    assert [sorted(row[:n]) for row, n in zip(not_none(mask.full_kv_indices)[0, 0].tolist(), full, strict=True)] == [
        list(range(n)) for n in full
    ]


# --- notation ---


def test_a_minus_is_read():
    with pytest.raises(ValueError, match="-3"):
        parse_part("Window(-3)")


def test_a_batchs_own_data_is_found_among_blocks():
    with pytest.raises(ValueError, match="Padding holds the data of one batch"):
        Recipe(pattern=Block(2, Padding(torch.tensor([3])))).to_toml()
