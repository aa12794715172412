"""Word pieces: the subword tokens of each word of a sentence, and the map from tokens back to words.

A tagger predicts one tag per word, however many tokens the word has.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from regard.data.tokenizers.base import UNK, Tokenizer

Value = TypeVar("Value")


class WordPieces(NamedTuple):
    """The ids of a sentence, and for each word the index of its first piece; the others follow it."""

    ids: list[int]
    first_indices: list[int]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each word, the start and stop of its pieces."""
        return list(pairwise([*self.first_indices, len(self.ids)]))

    @property
    def word_ids(self) -> list[int]:
        """For each piece, which word it belongs to."""
        return [word for word, (start, stop) in enumerate(self.spans) for _ in range(start, stop)]

    def per_word(self, values: Sequence[Value]) -> list[Value]:
        """Of values per piece, those of the words: the value at the first piece."""
        if len(values) != len(self.ids):
            raise ValueError(f"{len(values)} values for {len(self.ids)} pieces; every piece has one")
        return [values[first] for first in self.first_indices]

    def governors(self, word_governors: Sequence[int]) -> list[int]:
        """The dependency tree over pieces: the first piece stands for the word and governs the others."""
        if len(word_governors) != len(self.first_indices):
            raise ValueError(f"{len(word_governors)} governors for {len(self.first_indices)} words; every word has one")
        above = [0 if governor == 0 else self.first_indices[governor - 1] + 1 for governor in word_governors]
        return [
            above[word] if at == self.first_indices[word] else self.first_indices[word] + 1
            for at, word in enumerate(self.word_ids)
        ]


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> WordPieces:
    """Every word has a piece: UNK if the tokenizer gives none.

    Ordinary words give the ids of the sentence with single spaces. A space of its own belongs to the word after it.
    """
    if isinstance(words, str):
        raise ValueError(f"the words of a sentence are a list, not the one string {words[:20]!r}; split it first")
    ids: list[int] = []
    first_indices: list[int] = []
    separator = _separator_ids(tokenizer)
    for pieces in tokenizer.encode_batch(words):
        first_indices.append(len(ids))
        ids += [*(separator if len(first_indices) > 1 else []), *(pieces or [UNK])]
    return WordPieces(ids, first_indices)


def _separator_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids between two words: none for tokenizers whose pieces contain the space."""
    one, two = tokenizer.encode("x"), tokenizer.encode("x x")
    return two[len(one) : len(two) - len(one)]
