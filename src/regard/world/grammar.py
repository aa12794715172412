"""Grammar: derivation trees of the synchronous grammar, sampled by SplitMix64.

Nodes compare by identity, because a sentence may hold two equal ones (the cat saw the cat).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from regard.world.lexicon import (
    ADJECTIVES,
    ADVERBS,
    AND,
    BECAUSE,
    BUT,
    DEFINITE,
    EVERY,
    OWNERS,
    PLURAL,
    PREPOSITIONS,
    PRONOUNS,
    QUALITY,
    SENSES,
    SINGULAR,
    THE,
    TIMES,
    VERBS,
    Adjective,
    Adverb,
    Conjunction,
    Determiner,
    Noun,
    Preposition,
    Split,
    Verb,
    adjectives_for,
    ambiguous_nouns_for,
    composition_split,
    disambiguating_adjectives,
    names_for,
    verbs_with_object,
    verbs_with_subject,
    weighted_nouns_for,
)
from regard.world.splitmix import SplitMix64

# --- derivations ---


Tense = Literal["present", "past", "future"]
Gap = Literal["none", "subject", "object"]


@dataclass(frozen=True, eq=False, slots=True)
class AdjectivePhrase:
    """small, or very small."""

    adjective: Adjective
    very: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class PrepositionalPhrase:
    """in the garden."""

    preposition: Preposition
    phrase: "NounPhrase"


@dataclass(frozen=True, eq=False, slots=True)
class NounPhrase:
    """the small black cat in the garden; the cat that sleeps; Anna; she."""

    noun: Noun
    determiner: Determiner | None = None
    plural: bool = False
    adjective_phrases: tuple[AdjectivePhrase, ...] = ()
    place: PrepositionalPhrase | None = None
    relative: "Clause | None" = None
    # The adjective that disambiguates the noun; without one, the governor of the phrase does.
    disambiguated_by: AdjectivePhrase | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Coordination:
    """the cat and the dog."""

    left: NounPhrase
    right: NounPhrase


Phrase = NounPhrase | Coordination


@dataclass(frozen=True, eq=False, slots=True)
class Clause:
    """A verbal clause (verb) or a copular one (quality). A relative clause has a gap where its noun would be."""

    verb: Verb | None
    tense: Tense
    negated: bool = False
    subject: Phrase | None = None
    object: Phrase | None = None
    receiver: NounPhrase | None = None
    goal: NounPhrase | None = None
    place: PrepositionalPhrase | None = None
    adverb: Adverb | None = None
    fronted: bool = False
    quality: AdjectivePhrase | None = None
    gap: Gap = "none"


@dataclass(frozen=True, eq=False, slots=True)
class ClauseLink:
    """The conjunction between two clauses."""

    conjunction: Conjunction


@dataclass(frozen=True, eq=False, slots=True)
class Derivation:
    """Clauses with a link between each two."""

    clauses: tuple[Clause, ...]
    clause_links: tuple[ClauseLink, ...] = ()


def noun_phrases(phrase: Phrase) -> tuple[NounPhrase, ...]:
    return (phrase.left, phrase.right) if isinstance(phrase, Coordination) else (phrase,)


def is_plural(phrase: Phrase) -> bool:
    return isinstance(phrase, Coordination) or phrase.plural


def is_first_person(phrase: Phrase) -> bool:
    return isinstance(phrase, NounPhrase) and phrase.noun.first_person


def is_definite(phrase: Phrase) -> bool:
    return all(
        noun_phrase.determiner is None or noun_phrase.determiner.definite for noun_phrase in noun_phrases(phrase)
    )


# --- sampling of words ---


Option = TypeVar("Option")
TRIES = 12
COLOUR = 4
# Verbs with a form that is also another word.
AMBIGUOUS_VERBS = tuple(verb for verb in VERBS if any(form in SENSES for form in verb.en))


class DerivationError(Exception):
    """The draws cannot be completed to a sentence; the next attempt draws others."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The position of a phrase: the kinds it takes, and the word it makes a composition with."""

    kinds: frozenset[str]
    partner: str = ""
    subject: bool = False
    definite: bool = False
    tail: bool = True
    coordination: bool = False
    allows_every: bool = True
    # Whether the governor of the phrase disambiguates a noun.
    disambiguates: bool = True

    @property
    def min_words(self) -> int:
        """One word will do for a person (a name, a pronoun); other nouns need a determiner."""
        return 1 if "person" in self.kinds else 2


class WordSampler:
    """Draws the words of one sentence."""

    def __init__(self, rng: SplitMix64, split: Split):
        self.rng = rng
        self.split = split

    def draw_composition(self, options: Sequence[Option], pair: Callable[[Option], tuple[str, str]]) -> Option:
        """An option whose composition may occur in this split; outside train often one that occurs there only."""
        if not options:
            raise DerivationError
        if self.split != "train" and self.rng.bernoulli(50):
            start = self.rng.randbelow(len(options))
            for option in (*options[start:], *options[:start]):
                if composition_split(*pair(option)) == self.split:
                    return option
        for _ in range(TRIES):
            option = self.rng.choice(options)
            if composition_split(*pair(option)) in ("train", self.split):
                return option
        raise DerivationError

    def draw_verb(self, subject: Noun | None) -> Verb:
        if subject is not None:
            options = verbs_with_subject(subject)
            if not options:
                raise DerivationError
            return self.rng.choice(options)
        return self.rng.choice(AMBIGUOUS_VERBS if self.rng.bernoulli(12) else VERBS)

    def draw_adverb(self, verb: Verb, tense: Tense) -> Adverb:
        if self.rng.bernoulli(40):
            return self.rng.choice([adverb for adverb in TIMES if tense in adverb.tenses])
        options = [adverb for adverb in ADVERBS if adverb.group in verb.features]
        if not options:
            raise DerivationError
        return self.rng.choice(options)

    def draw_person(self, slot: Slot) -> NounPhrase:
        if slot.subject and self.rng.bernoulli(45):
            pronoun = self.rng.choice(PRONOUNS)
            return NounPhrase(pronoun, plural=pronoun.plural_only)
        names = names_for(slot.kinds)
        if not names:
            raise DerivationError
        return NounPhrase(
            self.draw_composition(names, lambda name: (slot.partner, name.key))
            if slot.partner
            else self.rng.choice(names)
        )

    def draw_noun(self, slot: Slot, adjectives: int) -> tuple[Noun, Adjective | None]:
        """A noun for the slot; where the slot leaves it two senses, with the adjective that disambiguates it."""
        if adjectives and self.rng.bernoulli(15):
            ambiguous = ambiguous_nouns_for(slot.kinds, disambiguates=slot.disambiguates)
            if ambiguous:
                noun = self.draw_suited_noun(ambiguous, slot)
                return noun, self.draw_adjective(noun, disambiguating_adjectives(noun))
        return self.draw_suited_noun(weighted_nouns_for(slot.kinds, disambiguates=slot.disambiguates), slot), None

    def draw_suited_noun(self, nouns: Sequence[Noun], slot: Slot) -> Noun:
        return (
            self.draw_composition(nouns, lambda noun: (slot.partner, noun.key))
            if slot.partner
            else self.rng.choice(nouns)
        )

    def draw_adjective(self, noun: Noun, adjectives: Sequence[Adjective]) -> Adjective:
        """One of the adjectives for the noun; an ambiguous one more often."""
        some = [adjective for adjective in adjectives if adjective.en in SENSES] if self.rng.bernoulli(20) else ()
        return self.draw_composition(some or adjectives, lambda adjective: (adjective.key, noun.key))

    def draw_adjective_phrases(self, noun: Noun, words: int, first: Adjective | None) -> tuple[AdjectivePhrase, ...]:
        """So many words before the noun: adjectives in their English order, possibly one of them with "very"."""
        if not words:
            return ()
        one = first if first is not None else self.draw_adjective(noun, adjectives_for(noun))
        if words == 1:
            return (AdjectivePhrase(one),)
        if words == 2 and one.gradable and self.rng.bernoulli(50):
            return (AdjectivePhrase(one, very=True),)
        outer, inner = sorted(
            (one, self.draw_adjective(noun, [other for other in adjectives_for(noun) if _side_by_side(one, other)])),
            key=lambda adjective: adjective.rank,
        )
        if words == 3 and not outer.gradable:
            raise DerivationError
        return AdjectivePhrase(outer, very=words == 3), AdjectivePhrase(inner)


def _side_by_side(one: Adjective, other: Adjective) -> bool:
    """Two adjectives that French, too, can put with one noun: on either side of it, or behind it with a colour."""
    if one.rank == other.rank or one.en == other.en:
        return False
    return one.precedes_noun != other.precedes_noun or (not one.precedes_noun and max(one.rank, other.rank) >= COLOUR)


# --- sampling of derivations ---


SHORTEST = 3
LONGEST_CLAUSE = 15
LONGEST_SUBJECT = 8
# A determiner, two adjectives, one of them with "very", and the noun.
LONGEST_PLAIN = 5
# Kinds of location, not of meaning.
LOCATION_KINDS = frozenset(["in", "on", "under", "by", "host", "site"])
TENSE_WEIGHTS: dict[Tense, int] = {"past": 9, "present": 8, "future": 3}
TENSES: tuple[Tense, ...] = tuple(tense for tense, times in TENSE_WEIGHTS.items() for _ in range(times))
PREDICATES = tuple(adjective for adjective in ADJECTIVES if adjective.predicative)
AMBIGUOUS_PREDICATES = tuple(adjective for adjective in PREDICATES if adjective.en in SENSES)


class Grammar:
    """Draws the derivation of one sentence."""

    def __init__(self, rng: SplitMix64, split: Split):
        self.rng = rng
        self.sampler = WordSampler(rng, split)

    def draw_derivation(self, size: int) -> Derivation:
        """One clause, or as many as it takes."""
        sizes = []
        while size > LONGEST_CLAUSE or (size >= 9 and self.rng.bernoulli(30)):
            sizes.append(4 + self.rng.randbelow(min(9, size - 7)))
            size -= sizes[-1] + 1
        links = [ClauseLink(self.rng.choice((AND, AND, BUT))) for _ in sizes]
        if links and self.rng.bernoulli(35):
            links[-1] = ClauseLink(BECAUSE)
        # Beside "and" between clauses, one between nouns could be mistaken for it.
        alone = not links
        clauses = [self.draw_clause(part, main=True) for part in sizes]
        clauses.append(self.draw_clause(size, main=alone or not links[-1].conjunction.final, alone=alone))
        return Derivation(tuple(clauses), tuple(links))

    def draw_clause(self, size: int, *, main: bool = False, alone: bool = False, gap: Noun | None = None) -> Clause:
        """A clause of so many words; with a gap, a relative clause whose subject is that noun."""
        for _ in range(TRIES):
            try:
                if self.rng.bernoulli(18):
                    return self.draw_copular_clause(size, alone=alone, gap=gap)
                return self.draw_verb_clause(size, main=main, alone=alone, gap=gap)
            except DerivationError:
                continue
        raise DerivationError

    def draw_copular_clause(self, size: int, *, alone: bool, gap: Noun | None) -> Clause:
        """A copular clause: subject, be, adjective."""
        tense, negated = self.rng.choice(TENSES), self.rng.bernoulli(20)
        left = size - 2 - (tense == "future") - negated
        if gap is None:
            adjective = self.rng.choice(AMBIGUOUS_PREDICATES if self.rng.bernoulli(7) else PREDICATES)
        else:
            fitting = [adjective for adjective in adjectives_for(gap) if adjective.predicative]
            adjective = self.sampler.draw_composition(fitting, lambda adjective: (adjective.key, gap.key))
        very = adjective.gradable and (left == 1 if gap is not None else left > 1 and self.rng.bernoulli(20))
        quality, left = AdjectivePhrase(adjective, very), left - very
        if gap is not None:
            if left:
                raise DerivationError
            return Clause(None, tense, negated, quality=quality, gap="subject")
        slot = Slot(
            adjective.kinds,
            adjective.key,
            subject=True,
            coordination=alone,
            allows_every=not negated,
            disambiguates=adjective.rank == QUALITY,
        )
        if not slot.min_words <= left <= LONGEST_SUBJECT:
            raise DerivationError
        subject = self.draw_phrase(left, slot)
        if any(
            _clash(adjective, phrase.adjective)
            for noun_phrase in noun_phrases(subject)
            for phrase in noun_phrase.adjective_phrases
        ):
            raise DerivationError
        return Clause(None, tense, negated, subject=subject, quality=quality)

    def draw_verb_clause(self, size: int, *, main: bool, alone: bool, gap: Noun | None) -> Clause:
        """A verbal clause: the words are shared out among the verb, its phrases, an adverb and a place."""
        verb, tense, negated = self.sampler.draw_verb(gap), self.rng.choice(TENSES), self.rng.bernoulli(14)
        disambiguates = "loose" not in verb.features
        doer = Slot(
            verb.subjects,
            subject=True,
            coordination=alone,
            tail=main,
            allows_every=not negated,
            disambiguates=disambiguates,
        )
        taken = Slot(verb.objects, verb.key, coordination=alone and not negated, disambiguates=disambiguates)
        goes = verb.goal is not None and ("lost" in verb.features or self.rng.bernoulli(60))
        spare = size - count_verb_words(verb, tense, negated=negated) - (doer.min_words if gap is None else 0)
        spare -= taken.min_words * bool(verb.objects) + 2 * verb.receives + 3 * goes
        if spare < 0:
            raise DerivationError
        # Behind a noun one could not tell whose adverb it is: the man who waits often sings.
        adverb = self.sampler.draw_adverb(verb, tense) if spare and gap is None and self.rng.bernoulli(25) else None
        timed = adverb is not None and adverb.group == "time"
        fronted = timed and main and self.rng.bernoulli(50)
        # A last phrase with a tail would take the adverb for itself; and German wants manner behind a definite object.
        tail = adverb is None or fronted
        definite = negated or (adverb is not None and not timed)
        spare -= adverb is not None
        happens = "place" in verb.features and spare >= 3 and (adverb is None or timed) and self.rng.bernoulli(75)
        spare -= 3 * happens
        # What is left goes to the phrases: the last one may grow long, the subject within bounds.
        subject = None
        if gap is None:
            bound = min(spare, (LONGEST_SUBJECT if main else LONGEST_PLAIN) - doer.min_words)
            extra = self.rng.randbelow(bound + 1) if verb.objects or goes or happens else bound
            subject, spare = self.draw_phrase(doer.min_words + extra, doer), spare - extra
            if any(
                noun_phrase.relative is not None and noun_phrase.relative.verb is verb
                for noun_phrase in noun_phrases(subject)
            ):
                raise DerivationError
        clause = Clause(verb, tense, negated, subject, adverb=adverb, fronted=fronted, gap="subject" if gap else "none")
        if verb.receives:
            extra = self.rng.randbelow(min(spare, LONGEST_PLAIN - taken.min_words) + 1)
            gift = self.draw_phrase(
                taken.min_words + extra, replace(taken, tail=False, coordination=False, definite=definite)
            )
            receiver = self.draw_noun_phrase(1 + spare - extra, Slot(frozenset(["person"]), tail=tail))
            return replace(clause, object=gift, receiver=receiver)
        if verb.objects:
            taken = replace(taken, tail=tail, definite=definite)
            return replace(clause, object=self.draw_phrase(taken.min_words + spare, taken))
        if goes:
            assert verb.goal is not None
            return replace(clause, goal=self.draw_noun_phrase(2 + spare, Slot(verb.goal.kinds, tail=tail)))
        if happens:
            return replace(clause, place=self.draw_prepositional_phrase(3 + spare, None, tail=tail))
        if spare:
            raise DerivationError
        return clause

    def draw_phrase(self, size: int, slot: Slot) -> Phrase:
        if slot.coordination and 2 * slot.min_words < size <= 8 and self.rng.bernoulli(18):
            inner = replace(slot, tail=False, subject=False, disambiguates=False)
            left = slot.min_words + self.rng.randbelow(size - 2 * slot.min_words)
            if max(left, size - 1 - left) <= LONGEST_PLAIN:
                one, other = self.draw_noun_phrase(left, inner), self.draw_noun_phrase(size - 1 - left, inner)
                # Only the first is governed by the verb itself, so neither may need the verb to be understood.
                if one.noun.en[0] in SENSES or other.noun.en[0] in SENSES or not _alike(one.noun, other.noun):
                    raise DerivationError
                return Coordination(one, other)
        return self.draw_noun_phrase(size, slot)

    def draw_noun_phrase(self, size: int, slot: Slot) -> NounPhrase:
        if size == 1:
            return self.sampler.draw_person(slot)
        if size > LONGEST_PLAIN and not slot.tail:
            raise DerivationError
        tailed = slot.tail and size >= 4 and (size > LONGEST_PLAIN or self.rng.bernoulli(65))
        plain = 2 + self.rng.randbelow(min(2, size - 3)) if tailed else size
        noun, disambiguated_by = self.sampler.draw_noun(slot, adjectives=plain - 2)
        plural = noun.countable and self.rng.bernoulli(33)
        if slot.definite or not noun.countable:
            determiner = self.rng.choice(DEFINITE)
        else:
            determiner = self.rng.choice(PLURAL if plural else SINGULAR)
        if (determiner is EVERY and not slot.allows_every) or (determiner in OWNERS and "unowned" in noun.kinds):
            determiner = THE
        qualities = self.sampler.draw_adjective_phrases(noun, plain - 2, disambiguated_by)
        place, relative, left = None, None, size - plain
        if left >= 3 and self.rng.bernoulli(45) and noun.kinds & {"host", "site"}:
            place = self.draw_prepositional_phrase(left, noun, tail=True)
        elif left:
            relative = self.draw_relative_clause(left - 1, noun)
            if relative.quality is not None and any(
                _clash(relative.quality.adjective, quality.adjective) for quality in qualities
            ):
                raise DerivationError
        disambiguating = next((quality for quality in qualities if quality.adjective is disambiguated_by), None)
        return NounPhrase(noun, determiner, plural, qualities, place, relative, disambiguating)

    def draw_prepositional_phrase(self, size: int, host: Noun | None, *, tail: bool) -> PrepositionalPhrase:
        fitting = [p for p in PREPOSITIONS if (p.adverbial if host is None else p.hosts & host.kinds)]
        preposition = self.rng.choice(fitting)
        for _ in range(TRIES):
            phrase = self.draw_noun_phrase(
                size - 1, Slot(preposition.kinds, tail=tail, allows_every=preposition.adverbial, disambiguates=False)
            )
            if phrase.noun is not host:
                return PrepositionalPhrase(preposition, phrase)
        raise DerivationError

    def draw_relative_clause(self, size: int, noun: Noun) -> Clause:
        """A clause about the noun, so many words without its pronoun; the noun is its subject or its object."""
        verbs = verbs_with_object(noun)
        if size >= 2 and verbs and (not verbs_with_subject(noun) or self.rng.bernoulli(45)):
            verb = self.sampler.draw_composition(verbs, lambda verb: (verb.key, noun.key))
            tense, negated = self.rng.choice(TENSES), self.rng.bernoulli(12)
            slot = Slot(
                verb.subjects,
                subject=True,
                tail=False,
                allows_every=not negated,
                disambiguates="loose" not in verb.features,
            )
            left = size - count_verb_words(verb, tense, negated=negated)
            if slot.min_words <= left <= LONGEST_PLAIN:
                return Clause(verb, tense, negated, subject=self.draw_noun_phrase(left, slot), gap="object")
        return self.draw_clause(size, gap=noun)


def _clash(one: Adjective, other: Adjective) -> bool:
    """The same adjective twice, or two sizes, two colours of one noun."""
    return one is other or one.rank == other.rank != QUALITY


def _alike(one: Noun, other: Noun) -> bool:
    """Two different nouns of a kind: the cat and the dog, not the cat and the bridge."""
    return one is not other and bool((one.kinds & other.kinds) - LOCATION_KINDS)


def count_verb_words(verb: Verb, tense: Tense, *, negated: bool) -> int:
    """How many English words the verb takes: ate, will eat, did not eat, turned off."""
    return 1 + (tense == "future") + negated + (negated and tense != "future") + bool(verb.particle)
