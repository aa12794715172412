"""A function that is called in this process in; a way that times it, and a verdict on its numbers, out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from regard.cli.benches.work import Missing, Setting, Turn, Verdict, Way

LEAST = 0.2  # seconds of a turn, in as many calls as that takes
LEAST_QUICK = 0.02
ROUNDING = 16  # units in the last place, relative to the largest number, that nobody need explain
ALLOWED = 2.0  # errors, counted in those of plain torch in the same dtype (Dao et al.'s rule for flash attention)

Found = Sequence[Tensor]  # outputs and gradients


def calls(name: str, function: Callable[[], Found], setting: Setting) -> Way:
    def go() -> Turn:
        least, count, began = LEAST_QUICK if setting.quick else LEAST, 0, clock(setting.device)
        while True:
            found, count = function(), count + 1
            if (taken := clock(setting.device) - began) >= least:
                return Turn(taken, count, found)

    return Way(name, go)


def clock(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def with_gradients(outputs: Tensor, upstream: Tensor, *inputs: Tensor) -> Found:
    """The outputs, and the gradients of the inputs."""
    return [outputs.detach(), *torch.autograd.grad(outputs, inputs, upstream)]


def absent(package: str, module: str) -> Missing | None:
    """Nothing, if it is installed here and can be loaded."""
    try:
        import_module(module)
    except ImportError as error:
        why = "not installed" if find_spec(module) is None else f"cannot be loaded ({error})"
        return Missing(package, f"{why}; pip install {package}")
    return None


@dataclass(frozen=True, eq=False)
class Truth:
    """What is right, in float64, and how far plain torch is from it in the dtype of the work.

    `part` takes what is compared out of what somebody found: one sentence and head is enough, and costs little.
    """

    exact: Found
    plain: Found
    part: Callable[[Found], Found]

    def judge(self, found: Found, _: Found) -> Verdict:
        dtype = found[0].dtype
        worst, right = 0.0, True
        for mine, plain, exact in zip(self.part(found), self.plain, self.exact, strict=True):
            size = float(exact.abs().max())
            off, allowed = (float((x.double() - exact).abs().max()) / size for x in (mine, plain))
            right = right and off <= max(ALLOWED * allowed, ROUNDING * torch.finfo(dtype).eps)
            worst = max(worst, off) if off == off else float("nan")
        return Verdict(f"off by {worst:.0e}", right=right)
