"""Log-probabilities to the best token: greedy search."""

from dataclasses import dataclass

from regard.decode.limits import Longest
from regard.decode.walk import Walker


@dataclass(frozen=True)
class Greedy(Walker):
    """The most probable token each time; of equals the one with the lower id."""

    longest: Longest = Longest()

    @property
    def width(self) -> int:
        return 1

    def choose(self, scores, rows):
        return scores.argmax(-1)
