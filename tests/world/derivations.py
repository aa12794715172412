"""Short ways to say a derivation, for the tests."""

from typing import Any

from regard.world.grammar import (
    AdjectivePhrase,
    Clause,
    ClauseLink,
    Derivation,
    NounPhrase,
    Phrase,
    PrepositionalPhrase,
    Tense,
)
from regard.world.lexicon import (
    ADJECTIVES,
    ADVERBS,
    NAMES,
    NOUNS,
    PREPOSITIONS,
    PRONOUNS,
    THE,
    TIMES,
    VERBS,
    Conjunction,
    Determiner,
)
from regard.world.world import Sentence, build_sentence

NOUN = {noun.key: noun for noun in (*NOUNS, *NAMES, *PRONOUNS)}
VERB = {verb.key: verb for verb in VERBS}
ADJECTIVE = {adjective.key: adjective for adjective in ADJECTIVES}
ADVERB = {adverb.en: adverb for adverb in (*ADVERBS, *TIMES)}
PREPOSITION = {preposition.en: preposition for preposition in PREPOSITIONS}


def a(noun: str, *adjectives: str, by: Determiner | None = THE, plural: bool = False, **more: Any) -> NounPhrase:
    """A noun with determiner and adjectives; "very small" is one of them."""
    qualities = [
        AdjectivePhrase(ADJECTIVE[word.removeprefix("very ")], word.startswith("very ")) for word in adjectives
    ]
    entry = NOUN[noun]
    determiner = by if entry.upos == "NOUN" else None
    return NounPhrase(entry, determiner, plural or entry.plural_only, tuple(qualities), **more)


def at(preposition: str, thing: NounPhrase) -> PrepositionalPhrase:
    return PrepositionalPhrase(PREPOSITION[preposition], thing)


def does(
    subject: Phrase | None,
    verb: str,
    object: Phrase | None = None,
    *,
    tense: Tense = "past",
    adverb: str | None = None,
    **more: Any,
) -> Clause:
    entry = ADVERB[adverb] if adverb else None
    return Clause(VERB[verb], tense, subject=subject, object=object, adverb=entry, **more)


def is_(subject: Phrase | None, adjective: str, *, tense: Tense = "present", **more: Any) -> Clause:
    quality = AdjectivePhrase(ADJECTIVE[adjective.removeprefix("very ")], adjective.startswith("very "))
    return Clause(None, tense, subject=subject, quality=quality, **more)


def say(*parts: Clause | Conjunction) -> Sentence:
    """Clauses and the conjunctions between them."""
    clauses = tuple(part for part in parts if isinstance(part, Clause))
    return build_sentence(
        Derivation(clauses, tuple(ClauseLink(part) for part in parts if isinstance(part, Conjunction)))
    )
