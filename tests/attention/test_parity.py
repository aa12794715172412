"""Parity of backends: every recipe × position × backend × grouping, forward and backward, objects or agrees."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn.attention import flex_attention
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    POSITIONS,
    RECIPES,
    Clipped,
    DependencyTree,
    Edges,
    Padding,
    Recipe,
    RecipeSizes,
    RelativeBias,
    RelativeVectors,
    TreePath,
    Window,
    attend,
    get_recipe,
)
from regard.attention.backends import gather
from regard.attention.pattern import Positions

B, T, D = 2, 11, 12
SIZES = RecipeSizes(heads=6, head=D, tokens=T, window=3, block=2)
TREES = DependencyTree.from_governors(
    torch.tensor([[3, 3, 4, 0, 6, 4, 4, 7, 8, 9, 10], [2, 0, 2, 3, 4, 5, 6, 7, 0, 0, 0]])
)
EXTRAS = {
    "tree bias": lambda: RelativeBias(TreePath(2), heads=6),
    "tree vectors": lambda: RelativeVectors(TreePath(2), head=D),
    "learned distances and vectors": lambda: RelativeBias(Clipped(3), heads=6) + RelativeVectors(Clipped(2), head=D),
}
AT_ATTENTION = [name for name in POSITIONS if name not in ("sinusoidal", "learned")]  # those are added to the embedding
FAST = [name for name in BACKENDS if name != "reference"]
EAGER = [name for name in FAST if name != "flex"]  # flex traces every call anew
UNCOMPILED = "ignore:flex_attention called without torch.compile"
UNTRACED = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"  # torch's own: the same operations without a compiler


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {4: 1.0})


def build(recipe: str, position: str) -> Recipe | None:
    """A recipe with float64 weights; None where the combination itself objects."""
    try:
        made = get_recipe(recipe, "none" if position in EXTRAS else position, SIZES)
        if position in EXTRAS:
            made = replace(made, position=EXTRAS[position]())
    except ValueError as why:
        assert "inner product" in str(why)
        return None
    made.learned().double()
    return made.with_tree(tree=TREES)


def assert_agree_or_object(
    recipe: Recipe, backends: list[str], groups: int, new: int, *, grad: bool
) -> dict[str, list[str]]:
    """What each backend objects; if it has no objection, its outputs and gradients have been compared."""
    q = torch.randn(B, 6, new, D, dtype=torch.double, requires_grad=grad)
    k, v = (torch.randn(B, groups, T, D, dtype=torch.double, requires_grad=grad) for _ in range(2))
    inputs, found = (q, k, v, *recipe.learned().parameters()), {}
    with torch.set_grad_enabled(grad):
        want = attend(q, k, v, recipe, q_index=T - new, backend="reference")
        upstream = torch.randn_like(want)
        wanted = torch.autograd.grad(want, inputs, upstream, materialize_grads=True) if grad else ()
        for backend in backends:
            if why := BACKENDS[backend].objections(recipe, q, k, Positions.of(q, k, T - new, None)):
                assert all(isinstance(sentence, str) and sentence for sentence in why)
                with pytest.raises(ValueError, match=f"{backend} cannot run this recipe"):
                    attend(q, k, v, recipe, q_index=T - new, backend=backend)
            else:
                got = attend(q, k, v, recipe, q_index=T - new, backend=backend)
                gotten = torch.autograd.grad(got, inputs, upstream, materialize_grads=True) if grad else ()
                assert_close((got, *gotten), (want, *wanted), msg=lambda message, name=backend: f"{name}: {message}")
            found[backend] = why
    return found


# Parts of newer papers: with every recipe and position in the long run, with a few always.
LATER = ["learned temperature", "soft cap", "chosen globals", "per head", "entmax", "softmax plus one", "sinks"]
LATER += ["stick-breaking", "talking heads", "differential", "multi-token"]
LATER_POSITIONS = ["partial rotary", "ntk", "yarn", "axial rotary", "xpos", "cope"]


def is_quick(name: str, position: str) -> bool:
    if name in LATER:
        return position in ("none", "t5")
    return position not in LATER_POSITIONS or name in ("scaled dot", "causal linear", "sliding window", "sparsemax")


def test_later_parts_are_parts():
    assert set(LATER) < set(RECIPES)
    assert set(LATER_POSITIONS) < set(POSITIONS)


PAIRS = [
    pytest.param(*pair, id="-".join(pair), marks=() if is_quick(*pair) else pytest.mark.slow)
    for pair in product(RECIPES, [*AT_ATTENTION, *EXTRAS])
]


@pytest.fixture
def recipe(name, position) -> Recipe:
    if (made := build(name, position)) is None:
        pytest.skip(f"{name} has no keys that {position} could add to")
    return made


@pytest.mark.parametrize(("name", "position"), PAIRS)
def test_every_backend_agrees_or_objects(recipe):
    """In three groupings, one of them with fewer queries than keys, and there without gradients too."""
    for groups, new, grad in [(6, 11, True), (3, 4, True), (3, 4, False), (1, 11, True)]:
        assert_agree_or_object(recipe, EAGER, groups, new, grad=grad)


@pytest.mark.parametrize(("name", "position"), PAIRS)
@pytest.mark.slow
def test_every_backend_agrees_or_objects_in_every_grouping(recipe):
    for groups, new, grad in product((6, 3, 2, 1), (11, 4, 1), (True, False)):
        assert_agree_or_object(recipe, EAGER, groups, new, grad=grad)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "position"), PAIRS)
@pytest.mark.filterwarnings(UNCOMPILED)
def test_flex_agrees_or_objects(recipe, name, position, monkeypatch):
    """Each recipe and each position is traced once; to trace every pair takes ten times as long as to compute it."""
    monkeypatch.setattr(flex_attention, UNTRACED, position != "none" and name != "scaled dot")
    for grad in (False, True):
        assert_agree_or_object(recipe, ["flex"], 3, 4, grad=grad)


@pytest.mark.parametrize(("name", "position"), PAIRS)
@pytest.mark.slow
@pytest.mark.filterwarnings(UNCOMPILED)
def test_flex_traces_every_pair_in_every_grouping(recipe):
    for groups, new in [(6, 11), (3, 4), (1, 11)]:
        assert_agree_or_object(recipe, ["flex"], groups, new, grad=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["gather", "sdpa"])
@pytest.mark.parametrize("name", RECIPES)
def test_padding_on_top_of_any_pattern(name, backend):
    recipe = build(name, "none")
    assert recipe is not None
    recipe = replace(recipe, pattern=recipe.pattern & Padding(torch.tensor([11, 6])))
    runs = backend == "gather" and name not in ("per head", "multi-token")  # of heads that differ, or rows that mix
    assert assert_agree_or_object(recipe, [backend], 2, 11, grad=True)[backend] == [] or not runs


@pytest.mark.parametrize("backend", ["gather", "sdpa"])
def test_attention_over_a_graph(backend):
    edges = Edges(torch.randint(0, T, (2, 30)))
    assert assert_agree_or_object(Recipe(pattern=edges), [backend], 6, 11, grad=True)[backend] == []


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 16])
def test_the_size_of_blocks_changes_nothing(size, monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {size: 1.0})
    for recipe in (
        Recipe(pattern=Window(3)),
        get_recipe("bigbird", "alibi", SIZES),
        get_recipe("sparsemax", "shaw", SIZES),
    ):
        recipe.learned().double()
        assert assert_agree_or_object(recipe, ["gather"], 3, 7, grad=True)["gather"] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sliding window", "bigbird", "causal linear", "scaled dot"])
def test_half_precision_is_as_good_as_plain_torch(name, dtype):
    """Error at most twice that of the reference in the same dtype, both against float64."""
    recipe = get_recipe(name, "none", SIZES)
    q, k, v = torch.randn(3, B, 6, T, D, dtype=torch.double)
    truth = attend(q, k, v, recipe, backend="reference")
    plain = attend(q.to(dtype), k.to(dtype), v.to(dtype), recipe, backend="reference")
    allowed = 2 * (plain.double() - truth).abs().max()
    for backend in FAST:
        positions = Positions.of(q, k, None, None)
        if backend != "flex" and not BACKENDS[backend].objections(recipe, q, k, positions):
            got = attend(q.to(dtype), k.to(dtype), v.to(dtype), recipe, backend=backend)
            assert (got.double() - truth).abs().max() <= allowed, backend
