"""A slot in, the words that fill it out: nouns, adjectives, verbs and adverbs that suit each other and the split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from regard.world.chance import Chance
from regard.world.entries import Adjective, Noun, Verb
from regard.world.lexicon import (
    READINGS,
    Split,
    adjectives_for,
    drawn_for,
    names_for,
    settling,
    split_of,
    unsettled_for,
    verbs_by,
)
from regard.world.small import ADVERBS, PRONOUNS, TIMES, Adverb
from regard.world.tree import Quality, Tense, Thing
from regard.world.verbs import VERBS

Option = TypeVar("Option")
TRIES = 12
COLOUR = 4
# Verbs that look like another word.
AMBIGUOUS = tuple(verb for verb in VERBS if any(form in READINGS for form in verb.en))


class Stuck(Exception):
    """The draws led nowhere; the next attempt draws others."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a phrase stands: the kinds it takes, and the word it makes a composition with."""

    kinds: frozenset[str]
    partner: str = ""
    subject: bool = False
    definite: bool = False
    tail: bool = True
    joined: bool = False
    every: bool = True
    # Whether what governs the phrase tells enough to settle an ambiguous noun.
    settles: bool = True

    @property
    def least(self) -> int:
        """One word will do for a person (a name, a pronoun); other nouns need a determiner."""
        return 1 if "person" in self.kinds else 2


class Words:
    """Draws the words of one sentence."""

    def __init__(self, chance: Chance, split: Split):
        self.chance = chance
        self.split = split

    def composed(self, options: Sequence[Option], pair: Callable[[Option], tuple[str, str]]) -> Option:
        """An option whose composition may occur in this split; outside train often one that occurs there only."""
        if not options:
            raise Stuck
        if self.split != "train" and self.chance.hits(50):
            start = self.chance.below(len(options))
            for option in (*options[start:], *options[:start]):
                if split_of(*pair(option)) == self.split:
                    return option
        for _ in range(TRIES):
            option = self.chance.pick(options)
            if split_of(*pair(option)) in ("train", self.split):
                return option
        raise Stuck

    def verb(self, subject: Noun | None) -> Verb:
        if subject is not None:
            options = verbs_by(subject)
            if not options:
                raise Stuck
            return self.chance.pick(options)
        return self.chance.pick(AMBIGUOUS if self.chance.hits(12) else VERBS)

    def adverb(self, verb: Verb, tense: Tense) -> Adverb:
        if self.chance.hits(40):
            return self.chance.pick([adverb for adverb in TIMES if tense in adverb.tenses])
        options = [adverb for adverb in ADVERBS if adverb.group in verb.notes]
        if not options:
            raise Stuck
        return self.chance.pick(options)

    def person(self, slot: Slot) -> Thing:
        if slot.subject and self.chance.hits(45):
            pronoun = self.chance.pick(PRONOUNS)
            return Thing(pronoun, plural=pronoun.plural_only)
        names = names_for(slot.kinds)
        if not names:
            raise Stuck
        return Thing(
            self.composed(names, lambda name: (slot.partner, name.key)) if slot.partner else self.chance.pick(names)
        )

    def noun(self, slot: Slot, adjectives: int) -> tuple[Noun, Adjective | None]:
        """A noun for the slot; where the slot leaves it two readings, with the adjective that settles it."""
        chance = self.chance
        if adjectives and chance.hits(15):
            unsettled = unsettled_for(slot.kinds, settles=slot.settles)
            if unsettled:
                noun = self.suited(unsettled, slot)
                return noun, self.described(noun, settling(noun))
        return self.suited(drawn_for(slot.kinds, settles=slot.settles), slot), None

    def suited(self, nouns: Sequence[Noun], slot: Slot) -> Noun:
        return self.composed(nouns, lambda noun: (slot.partner, noun.key)) if slot.partner else self.chance.pick(nouns)

    def described(self, noun: Noun, adjectives: Sequence[Adjective]) -> Adjective:
        """One of the adjectives for the noun; an ambiguous one more often than its share."""
        some = [adjective for adjective in adjectives if adjective.en in READINGS] if self.chance.hits(20) else ()
        return self.composed(some or adjectives, lambda adjective: (adjective.key, noun.key))

    def qualities(self, noun: Noun, words: int, first: Adjective | None) -> tuple[Quality, ...]:
        """So many words before the noun: adjectives in their English order, perhaps one of them with very."""
        if not words:
            return ()
        one = first if first is not None else self.described(noun, adjectives_for(noun))
        if words == 1:
            return (Quality(one),)
        if words == 2 and one.gradable and self.chance.hits(50):
            return (Quality(one, very=True),)
        outer, inner = sorted(
            (one, self.described(noun, [other for other in adjectives_for(noun) if _side_by_side(one, other)])),
            key=lambda adjective: adjective.rank,
        )
        if words == 3 and not outer.gradable:
            raise Stuck
        return Quality(outer, very=words == 3), Quality(inner)


def _side_by_side(one: Adjective, other: Adjective) -> bool:
    """Two adjectives that French, too, can put with one noun: on either side of it, or behind it with a colour."""
    if one.rank == other.rank or one.en == other.en:
        return False
    return one.before != other.before or (not one.before and max(one.rank, other.rank) >= COLOUR)
