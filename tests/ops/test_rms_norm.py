"""RMS norm fused: the kernels interpreted are torch's, forward and backward, wherever the rows lie."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import LayerOptions, MultiHeadAttention
from regard.ops import rms_norm as op
from regard.ops.rms_norm import rms_norm
from regard.see.methods.layers import FrozenNormScales
from tests.attention.triton_interpreter import compile_to_ptx, print_json


def rows(name: str) -> Tensor:
    match name:
        case "heads":  # (b, t, h, d) seen as (b, h, t, d), as a layer splits them
            return torch.randn(2, 37, 3, 64).transpose(1, 2)
        case "heads beside others":  # queries of a joint projection
            return torch.randn(2, 37, 5, 24).transpose(1, 2)[:, 1:3]
        case "tokens":
            return torch.randn(3, 7, 150)
        case "one row":
            return torch.randn(11)
        case "long rows":
            return torch.randn(5, 2500)
    assert name == "every other feature"
    return torch.randn(2, 3, 5, 14)[..., ::2]


CASES = ["heads", "heads beside others", "tokens", "one row", "long rows", "every other feature"]


def kernel_cases() -> dict[str, Any]:
    from regard.ops.rms_norm_triton import RMSNormFunction

    torch.manual_seed(0)
    found = {}
    for name in CASES:
        x = rows(name).double().requires_grad_()
        weight, upstream = torch.randn(x.shape[-1]).double().requires_grad_(), torch.randn(x.shape).double()
        for w in (weight, None):
            ways = torch.rms_norm(x, x.shape[-1:], w, 1e-3), RMSNormFunction.apply(x, w, 1e-3)
            wanted = (x,) if w is None else (x, w)
            grads = [torch.autograd.grad(way, wanted, upstream) for way in ways]
            pairs = [ways, *zip(*grads, strict=True)]
            found[f"{name}, {w is not None}"] = max(float((a - b).detach().abs().max()) for a, b in pairs)
    return found


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_are_torchs(case, weighted, interpreted):
    assert interpreted[f"{case}, {weighted}"] < 1e-10


@pytest.mark.parametrize("kernel", ["rms_norm_kernel", "rms_norm_backward_kernel"])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_kernels_compile_for_a_gpu(kernel, weighted):
    pytest.importorskip("triton", reason="Triton is not installed")
    import triton.language as tl

    from regard.ops import rms_norm_triton

    sizes = {"WIDTH": 64, "WW": 64, "ROWS": 32, "WEIGHT": weighted, "WIDE": tl.float32}
    kinds = {"eps": "fp32", "partials": "*fp32", **dict.fromkeys(("rows", "inner", "innermost"), "i32")}
    kinds |= {f"{tensor}_{axis}": "i64" for tensor in "xgo" for axis in range(3)}
    assert ".target sm_90" in compile_to_ptx(getattr(rms_norm_triton, kernel), sizes, kinds)


def test_three_and_four_by_their_root_mean_square():
    """√((9 + 16) / 2) = 5 / √2."""
    x, weight = torch.tensor([[3.0, 4.0]], dtype=torch.double), torch.tensor([1.0, 10.0], dtype=torch.double)
    assert_close(rms_norm(x, weight, 0.0), torch.tensor([[0.6, 8.0]], dtype=torch.double) * 2**0.5)


def test_without_a_number_epsilon_is_torchs(monkeypatch):
    """That of float32 in 16 bits too, or small states would vanish."""
    x = torch.full((4,), 1e-3, dtype=torch.bfloat16)
    passed = []
    monkeypatch.setattr(op, "use_fused", lambda x: True)
    monkeypatch.setattr("regard.ops.rms_norm_triton.RMSNormFunction.apply", lambda x, w, eps: passed.append(eps) or x)
    pytest.importorskip("triton", reason="Triton is not installed")
    rms_norm(x, None, None)
    assert_close(torch.rms_norm(x, (4,), None, passed[0]), torch.rms_norm(x, (4,)), rtol=0, atol=0)


def test_who_watches_torchs_functions_sees_torchs_norm(monkeypatch):
    """As the methods that hold norms constant do."""
    monkeypatch.setattr(op.dispatch, "use_fused", lambda x: True)
    x = torch.ones(2, 3)
    assert op.use_fused(x)
    with torch.no_grad():
        assert not op.use_fused(x)
    with FrozenNormScales():
        assert not op.use_fused(x)


def test_queries_and_keys_are_normed_by_the_op(monkeypatch):
    """And so are layers' states: wherever a module of torch's holds the weights."""
    seen = []
    layer = MultiHeadAttention(8, heads=2, options=LayerOptions(head_norm=nn.RMSNorm))
    monkeypatch.setattr(op, "rms_norm", lambda x, w, eps: seen.append(w) or x)
    layer(torch.randn(1, 3, 8))
    assert [id(w) for w in seen] == [id(layer.query_norm.weight), id(layer.key_norm.weight)]  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu_it_is_as_good_as_plain_torch(case, dtype):
    x, weight = rows(case).double(), torch.randn(rows(case).shape[-1]).double()
    upstream = torch.randn_like(x)

    def run(how, x, weight, upstream):
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        y = how(x, weight)
        return [each.detach().double().cpu() for each in (y, *torch.autograd.grad(y, (x, weight), upstream))]

    def plain(x, weight):
        return torch.rms_norm(x, x.shape[-1:], weight, 1e-5)

    def fused(x, weight):
        assert op.use_fused(x)
        return rms_norm(x, weight, 1e-5)

    given = [each.cuda().to(dtype) for each in (x, weight, upstream)]
    exact = run(plain, *(each.double().cpu() for each in given))
    for right, eager, ours in zip(exact, run(plain, *given), run(fused, *given), strict=True):
        rounding = torch.finfo(dtype).eps * right.norm()
        assert (ours - right).norm() <= 2 * (eager - right).norm() + rounding / 4
    twice = [run(fused, *given) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*twice, strict=True))


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_weights_in_float32_meet_states_in_16_bits():
    x = torch.randn(2, 3, 50, 64, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(64, device="cuda").requires_grad_()
    y = rms_norm(x, weight, 1e-5)
    dx, dw = torch.autograd.grad(y.sum(), (x, weight))
    assert (y.dtype, dx.dtype, dw.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)


if __name__ == "__main__":
    print_json(kernel_cases)
