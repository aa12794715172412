"""A few whole numbers in, reproducible draws out: the same on every machine, process and version of Python.

The generator is SplitMix64 (Steele, Lea and Flood, 2014); texts are hashed by FNV-1a. Python's own `random` and `hash`
are never used: the first has a state that others share, the second changes from one process to the next.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mixed(value: int) -> int:
    """The finaliser of SplitMix64: every bit of the value moves about half the bits of the answer."""
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def hashed(text: str) -> int:
    """A 64-bit number that depends on the text alone."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return mixed(value)


class Chance:
    """A stream of draws that depends on the given numbers alone."""

    def __init__(self, *numbers: int):
        state = 0
        for number in numbers:
            state = mixed(state + GOLDEN + number)
        self.state = state

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1."""
        self.state = (self.state + GOLDEN) & MASK
        return (mixed(self.state) * count) >> 64

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def hits(self, percent: int) -> bool:
        """True in so many of a hundred draws."""
        return self.below(100) < percent
