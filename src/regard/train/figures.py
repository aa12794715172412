"""Numbers that a device still works on in; the same numbers out, for whoever asks, and nobody else waits.

A GPU works through what it was told long after the host told it. To read one number of it is to wait for all that, and
meanwhile nothing new is told; so a step sends its few numbers off, and they are looked at when they have arrived.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sent:
    """A few numbers on their way from the device to the host."""

    numbers: Tensor
    event: torch.cuda.Event | None = None

    @staticmethod
    def off(numbers: Tensor) -> "Sent":
        if not numbers.is_cuda:
            return Sent(numbers)
        here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return Sent(here, event)

    @property
    def arrived(self) -> bool:
        return self.event is None or self.event.query()

    def read(self) -> list[float]:
        """Waits for them, if need be."""
        if self.event is not None:
            self.event.synchronize()
        return self.numbers.tolist()


@dataclass(frozen=True)
class Report:
    """What one step did, for whoever watches. Loss, norm and skipped are read only when asked for."""

    step: int
    rate: float
    tokens: int
    sent: Sent
    validation: dict[str, float] | None = None

    @property
    def loss(self) -> float:
        """The mean over the step's tokens."""
        return self.sent.read()[0]

    @property
    def norm(self) -> float:
        """Of the gradient, before it was clipped."""
        return self.sent.read()[1]

    @property
    def skips(self) -> int:
        """Steps in a row, up to this one, that were skipped because they were no number."""
        return int(self.sent.read()[2])

    @property
    def skipped(self) -> bool:
        return self.skips > 0
