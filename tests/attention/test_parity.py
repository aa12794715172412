"""Parity of backends: every recipe × position × backend × grouping, forward and backward, objects or agrees."""

from dataclasses import replace

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
from regard.attention.positions import Positions

B, T, D = 2, 11, 10
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


def agree(recipe: Recipe, backend: str, groups: int, new: int, grad: bool) -> list[str]:  # noqa: FBT001
    """The backend's objections; if it has none, its outputs and gradients have been compared."""
    q = torch.randn(B, 6, new, D, dtype=torch.double, requires_grad=grad)
    k, v = (torch.randn(B, groups, T, D, dtype=torch.double, requires_grad=grad) for _ in range(2))
    with torch.set_grad_enabled(grad):
        if why := BACKENDS[backend].objections(recipe, q, k, Positions.of(q, k, T - new, None)):
            with pytest.raises(ValueError, match="cannot run this recipe"):
                attend(q, k, v, recipe, q_index=T - new, backend=backend)
            return why
        want, got = (attend(q, k, v, recipe, q_index=T - new, backend=name) for name in ("reference", backend))
    assert_close(got, want)
    if grad:
        inputs, upstream = (q, k, v, *recipe.learned().parameters()), torch.randn_like(want)
        wanted, gotten = (torch.autograd.grad(y, inputs, upstream, materialize_grads=True) for y in (want, got))
        assert_close(gotten, wanted)
    return []


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("position", [*AT_ATTENTION, *EXTRAS])
@pytest.mark.parametrize("name", RECIPES)
def test_the_backend_agrees_or_objects(name, position, backend, monkeypatch):
    if (recipe := build(name, position)) is None:
        pytest.skip(f"{name} has no keys that {position} could add to")
    # each recipe and each position is traced once; to trace every pair takes ten times as long as to compute it
    monkeypatch.setattr(flex_attention, UNTRACED, position != "none" and name != "scaled dot")
    # flex traces every call anew, so it is given one grouping; the others three, one with fewer queries than keys
    for groups, new in [(3, 4)] if backend == "flex" else [(6, 11), (3, 4), (1, 11)]:
        for grad in (False, True) if groups == 3 else (True,):
            objections = agree(recipe, backend, groups, new, grad)
            assert all(isinstance(why, str) and why for why in objections)


@pytest.mark.parametrize("backend", ["gather", "sdpa"])
@pytest.mark.parametrize("name", RECIPES)
def test_padding_on_top_of_any_pattern(name, backend):
    recipe = build(name, "none")
    assert recipe is not None
    recipe = replace(recipe, pattern=recipe.pattern & Padding(torch.tensor([11, 6])))
    assert agree(recipe, backend, 2, 11, grad=True) == [] or backend == "sdpa"


@pytest.mark.parametrize("backend", ["gather", "sdpa"])
def test_attention_over_a_graph(backend):
    edges = Edges(torch.randint(0, T, (2, 30)))
    assert agree(Recipe(pattern=edges), backend, 6, 11, grad=True) == []


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 16])
def test_the_size_of_blocks_changes_nothing(size, monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {size: 1.0})
    for recipe in (
        Recipe(pattern=Window(3)),
        get_recipe("bigbird", "alibi", SIZES),
        get_recipe("sparsemax", "shaw", SIZES),
    ):
        recipe.learned().double()
        assert agree(recipe, "gather", 3, 7, grad=True) == []


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
