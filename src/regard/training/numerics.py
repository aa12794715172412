"""Numerics of training: pure bfloat16 with master weights in float32, and deterministic algorithms.

Autocast casts the operands of products at each use, and leaves norms and the residual path in float32. Here a copy of
the model is in bfloat16 altogether: its weights are cast once a batch, by one kernel for all, and activations take half
the memory. The master weights and the optimiser's state stay in float32, so that small updates are not lost
(Micikevicius et al. 2018, section 3.1); sums inside kernels are float32 in any case.

Where many threads add to one number, the order of the sum varies, and so does its last bit: on a GPU in the gradients
of fused attention, on a CPU with several cores in those of relative positions. Torch has deterministic algorithms for
these, and raises an error where it has none.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
import torch.utils.deterministic as memory
from torch import Tensor, nn

from regard.ops.flat_adamw import FlatAdamW
from regard.training.config import Loss

# --- master weights ---


class BF16Backward:
    """A backward pass through a bfloat16 copy of the model."""

    def __init__(self, model: nn.Module, loss: Loss, dtype: torch.dtype = torch.bfloat16):
        check_no_buffers(model)
        self.model, self.loss, self.copy = model, loss, deepcopy(model).to(dtype)

    def __call__(self, batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        weights, copies = tuple(self.model.parameters()), tuple(self.copy.parameters())
        self.copy.train(self.model.training)
        with torch.no_grad():
            copy_all(copies, weights)
        summed, count = self.loss(self.copy, batch)
        grads = torch.autograd.grad(summed * scale, copies, allow_unused=True)
        add_gradients([(weight, grad) for weight, grad in zip(weights, grads, strict=True) if grad is not None])
        return summed.detach(), count


class FlatBF16Backward:
    """The same through a copy whose weights and gradients are buffers of FlatAdamW; for steps of one batch."""

    def __init__(self, model: nn.Module, loss: Loss, optimiser: FlatAdamW):
        check_no_buffers(model)
        self.model, self.loss, self.copy = model, loss, deepcopy(model).to(optimiser.flats[0].copies.dtype)
        copies, grads = (
            optimiser.views_by_parameter([getattr(flat, name) for flat in optimiser.flats])
            for name in ("copies", "grads")
        )
        self.grads = [grads[weight] for weight in model.parameters()]
        for weight, copy in zip(model.parameters(), self.copy.parameters(), strict=True):
            copy.data = copies[weight]

    def __call__(self, batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        self.copy.train(self.model.training)
        summed, count = self.loss(self.copy, batch)
        found = torch.autograd.grad(summed * scale, tuple(self.copy.parameters()), allow_unused=True)
        pairs = list(zip(self.grads, found, strict=True))
        with torch.no_grad():  # where there is no gradient, the buffer stays 0
            copy_all(*zip(*((place, grad) for place, grad in pairs if grad is not None), strict=True))
        return summed.detach(), count


def check_no_buffers(model: nn.Module) -> None:
    if names := [name for name, _ in model.named_buffers()]:
        raise ValueError(
            f"precision = 'bf16-pure' trains a copy of the model, whose buffer {names[0]} would not be copied back; "
            "use precision = 'bfloat16'"
        )


@torch.no_grad()
def add_gradients(found: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Add to the weights' gradients, in the dtype of the weights."""
    grads = tuple(torch.empty_like(weight) for weight, _ in found)
    copy_all(grads, tuple(grad for _, grad in found))
    before = [(weight.grad, grad) for (weight, _), grad in zip(found, grads, strict=True) if weight.grad is not None]
    if before:
        torch._foreach_add_([old for old, _ in before], [new for _, new in before])  # type: ignore[reportPrivateImportUsage]
    for (weight, _), grad in zip(found, grads, strict=True):
        weight.grad = grad if weight.grad is None else weight.grad


def copy_all(into: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> None:
    """All tensors by few kernels, cast to the dtypes of the destinations."""
    torch._foreach_copy_(into, given)  # type: ignore[reportPrivateImportUsage]


# --- deterministic algorithms ---


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def use_deterministic(device: torch.device) -> Iterator[None]:
    """Inside, the same numbers give the same bits; an operation without a deterministic algorithm is an error."""
    if device.type == "cuda":
        # cuDNN's recurrent layers use several streams, and cuBLAS then varying workspaces; the variable is read
        # once, when cuBLAS is first used
        os.environ.setdefault(WORKSPACE, ":4096:8")
    mode, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    set_deterministic(device, mode=True)  # with warn_only, memory-efficient attention would stay nondeterministic
    memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # one more kernel for every tensor
    try:
        yield
    except RuntimeError as error:
        if why := explain_error(str(error)):
            raise ValueError(why) from None
        raise
    finally:
        set_deterministic(device, mode=mode, warn_only=warns)
        memory.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def set_deterministic(device: torch.device, *, mode: bool, warn_only: bool = False) -> None:
    """As torch does it; but on a CPU nothing is compiled, and to load the compiler takes seconds."""
    if device.type == "cpu":
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def explain_error(message: str) -> str | None:
    """The remedy, where torch has no deterministic algorithm; None for other errors."""
    if WORKSPACE in message:
        return (
            f"the GPU was used before training began, and cannot become deterministic; set {WORKSPACE}=:4096:8 "
            "before Python starts, or train with deterministic = false"
        )
    what, refused, _ = message.partition(" does not have a deterministic implementation")
    if refused:
        return (
            f"{what} has no algorithm that gives the same bits every time; train with deterministic = false: a run "
            "that is interrupted then ends with weights that differ in their last bits"
        )
    return None
