"""KV cache: a sequence in pieces gives what it gives at once, or is refused; linear attention at any positions."""

from dataclasses import dataclass, replace
from math import lcm

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    Block,
    Causal,
    Documents,
    Edges,
    Feature,
    Full,
    Global,
    KVCache,
    MultiHeadAttention,
    Normaliser,
    Padding,
    Pattern,
    Prefix,
    Proportional,
    Recipe,
    Rotary,
    RowWise,
    Softmax,
    Strided,
    TopK,
    Window,
    attend,
)
from regard.attention.backends import BACKENDS, linear
from regard.attention.kv_cache import is_causal
from regard.attention.pattern import And, Not, Or, Positions, StrictCausal, ToeplitzPattern
from tests.attention.patterns import B, N, dense, of_a_batch, patterns

LINEAR = Recipe(score=Feature(), pattern=Causal(), normaliser=Proportional())

tokens = st.integers(0, N)
PERIOD = lcm(*range(1, 8))  # of strides of up to 7, however they are combined
differences = st.recursive(
    st.one_of(st.just(Full()), st.just(Causal()), st.just(StrictCausal()), st.builds(Window, st.integers(1, 6)))
    | st.builds(Strided, st.integers(1, 7)),
    lambda p: st.one_of(st.builds(And, p, p), st.builds(Or, p, p), st.builds(Not, p)),
    max_leaves=5,
)


@dataclass(frozen=True)
class Recent(ToeplitzPattern):
    """A user's own: itself and a few before it."""

    size: int

    def sees(self, b, h, i, j):
        return (i >= j) & (i - j < self.size)


@dataclass(frozen=True)
class Late(ToeplitzPattern):
    """A user's own: causal, but for one key far ahead."""

    ahead: int

    def sees(self, b, h, i, j):
        return (i >= j) | (j - i == self.ahead)


@dataclass(frozen=True)
class LastHeadLooksAhead(ToeplitzPattern):
    def sees(self, b, h, i, j):
        return (i >= j) | (h > 0)


@dataclass(frozen=True)
class Even(Pattern):
    """A user's own, of which nothing is known."""

    def sees(self, b, h, i, j):
        return (j % 2 == 0) & (j <= i)


@dataclass(frozen=True)
class Competing(Normaliser):
    """Looks across queries: they compete for each key."""

    def weigh(self, scores, visible):
        return torch.where(visible, scores.masked_fill(~visible, -1e9).softmax(-2), 0.0)


@dataclass(eq=False)
class Temperature(nn.Module, RowWise):
    """A learned temperature for each head."""

    heads: int

    def __post_init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(self.heads, 1, 1) + 0.5)

    def weigh(self, scores, visible):
        return Softmax().weigh(scores * self.scale.to(scores.dtype), visible)


def layer_of(recipe: Recipe, heads: int = 2, groups: int = 1) -> MultiHeadAttention:
    return MultiHeadAttention(4, heads=heads, groups=groups, head=4, recipe=recipe).double()


def in_pieces(layer: MultiHeadAttention, x: Tensor, pieces: list[int], pattern: Pattern | None = None) -> Tensor:
    cache, parts = KVCache(), []
    for piece in x.split(pieces, 1):
        part, cache = layer.extend(piece, cache, pattern=pattern)
        parts.append(part)
    return torch.cat(parts, 1)


def text() -> Tensor:
    return torch.randn(B, N, 4, dtype=torch.double)


# --- what may use a KV cache ---


@settings(deadline=None, max_examples=100)
@given(of_a_batch, st.sampled_from([[1] * N, [4, 1, 4], [8, 1]]), st.booleans())
def test_reading_in_pieces_is_reading_at_once_or_refused(pattern, pieces, is_linear):
    layer, x = layer_of(LINEAR if is_linear else Recipe()), text()
    if is_linear:
        pattern = Causal() & pattern  # the recipe is causal already, and what it meets changes nothing of that
    elif not is_causal(pattern, N):
        with pytest.raises(ValueError, match="is not causal, or not provably so"):
            in_pieces(layer, x, pieces, pattern)
        pattern = pattern & Causal()
    assert_close(in_pieces(layer, x, pieces, pattern), layer(x, pattern=pattern))


@given(differences)
def test_patterns_of_the_difference_are_decided_exactly(pattern):
    assert is_causal(pattern, N) == (not dense(pattern, PERIOD + 7).triu(1).any())


def test_strides_that_meet_far_ahead_only_are_not_causal():
    pattern = Strided(2) & Strided(5) & Strided(7)
    assert not dense(pattern, 43).triu(1).any()
    assert not is_causal(pattern, N)


@given(patterns)
def test_what_is_proved_causal_sees_nothing_ahead(pattern):
    assert not is_causal(pattern, N) or not dense(pattern, 43).triu(1).any()


@pytest.mark.parametrize(
    "pattern",
    [
        Full(),
        Padding(torch.tensor([9, 4])),
        Padding(torch.tensor([9])),
        Documents(torch.zeros(1, 10, dtype=torch.long)),
        Documents(torch.zeros(2, 80, dtype=torch.long)),
        Edges(torch.tensor([[70], [75]])),
        Causal() | Strided(100),
        Causal() | Strided(10**6),
        Causal() | ~Prefix(80),
        Causal() | Padding(torch.tensor([3, 4])),
        Causal() | Global(1),
        Block(2, Causal()),
        ~Padding(torch.tensor([3, 4])),
        Late(1000),
        LastHeadLooksAhead(),
        Causal() & LastHeadLooksAhead() | Even(),
        Even(),
    ],
    ids=str,
)
def test_what_looks_ahead_anywhere_is_refused_from_the_first_token(pattern):
    for recipe, given_here in ((Recipe(pattern=pattern), None), (Recipe(), pattern)):
        with pytest.raises(ValueError, match=r"is not causal.*call the layer, or add & Causal\(\)"):
            layer_of(recipe).extend(text()[:, :1], pattern=given_here)


@pytest.mark.parametrize(
    "pattern",
    [
        Causal() & Padding(torch.tensor([9, 4])),
        ~(~Causal() | Padding(torch.tensor([9, 4]))),
        Edges(torch.tensor([[8, 5, 0], [8, 1, 0]])),
        Causal() | Prefix(1),
        Window(5) & Strided(7),
        Block(2, StrictCausal()) | Causal(),
        Recent(3),
        Recent(3) & Even(),
        LastHeadLooksAhead() & Causal(),
    ],
    ids=str,
)
def test_what_is_causal_by_what_it_is_made_of_reads_on(pattern):
    layer, x = layer_of(Recipe(pattern=pattern)), text()
    assert_close(in_pieces(layer, x, [2, 1, 6]), layer(x))


def test_a_key_ahead_beyond_the_horizon_is_found_when_the_text_reaches_it():
    assert is_causal(Late(20_000), 20_000)
    assert not is_causal(Late(20_000), 20_001)


def test_a_pattern_that_comes_later_is_asked_too():
    layer, x = layer_of(Recipe(pattern=Causal())), text()
    _, cache = layer_of(Recipe()).extend(x[:, :4], pattern=Causal())
    layer.extend(x[:, 4:], cache)
    with pytest.raises(ValueError, match="is not causal"):
        layer_of(Recipe()).extend(x[:, 4:], cache)


def test_a_normaliser_reads_on_only_if_it_declares_that_each_row_stands_alone():
    x = text()
    for normaliser in (Competing(), TopK(3, then=Competing())):
        with pytest.raises(ValueError, match=r"may mix queries.*RowWise"):
            layer_of(Recipe(pattern=Causal(), normaliser=normaliser)).extend(x)
    for normaliser in (Temperature(2), TopK(3, then=Temperature(2))):
        layer = layer_of(Recipe(pattern=Causal(), normaliser=normaliser))
        assert_close(in_pieces(layer, x, [3, 1, 5]), layer(x))


# --- linear attention ---


@pytest.mark.parametrize("position", [Rotary(), None], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_linear_attention_reads_on_past_the_end_of_a_sentence(groups, position):
    recipe = LINEAR if position is None else replace(LINEAR, position=position)
    layer, x, padding = layer_of(recipe, groups=groups), text(), Padding(torch.tensor([9, 3]))
    for pieces in ([1] * N, [4, 1, 4], [N]):
        assert_close(in_pieces(layer, x, pieces, padding), layer(x, pattern=padding))
    assert isinstance(layer.extend(x, pattern=padding)[1].past, linear.LinearState)


def test_a_state_of_sums_is_not_read_by_another_pattern():
    layer, x = layer_of(LINEAR), text()
    _, cache = layer.extend(x[:, :4])
    with pytest.raises(ValueError, match=r"the cache holds the sums of linear attention.*read anew"):
        layer.extend(x[:, 4:], cache, pattern=Window(2))


def test_a_step_of_linear_attention_asks_where_padded_keys_stand():
    q = torch.rand(1, 1, 1, 2)
    with pytest.raises(ValueError, match="say at which positions these keys are"):
        linear.step(replace(LINEAR, pattern=Causal() & Padding(torch.tensor([1]))), q, q, q, None)
    with pytest.raises(ValueError, match="is not causal"):
        linear.step(replace(LINEAR, pattern=Full()), q, q, q, None)


def some_places(kind: str, first: int, length: int) -> int | Tensor | None:
    at = torch.arange(first, first + length)
    return {
        "none": None,
        "number": first,
        "consecutive": at,
        "scattered": torch.randperm(2 * N)[:length],
        "per sentence": torch.stack((at, at.flip(0) * 2)),
    }[kind]


KINDS = st.sampled_from(["none", "number", "consecutive", "scattered", "per sentence"])


@settings(deadline=None)
@given(KINDS, KINDS, st.tuples(tokens, tokens), st.sampled_from([1, 2, 4]), st.booleans(), st.lists(tokens, max_size=2))
def test_linear_attention_knows_where_keys_stand_or_objects(q_kind, k_kind, firsts, groups, is_causal, lengths):
    q = torch.rand(B, 4, 5, 3, dtype=torch.double, requires_grad=True)
    k, v = (torch.rand(B, groups, N, 3, dtype=torch.double, requires_grad=True) for _ in range(2))
    q_index, k_index = some_places(q_kind, firsts[0], 5), some_places(k_kind, firsts[1], N)
    pattern = Causal() if is_causal else Full()
    recipe = replace(LINEAR, pattern=pattern & Padding(torch.tensor(lengths)) if lengths else pattern)
    if BACKENDS["linear"].objections(recipe, q, k, Positions.of(q, k, q_index, k_index)):
        assert is_causal  # everybody sees everybody, at whatever positions
        return
    want, got = (
        attend(q, k, v, recipe, q_index=q_index, k_index=k_index, backend=name) for name in ("reference", "linear")
    )
    assert_close(got, want)
    upstream = torch.rand_like(want)
    assert_close(*(torch.autograd.grad(y, (q, k, v), upstream) for y in (got, want)))
