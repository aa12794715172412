"""Fused linear projections and column sums: as torch's linear, and the Triton kernels."""

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import linear
from torch.testing import assert_close

from regard.ops import dispatch
from regard.ops.fused_layers import (
    are_columns,
    column_sum,
    concatenate_columns,
    concatenate_views,
    fused_linear_backward,
    fused_linear_op,
    fused_qkv_linear,
    relu_backward_sum,
)
from regard.ops.linear import project_all
from tests.attention.triton_interpreter import compile_to_ptx, print_json

GPU = torch.cuda.is_available()
SHAPES = {"few": (3, 5), "many": (71, 19), "wide": (13, 301)}


def test_on_paper():
    """Of the rows (1, −2) and (3, 4), where (1, 0) and (0.5, 2) were met: the second number of the first is cut off."""
    x, met = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.5, 2.0]])
    assert column_sum(x).tolist() == [4.0, 2.0]
    assert [part.tolist() for part in relu_backward_sum(x, met)] == [[[1.0, 0.0], [3.0, 4.0]], [4.0, 4.0]]


def drawn(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in ((2, 3, 5), (7, 5), (7,))]


def one_linear(x, weight, bias):
    return fused_qkv_linear(x, [weight], [bias])[0]


def test_it_is_a_linear_layer_with_its_derivative():
    given = drawn(torch.float64)
    assert_close(one_linear(*given), linear(*given))
    assert gradcheck(one_linear, given)
    x, weight, bias = (x.detach().float().requires_grad_() for x in given)
    rows, x = weight.detach(), x.detach()
    torch.library.opcheck(fused_linear_op, (x, [rows, rows], [bias.detach(), bias.detach()]))
    torch.library.opcheck(fused_linear_backward, ([torch.randn(2, 3, 7)], x, [rows]))
    torch.library.opcheck(column_sum, (rows,))
    torch.library.opcheck(relu_backward_sum, (rows, rows))


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
    assert (concatenate_views(weights).data_ptr() == home.data_ptr()) == adjacent
    outputs = fused_qkv_linear(x, weights, biases)
    found, wanted = (
        torch.cat(list(parts), 1)
        for parts in (outputs, [linear(x, *part) for part in zip(weights, biases, strict=True)])
    )
    assert are_columns(*outputs)
    assert_close(found, wanted)
    upstream = torch.randn_like(found)
    assert_close(*(torch.autograd.grad(made, [x, *weights, *biases], upstream) for made in (found, wanted)))


def test_parts_that_are_no_neighbours_are_copied():
    """With a gap between them, in another order, or turned."""
    home = torch.randn(9, 5)
    for parts in ([home[:3], home[4:]], [home[4:], home[:4]], [home.T[:2], home.T[2:]]):
        assert torch.equal(concatenate_views(parts), torch.cat(parts))


def test_gradients_that_lie_side_by_side_are_not_copied():
    home = torch.randn(2, 3, 9)
    columns = list(home.split([4, 2, 3], 2))
    assert concatenate_columns(columns).data_ptr() == home.data_ptr()
    assert torch.equal(concatenate_columns(columns), home)
    for parts in (columns[::-1], [columns[0], columns[2]], [part.clone() for part in columns]):
        assert torch.equal(concatenate_columns(parts), torch.cat(parts, 2))
    (wide,) = torch.randn(2, 3, 9).transpose(0, 1).split([9], 2)
    assert torch.equal(concatenate_columns([wide[..., :4], wide[..., 4:]]), wide)


def test_a_projection_that_is_not_linear_is_called_as_it_is(monkeypatch):
    monkeypatch.setattr(dispatch, "use_fused", lambda x: True)
    x, layer, other = torch.randn(2, 3, 5), torch.nn.Linear(5, 7), torch.nn.Identity()
    found = project_all(x, [layer, other], fused=True)
    assert_close(found[0], layer(x))
    assert found[1] is x
    assert_close(project_all(x, [layer, layer], fused=True)[1], layer(x))


# --- the kernels ---


def by_kernel() -> dict[str, Any]:
    """How far the kernels are from plain torch, under the interpreter."""
    from regard.ops import linear_triton
    from regard.ops.linear_triton import ColumnLaunch

    torch.manual_seed(0)
    found = {}
    for name, shape in SHAPES.items():
        x, met = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
        apart = torch.cat((x, met), 1)[:, : shape[1]]  # whose rows do not lie one behind the other
        met = met.relu()  # exactly 0 wherever nothing was let through
        left, total = linear_triton.relu_backward_sum(x, met, ColumnLaunch(7, 4, 64))
        wanted = torch.where(met > 0, x, 0.0)
        pairs = [(linear_triton.sum_columns(each, ColumnLaunch(5, 4, 64)), x.sum(0)) for each in (x, apart)]
        pairs += [(left, wanted), (total, wanted.sum(0))]
        found[name] = max((one - other).abs().max().item() for one, other in pairs)
    parts = torch.randn(131, 5, dtype=torch.float64)  # more than one program adds up at a time
    found["parts"] = (linear_triton.sum_partials(parts, parts.dtype) - parts.sum(0)).abs().max().item()
    return found


@pytest.mark.parametrize("shape", [*SHAPES, "parts"])
def test_the_kernels_interpreted_are_plain_torch(interpreted, shape):
    assert interpreted[shape] < 1e-12


@pytest.mark.parametrize("relu", [False, True])
def test_the_kernels_compile_for_a_hopper(relu):
    pytest.importorskip("triton", reason="Triton is not installed")
    import triton.language as tl

    from regard.ops.linear_triton import column_sum_kernel, partial_sum_kernel

    kinds = {"parts": "*fp32", **dict.fromkeys(("rows", "x_row", "many", "width"), "i32")}
    sizes = {"ROWS": 16, "COLUMNS": 256, "WIDE": tl.float32}
    assert ".target sm_90" in compile_to_ptx(column_sum_kernel, {**sizes, "RELU": relu}, kinds)
    assert ".target sm_90" in compile_to_ptx(partial_sum_kernel, {**sizes, "COLUMNS": 16}, kinds)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("width", [512, 1_537])
def test_on_a_gpu_the_sums_are_as_good_as_torchs(width):
    """In bfloat16: error at most twice that of torch, both against float64; and the same bits twice."""
    x, met = (torch.randn(10_007, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    left, total = relu_backward_sum(x, met)
    wanted = torch.where(met > 0, x, 0.0)
    assert torch.equal(left, wanted)
    for found, again, rows in ((column_sum(x), column_sum(x), x), (total, relu_backward_sum(x, met)[1], wanted)):
        exact = rows.double().sum(0)
        assert torch.equal(found, again)
        assert (found - exact).norm() <= 2 * (rows.sum(0) - exact).norm()


if __name__ == "__main__":
    print_json(by_kernel)
