"""Dropout by a hash: the share it should have, no pattern, the same noise on the way back."""

import pytest
import torch
from torch.testing import assert_close

from regard.layers import packed_rows
from regard.layers.hashed_dropout import by_hash, by_torch, hashed_dropout, mixed

SEED = torch.tensor([1_234_577, 7_654_321], dtype=torch.int32)


def test_in_32_bits_it_is_the_hash_of_64():
    at = torch.randint(-(2**31), 2**31 - 1, (10_007,), dtype=torch.int32)
    wanted = packed_rows.mixed(at.long() & packed_rows.LOW, SEED[1].long())
    assert torch.equal(mixed(at, SEED[1]).long() & packed_rows.LOW, wanted)


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
    assert by_torch(3, 2, torch.device("cpu")) == [None] * 3
    seeds = by_hash(3, 2, torch.device("cpu"))
    assert torch.stack([seed for seed in seeds if seed is not None]).flatten().unique().numel() == 12


def test_too_many_numbers_are_refused():
    with pytest.raises(ValueError, match="are more than 2³¹ places"):
        hashed_dropout(torch.empty(2**16, 2**15, device="meta"), 0.1, SEED)
