"""Backends on a CUDA device: the same parity as on the CPU, against the reference on the CPU in float64."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    RECIPES,
    Alibi,
    Causal,
    Forget,
    Padding,
    Recipe,
    RecipeSizes,
    SinkSoftmax,
    SoftCap,
    Window,
    attend,
    explain,
    get_recipe,
)
from regard.attention.backends import gather
from regard.attention.pattern import Positions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # torch warns of its own doing when it compiles or watches for waits
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def compare(name, position, backend, sizes, dtype, tolerance):
    """Outputs and gradients on the GPU against the reference on the CPU; or the reasons why it objects."""
    recipe = get_recipe(name, position, sizes)
    recipe.learned().double()
    t, lengths = sizes.tokens, torch.tensor([sizes.tokens, sizes.tokens - 3])
    q, k, v = (torch.randn(2, h, t, sizes.head, dtype=torch.double, requires_grad=True) for h in (sizes.heads, 2, 2))
    upstream = torch.randn_like(q)
    padded = replace(recipe, pattern=recipe.pattern & Padding(lengths))
    want = attend(q, k, v, padded, backend="reference")
    wanted = torch.autograd.grad(want, (q, k, v), upstream, materialize_grads=True)
    recipe.learned().to("cuda", dtype)
    padded = replace(recipe, pattern=(recipe.pattern & Padding(lengths)).to("cuda"))
    q, k, v = (x.detach().to("cuda", dtype).requires_grad_() for x in (q, k, v))
    if why := BACKENDS[backend].objections(padded, q, k, Positions.of(q, k, None, None)):
        return why
    got = attend(q, k, v, padded, backend=backend)
    gotten = torch.autograd.grad(got, (q, k, v), upstream.to(got), materialize_grads=True)
    assert_close(got.double().cpu(), want, **tolerance)
    assert_close([x.double().cpu() for x in gotten], list(wanted), **tolerance)
    return []


@pytest.mark.parametrize("backend", ["linear", "gather", "sdpa", "reference"])
@pytest.mark.parametrize("position", ["none", "rotary", "t5", "shaw"])
@pytest.mark.parametrize("name", RECIPES)
def test_the_gpu_agrees_or_objects(name, position, backend, monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {4: 1.0})
    if name in ("bahdanau", "soft cap") and position == "shaw":
        pytest.skip("the score has no keys that vectors could add to")
    sizes = RecipeSizes(heads=4, head=10, tokens=11, window=3, block=2)
    why = compare(name, position, backend, sizes, torch.double, {"rtol": 1e-7, "atol": 1e-7})
    assert all(why)


@pytest.mark.parametrize(
    ("name", "position"),
    [
        *(("sliding window", "alibi"), ("longformer", "t5"), ("bigbird", "none"), ("random", "none")),
        *(("sinks", "none"), ("soft cap", "alibi"), ("softmax plus one", "none"), ("learned temperature", "alibi")),
    ],
)
def test_flex_compiled_agrees(name, position):
    sizes = RecipeSizes(heads=4, head=16, tokens=300, window=40, block=16)
    assert compare(name, position, "flex", sizes, torch.float32, {"rtol": 2e-2, "atol": 5e-3}) == []


def test_flex_is_compiled_for_more_recipes_than_torch_keeps_by_itself():
    """The ninth raised an error: torch compiles a function eight times at most."""
    q, k, v = torch.randn(3, 1, 2, 1100, 32, device="cuda")
    for width in range(300, 312):
        recipe = Recipe(pattern=Causal() & ~Window(width), position=Alibi(heads=2))
        found = attend(q, k, v, recipe, backend="flex")
        assert_close(found, attend(q, k, v, recipe, backend="reference"), rtol=2e-2, atol=5e-3)


def test_flex_looks_the_forget_gates_up():
    """A sum inside the compiled score could not be lowered."""
    q, k, v = torch.randn(3, 1, 2, 1100, 32, device="cuda")
    recipe = Recipe(pattern=Causal(), gate=Forget()).with_gate(
        log_decay=logsigmoid(torch.randn(1, 2, 1100, device="cuda"))
    )
    with torch.no_grad():
        assert explain(recipe, q).backend == "flex"
        assert_close(attend(q, k, v, recipe), attend(q, k, v, recipe, backend="reference"), rtol=2e-2, atol=5e-3)


def test_the_dense_kernels_run_what_needs_no_mask():
    q = torch.zeros(1, 2, 4096, 64, device="cuda", dtype=torch.bfloat16)
    assert explain(Recipe(), q).backend == "sdpa"
    assert explain(Recipe(pattern=Window(64)), q).backend == "block_sparse"
    assert explain(Recipe(pattern=Causal(), normaliser=SinkSoftmax(2)), q).backend == "sdpa"
    assert explain(Recipe(score=SoftCap(50.0), pattern=Causal()), q).backend == "block_sparse"
