"""Rotary positions fused: the kernel interpreted is the plain form, forward and backward, at any position."""

from typing import Any

import pytest
import torch

from regard.attention import NTKScaling, Rotary, YarnScaling
from regard.ops.rotary import rotate_fused
from tests.attention.triton_interpreter import print_json

CASES: dict[str, tuple[Rotary, int, tuple[int, ...]]] = {
    "adjacent": (Rotary(), 12, (37,)),
    "halves": (Rotary(pairs="halves"), 16, (2, 37)),
    "a part of a head": (Rotary(pairs="halves", fraction=0.25), 24, (1, 37)),
    "scaled": (Rotary(scaling=YarnScaling(4.0, length=32), fraction=0.5), 16, (37,)),
}


def fused(scheme: Rotary, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    width = int(x.shape[-1] * scheme.fraction)
    frequency = scheme.theta ** (-torch.arange(0, width, 2, dtype=torch.float64, device=x.device) / width)
    frequency = frequency if scheme.scaling is None else scheme.scaling.scale(frequency)
    magnitude = 1.0 if scheme.scaling is None else scheme.scaling.magnitude
    return rotate_fused(x, positions, frequency, pairs=scheme.pairs, magnitude=magnitude)


def kernel_cases() -> dict[str, Any]:
    torch.manual_seed(0)
    found = {}
    for name, (scheme, width, shape) in CASES.items():
        x = torch.randn(2, 37, 3, width, dtype=torch.double).transpose(1, 2).requires_grad_()
        positions, upstream = torch.randint(0, 10**6, shape), torch.randn(2, 3, 37, width, dtype=torch.double)
        ways = scheme.rotate(x, positions), fused(scheme, x, positions)
        grads = [torch.autograd.grad(way, x, upstream)[0] for way in ways]
        found[name] = max(float((a - b).detach().abs().max()) for a, b in (ways, grads))
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_interpreted_is_the_plain_form(case, interpreted):
    assert interpreted[case] < 1e-9


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scheme", [Rotary(), Rotary(pairs="halves", fraction=0.5), Rotary(scaling=NTKScaling(4.0))])
def test_on_a_gpu_it_is_as_good_as_plain_torch(scheme):
    x, positions = torch.randn(2, 3, 1009, 64, dtype=torch.double), torch.arange(100_000, 101_009)
    exact, plain = scheme.rotate(x, positions), scheme.rotate(x.bfloat16(), positions)
    got = scheme.rotate(x.bfloat16().cuda(), positions.cuda()).cpu()
    assert (got - exact).norm() <= (plain - exact).norm()


if __name__ == "__main__":
    print_json(kernel_cases)
