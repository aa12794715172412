"""Task protocol: the training job that every task gives to the one training loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from regard.tasks.config import TrainSettings


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


class TaskModel(Protocol):
    """A model with what it needs to read its examples: a translator, a tagger and so on."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def settings(self) -> Any: ...

    def job(self, examples: Sequence[Any], held_out: Sequence[Any], device: str = "cpu", /) -> TrainingJob:
        """The training of this model on these examples."""
        ...
