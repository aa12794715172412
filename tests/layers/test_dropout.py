"""Dropout by sixteen bits a number: as torch's, but for the noise."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.layers.dropout import Dropout, drawing


@pytest.mark.parametrize("share", [0.1, 0.5, 0.93])
def test_it_drops_its_share_and_keeps_the_mean(share):
    torch.manual_seed(0)
    n = 400_004
    x = torch.ones(n)
    y = Dropout(share)(x)
    # each of the four numbers that one draw serves, by itself; five standard deviations
    for lane in range(4):
        dropped = (y[lane::4] == 0).double().mean().item()
        assert abs(dropped - share) < 5 * (share * (1 - share) / (n / 4)) ** 0.5 + 2**-17
    assert_close(y[y != 0].unique(), torch.tensor([1 / (1 - share)]), rtol=2**-13 / (1 - share), atol=0.0)
    assert abs(y.mean().item() - 1) < 5 * (share / (1 - share) / n) ** 0.5


def test_neighbours_are_dropped_independently():
    torch.manual_seed(1)
    left = Dropout(0.5)(torch.ones(200_000)) != 0
    for apart in (1, 2, 3, 4, 5):
        both = (left[apart:] & left[:-apart]).double().mean().item()
        assert abs(both - 0.25) < 5 * (3 / 16 / 200_000) ** 0.5 * 2


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 7), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_any_shape_and_precision(shape, dtype):
    y = Dropout(0.3)(torch.ones(shape, dtype=dtype))
    assert (y.shape, y.dtype) == (shape, dtype)


def test_gradients_are_dropped_with_the_numbers():
    torch.manual_seed(2)
    x = torch.randn(11, 13, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    assert_close(x.grad * x.detach(), y.detach())
    assert 0 < int((x.grad == 0).sum()) < x.numel()


def test_strides_do_not_matter():
    x = torch.randn(6, 10)
    torch.manual_seed(3)
    wanted = Dropout(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(x.T.contiguous().T), wanted)


@pytest.mark.parametrize("share", [0.0, 1.0, 2**-20])
def test_shares_that_bits_cannot_tell_are_torchs(share):
    x = torch.randn(1000)
    torch.manual_seed(4)
    wanted = nn.Dropout(share)(x)
    torch.manual_seed(4)
    assert torch.equal(Dropout(share)(x), wanted)


def test_nothing_is_dropped_once_trained():
    x = torch.randn(100)
    assert Dropout(0.5).eval()(x) is x


def test_a_generator_of_its_own_leaves_torchs_alone():
    x = torch.randn(100)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = []
    for seed in (1, 2, 1):
        with drawing(torch.Generator().manual_seed(seed)):
            found.append(Dropout(0.5)(x))
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(torch.get_rng_state(), before)
    Dropout(0.5)(x)
    assert not torch.equal(torch.get_rng_state(), before)
