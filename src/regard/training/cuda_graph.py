"""CUDA graphs: the backward pass of a batch, or a whole training step, captured once and replayed.

A small model's step is a thousand small kernels, and to launch them one by one takes longer than to run them. A CUDA
graph holds them all, in their order and with their addresses; a new batch is copied to where the captured one was, and
the graph is replayed. The kernels and their random numbers are the same, so the result is bit for bit the same too.

A graph serves batches of one shape. A shape is captured the second time it comes; one that comes once, as the rest of
an epoch may, is launched kernel by kernel.

A whole step includes clipping and the optimiser. It has one batch, so the graph writes the gradients instead of adding
them up. What changes from step to step (the batch, its number of tokens, the rate, the scale) is copied to the inputs
of the graph.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.seq2seq import map_tensors
from regard.ops.cuda_graph import CUDAGraphCapture, GraphCapture
from regard.training.step import BackwardFunction, StepResult, apply_update, gradient_norm, gradients_of

OPTION, REMEDY = "train.cuda_graph = true: ", "leave cuda_graph out"
MAX_GRAPHS = 64  # graphs that are kept; batches of further shapes are launched kernel by kernel


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph: its replay, its input tensors, and the tensor of the summed loss."""

    replay: Callable[[], object]
    inputs: list[Tensor]
    summed: Tensor

    def run(self, given: list[Tensor]) -> Tensor:
        for input_, tensor in zip(self.inputs, given, strict=True):
            input_.copy_(tensor, non_blocking=True)
        self.replay()
        return self.summed.clone()


def no_batches() -> Iterable[Any]:
    return ()


class CapturedBackward:
    """A backward pass for batches of few shapes. A batch is (what the loss reads, the number of its tokens, ...).

    Gradients are added to those that the weights have, so these must be set to 0, not to None, between steps.

    Args:
        model: its gradients and buffers are restored after a capture.
        backward: what is to be captured.
        warmup_batches: to be captured before the first step. The largest come first: their memory pool serves all the
            others too.
        capture: CUDA graphs by default.
    """

    def __init__(
        self,
        model: nn.Module,
        backward: BackwardFunction,
        warmup_batches: Callable[[], Iterable[Any]] = no_batches,
        capture: GraphCapture | None = None,
    ):
        self.model, self.backward, self.warmup_batches = model, backward, warmup_batches
        self.capture = CUDAGraphCapture(OPTION, REMEDY) if capture is None else capture
        self.captured_graphs, self.seen_shapes = dict[Hashable, CapturedGraph](), set[Hashable]()

    def __call__(self, batch: tuple[Any, ...], scale: Tensor) -> tuple[Tensor, int]:
        if not self.seen_shapes:
            for early in self.warmup_batches():
                self.captured_graph(early, scale)
        given, tokens, *rest = batch
        shape = shape_key((given, *rest))
        if shape not in self.captured_graphs and (
            shape not in self.seen_shapes or len(self.captured_graphs) >= MAX_GRAPHS
        ):
            self.seen_shapes.add(shape)
            return self.backward(batch, scale)
        return self.captured_graph(batch, scale).run([*collect_tensors((given, *rest)), scale]), tokens

    def captured_graph(self, batch: tuple[Any, ...], scale: Tensor) -> CapturedGraph:
        """The graph for batches of this shape."""
        given, _, *rest = batch
        shape = shape_key((given, *rest))
        if shape not in self.captured_graphs:
            self.seen_shapes.add(shape)
            self.captured_graphs[shape] = self.capture_batch((given, *rest), scale)
        return self.captured_graphs[shape]

    def capture_batch(self, given: tuple[Any, ...], scale: Tensor) -> CapturedGraph:
        given, scale = map_tensors(Tensor.clone, given), scale.clone()
        weights, buffers = list(self.model.parameters()), list(self.model.buffers())
        grads = [None if weight.grad is None else weight.grad.clone() for weight in weights]
        values, rng = [buffer.clone() for buffer in buffers], rng_state(scale.device)

        def work() -> Tensor:
            return self.backward((given[0], 0, *given[1:]), scale)[0]

        replay, summed = self.capture(work, scale.device)
        for weight, grad in zip(weights, grads, strict=True):
            if weight.grad is not None:
                weight.grad.zero_() if grad is None else weight.grad.copy_(grad)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)
        set_rng_state(rng, scale.device)
        return CapturedGraph(replay, [*collect_tensors(given), scale], summed)


def rng_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_rng_state(rng: Tensor, device: torch.device) -> None:
    torch.cuda.set_rng_state(rng, device) if device.type == "cuda" else torch.set_rng_state(rng)


def shape_key(value: Any) -> Hashable:
    """The value with shapes instead of its tensors: what a graph depends on."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, tuple):
        return tuple(map(shape_key, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(shape_key(getattr(value, part.name)) for part in fields(value))
    return value


def collect_tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(lambda tensor: (found.append(tensor), tensor)[1], value)
    return found


# --- whole steps ---


class CapturedStep:
    """Steps of one batch each, captured once for each shape of a batch.

    The optimiser must be capturable; from its first step here its learning rate is a tensor. A capture leaves weights,
    buffers and the random state as they were.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        backward: BackwardFunction,
        *,
        clip: float,
        capture: GraphCapture | None = None,
    ):
        self.model, self.optimiser, self.backward, self.clip = model, optimiser, backward, clip
        self.capture = CUDAGraphCapture(OPTION, REMEDY) if capture is None else capture
        device = next(model.parameters()).device
        self.rate, self.skip_step = (torch.zeros((), device=device) for _ in range(2))
        self.captured_graphs = dict[Hashable, CapturedGraph]()

    def __call__(self, batches: list[Any], scale: Tensor, rate: float) -> StepResult:
        if len(batches) != 1:
            raise ValueError(f"{len(batches)} batches a step cannot be captured as one CUDA graph; set accumulate = 1")
        given, tokens, *rest = batches[0]
        shape = shape_key((given, *rest))
        if shape not in self.captured_graphs:
            self.captured_graphs[shape] = self.capture_batch((given, *rest), scale)
        self.rate.fill_(rate)
        count = torch.full_like(self.rate, tokens)
        loss, norm, broken = self.captured_graphs[shape].run([*collect_tensors((given, *rest)), scale, count]).unbind()
        return StepResult(loss, norm, broken, tokens)

    def capture_batch(self, given: tuple[Any, ...], scale: Tensor) -> CapturedGraph:
        given, scale, count = map_tensors(Tensor.clone, given), scale.clone(), torch.ones_like(self.rate)
        buffers, rng = list(self.model.buffers()), rng_state(scale.device)
        values = [buffer.clone() for buffer in buffers]
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        self.skip_step.fill_(1.0)  # warm-up steps must leave everything as it is: they are skipped
        replay, found = self.capture(lambda: self.run_step(given, scale, count), scale.device)
        self.skip_step.zero_()
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)
        set_rng_state(rng, scale.device)
        return CapturedGraph(replay, [*collect_tensors(given), scale, count], found)

    def run_step(self, given: tuple[Any, ...], scale: Tensor, count: Tensor) -> Tensor:
        """As in `take_step`."""
        weights = [weight for group in self.optimiser.param_groups for weight in group["params"]]
        for weight in weights:
            weight.grad = None  # so that the backward pass writes, and does not add
        summed, _ = self.backward((given[0], 0, *given[1:]), scale)
        norm = gradient_norm(gradients_of(self.optimiser))
        found = apply_update(self.optimiser, norm, summed, count, scale, clip=self.clip, skip=self.skip_step)
        return torch.stack([each.float() for each in found])
