"""Flat AdamW: the optimiser on one buffer that holds all weights, with bfloat16 gradients and copies of the weights.

Few kernels do it: gradients stay in bfloat16, and one pass over memory updates the float32 weights and writes their
bfloat16 copies as well. The state has the names that torch's AdamW gives it, so a checkpoint of one can be loaded by
the other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

ALIGNED = 64  # elements: each weight begins at a multiple, as matrix products need it


@dataclass(frozen=True, eq=False)
class FlatBuffers:
    """The weights of a group, their 16-bit copies and gradients, and the optimiser's state."""

    weights: Tensor
    copies: Tensor
    grads: Tensor
    exp_avg: Tensor  # mean
    exp_avg_sq: Tensor  # mean of squares
    steps: Tensor  # one for each weight, all the same
    offsets: tuple[int, ...]
    shapes: tuple[torch.Size, ...]

    @staticmethod
    def of(weights: list[nn.Parameter], copy_dtype: torch.dtype) -> "FlatBuffers":
        """From now on the weights are views of the buffer."""
        offsets, size = [], 0
        for weight in weights:
            offsets.append(size)
            size += -(-weight.numel() // ALIGNED) * ALIGNED
        like = weights[0]

        def empty(dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=like.device)

        flat = FlatBuffers(
            *(empty(dtype) for dtype in (like.dtype, copy_dtype, copy_dtype, like.dtype, like.dtype)),
            steps=torch.zeros(len(weights), device=like.device),
            offsets=tuple(offsets),
            shapes=tuple(weight.shape for weight in weights),
        )
        with torch.no_grad():
            for weight, view in zip(weights, flat.parts(flat.weights), strict=True):
                weight.data = view.copy_(weight)
        return flat

    def parts(self, buffer: Tensor) -> list[Tensor]:
        """Each weight's view of one of the buffers."""
        spans = zip(self.offsets, self.shapes, strict=True)
        return [buffer[begin : begin + shape.numel()].view(shape) for begin, shape in spans]


class FlatAdamW(torch.optim.Optimizer):
    """AdamW of float32 weights with 16-bit gradients."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        copy_dtype: torch.dtype = torch.bfloat16,
    ):
        nonempty = [group for group in groups if group["params"]]
        super().__init__(nonempty, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.flats = [FlatBuffers.of(group["params"], copy_dtype) for group in self.param_groups]
        device = self.flats[0].weights.device
        self.betas = torch.tensor(betas, dtype=torch.float64, device=device)
        self.grad_scale, self.found_inf = torch.ones((), device=device), torch.zeros((), device=device)
        self.attach_state()

    def attach_state(self) -> None:
        """The state of each weight becomes a view of the buffers, and the 16-bit copies are written."""
        for group, flat in zip(self.param_groups, self.flats, strict=True):
            state = flat.steps.unbind(), flat.parts(flat.exp_avg), flat.parts(flat.exp_avg_sq)
            for weight, *parts in zip(group["params"], *state, strict=True):
                before, names = self.state[weight], ("step", "exp_avg", "exp_avg_sq")
                for name, view in zip(names, parts, strict=True):
                    if name in before:
                        view.copy_(before[name])
                self.state[weight] = dict(zip(names, parts, strict=True))
            flat.copies.copy_(flat.weights)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.attach_state()

    @property
    def gradients(self) -> list[Tensor]:
        return [flat.grads for flat in self.flats]

    def views_by_parameter(self, buffers: list[Tensor]) -> dict[nn.Parameter, Tensor]:
        """Each weight's view of the groups' buffers."""
        views: dict[nn.Parameter, Tensor] = {}
        for group, flat, buffer in zip(self.param_groups, self.flats, buffers, strict=True):
            views |= dict(zip(group["params"], flat.parts(buffer), strict=True))
        return views

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group, flat in zip(self.param_groups, self.flats, strict=True):
            flat.steps.add_(1 - self.found_inf)
            corrections = (1 - self.betas ** flat.steps[0].double()).float()
            buffers = flat.weights, flat.grads, flat.exp_avg, flat.exp_avg_sq, flat.copies
            hyperparameters = group["weight_decay"], *group["betas"], group["eps"]
            rate = group["lr"] if isinstance(group["lr"], Tensor) else self.grad_scale.new_tensor(group["lr"])
            update = adamw_triton if flat.weights.is_cuda else adamw_torch
            update(*buffers, rate, self.grad_scale, self.found_inf, corrections, *hyperparameters)


def adamw_triton(*args: Any) -> None:
    from regard.ops.flat_adamw_triton import launch_adamw

    launch_adamw(*args)


def adamw_torch(weights: Tensor, grads: Tensor, first: Tensor, second: Tensor, copies: Tensor, *args: Any) -> None:
    """The equations in `flat_adamw_triton`."""
    rate, scale, skip, corrections, decay, beta1, beta2, eps = args
    g = grads.to(weights.dtype) / scale
    m, v = first + (1 - beta1) * (g - first), beta2 * second + (1 - beta2) * g * g
    w = weights * (1 - rate * decay) - rate / corrections[0] * m / ((v / corrections[1]).sqrt() + eps)
    for view, new in ((first, m), (second, v), (weights, w), (copies, w.to(copies.dtype))):
        view.copy_(torch.where(skip > 0, view, new))
