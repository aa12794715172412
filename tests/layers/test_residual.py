"""Feed-forward layers, residual connections and tied embeddings."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.layers import FeedForward, PostNorm, PreNorm, TiedEmbeddings


def test_feed_forward_is_written_out():
    """x = 2: up gives (3, −1), ReLU keeps 3, down makes 2 · 3 + 1."""
    layer = FeedForward(1, 2)
    layer.load_state_dict(
        {
            "up.weight": torch.tensor([[1.0], [-1.0]]),
            "up.bias": torch.tensor([1.0, 1.0]),
            "down.weight": torch.tensor([[2.0, 5.0]]),
            "down.bias": torch.tensor([1.0]),
        }
    )
    assert layer(torch.tensor([[[2.0]]])).item() == 7


def test_a_gated_feed_forward_is_written_out():
    """x = 2: up gives (2, -2), the gate's relu of (4, 6) keeps both, their product (8, -12) becomes 8 - 12 = -4."""
    layer = FeedForward(1, 2, kind="gated", projection=partial(nn.Linear, bias=False))
    weights = {"up.weight": [[1.0], [-1.0]], "gate.weight": [[2.0], [3.0]], "down.weight": [[1.0, 1.0]]}
    layer.load_state_dict({name: torch.tensor(rows) for name, rows in weights.items()})
    assert layer(torch.tensor([[[2.0]]])).item() == -4


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_are_those_of_transformers(activation):
    from transformers.activations import ACT2FN

    x = torch.linspace(-4, 4, 23, dtype=torch.float64)
    theirs = ACT2FN[{"gelu_tanh": "gelu_new"}.get(activation, activation)](x)
    assert_close(FeedForward(1, 1, activation=activation).activation(x), theirs)


def test_rms_norm_divides_by_the_root_mean_square():
    """Of 1 + 2 · 1 = 3 and 2 + 2 · 2 = 6 it is √22.5; the mean stays in."""
    path = PostNorm(2, norm=partial(nn.RMSNorm, eps=0.0))
    x = torch.tensor([[[1.0, 2.0]]])
    out, _ = path((x, x), lambda y: 2 * y, nn.Identity())
    assert_close(out, torch.tensor([[[3.0, 6.0]]]) / 22.5**0.5)


def test_gelu_is_a_choice_and_nonsense_is_not():
    relu, gelu = FeedForward(3, 5), FeedForward(3, 5, activation="gelu")
    gelu.load_state_dict(relu.state_dict())
    x = torch.randn(1, 2, 3)
    assert not torch.allclose(relu(x), gelu(x))
    with pytest.raises(ValueError, match="no activation is called 'swish'; there are relu, gelu"):
        FeedForward(3, 5, activation="swish")


def test_the_norm_comes_before_or_after():
    """Of (1, 3) the norm makes (−1, 1). f doubles, and the projection leaves it so."""
    x = torch.tensor([[[1.0, 3.0]]])
    expected = {PreNorm(2): [[[1.0 - 2, 3.0 + 2]]], PostNorm(2): [[[-1.0, 1.0]]]}
    for path, values in expected.items():
        for out in path((x, x), lambda y: 2 * y, nn.Identity()):
            assert_close(out, torch.tensor(values), atol=1e-4, rtol=0)


def test_only_the_branch_is_dropped():
    x = torch.randn(1, 2, 100)
    path = PreNorm(100, dropout=0.5)
    out, again = path((x, x), torch.ones_like, nn.Identity())
    assert torch.equal(out, again)
    assert (out - x).unique().numel() > 1
    dropped = torch.isclose(out, x)
    assert dropped.any()
    assert_close(out[~dropped], (x + 2)[~dropped])
    assert_close(path.eval()((x, x), torch.ones_like, nn.Identity()), (x + 1, x + 1))


def test_words_are_read_at_size_one_and_scored_small():
    words = TiedEmbeddings(499, 499, 64, tie="all")
    assert_close(words.embed_source(torch.arange(499)[None]).std().item(), 1.0, atol=0.05, rtol=0)
    assert_close(words.table("output").logits(torch.randn(1, 101, 64), words.bias).std().item(), 1.0, atol=0.05, rtol=0)


@pytest.mark.parametrize(("tie", "tables"), [("none", 3), ("target", 2), ("all", 1)])
def test_a_tie_shares_storage_and_stores_nothing_twice(tie, tables):
    words = TiedEmbeddings(13, 13, 5, tie=tie)
    stored = [weight for name, weight in words.state_dict().items() if "tables" in name]
    assert len(stored) == len({weight.data_ptr() for weight in stored}) == tables
    source, target, output = (words.table(name).weight for name in ("source", "target", "output"))
    assert (output is target) == (tie != "none")
    assert (source is target) == (tie == "all")


def test_ties_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="11 source and 13 target tokens; use one joint vocabulary"):
        TiedEmbeddings(11, 13, 5, tie="all")
    with pytest.raises(ValueError, match="width 5 cannot score states of width 7"):
        TiedEmbeddings(11, 13, 5, tie="target", output=7)
    with pytest.raises(ValueError, match="no tie is called 'some'; there are none, target, input, all"):
        TiedEmbeddings(11, 13, 5, tie="some")
