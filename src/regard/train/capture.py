"""The work of a micro-batch in; the same work, recorded once and told to the GPU as a whole, out.

A small model's step is a thousand small kernels, and to tell them one by one takes longer than to run them. A CUDA
graph holds them all, in their order and with their places in memory; a new batch is copied to where the recorded one
lay, and the graph is told again. The kernels are the same, and draw the same noise, so the bits are the same too.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.seq2seq import everywhere
from regard.train.step import Backward

WARM = 2  # times the work is done before it is recorded: libraries make their handles and plans, and compilers kernels


@dataclass(frozen=True, eq=False)
class Recording:
    """A graph, where it reads, and where it leaves the summed loss."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    summed: Tensor

    def play(self, given: list[Tensor]) -> Tensor:
        for place, tensor in zip(self.inputs, given, strict=True):
            place.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.summed.clone()


class Captured:
    """A Backward for batches whose tensors always have the same shapes, each with the number of its tokens.

    Gradients are added to those that the weights have, so these must be set to 0, not thrown away, between steps.
    """

    def __init__(self, model: nn.Module, backward: Backward):
        self.model, self.backward, self.recording = model, backward, None

    def __call__(self, batch: tuple[Any, int], scale: Tensor) -> tuple[Tensor, int]:
        given, tokens = batch
        if self.recording is None:
            self.recording = self.record(given, scale)
        return self.recording.play([*tensors_in(given), scale]), tokens

    def record(self, given: Any, scale: Tensor) -> Recording:
        given, scale = everywhere(Tensor.clone, given), scale.clone()
        held = {weight: weight.grad.clone() for weight in self.model.parameters() if weight.grad is not None}
        noise = torch.cuda.get_rng_state(scale.device)
        aside = torch.cuda.Stream(scale.device)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self.backward((given, 0), scale)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            summed, _ = self.backward((given, 0), scale)
        # as if nothing had been done yet
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.grad.copy_(held[weight]) if weight in held else weight.grad.zero_()
        torch.cuda.set_rng_state(noise, scale.device)
        return Recording(graph, [*tensors_in(given), scale], summed)


def tensors_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    everywhere(lambda tensor: (found.append(tensor), tensor)[1], value)
    return found
