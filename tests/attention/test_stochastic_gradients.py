"""Stochastic attention: the backward pass drops and samples what the forward pass did.

Whatever was drawn, the output is linear in v. So o(v) = A v, dv = Aᵀ g, and <g, o> = <v, dv> for the same A alone.
"""

from dataclasses import dataclass, replace

import pytest
import torch

from regard.attention import (
    BACKENDS,
    Alibi,
    AttentionDropout,
    Block,
    Causal,
    Documents,
    Full,
    Global,
    Random,
    Recipe,
    ReLU,
    RowWise,
    Sampled,
    Softmax,
    StraightThrough,
    Window,
    attend,
    explain,
)
from regard.attention.pattern import Positions

N = 2048
PATTERNS = {
    "full": Full(),
    "window": Window(64),
    "causal window": Window(64) & Causal(),
    "bigbird": Block(64, Window(2) | Global(1) | Random(3)),
    "packed texts": Documents.from_lengths([700, 300, 1000, 48]) & Causal(),
}
NORMALISERS = {
    "dropout": AttentionDropout(0.3),
    "dropout of relu": AttentionDropout(0.5, ReLU()),
    "a draw": Sampled(),
    "a draw straight through": StraightThrough(),
}


def agree(recipe: Recipe, backend: str | None, device: str, dtype: torch.dtype, width: int, bound: float) -> list[str]:
    """The backend's objections; if it has none, <g, o> and <v, dv> have been compared, and are not 0."""
    heads = 2 if device == "cuda" else 1
    q, k, v, g = torch.randn(4, 1, heads, N, width, dtype=torch.double).to(device, dtype).unbind()
    v = v.requires_grad_()
    if backend and (why := BACKENDS[backend].objections(recipe, q, k, Positions.of(q, k, None, None))):
        return why
    out = attend(q, k, v, recipe, backend=backend)
    state = torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None
    (dv,) = torch.autograd.grad(out, v, g)
    assert torch.equal(torch.get_rng_state(), state[0]), "the backward pass may not draw anew"
    assert state[1] is None or torch.equal(torch.cuda.get_rng_state(), state[1])
    forward, backward = ((x.double() * y.double()).sum() for x, y in ((g, out), (v, dv)))
    scale = g.double().norm() * out.double().norm()
    assert abs(forward) > 0
    assert abs(forward - backward) < bound * scale, (float(forward), float(backward))
    return []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "flex"])  # no backward pass on a CPU
@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_what_was_dropped_or_drawn_is_dropped_or_drawn_again(normaliser, backend):
    taken = []
    for name, pattern in PATTERNS.items():
        if name != "full" or backend != "gather":
            recipe = Recipe(pattern=pattern, normaliser=NORMALISERS[normaliser])
            taken += [name] * (agree(recipe, backend, "cpu", torch.double, 4, 1e-12) == [])
        if backend in ("sdpa", "reference") and taken:
            break  # n × n, whatever the pattern
    assert taken or backend not in ("gather", "reference")


@dataclass(frozen=True)
class Watched(RowWise):
    """Softmax that says in which precision it was called."""

    seen: tuple[list[torch.dtype]]

    def weigh(self, scores, visible):
        self.seen[0].append(scores.dtype)
        return Softmax().weigh(scores, visible)


def test_the_backward_pass_recomputes_in_the_precision_of_the_forward_pass():
    """Or other weights would be dropped, since noise depends on it on a GPU."""
    watched = Watched(([],))
    q = torch.randn(1, 1, 1024, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(q, q, q, Recipe(pattern=Window(8), normaliser=watched), backend="gather")
    forward = len(watched.seen[0])
    out.float().sum().backward()
    assert len(watched.seen[0]) == 2 * forward
    assert set(watched.seen[0]) == {torch.bfloat16}


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("pattern", PATTERNS)
    @pytest.mark.parametrize("normaliser", NORMALISERS)
    def test_what_was_dropped_or_drawn_is_dropped_or_drawn_again(self, normaliser, pattern, backend):
        recipe = Recipe(pattern=PATTERNS[pattern].to("cuda"), normaliser=NORMALISERS[normaliser])
        assert all(agree(recipe, backend, "cuda", torch.float32, 32, 1e-5))
        assert all(agree(replace(recipe, position=Alibi(2)), backend, "cuda", torch.float32, 32, 1e-5))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "full"])
    def test_the_sparse_kernels_take_dropout(self, pattern, dtype):
        recipe = Recipe(pattern=PATTERNS[pattern].to("cuda"), normaliser=AttentionDropout(0.3))
        q = torch.zeros(1, 2, N, 32, device="cuda", dtype=dtype)
        assert explain(recipe, q).backend == "block_sparse"
        assert agree(recipe, None, "cuda", dtype, 32, 1e-5 if dtype == torch.float32 else 1e-4) == []

    @pytest.mark.parametrize("normaliser", NORMALISERS)
    def test_under_autocast(self, normaliser):
        recipe = Recipe(pattern=Window(64), position=Alibi(2), normaliser=NORMALISERS[normaliser])
        with torch.autocast("cuda", torch.bfloat16):
            assert agree(recipe, "gather", "cuda", torch.float32, 32, 1e-4) == []
