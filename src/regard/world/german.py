"""German rendering: the words of a derivation, each aligned with the English words it translates."""

from dataclasses import dataclass

from regard.world.grammar import (
    AdjectivePhrase,
    Clause,
    Derivation,
    NounPhrase,
    Phrase,
    PrepositionalPhrase,
    is_definite,
    is_first_person,
    is_plural,
    noun_phrases,
)
from regard.world.lexicon import Determiner

# The columns of every table: masculine, feminine, neuter, plural.
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
CONTRACTED = {("in", "dem"): "im", ("zu", "dem"): "zum", ("zu", "der"): "zur"}
BE = {"present": ("ist", "sind"), "past": ("war", "waren")}
HAVE = ("hat", "haben")
WILL = ("wird", "werden")

Links = tuple[int, ...]


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
    _clause(out, derivation.clauses[0], None, final=False)
    for link, clause in zip(derivation.clause_links, derivation.clauses[1:], strict=True):
        if link.conjunction.comma:
            out.add(",", word_indices[link, "link"])
        out.add(link.conjunction.de, word_indices[link, "link"])
        _clause(out, clause, None, final=link.conjunction.final)
    return _merge_commas(out)


def _merge_commas(out: German) -> tuple[list[str], list[Links]]:
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


def _phrase(out: German, phrase: Phrase, case: str):
    first, *others = noun_phrases(phrase)
    _noun_phrase(out, first, case)
    for noun_phrase in others:
        out.add("und", out.word_indices[phrase, "and"])
        _noun_phrase(out, noun_phrase, case)


def _noun_phrase(out: German, noun_phrase: NounPhrase, case: str, preposition: tuple[str, int] | None = None):
    """A phrase in its case; a preposition before it contracts with the article (im, zum, zur)."""
    column = PLURAL if noun_phrase.plural else COLUMN[noun_phrase.noun.de_gender]
    determiner = noun_phrase.determiner
    article = inflect_determiner(determiner, case, column) if determiner is not None else ""
    contraction = CONTRACTED.get((preposition[0], article), "") if preposition is not None else ""
    if preposition is not None:
        form, link = preposition
        out.add(contraction or form, link, *([out.word_indices[noun_phrase, "determiner"]] if contraction else []))
    if article and not contraction:
        out.add(article, out.word_indices[noun_phrase, "determiner"])
    for quality in noun_phrase.adjective_phrases:
        _adjective_phrase(out, quality, adjective_ending(determiner, case, column))
    out.add(inflect_noun(noun_phrase, case), out.word_indices[noun_phrase, "noun"])
    if noun_phrase.place is not None:
        _prepositional_phrase(out, noun_phrase.place)
    if noun_phrase.relative is not None:
        marker = out.word_indices[noun_phrase.relative, "marker"]
        out.add(",", marker)
        gap = "nominative" if noun_phrase.relative.gap == "subject" else "accusative"
        out.add(ARTICLE[gap][column], marker)
        _clause(out, noun_phrase.relative, noun_phrase, final=True)
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


def _adjective_phrase(out: German, quality: AdjectivePhrase, ending: str):
    """An adjective with its ending; the predicative form has none."""
    if quality.very:
        out.add("sehr", out.word_indices[quality, "very"])
    base, stem = quality.adjective.de
    out.add(stem + ending if ending else base, out.word_indices[quality, "adjective"])


def _prepositional_phrase(out: German, place: PrepositionalPhrase):
    preposition = (place.preposition.de, out.word_indices[place, "preposition"])
    _noun_phrase(out, place.phrase, place.preposition.case, preposition)


def _clause(out: German, clause: Clause, antecedent: NounPhrase | None, *, final: bool):
    """The finite verb stands second, or last in a subordinate clause."""
    subject = clause.subject if clause.subject is not None else antecedent
    assert subject is not None
    finite, rest = _verb(out, clause, int(is_plural(subject) or is_first_person(subject)))
    if final:
        if clause.subject is not None:
            _phrase(out, clause.subject, "nominative")
        _middle(out, clause)
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
        _phrase(out, clause.subject, "nominative")
    else:
        _phrase(out, clause.subject, "nominative")
        out.add(finite[0], *finite[1])
    _middle(out, clause)
    if rest:
        out.add(rest[0], *rest[1])


def _middle(out: German, clause: Clause):
    """Between the two parts of the verb: time, receiver, object, nicht, manner, place."""
    adverb = None if clause.fronted else clause.adverb
    if adverb is not None and adverb.group == "time":
        out.add(adverb.de, out.word_indices[clause, "adverb"])
    if clause.receiver is not None:
        # "to" has no German word, only the dative: it is aligned with the article, or with a name that has none.
        here = len(out.words)
        _noun_phrase(out, clause.receiver, "dative")
        out.links[here] = (out.word_indices[clause.receiver, "preposition"], *out.links[here])
    if clause.object is not None:
        _phrase(out, clause.object, "accusative")
    if clause.negated:
        assert clause.object is None or is_definite(clause.object)
        out.add("nicht", out.word_indices[clause, "not"])
    if adverb is not None and adverb.group != "time":
        out.add(adverb.de, out.word_indices[clause, "adverb"])
    if clause.goal is not None and clause.verb is not None and clause.verb.goal is not None:
        preposition = (clause.verb.goal.de, out.word_indices[clause.goal, "preposition"])
        _noun_phrase(out, clause.goal, "dative", preposition)
    if clause.place is not None:
        _prepositional_phrase(out, clause.place)
    if clause.quality is not None:
        _adjective_phrase(out, clause.quality, "")


VerbPart = tuple[str, Links]


def _verb(out: German, clause: Clause, many: int) -> tuple[VerbPart, VerbPart | None]:
    """The finite word and what stands at the end of the clause: prefix, participle or infinitive."""
    at = out.word_indices
    lexical = (at[clause, "verb"],)
    helper = (at[clause, "auxiliary"],) if (clause, "auxiliary") in at else ()
    if clause.verb is None:
        if clause.tense == "future":
            return (WILL[many], helper), ("sein", lexical)
        return (BE[clause.tense][many], lexical), None
    prefix, infinitive, present, participle = clause.verb.de
    particle = (at[clause, "particle"],) if (clause, "particle") in at else ()
    if clause.tense == "future":
        return (WILL[many], helper), (prefix + infinitive, lexical + particle)
    if clause.tense == "past":
        auxiliary = BE["present"] if clause.verb.de_aux == "sein" else HAVE
        return (auxiliary[many], helper or lexical), (participle, lexical + particle)
    finite = (infinitive if many else present, helper + lexical)
    return finite, (prefix, particle or lexical) if prefix else None
