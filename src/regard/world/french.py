"""French rendering: the words of a derivation, each aligned with the English words it translates."""

from dataclasses import dataclass

from regard.world.grammar import (
    AdjectivePhrase,
    Clause,
    Derivation,
    NounPhrase,
    Phrase,
    PrepositionalPhrase,
    is_first_person,
    is_plural,
    noun_phrases,
)
from regard.world.lexicon import Verb, french_plural

VOWELS = frozenset("aeiouyàâéèêëîïôöûüœ")
# An h that forbids elision; any other h is mute.
ASPIRATED = frozenset(["hache", "haches", "harpe", "harpes", "hérisson", "hérissons", "hibou", "hiboux", "huit"])
# Elision before a vowel.
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
class FrenchWord:
    """A word, its form before a vowel, and the English words it is aligned with."""

    form: str
    before_vowel: str
    links: Links


def starts_with_vowel(word: str) -> bool:
    first = word[0].lower()
    return first in VOWELS or (first == "h" and word not in ASPIRATED)


@dataclass(slots=True)
class French:
    """A sentence under construction, with the indices of the English words."""

    word_indices: dict[tuple[object, str], int]
    words: list[FrenchWord]

    def add(self, form: str, *links: int, before_vowel: str = ""):
        self.words.append(FrenchWord(form, before_vowel or ELIDED.get(form, form), links))


def render_french(derivation: Derivation, word_indices: dict[tuple[object, str], int]) -> tuple[list[str], list[Links]]:
    out = French(word_indices, [])
    _clause(out, derivation.clauses[0], None)
    for link, clause in zip(derivation.clause_links, derivation.clauses[1:], strict=True):
        for form in link.conjunction.fr:
            out.add(form, word_indices[link, "link"])
        _clause(out, clause, None)
    return _elide_and_contract(out.words)


def _elide_and_contract(words: list[FrenchWord]) -> tuple[list[str], list[Links]]:
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


def inflect_agreement(masculine: str, feminine: str, gender: str, *, plural: bool) -> str:
    form = feminine if gender == "f" else masculine
    return french_plural(form) if plural else form


def gender_of(phrase: Phrase) -> str:
    """A coordination is feminine only if all its nouns are."""
    return "f" if all(noun_phrase.noun.fr_gender == "f" for noun_phrase in noun_phrases(phrase)) else "m"


def _person(phrase: Phrase) -> int:
    """Which of the forms il, nous, ils goes with the phrase."""
    return 1 if is_first_person(phrase) else 2 if is_plural(phrase) else 0


def _phrase(out: French, phrase: Phrase):
    first, *others = noun_phrases(phrase)
    _noun_phrase(out, first)
    for noun_phrase in others:
        out.add("et", out.word_indices[phrase, "and"])
        _noun_phrase(out, noun_phrase)


def _noun_phrase(out: French, noun_phrase: NounPhrase):
    gender, plural = noun_phrase.noun.fr_gender, noun_phrase.plural
    if noun_phrase.determiner is not None:
        masculine, feminine, many, masculine_vowel, feminine_vowel = noun_phrase.determiner.fr
        link = out.word_indices[noun_phrase, "determiner"]
        if plural:
            out.add(many, link)
        elif gender == "f":
            out.add(feminine, link, before_vowel=feminine_vowel)
        else:
            out.add(masculine, link, before_vowel=masculine_vowel)
    for quality in noun_phrase.adjective_phrases:
        if quality.adjective.precedes_noun:
            _adjective_phrase(out, quality, gender, plural=plural)
    out.add(noun_phrase.noun.fr[plural], out.word_indices[noun_phrase, "noun"])
    # Two adjectives behind the noun stand in reverse order: the hungry black cat, le chat noir affamé.
    for quality in reversed(noun_phrase.adjective_phrases):
        if not quality.adjective.precedes_noun:
            _adjective_phrase(out, quality, gender, plural=plural)
    if noun_phrase.place is not None:
        _prepositional_phrase(out, noun_phrase.place)
    if noun_phrase.relative is not None:
        marker = out.word_indices[noun_phrase.relative, "marker"]
        out.add("qui" if noun_phrase.relative.gap == "subject" else "que", marker)
        _clause(out, noun_phrase.relative, noun_phrase)


def _adjective_phrase(out: French, quality: AdjectivePhrase, gender: str, *, plural: bool):
    if quality.very:
        out.add("très", out.word_indices[quality, "very"])
    masculine, feminine, before_vowel = quality.adjective.fr
    form = inflect_agreement(masculine, feminine, gender, plural=plural)
    special = before_vowel if form == masculine and quality.adjective.precedes_noun and not plural else ""
    out.add(form, out.word_indices[quality, "adjective"], before_vowel=special)


def _prepositional_phrase(out: French, place: PrepositionalPhrase):
    for form in place.preposition.fr:
        out.add(form, out.word_indices[place, "preposition"])
    _noun_phrase(out, place.phrase)


def _clause(out: French, clause: Clause, antecedent: NounPhrase | None):
    subject = clause.subject if clause.subject is not None else antecedent
    assert subject is not None
    adverb = clause.adverb
    if clause.fronted and adverb is not None:
        out.add(adverb.fr, out.word_indices[clause, "adverb"])
    if clause.subject is not None:
        _phrase(out, clause.subject)
    if clause.quality is not None:
        _finite(out, clause, BE[clause.tense][_person(subject)], _verb_links(out, clause))
        _adjective_phrase(out, clause.quality, gender_of(subject), plural=is_plural(subject))
    else:
        _verb(out, clause, subject, antecedent)
    if clause.object is not None:
        _phrase(out, clause.object)
    if clause.verb is not None:
        for phrase, form in ((clause.receiver, "à"), (clause.goal, clause.verb.goal and clause.verb.goal.fr)):
            if phrase is not None and form:
                out.add(form, out.word_indices[phrase, "preposition"])
                _noun_phrase(out, phrase)
    if clause.place is not None:
        _prepositional_phrase(out, clause.place)
    if adverb is not None and not clause.fronted and not adverb.beside_verb:
        out.add(adverb.fr, out.word_indices[clause, "adverb"])


def _verb_links(out: French, clause: Clause) -> Links:
    """The English verb with its auxiliary and particle: what a French verb of one word is aligned with."""
    return tuple(
        out.word_indices[clause, role]
        for role in ("auxiliary", "verb", "particle")
        if (clause, role) in out.word_indices
    )


def _finite(out: French, clause: Clause, form: str, links: Links):
    """The finite verb, between ne and pas if the clause is negated; then the adverbs that stand next to it."""
    if clause.negated:
        out.add("ne", out.word_indices[clause, "not"])
    out.add(form, *links)
    if clause.negated:
        out.add("pas", out.word_indices[clause, "not"])
    if clause.adverb is not None and clause.adverb.beside_verb:
        out.add(clause.adverb.fr, out.word_indices[clause, "adverb"])


def _verb(out: French, clause: Clause, subject: Phrase, antecedent: NounPhrase | None):
    assert clause.verb is not None
    verb, person = clause.verb, _person(subject)
    if clause.tense == "present":
        _finite(out, clause, verb.fr[person], _verb_links(out, clause))
    elif clause.tense == "future":
        _finite(out, clause, verb.fr[4] + FUTURE[person], _verb_links(out, clause))
    else:
        helper = HAVE if verb.fr_aux == "avoir" else BE["present"]
        role = "auxiliary" if (clause, "auxiliary") in out.word_indices else "verb"
        _finite(out, clause, helper[person], (out.word_indices[clause, role],))
        roles = [role for role in ("verb", "particle") if (clause, role) in out.word_indices]
        out.add(_participle(verb, clause, subject, antecedent), *[out.word_indices[clause, role] for role in roles])


def _participle(verb: Verb, clause: Clause, subject: Phrase, antecedent: NounPhrase | None) -> str:
    """With être it agrees with the subject, with avoir with an object that stands before: la souris qu'il a mangée."""
    form = verb.fr[3]
    leader = subject if verb.fr_aux == "être" else antecedent if clause.gap == "object" else None
    if leader is None:
        return form
    return inflect_agreement(form, form + "e", gender_of(leader), plural=is_plural(leader))
