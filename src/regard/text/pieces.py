"""The words of a sentence in; the ids of their pieces out, with the way back from pieces to words.

A tagger is given words and must answer for every one of them, whatever a tokeniser makes of it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from regard.text.vocabulary import UNK, Tokeniser

Value = TypeVar("Value")


class Pieces(NamedTuple):
    """The ids of a sentence, and for each word the place of its first piece. The rest follow it up to the next word."""

    ids: list[int]
    firsts: list[int]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each word, where its pieces start and where they stop."""
        return list(pairwise([*self.firsts, len(self.ids)]))

    @property
    def word_of(self) -> list[int]:
        """For each piece, which word it belongs to."""
        return [word for word, (start, stop) in enumerate(self.spans) for _ in range(start, stop)]

    def per_word(self, values: Sequence[Value]) -> list[Value]:
        """Of values for every piece, those of the words: what stands at their first pieces."""
        if len(values) != len(self.ids):
            raise ValueError(f"{len(values)} values for {len(self.ids)} pieces; every piece has one")
        return [values[first] for first in self.firsts]

    def heads(self, heads: Sequence[int]) -> list[int]:
        """The tree of the words as a tree of their pieces: the first stands for the word, the others hang on it."""
        if len(heads) != len(self.firsts):
            raise ValueError(f"{len(heads)} heads for {len(self.firsts)} words; every word has one")
        above = [0 if head == 0 else self.firsts[head - 1] + 1 for head in heads]
        return [
            above[word] if at == self.firsts[word] else self.firsts[word] + 1 for at, word in enumerate(self.word_of)
        ]


def first_pieces(tokeniser: Tokeniser, words: Sequence[str]) -> Pieces:
    """Every word has a piece: if the tokeniser makes nothing of it, an unknown one stands for it.

    Ordinary words give the ids of the sentence with single blanks. A blank that is a piece belongs to the word behind.
    """
    if isinstance(words, str):
        raise ValueError(f"the words of a sentence are a list, not the one string {words[:20]!r}; split it first")
    ids: list[int] = []
    firsts: list[int] = []
    blank = _between(tokeniser)
    for found in tokeniser.encode_all(words):
        firsts.append(len(ids))
        ids += [*(blank if len(firsts) > 1 else []), *(found or [UNK])]
    return Pieces(ids, firsts)


def _between(tokeniser: Tokeniser) -> list[int]:
    """What stands between two words: nothing for tokenisers whose pieces bring their own blank."""
    one, two = tokeniser.encode("x"), tokeniser.encode("x x")
    return two[len(one) : len(two) - len(one)]
