"""Latent keys and values, and inducing points: worked examples, both forms, caches, traces, edits and settings."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    Alibi,
    Causal,
    Cosine,
    Dot,
    Forget,
    GatedDelta,
    GivenScale,
    InducingPoints,
    KVCache,
    LatentKV,
    LayerOptions,
    Linformer,
    MultiHeadAttention,
    Padding,
    Recipe,
    Rotary,
    Sigmoid,
    SinkSoftmax,
    Unnormalised,
    Window,
    no_projection,
    record_attention,
    steps,
    to_torch,
)
from regard.attention import kv_cache as caches
from regard.attention.latent import absorption_objections, absorption_saves
from regard.models.config import EncoderConfig, LanguageModelConfig
from regard.models.encoder import Encoder
from regard.models.language_model import LanguageModel
from regard.see import AttentionSite, trace_layer, trace_module
from regard.see.edits import Edits, HeadOff
from tests.narrowing import assert_is_instance, not_none

MODEL, HEADS, HEAD, ROTARY, VALUE, RANK = 14, 3, 10, 4, 5, 7
ROTATED = Rotary(fraction=ROTARY / HEAD)
LATENT = LatentKV(rank=RANK, rotary=ROTARY, value=VALUE, query_rank=6)


def layer_of(recipe: Recipe, latent: LatentKV = LATENT, **options: Any) -> MultiHeadAttention:
    torch.manual_seed(5)
    layer = MultiHeadAttention(MODEL, heads=HEADS, head=HEAD, recipe=recipe, form=latent, **options)
    return layer.double().eval()


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(3), requires_grad=True)


def read_in_pieces(layer: MultiHeadAttention, x: Tensor, pieces: list[int]) -> tuple[Tensor, KVCache]:
    cache, out = KVCache(), []
    for piece in x.split(pieces, 1):
        part, cache = layer.extend(piece, cache)
        out.append(part)
    return torch.cat(out, 1), cache


def test_keys_and_values_of_a_latent_by_hand():
    """x = (3, 4): the norm makes the latent √2·(0.6, 0.8), which W^K = (1, 0) and W^V = (0, 5) read; k^R is (3, 0)."""
    latent = LatentKV(rank=2, rotary=2, value=1)
    layer = MultiHeadAttention(2, heads=1, head=3, form=latent, recipe=Recipe(position=Rotary(fraction=2 / 3)))
    assert layer.latent is not None
    down = assert_linear(layer.latent.down)
    down.weight.data = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    down.bias.data.zero_()
    assert_linear(layer.key).weight.data = torch.tensor([[1.0, 0.0]])
    assert_linear(layer.value).weight.data = torch.tensor([[0.0, 5.0]])
    _, k, v = layer.project(torch.tensor([[[3.0, 4.0]]]))
    assert_close(k[0, 0, 0], torch.tensor([3.0, 0.0, 2**0.5 * 0.6]))
    assert_close(v[0, 0, 0], torch.tensor([5 * 2**0.5 * 0.8]))


def assert_linear(part: nn.Module) -> nn.Linear:
    assert isinstance(part, nn.Linear)
    return part


ABSORBED = {
    "scaled": Recipe(position=ROTATED, pattern=Causal()),
    "halves and a window": Recipe(
        score=GivenScale(0.3), position=Rotary(101.0, "halves", fraction=ROTARY / HEAD), pattern=Causal() & Window(4)
    ),
    "dot and a bias": Recipe(score=Dot(), position=ROTATED + Alibi(HEADS), pattern=Causal()),
    "sinks": Recipe(position=ROTATED, pattern=Causal(), normaliser=SinkSoftmax(HEADS)),
    "weights that sum to anything": Recipe(position=ROTATED, pattern=Causal(), normaliser=Sigmoid()),
    "forget gate": Recipe(position=ROTATED, pattern=Causal(), gate=Forget()),
}


@pytest.mark.parametrize("recipe", ABSORBED.values(), ids=ABSORBED)
def test_the_absorbed_form_is_the_plain_form_in_value_and_every_gradient(recipe, monkeypatch):
    layer, x = layer_of(recipe), drawn(2, 9, MODEL)
    assert not absorption_objections(layer, layer.recipe)
    learned = dict(layer.named_parameters())
    upstream = torch.randn(2, 9, MODEL, dtype=torch.double)
    want = layer(x)
    wanted = torch.autograd.grad(want, [x, *learned.values()], upstream, materialize_grads=True)
    for always in (False, True):  # where it saves, and with every piece
        monkeypatch.setattr(caches, "absorption_saves", lambda *a, on=always: on or absorption_saves(*a))
        got, _ = read_in_pieces(layer, x, [3, 1, 1, 4])
        assert_close(got, want)
        assert_close(torch.autograd.grad(got, [x, *learned.values()], upstream, materialize_grads=True), wanted)


NOT_ABSORBED = {
    "all features are rotated": (Recipe(position=Rotary(), pattern=Causal()), LatentKV(rank=RANK), {}),
    "cosine": (Recipe(score=Cosine(), position=ROTATED, pattern=Causal()), LATENT, {}),
    "normed keys": (
        Recipe(position=ROTATED, pattern=Causal()),
        LATENT,
        {"options": LayerOptions(head_norm=nn.RMSNorm)},
    ),
}


@pytest.mark.parametrize(("recipe", "latent", "options"), NOT_ABSORBED.values(), ids=NOT_ABSORBED)
def test_what_cannot_be_absorbed_is_made_of_the_cached_latents(recipe, latent, options):
    layer, x = layer_of(recipe, latent, **options), drawn(2, 9, MODEL)
    assert len(absorption_objections(layer, layer.recipe)) == 1
    got, cache = read_in_pieces(layer, x, [3, 1, 1, 4])
    assert_close(got, layer(x))
    assert cache.nbytes == 2 * 9 * (latent.rank + latent.rotary) * 8


def test_the_cache_keeps_the_latent_and_the_shared_key_alone():
    layer, x = layer_of(ABSORBED["scaled"]), drawn(2, 9, MODEL)
    plain = MultiHeadAttention(MODEL, heads=HEADS, head=HEAD, recipe=Recipe(pattern=Causal())).double()
    _, cache = layer.extend(x)
    assert cache.nbytes == 2 * 9 * (RANK + ROTARY) * 8
    assert plain.extend(x)[1].nbytes == 2 * 9 * 2 * HEADS * HEAD * 8


def test_a_state_of_latent_keys_has_a_fixed_size():
    recipe = Recipe(score=Cosine(1.0), pattern=Causal(), normaliser=Unnormalised(), gate=GatedDelta())
    layer, x = layer_of(recipe, LatentKV(rank=RANK, value=VALUE)), drawn(2, 9, MODEL)
    got, cache = read_in_pieces(layer, x, [3, 1, 5])
    assert_close(got, layer(x))
    assert cache.nbytes == 2 * HEADS * HEAD * VALUE * 8


def test_decoding_absorbs_and_training_does_not():
    layer = MultiHeadAttention(
        96, heads=8, head=24, form=LatentKV(rank=32, rotary=8, value=16), recipe=Recipe(position=Rotary(fraction=1 / 3))
    )
    assert absorption_saves(layer, 1, 100)
    assert not absorption_saves(layer, 100, 100)
    assert not absorption_saves(layer, 1, 1)
    assert not absorption_saves(layer, 40, 41)
    small = layer_of(Recipe(position=ROTATED), LatentKV(rank=1, rotary=ROTARY))  # where it would save at any length
    assert absorption_saves(small, 99, 100)
    assert not absorption_saves(small, 100, 100)


def test_padding_hides_latents():
    layer, x = layer_of(Recipe(position=ROTATED)), drawn(2, 9, MODEL)
    short = layer(x[1:, :5])
    assert_close(layer(x, pattern=Padding(torch.tensor([9, 5])))[1:, :5], short)


# --- seen and edited ---


def test_a_trace_is_exact_and_a_head_can_be_switched_off():
    layer, x = layer_of(ABSORBED["scaled"]), drawn(1, 9, MODEL)
    with record_attention(layer) as record:
        output = layer(x)
    q, k, v = layer.project(x)
    assert_close(record.weights("attention"), steps(q, k, v, layer.recipe).weights)
    assert_close(layer.merge_heads(record.weights("attention") @ v), output)
    site = trace_layer(layer, x.detach())
    assert site.check().holds
    off = trace_layer(layer, x.detach(), edits=Edits(off=(HeadOff("attention", 1),)))
    heads = [head for head in range(HEADS) if head != 1]
    assert torch.equal(off.output[:, heads], site.output[:, heads])
    assert not off.output[:, 1].any()


def test_recording_while_decoding_sees_the_same_weights():
    layer, x = layer_of(ABSORBED["scaled"]), drawn(1, 9, MODEL)
    with record_attention(layer) as record:
        got, _ = read_in_pieces(layer, x, [4, 1, 4])
    assert_close(got, layer(x))
    assert_close(record.weights("attention"), steps(*layer.project(x), layer.recipe).weights)


# --- what is refused, and settings ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 1}, "leave out groups = 1"),
        ({"form": LatentKV(rank=RANK, rotary=HEAD)}, "does not fit heads of width 10"),
        ({"form": LatentKV(rank=0)}, "does not fit"),
        ({"recipe": Recipe(position=Rotary())}, r"use position=Rotary\(fraction=4 / 10\)"),
        ({"recipe": Recipe()}, "not NoPosition"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    given: dict[str, Any] = {"recipe": ABSORBED["scaled"], "form": LATENT} | options
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(MODEL, heads=HEADS, head=HEAD, **given)


def test_a_language_model_of_settings_decodes_from_latents():
    lines = {"kind": "transformer", "layers": 2, "model": 16, "heads": 2, "hidden": 8, "head": 8, "dropout": 0.0}
    lines |= {"kv_rank": 6, "rotary_head": 4, "value_head": 5, "query_rank": 7}
    lines |= {"recipe": "position = 'Rotary(fraction=0.5)'"}
    config = LanguageModelConfig.from_dict(lines)
    assert LanguageModelConfig.from_dict(config.to_dict()) == config
    model = LanguageModel(config, 11).double().eval()
    tokens = torch.randint(0, 11, (2, 9))
    state, logits = model.start(2), []
    for one in tokens.split(1, 1):
        found, state = model.step(one, state)
        logits.append(found)
    assert_close(torch.cat(logits, 1), model(tokens))
    for changes, message in (({"kv_rank": None}, "set kv_rank as well"), ({"rotary_head": 2}, r"fraction=2 / 8")):
        with pytest.raises(ValueError, match=message):
            LanguageModelConfig.from_dict(lines | changes)
    with pytest.raises(ValueError, match="means nothing to the kind 'gru'"):
        LanguageModelConfig(kind="gru", kv_rank=4)


# --- inducing points ---


POINTS, WIDTH = 3, 6


def induced() -> MultiHeadAttention:
    torch.manual_seed(2)
    return MultiHeadAttention(WIDTH, heads=2, form=InducingPoints(POINTS)).double().eval()


def softmax_layer(layer: MultiHeadAttention, q: Tensor, k: Tensor) -> Tensor:
    """One attention as torch computes it."""
    return to_torch(layer)(q, k, k)[0]


def test_one_point_among_two_tokens_by_hand():
    """The point 1 gathers 4 and 8, weighed by softmax(4, 8), and every token reads the sum."""
    layer = MultiHeadAttention(1, heads=1, form=InducingPoints(1), options=LayerOptions(projection=no_projection))
    points = not_none(layer.points)
    points.points.data = torch.ones(1, 1)
    x = torch.tensor([[[4.0], [8.0]]])
    weights = torch.tensor([4.0, 8.0]).softmax(0)
    assert_close(layer(x), torch.full((1, 2, 1), 1.0 + float(weights @ x[0, :, 0])))


def test_induced_attention_is_two_of_torchs_layers_in_value_and_every_gradient():
    layer, x = induced(), torch.randn(2, 7, WIDTH, dtype=torch.double, requires_grad=True)
    of_points = not_none(layer.points)
    points, read = of_points.points.expand(2, -1, -1), MultiHeadAttention(WIDTH, heads=2).double().eval()
    state = {name: weight for name, weight in layer.state_dict().items() if not name.startswith("points")}
    read.load_state_dict(state)
    want = softmax_layer(read, x, points + softmax_layer(of_points.gather, points, x))
    got, inputs, upstream = layer(x), [x, of_points.points], torch.randn_like(want)
    assert_close(got, want)
    assert_close(torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(want, inputs, upstream))


def test_the_order_of_a_set_and_its_padding_change_nothing():
    layer, x, lengths = induced(), torch.randn(3, 7, WIDTH, dtype=torch.double), torch.tensor([7, 2, 5])
    order = torch.randperm(7)
    assert_close(layer(x[:, order]), layer(x)[:, order])
    poisoned = x.clone()
    poisoned[1, 2:] = 1e6
    assert_close(layer(poisoned, pattern=Padding(lengths))[1, :2], layer(x[1:2, :2])[0])


def test_both_attentions_of_induced_attention_are_seen_and_edited():
    layer, x = induced(), torch.randn(1, 7, WIDTH, dtype=torch.double)
    output, sites = trace_module(layer, x)
    assert list(sites) == ["points", "attention"]
    assert assert_is_instance(sites["points"], AttentionSite).shape == (POINTS, 7)
    assert all(assert_is_instance(site, AttentionSite).check().holds for site in sites.values())
    changed, off = trace_module(layer, x, edits=Edits(off=(HeadOff("points", 0),)))
    assert not assert_is_instance(off["points"], AttentionSite).output[:, 0].any()
    assert not torch.equal(changed, output)


def test_points_stand_in_no_order():
    for recipe in (Recipe(pattern=Causal()), Recipe(position=Rotary())):
        with pytest.raises(ValueError, match="stand in no order: leave out"):
            MultiHeadAttention(WIDTH, heads=2, recipe=recipe, form=InducingPoints(3))
    with pytest.raises(ValueError, match=r"is a form of self-attention; leave out memory"):
        induced()(torch.zeros(1, 2, WIDTH), torch.zeros(1, 2, WIDTH))


# --- settings ---


@pytest.mark.parametrize("form", ["InducingPoints(3)", "Linformer(max_length=9, rank=4)", "LatentKV(rank=5)"])
def test_an_encoder_of_settings_attends_to_points_mixtures_and_latents(form):
    """And layers of one model have weights of their own."""
    lines = {"kind": "transformer", "layers": 2, "model": 16, "heads": 2, "hidden": 8, "dropout": 0.0}
    config = EncoderConfig.from_dict(lines | {"attention_form": form})
    assert EncoderConfig.from_dict(config.to_dict()) == config
    encoder, tokens, lengths = Encoder(config, 11).eval(), torch.randint(3, 11, (2, 9)), torch.tensor([9, 4])
    with record_attention(encoder) as record:
        whole = encoder(tokens, lengths)
    assert_close(whole[1, :4], encoder(tokens[1:, :4], lengths[1:])[0])
    each = ("layers.{}.points", "layers.{}") if "Points" in form else ("layers.{}",)
    assert [site.name for site in record.sites] == [name.format(n) for n in range(2) for name in each]
    keys = {"InducingPoints(3)": ["text", "points"] * 2, "LatentKV(rank=5)": ["text"] * 2}.get(form, ["mixtures"] * 2)
    assert [site.keys for site in record.sites] == keys
    assert repr(MultiHeadAttention(16, heads=2, form=config.form).form) == repr(config.form)
    weights = {id(weight): name for name, weight in encoder.named_parameters()}
    assert len(weights) == len(list(encoder.parameters()))


def test_what_is_no_form_is_refused():
    for form, message in {
        "Causal()": "is no form; write one of InducingPoints, LatentKV",
        "Linformer(rank=4)": "max_length",
        "Sparse(4)": "cannot read 'Sparse",
        "InducingPoints(0)": "at least 1",
    }.items():
        with pytest.raises(ValueError, match=message):
            EncoderConfig(kind="transformer", attention_form=form)
    for form in ("Linformer(max_length=9, rank=4)", "InducingPoints(3)"):
        with pytest.raises(ValueError, match=r"Causal\(\)"):
            LanguageModelConfig(kind="transformer", attention_form=form)
    with pytest.raises(ValueError, match="two forms of attention; set one of them"):
        LanguageModelConfig(kind="transformer", kv_rank=4, attention_form="NativeSparse(block=4)")


def test_a_form_that_mixes_tokens_uses_no_kv_cache():
    for form, message in ((InducingPoints(3), "attend to the whole sequence"), (Linformer(9, 2), "mixes the whole")):
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention(8, heads=2, form=form).extend(torch.zeros(1, 3, 8))
