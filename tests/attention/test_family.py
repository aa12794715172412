"""Parts of newer papers: their limits and laws, decoding with a KV cache, traces, and the entmax package."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    CONTENT_RECIPES,
    EXAMPLES,
    GATED_RECIPES,
    AttentionCall,
    AxialRotary,
    Causal,
    CoPE,
    Cosine,
    Delta,
    Differential,
    Dot,
    Entmax,
    Forget,
    GatedDelta,
    Global,
    HeadNorm,
    InducingPoints,
    KimiDelta,
    KVCache,
    LatentKV,
    LayerOptions,
    Lightning,
    LightningIndexer,
    Linformer,
    LogitScale,
    MultiHeadAttention,
    MultiToken,
    NativeSparse,
    NTKScaling,
    Padding,
    PerHead,
    Recipe,
    RecipeSizes,
    ReLU,
    Retention,
    Rotary,
    ScalarDecay,
    SinkSoftmax,
    SoftCap,
    Softmax,
    SoftmaxPlusOne,
    Sparsemax,
    StickBreaking,
    StrictCausal,
    TalkingHeads,
    TopBlocks,
    VectorDecay,
    Window,
    XPos,
    YarnScaling,
    attend,
    get_recipe,
    parse_part,
    record_attention,
    record_steps,
    steps,
)
from regard.attention.functional import prepare
from regard.attention.sparse_patterns import conditions
from regard.data.tokenizers.base import WordTokenizer
from regard.decode import Greedy
from regard.decode.text_generation import generate_all
from regard.models.config import EncoderConfig, LanguageModelConfig
from regard.models.encoder import Encoder
from regard.models.language_model import LanguageModel
from regard.see import AttentionSite, trace_layer, trace_module
from regard.see.gallery import LAYERS, slug
from regard.see.plots.attention_maps import site_maps
from regard.see.plots.terminal import render_view
from regard.tasks.config import format_toml
from regard.tasks.language_modeling.cli import view_language_model
from regard.tasks.language_modeling.task import LanguageModelingSettings, TextGenerator
from regard.tasks.registry import ViewRequest
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
    layer = layer_of(
        Recipe(pattern=Causal(), normaliser=Differential(HEAD, initial)), options=LayerOptions(output_norm=norm)
    )
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
    layer, x = (
        layer_of(Recipe(pattern=Causal()), options=LayerOptions(output_gate=nn.Linear)),
        drawn(15, 2, T, HEADS * HEAD),
    )
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
    layer, x = (
        layer_of(recipe, options=LayerOptions(output_gate=nn.Linear, output_norm=HeadNorm(HEAD))),
        drawn(16, 2, T, HEADS * HEAD),
    )
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


# --- the whole family ---


TESTS, DOCS = Path(__file__).parents[1], Path(__file__).parents[2] / "docs"
CELLS = {"kind": "transformer", "layers": 1, "model": HEADS * HEAD, "heads": HEADS, "hidden": 8, "dropout": 0.0}


@dataclass(frozen=True)
class Member:
    """A part or a layer: how a settings file has it, where it is drawn, worked out and explained.

    Args:
        lines: of the table [model]; `recipe` may be the names of a recipe and a position of the catalogue.
        part: what the model's layers must then hold.
        heading: of its picture in the gallery.
        example: the test that works it out by hand, or the worked example of the catalogue.
        cache: what is said where a KV cache cannot be used; empty where it can.
    """

    lines: dict[str, Any]
    part: Callable[[MultiHeadAttention], bool]
    heading: str
    example: str
    cache: str = ""

    @property
    def is_encoder(self) -> bool:
        """A language model reads token by token; who cannot, reads whole texts."""
        return bool(self.cache)

    def config(self) -> EncoderConfig | LanguageModelConfig:
        given = CELLS | self.lines
        if isinstance(named := given.get("recipe"), tuple):
            with torch.random.fork_rng():
                given["recipe"] = get_recipe(named[0], named[1], SIZES).to_toml()
        return (EncoderConfig if self.is_encoder else LanguageModelConfig).from_dict(given)

    def model(self) -> Encoder | LanguageModel:
        torch.manual_seed(0)
        config = self.config()
        model = Encoder(config, 11) if isinstance(config, EncoderConfig) else LanguageModel(config, 11)
        for layer in layers_of(model):
            for weight in layer.learned.parameters():
                nn.init.normal_(weight, std=0.5)
        return model.double().eval()


def layers_of(model: nn.Module) -> list[MultiHeadAttention]:
    return [part for part in model.modules() if isinstance(part, MultiHeadAttention)]


def run(model: Encoder | LanguageModel) -> Tensor:
    tokens = torch.randint(3, 11, (2, T), generator=torch.Generator().manual_seed(1))
    return model(tokens, torch.tensor([T, T])) if isinstance(model, Encoder) else model(tokens)


def holds(kind: type) -> Callable[[MultiHeadAttention], bool]:
    """Is it the form of a layer, or among the parts of its recipe?"""

    def find(layer: MultiHeadAttention) -> bool:
        recipe = layer.recipe
        patterns = conditions(recipe.pattern)
        parts = [recipe.score, *recipe.position.parts(), *patterns, recipe.normaliser, recipe.gate, layer.form]
        scalings = [part.scaling for part in parts if isinstance(part, Rotary)]
        return any(isinstance(part, kind) for part in (*parts, *scalings))

    return find


def of_recipe(name: str, kind: type, example: str, position: str = "none", cache: str = "") -> Member:
    return Member({"recipe": (name, position)}, holds(kind), name, example, cache)


def of_position(name: str, kind: type, example: str) -> Member:
    return Member({"recipe": ("causal", name)}, holds(kind), f"{name} position", example)


def of_form(form: str, kind: type, heading: str, example: str, cache: str = "") -> Member:
    return Member({"attention_form": form, "recipe": "position = 'NoPosition()'"}, holds(kind), heading, example, cache)


GATES, CONTENT, LATENT = (f"attention/test_{name}.py" for name in ("gates", "content_patterns", "latent"))
HERE = "attention/test_family.py"
DECAYS = f"{GATES}::test_retention_and_lightning_decay_as_their_papers_say"
SCALED = "attention/test_peers_transformers.py::test_scaled_frequencies_are_those_of_transformers"
AXIAL = f"{HERE}::test_axial_rotary_depends_on_rows_and_columns_only"
ROTATED = {"recipe": "position = 'Rotary(fraction=0.5)'"}
FAMILY = {
    "entmax": of_recipe("entmax", Entmax, "entmax"),
    "softmax plus one": of_recipe("softmax plus one", SoftmaxPlusOne, "softmax plus one"),
    "sinks": of_recipe("sinks", SinkSoftmax, f"{HERE}::test_a_sink_is_one_more_key_without_a_value"),
    "soft cap": of_recipe("soft cap", SoftCap, "soft cap"),
    "learned temperature": of_recipe(
        "learned temperature", LogitScale, f"{HERE}::test_a_temperature_of_one_half_doubles_the_scores"
    ),
    "QK-norm": Member(
        ROTATED | {"qk_norm": True, "norm_type": "rms"},
        lambda layer: layer.query_norm is not None and layer.key_norm is not None,
        "qk-norm",
        "attention/test_multihead.py::test_qk_norm_norms_each_head_before_it_is_rotated",
    ),
    "partial rotary": of_position(
        "partial rotary", Rotary, f"{HERE}::test_partial_rotary_leaves_the_last_features_as_they_are"
    ),
    "NTK scaling": of_position("ntk", NTKScaling, SCALED),
    "YaRN": of_position("yarn", YarnScaling, SCALED),
    "2-D rotary": of_position("axial rotary", AxialRotary, AXIAL),
    "xPos": of_position("xpos", XPos, f"{HERE}::test_xpos_and_scaled_and_partial_rotary_depend_on_differences_only"),
    "CoPE": of_position("cope", CoPE, f"{HERE}::test_cope_counts_tokens_where_every_gate_is_open"),
    "stick-breaking": of_recipe("stick-breaking", StickBreaking, "stick-breaking"),
    "differential": of_recipe("differential", Differential, f"{HERE}::test_differential_attention_is_the_papers"),
    "gated output": Member(
        {"output_gate": True},
        lambda layer: layer.output_gate is not None,
        "gated output",
        f"{HERE}::test_a_gate_multiplies_what_the_heads_give",
    ),
    "talking heads": of_recipe("talking heads", TalkingHeads, f"{HERE}::test_heads_talk_before_and_after_the_softmax"),
    "multi-token attention": of_recipe(
        "multi-token",
        MultiToken,
        f"{HERE}::test_multi_token_attention_looks_back_along_queries_and_to_both_sides_along_keys",
        cache="may mix queries, so a KV cache would change earlier outputs",
    ),
    "per-head patterns": of_recipe("per head", PerHead, f"{HERE}::test_each_head_has_its_own_pattern"),
    "listed global tokens": of_recipe(
        "chosen globals", Global, f"{HERE}::test_global_tokens_that_are_listed_are_those_tokens"
    ),
    "forget gate": of_recipe(
        "forget gate", Forget, f"{GATES}::test_a_forget_gate_of_one_half_halves_the_weight_of_what_is_one_token_older"
    ),
    "retention": of_recipe("retention", Retention, DECAYS),
    "lightning": of_recipe("lightning", Lightning, DECAYS),
    "scalar decay": of_recipe("mamba-2", ScalarDecay, f"{GATES}::test_a_state_that_decays_by_hand"),
    "vector decay": of_recipe("gla", VectorDecay, f"{GATES}::test_a_decay_of_each_feature_by_hand"),
    "delta rule": of_recipe("delta rule", Delta, f"{GATES}::test_the_delta_rule_by_hand"),
    "gated delta rule": of_recipe("gated delta rule", GatedDelta, f"{GATES}::test_the_gated_delta_rule_by_hand"),
    "Kimi delta attention": of_recipe(
        "kimi delta", KimiDelta, f"{GATES}::test_the_effective_weights_are_the_recursion_in_value_and_every_gradient"
    ),
    "top blocks": of_recipe(
        "top blocks", TopBlocks, f"{CONTENT}::test_the_block_whose_mean_fits_best_is_chosen", "rotary"
    ),
    "lightning indexer": of_recipe(
        "lightning indexer", LightningIndexer, f"{CONTENT}::test_the_indexer_adds_up_what_its_heads_say", "rotary"
    ),
    "native sparse attention": of_form(
        "NativeSparse(block=2, k=2, window=3)",
        NativeSparse,
        "native sparse",
        f"{CONTENT}::test_branches_that_see_everything_are_causal_attention_in_value_and_gradient",
    ),
    "latent attention": Member(
        ROTATED | {"kv_rank": 6, "rotary_head": HEAD // 2},
        holds(LatentKV),
        "latent attention",
        f"{LATENT}::test_keys_and_values_of_a_latent_by_hand",
    ),
    "inducing points": of_form(
        "InducingPoints(3)",
        InducingPoints,
        "inducing points",
        f"{LATENT}::test_one_point_among_two_tokens_by_hand",
        "attend to the whole sequence; a KV cache would change earlier outputs",
    ),
    "Linformer": of_form(
        f"Linformer(max_length={T}, rank=4)",
        Linformer,
        "linformer",
        "attention/test_examples.py::test_linformer_mixes_keys_and_values",
        "mixes the whole sequence at once and cannot use a KV cache",
    ),
    "hybrids": Member(
        {"recipe": "3 gated delta : 1 full", "layers": 4},
        holds(GatedDelta),
        "3 gated delta : 1 full",
        f"{GATES}::test_the_gated_delta_rule_by_hand",
    ),
}
MEMBERS = pytest.mark.parametrize("member", FAMILY.values(), ids=FAMILY)


def test_the_family_has_34_members_and_nothing_that_is_drawn_is_left_out():
    assert len(FAMILY) == 34
    drawn_names = {member.heading for member in FAMILY.values()}
    newer = [*LATER, *(f"{name} position" for name in LATER_POSITIONS), *GATED_RECIPES, *CONTENT_RECIPES, *LAYERS]
    assert set(newer) - {"moba"} <= drawn_names  # which is top blocks, chosen by every query


@MEMBERS
def test_a_settings_file_has_it(member):
    """Written and read again, and then the layers hold it."""
    config = member.config()
    text = format_toml({"model": config.to_dict()})
    assert type(config).from_dict(tomllib.loads(text)["model"]) == config
    layers = layers_of(member.model())
    assert any(map(member.part, layers))
    assert not any(map(member.part, layers_of(Member({}, member.part, "", "", member.cache).model())))


@MEMBERS
def test_it_is_the_reference_in_value_and_every_gradient(member):
    model = member.model()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with record_steps(model) as record:
        want = run(model)
    assert record.sites
    got, upstream = run(model), drawn(21, *want.shape)
    assert_close(got, want)
    grads = [torch.autograd.grad(y, weights, upstream, materialize_grads=True) for y in (got, want)]
    assert_close(*grads)


@MEMBERS
def test_training_without_dropout_draws_no_random_number(member):
    """What is drawn and thrown away would change the dropout of all steps that follow."""
    model, before = member.model().train(), torch.get_rng_state()
    run(model)
    assert torch.equal(torch.get_rng_state(), before)


@MEMBERS
def test_a_backend_runs_it_or_says_why_not(member):
    model = member.model()
    with torch.no_grad(), record_attention(model) as record:
        run(model)
    for site in record.sites:
        (call,) = record.calls_of(site.name)
        assert isinstance(call, AttentionCall)
        recipe, q, k, positions = prepare(call.q, call.k, call.v, call.recipe, call.q_index, call.k_index)
        for name, backend in BACKENDS.items():
            why = backend.objections(recipe, q, k, positions)
            if not why and name != "flex":  # which traces every call anew
                assert_close(attend(call.q, call.k, call.v, call.recipe, backend=name), call.output)
            assert all(len(sentence.split()) >= 3 for sentence in why)


@MEMBERS
def test_a_cache_gives_what_it_gives_at_once_or_is_refused_in_a_sentence(member):
    model = member.model()
    if isinstance(model, Encoder):
        layer = layers_of(model)[0]
        layer.recipe = replace(layer.recipe, pattern=Causal()) if layer.form is None else layer.recipe
        with pytest.raises(ValueError, match=member.cache):
            layer.extend(torch.zeros(1, 3, CELLS["model"], dtype=torch.double))
        return
    tokens, state, logits = torch.randint(3, 11, (2, T), generator=torch.Generator().manual_seed(1)), model.start(2), []
    for piece in tokens.split([4, *[1] * (T - 4)], 1):
        found, state = model.step(piece, state)
        logits.append(found)
    assert_close(torch.cat(logits, 1), run(model))


@MEMBERS
def test_the_microscope_sees_what_it_computed(member):
    model = member.model().float()
    tokens = torch.randint(3, 11, (1, T))
    _, sites = trace_module(model, tokens, *([torch.tensor([T])] if member.is_encoder else []))
    for site in sites.values():
        assert isinstance(site, AttentionSite)
        assert site.check().holds


@MEMBERS
def test_prompts_are_continued_together_as_the_model_reads_them_alone(member):
    model = member.model()
    if isinstance(model, Encoder):
        return
    prompts, tokens = [[3, 4, 5, 6], [7, 8]], 4
    found = generate_all(model, prompts, Greedy(), tokens=tokens)
    for prompt, new in zip(prompts, found, strict=True):
        for token in new:
            log_probabilities = model(torch.tensor([prompt]))[0, -1].log_softmax(-1)
            assert token.log_probability == pytest.approx(log_probabilities[token.id].item(), abs=1e-9)
            assert token.id == log_probabilities[2:].argmax() + 2  # neither padding nor the beginning
            prompt = [*prompt, token.id]


@MEMBERS
def test_a_terminal_shows_every_head(member):
    """Weights below 0 too, and those on what stands in place of the tokens."""
    model = member.model()
    with torch.no_grad(), record_attention(model) as record:
        run(model)
    layers = {site: list(record.weights(site.name)[0]) for site in record.sites}
    text = render_view(site_maps([str(n) for n in range(T)], "text", layers, causal=not member.is_encoder))
    assert text.count("head ") == sum(map(len, layers.values()))
    assert ("below 0" in text) == any(bool((head < 0).any()) for heads in layers.values() for head in heads)
    if isinstance(model, Encoder):
        return
    tokenizer = WordTokenizer.train(["a b c d e f g"], size=11)
    generator = TextGenerator(tokenizer=tokenizer, model=model, settings=LanguageModelingSettings())
    for request in (ViewRequest(), ViewRequest(all_heads=True), ViewRequest(word="c")):
        output, view = view_language_model(generator, Path(), "a b c", request)
        assert output == "a b c"
        assert "c" in render_view(view)


@MEMBERS
def test_it_is_drawn_worked_out_and_explained(member):
    page = (DOCS / "gallery.md").read_text()
    assert f"\n### {member.heading}\n" in page
    name, position, _ = member.heading.partition(" position")
    picture = f"position-{slug(name)}" if position else slug(name)
    assert f'src="gallery/{picture}.png"' in page
    assert (DOCS / "gallery" / f"{picture}.png").stat().st_size > 1000
    file, _, test = member.example.partition("::")
    if test:
        assert f"def {test}(" in (TESTS / file).read_text()
    else:
        assert file in [example.name for example in EXAMPLES]
