"""Learning rate schedules: constant, Noam and cosine, as functions of the step alone."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import cos, pi


class Schedule(ABC):
    """Abstract: the rate at each step, counted from 1."""

    @abstractmethod
    def rate(self, step: int) -> float: ...


@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """Constant after a linear warm-up."""

    peak: float
    warmup: int = 0

    def rate(self, step):
        return self.peak * min(1.0, step / max(1, self.warmup))


@dataclass(frozen=True)
class NoamSchedule(Schedule):
    """factor · model^-½ · min(step^-½, step · warmup^-1½), eq. 3 of Vaswani et al. 2017."""

    model: int
    warmup: int = 4000
    factor: float = 1.0

    def __post_init__(self):
        if self.model < 1 or self.warmup < 1:
            raise ValueError(f"{self}: model and warmup must be at least 1")

    def rate(self, step):
        return self.factor * self.model**-0.5 * min(step**-0.5, step * self.warmup**-1.5)


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """Linear warm-up to `peak`, then half a cosine down to `minimum` at the last of `steps`."""

    peak: float
    steps: int
    warmup: int = 0
    minimum: float = 0.0

    def __post_init__(self):
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"{self}: a warm-up of {self.warmup} steps does not fit into {self.steps}")

    def rate(self, step):
        if step <= self.warmup:
            return self.peak * step / self.warmup
        done = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.minimum + (self.peak - self.minimum) * (1 + cos(pi * done)) / 2
