"""SplitMix64: reproducible random draws, the same on every machine, process and version of Python.

The generator is that of Steele, Lea and Flood (2014); texts are hashed by FNV-1a. Python's own `random` and `hash`
are never used: the first has a state that others share, the second changes from one process to the next. To shuffle is
to sort by random keys: key number n of a seed is computed without those before it, so training can resume anywhere.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # the miniature world loads without numpy, in milliseconds
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

MASK = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix64(value: int) -> int:
    """The finaliser of SplitMix64: every input bit flips about half of the output bits."""
    value &= MASK
    value = ((value ^ (value >> 30)) * MIX_1) & MASK
    value = ((value ^ (value >> 27)) * MIX_2) & MASK
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


# --- random keys, to sort by ---


def combine_seeds(*numbers: int) -> int:
    """One seed of several numbers: a run's seed, its epoch, the purpose."""
    state = 0
    for number in numbers:
        state = random_key(state ^ (number & MASK), 0)
    return state


def random_key(seed: int, n: int) -> int:
    """Key number n of a seed."""
    return mix64(seed + (n + 1) * GOLDEN_GAMMA)


def random_keys(seed: int, count: int) -> "NDArray[np.uint64]":
    """Keys 0 to count - 1 of a seed, at once."""
    import numpy as np

    return random_keys_at(seed, np.arange(count, dtype=np.uint64))


def random_keys_at(seed: "int | NDArray[np.uint64]", numbers: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """The keys with these numbers, at once; of one seed, or each of its own."""
    import numpy as np

    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        return mix64_all(
            (np.uint64(seed & MASK) if isinstance(seed, int) else seed)
            + (numbers + np.uint64(1)) * np.uint64(GOLDEN_GAMMA)
        )


def mix64_all(values: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """`mix64` of every number of an array."""
    import numpy as np

    values = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MIX_2)
    return values ^ (values >> np.uint64(31))


# --- a random order that is computed, not stored ---


FEISTEL_ROUNDS = 8


def permute(
    seed: "int | NDArray[np.uint64]", count: "int | NDArray[np.int64]", numbers: "NDArray[np.int64]"
) -> "NDArray[np.int64]":
    """Where these numbers below `count` come in a random order of all: a Feistel network with cycle walking.

    Luby and Rackoff (1988); Black and Rogaway (2002): what falls outside of the range is permuted again. It takes no
    memory, whatever the count. Each number may have a seed and a count of its own.

    Examples:
        >>> import numpy as np
        >>> permute(1, 10, np.arange(10)).tolist()
        [4, 9, 5, 2, 0, 6, 8, 3, 1, 7]
        >>> permute(1, 10**12, np.array([0, 1])).tolist()
        [822324384773, 710765085750]
    """
    import numpy as np

    places = np.array(numbers, dtype=np.uint64)
    counts = np.broadcast_to(np.asarray(count, dtype=np.int64), places.shape)
    seeds = np.broadcast_to(np.asarray(seed, dtype=np.uint64), places.shape)
    bits = np.maximum(np.frexp((counts - 1).astype(np.float64))[1], 2)  # those of count - 1
    low = (bits // 2).astype(np.uint64)
    high_mask, low_mask = ((np.uint64(1) << size) - np.uint64(1) for size in (bits.astype(np.uint64) - low, low))
    keys = round_keys(seeds, np.arange(FEISTEL_ROUNDS, dtype=np.uint64)[:, None])
    outside = np.arange(len(places))
    while len(outside):
        some, shift = places[outside], low[outside]
        left, right = some >> shift, some & low_mask[outside]
        for step in range(0, FEISTEL_ROUNDS, 2):  # both halves in turn, so that they may differ in size
            left = left ^ (random_keys_at(keys[step, outside], right) & high_mask[outside])
            right = right ^ (random_keys_at(keys[step + 1, outside], left) & low_mask[outside])
        places[outside] = some = (left << shift) | right
        outside = outside[some >= counts[outside].astype(np.uint64)]
    return places.astype(np.int64)


def keyed_hash(seeds: "NDArray[np.uint64]", step: int, numbers: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """The round function: of each number, by its seed and the number of the round."""
    import numpy as np

    return random_keys_at(round_keys(seeds, np.uint64(step)), numbers)


def round_keys(seeds: "NDArray[np.uint64]", steps: "np.uint64 | NDArray[np.uint64]") -> "NDArray[np.uint64]":
    """The seeds of these rounds."""
    import numpy as np

    with np.errstate(over="ignore"):
        return mix64_all(seeds + (steps + np.uint64(1)) * np.uint64(GOLDEN_GAMMA))
