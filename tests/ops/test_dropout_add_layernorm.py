"""Fused residual connection: worked by hand, against its parts, its derivative, and the Triton kernels."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.testing import assert_close

from regard.layers.transformer_layers import project_dropout_add_norm
from regard.ops import dispatch
from regard.ops.dropout import Dropout, hashed_dropout
from regard.ops.fused_layers import (
    DropoutAddLayerNormFunction,
    DropoutNoise,
    dropout_add,
    dropout_add_layernorm,
    dropout_add_layernorm_backward,
    dropout_add_layernorm_op,
    layernorm,
)
from tests.attention.triton_interpreter import compile_to_ptx, print_json

SEED = torch.tensor([1_234_577, 7_654_321], dtype=torch.int32)
SILENT = DropoutNoise(0.0, SEED)
GPU = torch.cuda.is_available()


def drawn(*shapes, **how):
    return [torch.randn(shape, **{"dtype": torch.float64, **how}).requires_grad_() for shape in shapes]


def norm_of(width: int, **how) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, **{"dtype": torch.float64, **how})
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


# --- one meaning ---


def test_on_paper():
    """(1, 2) + (0, 3) + (1, 1) = (2, 6), whose distances from their mean, −2 and 2, are −1 and 1 of their size."""
    x, f, bias = (torch.tensor(row, dtype=torch.float64) for row in ([[1.0, 2.0]], [[0.0, 3.0]], [1.0, 1.0]))
    norm = nn.LayerNorm(2, eps=0.0, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 5.0]))
        norm.bias.copy_(torch.tensor([0.5, -1.0]))
    assert dropout_add(x, f, bias, SILENT)[0].tolist() == [[2.0, 6.0]]
    assert_close(dropout_add_layernorm(x, f, bias, norm, SILENT)[0].tolist(), [[-1.5, 4.0]])
    assert_close(layernorm(torch.tensor([[2.0, 6.0]], dtype=torch.float64), norm).tolist(), [[-1.5, 4.0]])


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_it_is_its_parts_one_after_the_other(share):
    (x, f, bias), norm = drawn((3, 5, 7), (3, 5, 7), (7,)), norm_of(7)
    noise = DropoutNoise(share, SEED)
    summed = x + hashed_dropout(f + bias, share, SEED)
    for found, wanted in (
        (dropout_add(x, f, bias, noise), summed),
        (dropout_add_layernorm(x, f, bias, norm, noise), norm(summed)),
        ((layernorm(x, norm),), norm(x)),
    ):
        upstream = [torch.randn_like(wanted) for _ in found]
        leaves = [x, f, bias, *norm.parameters()]
        how = {"allow_unused": True, "retain_graph": True, "materialize_grads": True}
        assert_close(found, (wanted,) * len(found))
        assert_close(
            torch.autograd.grad(found, leaves, upstream, **how),
            torch.autograd.grad(wanted, leaves, torch.stack(upstream).sum(0), **how),
        )


@pytest.mark.parametrize("norm", [None, norm_of(7)])
def test_a_sub_layer_ends_alike_fused_or_not(norm, monkeypatch):
    """The fused form adds the projection's bias itself."""
    x, y = drawn((3, 5, 7), (3, 5, 4))
    project = nn.Linear(4, 7, dtype=torch.float64)
    plain = project_dropout_add_norm(x, y, project, Dropout(0.0), norm)
    monkeypatch.setattr(dispatch, "use_fused", lambda x: True)
    assert_close(project_dropout_add_norm(x, y, project, Dropout(0.0), norm, fused=True), plain)


def test_the_two_are_the_same_numbers_and_either_may_stay_unread():
    (x, f, bias), norm = drawn((5, 7), (5, 7), (7,)), norm_of(7)
    read, passed = dropout_add_layernorm(x, f, bias, norm, DropoutNoise(0.3, SEED))
    assert read.data_ptr() == passed.data_ptr()
    upstream = torch.randn_like(read)
    one, other = (torch.autograd.grad(each, [x, f, bias], upstream, retain_graph=True) for each in (read, passed))
    assert_close(one, other, rtol=0, atol=0)


def test_the_derivative_is_that_of_the_step_with_its_dropout():
    (x, f, bias), norm = drawn((3, 5), (3, 5), (5,)), norm_of(5)
    noise = DropoutNoise(0.3, SEED)
    assert gradcheck(
        lambda *given: DropoutAddLayerNormFunction.apply(*given, noise, 1e-3, torch.float64),
        (x, f, bias, norm.weight, norm.bias),
    )
    assert gradcheck(lambda x, f, bias: dropout_add(x, f, bias, noise), (x, f, bias))


def test_what_is_dropped_and_what_no_one_reads_learns_nothing():
    """A row without a gradient gives none; of the rest, only what dropout left."""
    (x, f, bias), norm = drawn((5, 7), (5, 7), (7,)), norm_of(7)
    (read, _), upstream = (
        dropout_add_layernorm(x, f, bias, norm, DropoutNoise(0.3, SEED)),
        torch.randn(5, 7, dtype=torch.float64),
    )
    upstream[2] = 0
    dx, df = torch.autograd.grad(read, [x, f], upstream)
    left = hashed_dropout(torch.ones(5, 7), 0.3, SEED) > 0
    assert (dx[2] == 0).all()
    assert ((df != 0) == (left & (dx != 0))).all()


def test_the_operations_tell_compilers_the_truth():
    (x, f, bias), norm = (part.detach().float() for part in drawn((3, 5), (3, 5), (5,))), norm_of(5).float()
    weight, shift = norm.weight.detach(), norm.bias.detach()
    for branch in ((f, bias), (None, None)):
        for scale in (weight, None):
            given = x, *branch, scale, None if scale is None else shift, SEED, 0.3, 1e-5, torch.bfloat16
            torch.library.opcheck(dropout_add_layernorm_op, given)
            _, stats = dropout_add_layernorm_op(*given)
            torch.library.opcheck(dropout_add_layernorm_backward, (x, f, x, *branch, scale, SEED, stats, 0.3))


def test_under_autocast_the_path_stays_wide_and_what_products_read_is_narrow():
    (x, f, bias), norm = drawn((3, 5), (3, 5), (5,), dtype=torch.float32), norm_of(5, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        read, passed = layernorm(x, norm), dropout_add(x, f.bfloat16(), bias, SILENT)[1]
        wanted = norm(x).bfloat16()
    assert (read.dtype, passed.dtype) == (torch.bfloat16, torch.float32)
    upstream = torch.randn(3, 5).bfloat16()
    leaves = [x, *norm.parameters()]
    assert_close(read, wanted)
    assert_close(*(torch.autograd.grad(each, leaves, upstream) for each in (read, wanted)))


def test_too_many_numbers_are_refused():
    x = torch.empty(2**16, 2**15, device="meta")
    with pytest.raises(ValueError, match="elements are more than"):
        dropout_add(x, x, x[0], DropoutNoise(0.1, SEED))


# --- the kernels ---

CASES = {"both": (True, True), "added": (True, False), "normed": (False, True)}


def by_kernel() -> dict[str, Any]:
    """How far the kernels are from plain torch, under the interpreter; in rows that no tile divides."""
    from regard.ops import dropout_triton
    from regard.ops.dropout_triton import ResidualInputs, ResidualLaunch

    torch.manual_seed(0)
    found = {}
    for name, (adds, norms) in CASES.items():
        x, f, bias, grad, more, weight, shift = (
            part.detach() for part in drawn(*((11, 23), (11, 23), (23,), (11, 23), (11, 23), (23,), (23,)))
        )
        branch, weight, shift = (f, bias) if adds else (None, None), weight if norms else None, shift if norms else None
        for share in (0.0, 0.3):
            for second in (None, more):
                out, stats = dropout_add_layernorm_op._init_fn(x, *branch, weight, shift, SEED, share, 1e-3, x.dtype)
                back = dropout_add_layernorm_backward._init_fn(grad, second, x, *branch, weight, SEED, stats, share)
                given = ResidualInputs(x, *branch, weight, SEED, share)
                got, seen = torch.full_like(out, torch.nan), torch.full_like(stats, torch.nan)
                dropout_triton.launch_residual_forward(given, shift, 1e-3, got, seen, ResidualLaunch(2, 4))
                into = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan) if adds else None
                dx, df = into
                sums = dropout_triton.launch_residual_backward(
                    given, grad, second, stats, into, ResidualLaunch(2, 4, 3, 2)
                )
                pairs = [(got, out), (seen, stats), (dx, back[0]), (sums, back[2])]
                pairs += [] if df is None else [(df, back[1])]
                far = [(one - other).abs().max().item() if one.numel() else 0.0 for one, other in pairs]
                found[f"{name}, {share}, {second is not None}"] = max(far)
    return found


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_are_plain_torch(interpreted, case, share, more):
    assert interpreted[f"{case}, {share}, {more}"] < 1e-12


@pytest.mark.parametrize("kernel", ["dropout_add_layernorm_forward_kernel", "dropout_add_layernorm_backward_kernel"])
def test_the_kernels_compile_for_a_hopper(kernel):
    pytest.importorskip("triton", reason="Triton is not installed")
    import triton.language as tl

    from regard.ops import dropout_triton

    sizes = {"WIDTH": 500, "WW": 512, "ROWS": 2, "CUT": 7, "ADD": True, "NORM": True, "WIDE": tl.float32}
    sizes |= {"MORE": True, "STAGES": 2} if kernel.endswith("backward_kernel") else {}
    kinds = {"seed": "*i32", "rows": "i32", "eps": "fp32", "keep_scale": "fp32"}
    kinds |= dict.fromkeys(("means", "scales", "partials"), "*fp32")
    assert ".target sm_90" in compile_to_ptx(getattr(dropout_triton, kernel), sizes, kinds)


# --- on a GPU ---


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("width", [512, 331])
@pytest.mark.parametrize("kind", CASES)
def test_on_a_gpu_it_is_as_good_as_its_parts(kind, width):
    """In bfloat16: error at most twice that of its parts, both against float64; and the same bits twice."""
    how = {"device": "cuda", "dtype": torch.bfloat16}
    given = [*drawn((1013, width), (1013, width), (width,), **how), *norm_of(width, **how).parameters()]
    upstream, noise = [torch.randn(1013, width, **how) for _ in range(2)], DropoutNoise(0.1, SEED.cuda())

    def parts(x, f, bias, weight, shift):
        s = x + hashed_dropout(f + bias, 0.1, noise.seed) if kind != "normed" else x
        return (s if kind == "added" else nn.functional.layer_norm(s, (width,), weight, shift),) * 2

    def step(x, f, bias, weight, shift):
        branch, norm = (f, bias) if kind != "normed" else (None, None), (weight, shift)
        return DropoutAddLayerNormFunction.apply(
            x, *branch, *(norm if kind != "added" else (None, None)), noise, 1e-5, x.dtype
        )

    results = []
    for work, wide in ((parts, True), (parts, False), (step, False), (step, False)):
        leaves = [x.detach().double().requires_grad_() if wide else x for x in given]
        made = work(*leaves)
        grads = torch.autograd.grad(made, leaves, [x.to(made[0].dtype) for x in upstream], materialize_grads=True)
        results.append([made[0], *grads])
    for want, usual, found, again in zip(*results, strict=True):
        assert found.dtype == usual.dtype
        assert (found - want).norm() <= 2 * (usual - want).norm()
        assert torch.equal(found, again)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_on_a_gpu_its_noise_is_that_of_plain_torch():
    (x, f, bias), norm = drawn((61, 131), (61, 131), (131,), dtype=torch.float32), norm_of(131, dtype=torch.float32)
    found = []
    for device in ("cpu", "cuda"):
        leaves = [part.detach().to(device).requires_grad_() for part in (x, f, bias, norm.weight, norm.bias)]
        made = DropoutAddLayerNormFunction.apply(*leaves, DropoutNoise(0.3, SEED.to(device)), 1e-5, torch.float32)
        grads = torch.autograd.grad(made, leaves, [made[0].detach().cos(), made[0].detach().sin()])
        found.append([part.cpu() for part in (made[0], *grads)])
    assert_close(*found, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    print_json(by_kernel)
