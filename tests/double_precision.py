"""Double precision: models that compute in float64 throughout, and what float32 may differ from them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    """While the block lasts, what asks for float32 gets float64: norms and softmaxes that are computed in float32
    whatever the model's precision."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(widen, args), **{name: widen(one) for name, one in (kwargs or {}).items()})


def widen(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def assert_same_outputs(
    run: Callable[[Any, Any], tuple[Tensor, Tensor]], ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-6
) -> None:
    """In float64 two models agree to `tolerance` of the largest output. In float32, where two right orders of a sum may
    differ by more, our error is at most twice theirs, and `tolerance`.

    Args:
        run: gives the outputs of ours and of theirs, which broadcast.
    """
    with torch.no_grad():
        found, expected = run(ours, theirs)
        with Float64():
            exact_found, exact = run(deepcopy(ours).double(), deepcopy(theirs).double())
    assert (found.dtype, exact_found.dtype, exact.dtype) == (torch.float32, torch.float64, torch.float64)
    size = float(exact.abs().max())
    assert size > 0.1
    assert float((exact_found - exact).abs().max()) <= tolerance * size
    error, their_error = (float((one - exact).abs().max()) for one in (found, expected))
    assert error <= 2 * their_error + tolerance * size
