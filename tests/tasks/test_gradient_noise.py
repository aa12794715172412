"""Gradient noise: variance and bias of estimates with known ones."""

from itertools import cycle
from math import inf

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.tasks.sequence_classification.task import GradientNoise, compute_gradient, draw_gradients


def test_the_noise_of_four_draws_on_paper():
    """Draws 1, 3, 1, 3 along the first axis: mean 2, variance 4/3; the squared mean is too large by a quarter of it."""
    draws = torch.tensor([[1.0, 0.0], [3.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    found = GradientNoise.of(draws, torch.tensor([2.0, 2.0]))
    assert found.variance == pytest.approx(4 / 3)
    assert found.norm**2 == pytest.approx(4 - 1 / 3)
    assert found.relative == pytest.approx((4 / 3) / (11 / 3))
    assert found.bias == pytest.approx(2 / 8**0.5)
    assert found.bias_error == pytest.approx((1 / 3) ** 0.5 / 8**0.5)
    assert found.cosine == pytest.approx(0.5**0.5)


def test_without_draws_there_is_no_noise():
    found = GradientNoise.of(torch.tensor([[1.0, 2.0]]).expand(5, 2), torch.tensor([1.0, 2.0]))
    assert (found.variance, found.relative, found.bias, found.bias_error) == (0.0, 0.0, 0.0, 0.0)
    assert found.cosine == pytest.approx(1.0)


def test_noise_without_any_signal_is_endless():
    assert GradientNoise.of(torch.tensor([[1.0], [-1.0]]), torch.tensor([1.0])).relative == inf


def test_gradients_are_those_of_the_mean_loss():
    model, signs = nn.Linear(2, 1, bias=False), cycle([1.0, -2.0])
    untouched = nn.Parameter(torch.ones(3))

    def loss(model, batch):
        return next(signs) * model(batch).sum(), len(batch)

    batch = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    weights = [model.weight, untouched]
    mean = torch.tensor([2.0, 3.0, 0.0, 0.0, 0.0])
    assert_close(compute_gradient(model, loss, batch, weights), mean)
    assert_close(draw_gradients(model, loss, batch, weights, draws=3), torch.stack([-2 * mean, mean, -2 * mean]))


def test_one_draw_is_refused():
    with pytest.raises(ValueError, match="1 draws have no variance; draw at least 2"):
        GradientNoise.of(torch.zeros(1, 3), torch.ones(3))
