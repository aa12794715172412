"""Short ways to say a derivation, for the tests."""

from regard.world.adjectives import ADJECTIVES
from regard.world.derive import sentence
from regard.world.nouns import NOUNS
from regard.world.sentence import Sentence
from regard.world.small import ADVERBS, NAMES, PREPOSITIONS, PRONOUNS, THE, TIMES, Conjunction, Determiner
from regard.world.tree import Clause, Joint, Place, Quality, Thing, Whole
from regard.world.verbs import VERBS

NOUN = {noun.key: noun for noun in (*NOUNS, *NAMES, *PRONOUNS)}
VERB = {verb.key: verb for verb in VERBS}
ADJECTIVE = {adjective.key: adjective for adjective in ADJECTIVES}
ADVERB = {adverb.en: adverb for adverb in (*ADVERBS, *TIMES)}
PREPOSITION = {preposition.en: preposition for preposition in PREPOSITIONS}


def a(noun: str, *adjectives: str, by: Determiner | None = THE, plural: bool = False, **more) -> Thing:
    """A noun with determiner and adjectives; "very small" is one of them."""
    qualities = [Quality(ADJECTIVE[word.removeprefix("very ")], word.startswith("very ")) for word in adjectives]
    entry = NOUN[noun]
    determiner = by if entry.part == "NOUN" else None
    return Thing(entry, determiner, plural or entry.plural_only, tuple(qualities), **more)


def at(preposition: str, thing: Thing) -> Place:
    return Place(PREPOSITION[preposition], thing)


def does(subject: Thing | None, verb: str, object=None, *, tense="past", adverb: str | None = None, **more) -> Clause:
    said = ADVERB[adverb] if adverb else None
    return Clause(VERB[verb], tense, subject=subject, object=object, adverb=said, **more)


def is_(subject: Thing | None, adjective: str, *, tense="present", **more) -> Clause:
    quality = Quality(ADJECTIVE[adjective.removeprefix("very ")], adjective.startswith("very "))
    return Clause(None, tense, subject=subject, quality=quality, **more)


def say(*parts: Clause | Conjunction) -> Sentence:
    """Clauses and the conjunctions between them."""
    clauses = tuple(part for part in parts if isinstance(part, Clause))
    return sentence(Whole(clauses, tuple(Joint(part) for part in parts if isinstance(part, Conjunction))))
