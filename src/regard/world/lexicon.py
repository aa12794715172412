"""The tables as questions: which nouns suit a slot, which verbs and adjectives a noun; which words are ambiguous."""

from functools import cache
from types import MappingProxyType
from typing import Literal

from regard.world.adjectives import ADJECTIVES
from regard.world.chance import hashed
from regard.world.entries import Adjective, Noun, Verb
from regard.world.nouns import NOUNS
from regard.world.small import NAMES
from regard.world.verbs import VERBS

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
Entry = Noun | Verb | Adjective
QUALITY = 2
# How often few verbs ask for a noun is made up for, up to a bound.
COMMON = 60_000
MOST_TICKETS = 48


def forms(entry: Entry) -> tuple[str, ...]:
    """The English words of an entry."""
    if isinstance(entry, Adjective):
        return (entry.en,)
    return entry.en if isinstance(entry, Verb) or entry.countable else entry.en[:1]


def _readings() -> MappingProxyType[str, tuple[Entry, ...]]:
    found: dict[str, list[Entry]] = {}
    for entry in (*NOUNS, *VERBS, *ADJECTIVES):
        for form in dict.fromkeys(forms(entry)):
            found.setdefault(form, []).append(entry)
    return MappingProxyType({form: tuple(entries) for form, entries in found.items() if len(entries) > 1})


# Every ambiguous English form with its entries.
READINGS = _readings()


# The keys of all that can be misread.
AMBIGUOUS = frozenset(entry.key for entries in READINGS.values() for entry in entries)


@cache
def split_of(first: str, second: str) -> Split:
    """Where a composition may occur. One in ten is held out for each of valid and test, in every world alike.

    None with an ambiguous word is: which nut one loosens, nobody can know who was never shown it.
    """
    if {first, second} & AMBIGUOUS:
        return "train"
    return hashed_split(f"{first} + {second}")


def hashed_split(text: str) -> Split:
    """One text in ten for each of valid and test."""
    draw = hashed(text) % 10
    return "test" if draw == 0 else "valid" if draw == 1 else "train"


def _lemma(entry: Entry, language: str) -> str:
    if isinstance(entry, Verb):
        return entry.fr[4] if language == "fr" else entry.de[0] + entry.de[1]
    return entry.fr[0] if language == "fr" else entry.de[0]


@cache
def distinguished(form: str) -> tuple[str, ...]:
    """The languages in which the readings of an English form come out as different words."""
    return tuple(
        language
        for language in ("fr", "de")
        if len({(type(entry), _lemma(entry, language)) for entry in READINGS[form]}) == len(READINGS[form])
    )


@cache
def rivals(noun: Noun) -> tuple[Noun, ...]:
    """Other nouns that look the same in English."""
    return tuple(other for other in NOUNS if other.en[0] == noun.en[0] and other is not noun)


def _one_reading(kinds: frozenset[str], noun: Noun) -> bool:
    return not any(kinds & other.kinds for other in rivals(noun))


@cache
def nouns_for(kinds: frozenset[str], *, settles: bool) -> tuple[Noun, ...]:
    """The nouns that suit a slot and can be read in one way only there; a slot that settles nothing takes no others."""
    suited = (noun for noun in NOUNS if kinds & noun.kinds)
    return tuple(noun for noun in suited if not rivals(noun) or (settles and _one_reading(kinds, noun)))


@cache
def drawn_for(kinds: frozenset[str], *, settles: bool) -> tuple[Noun, ...]:
    """The same nouns, each as many times as it shall be in the draw."""
    return tuple(noun for noun in nouns_for(kinds, settles=settles) for _ in range(_tickets(noun)))


@cache
def _tickets(noun: Noun) -> int:
    """More for a noun that few verbs and adjectives ask for, so that none is rare; and more for an ambiguous one.

    Whole numbers throughout: the rounding of a sum of floats differs between versions of Python.
    """
    asked = [verb.objects for verb in VERBS] + [verb.subjects for verb in VERBS]
    asked += [adjective.kinds for adjective in ADJECTIVES if adjective.predicative]
    offers = sum(10_000 // len(nouns_for(kinds, settles=False)) for kinds in asked if kinds & noun.kinds)
    return min(MOST_TICKETS, max(2, COMMON // max(1, offers))) * (2 if noun.en[0] in READINGS else 1)


@cache
def unsettled_for(kinds: frozenset[str], *, settles: bool) -> tuple[Noun, ...]:
    """The nouns that suit a slot but need an adjective to be read in one way."""
    settled = nouns_for(kinds, settles=settles)
    return tuple(noun for noun in NOUNS if kinds & noun.kinds and noun not in settled and settling(noun))


@cache
def settling(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that leave an ambiguous noun one reading. Opinions, sizes, ages and colours suit anything."""
    return tuple(word for word in adjectives_for(noun) if word.rank == QUALITY and _one_reading(word.kinds, noun))


@cache
def names_for(kinds: frozenset[str]) -> tuple[Noun, ...]:
    return tuple(name for name in NAMES if kinds & name.kinds)


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that suit a noun."""
    return tuple(adjective for adjective in ADJECTIVES if adjective.kinds & noun.kinds)


@cache
def verbs_by(noun: Noun) -> tuple[Verb, ...]:
    """What can be told of the noun's doings while it goes on: not that it died."""
    return tuple(verb for verb in VERBS if verb.subjects & noun.kinds and verb.key != "die")


@cache
def verbs_to(noun: Noun) -> tuple[Verb, ...]:
    """What can be done to the noun."""
    return tuple(verb for verb in VERBS if verb.objects & noun.kinds and not verb.receives)
