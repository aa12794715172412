"""Random recipes: the reference computes the papers' formulas, and every backend agrees with it or objects."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.testing import assert_close

from regard.attention import BACKENDS, attend, steps
from regard.attention.backends import gather
from tests.attention import naive
from tests.attention.random_recipes import Case, LearnedDistance, random_case

FEW, MANY = range(150), range(150, 4000)
EMPTY = ("sentences", "queries", "keys")
UNTRACED = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"  # torch's own: the same operations without a compiler
FAST = [name for name in BACKENDS if name not in ("reference", "flex")]  # flex has no backward pass on the CPU


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {4: 1.0, 3: 1.1})


def seeds(*, few: range = FEW, many: range = MANY):
    """The first of them always, the rest in the long run."""
    return pytest.mark.parametrize("seed", [*few, *(pytest.param(seed, marks=pytest.mark.slow) for seed in many)])


def run(given: Case, backend: str) -> Tensor | None:
    """None if the backend objects."""
    torch.manual_seed(0)
    try:
        return attend(
            given.q, given.k, given.v, given.recipe, q_index=given.q_index, k_index=given.k_index, backend=backend
        )
    except ValueError as why:
        if f"{backend} cannot run this recipe: " in str(why):
            return None
        raise


def gradients(given: Case, out: Tensor) -> tuple[Tensor, ...]:
    upstream = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if not out.requires_grad:  # there are no keys, or each is chosen for good
        return tuple(torch.zeros_like(x) for x in given.inputs)
    return torch.autograd.grad(out, given.inputs, upstream.to(out.dtype), materialize_grads=True)


@seeds()
def test_every_backend_computes_the_formula_or_objects(seed):
    given = random_case(seed)
    if given.draws:
        return linear_in_the_values(given)
    plain = naive.attention(given)
    grads = gradients(given, plain)
    for backend in ("reference", *FAST):
        if (out := run(given, backend)) is not None:
            assert_close(out, plain, msg=lambda why, name=backend: f"{name} {given.recipe}: {why}")
            if not near_a_bend(given):
                assert_close(
                    gradients(given, out), grads, msg=lambda why, name=backend: f"{name} {given.recipe}: {why}"
                )
    return None


def near_a_bend(given: Case) -> bool:
    """Does a rotated query meet a key at 0, where rounding decides which slope a normaliser that bends there has?"""
    if not given.bends or not given.recipe.query_key_positions:
        return False
    scores = steps(given.q, given.k, given.v, given.recipe, q_index=given.q_index, k_index=given.k_index).scores
    return bool((scores.abs() < 1e-9).any())


def linear_in_the_values(given: Case) -> None:
    """Whatever is drawn, the output is linear in the values: ⟨g, o(v) − o(0)⟩ = ⟨v, ∂v⟩ for one and the same draw."""
    nothing = replace(given, v=torch.zeros_like(given.v))
    for backend in ("reference", *FAST):
        if (out := run(given, backend)) is not None and (base := run(nothing, backend)) is not None:
            upstream = torch.randn_like(out)
            (grad,) = torch.autograd.grad(out, given.v, upstream, materialize_grads=True)
            assert_close((upstream * (out - base)).sum(), (given.v * grad).sum())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@seeds(few=range(0, 150, 5), many=range(150, 4000, 5))
def test_flex_computes_the_formula_or_objects(seed, monkeypatch):
    given = random_case(seed)
    monkeypatch.setattr(flex_attention, UNTRACED, seed in FEW and seed % 25 != 0)
    with torch.no_grad():
        out = run(given, "flex")
        assert out is None or given.draws or assert_close(out, naive.attention(given)) is None


@seeds(few=range(60), many=range(60, 2000))
def test_where_there_is_nothing_nothing_comes_out(seed):
    given = random_case(seed, empty=EMPTY[seed % 3])
    for backend in ("reference", *FAST):
        if (out := run(given, backend)) is not None:
            assert out.shape == (*given.q.shape[:3], given.v.shape[3])
            assert (out == 0).all()
            assert all((grad == 0).all() for grad in gradients(given, out))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@seeds(few=range(50), many=range(50, 2000))
def test_half_precision_is_as_good_as_the_plain_formula(seed, dtype):
    """Error at most twice that of the formula in the same dtype, both against float64, and a rounding of the output.
    Where the formula itself loses its digits, as by a sum of weights near 0, nothing is required. A distance, whose
    square root is the part's own and not a backend's, rounds once more."""
    given, exact = random_case(seed, dtype), random_case(seed, rounded=dtype)
    if given.draws or given.jumps:  # another key is another answer, not a rounding error
        return
    truth, plain = (together(x, naive.attention(x)) for x in (exact, given))
    errors = [((rough - right).norm(), right.norm()) for right, rough in zip(truth, plain, strict=True)]
    eps = torch.finfo(dtype).eps
    roundings = 2 if isinstance(given.recipe.score, LearnedDistance) else 1
    allowed = [2 * error + roundings * eps * size if error < 16 * eps * size else torch.inf for error, size in errors]
    for backend in ("reference", *FAST):
        if (out := run(given, backend)) is not None:
            both = list(zip(together(given, out), truth, allowed, strict=True))
            for found, right, most in both[:1] if given.bends else both:  # another slope is no rounding error either
                assert (found - right).norm() <= most, f"{backend}: {given.recipe}"


def together(given: Case, out: Tensor) -> tuple[Tensor, Tensor]:
    """The output and all gradients, each as one vector."""
    return out.detach().double().flatten(), torch.cat([x.double().flatten() for x in gradients(given, out)])
