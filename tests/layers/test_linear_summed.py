"""A product whose bias learns by our own sums of columns: as everywhere, and by the kernels."""

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import linear
from torch.testing import assert_close

from regard.layers.linear_summed import column_sum, cut_and_sum, joined, product, product_back, summed_linear
from tests.attention.interpreting import answer, compiled, interpreted

GPU = torch.cuda.is_available()
SHAPES = {"few": (3, 5), "many": (71, 19), "wide": (13, 301)}


def test_on_paper():
    """Of the rows (1, −2) and (3, 4), where (1, 0) and (0.5, 2) were met: the second number of the first is cut off."""
    x, met = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.5, 2.0]])
    assert column_sum(x).tolist() == [4.0, 2.0]
    assert [part.tolist() for part in cut_and_sum(x, met)] == [[[1.0, 0.0], [3.0, 4.0]], [4.0, 4.0]]


def drawn(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in ((2, 3, 5), (7, 5), (7,))]


def one_linear(x, weight, bias):
    return summed_linear(x, [weight], [bias])


def test_it_is_a_linear_layer_with_its_derivative():
    given = drawn(torch.float64)
    assert_close(one_linear(*given), linear(*given))
    assert gradcheck(one_linear, given)
    x, weight, bias = (x.detach().float().requires_grad_() for x in given)
    torch.library.opcheck(product, (x, [weight, weight.detach()], [bias, bias.detach()]))
    rows = weight.detach()
    torch.library.opcheck(product_back, (torch.randn(2, 3, 7), x.detach(), [rows]))
    torch.library.opcheck(column_sum, (rows,))
    torch.library.opcheck(cut_and_sum, (rows, rows))


def test_under_autocast_it_is_narrow_as_everywhere():
    given = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = one_linear(*given), linear(*given)
        wide = [x.detach().double() for x in given]
        assert one_linear(*wide).dtype == torch.float64
    assert_close(found, wanted)
    assert found.dtype == torch.bfloat16
    upstream = torch.randn_like(wanted)
    assert_close(*(torch.autograd.grad(made, given, upstream) for made in (found, wanted)))


@pytest.mark.parametrize("adjacent", [True, False])
def test_several_projections_are_one_product(adjacent):
    """Whether or not their weights lie one behind the other; if they do, nothing is copied."""
    x, home = torch.randn(3, 5).requires_grad_(), torch.randn(9, 5)
    parts = [home[:4], home[4:6], home[6:]] if adjacent else [home[6:].clone(), home[:4], home[4:6]]
    weights = [part.detach().requires_grad_() for part in parts]
    biases = [torch.randn(len(part)).requires_grad_() for part in parts]
    assert (joined(weights).data_ptr() == home.data_ptr()) == adjacent
    found = summed_linear(x, weights, biases)
    wanted = torch.cat([linear(x, *part) for part in zip(weights, biases, strict=True)], 1)
    assert_close(found, wanted)
    upstream = torch.randn_like(found)
    assert_close(*(torch.autograd.grad(made, [x, *weights, *biases], upstream) for made in (found, wanted)))


def test_parts_that_are_no_neighbours_are_copied():
    """With a gap between them, in another order, or turned."""
    home = torch.randn(9, 5)
    for parts in ([home[:3], home[4:]], [home[4:], home[:4]], [home.T[:2], home.T[2:]]):
        assert torch.equal(joined(parts), torch.cat(parts))


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
        met = met.relu()  # exactly 0 wherever nothing was let through
        left, total = column_kernel.cut_and_sum(x, met, Walk(7, 4, 64))
        wanted = torch.where(met > 0, x, 0.0)
        pairs = [(column_kernel.sum_columns(each, Walk(5, 4, 64)), x.sum(0)) for each in (x, apart)]
        pairs += [(left, wanted), (total, wanted.sum(0))]
        found[name] = max((one - other).abs().max().item() for one, other in pairs)
    parts = torch.randn(131, 5, dtype=torch.float64)  # more than one program adds up at a time
    found["parts"] = (column_kernel.add_parts(parts, parts.dtype) - parts.sum(0)).abs().max().item()
    return found


@pytest.fixture(scope="module")
def kernels() -> dict[str, float]:
    return interpreted("tests.layers.test_linear_summed")


@pytest.mark.parametrize("shape", [*SHAPES, "parts"])
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
