"""Masked attention: under a mask that is there already it agrees with the reference, in value and in gradient."""

import pytest
import torch
from torch.testing import assert_close

from regard.attention import Alibi, Cosine, FloatMask, Padding, Recipe, Sparsemax, attend, explain
from regard.attention.core import AttentionCore

B, C, D = 2, 11, 6


def mask_of(queries: int) -> FloatMask:
    """Every query sees the first key, and of the others about half."""
    sees = torch.rand(B, 1, queries, C) < 0.5
    sees[..., 0] = True
    return FloatMask(torch.zeros(sees.shape, dtype=torch.double).masked_fill(~sees, -torch.inf))


@pytest.mark.parametrize(("heads", "groups", "queries"), [(4, 4, 3), (6, 2, 5), (2, 1, 70)])
@pytest.mark.parametrize("score", [Recipe().score, Cosine()], ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["each its own keys", "all the same keys"])
def test_it_agrees_with_the_reference(heads, groups, queries, score, shared):
    recipe = Recipe(score=score, pattern=mask_of(1 if shared else queries))
    q = torch.randn(B, heads, queries, D, dtype=torch.double, requires_grad=True)
    k, v = (torch.randn(B, groups, C, D, dtype=torch.double, requires_grad=True) for _ in range(2))
    assert explain(recipe, q, k).backend == "masked"
    want, got = (attend(q, k, v, recipe, backend=name) for name in ("reference", "masked"))
    assert_close(got, want)
    upstream = torch.randn_like(want)
    wanted, gotten = (torch.autograd.grad(y, (q, k, v), upstream) for y in (want, got))
    assert_close(gotten, wanted)
    with torch.no_grad():
        assert_close(AttentionCore()(q, k, v, recipe), want)


def test_what_it_cannot_run_it_says():
    q = torch.randn(B, 2, 3, D, dtype=torch.double)
    k = torch.randn(B, 2, C, D, dtype=torch.double)
    for recipe, why in (
        (Recipe(pattern=Padding(torch.tensor([3, 4]))), "is not a mask that is there already"),
        (Recipe(pattern=mask_of(3), normaliser=Sparsemax()), "Sparsemax\\(\\) is not softmax"),
        (Recipe(pattern=mask_of(3), position=Alibi(heads=2)), "adds to single scores"),
    ):
        with pytest.raises(ValueError, match=why):
            attend(q, k, k, recipe, backend="masked")
        with torch.no_grad():
            assert_close(AttentionCore()(q, k, k, recipe), attend(q, k, k, recipe, backend="reference"))


def test_a_mask_of_another_size_is_an_error():
    q, k = torch.randn(B, 2, 4, D), torch.randn(B, 2, C, D)
    with pytest.raises(ValueError, match="has 3 queries and 11 keys, not 4 and 11"):
        attend(q, k, k, Recipe(pattern=mask_of(3)))
    with pytest.raises(ValueError, match="FloatMask wants numbers shaped"):
        FloatMask(torch.zeros(2, 3))
