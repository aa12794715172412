"""torch's own attention layers: seen exactly, and as fast as before when nobody looks."""

import pytest
import torch
from torch import nn

import regard
from regard.attention import Causal
from regard.see import Edits, HeadOff

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
