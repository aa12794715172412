"""Channel and spatial attention: weights worked by hand, and invariances."""

from math import log

import pytest
import torch
from torch.testing import assert_close

from regard.models.vision import SpatialAttention, SqueezeExcite
from tests.recorded import call_recorded

GATES = {"channel": SqueezeExcite(7, reduction=3), "spatial": SpatialAttention(kernel=3)}


def test_squeeze_and_excitation_of_two_channels():
    """Means 2 and 6. W₁ = (1, -1/2) and b₁ = 1 squeeze them to 2 - 3 + 1 = 0, and b₁ = 2 to 1.

    Excited by W₂ = (log 3, -log 3) and b₂ = 0, that is σ(log 3) = 3/4 and σ(-log 3) = 1/4.
    """
    layer = SqueezeExcite(2, reduction=2).double()
    layer.load_state_dict(
        {
            "squeeze.weight": torch.tensor([[1.0, -0.5]]),
            "squeeze.bias": torch.tensor([2.0]),
            "excite.weight": torch.tensor([[log(3)], [-log(3)]], dtype=torch.double),
            "excite.bias": torch.zeros(2),
        }
    )
    x = torch.tensor([[[[1.0, 3.0]], [[2.0, 10.0]]]], dtype=torch.double)
    out, record = call_recorded(layer, x)
    weights = record.weights("attention")
    assert_close(weights.flatten().tolist(), [3 / 4, 1 / 4])
    assert_close(out.flatten().tolist(), [3 / 4, 9 / 4, 1 / 2, 5 / 2])
    torch.nn.init.constant_(layer.squeeze.bias, 1.0)
    assert_close(layer.weights(x).flatten().tolist(), [1 / 2, 1 / 2])
    torch.nn.init.constant_(layer.squeeze.bias, -9.0)  # below 0 ReLU says 0
    assert_close(layer.weights(x).flatten().tolist(), [1 / 2, 1 / 2])


def test_a_spatial_gate_of_two_places():
    """Means 2 and 0, maxima 3 and 1: with weights log 3 and -log 3 the scores are -log 3 and -log 3; without, 0."""
    layer = SpatialAttention(kernel=1).double()
    x = torch.tensor([[[[1.0, -1.0]], [[3.0, 1.0]]]], dtype=torch.double)
    layer.load_state_dict(
        {"convolve.weight": torch.tensor([log(3), -log(3)]).view(1, 2, 1, 1), "convolve.bias": torch.zeros(1)}
    )
    assert_close(layer.weights(x).flatten().tolist(), [1 / 4, 1 / 4], rtol=0, atol=1e-6)
    layer.load_state_dict(
        {"convolve.weight": torch.tensor([log(3) / 2, 0.0]).view(1, 2, 1, 1), "convolve.bias": torch.zeros(1)}
    )
    out, record = call_recorded(layer, x)
    weights = record.weights("attention")
    assert weights.shape == (1, 1, 1, 2)
    assert_close(weights.flatten().tolist(), [3 / 4, 1 / 2], rtol=0, atol=1e-6)
    assert_close(out.flatten().tolist(), [3 / 4, -1 / 2, 9 / 4, 1 / 2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", GATES)
def test_looking_changes_nothing_and_leaves_nothing_behind(name):
    gate, x = GATES[name], torch.randn(2, 7, 5, 11)
    before = set(vars(gate))
    out, record = call_recorded(gate, x)
    weights = record.weights("attention")
    assert torch.equal(out, gate(x))
    assert torch.equal(out, x * weights)
    assert weights.min() > 0
    assert weights.max() < 1
    assert set(vars(gate)) == before


@pytest.mark.parametrize("name", GATES)
def test_a_picture_is_weighed_by_itself(name):
    gate, x = GATES[name].double(), torch.randn(5, 7, 3, 11, dtype=torch.double)
    for n in range(5):
        assert_close(gate(x[n : n + 1]), gate(x)[n : n + 1], rtol=0, atol=1e-10)
    gate.float()


def test_channel_weights_do_not_know_where():
    gate, x = GATES["channel"].double(), torch.randn(2, 7, 5, 11, dtype=torch.double)
    moved = x.flatten(2)[:, :, torch.randperm(55)].view_as(x)
    assert_close(gate.weights(moved), gate.weights(x))
    gate.float()


def test_spatial_weights_do_not_know_which_channel():
    gate, x = GATES["spatial"].double(), torch.randn(2, 7, 5, 11, dtype=torch.double)
    assert_close(gate.weights(x[:, torch.randperm(7)]), gate.weights(x))
    gate.float()


def test_spatial_weights_move_with_the_picture():
    """Away from the edge, what is one pixel further right is weighed one pixel further right."""
    gate, x = GATES["spatial"].double(), torch.randn(2, 7, 5, 11, dtype=torch.double)
    assert_close(gate.weights(x.roll(1, 3))[..., 2:-1], gate.weights(x).roll(1, 3)[..., 2:-1])
    gate.float()


@pytest.mark.parametrize("name", GATES)
def test_the_gradient_is_right(name):
    gate = {"channel": SqueezeExcite(3, reduction=1), "spatial": SpatialAttention(kernel=3)}[name].double()
    x = torch.randn(2, 3, 3, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(gate, x)


def test_impossible_gates_are_refused():
    for reduction in (0, 8):
        with pytest.raises(ValueError, match=f"reduction = {reduction} leaves none of 7 channels"):
            SqueezeExcite(7, reduction=reduction)
    for kernel in (4, -1):
        with pytest.raises(ValueError, match=f"kernel = {kernel} has no centre"):
            SpatialAttention(kernel=kernel)
