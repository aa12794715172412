"""Lexicon: selectional restrictions of verbs and adjectives, ambiguous words, and the splits of compositions."""

from functools import cache
from types import MappingProxyType
from typing import Literal

from regard.world.splitmix import hash_text
from regard.world.word_tables import ADJECTIVES, NAMES, NOUNS, VERBS, Adjective, Noun, Verb

Split = Literal["train", "valid", "test"]
"""A part of the world: train, valid or test.

Examples:
    >>> split: Split = "test"
    >>> World(seed=0).sentence(0, split).text()
    'this car that arrives is very clean'
"""
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
"""The parts of the world: what is held out of train is the same in every world.

Examples:
    >>> SPLITS
    ('train', 'valid', 'test')
"""
Entry = Noun | Verb | Adjective
QUALITY = 2
# A noun that few verbs select is drawn more often, up to a bound.
COMMON = 60_000
MAX_DRAW_WEIGHT = 48


def check_request(number: int, split: str, things: str) -> None:
    """Of a thing by number and split; `things` names it in the message."""
    if split not in SPLITS:
        raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
    if number < 0:
        raise ValueError(f"{things} are counted from 0, not from {number}")


def english_forms(entry: Entry) -> tuple[str, ...]:
    """The English words of an entry."""
    if isinstance(entry, Adjective):
        return (entry.en,)
    return entry.en if isinstance(entry, Verb) or entry.countable else entry.en[:1]


def _senses() -> MappingProxyType[str, tuple[Entry, ...]]:
    senses: dict[str, list[Entry]] = {}
    for entry in (*NOUNS, *VERBS, *ADJECTIVES):
        for form in dict.fromkeys(english_forms(entry)):
            senses.setdefault(form, []).append(entry)
    return MappingProxyType({form: tuple(entries) for form, entries in senses.items() if len(entries) > 1})


# Every ambiguous English form with its entries.
SENSES = _senses()
"""English words with several senses, each sense by its entry in the lexicon.

Examples:
    >>> [sense.key for sense in SENSES["light"]]
    ['light.noun', 'light.verb', 'light.adj']
"""


# The keys of all ambiguous entries.
AMBIGUOUS = frozenset(entry.key for entries in SENSES.values() for entry in entries)


@cache
def composition_split(first: str, second: str) -> Split:
    """Where a composition may occur. One in ten is held out for each of valid and test, in every world alike.

    None with an ambiguous word is held out: its sense could not be learnt.

    Examples:
        >>> composition_split("black", "cat"), composition_split("black", "dog")
        ('valid', 'train')
    """
    if {first, second} & AMBIGUOUS:
        return "train"
    return split_by_hash(f"{first} + {second}")


def split_by_hash(text: str) -> Split:
    """One text in ten for each of valid and test."""
    draw = hash_text(text) % 10
    return "test" if draw == 0 else "valid" if draw == 1 else "train"


def _lemma(entry: Entry, language: str) -> str:
    if isinstance(entry, Verb):
        return entry.fr[4] if language == "fr" else entry.de[0] + entry.de[1]
    return entry.fr[0] if language == "fr" else entry.de[0]


@cache
def distinguishing_languages(form: str) -> tuple[str, ...]:
    """The languages that translate the senses of an English form by different words."""
    return tuple(
        language
        for language in ("fr", "de")
        if len({(type(entry), _lemma(entry, language)) for entry in SENSES[form]}) == len(SENSES[form])
    )


@cache
def homographs(noun: Noun) -> tuple[Noun, ...]:
    """Other nouns with the same English form."""
    return tuple(other for other in NOUNS if other.en[0] == noun.en[0] and other is not noun)


def _one_sense(kinds: frozenset[str], noun: Noun) -> bool:
    return not any(kinds & other.kinds for other in homographs(noun))


@cache
def nouns_for(kinds: frozenset[str], *, disambiguates: bool) -> tuple[Noun, ...]:
    """The nouns that suit a slot and have one sense there; a slot that disambiguates nothing takes unambiguous ones."""
    suited = (noun for noun in NOUNS if kinds & noun.kinds)
    return tuple(noun for noun in suited if not homographs(noun) or (disambiguates and _one_sense(kinds, noun)))


@cache
def weighted_nouns_for(kinds: frozenset[str], *, disambiguates: bool) -> tuple[Noun, ...]:
    """The same nouns, each repeated by its weight."""
    return tuple(noun for noun in nouns_for(kinds, disambiguates=disambiguates) for _ in range(_draw_weight(noun)))


@cache
def _draw_weight(noun: Noun) -> int:
    """More for a noun that few verbs and adjectives select, so that none is rare; and more for an ambiguous one.

    Whole numbers throughout: the rounding of a sum of floats differs between versions of Python.
    """
    selected = [verb.objects for verb in VERBS] + [verb.subjects for verb in VERBS]
    selected += [adjective.kinds for adjective in ADJECTIVES if adjective.predicative]
    frequency = sum(10_000 // len(nouns_for(kinds, disambiguates=False)) for kinds in selected if kinds & noun.kinds)
    return min(MAX_DRAW_WEIGHT, max(2, COMMON // max(1, frequency))) * (2 if noun.en[0] in SENSES else 1)


@cache
def ambiguous_nouns_for(kinds: frozenset[str], *, disambiguates: bool) -> tuple[Noun, ...]:
    """The nouns that suit a slot but need an adjective to disambiguate them."""
    unambiguous = nouns_for(kinds, disambiguates=disambiguates)
    return tuple(
        noun for noun in NOUNS if kinds & noun.kinds and noun not in unambiguous and disambiguating_adjectives(noun)
    )


@cache
def disambiguating_adjectives(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that leave an ambiguous noun one sense. Opinions, sizes, ages and colours suit anything."""
    return tuple(word for word in adjectives_for(noun) if word.rank == QUALITY and _one_sense(word.kinds, noun))


@cache
def names_for(kinds: frozenset[str]) -> tuple[Noun, ...]:
    return tuple(name for name in NAMES if kinds & name.kinds)


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that suit a noun."""
    return tuple(adjective for adjective in ADJECTIVES if adjective.kinds & noun.kinds)


@cache
def verbs_with_subject(noun: Noun) -> tuple[Verb, ...]:
    """The verbs that the noun can be the subject of, except "die": the sentence may go on about it."""
    return tuple(verb for verb in VERBS if verb.subjects & noun.kinds and verb.key != "die")


@cache
def verbs_with_object(noun: Noun) -> tuple[Verb, ...]:
    """The verbs that the noun can be the object of."""
    return tuple(verb for verb in VERBS if verb.objects & noun.kinds and not verb.receives)
