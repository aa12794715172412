"""A derivation's fruits as plain values: the English sentence, its notes, and its French and German with alignments.

Spelling. Words are lower-case, save what a language always capitalises (names; German nouns). There is no full stop.
The comma occurs in German alone, where subordinate clauses and "aber" demand it, and is a word of its own; so are l',
d', n' and qu' in French. Words are joined by single spaces; `Sentence.text` joins them as people write.

Alignment. Every word of both sides is linked at least once. A verb of two words is linked with both (ate: a, mangé). An
auxiliary meets its own counterpart where there is one (did: a, will: wird), otherwise the verb (does, will: mangera).
ne and pas both meet not, du meets both of the two words it is made of, and a comma meets the word that demands it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LANGUAGES = ("fr", "de")


@dataclass(frozen=True)
class Ambiguity:
    """An English word that can be read in several ways, and the word of the sentence that settles which.

    `languages` are those in which the readings come out as different words.
    """

    at: int
    reading: str
    readings: tuple[str, ...]
    decider: int
    languages: tuple[str, ...]


@dataclass(frozen=True)
class Rendering:
    """The sentence in one other language: its words and the pairs (English index, index here) that belong together."""

    words: tuple[str, ...]
    alignment: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Renderings(Mapping[str, Rendering]):
    """The sentence in every other language of the world, by the language's code."""

    fr: Rendering
    de: Rendering

    def __getitem__(self, language: str) -> Rendering:
        if language == "fr":
            return self.fr
        if language == "de":
            return self.de
        raise KeyError(f"the world speaks en, fr and de, not {language!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(LANGUAGES)

    def __len__(self) -> int:
        return len(LANGUAGES)


@dataclass(frozen=True)
class Sentence:
    """One sentence of the world with everything that is known about it.

    `tags` are UPOS; `heads` are those of CoNLL-U (1-based, 0 is the root); `sentiment` is -1, 0 or 1; `compositions`
    are the pairs (adjective, noun) and (verb, object) by which sentences are held out.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    sentiment: int
    ambiguities: tuple[Ambiguity, ...]
    compositions: tuple[tuple[str, str], ...]
    into: Renderings

    def said(self, language: str) -> tuple[str, ...]:
        """The words in any of the three languages."""
        return self.words if language == "en" else self.into[language].words

    def text(self, language: str = "en") -> str:
        """The sentence as people write it: l'arbre, no space before a comma."""
        return " ".join(self.said(language)).replace("' ", "'").replace(" ,", ",")

    def expected(self, ambiguity: Ambiguity, language: str) -> tuple[str, ...]:
        """The words by which a translation shows that it took the right reading."""
        rendering = self.into[language]
        return tuple(rendering.words[there] for here, there in sorted(rendering.alignment) if here == ambiguity.at)
