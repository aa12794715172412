"""What there is to see of a node among its neighbours: whom it looked at and how much, for a figure or a terminal."""

from dataclasses import dataclass
from math import cos, pi, sin

RADIUS = 1.05  # inches, of the circle on which neighbours stand
AROUND = 0.3  # above and below it


@dataclass(frozen=True)
class Star:
    """A node in the middle and those it looked at around it, each with its weight and its kind.

    `itself` is what it kept for itself. Weights are shown as shares of `most`.
    """

    title: str
    centre: str
    names: tuple[str, ...]
    weights: tuple[float, ...]
    kinds: tuple[int, ...]  # the centre's, then those of the others
    itself: float
    most: float = 1.0

    def __post_init__(self):
        assert len(self.names) == len(self.weights) == len(self.kinds) - 1

    def places(self) -> list[tuple[float, float]]:
        """Where the neighbours stand, in inches from the middle, clockwise from the top."""
        turns = (2 * pi * n / len(self.names) for n in range(len(self.names)))
        return [(RADIUS * sin(turn), RADIUS * cos(turn)) for turn in turns]
