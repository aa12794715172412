"""A model and a batch in; its weights one step of AdamW on out, where all weights lie one behind the other.

As `narrow` has it, but that few kernels do it: gradients stay as narrow as they were made, and the optimiser's one pass
over memory leaves the narrow copy of the weights as well. What is remembered has the names that torch's AdamW gives it,
so a checkpoint of one can be read by the other.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.tasks.job import Loss
from regard.train.narrow import copied, refuse_buffers

ALIGNED = 64  # numbers: each weight begins at a multiple, as products of matrices want it


@dataclass(frozen=True, eq=False)
class Flat:
    """The weights of a group, their narrow copies and gradients, and what is remembered of them."""

    weights: Tensor
    copies: Tensor
    grads: Tensor
    first: Tensor  # mean
    second: Tensor  # mean of squares
    steps: Tensor  # one for each weight, all the same
    begins: tuple[int, ...]
    shapes: tuple[torch.Size, ...]

    @staticmethod
    def of(weights: list[nn.Parameter], narrow: torch.dtype) -> "Flat":
        """From now on the weights are parts of it."""
        begins, size = [], 0
        for weight in weights:
            begins.append(size)
            size += -(-weight.numel() // ALIGNED) * ALIGNED
        like = weights[0]

        def empty(dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=like.device)

        flat = Flat(
            *(empty(dtype) for dtype in (like.dtype, narrow, narrow, like.dtype, like.dtype)),
            steps=torch.zeros(len(weights), device=like.device),
            begins=tuple(begins),
            shapes=tuple(weight.shape for weight in weights),
        )
        with torch.no_grad():
            for weight, place in zip(weights, flat.parts(flat.weights), strict=True):
                weight.data = place.copy_(weight)
        return flat

    def parts(self, buffer: Tensor) -> list[Tensor]:
        """Each weight's part of one of the buffers."""
        places = zip(self.begins, self.shapes, strict=True)
        return [buffer[begin : begin + shape.numel()].view(shape) for begin, shape in places]


class FlatAdamW(torch.optim.Optimizer):
    """AdamW of float32 weights by narrow gradients."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        narrow: torch.dtype = torch.bfloat16,
    ):
        kept = [group for group in groups if group["params"]]
        super().__init__(kept, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.flats = [Flat.of(group["params"], narrow) for group in self.param_groups]
        device = self.flats[0].weights.device
        self.betas = torch.tensor(betas, dtype=torch.float64, device=device)
        self.grad_scale, self.found_inf = torch.ones((), device=device), torch.zeros((), device=device)
        self.settle()

    def settle(self) -> None:
        """What is remembered of each weight becomes part of the buffers, and narrow copies are made."""
        for group, flat in zip(self.param_groups, self.flats, strict=True):
            places = flat.steps.unbind(), flat.parts(flat.first), flat.parts(flat.second)
            for weight, *parts in zip(group["params"], *places, strict=True):
                before, names = self.state[weight], ("step", "exp_avg", "exp_avg_sq")
                for name, place in zip(names, parts, strict=True):
                    if name in before:
                        place.copy_(before[name])
                self.state[weight] = dict(zip(names, parts, strict=True))
            flat.copies.copy_(flat.weights)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.settle()

    @property
    def gradients(self) -> list[Tensor]:
        return [flat.grads for flat in self.flats]

    def by_weight(self, buffers: list[Tensor]) -> dict[nn.Parameter, Tensor]:
        """Each weight's part of the groups' buffers."""
        found: dict[nn.Parameter, Tensor] = {}
        for group, flat, buffer in zip(self.param_groups, self.flats, buffers, strict=True):
            found |= dict(zip(group["params"], flat.parts(buffer), strict=True))
        return found

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group, flat in zip(self.param_groups, self.flats, strict=True):
            flat.steps.add_(1 - self.found_inf)
            fixes = (1 - self.betas ** flat.steps[0].double()).float()
            buffers = flat.weights, flat.grads, flat.first, flat.second, flat.copies
            numbers = group["weight_decay"], *group["betas"], group["eps"]
            rate = group["lr"] if isinstance(group["lr"], Tensor) else self.grad_scale.new_tensor(group["lr"])
            go = by_kernel if flat.weights.is_cuda else plainly
            go(*buffers, rate, self.grad_scale, self.found_inf, fixes, *numbers)


def by_kernel(*given: Any) -> None:
    from regard.train.flat_kernel import step_weights

    step_weights(*given)


def plainly(weights: Tensor, grads: Tensor, first: Tensor, second: Tensor, copies: Tensor, *given: Any) -> None:
    """The equations at the head of `flat_kernel`."""
    rate, scale, broken, fixes, decay, beta1, beta2, eps = given
    g = grads.to(weights.dtype) / scale
    m, v = first + (1 - beta1) * (g - first), beta2 * second + (1 - beta2) * g * g
    w = weights * (1 - rate * decay) - rate / fixes[0] * m / ((v / fixes[1]).sqrt() + eps)
    for place, new in ((first, m), (second, v), (weights, w), (copies, w.to(copies.dtype))):
        place.copy_(torch.where(broken > 0, place, new))


class NarrowFlat:
    """A Backward through a narrow copy of the model, whose weights are the optimiser's; for steps of one batch."""

    def __init__(self, model: nn.Module, loss: Loss, optimiser: FlatAdamW):
        refuse_buffers(model)
        self.model, self.loss, self.copy = model, loss, deepcopy(model).to(optimiser.flats[0].copies.dtype)
        copies, grads = (
            optimiser.by_weight([getattr(flat, name) for flat in optimiser.flats]) for name in ("copies", "grads")
        )
        self.grads = [grads[weight] for weight in model.parameters()]
        for weight, copy in zip(model.parameters(), self.copy.parameters(), strict=True):
            copy.data = copies[weight]

    def __call__(self, batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        self.copy.train(self.model.training)
        summed, count = self.loss(self.copy, batch)
        found = torch.autograd.grad(summed * scale, tuple(self.copy.parameters()), allow_unused=True)
        pairs = list(zip(self.grads, found, strict=True))
        with torch.no_grad():  # where there is none, it stays 0
            copied(*zip(*((place, grad) for place, grad in pairs if grad is not None), strict=True))
        return summed.detach(), count
