"""Recurrent cells and layers: numbers worked by hand, unrolled = fused, and padding that changes nothing."""

from collections.abc import Callable
from math import log, tanh

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.layers import CELLS, GRU, LSTM, Elman, RNNLayers
from regard.layers.rnn import HiddenState

ZERO = torch.zeros(1, 1, dtype=torch.double)


def gates(*inputs: float) -> Tensor:
    return torch.tensor([inputs], dtype=torch.double)


def odds(p: float) -> float:
    """What a gate must hear to open by p."""
    return log(p / (1 - p))


# --- on paper ---


def test_elman_is_tanh_of_the_sum_of_its_inputs():
    """b + U x = 0.3 and W h = 0.2: h = tanh(0.5)."""
    (h,) = Elman().step(gates(0.3), gates(0.2), (ZERO,))
    assert_close(h.item(), tanh(0.5))


def test_a_gru_mixes_the_old_and_the_new():
    """r = 1/2, z = 1/4, and the new thought is tanh(1/4 + 1/2 · 1/2): h = 3/4 tanh(1/2) + 1/4 · 2."""
    (h,) = GRU().step(gates(0.0, odds(1 / 4), 0.25), gates(0.0, 0.0, 0.5), (ZERO + 2,))
    assert_close(h.item(), 0.75 * tanh(0.5) + 0.25 * 2)


def test_an_lstm_keeps_writes_and_shows():
    """i = 1/2, f = 3/4, o = 1/5, g = tanh(1): c = 3/4 · 4 + 1/2 tanh(1), h = 1/5 tanh(c)."""
    h, c = LSTM().step(gates(0.0, odds(3 / 4), 0.4, odds(1 / 5)), gates(0.0, 0.0, 0.6, 0.0), (ZERO + 9, ZERO + 4))
    assert_close(c.item(), 3 + tanh(1) / 2)
    assert_close(h.item(), tanh(3 + tanh(1) / 2) / 5)


def test_the_layer_computes_the_lectures_equation():
    """h(t) = tanh(b + W h(t−1) + U x(t)) with one unit, U = 2, W = 1/2, b = 1/4 + 1/4, on x = 1, −1."""
    layer = RNNLayers(1, 1, cell=Elman()).double()
    for weight, value in zip(layer.weights(), (2.0, 0.5, 0.25, 0.25), strict=True):
        torch.nn.init.constant_(weight, value)
    out, (last,) = layer(torch.tensor([[[1.0], [-1.0]]], dtype=torch.double))
    one = tanh(0.5 + 2)
    two = tanh(0.5 + 0.5 * one - 2)
    assert_close(out[0, :, 0].tolist(), [one, two])
    assert_close(last.item(), two)


# --- readable = fused ---


def gradients(
    layer: RNNLayers,
    run: Callable[..., tuple[Tensor, HiddenState]],
    x: Tensor,
    state: HiddenState,
    lengths: Tensor | None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    x, state = x.clone().requires_grad_(), tuple(part.clone().requires_grad_() for part in state)
    out, last = run(x, state, lengths)
    loss = torch.stack([((y + 0.1) ** 3).sum() for y in (out, *last)]).sum()
    return (out, *last), torch.autograd.grad(loss, (x, *state, *layer.parameters()))


@pytest.mark.parametrize("lengths", [None, (5, 1, 3)], ids=str)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", CELLS)
def test_in_the_open_and_fused_are_one(name, layers, directions, lengths):
    layer = RNNLayers(7, 11, cell=CELLS[name], layers=layers, directions=directions).double()
    x = torch.randn(3, 5, 7, dtype=torch.double)
    state = tuple(torch.randn_like(part) for part in layer.zeros(torch.empty(3, 5, 11).double()))
    lengths = None if lengths is None else torch.tensor(lengths)
    fused, fused_gradients = gradients(layer, layer, x, state, lengths)
    readable, readable_gradients = gradients(layer, layer.forward_unrolled, x, state, lengths)
    assert_close(readable, fused)
    assert_close(readable_gradients, fused_gradients)


@pytest.mark.parametrize("name", CELLS)
def test_token_after_token_is_the_whole_text(name):
    layer = RNNLayers(7, 11, cell=CELLS[name], layers=2).double()
    x = torch.randn(3, 5, 7, dtype=torch.double)
    U, _, b, _ = layer.weights()
    out, last = layer(x)
    state = layer.zeros(x)
    for t in range(5):
        top, state = layer.step(x[:, t] @ U.T + b, state)
        assert_close(top, out[:, t])
    assert_close(state, last)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("name", CELLS)
def test_a_padded_sentence_ends_as_it_does_alone(name, directions):
    layer = RNNLayers(7, 11, cell=CELLS[name], layers=2, directions=directions).double()
    x, lengths = torch.randn(3, 5, 7, dtype=torch.double), torch.tensor([2, 5, 1])
    for run in (layer, layer.forward_unrolled):
        out, last = run(x, lengths=lengths)
        for n, length in enumerate(lengths.tolist()):
            alone, alone_last = run(x[n : n + 1, :length])
            assert_close(out[n : n + 1, :length], alone)
            assert_close(tuple(part[n : n + 1] for part in last), alone_last)
            assert (out[n, length:] == 0).all()


def test_dropout_falls_between_layers_and_only_while_training():
    layer = RNNLayers(7, 11, cell=GRU(), layers=2, dropout=0.5)
    x = torch.randn(3, 5, 7)
    for run in (layer, layer.forward_unrolled):
        assert not torch.equal(run(x)[0], run(x)[0])
    layer.eval()
    for run in (layer, layer.forward_unrolled):
        assert torch.equal(run(x)[0], run(x)[0])


@pytest.mark.parametrize("lengths", [(0, 3), (2, 6), (2, 3, 1)])
def test_impossible_lengths_are_refused(lengths):
    with pytest.raises(ValueError, match="lengths must be 2 integers from 1 to 5"):
        RNNLayers(7, 11, cell=Elman())(torch.zeros(2, 5, 7), lengths=torch.tensor(lengths))


def test_a_text_has_two_ways():
    with pytest.raises(ValueError, match="1 or 2 directions, not 3"):
        RNNLayers(7, 11, cell=Elman(), directions=3)


@pytest.mark.parametrize("name", CELLS)
def test_no_weight_dropped_is_the_layer_itself(name):
    rnn, x = RNNLayers(5, 7, cell=CELLS[name]).double(), torch.randn(2, 3, 5, dtype=torch.double)
    state = tuple(torch.randn_like(part) for part in rnn.zeros(x))
    (out, last), (expected, after) = rnn.forward_weight_dropped(x, state, 0.0), rnn(x, state)
    assert_close(out, expected)
    assert_close(last, after)


def test_a_dropped_weight_is_dropped_for_every_token():
    """h = tanh(W h + x) with W = ½: all tokens of a call forget the past, or all see it doubled: W = 0 or W = 1."""
    rnn = RNNLayers(1, 1, cell=Elman())
    for weight, value in zip(rnn.weights(), (1.0, 0.5, 0.0, 0.0), strict=True):
        torch.nn.init.constant_(weight, value)
    x, start = torch.tensor([[[0.3], [0.4]]]), (torch.tensor([[[0.2]]]),)
    seen = {tuple(rnn.forward_weight_dropped(x, start, 0.5)[0].flatten().tolist()) for _ in range(20)}
    forgot, kept = (tanh(0.3), tanh(0.4)), (tanh(0.2 + 0.3), tanh(tanh(0.2 + 0.3) + 0.4))
    assert_close(torch.tensor(sorted(seen)), torch.tensor([forgot, kept]))
