"""A number of words, a split and a stream of draws in; a derivation of exactly so many English words out.

Two rules leave every sentence one structure only, so that its translation is the right one: what follows a noun belongs
to the nearest noun or verb that can take it, and only phrases without a tail (no place, no clause) are joined by "and".
"""

from dataclasses import replace

from regard.world.adjectives import ADJECTIVES
from regard.world.chance import Chance
from regard.world.entries import Adjective, Noun, Verb
from regard.world.lexicon import QUALITY, READINGS, Split, adjectives_for, verbs_by, verbs_to
from regard.world.small import AND, BECAUSE, BUT, DEFINITE, EVERY, OWNERS, PLURAL, PREPOSITIONS, SINGULAR, THE
from regard.world.tree import Both, Clause, Joint, Phrase, Place, Quality, Tense, Thing, Whole, things
from regard.world.words import TRIES, Slot, Stuck, Words

SHORTEST = 3
LONGEST_CLAUSE = 15
LONGEST_SUBJECT = 8
# A determiner, two adjectives, one of them strengthened, and the noun.
LONGEST_PLAIN = 5
# Kinds that tell where things are, not what they are.
WHERE = frozenset(["in", "on", "under", "by", "host", "site"])
HOW_OFTEN: dict[Tense, int] = {"past": 9, "present": 8, "future": 3}
TENSES: tuple[Tense, ...] = tuple(tense for tense, times in HOW_OFTEN.items() for _ in range(times))
PREDICATES = tuple(adjective for adjective in ADJECTIVES if adjective.predicative)
AMBIGUOUS_PREDICATES = tuple(adjective for adjective in PREDICATES if adjective.en in READINGS)


class Grammar:
    """Draws the parts of one sentence."""

    def __init__(self, chance: Chance, split: Split):
        self.chance = chance
        self.words = Words(chance, split)

    def whole(self, size: int) -> Whole:
        """One clause, or as many as it takes."""
        chance, sizes = self.chance, []
        while size > LONGEST_CLAUSE or (size >= 9 and chance.hits(30)):
            sizes.append(4 + chance.below(min(9, size - 7)))
            size -= sizes[-1] + 1
        joints = [Joint(chance.pick((AND, AND, BUT))) for _ in sizes]
        if joints and chance.hits(35):
            joints[-1] = Joint(BECAUSE)
        # Beside "and" between clauses, one between nouns could be mistaken for it.
        alone = not joints
        clauses = [self.clause(part, main=True) for part in sizes]
        clauses.append(self.clause(size, main=alone or not joints[-1].conjunction.final, alone=alone))
        return Whole(tuple(clauses), tuple(joints))

    def clause(self, size: int, *, main: bool = False, alone: bool = False, gap: Noun | None = None) -> Clause:
        """A clause of so many words; one with a gap tells more about the noun that would be its subject."""
        for _ in range(TRIES):
            try:
                if self.chance.hits(18):
                    return self.state(size, alone=alone, gap=gap)
                return self.deed(size, main=main, alone=alone, gap=gap)
            except Stuck:
                continue
        raise Stuck

    def state(self, size: int, *, alone: bool, gap: Noun | None) -> Clause:
        """Something is somehow."""
        chance = self.chance
        tense, negated = chance.pick(TENSES), chance.hits(20)
        left = size - 2 - (tense == "future") - negated
        if gap is None:
            adjective = chance.pick(AMBIGUOUS_PREDICATES if chance.hits(7) else PREDICATES)
        else:
            fitting = [adjective for adjective in adjectives_for(gap) if adjective.predicative]
            adjective = self.words.composed(fitting, lambda adjective: (adjective.key, gap.key))
        very = adjective.gradable and (left == 1 if gap is not None else left > 1 and chance.hits(20))
        quality, left = Quality(adjective, very), left - very
        if gap is not None:
            if left:
                raise Stuck
            return Clause(None, tense, negated, quality=quality, gap="subject")
        settles = adjective.rank == QUALITY
        slot = Slot(adjective.kinds, adjective.key, subject=True, joined=alone, every=not negated, settles=settles)
        if not slot.least <= left <= LONGEST_SUBJECT:
            raise Stuck
        subject = self.phrase(left, slot)
        if any(_clash(adjective, said.adjective) for thing in things(subject) for said in thing.qualities):
            raise Stuck
        return Clause(None, tense, negated, subject=subject, quality=quality)

    def deed(self, size: int, *, main: bool, alone: bool, gap: Noun | None) -> Clause:
        """Somebody does something: the words are shared out among the verb, its phrases, an adverb and a place."""
        chance = self.chance
        verb, tense, negated = self.words.verb(gap), chance.pick(TENSES), chance.hits(14)
        firm = "loose" not in verb.notes
        doer = Slot(verb.subjects, subject=True, joined=alone, tail=main, every=not negated, settles=firm)
        taken = Slot(verb.objects, verb.key, joined=alone and not negated, settles=firm)
        goes = verb.goal is not None and ("lost" in verb.notes or chance.hits(60))
        spare = size - words_of(verb, tense, negated=negated) - (doer.least if gap is None else 0)
        spare -= taken.least * bool(verb.objects) + 2 * verb.receives + 3 * goes
        if spare < 0:
            raise Stuck
        # Behind a noun one could not tell whose adverb it is: the man who waits often sings.
        adverb = self.words.adverb(verb, tense) if spare and gap is None and chance.hits(25) else None
        timed = adverb is not None and adverb.group == "time"
        fronted = timed and main and chance.hits(50)
        # A last phrase with a tail would take the adverb for itself; and German wants manner behind a definite object.
        tail = adverb is None or fronted
        definite = negated or (adverb is not None and not timed)
        spare -= adverb is not None
        happens = "place" in verb.notes and spare >= 3 and (adverb is None or timed) and chance.hits(75)
        spare -= 3 * happens
        # What is left goes to the phrases: the last one may grow long, the subject within bounds.
        subject = None
        if gap is None:
            bound = min(spare, (LONGEST_SUBJECT if main else LONGEST_PLAIN) - doer.least)
            extra = chance.below(bound + 1) if verb.objects or goes or happens else bound
            subject, spare = self.phrase(doer.least + extra, doer), spare - extra
            if any(thing.relative is not None and thing.relative.verb is verb for thing in things(subject)):
                raise Stuck
        clause = Clause(verb, tense, negated, subject, adverb=adverb, fronted=fronted, gap="subject" if gap else "none")
        if verb.receives:
            extra = chance.below(min(spare, LONGEST_PLAIN - taken.least) + 1)
            gift = self.phrase(taken.least + extra, replace(taken, tail=False, joined=False, definite=definite))
            receiver = self.thing(1 + spare - extra, Slot(frozenset(["person"]), tail=tail))
            return replace(clause, object=gift, receiver=receiver)
        if verb.objects:
            taken = replace(taken, tail=tail, definite=definite)
            return replace(clause, object=self.phrase(taken.least + spare, taken))
        if goes:
            assert verb.goal is not None
            return replace(clause, goal=self.thing(2 + spare, Slot(verb.goal.kinds, tail=tail)))
        if happens:
            return replace(clause, place=self.place(3 + spare, None, tail=tail))
        if spare:
            raise Stuck
        return clause

    def phrase(self, size: int, slot: Slot) -> Phrase:
        if slot.joined and 2 * slot.least < size <= 8 and self.chance.hits(18):
            inner = replace(slot, tail=False, subject=False, settles=False)
            left = slot.least + self.chance.below(size - 2 * slot.least)
            if max(left, size - 1 - left) <= LONGEST_PLAIN:
                one, other = self.thing(left, inner), self.thing(size - 1 - left, inner)
                # Only the first is governed by the verb itself, so neither may need the verb to be understood.
                if one.noun.en[0] in READINGS or other.noun.en[0] in READINGS or not _alike(one.noun, other.noun):
                    raise Stuck
                return Both(one, other)
        return self.thing(size, slot)

    def thing(self, size: int, slot: Slot) -> Thing:
        chance = self.chance
        if size == 1:
            return self.words.person(slot)
        if size > LONGEST_PLAIN and not slot.tail:
            raise Stuck
        tailed = slot.tail and size >= 4 and (size > LONGEST_PLAIN or chance.hits(65))
        plain = 2 + chance.below(min(2, size - 3)) if tailed else size
        noun, settled_by = self.words.noun(slot, adjectives=plain - 2)
        plural = noun.countable and chance.hits(33)
        if slot.definite or not noun.countable:
            determiner = chance.pick(DEFINITE)
        else:
            determiner = chance.pick(PLURAL if plural else SINGULAR)
        if (determiner is EVERY and not slot.every) or (determiner in OWNERS and "unowned" in noun.kinds):
            determiner = THE
        qualities = self.words.qualities(noun, plain - 2, settled_by)
        place, relative, left = None, None, size - plain
        if left >= 3 and chance.hits(45) and noun.kinds & {"host", "site"}:
            place = self.place(left, noun, tail=True)
        elif left:
            relative = self.relative(left - 1, noun)
            if relative.quality is not None and any(
                _clash(relative.quality.adjective, said.adjective) for said in qualities
            ):
                raise Stuck
        settler = next((quality for quality in qualities if quality.adjective is settled_by), None)
        return Thing(noun, determiner, plural, qualities, place, relative, settler)

    def place(self, size: int, host: Noun | None, *, tail: bool) -> Place:
        fitting = [p for p in PREPOSITIONS if (p.adverbial if host is None else p.hosts & host.kinds)]
        preposition = self.chance.pick(fitting)
        for _ in range(TRIES):
            phrase = self.thing(
                size - 1, Slot(preposition.kinds, tail=tail, every=preposition.adverbial, settles=False)
            )
            if phrase.noun is not host:
                return Place(preposition, phrase)
        raise Stuck

    def relative(self, size: int, noun: Noun) -> Clause:
        """A clause about the noun, so many words without its pronoun; the noun is its subject or its object."""
        verbs = verbs_to(noun)
        if size >= 2 and verbs and (not verbs_by(noun) or self.chance.hits(45)):
            verb = self.words.composed(verbs, lambda verb: (verb.key, noun.key))
            tense, negated = self.chance.pick(TENSES), self.chance.hits(12)
            slot = Slot(verb.subjects, subject=True, tail=False, every=not negated, settles="loose" not in verb.notes)
            left = size - words_of(verb, tense, negated=negated)
            if slot.least <= left <= LONGEST_PLAIN:
                return Clause(verb, tense, negated, subject=self.thing(left, slot), gap="object")
        return self.clause(size, gap=noun)


def _clash(one: Adjective, other: Adjective) -> bool:
    """The same thing said twice, or two sizes, two colours of one thing."""
    return one is other or one.rank == other.rank != QUALITY


def _alike(one: Noun, other: Noun) -> bool:
    """Two different nouns of a kind: the cat and the dog, not the cat and the bridge."""
    return one is not other and bool((one.kinds & other.kinds) - WHERE)


def words_of(verb: Verb, tense: Tense, *, negated: bool) -> int:
    """How many English words the verb takes: ate, will eat, did not eat, turned off."""
    return 1 + (tense == "future") + negated + (negated and tense != "future") + bool(verb.particle)
