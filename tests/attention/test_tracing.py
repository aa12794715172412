"""Tracing: attention under torch.compile, torch.export and torch.jit.trace gives what it gives eagerly.

In a process of its own, since shapes that are types, as checked under test, cannot be traced. Dynamo alone is asked
for, not its C++ or Triton compiler, which have nothing to do with us and take long.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from regard.attention import (
    BACKENDS,
    CONTENT_RECIPES,
    GATED_RECIPES,
    Causal,
    Full,
    LayerOptions,
    MultiHeadAttention,
    NoPosition,
    Padding,
    Recipe,
    RecipeSizes,
    Window,
    explain,
    get_recipe,
)
from regard.attention.backends.flex import compile_per_recipe
from tests.attention.test_parity import LATER
from tests.forks import run_program
from tests.narrowing import assert_is_instance

PATTERNS = {"full": Full(), "causal": Causal(), "window": Window(16), "padding": Full()}
LENGTHS = [64, 2048]  # at the longer one blocks would be planned, were it not traced
PLANNING = "it plans on lengths and data, which are not known while torch traces the call"


class Layer(nn.Module):
    """Attention, met by the padding of one batch if its lengths are given."""

    def __init__(self, recipe: Recipe):
        super().__init__()
        self.attention = MultiHeadAttention(8, heads=2, groups=1, recipe=recipe).double()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.attention(x, pattern=None if lengths is None else Padding(lengths))


def recipe_of(name: str) -> Recipe:
    sizes = RecipeSizes(heads=2, head=4, tokens=64, window=16, block=8)
    return Recipe(pattern=PATTERNS[name]) if name in PATTERNS else get_recipe(name, "rotary", sizes)


def inputs(name: str, n: int) -> tuple[Tensor, ...]:
    x = torch.randn(2, n, 8, dtype=torch.double)
    return (x, torch.tensor([n, n // 3])) if name == "padding" else (x,)


# --- how it is traced ---


def traced(layer: Layer, given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    return assert_is_instance(torch.jit.trace(layer, given, check_trace=False), torch.jit.ScriptModule)


def exported(layer: Layer, given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    return torch.export.export(layer, given).module()


def exported_for_any_length(layer: Layer, given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    free = {"x": {1: Dim("tokens", min=2, max=2**16)}, **({"lengths": None} if len(given) > 1 else {})}
    return torch.export.export(layer, given, dynamic_shapes=free).module()


def compiled(layer: Layer, given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return torch.compile(layer, backend="aot_eager", fullgraph=True)


WAYS = {way.__name__: way for way in (traced, exported, exported_for_any_length, compiled)}
CASES = [f"{name} {n} {way}" for name in PATTERNS for n in LENGTHS for way in WAYS]
# Of softplus before a running sum torch's `aot_eager` (not its own compiler) lays out the gradient otherwise than it is
EAGER = [name for name, make in GATED_RECIPES.items() if make(RecipeSizes(), NoPosition()).gate.has_rate]
# and the indexer, which reads the keys of all heads, wants as many as there are query heads
TRACED = [name for name in (*LATER, *GATED_RECIPES, *CONTENT_RECIPES) if name != "lightning indexer"]
CASES += [f"{name} 64 {'exported' if name in EAGER else 'compiled'}" for name in TRACED]
SHORT = [
    "forget gate 64 compiled",
    "talking heads 64 compiled",
    "gated delta rule 64 exported",
    "top blocks 64 compiled",
]
SHORT += [f"window 2048 {way}" for way in ("traced", "exported_for_any_length")]
SHORT += [f"padding 2048 {way}" for way in ("exported", "compiled")]
LONG = [case for case in CASES if case not in SHORT]
GRAPHS = "graphs"


def furthest(case: str) -> float:
    """The largest difference between what is traced and what is not, gradients included where it is compiled."""
    if case == GRAPHS:
        return graphs_for_three_lengths()
    name, length, way = case.rsplit(maxsplit=2)
    n, layer = int(length), Layer(recipe_of(name))
    traced, found = WAYS[way](layer, inputs(name, n)), []
    for tokens in (n, n + 37) if way == "exported_for_any_length" else (n,):
        given = inputs(name, tokens)
        want, got = layer(*given), traced(*given)
        found.append((want, got))
        if way == "compiled":
            weights, upstream = list(layer.parameters()), torch.randn_like(want)
            grads = (torch.autograd.grad(out, weights, upstream, materialize_grads=True) for out in (want, got))
            found += zip(*grads, strict=True)
    return max(float((want - got).abs().max()) for want, got in found)


def graphs_for_three_lengths() -> int:
    layer, graphs = Layer(recipe_of("window")), []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    traced = torch.compile(layer, backend=count, fullgraph=True, dynamic=True)
    for n in (33, 1500, 64):
        torch.testing.assert_close(traced(*(given := inputs("window", n))), layer(*given))
    return len(graphs)


def tried(function: Callable[[], float]) -> float | str:
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:400]


def main(cases: list[str]) -> None:
    torch.manual_seed(0)
    print(json.dumps({case: tried(lambda case=case: furthest(case)) for case in cases}))


@cache
def differences(*cases: str) -> dict[str, float | str]:
    done = run_program("import sys; from tests.attention.test_tracing import main; main(sys.argv[1:])", *cases)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("case", [*SHORT, *(pytest.param(case, marks=pytest.mark.slow) for case in LONG)])
def test_what_is_traced_gives_what_is_computed_eagerly(case):
    found = differences(*(SHORT if case in SHORT else LONG))[case]
    assert isinstance(found, float), found
    assert found < 1e-10


@pytest.mark.slow
def test_one_graph_serves_every_length():
    assert differences(GRAPHS)[GRAPHS] == 1


# --- who computes it ---


def test_nobody_plans_while_torch_traces_and_explain_says_so():
    explanations = []

    class Asking(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            explanations.append(explain(Recipe(pattern=Window(16)), q))
            return q + 1

    q = torch.randn(1, 1, 2048, 4)
    torch.export.export(Asking(), (q,))
    assert explanations[0].backend == "sdpa"
    assert all(explanations[0].reasons[name] == [PLANNING] for name in ("block_sparse", "flex", "gather"))
    assert explain(Recipe(pattern=Window(16)), q).backend == "gather"


@pytest.mark.parametrize("backend", ["reference", "sdpa", "gather"])
def test_a_layer_is_computed_by_the_backend_it_names(backend, monkeypatch):
    called = []
    for name, module in BACKENDS.items():
        monkeypatch.setattr(module, "attend", lambda recipe, q, k, v, positions, name=name: called.append(name) or q)
    layer, x = (
        MultiHeadAttention(8, heads=2, recipe=Recipe(pattern=Causal()), options=LayerOptions(backend=backend)),
        torch.randn(1, 5, 8),
    )
    layer(x)
    layer.extend(x)
    assert called == [backend, backend]


def test_a_layer_refuses_a_backend_that_does_not_exist_or_cannot_run_it():
    with pytest.raises(ValueError, match="no backend is called 'flash'; there are linear,"):
        MultiHeadAttention(8, heads=2, options=LayerOptions(backend="flash"))
    with pytest.raises(ValueError, match="hard cannot run this recipe"):
        MultiHeadAttention(8, heads=2, options=LayerOptions(backend="hard"))(torch.randn(1, 5, 8))


def test_a_function_is_compiled_for_more_recipes_than_torch_keeps_by_itself():
    def scale(x, by):
        return by(x)

    torch._dynamo.reset()
    run = compile_per_recipe(scale, backend="eager")
    for n in range(12):  # functions of 12 texts, as masks and biases of 12 recipes are
        by: dict[str, Any] = {}
        exec(f"def times(x): return x * {n} + {n}", by)
        assert run(torch.ones(2), by["times"]).tolist() == [2 * n] * 2
