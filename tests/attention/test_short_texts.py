"""Short texts in 16 bits on a CPU: attended in 32, because torch's way back in 16 takes several times as long."""

import pytest
import torch

from regard.attention import Causal, Full, Padding, Recipe, attend
from regard.attention.backends import sdpa


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
    assert sdpa.widened(given[0], given[1])
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
    """Under autocast the projections are narrow, and what is attended is as exact as without it."""
    given, upstream, recipe = numbers(11, torch.bfloat16), torch.randn(2, 3, 11, 5), Recipe()
    alone = with_gradients(given, upstream, recipe, "sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        under = with_gradients(given, upstream, recipe, "sdpa")
    assert all(torch.equal(one, other) for one, other in zip(alone, under, strict=True))


def test_nothing_is_widened_that_is_long_wide_or_without_gradients():
    narrow = numbers(11, torch.bfloat16)[0]
    assert not sdpa.widened(narrow.detach(), narrow)
    assert not sdpa.widened(narrow.float(), narrow.float())
    assert not sdpa.widened(narrow, narrow.new_zeros(2, 3, sdpa.SHORT + 1, 5))
