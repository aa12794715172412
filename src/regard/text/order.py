"""A seed and what is to be shuffled in; keys to sort by out, the same on every machine and in every version.

The keys are SplitMix64 (Steele, Lea and Flood 2014): whole numbers of 64 bits, no state, no library's generator whose
stream may change. Key number n of a seed can be had without those before it, which is what resuming needs.
"""

import numpy as np
from numpy.typing import NDArray

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def seeded(*numbers: int) -> int:
    """One seed made of several: a run's seed, its epoch, what is shuffled."""
    state = 0
    for number in numbers:
        state = key(state ^ (number & MASK), 0)
    return state


def key(seed: int, n: int) -> int:
    """Key number n of a seed."""
    mixed = (seed + (n + 1) * STEP) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * FIRST) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * SECOND) & MASK
    return mixed ^ (mixed >> 31)


def keys(seed: int, count: int) -> NDArray[np.uint64]:
    """Keys 0 to count - 1 of a seed, at once."""
    return keys_of(seed, np.arange(count, dtype=np.uint64))


def keys_of(seed: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The keys with these numbers, at once."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        mixed = np.uint64(seed & MASK) + (numbers + np.uint64(1)) * np.uint64(STEP)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(SECOND)
        return mixed ^ (mixed >> np.uint64(31))
