"""English rendering: the words of a derivation, their part-of-speech tags and dependency governors."""

from dataclasses import dataclass, field

from regard.world.grammar import (
    AdjectivePhrase,
    Clause,
    Coordination,
    Derivation,
    NounPhrase,
    Phrase,
    PrepositionalPhrase,
    is_first_person,
    is_plural,
)

ROOT = -1
UNATTACHED = -2


@dataclass(slots=True)
class English:
    """A sentence under construction; `word_indices` maps (node, role) to the index of the word."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    governors: list[int] = field(default_factory=list)
    word_indices: dict[tuple[object, str], int] = field(default_factory=dict)

    def add(self, word: str, tag: str, node: object, role: str) -> int:
        index = len(self.words)
        self.words.append(word)
        self.tags.append(tag)
        self.governors.append(UNATTACHED)
        self.word_indices[node, role] = index
        return index

    def attach(self, governor: int, *dependents: int):
        for index in dependents:
            self.governors[index] = governor


def render_english(derivation: Derivation) -> English:
    out = English()
    first = previous = _clause(out, derivation.clauses[0], None)
    out.governors[first] = ROOT
    for link, clause in zip(derivation.clause_links, derivation.clauses[1:], strict=True):
        marker = out.add(link.conjunction.en, link.conjunction.upos, link, "link")
        verb = _clause(out, clause, None)
        out.attach(verb, marker)
        # A causal clause is attached to the one before it; the others are all attached to the first.
        out.attach(previous if link.conjunction.final else first, verb)
        previous = verb
    for index, word in enumerate(out.words[:-1]):
        if word == "a" and out.words[index + 1][0] in "aeiou":
            out.words[index] = "an"
    return out


def _phrase(out: English, phrase: Phrase) -> int:
    if isinstance(phrase, Coordination):
        left = _noun_phrase(out, phrase.left)
        link = out.add("and", "CCONJ", phrase, "and")
        right = _noun_phrase(out, phrase.right)
        out.attach(right, link)
        out.attach(left, right)
        return left
    return _noun_phrase(out, phrase)


def _noun_phrase(out: English, noun_phrase: NounPhrase) -> int:
    before = []
    if noun_phrase.determiner is not None:
        before.append(
            out.add(
                noun_phrase.determiner.en[noun_phrase.plural], noun_phrase.determiner.upos, noun_phrase, "determiner"
            )
        )
    before += [_adjective_phrase(out, quality) for quality in noun_phrase.adjective_phrases]
    noun = out.add(noun_phrase.noun.en[noun_phrase.plural], noun_phrase.noun.upos, noun_phrase, "noun")
    out.attach(noun, *before)
    if noun_phrase.place is not None:
        out.attach(noun, _prepositional_phrase(out, noun_phrase.place))
    if noun_phrase.relative is not None:
        clause = noun_phrase.relative
        person = "person" in noun_phrase.noun.kinds and clause.gap == "subject"
        marker = out.add("who" if person else "that", "PRON", clause, "marker")
        verb = _clause(out, clause, noun_phrase)
        out.attach(verb, marker)
        out.attach(noun, verb)
    return noun


def _adjective_phrase(out: English, quality: AdjectivePhrase) -> int:
    if not quality.very:
        return out.add(quality.adjective.en, "ADJ", quality, "adjective")
    very = out.add("very", "ADV", quality, "very")
    adjective = out.add(quality.adjective.en, "ADJ", quality, "adjective")
    out.attach(adjective, very)
    return adjective


def _prepositional_phrase(out: English, place: PrepositionalPhrase) -> int:
    preposition = out.add(place.preposition.en, "ADP", place, "preposition")
    noun = _noun_phrase(out, place.phrase)
    out.attach(noun, preposition)
    return noun


def _clause(out: English, clause: Clause, antecedent: NounPhrase | None) -> int:
    """The index of the clause's root: its verb, or its predicative adjective."""
    subject = clause.subject if clause.subject is not None else antecedent
    assert subject is not None
    dependents = []
    if clause.fronted and clause.adverb is not None:
        dependents.append(out.add(clause.adverb.en, "ADV", clause, "adverb"))
    if clause.subject is not None:
        dependents.append(_phrase(out, clause.subject))
    if clause.quality is not None:
        dependents += _copula(out, clause, subject)
        root = _adjective_phrase(out, clause.quality)
    else:
        helpers, root = _verb(out, clause, subject)
        dependents += helpers
    if clause.object is not None:
        dependents.append(_phrase(out, clause.object))
    if clause.verb is not None:
        for phrase, preposition in ((clause.receiver, "to"), (clause.goal, clause.verb.goal and clause.verb.goal.en)):
            if phrase is not None and preposition:
                marker = out.add(preposition, "ADP", phrase, "preposition")
                dependents.append(_noun_phrase(out, phrase))
                out.attach(dependents[-1], marker)
    if clause.place is not None:
        dependents.append(_prepositional_phrase(out, clause.place))
    if clause.adverb is not None and not clause.fronted:
        dependents.append(out.add(clause.adverb.en, "ADV", clause, "adverb"))
    out.attach(root, *dependents)
    return root


def _copula(out: English, clause: Clause, subject: Phrase) -> list[int]:
    many = is_plural(subject)
    words = []
    if clause.tense == "future":
        words.append(out.add("will", "AUX", clause, "auxiliary"))
    else:
        form = ("are" if many else "is") if clause.tense == "present" else ("were" if many else "was")
        words.append(out.add(form, "AUX", clause, "verb"))
    if clause.negated:
        words.append(out.add("not", "PART", clause, "not"))
    if clause.tense == "future":
        words.append(out.add("be", "AUX", clause, "verb"))
    return words


def _verb(out: English, clause: Clause, subject: Phrase) -> tuple[list[int], int]:
    assert clause.verb is not None
    base, third, past = clause.verb.en
    many = is_plural(subject) or is_first_person(subject)
    dependents = []
    form = base
    if clause.tense == "future":
        dependents.append(out.add("will", "AUX", clause, "auxiliary"))
    elif clause.negated:
        helper = "did" if clause.tense == "past" else "do" if many else "does"
        dependents.append(out.add(helper, "AUX", clause, "auxiliary"))
    else:
        form = past if clause.tense == "past" else base if many else third
    if clause.negated:
        dependents.append(out.add("not", "PART", clause, "not"))
    verb = out.add(form, "VERB", clause, "verb")
    if clause.verb.particle:
        dependents.append(out.add(clause.verb.particle, "ADP", clause, "particle"))
    return dependents, verb
