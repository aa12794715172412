"""N-grams: the ids of words and of hashed n-grams of words, for bag-of-n-grams models.

An n-gram has no entry in a vocabulary: its id is a hash bucket of its words' ids. N-grams may collide, which costs
little while there are many more buckets than n-grams.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.world.splitmix import GOLDEN_GAMMA, mix64_all

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Ngrams:
    """The words and hashed n-grams of a text.

    Args:
        words: the size of the vocabulary.
        longest: 1 is words alone, 2 adds bigrams, 3 adds trigrams.
        buckets: ids for all longer n-grams, after those of the words.
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
        """First the words, then the bigrams, then the trigrams, each from left to right."""
        words = np.asarray(ids, dtype=np.uint64)
        ids_by_length, mixed = [words], words
        for length in range(2, min(self.longest, len(words)) + 1):
            mixed = mix64_all(mixed[:-1] ^ (words[length - 1 :] * np.uint64(GOLDEN_GAMMA)))
            ids_by_length.append(mixed % np.uint64(self.buckets) + np.uint64(self.words))
        return np.concatenate(ids_by_length).astype(np.int64)

    def word_indices(self, words: int) -> list[range]:
        """For each n-gram of a text of so many words, the indices of its words."""
        return [
            range(start, start + length)
            for length in range(1, min(self.longest, words) + 1)
            for start in range(words - length + 1)
        ]
