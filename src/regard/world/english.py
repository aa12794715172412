"""A derivation in, English out: words, part-of-speech tags, dependency heads, and where each node's words stand."""

from dataclasses import dataclass, field

from regard.world.tree import Both, Clause, Phrase, Place, Quality, Thing, Whole, is_first_person, is_plural

ROOT = -1
NOBODY = -2


@dataclass(slots=True)
class English:
    """A sentence being written. `at` tells where the word stands that plays a role in a node."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    at: dict[tuple[object, str], int] = field(default_factory=dict)

    def add(self, word: str, tag: str, node: object, role: str) -> int:
        index = len(self.words)
        self.words.append(word)
        self.tags.append(tag)
        self.heads.append(NOBODY)
        self.at[node, role] = index
        return index

    def attach(self, head: int, *dependents: int):
        for index in dependents:
            self.heads[index] = head


def english(whole: Whole) -> English:
    out = English()
    first = previous = _clause(out, whole.clauses[0], None)
    out.heads[first] = ROOT
    for joint, clause in zip(whole.joints, whole.clauses[1:], strict=True):
        marker = out.add(joint.conjunction.en, joint.conjunction.part, joint, "joint")
        verb = _clause(out, clause, None)
        out.attach(verb, marker)
        # A clause that gives the reason hangs on the one before it; the others hang in a row on the first.
        out.attach(previous if joint.conjunction.final else first, verb)
        previous = verb
    for index, word in enumerate(out.words[:-1]):
        if word == "a" and out.words[index + 1][0] in "aeiou":
            out.words[index] = "an"
    return out


def _phrase(out: English, phrase: Phrase) -> int:
    if isinstance(phrase, Both):
        left = _thing(out, phrase.left)
        joint = out.add("and", "CCONJ", phrase, "and")
        right = _thing(out, phrase.right)
        out.attach(right, joint)
        out.attach(left, right)
        return left
    return _thing(out, phrase)


def _thing(out: English, thing: Thing) -> int:
    before = []
    if thing.determiner is not None:
        before.append(out.add(thing.determiner.en[thing.plural], thing.determiner.part, thing, "determiner"))
    before += [_quality(out, quality) for quality in thing.qualities]
    noun = out.add(thing.noun.en[thing.plural], thing.noun.part, thing, "noun")
    out.attach(noun, *before)
    if thing.place is not None:
        out.attach(noun, _place(out, thing.place))
    if thing.relative is not None:
        clause = thing.relative
        person = "person" in thing.noun.kinds and clause.gap == "subject"
        marker = out.add("who" if person else "that", "PRON", clause, "marker")
        verb = _clause(out, clause, thing)
        out.attach(verb, marker)
        out.attach(noun, verb)
    return noun


def _quality(out: English, quality: Quality) -> int:
    if not quality.very:
        return out.add(quality.adjective.en, "ADJ", quality, "adjective")
    very = out.add("very", "ADV", quality, "very")
    adjective = out.add(quality.adjective.en, "ADJ", quality, "adjective")
    out.attach(adjective, very)
    return adjective


def _place(out: English, place: Place) -> int:
    preposition = out.add(place.preposition.en, "ADP", place, "preposition")
    noun = _thing(out, place.phrase)
    out.attach(noun, preposition)
    return noun


def _clause(out: English, clause: Clause, antecedent: Thing | None) -> int:
    """The index of the clause's head: its verb, or the quality that something is said to have."""
    subject = clause.subject if clause.subject is not None else antecedent
    assert subject is not None
    around = []
    if clause.fronted and clause.adverb is not None:
        around.append(out.add(clause.adverb.en, "ADV", clause, "adverb"))
    if clause.subject is not None:
        around.append(_phrase(out, clause.subject))
    if clause.quality is not None:
        around += _copula(out, clause, subject)
        head = _quality(out, clause.quality)
    else:
        helpers, head = _verb(out, clause, subject)
        around += helpers
    if clause.object is not None:
        around.append(_phrase(out, clause.object))
    if clause.verb is not None:
        for phrase, preposition in ((clause.receiver, "to"), (clause.goal, clause.verb.goal and clause.verb.goal.en)):
            if phrase is not None and preposition:
                marker = out.add(preposition, "ADP", phrase, "preposition")
                around.append(_thing(out, phrase))
                out.attach(around[-1], marker)
    if clause.place is not None:
        around.append(_place(out, clause.place))
    if clause.adverb is not None and not clause.fronted:
        around.append(out.add(clause.adverb.en, "ADV", clause, "adverb"))
    out.attach(head, *around)
    return head


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
    around = []
    form = base
    if clause.tense == "future":
        around.append(out.add("will", "AUX", clause, "auxiliary"))
    elif clause.negated:
        helper = "did" if clause.tense == "past" else "do" if many else "does"
        around.append(out.add(helper, "AUX", clause, "auxiliary"))
    else:
        form = past if clause.tense == "past" else base if many else third
    if clause.negated:
        around.append(out.add("not", "PART", clause, "not"))
    verb = out.add(form, "VERB", clause, "verb")
    if clause.verb.particle:
        around.append(out.add(clause.verb.particle, "ADP", clause, "particle"))
    return around, verb
