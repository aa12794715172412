"""Accuracy and memory of a backend: its errors beside plain torch's, and the tensors that its operations make."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def assert_as_accurate(truth: Any, coarse: Any, ours: Any, slack: float = 0.0) -> None:
    """Each tensor's error is at most twice that of plain torch in the same dtype, plus some of float32's last digits.

    Args:
        truth: outputs and gradients in float64.
        coarse: those of plain torch.
        slack: what is allowed besides, as a share of the largest number.
    """
    for true, theirs, mine in zip(*(tree_leaves(x) for x in (truth, coarse, ours)), strict=True):
        allowed = 2 * (theirs.double() - true).abs().max() + slack * true.abs().max()
        error = (mine.double() - true).abs().max()
        assert error <= allowed, f"{tuple(true.shape)}: {error:.3g}, and twice plain torch's is {allowed:.3g}"


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor holds that any operation made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.numel = max(self.numel, *(x.untyped_storage().nbytes() // x.element_size() for x in made), 0)
        return out


class PeakMemory(TorchDispatchMode):
    """How many bytes were allocated at once by operations."""

    def __init__(self):
        super().__init__()
        self.made, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given, results = (
            {x.untyped_storage()._cdata: x.untyped_storage() for x in tree_leaves(xs) if isinstance(x, torch.Tensor)}
            for xs in ((args, kwargs), out)
        )
        self.made = {key: (ref, size) for key, (ref, size) in self.made.items() if not ref.expired()}
        self.made |= {key: (StorageWeakRef(x), x.nbytes()) for key, x in results.items() if key not in given}
        self.most = max(self.most, sum(size for _, size in self.made.values()))
        return out
