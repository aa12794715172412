"""Padding removal: the tokens that are there are computed as among padding, and by one product where it is fused."""

import torch
from torch import nn
from torch.testing import assert_close

from regard.attention import Context, MultiHeadAttention, Padding, Recipe, Rotary
from regard.attention.batch_patterns import UnpaddedTokens
from regard.ops.linear import FusedLinear, project_all


def test_tokens_come_back_to_their_places():
    """Of two rows of three the first and the last two are there."""
    x = torch.arange(6.0).view(2, 3, 1)
    tokens = UnpaddedTokens.of(torch.tensor([0, 4, 5]), 2, 3)
    assert tokens.unpad(x).flatten().tolist() == [0, 4, 5]
    (back,) = tokens.pad(tokens.unpad(x))
    assert back.shape == x.shape
    assert torch.equal(back.flatten()[[0, 4, 5]], x.flatten()[[0, 4, 5]])
    assert Context().unpad(x) is x


def test_attention_without_padding_is_attention_with_it():
    layer = MultiHeadAttention(12, heads=3, recipe=Recipe(position=Rotary())).double()
    x, lengths = torch.randn(3, 7, 12, dtype=torch.double), torch.tensor([7, 2, 5])
    is_token = torch.arange(7) < lengths[:, None]
    tokens = UnpaddedTokens.of(is_token.flatten().nonzero()[:, 0], 3, 7)
    with torch.no_grad():
        wanted = layer.compute_heads(x, None, Context(Padding(lengths)))
        found = layer.compute_heads(tokens.unpad(x), None, Context(Padding(lengths), tokens=tokens))
    assert_close(found[0], wanted[is_token])


def test_parts_of_a_fused_layer_are_projected_by_one_product():
    linears = [nn.Linear(5, size) for size in (4, 2, 3)]
    whole = nn.Linear(5, 9)
    with torch.no_grad():
        whole.weight.copy_(torch.cat([part.weight for part in linears]))
        whole.bias.copy_(torch.cat([part.bias for part in linears]))
    q, k, v = FusedLinear(whole, [4, 2, 3]).parts
    x, calls = torch.randn(2, 3, 5), []
    whole.register_forward_hook(lambda *given: calls.append(1))
    for found, part in zip(project_all(x, (q, k, v)), linears, strict=True):
        assert_close(found, part(x))
    assert len(calls) == 1
    for found, part in zip(project_all(x, (v, q)), (linears[2], linears[0]), strict=True):
        assert_close(found, part(x))
