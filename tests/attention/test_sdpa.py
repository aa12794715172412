"""SDPA in 16 bits on a CPU: short sequences run in float32, because torch's backward pass in 16 bits is slow."""

import pytest
import torch

from regard.attention import Causal, Full, Padding, Recipe, attend
from regard.ops.dispatch import SHORT, needs_float32


def numbers(tokens: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(2, 3, tokens, 5).to(dtype).requires_grad_() for _ in range(3)]


def with_gradients(
    given: list[torch.Tensor], upstream: torch.Tensor, recipe: Recipe, backend: str
) -> list[torch.Tensor]:
    output = attend(given[0], given[1], given[2], recipe, backend=backend)
    assert output.dtype == given[0].dtype
    return [output, *torch.autograd.grad(output, given, upstream.to(output.dtype))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pattern", [Full(), Causal(), Padding(torch.tensor([7, 0]))])
def test_they_are_at_most_twice_as_far_off_as_plain_torch(pattern, dtype):
    recipe, given, upstream = Recipe(pattern=pattern), numbers(11, dtype), torch.randn(2, 3, 11, 5)
    assert needs_float32(given[0], given[1])
    found = with_gradients(given, upstream, recipe, "sdpa")
    plain = with_gradients(given, upstream, recipe, "reference")
    exact = with_gradients([x.detach().double().requires_grad_() for x in given], upstream, recipe, "reference")
    for mine, theirs, right in zip(found, plain, exact, strict=True):
        assert mine.dtype == dtype
        error, allowed = ((x.double() - right).abs().max() for x in (mine, theirs))
        assert error <= 2 * allowed


def test_a_sentence_of_padding_gives_and_learns_nothing():
    given = numbers(11, torch.bfloat16)
    recipe = Recipe(pattern=Padding(torch.tensor([7, 0])))
    found = with_gradients(given, torch.ones(2, 3, 11, 5), recipe, "sdpa")
    assert all(bool((x[1] == 0).all()) for x in found)


def test_autocast_does_not_narrow_them_again():
    """Under autocast the projections are bfloat16, and what is attended is as exact as without it."""
    given, upstream, recipe = numbers(11, torch.bfloat16), torch.randn(2, 3, 11, 5), Recipe()
    alone = with_gradients(given, upstream, recipe, "sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        under = with_gradients(given, upstream, recipe, "sdpa")
    assert all(torch.equal(one, other) for one, other in zip(alone, under, strict=True))


def test_nothing_is_widened_that_is_long_wide_or_without_gradients():
    half = numbers(11, torch.bfloat16)[0]
    assert not needs_float32(half.detach(), half)
    assert not needs_float32(half.float(), half.float())
    assert not needs_float32(half, half.new_zeros(2, 3, SHORT + 1, 5))
