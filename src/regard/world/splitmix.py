"""SplitMix64: reproducible random draws, the same on every machine, process and version of Python.

The generator is that of Steele, Lea and Flood (2014); texts are hashed by FNV-1a. Python's own `random` and `hash`
are never used: the first has a state that others share, the second changes from one process to the next.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MASK = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """The finaliser of SplitMix64: every input bit flips about half of the output bits."""
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def hash_text(text: str) -> int:
    """A 64-bit number that depends on the text alone."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return mix64(value)


class SplitMix64:
    """A random number generator seeded by the numbers alone."""

    def __init__(self, *numbers: int):
        state = 0
        for number in numbers:
            state = mix64(state + GOLDEN_GAMMA + number)
        self.state = state

    def randbelow(self, count: int) -> int:
        """A whole number from 0 to count - 1."""
        self.state = (self.state + GOLDEN_GAMMA) & MASK
        return (mix64(self.state) * count) >> 64

    def choice(self, options: Sequence[T]) -> T:
        return options[self.randbelow(len(options))]

    def bernoulli(self, percent: int) -> bool:
        """True with this probability, in percent."""
        return self.randbelow(100) < percent
