"""A derivation in, the finished sentence out: three languages, alignments, sentiment, ambiguities, compositions."""

from collections.abc import Iterator

from regard.world.english import English, english
from regard.world.entries import Adjective, Noun, Verb
from regard.world.french import french
from regard.world.german import german
from regard.world.lexicon import READINGS, Entry, distinguished
from regard.world.sentence import Ambiguity, Rendering, Renderings, Sentence
from regard.world.tree import Clause, Thing, Whole, things

# Every clause with the noun phrase it tells more about, and every noun phrase.
Parts = tuple[list[tuple[Clause, Thing | None]], list[Thing]]


def sentence(whole: Whole) -> Sentence:
    out = english(whole)
    clauses, phrases = parts(whole)
    return Sentence(
        words=tuple(out.words),
        tags=tuple(out.tags),
        heads=tuple([head + 1 for head in out.heads]),
        sentiment=_sentiment(clauses, phrases),
        ambiguities=tuple(sorted(_ambiguities(out, clauses, phrases), key=lambda ambiguity: ambiguity.at)),
        compositions=tuple(_compositions(clauses, phrases)),
        into=Renderings(fr=_rendering(*french(whole, out.at)), de=_rendering(*german(whole, out.at))),
    )


def _rendering(words: list[str], links: list[tuple[int, ...]]) -> Rendering:
    pairs = [(here, there) for there, linked in enumerate(links) for here in linked]
    return Rendering(tuple(words), frozenset(pairs))


def parts(whole: Whole) -> Parts:
    clauses: list[tuple[Clause, Thing | None]] = []
    phrases: list[Thing] = []
    for clause in whole.clauses:
        _gather(clause, None, clauses, phrases)
    return clauses, phrases


def _gather(clause: Clause, about: Thing | None, clauses: list[tuple[Clause, Thing | None]], phrases: list[Thing]):
    clauses.append((clause, about))
    waiting: list[Thing] = []
    for phrase in (clause.subject, clause.object, clause.receiver, clause.goal):
        if phrase is not None:
            waiting += things(phrase)
    if clause.place is not None:
        waiting.append(clause.place.phrase)
    while waiting:
        thing = waiting.pop()
        phrases.append(thing)
        if thing.place is not None:
            waiting.append(thing.place.phrase)
        if thing.relative is not None:
            _gather(thing.relative, thing, clauses, phrases)


def _sentiment(clauses: list[tuple[Clause, Thing | None]], phrases: list[Thing]) -> int:
    """The sign of the sum of all evaluative words; what a clause denies counts the other way round."""
    total = sum(quality.adjective.valence for thing in phrases for quality in thing.qualities)
    for clause, _ in clauses:
        said = clause.verb.valence if clause.verb is not None else 0
        said += clause.quality.adjective.valence if clause.quality is not None else 0
        said += clause.adverb.valence if clause.adverb is not None else 0
        total += -said if clause.negated else said
    return (total > 0) - (total < 0)


def _subjects(clause: Clause, about: Thing | None) -> tuple[Thing, ...]:
    if clause.subject is not None:
        return things(clause.subject)
    assert about is not None
    return (about,)


def _objects(clause: Clause, about: Thing | None) -> tuple[Thing, ...]:
    if clause.object is not None:
        return things(clause.object)
    return (about,) if clause.gap == "object" and about is not None else ()


def _compositions(clauses: list[tuple[Clause, Thing | None]], phrases: list[Thing]) -> Iterator[tuple[str, str]]:
    for thing in phrases:
        for quality in thing.qualities:
            yield quality.adjective.key, thing.noun.key
    for clause, about in clauses:
        if clause.quality is not None:
            for thing in _subjects(clause, about):
                if thing.noun.part != "PRON":
                    yield clause.quality.adjective.key, thing.noun.key
        if clause.verb is not None:
            for thing in _objects(clause, about):
                yield clause.verb.key, thing.noun.key


def _ambiguities(out: English, clauses: list[tuple[Clause, Thing | None]], phrases: list[Thing]) -> Iterator[Ambiguity]:
    at = out.at
    for thing in phrases:
        noun = at[thing, "noun"]
        if out.words[noun] in READINGS:
            yield _ambiguity(out, noun, thing.noun, _decider_of_noun(out, thing))
        for quality in thing.qualities:
            index = at[quality, "adjective"]
            if out.words[index] in READINGS:
                yield _ambiguity(out, index, quality.adjective, noun)
    for clause, about in clauses:
        subject = at[_subjects(clause, about)[0], "noun"]
        if clause.quality is not None and out.words[at[clause.quality, "adjective"]] in READINGS:
            yield _ambiguity(out, at[clause.quality, "adjective"], clause.quality.adjective, subject)
        if clause.verb is not None and out.words[at[clause, "verb"]] in READINGS:
            index, objects = at[clause, "verb"], _objects(clause, about)
            # Where another verb looks the same but takes no object, the object settles it; otherwise who does it.
            lone = any(isinstance(other, Verb) and not other.objects for other in READINGS[out.words[index]])
            yield _ambiguity(out, index, clause.verb, at[objects[0], "noun"] if lone and objects else subject)


def _decider_of_noun(out: English, thing: Thing) -> int:
    """The adjective that settles a noun, else the word that governs it; a determiner if it could only be a verb."""
    noun = out.at[thing, "noun"]
    if thing.settled_by is not None:
        return out.at[thing.settled_by, "adjective"]
    others = [entry for entry in READINGS[out.words[noun]] if entry is not thing.noun]
    if any(isinstance(other, Noun | Adjective) for other in others):
        return out.heads[noun]
    return out.at[thing, "determiner"]


def _ambiguity(out: English, index: int, entry: Entry, decider: int) -> Ambiguity:
    form = out.words[index]
    return Ambiguity(index, entry.key, tuple(other.key for other in READINGS[form]), decider, distinguished(form))
