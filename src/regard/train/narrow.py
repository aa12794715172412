"""A model and a batch in; the gradients of its float32 weights out, by a pass in bfloat16 from beginning to end.

Autocast narrows the operands of products, at each of its uses, and leaves norms and the residual path wide. Here a copy
of the model is narrow altogether: its weights are made of the model's own once a batch, by one kernel for all, and what
flows between the products is half as large. The weights that learn, and the optimiser's memory, stay float32, so that
small steps are not lost (Micikevicius et al. 2018, section 3.1); sums inside kernels are float32 in any case.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from regard.tasks.job import Loss


class Narrow:
    """A Backward through a narrow copy of the model."""

    def __init__(self, model: nn.Module, loss: Loss, dtype: torch.dtype = torch.bfloat16):
        refuse_buffers(model)
        self.model, self.loss, self.copy = model, loss, deepcopy(model).to(dtype)

    def __call__(self, batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        weights, copies = tuple(self.model.parameters()), tuple(self.copy.parameters())
        self.copy.train(self.model.training)
        with torch.no_grad():
            copied(copies, weights)
        summed, count = self.loss(self.copy, batch)
        found = torch.autograd.grad(summed * scale, copies, allow_unused=True)
        add_gradients([(weight, grad) for weight, grad in zip(weights, found, strict=True) if grad is not None])
        return summed.detach(), count


def refuse_buffers(model: nn.Module) -> None:
    if names := [name for name, _ in model.named_buffers()]:
        raise ValueError(
            f"precision = 'narrow' trains a copy of the model, which would keep {names[0]} for itself; "
            "use precision = 'bfloat16'"
        )


@torch.no_grad()
def add_gradients(found: list[tuple[nn.Parameter, Tensor]]) -> None:
    """To those that the weights have, in the precision of the weights."""
    wide = tuple(torch.empty_like(weight) for weight, _ in found)
    copied(wide, tuple(grad for _, grad in found))
    before = [(weight.grad, grad) for (weight, _), grad in zip(found, wide, strict=True) if weight.grad is not None]
    if before:
        torch._foreach_add_([old for old, _ in before], [new for _, new in before])  # type: ignore[reportPrivateImportUsage]
    for (weight, _), grad in zip(found, wide, strict=True):
        weight.grad = grad if weight.grad is None else weight.grad


def copied(into: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> None:
    """All of them by few kernels, in the precision of the places."""
    torch._foreach_copy_(into, given)  # type: ignore[reportPrivateImportUsage]
