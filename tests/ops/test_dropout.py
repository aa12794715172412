"""Dropout by sixteen random bits an element, and hashed dropout: rates, means and independence."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.ops.dropout import Dropout, draw_seeds, hashed_dropout, mix_bits, no_seeds, use_generator
from tests.narrowing import not_none


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
    gradient = not_none(x.grad)
    assert_close(gradient * x.detach(), y.detach())
    assert 0 < int((gradient == 0).sum()) < x.numel()


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
        with use_generator(torch.Generator().manual_seed(seed)):
            found.append(Dropout(0.5)(x))
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(torch.get_rng_state(), before)
    Dropout(0.5)(x)
    assert not torch.equal(torch.get_rng_state(), before)


# --- hashed dropout ---


MASK_32 = 2**32 - 1
SEED = torch.tensor([1_234_577, 7_654_321], dtype=torch.int32)


def mix_bits_unbounded(x: int, key: int) -> int:
    """The hash with Python's integers, cut to 32 bits."""
    x ^= x >> 16
    x = (x * 0x21F0AAAD & MASK_32) ^ key
    x ^= x >> 15
    x = x * 0x735A2D97 & MASK_32
    return x ^ x >> 15


def test_the_hash_in_int32_is_that_of_unsigned_numbers():
    counters = torch.randint(-(2**31), 2**31 - 1, (10_007,), dtype=torch.int32)
    expected = [mix_bits_unbounded(x & MASK_32, int(SEED[1])) for x in counters.tolist()]
    assert [x & MASK_32 for x in mix_bits(counters, SEED[1]).tolist()] == expected


def test_a_fifth_is_dropped_and_the_rest_grows_by_a_quarter():
    found = hashed_dropout(torch.ones(1009, 1013), 0.2, SEED)
    assert found.unique().tolist() == [0.0, 1.25]
    deviation = (0.2 * 0.8 / found.numel()) ** 0.5
    assert abs((found > 0).double().mean() - 0.8) < 5 * deviation


def test_neighbours_and_other_seeds_do_not_agree():
    ones = torch.ones(1009, 1024)
    found, other = (hashed_dropout(ones, 0.1, seed).double() * 0.9 - 0.9 for seed in (SEED, SEED + 1))
    pairs = [(found, other), (found[1:], found[:-1]), (found[:, 1:], found[:, :-1]), (found[:, 64:], found[:, :-64])]
    assert max(abs((a * b).mean()) for a, b in pairs) < 10 * 0.09 / found.numel() ** 0.5


def test_the_gradient_is_dropped_where_the_number_was():
    x = torch.randn(7, 11, dtype=torch.float64).requires_grad_()
    out = hashed_dropout(x, 0.3, SEED)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert_close(out, x * grad)
    assert torch.equal(hashed_dropout(x, 0.0, SEED), x)


def test_every_layer_and_dropout_has_its_own_seed():
    assert no_seeds(3, 2, torch.device("cpu")) == [None] * 3
    seeds = draw_seeds(3, 2, torch.device("cpu"))
    assert torch.stack([seed for seed in seeds if seed is not None]).flatten().unique().numel() == 12


def test_too_many_numbers_are_refused():
    with pytest.raises(ValueError, match="elements are more than"):
        hashed_dropout(torch.empty(2**16, 2**15, device="meta"), 0.1, SEED)
