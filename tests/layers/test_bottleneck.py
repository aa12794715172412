"""Bottlenecks: a latent of one size for every length, with numbers worked by hand."""

from math import log
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.layers.pooling import (
    AttentionBottleneck,
    LastPooling,
    MeanPooling,
    PooledBottleneck,
)
from tests.recorded import call_recorded

WIDTH, LATENTS, LATENT, LENGTHS = 6, 3, 5, (7, 2, 5)
EXACT: Any = {"rtol": 0.0, "atol": 1e-10}
BOTTLENECKS = {
    "last": lambda: PooledBottleneck(LastPooling(), WIDTH, latents=LATENTS, latent=LATENT),
    "mean": lambda: PooledBottleneck(MeanPooling(), WIDTH, latents=LATENTS, latent=LATENT),
    "attention": lambda: AttentionBottleneck(WIDTH, latents=LATENTS, latent=LATENT, heads=2),
}


def texts():
    x, lengths = torch.randn(3, 7, WIDTH, dtype=torch.double), torch.tensor(LENGTHS)
    return x, torch.randint(3, 11, (3, 7)), lengths


# --- on paper ---


def test_without_attention_one_vector_is_cut():
    """The mean of (1, 5) and (3, 7) is (2, 6); W makes (2, 6, 8, -4) of it, and two latents are its halves."""
    made = PooledBottleneck(MeanPooling(), 2, latents=2, latent=2)
    with torch.no_grad():
        made.squeeze.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]]))
        made.squeeze.bias.zero_()
    x = torch.tensor([[[1.0, 5.0], [3.0, 7.0], [99.0, 99.0]]])
    latent, record = call_recorded(made, x, torch.tensor([[4, 4, 0]]), torch.tensor([2]))
    assert_close(latent, torch.tensor([[[2.0, 6.0], [8.0, -4.0]]]))
    assert_close(record.weights("attention"), torch.tensor([[[[0.5, 0.5, 0.0]]]]))


def test_with_attention_each_query_asks_for_itself():
    """Keys 0 and 1; a query of log 3 weighs them ¼ and ¾, a query of 0 by halves. The values are 4 and 8."""
    made = AttentionBottleneck(2, latents=2, latent=1)
    with torch.no_grad():
        for part in (made.attention.query, made.attention.key, made.attention.value, made.attention.output):
            assert isinstance(part, nn.Linear)
            part.bias.zero_()
        made.queries.copy_(torch.tensor([[log(3) * 2**0.5], [0.0]]))  # √2 undoes the scale of width 2
        made.get_parameter("attention.query.weight").copy_(torch.tensor([[1.0], [0.0]]))
        made.get_parameter("attention.key.weight").copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        made.get_parameter("attention.value.weight").copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        made.get_parameter("attention.output.weight").copy_(torch.tensor([[1.0, 0.0]]))
    x = torch.tensor([[[0.0, 4.0], [1.0, 8.0], [9.0, 9.0]]])
    latent, record = call_recorded(made, x, torch.tensor([[4, 4, 0]]), torch.tensor([2]))
    assert_close(record.weights("attention"), torch.tensor([[[[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]]]]))
    assert_close(latent, torch.tensor([[[7.0], [6.0]]]))


# --- what all promise ---


@pytest.mark.parametrize("name", BOTTLENECKS)
def test_company_and_padding_change_nothing(name):
    made, (x, tokens, lengths) = BOTTLENECKS[name]().double(), texts()
    together = made(x, tokens, lengths)
    assert together.shape == (3, LATENTS, LATENT)
    for n, length in enumerate(LENGTHS):
        one = slice(n, n + 1)
        assert_close(made(x[one, :length], tokens[one, :length], lengths[one])[0], together[n], **EXACT)


@pytest.mark.parametrize("name", BOTTLENECKS)
def test_looking_shows_what_entered_and_changes_nothing(name):
    made, (x, tokens, lengths) = BOTTLENECKS[name]().double(), texts()
    latent, record = call_recorded(made, x, tokens, lengths)
    assert_close(latent, made(x, tokens, lengths), rtol=0, atol=0)
    entered = record.weights("attention")
    assert entered.shape == ((3, 2, LATENTS, 7) if name == "attention" else (3, 1, 1, 7))
    assert_close(entered.sum(-1), torch.ones(entered.shape[:-1], dtype=torch.double))
    assert (entered.masked_select((torch.arange(7) >= lengths[:, None])[:, None, None]) == 0).all()


def test_heads_that_do_not_divide_the_words_are_refused():
    with pytest.raises(ValueError, match="4 heads do not divide vectors of width 6; choose a divisor"):
        AttentionBottleneck(6, latents=1, latent=3, heads=4)
