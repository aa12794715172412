"""Log-probabilities to the best token: greedy search."""

from dataclasses import dataclass

from regard.decode.beam import Beam
from regard.decode.limits import Longest
from regard.decode.ready import Ready
from regard.decode.walk import Walker


@dataclass(frozen=True)
class Greedy(Walker):
    """The most probable token each time; of equals the one with the lower id."""

    longest: Longest = Longest()

    @property
    def width(self) -> int:
        return 1

    def run(self, model, requests, allowed):
        # a beam of one is greedy search, and runs by tensors alone
        if isinstance(model, Ready):
            return Beam(1, longest=self.longest).run(model, requests, allowed)
        return super().run(model, requests, allowed)

    def choose(self, scores, rows):
        return scores.argmax(-1)
