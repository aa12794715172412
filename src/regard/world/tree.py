"""What is to be said, before any language says it: the nodes of a derivation.

Nodes compare by identity, because a sentence may well hold two equal ones (the cat saw the cat).
"""

from dataclasses import dataclass
from typing import Literal

from regard.world.entries import Adjective, Noun, Verb
from regard.world.small import Adverb, Conjunction, Determiner, Preposition

Tense = Literal["present", "past", "future"]
Gap = Literal["none", "subject", "object"]


@dataclass(frozen=True, eq=False, slots=True)
class Quality:
    """small, or very small."""

    adjective: Adjective
    very: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """in the garden."""

    preposition: Preposition
    phrase: "Thing"


@dataclass(frozen=True, eq=False, slots=True)
class Thing:
    """the small black cat in the garden; the cat that sleeps; Anna; she."""

    noun: Noun
    determiner: Determiner | None = None
    plural: bool = False
    qualities: tuple[Quality, ...] = ()
    place: Place | None = None
    relative: "Clause | None" = None
    # The quality that settles an ambiguous noun; without one, the word that governs the phrase does.
    settled_by: Quality | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Both:
    """the cat and the dog."""

    left: Thing
    right: Thing


Phrase = Thing | Both


@dataclass(frozen=True, eq=False, slots=True)
class Clause:
    """Somebody does something (verb) or is somehow (quality). A relative clause has a gap where its noun would be."""

    verb: Verb | None
    tense: Tense
    negated: bool = False
    subject: Phrase | None = None
    object: Phrase | None = None
    receiver: Thing | None = None
    goal: Thing | None = None
    place: Place | None = None
    adverb: Adverb | None = None
    fronted: bool = False
    quality: Quality | None = None
    gap: Gap = "none"


@dataclass(frozen=True, eq=False, slots=True)
class Joint:
    """The conjunction between two clauses."""

    conjunction: Conjunction


@dataclass(frozen=True, eq=False, slots=True)
class Whole:
    """Clauses with a joint between each two."""

    clauses: tuple[Clause, ...]
    joints: tuple[Joint, ...] = ()


def things(phrase: Phrase) -> tuple[Thing, ...]:
    return (phrase.left, phrase.right) if isinstance(phrase, Both) else (phrase,)


def is_plural(phrase: Phrase) -> bool:
    return isinstance(phrase, Both) or phrase.plural


def is_first_person(phrase: Phrase) -> bool:
    return isinstance(phrase, Thing) and phrase.noun.first_person


def is_definite(phrase: Phrase) -> bool:
    return all(thing.determiner is None or thing.determiner.definite for thing in things(phrase))
