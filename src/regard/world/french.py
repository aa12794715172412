"""A derivation and the places of its English words in, French out: words, each with the English words it renders."""

from dataclasses import dataclass

from regard.world.entries import Verb, french_plural
from regard.world.tree import Clause, Phrase, Place, Quality, Thing, Whole, is_first_person, is_plural, things

VOWELS = frozenset("aeiouyàâéèêëîïôöûüœ")
# An h that forbids elision; any other h is mute.
ASPIRATED = frozenset(["hache", "haches", "harpe", "harpes", "hérisson", "hérissons", "hibou", "hiboux", "huit"])
# What a word becomes before a vowel, wherever it stands in this world.
ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "que": "qu'"}
CONTRACTED = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}
BE = {
    "present": ("est", "sommes", "sont"),
    "past": ("était", "étions", "étaient"),
    "future": ("sera", "serons", "seront"),
}
HAVE = ("a", "avons", "ont")
FUTURE = ("a", "ons", "ont")

Links = tuple[int, ...]


@dataclass(slots=True)
class Word:
    """A word, its form before a vowel, and the English words it renders."""

    form: str
    before_vowel: str
    links: Links


def starts_with_vowel(word: str) -> bool:
    first = word[0].lower()
    return first in VOWELS or (first == "h" and word not in ASPIRATED)


@dataclass(slots=True)
class French:
    """A sentence being written, with the places of the English words."""

    at: dict[tuple[object, str], int]
    words: list[Word]

    def add(self, form: str, *links: int, before_vowel: str = ""):
        self.words.append(Word(form, before_vowel or ELIDED.get(form, form), links))


def french(whole: Whole, at: dict[tuple[object, str], int]) -> tuple[list[str], list[Links]]:
    out = French(at, [])
    _clause(out, whole.clauses[0], None)
    for joint, clause in zip(whole.joints, whole.clauses[1:], strict=True):
        for form in joint.conjunction.fr:
            out.add(form, at[joint, "joint"])
        _clause(out, clause, None)
    return _joined(out.words)


def _joined(words: list[Word]) -> tuple[list[str], list[Links]]:
    """Elision and contraction: le arbre becomes l' arbre, de le chat becomes du chat, à la souris stays."""
    forms, links = [], []
    for index, word in enumerate(words):
        follows = words[index + 1].form if index + 1 < len(words) else ""
        form = word.before_vowel if follows and starts_with_vowel(follows) else word.form
        if forms and (forms[-1], form) in CONTRACTED:
            forms[-1] = CONTRACTED[forms[-1], form]
            links[-1] = (*links[-1], *word.links)
        else:
            forms.append(form)
            links.append(word.links)
    return forms, links


def agreed(masculine: str, feminine: str, gender: str, *, plural: bool) -> str:
    form = feminine if gender == "f" else masculine
    return french_plural(form) if plural else form


def gender_of(phrase: Phrase) -> str:
    """A group is feminine only if everybody in it is."""
    return "f" if all(thing.noun.fr_gender == "f" for thing in things(phrase)) else "m"


def _person(phrase: Phrase) -> int:
    """Which of the forms il, nous, ils goes with the phrase."""
    return 1 if is_first_person(phrase) else 2 if is_plural(phrase) else 0


def _phrase(out: French, phrase: Phrase):
    first, *others = things(phrase)
    _thing(out, first)
    for thing in others:
        out.add("et", out.at[phrase, "and"])
        _thing(out, thing)


def _thing(out: French, thing: Thing):
    gender, plural = thing.noun.fr_gender, thing.plural
    if thing.determiner is not None:
        masculine, feminine, many, masculine_vowel, feminine_vowel = thing.determiner.fr
        link = out.at[thing, "determiner"]
        if plural:
            out.add(many, link)
        elif gender == "f":
            out.add(feminine, link, before_vowel=feminine_vowel)
        else:
            out.add(masculine, link, before_vowel=masculine_vowel)
    for quality in thing.qualities:
        if quality.adjective.before:
            _quality(out, quality, gender, plural=plural)
    out.add(thing.noun.fr[plural], out.at[thing, "noun"])
    # Two adjectives behind the noun stand in the mirrored order: the hungry black cat, le chat noir affamé.
    for quality in reversed(thing.qualities):
        if not quality.adjective.before:
            _quality(out, quality, gender, plural=plural)
    if thing.place is not None:
        _place(out, thing.place)
    if thing.relative is not None:
        marker = out.at[thing.relative, "marker"]
        out.add("qui" if thing.relative.gap == "subject" else "que", marker)
        _clause(out, thing.relative, thing)


def _quality(out: French, quality: Quality, gender: str, *, plural: bool):
    if quality.very:
        out.add("très", out.at[quality, "very"])
    masculine, feminine, before_vowel = quality.adjective.fr
    form = agreed(masculine, feminine, gender, plural=plural)
    special = before_vowel if form == masculine and quality.adjective.before and not plural else ""
    out.add(form, out.at[quality, "adjective"], before_vowel=special)


def _place(out: French, place: Place):
    for form in place.preposition.fr:
        out.add(form, out.at[place, "preposition"])
    _thing(out, place.phrase)


def _clause(out: French, clause: Clause, antecedent: Thing | None):
    subject = clause.subject if clause.subject is not None else antecedent
    assert subject is not None
    adverb = clause.adverb
    if clause.fronted and adverb is not None:
        out.add(adverb.fr, out.at[clause, "adverb"])
    if clause.subject is not None:
        _phrase(out, clause.subject)
    if clause.quality is not None:
        _finite(out, clause, BE[clause.tense][_person(subject)], _everything(out, clause))
        _quality(out, clause.quality, gender_of(subject), plural=is_plural(subject))
    else:
        _verb(out, clause, subject, antecedent)
    if clause.object is not None:
        _phrase(out, clause.object)
    if clause.verb is not None:
        for phrase, form in ((clause.receiver, "à"), (clause.goal, clause.verb.goal and clause.verb.goal.fr)):
            if phrase is not None and form:
                out.add(form, out.at[phrase, "preposition"])
                _thing(out, phrase)
    if clause.place is not None:
        _place(out, clause.place)
    if adverb is not None and not clause.fronted and not adverb.beside_verb:
        out.add(adverb.fr, out.at[clause, "adverb"])


def _everything(out: French, clause: Clause) -> Links:
    """The verb with its helpers: what a French verb of one word renders."""
    return tuple(out.at[clause, role] for role in ("auxiliary", "verb", "particle") if (clause, role) in out.at)


def _finite(out: French, clause: Clause, form: str, links: Links):
    """The conjugated word, between ne and pas if the clause denies; then the adverbs that keep close to it."""
    if clause.negated:
        out.add("ne", out.at[clause, "not"])
    out.add(form, *links)
    if clause.negated:
        out.add("pas", out.at[clause, "not"])
    if clause.adverb is not None and clause.adverb.beside_verb:
        out.add(clause.adverb.fr, out.at[clause, "adverb"])


def _verb(out: French, clause: Clause, subject: Phrase, antecedent: Thing | None):
    assert clause.verb is not None
    verb, person = clause.verb, _person(subject)
    if clause.tense == "present":
        _finite(out, clause, verb.fr[person], _everything(out, clause))
    elif clause.tense == "future":
        _finite(out, clause, verb.fr[4] + FUTURE[person], _everything(out, clause))
    else:
        helper = HAVE if verb.fr_aux == "avoir" else BE["present"]
        role = "auxiliary" if (clause, "auxiliary") in out.at else "verb"
        _finite(out, clause, helper[person], (out.at[clause, role],))
        roles = [role for role in ("verb", "particle") if (clause, role) in out.at]
        out.add(_participle(verb, clause, subject, antecedent), *[out.at[clause, role] for role in roles])


def _participle(verb: Verb, clause: Clause, subject: Phrase, antecedent: Thing | None) -> str:
    """With être it agrees with the subject, with avoir with an object that stands before: la souris qu'il a mangée."""
    form = verb.fr[3]
    leader = subject if verb.fr_aux == "être" else antecedent if clause.gap == "object" else None
    if leader is None:
        return form
    return agreed(form, form + "e", gender_of(leader), plural=is_plural(leader))
