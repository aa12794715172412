"""Causal linear attention as Triton kernels, against the chunked form of plain torch and against the definition."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.attention import Causal, Feature, Padding, Recipe, attend
from regard.attention.backends import linear
from regard.attention.normaliser import Proportional
from regard.attention.positions import Positions
from tests.attention.accuracy import assert_as_accurate
from tests.attention.qkv import cast_leaves, random_qkv
from tests.attention.triton_interpreter import compile_for_hopper, print_json

# tokens, width of keys, of values, feature map; chunks have 16 tokens
CASES = {
    "three chunks, the last one short": (37, 5, 7, "elu+1"),
    "wider than 16": (33, 19, 17, "elu+1"),
    "one short chunk": (3, 4, 16, "exp"),
    "rows whose features are all 0": (21, 2, 3, "relu"),
    "more chunks than are summed at once": (16 * 18 + 1, 3, 2, "elu+1"),
}


def recipe_of(feature: str) -> Recipe:
    return Recipe(score=Feature(feature), normaliser=Proportional(), pattern=Causal())


def forward_and_backward(out: Tensor, given: Sequence[Tensor], upstream: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    return out, torch.autograd.grad(out, given, upstream.to(out))


def kernel_cases() -> dict[str, float]:
    """The largest relative difference between kernels and the chunked form of plain torch, for each case."""
    from regard.attention.kernels.linear import CausalLinearAttention, LinearTileShape

    found = {}
    for name, (t, d, e, feature) in CASES.items():
        q, k, v = (torch.randn(2, 1, t, width, requires_grad=True) for width in (d, d, e))
        recipe, upstream = recipe_of(feature), torch.randn(2, 1, t, e)
        want = linear.attend(recipe, q, k, v, Positions.of(q, k, 0, None))
        score = recipe.score
        assert isinstance(score, Feature)
        shape = LinearTileShape(chunk=16, warps=1, gradient_warps=1)
        got = CausalLinearAttention.apply(score.fold_q(q), score.fold_k(k), v, shape)
        assert isinstance(got, Tensor)
        pairs = [forward_and_backward(out, (q, k, v), upstream) for out in (want, got)]
        leaves = zip(*map(tree_leaves, pairs), strict=True)
        found[name] = max(float(((x - y).abs().max() / x.abs().max()).detach()) for x, y in leaves)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_agree_with_the_chunks_of_plain_torch(case, interpreted):
    assert interpreted[case] < 2e-5


@pytest.mark.parametrize("kernel", ["chunk_key_sums", "chunk_query_sums", "chunk_outputs", "chunk_gradients"])
def test_the_kernels_compile_for_a_hopper(kernel):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import linear as kernels

    given = {"D": 64, "DP": 64, "E": 64, "EP": 64, "CHUNK": 128, "PRECISION": "tf32", "SUMS": "tf32"}
    wide, half = ("sums", "before", "after", "below"), ("q", "k", "v", "out", "grad", "dq", "dk", "dv")
    kinds: dict[str, str] = dict.fromkeys(wide, "*fp32") | dict.fromkeys(half, "*bf16")
    compiled = compile_for_hopper(getattr(kernels, kernel), given, kinds, num_warps=8)
    assert "wgmma" in compiled.asm["ptx"]


def test_a_query_whose_features_are_all_zero_gives_nothing():
    """φ = relu: the first query scores 0, so its weights and its output are 0; the second weighs both keys alike."""
    q = torch.tensor([-1.0, 2.0], dtype=torch.double).view(1, 1, 2, 1)
    k, v = torch.ones(1, 1, 2, 1, dtype=torch.double), torch.tensor([3.0, 5.0], dtype=torch.double).view(1, 1, 2, 1)
    out = linear.attend(recipe_of("relu"), q, k, v, Positions.of(q, k, 0, None))
    assert out.flatten().tolist() == [0.0, 4.0]


def test_what_the_kernels_cannot_do_plain_torch_does():
    q = torch.zeros(1, 1, 3, 4)
    assert "need a GPU" in linear.triton_objections(q, q)[0]


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@gpu
@pytest.mark.parametrize(
    ("dtype", "pattern", "tokens"),
    [
        (torch.bfloat16, Causal(), 1031),
        (torch.bfloat16, Causal() & Padding(torch.tensor([200, 531])), 531),
        (torch.float32, Causal(), 331),
    ],
    ids=str,
)
@pytest.mark.parametrize("groups", [3, 1])
def test_on_a_gpu_the_kernels_are_as_good_as_plain_torch(dtype, pattern, tokens, groups):
    """Error at most twice that of plain torch in the same dtype, plus float32's own last digits."""
    d, e = (53, 61) if dtype == torch.bfloat16 else (13, 11)
    given = random_qkv((2, 3, tokens, d), (2, groups, tokens, d), (2, groups, tokens, e), dtype=dtype, device="cuda")
    exact, upstream = cast_leaves(given, torch.double), torch.randn(2, 3, tokens, e).to("cuda", dtype)
    recipe = Recipe(score=Feature(), normaliser=Proportional(), pattern=pattern.to("cuda"))
    assert not linear.triton_objections(given[0], given[2])
    truth, coarse = (forward_and_backward(attend(*x, recipe, backend="reference"), x, upstream) for x in (exact, given))
    ours, again = (forward_and_backward(attend(*given, recipe, backend="linear"), given, upstream) for _ in range(2))
    assert_as_accurate(truth, coarse, ours, slack=1e-5)
    for one, other in zip(tree_leaves(ours), tree_leaves(again), strict=True):
        assert torch.equal(one, other)


if __name__ == "__main__":
    torch.manual_seed(0)
    print_json(kernel_cases)
