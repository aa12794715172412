"""The ids of a text's words in; the ids of its terms out: the words, and the runs of two, three and more of them.

A run has no entry in a vocabulary: its id is a bucket that a fixed mixing of its words' ids falls into. Two runs may
share one, which costs little while there are many more buckets than runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Ngrams:
    """How words become terms.

    Args:
        words: the size of the vocabulary.
        longest: 1 is words alone, 2 adds pairs, 3 adds triples.
        buckets: ids for all longer terms, behind those of the words.
    """

    words: int
    longest: int = 1
    buckets: int = 2**18

    def __post_init__(self):
        for name in ("words", "longest", "buckets"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} should be at least 1")

    @property
    def size(self) -> int:
        """How many ids there are."""
        return self.words if self.longest == 1 else self.words + self.buckets

    def terms(self, ids: Sequence[int]) -> Ids:
        """First the words, then the pairs, then the triples, each from left to right."""
        words = np.asarray(ids, dtype=np.uint64)
        found, mixed = [words], words
        for length in range(2, min(self.longest, len(words)) + 1):
            mixed = stirred(mixed[:-1] ^ (words[length - 1 :] * np.uint64(0x9E3779B97F4A7C15)))
            found.append(mixed % np.uint64(self.buckets) + np.uint64(self.words))
        return np.concatenate(found).astype(np.int64)

    def places(self, words: int) -> list[range]:
        """For each term of a text of so many words, the words it is made of."""
        return [
            range(start, start + length)
            for length in range(1, min(self.longest, words) + 1)
            for start in range(words - length + 1)
        ]


def stirred(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit depends on every other (the end of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
