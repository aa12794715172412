"""Training job: a model to train, its data, its loss, and its figures on held-out data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.train.config import TrainSettings


class TrainingData(Protocol):
    """Micro-batches for every step, by epoch and index, whatever came before."""

    def steps(self, epoch: int) -> int:
        """How many steps the epoch has."""
        ...

    def at(self, epoch: int, index: int) -> Sequence[Any]:
        """The micro-batches whose gradients are added up in one step."""
        ...


VARIABLE_SHAPES = "its batches have many shapes, and a CUDA graph has one"

# A batch's summed loss and the number of tokens (or labels) it was summed over.
Loss = Callable[[nn.Module, Any], tuple[Tensor, int]]


def to_float32(logits: Tensor) -> Tensor:
    """At least float32: the softmax of a loss needs it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A model to train, and on what.

    Args:
        validate: figures on held-out data: "loss", and "accuracy" where there is one.
        width: of the model, by which Noam's schedule is scaled.
        describe: writes all but the weights into the run folder, and returns the checksum that is saved with the
            weights.
        left_out: examples that are too long, training and held out.
        flops: additions and multiplications that a token of the loss asks for, forwards and backwards; None where
            nobody has counted.
        capture_objection: why a step cannot be captured as a CUDA graph; "" where it can.
    """

    model: nn.Module
    data: TrainingData
    loss: Loss
    validate: Callable[[nn.Module], dict[str, float]]
    train: TrainSettings
    width: int
    describe: Callable[[Path], str]
    left_out: int = 0
    flops: float | None = None
    capture_objection: str = VARIABLE_SHAPES
