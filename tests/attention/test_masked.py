"""Masked attention: under a mask that is there already it agrees with the reference, in value and in gradient."""

import pytest
import torch
from torch.testing import assert_close

from regard.attention import Alibi, Cosine, FloatMask, Padding, Recipe, Sparsemax, attend, explain
from regard.attention.backends import masked
from regard.attention.backends.masked import attend_by_kernels, masked_kernels, softmax_attention
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


# --- kernels in C ---


compiled = pytest.mark.skipif(masked_kernels() is None, reason="needs a C compiler and AVX-512 VNNI")


def by_kernels(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kernels = masked_kernels()
    assert kernels is not None
    return attend_by_kernels(kernels, q, k, v, mask)


@compiled
@pytest.mark.parametrize(("heads", "groups", "queries"), [(4, 4, 1), (4, 4, 3), (6, 2, 5), (8, 2, 4), (2, 1, 9)])
@pytest.mark.parametrize("d", [3, 16, 24, 64, 100])
@pytest.mark.parametrize("shared", [False, True], ids=["each its own keys", "all the same keys"])
def test_the_kernel_is_the_three_parts(heads, groups, queries, d, shared):
    mask = mask_of(1 if shared else queries).mask.float()
    mask[..., 1:] += torch.randn(mask[..., 1:].shape)
    q = torch.randn(B, queries, heads, d).transpose(1, 2)  # as a layer splits its heads
    k, v = (torch.randn(B, groups, C + 4, d)[:, :, :C] for _ in range(2))  # the first of more slots
    whole = [part.repeat_interleave(heads // groups, 1) for part in (k, v)]
    want = (q @ whole[0].mT + mask).softmax(-1) @ whole[1]
    assert_close(by_kernels(q, k, v, mask), want, rtol=1e-5, atol=1e-5)


@compiled
def test_the_kernel_s_rows_do_not_depend_on_the_batch_nor_on_hidden_keys():
    mask, q = mask_of(4).mask.float(), torch.randn(B, 2, 4, 20)
    k, v = (torch.randn(B, 2, C, 20) for _ in range(2))
    found = by_kernels(q, k, v, mask)
    for n in range(B):
        some = slice(n, n + 1)
        assert torch.equal(by_kernels(q[some], k[some], v[some], mask[some])[0], found[n])
    shut = (mask == -torch.inf).all(2)[:, 0, None, :, None]  # no query sees these
    assert torch.equal(by_kernels(q, k.masked_fill(shut, torch.nan), v.masked_fill(shut, torch.nan), mask), found)


@compiled
def test_what_is_not_finite_stays_so():
    mask, q = mask_of(3).mask.float(), torch.randn(B, 2, 3, 20)
    k, v = (torch.randn(B, 2, C, 20) for _ in range(2))
    q[0, 0, 1] = torch.nan
    mask[1, :, 2] = -torch.inf
    found = by_kernels(q, k, v, mask)
    assert found[0, 0, 1].isnan().all()
    assert found[1, :, 2].isnan().all()  # as softmax of nothing
    found[0, 0, 1] = found[1, :, 2] = 0.0
    assert found.isfinite().all()


@compiled
def test_the_kernel_is_for_inference_in_float32(monkeypatch):
    calls = list[torch.dtype]()
    monkeypatch.setattr(masked, "attend_by_kernels", lambda kernels, q, *rest: calls.append(q.dtype) or q)
    q, mask = torch.randn(B, 2, 3, D), mask_of(3).mask
    k, v = (torch.randn(B, 2, C, D) for _ in range(2))
    softmax_attention(q, k, v, mask.float())
    assert not calls  # there are gradients
    with torch.no_grad():
        softmax_attention(q.double(), k.double(), v.double(), mask)
        softmax_attention(q, k, v.transpose(2, 3).contiguous().transpose(2, 3), mask.float())  # values lie otherwise
        assert not calls
        softmax_attention(q, k, v, mask.float())
    assert calls == [torch.float32]
