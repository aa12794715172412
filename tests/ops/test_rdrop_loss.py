"""R-Drop loss: worked by hand, against its definition, and the Triton kernel."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.testing import assert_close

from regard.ops.rdrop_loss import rdrop_loss
from tests.attention.qkv import cast_leaves
from tests.attention.triton_interpreter import print_json

N, WIDTH, SIZE, HIDDEN = 11, 7, 29, 3
EXACT: Any = {"rtol": 0.0, "atol": 1e-12}


Weights = tuple[Tensor, Tensor, Tensor]  # states of two passes, table, bias


def operands(
    n: int = N, width: int = WIDTH, size: int = SIZE, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[Weights, Tensor]:
    shapes = (2 * n, width), (size, width), (size,)
    x, table, bias = (torch.randn(shape, dtype=dtype, device=device).requires_grad_() for shape in shapes)
    wanted = torch.randint(0, size, (n,), device=device)
    wanted[1::4] = HIDDEN
    return (x, table, bias), wanted.repeat(2)


def plain(weights: Weights, wanted: Tensor, *, weight: float, smoothing: float) -> Tensor:
    """The definition, with all scores in the open."""
    scores = linear(*weights)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    cost = cross_entropy(scores, wanted, ignore_index=HIDDEN, label_smoothing=smoothing, reduction="sum")
    a, b = scores.log_softmax(-1).chunk(2)
    apart = ((a.exp() - b.exp()) * (a - b)).sum(-1)
    return cost / 2 + weight * (apart * (wanted[: len(a)] != HIDDEN)).sum() / 2


def ours(weights: Weights, wanted: Tensor, *, weight: float, smoothing: float, rows: int = 4) -> Tensor:
    budget = rows * len(weights[1]) * max(4, weights[0].element_size())
    return rdrop_loss(*weights, wanted, weight=weight, smoothing=smoothing, ignore_index=HIDDEN, budget=budget)


def test_the_cost_on_paper():
    """3 to 1 for the first word in one pass, 1 to 1 in the other: Σ (p − q)(log p − log q) = ¼ log 3/2 + ¼ log 2.

    The costs of both passes, log 4/3 and log 2, are averaged; half the divergence counts 5 times.
    """
    x, table = torch.tensor([[math.log(3)], [0.0]]), torch.tensor([[1.0], [0.0]])
    found = rdrop_loss(x, table, torch.zeros(2), torch.tensor([0, 0]), weight=5.0)
    assert_close(found.item(), (math.log(4 / 3) + math.log(2)) / 2 + 5 / 2 * math.log(3) / 4)


@pytest.mark.parametrize("rows", [1, 4, 7, 2 * N])
@pytest.mark.parametrize(("weight", "smoothing"), [(0.0, 0.0), (1.5, 0.1), (5.0, 0.0)])
def test_it_is_the_definition_with_its_gradients(weight, smoothing, rows):
    weights, wanted = operands()
    expected = plain(weights, wanted, weight=weight, smoothing=smoothing)
    found = ours(weights, wanted, weight=weight, smoothing=smoothing, rows=rows)
    assert_close(found, expected, **EXACT)
    wants, finds = (torch.autograd.grad(loss * -1.7, weights) for loss in (expected, found))
    for one, other in zip(finds, wants, strict=True):
        assert_close(one, other, **EXACT)


def test_what_is_ignored_may_be_anything():
    weights, wanted = operands()
    before = ours(weights, wanted, weight=1.5, smoothing=0.1)
    with torch.no_grad():
        weights[0][wanted == HIDDEN] = torch.nan
    found = ours(weights, wanted, weight=1.5, smoothing=0.1)
    assert_close(found, before, **EXACT)
    dx, *others = torch.autograd.grad(found, weights)
    assert all(each.isfinite().all() for each in others)
    assert (dx[wanted == HIDDEN] == 0).all()


def test_two_passes_are_an_even_number_of_states():
    with pytest.raises(ValueError, match="3 states are not two passes over the same tokens"):
        rdrop_loss(torch.zeros(3, 2), torch.zeros(5, 2), torch.zeros(5), torch.zeros(3, dtype=torch.long), weight=1.0)


# --- the kernel ---


def cases() -> dict[str, float]:
    """In a process of its own: how far the kernels are from the definition."""
    from regard.ops import linear_triton as kernel
    from regard.ops.linear_triton import ColumnLaunch

    found = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        scores = (torch.randn(6, 101) * 3).to(dtype)
        wanted = torch.randint(0, 101, (6,))
        exact = scores.double().requires_grad_()
        cost = cross_entropy(exact, wanted, reduction="none")
        # a wanted word that loses only nine tenths of 1 is one whose score costs a tenth
        gradient = torch.autograd.grad((cost + 0.1 * picked_from(exact, wanted)).sum(), exact)[0]
        turned, counts = scores.clone(), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
        how = kernel.RowLaunch(16, deep=2), ColumnLaunch(programs=9, rows=2, columns=32)
        costs, picked, total = kernel.cross_entropy_rows(turned, wanted, counts, 0.9, *how)
        found[f"rows, {name}"] = far(costs, cost, turned, gradient)
        found[f"sums, {name}"] = far(total, (gradient * counts[:, None]).sum(0), turned, gradient)
        assert_close(picked, picked_from(scores, wanted).float())
        assert_close(kernel.scale(scores, torch.tensor(0.7)), scores * 0.7, rtol=2**-7, atol=0)
        a, b = exact.log_softmax(-1).chunk(2)
        twice = wanted[:3].repeat(2)
        pair = cross_entropy(exact, twice, reduction="none") / 2
        pair = pair + 0.75 * torch.cat((((a.exp() - b.exp()) * (a - b)).sum(-1), torch.zeros(3)))
        turned = scores.clone()
        costs, _ = kernel.rdrop_rows(turned, wanted[:3], 0.9, 1.5, kernel.RowLaunch(32))
        gradient = torch.autograd.grad((pair + 0.05 * picked_from(exact, twice)).sum(), exact)[0]
        found[f"pairs, {name}"] = far(costs, pair, turned, gradient)
    return found


def picked_from(scores: Tensor, wanted: Tensor) -> Tensor:
    return scores.gather(1, wanted[:, None])[:, 0]


def far(costs, expected, turned, gradient) -> float:
    parts = ((costs, expected), (turned, gradient))
    return max(((one.double() - other).norm() / other.norm()).item() for one, other in parts)


@pytest.mark.parametrize("kind", ["rows", "sums", "pairs"])
def test_the_kernels_interpreted_are_the_definition(interpreted, kind):
    assert interpreted[f"{kind}, float32"] < 2e-6
    assert interpreted[f"{kind}, bfloat16"] < 2**-7  # rounded once; the interpreter cuts


@pytest.mark.parametrize("kernel", ["logsumexp_kernel", "cross_entropy_kernel", "rdrop_kernel"])
def test_the_kernels_compile_for_a_hopper(kernel):
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from regard.ops import linear_triton

    function = getattr(linear_triton, kernel)
    names = function.arg_names
    given = {"SIZE": 10007, "BLOCK": 2048, "DEEP": 4, "ROWS": 16, "COLUMNS": 128}
    given = {name: size for name, size in given.items() if name in names}
    kinds = {
        "scores": "*bf16",
        "targets": "*i64",
        "pairs": "i32",
        "rows": "i32",
        "target_weight": "fp32",
        "weight": "fp32",
    }
    source = ASTSource(
        function,
        {name: "constexpr" if name in given else kinds.get(name, "*fp32") for name in names},
        {(n,): given[name] for n, name in enumerate(names) if name in given},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert ".target sm_90" in made.asm["ptx"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_the_kernel_is_as_good_as_plain_torch(dtype):
    """Error at most twice that of the plain way in the same dtype, both against float64."""
    weights, wanted = operands(n=257, width=64, size=10_007, dtype=dtype, device="cuda")
    exact = cast_leaves(weights, torch.float64)
    options = {"weight": 1.5, "smoothing": 0.1}
    wants = torch.autograd.grad(plain(exact, wanted, **options), exact)
    finds = torch.autograd.grad(ours(weights, wanted, **options, rows=200), weights)
    plains = torch.autograd.grad(plain(weights, wanted, **options), weights)
    for found, usual, want in zip(finds, plains, wants, strict=True):
        assert (found - want).norm() <= 2 * (usual - want).norm() + 1e-5 * want.norm()


if __name__ == "__main__":
    torch.manual_seed(0)
    print_json(cases)
