"""A batch and a rate in; weights one step on out, all of it recorded: the pass, the way back, clipping, the optimiser.

As in `capture`, but a step is told to the GPU as one. Nothing is set to 0 and nothing is added up: the recording writes
each gradient to its place, for a step has one batch. What changes from step to step (the batch, the number of its
tokens, the rate, the scale) is copied to where the recording reads it.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.seq2seq import everywhere
from regard.train.capture import Graphs, Recorder, Recording, noise_of, restore, shape_of, tensors_in
from regard.train.step import Backward, Stepped, updated


class Whole:
    """Steps of one batch each, recorded once for each shape of a batch.

    The optimiser must be capturable; from its first step here its rate is a tensor of ours. What was only recorded
    leaves weights, running means and noise as they were.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        backward: Backward,
        *,
        clip: float,
        recorder: Recorder | None = None,
    ):
        self.model, self.optimiser, self.backward, self.clip = model, optimiser, backward, clip
        self.recorder = Graphs() if recorder is None else recorder
        device = next(model.parameters()).device
        self.rate, self.held = (torch.zeros((), device=device) for _ in range(2))
        self.recordings = dict[Hashable, Recording]()

    def __call__(self, batches: list[Any], scale: Tensor, rate: float) -> Stepped:
        if len(batches) != 1:
            raise ValueError(f"{len(batches)} batches a step cannot be recorded whole; say accumulate = 1")
        given, tokens, *rest = batches[0]
        shape = shape_of((given, *rest))
        if shape not in self.recordings:
            self.recordings[shape] = self.record((given, *rest), scale)
        self.rate.fill_(rate)
        count = torch.full_like(self.rate, tokens)
        loss, norm, broken = self.recordings[shape].play([*tensors_in((given, *rest)), scale, count]).unbind()
        return Stepped(loss, norm, broken, tokens)

    def record(self, given: tuple[Any, ...], scale: Tensor) -> Recording:
        given, scale, count = everywhere(Tensor.clone, given), scale.clone(), torch.ones_like(self.rate)
        buffers, noise = list(self.model.buffers()), noise_of(scale.device)
        means = [buffer.clone() for buffer in buffers]
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        self.held.fill_(1.0)  # a step that is only rehearsed must leave everything as it is: it counts as broken
        replay, found = self.recorder(lambda: self.work(given, scale, count), scale.device)
        self.held.zero_()
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean)
        restore(noise, scale.device)
        return Recording(replay, [*tensors_in(given), scale, count], found)

    def work(self, given: tuple[Any, ...], scale: Tensor, count: Tensor) -> Tensor:
        """As `stepped` has it."""
        weights = [weight for group in self.optimiser.param_groups for weight in group["params"]]
        for weight in weights:
            weight.grad = None  # so that the way back writes, and does not add
        summed, _ = self.backward((given[0], 0, *given[1:]), scale)
        found = updated(self.optimiser, summed, count, scale, clip=self.clip, held=self.held)
        return torch.stack([each.float() for each in found])
