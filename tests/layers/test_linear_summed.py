"""A product whose bias learns by our own sums of columns: as everywhere, and by the kernels."""

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import linear
from torch.testing import assert_close

from regard.layers.linear_summed import column_sum, cut_and_sum, product, summed_linear
from tests.attention.interpreting import answer, compiled, interpreted

GPU = torch.cuda.is_available()
SHAPES = {"few": (3, 5), "many": (71, 19), "wide": (13, 301)}


def test_on_paper():
    """Of the rows (1, −2) and (3, 4), where (1, 0) and (0.5, 2) were met: the second number of the first is cut off."""
    x, met = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.5, 2.0]])
    assert column_sum(x).tolist() == [4.0, 2.0]
    assert [part.tolist() for part in cut_and_sum(x, met)] == [[[1.0, 0.0], [3.0, 4.0]], [4.0, 4.0]]


def test_it_is_a_linear_layer_with_its_derivative():
    given = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in ((2, 3, 5), (7, 5), (7,))]
    assert_close(summed_linear(*given), linear(*given))
    assert gradcheck(summed_linear, given)
    narrow = tuple(x.detach().float().requires_grad_() for x in given)
    torch.library.opcheck(product, narrow)
    torch.library.opcheck(column_sum, (narrow[1].detach(),))
    torch.library.opcheck(cut_and_sum, (narrow[1].detach(), narrow[1].detach()))


def test_under_autocast_it_is_narrow_as_everywhere():
    given = [torch.randn(shape).requires_grad_() for shape in ((2, 3, 5), (7, 5), (7,))]
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = summed_linear(*given), linear(*given)
        wide = [x.detach().double() for x in given]
        assert summed_linear(*wide).dtype == torch.float64
    assert_close(found, wanted)
    assert found.dtype == torch.bfloat16
    upstream = torch.randn_like(wanted)
    assert_close(*(torch.autograd.grad(made, given, upstream) for made in (found, wanted)))


# --- the kernels ---


def by_kernel() -> dict[str, Any]:
    """How far the kernels are from plain torch, under the interpreter."""
    from regard.layers import column_kernel
    from regard.layers.column_kernel import Walk

    torch.manual_seed(0)
    found = {}
    for name, shape in SHAPES.items():
        x, met = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
        apart = torch.cat((x, met), 1)[:, : shape[1]]  # whose rows do not lie one behind the other
        left, total = column_kernel.cut_and_sum(x, met, Walk(7, 4, 64))
        wanted = torch.where(met > 0, x, 0.0)
        pairs = [(column_kernel.sum_columns(each, Walk(5, 4, 64)), x.sum(0)) for each in (x, apart)]
        pairs += [(left, wanted), (total, wanted.sum(0))]
        found[name] = max((one - other).abs().max().item() for one, other in pairs)
    return found


@pytest.fixture(scope="module")
def kernels() -> dict[str, float]:
    return interpreted("tests.layers.test_linear_summed")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_interpreted_are_plain_torch(kernels, shape):
    assert kernels[shape] < 1e-12


@pytest.mark.parametrize("relu", [False, True])
def test_the_kernels_compile_for_a_hopper(relu):
    pytest.importorskip("triton", reason="Triton is not installed")
    import triton.language as tl

    from regard.layers.column_kernel import columns_summed, parts_summed

    kinds = {"parts": "*fp32", **dict.fromkeys(("rows", "x_row", "many", "width"), "i32")}
    sizes = {"ROWS": 16, "COLUMNS": 256, "WIDE": tl.float32}
    assert ".target sm_90" in compiled(columns_summed, {**sizes, "RELU": relu}, kinds)
    assert ".target sm_90" in compiled(parts_summed, {**sizes, "COLUMNS": 16}, kinds)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("width", [512, 1_537])
def test_on_a_gpu_the_sums_are_as_good_as_torchs(width):
    """In bfloat16: error at most twice that of torch, both against float64; and the same bits twice."""
    x, met = (torch.randn(10_007, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    left, total = cut_and_sum(x, met)
    wanted = torch.where(met > 0, x, 0.0)
    assert torch.equal(left, wanted)
    for found, again, rows in ((column_sum(x), column_sum(x), x), (total, cut_and_sum(x, met)[1], wanted)):
        exact = rows.double().sum(0)
        assert torch.equal(found, again)
        assert (found - exact).norm() <= 2 * (rows.sum(0) - exact).norm()


if __name__ == "__main__":
    answer(by_kernel)
