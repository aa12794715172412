"""Text in; ids out, and back: what every tokeniser does, and the two whose pieces are words or characters.

The special ids are the same everywhere and stand for no text: a sentence that says "<s>" is made of ordinary pieces.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from regard.text.files import write_whole
from regard.text.normal import Normal

PAD, BOS, EOS, UNK = range(4)
SPECIALS = 4
FORMAT = "regard tokeniser 1"
BLANKS = str.maketrans({" ": "␣", "\t": "⇥", "\n": "↵"})


class Tokeniser(ABC):
    """Abstract. `decode(encode(text))` is `normal.apply(text)`, except where a tokeniser says that it loses words."""

    kind: str
    normal: Normal

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ids there are, with the special ones."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of the text alone, without a beginning or an end."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text that the ids stand for; special ids stand for none."""

    @abstractmethod
    def tokens(self, text: str) -> list[str]:
        """The pieces as a person reads them, one for each id."""

    @abstractmethod
    def word_of(self, text: str) -> list[int]:
        """For each id, which word of `normal.apply(text).split()` it belongs to.

        A blank belongs to the word behind it, at the end to the last; a text of blanks alone counts as one word.
        """

    @abstractmethod
    def learnt(self) -> dict[str, Any]:
        """What `save` writes beside the kind and the normal form."""

    def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def save(self, path: str | Path) -> None:
        """One readable JSON file; `load_tokeniser` reads it."""
        held = {"format": FORMAT, "kind": self.kind, "normal": asdict(self.normal), **self.learnt()}
        write_whole(path, json.dumps(held, ensure_ascii=False, indent=1) + "\n")

    def checked(self, ids: Iterable[int]) -> list[int]:
        """The ids as whole numbers, unless there is one that the vocabulary does not have."""
        ids = [int(one) for one in ids]
        if strange := [one for one in ids if not 0 <= one < self.size]:
            raise ValueError(f"id {strange[0]} is not in this vocabulary of {self.size}; was it written by another?")
        return ids


@dataclass(frozen=True)
class Words(Tokeniser):
    """Whatever stands between blanks is a word. Words outside the vocabulary are lost: they become <unk>.

    Known words come back joined by single blanks.
    """

    vocabulary: tuple[str, ...] = field(repr=False)
    normal: Normal = Normal()
    kind = "words"

    def __post_init__(self):
        distinct(self.vocabulary, "word")
        if broken := [word for word in self.vocabulary if word.split() != [word]]:
            raise ValueError(f"{broken[0]!r} cannot be a word: a word is not empty and has no blanks inside")

    @staticmethod
    def train(
        texts: Iterable[str], *, size: int | None = None, min_count: int = 1, normal: Normal = Normal()
    ) -> "Words":
        """The most frequent words, at most `size` ids with the special ones; equals stand in the order of the code."""
        counts = Counter(word for text in some(texts) for word in normal.apply(text).split())
        return Words(frequent(counts, None if size is None else size - SPECIALS, min_count), normal)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: at for at, word in enumerate(self.vocabulary, SPECIALS)}

    @property
    def size(self):
        return SPECIALS + len(self.vocabulary)

    def encode(self, text):
        return [self._ids.get(word, UNK) for word in self.normal.apply(text).split()]

    def decode(self, ids):
        kept = [one for one in self.checked(ids) if one >= UNK]
        return " ".join("<unk>" if one == UNK else self.vocabulary[one - SPECIALS] for one in kept)

    def tokens(self, text):
        return [word if word in self._ids else f"<unk:{word}>" for word in self.normal.apply(text).split()]

    def word_of(self, text):
        return list(range(len(self.normal.apply(text).split())))

    def learnt(self):
        return {"vocabulary": list(self.vocabulary)}


class Spelt(Tokeniser):
    """Abstract: every piece spells some bytes, any text can be spelt, and so nothing is ever lost or unknown."""

    before = ""
    """What is put before every text, and taken away again."""

    @property
    @abstractmethod
    def pieces(self) -> tuple[bytes, ...]:
        """What the ids after the special ones spell."""

    @property
    def size(self):
        return SPECIALS + len(self.pieces)

    def spell(self, ids: Iterable[int]) -> list[bytes]:
        return [self.pieces[one - SPECIALS] for one in self.checked(ids) if one >= SPECIALS]

    def decode(self, ids):
        # A model may write half of a character; what it wrote must still be shown.
        return b"".join(self.spell(ids)).decode("utf-8", errors="replace").removeprefix(self.before)

    def word_of(self, text):
        spelt, text = self.spell(self.encode(text)), self.before + self.normal.apply(text)
        owners = [word for character, word in zip(text, words_at(text), strict=True) for _ in character.encode()]
        return [owners[start] for start in starts(spelt)]


@dataclass(frozen=True)
class Characters(Spelt):
    """A piece is a character. Characters outside the vocabulary are spelt in bytes of UTF-8, so nothing is lost."""

    vocabulary: str = field(repr=False)
    normal: Normal = Normal()
    kind = "characters"

    def __post_init__(self):
        distinct(self.vocabulary, "character")

    @staticmethod
    def train(
        texts: Iterable[str], *, size: int | None = None, min_count: int = 1, normal: Normal = Normal()
    ) -> "Characters":
        """The most frequent characters, beside the 256 bytes; at most `size` ids in all."""
        counts = Counter(character for text in some(texts) for character in normal.apply(text))
        return Characters("".join(frequent(counts, None if size is None else size - SPECIALS - 256, min_count)), normal)

    @cached_property
    def pieces(self):  # type: ignore[override]
        return (*(bytes([one]) for one in range(256)), *(character.encode() for character in self.vocabulary))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: at for at, character in enumerate(self.vocabulary, SPECIALS + 256)}

    def encode(self, text):
        return [one for character in self.normal.apply(text) for one in self._spelling(character)]

    def _spelling(self, character: str) -> list[int]:
        known = self._ids.get(character)
        return [SPECIALS + byte for byte in character.encode()] if known is None else [known]

    def tokens(self, text):
        return [readable(piece) for piece in self.spell(self.encode(text))]

    def learnt(self):
        return {"vocabulary": self.vocabulary}


# --- what the tokenisers share ---


def some(texts: Iterable[str]) -> Iterator[str]:
    """The texts, of which there must be one."""
    if isinstance(texts, str):
        raise ValueError(f"a vocabulary is learnt from many texts, not from the one string {texts[:20]!r}; give a list")
    empty = True
    for text in texts:
        empty = False
        yield text
    if empty:
        raise ValueError("no text to learn a vocabulary from: the corpus is empty")


def frequent(counts: Counter[str], size: int | None, min_count: int) -> tuple[str, ...]:
    if (size is not None and size < 0) or min_count < 1:
        raise ValueError(f"min_count={min_count} and the size must be positive and leave room for the special ids")
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
    return tuple(piece for piece in ranked if counts[piece] >= min_count)[:size]


def distinct(pieces: Iterable[str], what: str) -> None:
    if twice := [piece for piece, times in Counter(pieces).items() if times > 1]:
        raise ValueError(f"the {what} {twice[0]!r} stands twice in the vocabulary")


def starts(pieces: list[bytes]) -> list[int]:
    """At which byte of the whole each piece starts."""
    return list(accumulate(map(len, pieces), initial=0))[:-1]


def words_at(text: str) -> list[int]:
    """For each character, which word it belongs to; see `Tokeniser.word_of`."""
    begins = [not character.isspace() and (at == 0 or text[at - 1].isspace()) for at, character in enumerate(text)]
    begun, last = list(accumulate(begins, initial=0))[1:], max(sum(begins) - 1, 0)
    return [
        min(so_far, last) if character.isspace() else so_far - 1 for character, so_far in zip(text, begun, strict=True)
    ]


def readable(piece: bytes) -> str:
    """A piece as a person reads it: blanks as signs, and half a character byte by byte."""
    try:
        return piece.decode("utf-8").translate(BLANKS)
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in piece)
