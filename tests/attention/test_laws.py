"""Laws that hold for every part, checked on generated inputs."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.attention import (
    BACKENDS,
    RECIPES,
    Alibi,
    Causal,
    Feature,
    Full,
    Hard,
    Padding,
    Pattern,
    Prefix,
    Proportional,
    Recipe,
    RecipeSizes,
    ReLU,
    Rotary,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopK,
    attend,
    get_recipe,
    parse_part,
    steps,
)
from regard.attention.backends import gather, linear
from regard.attention.pattern import And, Not, Or
from tests.attention.patterns import cells_of, dense, patterns
from tests.attention.qkv import QKV

SIZES = RecipeSizes(heads=2, head=4, tokens=7, window=3, block=2)
T = 7
settings.register_profile("house", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("house")
seeds = st.integers(0, 2**31)


def qkv(seed: int, t: int = T, d: int = 4) -> QKV:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, t, d, dtype=torch.double, generator=generator) for _ in range(3))
    return q, k, v


def build(name: str) -> Recipe:
    recipe = get_recipe(name, "none", SIZES)
    recipe.learned().double()
    return recipe


# --- patterns ---


@given(patterns, patterns)
def test_de_morgan(p, q):
    assert torch.equal(dense(~(p & q), T), dense(~p | ~q, T))
    assert torch.equal(dense(~(p | q), T), dense(~p & ~q, T))


@given(patterns, patterns, patterns)
def test_and_distributes_over_or(p, q, r):
    assert torch.equal(dense(p & (q | r), T), dense((p & q) | (p & r), T))


@given(patterns, st.integers(1, T - 1))
def test_a_pattern_seen_through_a_cache_is_its_last_rows(p, new):
    assert torch.equal(dense(p, new, T, start=T - new), dense(p, T)[..., -new:, :])


@given(patterns)
def test_a_pattern_reads_what_it_prints(p):
    assert parse_part(repr(p)) == p
    assert hash(parse_part(repr(p))) == hash(p)


@given(patterns)
def test_what_depends_on_the_difference_alone_says_so_rightly(p):
    if p.is_toeplitz:
        shifted = p.sees(*cells_of(5, 5, start=3, k_start=3))
        assert torch.equal(shifted.expand(1, 1, 5, 5), dense(p, 5))


# --- normalisers ---


@given(
    patterns, st.sampled_from([Softmax(), Sparsemax(), TopK(2), Proportional(), Hard(), TopK(3, Sparsemax())]), seeds
)
def test_rows_sum_to_one_or_to_nothing(p, normaliser, seed):
    scores = torch.rand(1, 1, T, T, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    visible = dense(p, T)
    weights = normaliser.weigh(scores, visible)
    assert (weights[~visible] == 0).all()
    assert_close(weights.sum(-1), visible.any(-1).double())


@given(patterns, st.sampled_from([ReLU(), Sigmoid()]), seeds)
def test_weights_that_need_not_sum_are_still_zero_where_hidden(p, normaliser, seed):
    scores = torch.randn(1, 1, T, T, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    visible = dense(p, T)
    weights = normaliser.weigh(scores, visible)
    assert (weights[~visible] == 0).all()
    assert (weights >= 0).all()


@given(seeds, st.floats(-100, 100))
def test_softmax_and_sparsemax_ignore_a_constant(seed, constant):
    scores = torch.randn(1, 1, T, T, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    for normaliser in (Softmax(), Sparsemax()):
        every = torch.ones_like(scores, dtype=torch.bool)
        assert_close(normaliser.weigh(scores + constant, every), normaliser.weigh(scores, every))


# --- attention ---


@pytest.mark.parametrize("name", RECIPES)
@settings(max_examples=5)
@given(seed=seeds)
def test_without_positions_the_order_of_keys_does_not_matter(name, seed):
    recipe = replace(build(name), pattern=Full())
    if name in ("stick-breaking", "multi-token"):  # which know the order of keys, or of queries
        return
    q, k, v = qkv(seed)
    order = torch.randperm(T, generator=torch.Generator().manual_seed(seed))
    assert_close(attend(q, k[:, :, order], v[:, :, order], recipe), attend(q, k, v, recipe))
    assert_close(attend(q[:, :, order], k, v, recipe), attend(q, k, v, recipe)[:, :, order])


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RECIPES)
def test_padding_changes_nothing(name, backend, monkeypatch):
    """Sentences of 7 and 4 tokens, the second filled up with noise: each gives what it gives alone."""
    monkeypatch.setattr(gather, "SIZES", {2: 1.0})
    # test_parity.py traces each recipe
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", name not in ("dot", "bigbird"))
    recipe = build(name)
    padded = replace(recipe, pattern=recipe.pattern & Padding(torch.tensor([T, 4])))
    q, k, v = (torch.cat((x, y)) for x, y in zip(qkv(1), qkv(2), strict=True))
    try:
        with torch.no_grad():
            both = attend(q, k, v, padded, backend=backend)
    except ValueError as why:
        assert "cannot run" in str(why)
        return
    assert_close(both[:1], attend(q[:1], k[:1], v[:1], recipe))
    assert_close(both[1:, :, :4], attend(q[1:, :, :4], k[1:, :, :4], v[1:, :, :4], recipe))


CAUSAL = [name for name in RECIPES if (dense(build(name).pattern, T).triu(1) == 0).all()]


def attend_or_objection(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, backend: str) -> Tensor | None:
    """The output, or None where the backend objects."""
    try:
        return attend(q, k, v, recipe, backend=backend)
    except ValueError as why:
        assert "cannot run" in str(why)
        return None


def test_there_are_causal_recipes():
    assert {"causal", "strictly before", "sliding window", "strided", "documents", "causal linear"} <= set(CAUSAL)


@pytest.mark.parametrize("backend", ["linear", "gather", "sdpa", "reference"])
@pytest.mark.parametrize("name", CAUSAL)
def test_the_future_cannot_change_the_past(name, backend, monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {2: 1.0})
    recipe, now = build(name), 4
    q, k, v = (x.requires_grad_() for x in qkv(3))
    out = attend_or_objection(q, k, v, recipe, backend)
    if out is None:
        return
    other_q, other_k, other_v = (x.detach().index_fill(2, torch.arange(now, T), 9.0) for x in (q, k, v))
    changed = attend(other_q, other_k, other_v, recipe, backend=backend)
    # to rounding, not to the bit: a fused kernel may sum in another order
    assert_close(changed[:, :, :now], out[:, :, :now], rtol=0, atol=1e-13)
    for grad in torch.autograd.grad(out[:, :, :now].square().sum(), (q, k, v)):
        assert (grad[:, :, now:] == 0).all()


@pytest.mark.parametrize("name", RECIPES)
def test_a_hidden_key_cannot_be_felt(name):
    """Hide the last keys, poison them with nan: no output may change by a single bit."""
    recipe = build(name)
    recipe = replace(recipe, pattern=recipe.pattern & Prefix(4))
    q, k, v = qkv(4)
    before = steps(q, k, v, recipe).output
    k[..., 4:, :] = torch.nan
    assert torch.equal(steps(q, k, v, recipe).output, before)


@pytest.mark.parametrize("backend", ["gather", "sdpa", "reference", "linear"])
@pytest.mark.parametrize(
    "normaliser", [Softmax(), ReLU(), Sigmoid(), Sparsemax(), TopK(2), Proportional(), Hard()], ids=str
)
def test_a_row_that_sees_nothing_gives_zero_and_takes_zero(backend, normaliser, monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {2: 1.0})
    recipe = Recipe(score=Feature(), pattern=Causal() & ~Prefix(3), normaliser=normaliser)
    q, k, v = (x.requires_grad_() for x in qkv(5))
    out = attend_or_objection(q, k, v, recipe, backend)
    if out is None:
        return
    assert (out[:, :, :3] == 0).all()
    for x, grad in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v), materialize_grads=True), strict=True):
        assert grad.isfinite().all()
        assert x is not q or (grad[:, :, :3] == 0).all()
        assert x is q or (grad[:, :, :3] == 0).all()


def test_a_linear_state_that_has_seen_nothing_gives_zero():
    q, k, v = qkv(6)
    out = linear.read_state(q, linear.key_value_state(k[:, :, :0], v[:, :, :0]))
    assert (out == 0).all()


@pytest.mark.parametrize("pairs", ["adjacent", "halves"])
@given(shift=st.integers(0, 10_000), seed=seeds)
def test_rotary_depends_on_differences_only(pairs, shift, seed):
    q, k, v = qkv(seed)
    recipe = Recipe(position=Rotary(pairs=pairs))
    assert_close(attend(q, k, v, recipe, q_index=shift, k_index=shift), attend(q, k, v, recipe), rtol=1e-6, atol=1e-9)


@given(shift=st.integers(0, 10_000), seed=seeds)
def test_alibi_depends_on_differences_only(shift, seed):
    q, k, v = qkv(seed)
    recipe = Recipe(position=Alibi(2))
    assert_close(attend(q, k, v, recipe, q_index=shift, k_index=shift), attend(q, k, v, recipe))


@settings(max_examples=25)
@given(tokens=st.integers(1, 40), chunk=st.integers(1, 9), cut=st.integers(0, 40), seed=seeds)
def test_linear_attentions_three_forms_agree(tokens, chunk, cut, seed):
    """All at once by the definition, in chunks, and step by step from a state."""
    recipe = Recipe(score=Feature(), pattern=Causal(), normaliser=Proportional())
    q, k, v = qkv(seed, tokens)
    want = attend(q, k, v, recipe, backend="reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "CHUNK", chunk)
        patch.setattr(linear, "PIECE", 3 * chunk + 1)
        assert_close(attend(q, k, v, recipe, backend="linear"), want)
        cut, state, parts = min(cut, tokens), None, []
        for piece in (slice(0, cut), *(slice(t, t + 1) for t in range(cut, tokens))):
            if piece.stop > piece.start:
                part, state = linear.step(recipe, q[:, :, piece], k[:, :, piece], v[:, :, piece], state)
                parts.append(part)
    assert_close(torch.cat(parts, 2), want)


def test_linear_attention_forms_no_state_per_token():
    """No tensor of tokens × d × d is ever made: the largest stays below it by far."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            largest = max([largest, *(x.numel() for x in tree_leaves(out) if torch.is_tensor(x))])
            return out

    tokens, d = 2048, 32
    q, k, v = (torch.randn(1, 1, tokens, d) for _ in range(3))
    with Watch():
        attend(q, k, v, Recipe(score=Feature(), pattern=Causal(), normaliser=Proportional()))
    assert largest <= tokens * linear.CHUNK
    assert largest * 4 < tokens * d * d * 4


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["some directions", "all"])
@pytest.mark.parametrize("name", RECIPES)
def test_the_derivative_is_right(name, fast):
    recipe = get_recipe(name, "shaw" if name not in ("bahdanau", "soft cap") else "t5", SIZES)
    recipe.learned().double()
    inputs = [x.requires_grad_() for x in qkv(8)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend(q, k, v, recipe, backend="reference"), inputs, fast_mode=fast
    )


@pytest.mark.parametrize("combine", [And, Or])
def test_patterns_are_values(combine):
    assert combine(Causal(), Prefix(2)) == combine(Causal(), Prefix(2))
    assert len({combine(Causal(), Prefix(2)), combine(Causal(), Prefix(2)), combine(Causal(), Prefix(3))}) == 2
    assert Not(Causal()) != Causal()


@dataclass
class Careless(Pattern):
    """Neither frozen nor spread over the indices."""

    def sees(self, b, h, i, j):
        return torch.tensor(1 == 1)


def test_a_careless_pattern_works():
    q, k, v = qkv(9)
    for backend in ("gather", "sdpa", "reference", None):
        assert_close(attend(q, k, v, Recipe(pattern=Careless()), backend=backend), attend(q, k, v))
