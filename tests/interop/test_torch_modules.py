"""torch's own attention layers: seen exactly, and as fast as before when nobody looks."""

import pytest
import torch
from torch import nn

import regard
from regard.attention import Causal
from regard.see import Edits, HeadOff, Mask, Swap, Temperature, Weight, trace_module

X = torch.linspace(0, 9, 2 * 6 * 16).sin().view(2, 6, 16)
OWN_ATTENTION = nn.functional.scaled_dot_product_attention
PADDED = torch.arange(6) >= torch.tensor([6, 4])[:, None]


def test_an_encoder_with_padding():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        watched = model(X, src_key_padding_mask=PADDED)
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        alone = model(X, src_key_padding_mask=PADDED)
    assert torch.allclose(alone[~PADDED], watched[~PADDED], atol=1e-5)
    assert list(seen) == ["layers.0", "layers.1"]
    assert seen.check().error <= 1e-5
    assert seen["layers.0"][0].head(0, sentence=1).weights[:, 4:].max() == 0


def test_encoder_and_decoder():
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    with torch.no_grad(), regard.watch(model) as seen:
        model(X, X[:, :4], tgt_mask=mask, tgt_is_causal=True)
    assert list(seen) == ["encoder.0", "decoder.0", "decoder.0.cross"]
    assert seen.check().error <= 1e-5
    assert not seen["decoder.0"][0].weights(0).triu(1).any()
    assert seen["decoder.0"][0].recipe.pattern == Causal()


@pytest.mark.parametrize("averaged", [True, False])
def test_a_layer_by_itself_returns_the_weights_that_were_asked_for(averaged):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    own, weights = layer(X, X, X, key_padding_mask=PADDED, average_attn_weights=averaged)
    with regard.watch(layer) as seen:
        watched, found = layer(X, X, X, key_padding_mask=PADDED, average_attn_weights=averaged)
    assert torch.allclose(own, watched, atol=1e-6)
    assert torch.allclose(weights, found, atol=1e-6)
    assert seen.check().error <= 1e-5


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({}, {}),
        ({"add_bias_kv": True}, {}),
        ({"add_zero_attn": True}, {"key_padding_mask": PADDED}),
        ({"kdim": 12, "vdim": 10}, {}),
        ({}, {"attn_mask": torch.arange(288).view(8, 6, 6) % 7 == 1}),
        ({}, {"attn_mask": torch.linspace(-2, 2, 36).view(6, 6)}),
    ],
)
def test_every_form_of_the_layer_is_seen_exactly(options, inputs):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True, **options).eval()
    given = X, X[..., : options.get("kdim", 16)], X[..., : options.get("vdim", 16)]
    with torch.no_grad(), regard.watch(layer) as seen:
        watched, weights = layer(*given, **inputs)
    with torch.no_grad():
        own, wanted = layer(*given, **inputs)
    assert torch.allclose(watched, own, atol=1e-6)
    assert torch.allclose(weights, wanted, atol=1e-6)
    assert seen.check().error <= 1e-5


def test_sequences_first_and_without_a_batch():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4).eval()
    with torch.no_grad(), regard.watch(layer) as seen:
        layer(X, X, X)
        _, weights = layer(X[0], X[0], X[0])
    assert [site.shape for site in seen["attention"]] == [(2, 2), (6, 6)]
    assert weights.shape == (6, 6)
    assert seen.check().error <= 1e-5


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_with_nested_tensors_is_off_while_it_is_watched():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()
    with torch.no_grad():
        fast = model(X, src_key_padding_mask=PADDED)
        with regard.watch(model) as seen:
            watched = model(X, src_key_padding_mask=PADDED)
        assert torch.equal(model(X, src_key_padding_mask=PADDED), fast)
    assert torch.allclose(fast[~PADDED], watched[~PADDED], atol=1e-5)
    assert len(seen["layers.1"]) == 1
    assert seen.check().error <= 1e-5


def attention_by_hand(layer: nn.MultiheadAttention, what: str) -> torch.Tensor:
    """One layer without masks, with an edit of head 1."""
    q, k, v = nn.functional.linear(X, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    q, k, v = (x.unflatten(-1, (4, 4)).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(2, 3) / 2
    scores = scores / 0.4 if what == "temperature" else scores
    if what == "mask":
        scores[:, 1, 3, 2] = -torch.inf
    weights = scores.softmax(-1)
    if what == "off":
        weights[:, 1] = 0
    if what == "weight":
        old = weights[:, 1, 3, 2, None]
        weights[:, 1, 3] *= 0.3 / (1 - old)
        weights[:, 1, 3, 2] = 0.7
    return layer.out_proj((weights @ v).transpose(1, 2).flatten(2))


EDITS = {
    "off": lambda site: Edits(off=(HeadOff(site, 1),)),
    "mask": lambda site: Edits(masks=(Mask(site, 1, 3, 2),)),
    "weight": lambda site: Edits(weights=(Weight(site, 1, 3, 2, 0.7),)),
    "temperature": lambda site: Edits(temperatures=(Temperature(site, 0.4),)),
}


@pytest.mark.parametrize("what", EDITS)
def test_edits_are_those_of_a_hand(what):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with torch.no_grad(), regard.watch(layer, edits=EDITS[what]("attention")) as seen:
        edited, _ = layer(X, X, X, need_weights=False)
    with torch.no_grad():
        assert torch.allclose(edited, attention_by_hand(layer, what), atol=1e-6)
        assert not torch.allclose(edited, layer(X, X, X)[0], atol=1e-3)
    assert seen.check().error <= 1e-5


def test_a_module_is_traced_and_edited_without_a_text():
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True).eval()
    output, sites = trace_module(model, X, X[:, :4])
    with torch.no_grad():
        assert torch.allclose(output, model(X, X[:, :4]), atol=1e-6)
    assert list(sites) == ["encoder.0", "decoder.0", "decoder.0.cross"]
    edited, _ = trace_module(model, X, X[:, :4], edits=EDITS["off"]("decoder.0.cross"))
    assert (edited - output).abs().max() > 1e-3
    with pytest.raises(ValueError, match=r"there is no site 'decoder\.7'"):
        trace_module(model, X, X[:, :4], edits=EDITS["off"]("decoder.7"))


def test_edits_and_refusals():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with torch.no_grad(), regard.watch(layer, edits=Edits(off=tuple(HeadOff("attention", n) for n in range(4)))):
        edited, _ = layer(X, X, X, need_weights=False)
    assert torch.allclose(edited, layer.out_proj.bias.expand_as(edited), atol=1e-6)
    layer.dropout = 0.5
    with pytest.raises(ValueError, match=r"at random \(0\.5\)"), regard.watch(layer.train()):
        layer(X, X, X)
    assert nn.functional.scaled_dot_product_attention is OWN_ATTENTION
    with (
        pytest.raises(ValueError, match="Linear has no attention that could be watched"),
        regard.watch(nn.Linear(2, 2)),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"there is no site 'attention\.1'; there are attention"),
        regard.watch(layer, edits=Edits(off=(HeadOff("attention.1", 0),))),
    ):
        pass
    with (
        pytest.raises(ValueError, match="a watched model reads its own inputs; swap words in a trace"),
        regard.watch(layer, edits=Edits(swaps=(Swap(0, "dog"),))),
    ):
        pass
