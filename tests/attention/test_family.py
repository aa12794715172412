"""Parts of newer papers: their limits and laws, decoding with a KV cache, traces, and the entmax package."""

from dataclasses import replace
from math import exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    AxialRotary,
    Causal,
    CoPE,
    Cosine,
    Differential,
    Dot,
    Entmax,
    Global,
    HeadNorm,
    KVCache,
    LogitScale,
    MultiHeadAttention,
    MultiToken,
    NTKScaling,
    Padding,
    PerHead,
    Recipe,
    RecipeSizes,
    ReLU,
    Rotary,
    SinkSoftmax,
    SoftCap,
    Softmax,
    SoftmaxPlusOne,
    Sparsemax,
    StickBreaking,
    StrictCausal,
    TalkingHeads,
    Window,
    XPos,
    YarnScaling,
    attend,
    get_recipe,
    parse_part,
    steps,
)
from regard.see import trace_layer
from tests.attention.patterns import dense, patterns
from tests.attention.test_parity import LATER, LATER_POSITIONS

T, HEADS, HEAD = 9, 4, 8
SIZES = RecipeSizes(heads=HEADS, head=HEAD, tokens=T, window=3, block=2)
seeds = st.integers(0, 2**31)
some = settings(max_examples=15, deadline=None, derandomize=True)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def everything(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


def layer_of(recipe: Recipe, **given) -> MultiHeadAttention:
    """With learned parts that are not as they begin."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(HEADS * HEAD, heads=HEADS, recipe=recipe, **given).double().eval()
    for weight in layer.learned.parameters():
        nn.init.normal_(weight, std=0.5)
    return layer


# --- entmax ---


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8, 2.0, 2.5])
def test_entmax_is_that_of_its_authors_package(alpha):
    authors = pytest.importorskip("entmax")
    scores = (3 * drawn(1, 2, 3, 5, 17)).requires_grad_()
    theirs = authors.entmax15(scores, -1) if alpha == 1.5 else authors.entmax_bisect(scores, alpha, -1, n_iter=60)
    ours, upstream = Entmax(alpha).weigh(scores, everything(scores)), drawn(2, *scores.shape)
    assert_close(ours, theirs, rtol=0, atol=1e-6)
    (mine,), (yours,) = (torch.autograd.grad(x, scores, upstream) for x in (ours, theirs))
    assert_close(mine, yours, rtol=0, atol=1e-6)


@some
@given(patterns, st.sampled_from([1.0, 1.1, 1.5, 1.7, 2.0, 3.0]), seeds)
def test_entmax_rows_sum_to_one_or_to_nothing_whatever_is_added(pattern, alpha, seed):
    scores, visible = 2 * drawn(seed, 1, 1, T, T), dense(pattern, T)
    weights = Entmax(alpha).weigh(scores, visible)
    assert (weights[~visible] == 0).all()
    assert_close(weights.sum(-1), visible.any(-1).double())
    assert_close(Entmax(alpha).weigh(scores + 50.0, visible), weights)


def test_entmax_lies_between_softmax_and_sparsemax():
    scores = drawn(3, 1, 1, 4, 7)
    for alpha, limit in ((1 + 1e-5, Softmax()), (1.0, Softmax()), (2.0, Sparsemax()), (2 - 1e-7, Sparsemax())):
        assert_close(
            Entmax(alpha).weigh(scores, everything(scores)), limit.weigh(scores, everything(scores)), rtol=0, atol=1e-4
        )
    support = [(Entmax(alpha).weigh(3 * scores, everything(scores)) > 0).sum().item() for alpha in (1.0, 1.3, 1.6, 2.0)]
    assert support == sorted(support, reverse=True)
    assert support[0] > support[-1]


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.5])
def test_the_derivative_of_entmax_is_right(alpha):
    scores = drawn(4, 1, 2, 3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: Entmax(alpha).weigh(s, dense(Causal(), 3, 5, start=2)), scores)


def test_entmax_of_large_scores_in_half_precision():
    scores = torch.tensor([[[[1e4, 1e4 - 8, 0.0]]]], dtype=torch.float16)
    assert Entmax(1.5).weigh(scores, everything(scores)).tolist() == [[[[1.0, 0.0, 0.0]]]]


# --- a share for nobody ---


def test_a_sink_is_one_more_key_without_a_value():
    q, k, v = drawn(5, 3, 1, 2, T, 4)
    sinks = torch.tensor([0.3, -1.2], dtype=torch.double)
    with_sink = steps(q, k, v, Recipe(score=Dot(), pattern=Causal(), normaliser=SinkSoftmax.of(sinks)))
    for h in range(2):
        scores = (q[0, h] @ k[0, h].mT).masked_fill(~dense(Causal(), T)[0, 0], -torch.inf)
        more = torch.cat((scores, sinks[h].expand(T, 1)), 1).softmax(-1)
        assert_close(with_sink.weights[0, h], more[:, :-1])
        assert_close(with_sink.output[0, h], more[:, :-1] @ v[0, h])


def test_softmax_plus_one_is_a_sink_of_score_0_and_of_minus_infinity_is_softmax():
    scores, visible = drawn(6, 1, 2, T, T), dense(StrictCausal(), T).expand(1, 2, T, T)
    zero, none = SinkSoftmax(2).double(), SinkSoftmax.of(torch.full((2,), -torch.inf, dtype=torch.double))
    assert_close(zero.weigh(scores, visible), SoftmaxPlusOne().weigh(scores, visible))
    plain = Softmax().weigh(scores, visible)
    assert_close(none.weigh(scores, visible)[:, :, 1:], plain[:, :, 1:])  # the first row sees nothing


def test_what_sticks_leave_is_the_product_of_what_each_key_left():
    scores, visible = drawn(7, 1, 2, T, T), dense(StrictCausal(), T)
    weights = StickBreaking().weigh(scores, visible)
    left = torch.where(visible, 1 - scores.sigmoid(), 1.0).prod(-1)
    assert_close(weights.sum(-1), 1 - left)


def test_parts_for_other_heads_say_so():
    q, k, v = drawn(8, 3, 1, 3, 5, 4)
    for recipe in (
        Recipe(normaliser=SinkSoftmax(2)),
        Recipe(normaliser=TalkingHeads(2)),
        Recipe(normaliser=MultiToken(2, 2, 1)),
        Recipe(score=LogitScale(2)),
    ):
        recipe.learned().double()
        with pytest.raises(ValueError, match="for 2 heads, not 3"):
            attend(q, k, v, recipe, backend="reference")
    with pytest.raises(ValueError, match="3 heads are odd"):
        attend(q, k, v, Recipe(normaliser=Differential(4).double()))


# --- scores ---


def test_a_temperature_of_one_half_doubles_the_scores():
    score = LogitScale(2, Cosine(1.0)).double()
    score.log_scale.data = torch.tensor([log(2.0), 0.0], dtype=torch.double)
    q, k = drawn(9, 2, 1, 2, 3, 4)
    plain = Cosine(1.0).compare(q, k)
    assert_close(score.compare(q, k), plain * torch.tensor([2.0, 1.0], dtype=torch.double)[:, None, None])
    assert_close(score.for_heads(range(1)).compare(q[:, :1], k[:, :1]), 2 * plain[:, :1])


def test_a_cap_far_above_the_scores_changes_nothing():
    q, k, v = drawn(10, 3, 1, 2, 5, 4)
    assert_close(attend(q, k, v, Recipe(score=SoftCap(1e6))), attend(q, k, v))
    assert (SoftCap(0.5).compare(100 * q, k).abs() <= 0.5).all()


# --- positions ---


@some
@given(st.integers(0, 500), seeds)
def test_xpos_and_scaled_and_partial_rotary_depend_on_differences_only(shift, seed):
    q, k, v = drawn(seed, 3, 1, 2, 7, 8)
    for position in (
        XPos(scale=64.0),
        Rotary(fraction=0.5),
        Rotary(scaling=NTKScaling(4.0)),
        Rotary(scaling=YarnScaling(4.0, 64)),
    ):
        recipe = Recipe(position=position)
        assert_close(
            attend(q, k, v, recipe, q_index=shift, k_index=shift), attend(q, k, v, recipe), rtol=1e-6, atol=1e-8
        )


def test_axial_rotary_depends_on_rows_and_columns_only():
    """A picture of 5 × 4 patches, and the same 3 × 3 of them from another corner."""
    q, k, v = drawn(11, 3, 1, 2, 9, 8)
    recipe, corner = Recipe(position=AxialRotary(width=4, first=1)), torch.tensor([0, 1, 2, 4, 5, 6, 8, 9, 10])
    here, there = (attend(q, k, v, recipe, q_index=1 + corner + at, k_index=1 + corner + at) for at in (0, 9))
    assert_close(here, there)
    first = AxialRotary(4, first=1).rotate(q, torch.zeros(9, dtype=torch.long))
    assert_close(first, q)


def test_partial_rotary_leaves_the_last_features_as_they_are():
    x, at = drawn(12, 1, 2, 7, 8), torch.arange(7)
    rotated = Rotary(fraction=0.5).rotate(x, at)
    assert torch.equal(rotated[..., 4:], x[..., 4:])
    assert_close(rotated[..., :4], Rotary().rotate(x[..., :4], at))
    with pytest.raises(ValueError, match="is odd"):
        Rotary(fraction=0.4).rotate(x, at)


def test_cope_counts_tokens_where_every_gate_is_open():
    """Large scores open every gate: the key at distance i - j has position i - j + 1, as far as there are any."""
    q, k = torch.full((1, 1, 6, 1), 50.0, dtype=torch.double), torch.ones(1, 1, 6, 1, dtype=torch.double)
    position = CoPE(max_position=4, head=1).double()
    seen = steps(q, k, k, Recipe(score=Dot(), position=position, pattern=Causal()))
    added = (seen.adjusted - seen.scores)[0, 0] / 50
    for i in range(6):
        for j in range(i + 1):
            assert added[i, j].item() == pytest.approx(position.vectors[min(i - j + 1, 4)].item(), rel=1e-9)


# --- across heads and queries ---


def test_heads_that_hear_themselves_alone_are_plain_attention():
    scores, visible = drawn(13, 2, HEADS, T, T), dense(Causal(), T).expand(2, HEADS, T, T)
    talking, several = TalkingHeads(HEADS).double(), MultiToken(HEADS, 3, 5).double()
    talking.before.data, talking.after.data = torch.eye(HEADS).double(), torch.eye(HEADS).double()
    several.weight.data = (
        torch.zeros(HEADS, 3, 5)
        .double()
        .index_put((torch.arange(HEADS), *torch.tensor([[0], [2]])), torch.tensor(1.0).double())
    )
    plain = Softmax().weigh(scores, visible)
    assert_close(talking.weigh(scores, visible), plain)
    assert_close(several.weigh(scores, visible), plain)
    assert [x.row_wise for x in (talking, several)] == [True, False]
    assert [x.head_wise for x in (talking, several, Differential(2), Softmax())] == [False, True, False, True]


def test_heads_talk_before_and_after_the_softmax():
    """Heads exchange their scores; the second then has the mean of both maps: ½ ½, and the mean of ½ ½ and ¼ ¾."""
    talking = TalkingHeads(2).double()
    talking.before.data = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    talking.after.data = torch.tensor([[1.0, 0.5], [0.0, 0.5]]).double()
    scores = torch.tensor([[1.0, 3.0], [2.0, 2.0]]).double().log().view(1, 2, 1, 2)
    weights = talking.weigh(scores, everything(scores))[0, :, 0]
    assert_close(weights, torch.tensor([[0.5, 0.5], [0.375, 0.625]]).double())


def test_multi_token_attention_looks_back_along_queries_and_to_both_sides_along_keys():
    """θ reads the score of the query before at the key before: s'_11 = s_00, and all others see nothing there."""
    several = MultiToken(1, queries=2, keys=3, then=ReLU()).double()
    several.weight.data.zero_()
    several.weight.data[0, 1, 2] = 1.0  # a = 1, b = 1
    scores = torch.tensor([[5.0, 7.0], [11.0, 13.0]]).double()[None, None]
    assert several.weigh(scores, everything(scores))[0, 0].tolist() == [[0.0, 0.0], [0.0, 5.0]]
    assert not several.weigh(scores, dense(Window(1), 2)).any()  # the first key is hidden from the second query


def test_multi_token_attention_finds_the_key_that_two_queries_seek_together():
    """The second query asks for b, the first for a: only the third key is what both like a little."""
    scores = torch.tensor([[2.0, 0.0, 1.5], [0.0, 2.0, 1.5]])[None, None].double()
    normaliser = MultiToken(1, queries=2, keys=1).double()
    normaliser.weight.data = torch.ones(1, 2, 1).double()
    assert Softmax().weigh(scores, everything(scores))[0, 0, 1].argmax() == 1
    assert normaliser.weigh(scores, everything(scores))[0, 0, 1].argmax() == 2


def test_differential_attention_is_the_papers():
    """Ye et al. 2024, eqs. 1 to 3: values of width 2d, λ from four vectors, RMS norm of each pair, times 1 - λ_init."""
    initial = Differential.initial_of_layer(2)
    assert initial == pytest.approx(0.8 - 0.6 * exp(-0.6))
    norm = HeadNorm(2 * HEAD, scale=1 - initial)
    layer = layer_of(Recipe(pattern=Causal(), normaliser=Differential(HEAD, initial)), output_norm=norm)
    x, part = drawn(14, 2, T, HEADS * HEAD), layer.recipe.normaliser
    assert isinstance(part, Differential)
    share = (part.a @ part.b).exp() - (part.c @ part.d).exp() + initial
    q, k, v = layer.query(x), layer.key(x), layer.value(x)
    outputs = []
    for n in range(HEADS // 2):
        own = slice(2 * n * HEAD, (2 * n + 2) * HEAD)
        (q1, q2), (k1, k2) = q[..., own].split(HEAD, -1), k[..., own].split(HEAD, -1)
        pairs, hidden = ((q1, k1), (q2, k2)), ~dense(Causal(), T)[0]
        one, other = ((a @ b.mT / HEAD**0.5).masked_fill(hidden, -torch.inf).softmax(-1) for a, b in pairs)
        o = (one - share * other) @ v[..., own]
        outputs.append((1 - initial) * o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    assert_close(layer(x), layer.output(torch.cat(outputs, -1)))


# --- patterns ---


def test_global_tokens_that_are_listed_are_those_tokens():
    assert torch.equal(dense(Global([0, 1, 2]), T), dense(Global(3), T))
    assert Global([5, 0, 5]) == Global((0, 5)) == parse_part("Global([0, 5])")
    assert hash(Global([5, 0])) == hash(Global((0, 5)))
    with pytest.raises(ValueError, match="each of tokens"):
        Global([0, -1])


@some
@given(patterns, patterns, seeds)
def test_each_head_has_its_own_pattern(one, other, seed):
    q, k, v = drawn(seed, 3, 2, 3, T, 4)
    both = attend(q, k, v, Recipe(pattern=PerHead([one, other]) & Padding(torch.tensor([T, 5]))))
    for h, pattern in enumerate((one, other, one)):
        one_q, one_k, one_v = (x[:, h : h + 1] for x in (q, k, v))
        alone = attend(one_q, one_k, one_v, Recipe(pattern=pattern & Padding(torch.tensor([T, 5]))))
        assert_close(both[:, h : h + 1], alone)
    assert parse_part(repr(PerHead([one, other]))) == PerHead((one, other))


# --- a gate on the output ---


def test_a_gate_multiplies_what_the_heads_give():
    layer, x = layer_of(Recipe(pattern=Causal()), output_gate=nn.Linear), drawn(15, 2, T, HEADS * HEAD)
    gate = layer.output_gate
    assert isinstance(gate, nn.Linear)
    plain = layer_of(Recipe(pattern=Causal()))
    plain.load_state_dict({name: x for name, x in layer.state_dict().items() if not name.startswith("output_gate")})
    assert_close(layer(x), layer.output(plain.compute_heads(x) * gate(x).sigmoid()))
    nn.init.zeros_(gate.weight)
    nn.init.zeros_(gate.bias)  # σ(0) = ½
    assert_close(layer.compute_heads(x), plain.compute_heads(x) / 2)


# --- decoding, and seeing ---


def family() -> list[tuple[str, str]]:
    return [*((name, "none") for name in LATER), *(("causal", position) for position in LATER_POSITIONS)]


@pytest.mark.parametrize(("name", "position"), family())
def test_token_by_token_with_a_kv_cache_gives_what_it_gives_at_once(name, position):
    recipe = get_recipe(name, position, SIZES)
    recipe = replace(recipe, pattern=recipe.pattern & Causal())
    layer, x = layer_of(recipe, output_gate=nn.Linear, output_norm=HeadNorm(HEAD)), drawn(16, 2, T, HEADS * HEAD)
    cache, parts = KVCache(), []
    if name == "multi-token":
        with pytest.raises(ValueError, match="may mix queries, so a KV cache"):
            layer.extend(x)
        return
    for piece in x.split([4, *[1] * (T - 4)], 1):
        part, cache = layer.extend(piece, cache)
        parts.append(part)
    assert_close(torch.cat(parts, 1), layer(x))


@pytest.mark.parametrize(("name", "position"), family())
def test_what_is_seen_is_what_the_layer_computed(name, position):
    layer, x = layer_of(get_recipe(name, position, SIZES)), drawn(17, 2, T, HEADS * HEAD)
    with torch.no_grad():
        site = trace_layer(layer, x)
    assert site.check().error < 1e-5  # checked in single precision
    output, seen = layer.look(x)
    assert_close(site.head(1, sentence=1, dtype=torch.double).weights, seen.weights[1, 1])
    assert_close(layer(x), output)
    assert site.statistics().entropy.shape[0] == HEADS
