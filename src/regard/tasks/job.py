"""What every task brings to training, as one value, so that one loop trains them all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from regard.tasks.settings import TrainSettings


class Data(Protocol):
    """Micro-batches for every step, by epoch and index, whatever came before."""

    def steps(self, epoch: int) -> int:
        """How many steps the epoch has."""
        ...

    def at(self, epoch: int, index: int) -> Sequence[Any]:
        """The micro-batches whose gradients are added up in one step."""
        ...


MANY = "its batches have many shapes, and a recording serves one"

# A batch's summed loss and the number of tokens (or labels) it was summed over.
Loss = Callable[[nn.Module, Any], tuple[Tensor, int]]


@dataclass(frozen=True, eq=False)
class Job:
    """A model to train, and on what.

    Args:
        validate: figures on held-out data: "loss", and "accuracy" where there is one.
        width: of the model, by which Noam's schedule is scaled.
        describe: writes all but the weights into the folder of the run, and returns what the weights note of it, so
            that they are never taken for another's.
        left_out: examples that are too long, training and held out.
        flops: additions and multiplications that a token of the loss asks for, forwards and backwards; None where
            nobody has counted.
        unrecorded: why its work on a GPU cannot be recorded and told as a whole; "" where it can.
    """

    model: nn.Module
    data: Data
    loss: Loss
    validate: Callable[[nn.Module], dict[str, float]]
    train: TrainSettings
    width: int
    describe: Callable[[Path], str]
    left_out: int = 0
    flops: float | None = None
    unrecorded: str = MANY


class Learner(Protocol):
    """A model with what it needs to read its examples: a translator, a tagger and so on."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def settings(self) -> Any: ...

    def job(self, examples: Sequence[Any], held_out: Sequence[Any], device: str = "cpu", /) -> Job:
        """The training of this model on these examples."""
        ...
