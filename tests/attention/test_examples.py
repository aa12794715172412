"""Worked examples a person can check on paper: the lectures' own numbers, and one for every part."""

import pytest
import torch
from torch.testing import assert_close

from regard.attention.batch_patterns import Edges, Padding
from regard.attention.catalogue import EXAMPLES, HI, W_KEY, W_QUERY, W_VALUE, K, Q, V, WorkedExample, X, agrees, tensor
from regard.attention.functional import attend, steps
from regard.attention.latent import Linformer
from regard.attention.layer_options import LayerOptions, no_projection
from regard.attention.multihead import MultiHeadAttention
from regard.attention.normaliser import AttentionDropout, Sigmoid
from regard.attention.pattern import Causal, Positions, Window
from regard.attention.position import Rotary
from regard.attention.position_variants import (
    Alibi,
    Clipped,
    DependencyTree,
    LogBuckets,
    RelativeBias,
    RelativeVectors,
    Sinusoidal,
    TreeDepth,
    TreePath,
)
from regard.attention.recipe import Recipe
from regard.attention.score import Additive, Bilinear, Cosine, Dot, Feature, ScaledDot
from regard.attention.sparse_patterns import Block, Global, Prefix, Random, Strided


def matrix(pattern, n=4):
    """A pattern as rows of 0 and 1."""
    positions = Positions.of(torch.zeros(1, 1, n, 1), torch.zeros(1, 1, n, 1), None, None)
    return pattern.sees(*positions.grid(1, 1).all()).expand(1, 1, n, n)[0, 0].int().tolist()


# --- answers to exercises ---


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(7, 7.0), ([0.25, 0.75], torch.tensor([0.25, 0.7505])), (torch.eye(2).bool(), [[1, 0], [0, 1]])],
)
def test_an_answer_agrees_whatever_its_type(answer, expected):
    assert agrees(answer, expected)


@pytest.mark.parametrize(
    "answer",
    [..., None, "0.25 0.75", [..., ...], [0.25, ...], [0.25], [[0.25, 0.75]], [0.25, 0.752], [0.25, float("nan")]],
    ids=str,
)
def test_a_gap_a_wrong_shape_or_a_wrong_number_does_not_agree(answer):
    assert not agrees(answer, torch.tensor([0.25, 0.75]))


# --- the lectures ---


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_example_comes_out_as_on_paper(example: WorkedExample):
    seen = steps(*example.qkv(), example.recipe)
    assert_close(seen.weights[0, 0], tensor(example.weights), rtol=0, atol=0.51 * 10**-example.digits)
    assert_close(seen.output[0, 0], tensor(example.output), rtol=0, atol=0.51 * 10**-example.digits)


def test_the_second_lectures_projections_give_its_queries_keys_and_values():
    for weight, made in ((W_QUERY, Q), (W_KEY, K), (W_VALUE, V)):
        assert torch.equal(tensor(X) @ tensor(weight), tensor(made))


def unscaled_layer(model: int, *, heads: int, head: int) -> MultiHeadAttention:
    """As in the lectures: q · k as it is, and projections without a bias."""
    options = LayerOptions(projection=lambda i, o: torch.nn.Linear(i, o, bias=False))
    return MultiHeadAttention(model, heads=heads, head=head, recipe=Recipe(score=Dot()), options=options).double()


def test_the_second_lectures_example_through_the_layer():
    """x and the three weight matrices in, the lecture's outputs out: 1.9366, 6.6831, 1.5951 unscaled."""
    layer = unscaled_layer(4, heads=1, head=3)
    with torch.no_grad():
        for part, weight in (("query", W_QUERY), ("key", W_KEY), ("value", W_VALUE)):
            layer.get_parameter(f"{part}.weight").copy_(tensor(weight).T)
        layer.get_parameter("output.weight").copy_(torch.eye(4, 3))
    first = layer(tensor(X)[None])[0, 0]
    assert_close(first, tensor([[1.9366, 6.6831, 1.5951, 0]])[0], rtol=0, atol=5e-5)


def test_hi_how_are_you_matches_itself_best():
    """The lecture's score matrix: symmetric, each word nearest itself; scaled by √4 it is halved."""
    words = torch.eye(4, dtype=torch.double)[None, None]
    seen = steps(tensor(HI)[None, None], words, words)
    assert torch.equal(seen.scores[0, 0], tensor(HI) / 2)
    assert torch.equal(seen.scores, seen.scores.mT)
    assert seen.weights[0, 0].argmax(-1).tolist() == [0, 1, 2, 3]


def test_two_heads_of_scalar_self_attention():
    """Fourth lecture: two heads of W d×1, joined by Wᴼ. The second head negates the keys of the first."""
    layer = unscaled_layer(2, heads=2, head=1)
    log2 = torch.log(torch.tensor(2.0, dtype=torch.float64)).item()
    with torch.no_grad():
        layer.get_parameter("query.weight").copy_(tensor([[1, 0], [1, 0]]))
        layer.get_parameter("key.weight").copy_(tensor([[0, log2], [0, -log2]]))
        layer.get_parameter("value.weight").copy_(tensor([[0, 3], [0, 3]]))
        layer.get_parameter("output.weight").copy_(tensor([[1, 0], [1, 1]]))
    output, seen = layer.look(tensor([[1, 0], [0, 1]])[None])
    # word 1 asks with q = 1 and compares with keys 0 and ±log 2; word 2 asks with q = 0 and cannot tell them apart
    assert_close(seen.weights[0, 0], tensor([[1 / 3, 2 / 3], [1 / 2, 1 / 2]]))
    assert_close(seen.weights[0, 1], tensor([[2 / 3, 1 / 3], [1 / 2, 1 / 2]]))
    assert_close(output[0], tensor([[2, 3], [3 / 2, 3]]))


def test_weight_free_attention_as_a_layer():
    x = tensor([[1, 0], [0, 2]])[None]
    layer = MultiHeadAttention(
        2, heads=1, recipe=Recipe(score=Dot()), options=LayerOptions(projection=no_projection)
    ).double()
    assert not list(layer.parameters())
    assert_close(layer(x), (x @ x.mT).softmax(-1) @ x)


def test_dog_and_cat_correlate():
    """Fourth lecture: related words have vectors with high correlation, here 0.9968."""
    dog = tensor([[0.3645, 0.9507, 0.7320, 0.5987]])
    cat = tensor([[0.2949, 0.7559, 0.6172, 0.4943]])
    centred = [(x - x.mean())[None, None] for x in (dog, cat)]
    assert_close(Cosine(temperature=1.0).compare(*centred).item(), 0.9968, rtol=0, atol=5e-5)


def test_the_sinusoidal_table():
    table = Sinusoidal().table(torch.arange(4), 4)
    expected = [[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 1.0000], [0.9093, -0.4161, 0.0200, 0.9998]]
    assert_close(table[:3], tensor(expected), rtol=0, atol=5e-5)
    assert_close(table[3], tensor([[0.1411, -0.9900, 0.0300, 0.9996]])[0], rtol=0, atol=5e-5)


def test_sines_in_the_first_half_are_the_same_numbers_reordered():
    adjacent, halves = Sinusoidal().table(torch.arange(9), 6), Sinusoidal(pairs="halves").table(torch.arange(9), 6)
    assert torch.equal(halves, adjacent[:, [0, 2, 4, 1, 3, 5]])
    assert torch.equal(Sinusoidal(first=2).table(torch.arange(7), 6), adjacent[2:])


# --- scores ---


def test_scaled_dot_divides_by_the_root_of_the_width():
    ones = torch.ones(1, 1, 1, 4)
    assert Dot().compare(ones, ones).item() == 4.0
    assert ScaledDot().compare(ones, ones).item() == 2.0


def test_bilinear_is_q_times_w_times_k():
    score = Bilinear(2, key=3)
    with torch.no_grad():
        score.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    q, k = torch.tensor([[[[1.0, 10.0]]]]), torch.tensor([[[[1.0, 0.0, 2.0]]]])
    assert score.compare(q, k).item() == 41 + 2 * 63


def test_additive_is_v_times_tanh_of_the_sum():
    score = Additive(1, hidden=2, key=1)
    with torch.no_grad():
        score.W.weight.copy_(torch.tensor([[1.0], [2.0]]))
        score.U.weight.copy_(torch.tensor([[3.0], [-1.0]]))
        score.v.copy_(torch.tensor([10.0, 100.0]))
    q, k = torch.tensor([[[[0.1]]]]), torch.tensor([[[[0.2]]]])
    expected = 10 * torch.tanh(torch.tensor(0.7)) + 100 * torch.tanh(torch.tensor(0.0))
    assert_close(score.compare(q, k).item(), expected.item())


def test_the_feature_map_is_elu_plus_one():
    q, k = torch.tensor([[[[0.0, 2.0]]]]), torch.tensor([[[[1.0, -1.0]]]])
    expected = 1 * 2 + 3 * torch.exp(torch.tensor(-1.0))
    assert_close(Feature().compare(q, k).item(), expected.item())


def test_sigmoid_weighs_each_key_by_itself():
    scores = torch.tensor([[[[0.0, 100.0]]]])
    assert_close(Sigmoid().weigh(scores, scores == scores), torch.tensor([[[[0.5, 1.0]]]]))


# --- patterns ---


def test_a_window_of_one_sees_only_itself():
    assert matrix(Window(1), 3) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_a_stride_of_two_sees_every_other():
    assert matrix(Strided(2)) == [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]


def test_the_global_token_sees_all_and_is_seen_by_all():
    assert matrix(Global(1), 3) == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]


def test_a_prefix_is_seen_by_all_and_the_rest_is_causal():
    assert matrix(Causal() | Prefix(2)) == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_blocks_of_two():
    assert matrix(Block(2)) == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


def test_bigbird_is_a_pattern_among_blocks():
    assert matrix(Block(1, Window(2) | Global(1))) == matrix(Window(2) | Global(1))
    assert matrix(Block(2, Causal())) == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_random_picks_the_promised_number_of_earlier_tokens_and_looking_is_mutual():
    seen = torch.tensor(matrix(Random(3, seed=5), 60))
    assert torch.equal(seen, seen.T)
    assert seen.tril(-1).sum(1).tolist() == [0, 1, 2] + [3] * 57
    assert torch.equal(seen[:40, :40], torch.tensor(matrix(Random(3, seed=5), 40)))
    assert not torch.equal(seen, torch.tensor(matrix(Random(3, seed=6), 60)))


def test_graph_edges_are_looked_along():
    assert matrix(Edges(torch.tensor([[0, 2, 2], [1, 0, 2]])), 3) == [[0, 1, 0], [0, 0, 0], [1, 0, 1]]


def test_padding_is_seen_by_nobody():
    assert matrix(Padding(torch.tensor([2])), 3) == [[1, 1, 0]] * 3


# --- positions ---


def test_alibi_dims_the_distance_by_half_and_quarter():
    b, h = torch.tensor(0), torch.tensor([0, 1])
    assert Alibi(heads=8).bias(b, h, torch.tensor(5), torch.tensor(3)).tolist() == [-1.0, -0.5]


def test_alibi_slopes_for_three_heads_follow_the_papers_rule():
    """Two heads: 2^-4, 2^-8; the third comes from the series for four heads: 2^-2."""
    assert Alibi(heads=3).slope(torch.arange(3)).tolist() == [2**-4, 2**-8, 2**-2]


def test_rotary_turns_a_pair_by_its_place():
    quarter = Rotary(theta=1.0)  # every pair rotates by one radian per position
    x = torch.tensor([[[[1.0, 0.0]]]]).double()
    rotated = quarter.rotate(x, torch.tensor([2]))[0, 0, 0]
    assert_close(rotated.tolist(), [torch.cos(torch.tensor(2.0)).item(), torch.sin(torch.tensor(2.0)).item()])


def test_rotary_pairs_adjacent_features_or_halves():
    x = torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]]).double()
    at = torch.tensor([1])
    assert Rotary().rotate(x, at)[0, 0, 0].nonzero().flatten().tolist() == [0, 1]
    assert Rotary(pairs="halves").rotate(x, at)[0, 0, 0].nonzero().flatten().tolist() == [0, 2]


def test_t5_buckets():
    """32 buckets both ways: distances 0 to 7 are their own; 8 to 11 share; ahead starts at 16; 128 is the last."""
    ahead = torch.tensor([0, -1, -7, -8, -11, -12, -127, -1000, 1, 7, 8, 1000])
    zero = torch.zeros_like(ahead)
    assert LogBuckets().bucket(zero, zero, ahead).tolist() == [0, 1, 7, 8, 8, 9, 15, 15, 17, 23, 24, 31]


def test_a_relative_bias_reads_head_and_distance():
    scheme = RelativeBias(Clipped(1), heads=2)
    with torch.no_grad():
        scheme.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]))
    zero, h = torch.tensor(0), torch.tensor([0, 1])
    # key before the query, at it, after it, far after it
    for j, expected in ((4, [1, 10]), (5, [2, 20]), (6, [3, 30]), (9, [3, 30])):
        assert scheme.bias(zero, h, torch.tensor(5), torch.tensor(j)).tolist() == expected


def test_shaws_vectors_add_to_keys_and_values():
    """Shaw et al. 2018, eqs. 3 and 4, written out pair by pair."""
    d, n = 2, 4
    scheme = RelativeVectors(Clipped(1), head=d).double()
    q, k, v = torch.randn(3, 1, 1, n, d, dtype=torch.double)
    out = attend(q, k, v, Recipe(position=scheme))
    for i in range(n):
        a = [scheme.keys[max(-1, min(1, j - i)) + 1] for j in range(n)]
        c = [scheme.values[max(-1, min(1, j - i)) + 1] for j in range(n)]
        e = torch.stack([q[0, 0, i] @ (k[0, 0, j] + a[j]) / d**0.5 for j in range(n)]).softmax(0)
        assert_close(out[0, 0, i], sum(e[j] * (v[0, 0, j] + c[j]) for j in range(n)))


# the black cat ate the mouse: the<-cat, black<-cat, cat<-ate, ate is the root, the<-mouse, mouse<-ate
CAT = torch.tensor([[3, 3, 4, 0, 6, 4]])


def test_depth_in_the_tree():
    assert DependencyTree.from_governors(CAT).depth().tolist() == [[2, 2, 1, 0, 2, 1]]


def test_paths_through_the_tree():
    path = DependencyTree.from_governors(CAT).path()[0]
    the, black, cat, ate, mouse = 0, 1, 2, 3, 5
    assert path.diag().tolist() == [0] * 6
    assert path[ate, black] == 2  # down one line of descent: the difference in depth
    assert path[black, ate] == -2
    assert path[the, black] == 2  # two children of one head, black after the
    assert path[black, the] == -2
    assert path[black, mouse] == 3  # over the root: depth 2 + depth 1
    assert path[cat, mouse] == 2


def test_tree_schemes_read_the_tree():
    tree = DependencyTree.from_governors(CAT)
    waves = TreeDepth().with_tree(tree).table(torch.arange(6), 4)
    assert_close(waves[0], Sinusoidal().table(torch.tensor([2, 2, 1, 0, 2, 1]), 4))
    relation = TreePath(1).with_tree(tree)
    zero = torch.tensor(0)
    assert [int(relation.bucket(zero, torch.tensor(i), torch.tensor(3))) for i in range(6)] == [0, 0, 0, 1, 0, 0]


# --- the rest ---


def test_linformer_mixes_keys_and_values():
    """head = softmax(q (E k)ᵀ / √d) (F v), written out; a shorter text uses the first columns."""
    mix = Linformer(max_length=7, rank=2).double()
    layer = MultiHeadAttention(6, heads=2, form=mix).double()
    x = torch.randn(1, 5, 6, dtype=torch.double)
    q, k, v = (part(x).view(1, 5, 2, 3).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
    E, F = mix.E[0, :, :5], mix.F[0, :, :5]
    heads = (q @ (E @ k).mT / 3**0.5).softmax(-1) @ (F @ v)
    assert_close(layer(x), layer.output(heads.transpose(1, 2).reshape(1, 5, 6)))


def test_dropout_keeps_the_mean():
    scores = torch.zeros(1, 1, 1, 4)
    draws = torch.stack([AttentionDropout(0.5).weigh(scores, scores == 0) for _ in range(400)])
    assert set(draws.unique().tolist()) == {0.0, 0.5}
    assert_close(draws.mean().item(), 0.25, rtol=0, atol=0.03)
