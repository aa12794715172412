"""Sync detector: finds, on a CPU, what a CUDA graph could not capture.

There are no CUDA graphs without a GPU. What they forbid can be watched for on a CPU: numbers read from tensors, shapes
that depend on what tensors hold, and tensors made of Python's numbers, which on a GPU are copies. Tensors that were
made from sizes alone while watching may be read: on a GPU they would be made by the CPU. `scatter_add` is the
backward pass of `gather`; its deterministic form on a GPU copies strides.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SYNCHRONISING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "equal",
)
SYNCHRONISING += ("is_nonzero", "_pack_padded_sequence", "repeat_interleave", "bincount", "scatter_add")
RANDOM = ("rand", "bernoulli", "normal", "dropout", "multinomial", "uniform")


class SyncDetector(TorchDispatchMode):
    """Raises for what a CUDA graph cannot capture."""

    def __init__(self):
        super().__init__()
        self.clean: dict[int, Tensor] = {}  # kept, so that nobody else is given their memory

    def is_clean(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.clean

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        given = [part for part in tree_leaves((args, kwargs or {})) if isinstance(part, Tensor)]
        clean = all(map(self.is_clean, given)) and not name.startswith(RANDOM)
        if name == "lift_fresh":
            raise AssertionError("a tensor made of Python's numbers would be copied to the GPU")
        if not clean and name in SYNCHRONISING:
            raise AssertionError(f"{name} waits for the GPU")
        if name == "index" and any(part.dtype in (torch.bool, torch.uint8) for part in given[1:]):
            raise AssertionError("an index of truth values has a new shape every time")
        out = func(*args, **(kwargs or {}))
        if clean:
            for part in tree_leaves(out):
                if isinstance(part, Tensor) and part.numel():
                    self.clean[part.untyped_storage().data_ptr()] = part
        return out


def run_again(work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], object], Tensor]:
    """A Recorder without a GPU: the work is watched once, and then done again in the same places."""
    for _ in range(2):
        work()
    with SyncDetector():
        summed = work().clone()
    return lambda: summed.copy_(work()), summed
