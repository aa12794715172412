"""Rendering: the words of a derivation in English, with tags and governors, and in French and German, with links."""

from dataclasses import dataclass, field

from regard.world.grammar import (
    AdjectivePhrase,
    Clause,
    Coordination,
    Derivation,
    NounPhrase,
    Phrase,
    PrepositionalPhrase,
    is_definite,
    is_first_person,
    is_plural,
    noun_phrases,
)
from regard.world.lexicon import Determiner, Verb, french_plural

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
    first = previous = _english_clause(out, derivation.clauses[0], None)
    out.governors[first] = ROOT
    for link, clause in zip(derivation.clause_links, derivation.clauses[1:], strict=True):
        marker = out.add(link.conjunction.en, link.conjunction.upos, link, "link")
        verb = _english_clause(out, clause, None)
        out.attach(verb, marker)
        # A causal clause is attached to the one before it; the others are all attached to the first.
        out.attach(previous if link.conjunction.final else first, verb)
        previous = verb
    for index, word in enumerate(out.words[:-1]):
        if word == "a" and out.words[index + 1][0] in "aeiou":
            out.words[index] = "an"
    return out


def _english_phrase(out: English, phrase: Phrase) -> int:
    if isinstance(phrase, Coordination):
        left = _english_noun_phrase(out, phrase.left)
        link = out.add("and", "CCONJ", phrase, "and")
        right = _english_noun_phrase(out, phrase.right)
        out.attach(right, link)
        out.attach(left, right)
        return left
    return _english_noun_phrase(out, phrase)


def _english_noun_phrase(out: English, noun_phrase: NounPhrase) -> int:
    before = []
    if noun_phrase.determiner is not None:
        before.append(
            out.add(
                noun_phrase.determiner.en[noun_phrase.plural], noun_phrase.determiner.upos, noun_phrase, "determiner"
            )
        )
    before += [_english_adjective_phrase(out, quality) for quality in noun_phrase.adjective_phrases]
    noun = out.add(noun_phrase.noun.en[noun_phrase.plural], noun_phrase.noun.upos, noun_phrase, "noun")
    out.attach(noun, *before)
    if noun_phrase.place is not None:
        out.attach(noun, _english_prepositional_phrase(out, noun_phrase.place))
    if noun_phrase.relative is not None:
        clause = noun_phrase.relative
        person = "person" in noun_phrase.noun.kinds and clause.gap == "subject"
        marker = out.add("who" if person else "that", "PRON", clause, "marker")
        verb = _english_clause(out, clause, noun_phrase)
        out.attach(verb, marker)
        out.attach(noun, verb)
    return noun


def _english_adjective_phrase(out: English, quality: AdjectivePhrase) -> int:
    if not quality.very:
        return out.add(quality.adjective.en, "ADJ", quality, "adjective")
    very = out.add("very", "ADV", quality, "very")
    adjective = out.add(quality.adjective.en, "ADJ", quality, "adjective")
    out.attach(adjective, very)
    return adjective


def _english_prepositional_phrase(out: English, place: PrepositionalPhrase) -> int:
    preposition = out.add(place.preposition.en, "ADP", place, "preposition")
    noun = _english_noun_phrase(out, place.phrase)
    out.attach(noun, preposition)
    return noun


def _english_clause(out: English, clause: Clause, antecedent: NounPhrase | None) -> int:
    """The index of the clause's root: its verb, or its predicative adjective."""
    subject = clause.subject if clause.subject is not None else antecedent
    assert subject is not None
    dependents = []
    if clause.fronted and clause.adverb is not None:
        dependents.append(out.add(clause.adverb.en, "ADV", clause, "adverb"))
    if clause.subject is not None:
        dependents.append(_english_phrase(out, clause.subject))
    if clause.quality is not None:
        dependents += _english_copula(out, clause, subject)
        root = _english_adjective_phrase(out, clause.quality)
    else:
        helpers, root = _english_verb(out, clause, subject)
        dependents += helpers
    if clause.object is not None:
        dependents.append(_english_phrase(out, clause.object))
    if clause.verb is not None:
        for phrase, preposition in ((clause.receiver, "to"), (clause.goal, clause.verb.goal and clause.verb.goal.en)):
            if phrase is not None and preposition:
                marker = out.add(preposition, "ADP", phrase, "preposition")
                dependents.append(_english_noun_phrase(out, phrase))
                out.attach(dependents[-1], marker)
    if clause.place is not None:
        dependents.append(_english_prepositional_phrase(out, clause.place))
    if clause.adverb is not None and not clause.fronted:
        dependents.append(out.add(clause.adverb.en, "ADV", clause, "adverb"))
    out.attach(root, *dependents)
    return root


def _english_copula(out: English, clause: Clause, subject: Phrase) -> list[int]:
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


def _english_verb(out: English, clause: Clause, subject: Phrase) -> tuple[list[int], int]:
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


# --- French ---


VOWELS = frozenset("aeiouyàâéèêëîïôöûüœ")
# An h that forbids elision; any other h is mute.
ASPIRATED = frozenset(["hache", "haches", "harpe", "harpes", "hérisson", "hérissons", "hibou", "hiboux", "huit"])
# Elision before a vowel.
ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "que": "qu'"}
FRENCH_CONTRACTED = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}
FRENCH_BE = {
    "present": ("est", "sommes", "sont"),
    "past": ("était", "étions", "étaient"),
    "future": ("sera", "serons", "seront"),
}
FRENCH_HAVE = ("a", "avons", "ont")
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
    _french_clause(out, derivation.clauses[0], None)
    for link, clause in zip(derivation.clause_links, derivation.clauses[1:], strict=True):
        for form in link.conjunction.fr:
            out.add(form, word_indices[link, "link"])
        _french_clause(out, clause, None)
    return _french_elide_and_contract(out.words)


def _french_elide_and_contract(words: list[FrenchWord]) -> tuple[list[str], list[Links]]:
    """Elision and contraction: le arbre becomes l' arbre, de le chat becomes du chat, à la souris stays."""
    forms, links = [], []
    for index, word in enumerate(words):
        follows = words[index + 1].form if index + 1 < len(words) else ""
        form = word.before_vowel if follows and starts_with_vowel(follows) else word.form
        if forms and (forms[-1], form) in FRENCH_CONTRACTED:
            forms[-1] = FRENCH_CONTRACTED[forms[-1], form]
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


def _french_person(phrase: Phrase) -> int:
    """Which of the forms il, nous, ils goes with the phrase."""
    return 1 if is_first_person(phrase) else 2 if is_plural(phrase) else 0


def _french_phrase(out: French, phrase: Phrase):
    first, *others = noun_phrases(phrase)
    _french_noun_phrase(out, first)
    for noun_phrase in others:
        out.add("et", out.word_indices[phrase, "and"])
        _french_noun_phrase(out, noun_phrase)


def _french_noun_phrase(out: French, noun_phrase: NounPhrase):
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
            _french_adjective_phrase(out, quality, gender, plural=plural)
    out.add(noun_phrase.noun.fr[plural], out.word_indices[noun_phrase, "noun"])
    # Two adjectives behind the noun stand in reverse order: the hungry black cat, le chat noir affamé.
    for quality in reversed(noun_phrase.adjective_phrases):
        if not quality.adjective.precedes_noun:
            _french_adjective_phrase(out, quality, gender, plural=plural)
    if noun_phrase.place is not None:
        _french_prepositional_phrase(out, noun_phrase.place)
    if noun_phrase.relative is not None:
        marker = out.word_indices[noun_phrase.relative, "marker"]
        out.add("qui" if noun_phrase.relative.gap == "subject" else "que", marker)
        _french_clause(out, noun_phrase.relative, noun_phrase)


def _french_adjective_phrase(out: French, quality: AdjectivePhrase, gender: str, *, plural: bool):
    if quality.very:
        out.add("très", out.word_indices[quality, "very"])
    masculine, feminine, before_vowel = quality.adjective.fr
    form = inflect_agreement(masculine, feminine, gender, plural=plural)
    special = before_vowel if form == masculine and quality.adjective.precedes_noun and not plural else ""
    out.add(form, out.word_indices[quality, "adjective"], before_vowel=special)


def _french_prepositional_phrase(out: French, place: PrepositionalPhrase):
    for form in place.preposition.fr:
        out.add(form, out.word_indices[place, "preposition"])
    _french_noun_phrase(out, place.phrase)


def _french_clause(out: French, clause: Clause, antecedent: NounPhrase | None):
    subject = clause.subject if clause.subject is not None else antecedent
    assert subject is not None
    adverb = clause.adverb
    if clause.fronted and adverb is not None:
        out.add(adverb.fr, out.word_indices[clause, "adverb"])
    if clause.subject is not None:
        _french_phrase(out, clause.subject)
    if clause.quality is not None:
        _french_finite(out, clause, FRENCH_BE[clause.tense][_french_person(subject)], _french_verb_links(out, clause))
        _french_adjective_phrase(out, clause.quality, gender_of(subject), plural=is_plural(subject))
    else:
        _french_verb(out, clause, subject, antecedent)
    if clause.object is not None:
        _french_phrase(out, clause.object)
    if clause.verb is not None:
        for phrase, form in ((clause.receiver, "à"), (clause.goal, clause.verb.goal and clause.verb.goal.fr)):
            if phrase is not None and form:
                out.add(form, out.word_indices[phrase, "preposition"])
                _french_noun_phrase(out, phrase)
    if clause.place is not None:
        _french_prepositional_phrase(out, clause.place)
    if adverb is not None and not clause.fronted and not adverb.beside_verb:
        out.add(adverb.fr, out.word_indices[clause, "adverb"])


def _french_verb_links(out: French, clause: Clause) -> Links:
    """The English verb with its auxiliary and particle: what a French verb of one word is aligned with."""
    return tuple(
        out.word_indices[clause, role]
        for role in ("auxiliary", "verb", "particle")
        if (clause, role) in out.word_indices
    )


def _french_finite(out: French, clause: Clause, form: str, links: Links):
    """The finite verb, between ne and pas if the clause is negated; then the adverbs that stand next to it."""
    if clause.negated:
        out.add("ne", out.word_indices[clause, "not"])
    out.add(form, *links)
    if clause.negated:
        out.add("pas", out.word_indices[clause, "not"])
    if clause.adverb is not None and clause.adverb.beside_verb:
        out.add(clause.adverb.fr, out.word_indices[clause, "adverb"])


def _french_verb(out: French, clause: Clause, subject: Phrase, antecedent: NounPhrase | None):
    assert clause.verb is not None
    verb, person = clause.verb, _french_person(subject)
    if clause.tense == "present":
        _french_finite(out, clause, verb.fr[person], _french_verb_links(out, clause))
    elif clause.tense == "future":
        _french_finite(out, clause, verb.fr[4] + FUTURE[person], _french_verb_links(out, clause))
    else:
        helper = FRENCH_HAVE if verb.fr_aux == "avoir" else FRENCH_BE["present"]
        role = "auxiliary" if (clause, "auxiliary") in out.word_indices else "verb"
        _french_finite(out, clause, helper[person], (out.word_indices[clause, role],))
        roles = [role for role in ("verb", "particle") if (clause, role) in out.word_indices]
        out.add(
            _french_participle(verb, clause, subject, antecedent), *[out.word_indices[clause, role] for role in roles]
        )


def _french_participle(verb: Verb, clause: Clause, subject: Phrase, antecedent: NounPhrase | None) -> str:
    """With être it agrees with the subject, with avoir with an object that stands before: la souris qu'il a mangée."""
    form = verb.fr[3]
    leader = subject if verb.fr_aux == "être" else antecedent if clause.gap == "object" else None
    if leader is None:
        return form
    return inflect_agreement(form, form + "e", gender_of(leader), plural=is_plural(leader))


# The columns of every table: masculine, feminine, neuter, plural.
# --- German ---


COLUMN = {"m": 0, "f": 1, "n": 2}
PLURAL = 3


def declension(nominative: str, accusative: str, dative: str) -> dict[str, tuple[str, ...]]:
    """The forms or endings of each case; "-" is no ending."""
    cases = {"nominative": nominative, "accusative": accusative, "dative": dative}
    return {case: tuple("" if form == "-" else form for form in forms.split()) for case, forms in cases.items()}


ARTICLE = declension("der die das die", "den die das die", "dem der dem den")
# dieser, jeder; and the ending that einige, mehrere take in the plural.
STRONG = declension("er e es e", "en e es e", "em er em en")
# ein, mein: without an ending where dieser would say -er or -es.
MIXED = declension("- e - e", "en e - e", "em er em en")
AFTER_DER = declension("e e e en", "en e e en", "en en en en")
AFTER_EIN = declension("er e es en", "en e es en", "en en en en")
GERMAN_CONTRACTED = {("in", "dem"): "im", ("zu", "dem"): "zum", ("zu", "der"): "zur"}
GERMAN_BE = {"present": ("ist", "sind"), "past": ("war", "waren")}
GERMAN_HAVE = ("hat", "haben")
WILL = ("wird", "werden")


@dataclass(slots=True)
class German:
    """A sentence under construction, with the indices of the English words."""

    word_indices: dict[tuple[object, str], int]
    words: list[str]
    links: list[Links]

    def add(self, form: str, *links: int):
        self.words.append(form)
        self.links.append(links)


def render_german(derivation: Derivation, word_indices: dict[tuple[object, str], int]) -> tuple[list[str], list[Links]]:
    out = German(word_indices, [], [])
    _german_clause(out, derivation.clauses[0], None, final=False)
    for link, clause in zip(derivation.clause_links, derivation.clauses[1:], strict=True):
        if link.conjunction.comma:
            out.add(",", word_indices[link, "link"])
        out.add(link.conjunction.de, word_indices[link, "link"])
        _german_clause(out, clause, None, final=link.conjunction.final)
    return _german_merge_commas(out)


def _german_merge_commas(out: German) -> tuple[list[str], list[Links]]:
    """Adjacent commas become one, aligned with what requires either; a comma at the end goes."""
    words, links = [], []
    for word, link in zip(out.words, out.links, strict=True):
        if word == "," and words[-1] == ",":
            links[-1] = (*links[-1], *link)
        else:
            words.append(word)
            links.append(link)
    if words[-1] == ",":
        del words[-1], links[-1]
    return words, links


def _german_phrase(out: German, phrase: Phrase, case: str):
    first, *others = noun_phrases(phrase)
    _german_noun_phrase(out, first, case)
    for noun_phrase in others:
        out.add("und", out.word_indices[phrase, "and"])
        _german_noun_phrase(out, noun_phrase, case)


def _german_noun_phrase(out: German, noun_phrase: NounPhrase, case: str, preposition: tuple[str, int] | None = None):
    """A phrase in its case; a preposition before it contracts with the article (im, zum, zur)."""
    column = PLURAL if noun_phrase.plural else COLUMN[noun_phrase.noun.de_gender]
    determiner = noun_phrase.determiner
    article = inflect_determiner(determiner, case, column) if determiner is not None else ""
    contraction = GERMAN_CONTRACTED.get((preposition[0], article), "") if preposition is not None else ""
    if preposition is not None:
        form, link = preposition
        out.add(contraction or form, link, *([out.word_indices[noun_phrase, "determiner"]] if contraction else []))
    if article and not contraction:
        out.add(article, out.word_indices[noun_phrase, "determiner"])
    for quality in noun_phrase.adjective_phrases:
        _german_adjective_phrase(out, quality, adjective_ending(determiner, case, column))
    out.add(inflect_noun(noun_phrase, case), out.word_indices[noun_phrase, "noun"])
    if noun_phrase.place is not None:
        _german_prepositional_phrase(out, noun_phrase.place)
    if noun_phrase.relative is not None:
        marker = out.word_indices[noun_phrase.relative, "marker"]
        out.add(",", marker)
        gap = "nominative" if noun_phrase.relative.gap == "subject" else "accusative"
        out.add(ARTICLE[gap][column], marker)
        _german_clause(out, noun_phrase.relative, noun_phrase, final=True)
        out.add(",", marker)


def inflect_noun(noun_phrase: NounPhrase, case: str) -> str:
    singular, plural, oblique = noun_phrase.noun.de
    if not noun_phrase.plural:
        return singular if case == "nominative" else oblique
    return plural + "n" if case == "dative" and plural[-1] not in "ns" else plural


def inflect_determiner(determiner: Determiner, case: str, column: int) -> str:
    match determiner.declension:
        case "der":
            return ARTICLE[case][column]
        case "ein":
            return determiner.de + MIXED[case][column]
        case "dies" | "einig":
            return determiner.de + STRONG[case][column]
        case _:
            return determiner.de


def adjective_ending(determiner: Determiner | None, case: str, column: int) -> str:
    """The ending of an adjective: weak behind der and dieser, mixed behind ein and mein, strong behind zwei."""
    assert determiner is not None
    match determiner.declension:
        case "der" | "dies":
            return AFTER_DER[case][column]
        case "ein":
            return AFTER_EIN[case][column]
        case _:
            return STRONG[case][column]


def _german_adjective_phrase(out: German, quality: AdjectivePhrase, ending: str):
    """An adjective with its ending; the predicative form has none."""
    if quality.very:
        out.add("sehr", out.word_indices[quality, "very"])
    base, stem = quality.adjective.de
    out.add(stem + ending if ending else base, out.word_indices[quality, "adjective"])


def _german_prepositional_phrase(out: German, place: PrepositionalPhrase):
    preposition = (place.preposition.de, out.word_indices[place, "preposition"])
    _german_noun_phrase(out, place.phrase, place.preposition.case, preposition)


def _german_clause(out: German, clause: Clause, antecedent: NounPhrase | None, *, final: bool):
    """The finite verb stands second, or last in a subordinate clause."""
    subject = clause.subject if clause.subject is not None else antecedent
    assert subject is not None
    finite, rest = _german_verb(out, clause, int(is_plural(subject) or is_first_person(subject)))
    if final:
        if clause.subject is not None:
            _german_phrase(out, clause.subject, "nominative")
        _german_middle(out, clause)
        # zündet ... an joins up again at the end of the clause; a participle or infinitive comes first.
        if clause.verb is not None and rest and rest[0] == clause.verb.de[0]:
            out.add(rest[0] + finite[0], *sorted({*rest[1], *finite[1]}))
        else:
            if rest:
                out.add(rest[0], *rest[1])
            out.add(finite[0], *finite[1])
        return
    assert clause.subject is not None
    if clause.fronted:
        assert clause.adverb is not None
        out.add(clause.adverb.de, out.word_indices[clause, "adverb"])
        out.add(finite[0], *finite[1])
        _german_phrase(out, clause.subject, "nominative")
    else:
        _german_phrase(out, clause.subject, "nominative")
        out.add(finite[0], *finite[1])
    _german_middle(out, clause)
    if rest:
        out.add(rest[0], *rest[1])


def _german_middle(out: German, clause: Clause):
    """Between the two parts of the verb: time, receiver, object, nicht, manner, place."""
    adverb = None if clause.fronted else clause.adverb
    if adverb is not None and adverb.group == "time":
        out.add(adverb.de, out.word_indices[clause, "adverb"])
    if clause.receiver is not None:
        # "to" has no German word, only the dative: it is aligned with the article, or with a name that has none.
        here = len(out.words)
        _german_noun_phrase(out, clause.receiver, "dative")
        out.links[here] = (out.word_indices[clause.receiver, "preposition"], *out.links[here])
    if clause.object is not None:
        _german_phrase(out, clause.object, "accusative")
    if clause.negated:
        assert clause.object is None or is_definite(clause.object)
        out.add("nicht", out.word_indices[clause, "not"])
    if adverb is not None and adverb.group != "time":
        out.add(adverb.de, out.word_indices[clause, "adverb"])
    if clause.goal is not None and clause.verb is not None and clause.verb.goal is not None:
        preposition = (clause.verb.goal.de, out.word_indices[clause.goal, "preposition"])
        _german_noun_phrase(out, clause.goal, "dative", preposition)
    if clause.place is not None:
        _german_prepositional_phrase(out, clause.place)
    if clause.quality is not None:
        _german_adjective_phrase(out, clause.quality, "")


VerbPart = tuple[str, Links]


def _german_verb(out: German, clause: Clause, many: int) -> tuple[VerbPart, VerbPart | None]:
    """The finite word and what stands at the end of the clause: prefix, participle or infinitive."""
    at = out.word_indices
    lexical = (at[clause, "verb"],)
    helper = (at[clause, "auxiliary"],) if (clause, "auxiliary") in at else ()
    if clause.verb is None:
        if clause.tense == "future":
            return (WILL[many], helper), ("sein", lexical)
        return (GERMAN_BE[clause.tense][many], lexical), None
    prefix, infinitive, present, participle = clause.verb.de
    particle = (at[clause, "particle"],) if (clause, "particle") in at else ()
    if clause.tense == "future":
        return (WILL[many], helper), (prefix + infinitive, lexical + particle)
    if clause.tense == "past":
        auxiliary = GERMAN_BE["present"] if clause.verb.de_aux == "sein" else GERMAN_HAVE
        return (auxiliary[many], helper or lexical), (participle, lexical + particle)
    finite = (infinitive if many else present, helper + lexical)
    return finite, (prefix, particle or lexical) if prefix else None
