"""The work of a micro-batch in; the same work, recorded once and told to the GPU as a whole, out.

A small model's step is a thousand small kernels, and to tell them one by one takes longer than to run them. A CUDA
graph holds them all, in their order and with their places in memory; a new batch is copied to where the recorded one
lay, and the graph is told again. The kernels are the same, and draw the same noise, so the bits are the same too.

A recording serves batches of one shape. Whatever comes a second time is recorded; what comes once, as the rest of an
epoch may, is told kernel by kernel.
"""

import gc
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.models.seq2seq import everywhere
from regard.train.step import Backward

WARM = 2  # times the work is done before it is recorded: libraries make their handles and plans, and compilers kernels
MOST = 64  # recordings that are kept; batches of further shapes are told kernel by kernel


class Recorder(Protocol):
    """Work that reads the same places every time in; what does it again, and where it leaves its result, out."""

    def __call__(self, work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], object], Tensor]: ...


class Graphs:
    """A Recorder of CUDA graphs. They run one after the other, so all may use the same memory on their way."""

    def __init__(self):
        self.pool: Any = None

    def __call__(self, work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], object], Tensor]:
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
            gc.collect()  # what is left of steps told before belongs to another stream
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                work()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            # one that fails would leave its own stream behind
            with (
                torch.cuda.stream(torch.cuda.current_stream(device)),
                torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"),
            ):
                summed = work()
        except RuntimeError as error:
            # the first error is why; the one behind it tells only that the recording came to nothing
            first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            if isinstance(first, torch.OutOfMemoryError):
                raise first from None
            raise ValueError(
                "train.capture = true: this model's work cannot be recorded, for some of it asks the GPU for a number "
                f"or wants a new shape every time ({str(first).splitlines()[0]}); leave capture out"
            ) from error
        return graph.replay, summed


@dataclass(frozen=True, eq=False)
class Recording:
    """What does the work again, where it reads, and where it leaves the summed loss."""

    replay: Callable[[], object]
    inputs: list[Tensor]
    summed: Tensor

    def play(self, given: list[Tensor]) -> Tensor:
        for place, tensor in zip(self.inputs, given, strict=True):
            place.copy_(tensor, non_blocking=True)
        self.replay()
        return self.summed.clone()


def none() -> Iterable[Any]:
    return ()


class Captured:
    """A Backward for batches of few shapes. A batch is (what the loss reads, the number of its tokens, ...).

    Gradients are added to those that the weights have, so these must be set to 0, not thrown away, between steps.

    Args:
        model: whose gradients, and running means, are as if nothing had been done when something was only recorded.
        backward: what is to be recorded.
        ahead: batches to be recorded before the first is asked for. The largest come first: the memory that they
            need on their way serves all the others too.
        recorder: how.
    """

    def __init__(
        self,
        model: nn.Module,
        backward: Backward,
        ahead: Callable[[], Iterable[Any]] = none,
        recorder: Recorder | None = None,
    ):
        self.model, self.backward, self.ahead = model, backward, ahead
        self.recorder = Graphs() if recorder is None else recorder
        self.recordings, self.met = dict[Hashable, Recording](), set[Hashable]()

    def __call__(self, batch: tuple[Any, ...], scale: Tensor) -> tuple[Tensor, int]:
        if not self.met:
            for early in self.ahead():
                self.recorded(early, scale)
        given, tokens, *rest = batch
        shape = shape_of((given, *rest))
        if shape not in self.recordings and (shape not in self.met or len(self.recordings) >= MOST):
            self.met.add(shape)
            return self.backward(batch, scale)
        return self.recorded(batch, scale).play([*tensors_in((given, *rest)), scale]), tokens

    def recorded(self, batch: tuple[Any, ...], scale: Tensor) -> Recording:
        """The recording for batches of this shape."""
        given, _, *rest = batch
        shape = shape_of((given, *rest))
        if shape not in self.recordings:
            self.met.add(shape)
            self.recordings[shape] = self.record((given, *rest), scale)
        return self.recordings[shape]

    def record(self, given: tuple[Any, ...], scale: Tensor) -> Recording:
        given, scale = everywhere(Tensor.clone, given), scale.clone()
        weights, buffers = list(self.model.parameters()), list(self.model.buffers())
        grads = [None if weight.grad is None else weight.grad.clone() for weight in weights]
        means, noise = [buffer.clone() for buffer in buffers], noise_of(scale.device)

        def work() -> Tensor:
            return self.backward((given[0], 0, *given[1:]), scale)[0]

        replay, summed = self.recorder(work, scale.device)
        for weight, grad in zip(weights, grads, strict=True):
            if weight.grad is not None:
                weight.grad.zero_() if grad is None else weight.grad.copy_(grad)
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean)
        restore(noise, scale.device)
        return Recording(replay, [*tensors_in(given), scale], summed)


def noise_of(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def restore(noise: Tensor, device: torch.device) -> None:
    torch.cuda.set_rng_state(noise, device) if device.type == "cuda" else torch.set_rng_state(noise)


def shape_of(value: Any) -> Hashable:
    """The value with shapes in place of its tensors: what a recording has taken for granted."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, tuple):
        return tuple(map(shape_of, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(shape_of(getattr(value, part.name)) for part in fields(value))
    return value


def tensors_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    everywhere(lambda tensor: (found.append(tensor), tensor)[1], value)
    return found
