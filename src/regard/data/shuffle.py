"""Shuffling: random sort keys by seed, the same on every machine and in every version.

The keys are SplitMix64 (Steele, Lea and Flood 2014): 64-bit integers, no state, no library generator whose stream may
change. Key number n of a seed is computed without those before it, so training can resume anywhere.
"""

import numpy as np
from numpy.typing import NDArray

MASK = 2**64 - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def combine_seeds(*numbers: int) -> int:
    """One seed of several numbers: a run's seed, its epoch, the purpose."""
    state = 0
    for number in numbers:
        state = random_key(state ^ (number & MASK), 0)
    return state


def random_key(seed: int, n: int) -> int:
    """Key number n of a seed."""
    mixed = (seed + (n + 1) * GOLDEN_GAMMA) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * MIX_1) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * MIX_2) & MASK
    return mixed ^ (mixed >> 31)


def random_keys(seed: int, count: int) -> NDArray[np.uint64]:
    """Keys 0 to count - 1 of a seed, at once."""
    return random_keys_at(seed, np.arange(count, dtype=np.uint64))


def random_keys_at(seed: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The keys with these numbers, at once."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        mixed = np.uint64(seed & MASK) + (numbers + np.uint64(1)) * np.uint64(GOLDEN_GAMMA)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(MIX_1)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(MIX_2)
        return mixed ^ (mixed >> np.uint64(31))
