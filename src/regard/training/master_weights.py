"""Master weights: training in pure bfloat16, with float32 weights for the optimiser.

Autocast casts the operands of products at each use, and leaves norms and the residual path in float32. Here a copy of
the model is in bfloat16 altogether: its weights are cast once a batch, by one kernel for all, and activations take half
the memory. The master weights and the optimiser's state stay in float32, so that small updates are not lost
(Micikevicius et al. 2018, section 3.1); sums inside kernels are float32 in any case.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from regard.ops.flat_adamw import FlatAdamW
from regard.training.config import Loss


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
