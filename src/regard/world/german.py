"""A derivation and the places of its English words in, German out: words, each with the English words it renders."""

from dataclasses import dataclass

from regard.world.small import Determiner
from regard.world.tree import (
    Clause,
    Phrase,
    Place,
    Quality,
    Thing,
    Whole,
    is_definite,
    is_first_person,
    is_plural,
    things,
)

# The columns of every table: masculine, feminine, neuter, plural.
COLUMN = {"m": 0, "f": 1, "n": 2}
PLURAL = 3
ARTICLE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
}
# dieser, jeder; and the ending that einige, mehrere take in the plural.
STRONG = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
}
# ein, mein: without an ending where dieser would say -er or -es.
MIXED = {"nominative": ("", "e", "", "e"), "accusative": ("en", "e", "", "e"), "dative": ("em", "er", "em", "en")}
AFTER_DER = {
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
}
AFTER_EIN = {
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
    "dative": ("en", "en", "en", "en"),
}
CONTRACTED = {("in", "dem"): "im", ("zu", "dem"): "zum", ("zu", "der"): "zur"}
BE = {"present": ("ist", "sind"), "past": ("war", "waren")}
HAVE = ("hat", "haben")
WILL = ("wird", "werden")

Links = tuple[int, ...]


@dataclass(slots=True)
class German:
    """A sentence being written, with the places of the English words."""

    at: dict[tuple[object, str], int]
    words: list[str]
    links: list[Links]

    def add(self, form: str, *links: int):
        self.words.append(form)
        self.links.append(links)


def german(whole: Whole, at: dict[tuple[object, str], int]) -> tuple[list[str], list[Links]]:
    out = German(at, [], [])
    _clause(out, whole.clauses[0], None, final=False)
    for joint, clause in zip(whole.joints, whole.clauses[1:], strict=True):
        if joint.conjunction.comma:
            out.add(",", at[joint, "joint"])
        out.add(joint.conjunction.de, at[joint, "joint"])
        _clause(out, clause, None, final=joint.conjunction.final)
    return _punctuated(out)


def _punctuated(out: German) -> tuple[list[str], list[Links]]:
    """Where two commas meet one remains, linked to what demands either; none ends the sentence."""
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
    first, *others = things(phrase)
    _thing(out, first, case)
    for thing in others:
        out.add("und", out.at[phrase, "and"])
        _thing(out, thing, case)


def _thing(out: German, thing: Thing, case: str, preposition: tuple[str, int] | None = None):
    """A phrase in its case; the preposition before it, if any, melts with the article (im, zum, zur)."""
    column = PLURAL if thing.plural else COLUMN[thing.noun.de_gender]
    determiner = thing.determiner
    article = determined(determiner, case, column) if determiner is not None else ""
    melted = CONTRACTED.get((preposition[0], article), "") if preposition is not None else ""
    if preposition is not None:
        form, link = preposition
        out.add(melted or form, link, *([out.at[thing, "determiner"]] if melted else []))
    if article and not melted:
        out.add(article, out.at[thing, "determiner"])
    for quality in thing.qualities:
        _quality(out, quality, ending(determiner, case, column))
    out.add(noun_form(thing, case), out.at[thing, "noun"])
    if thing.place is not None:
        _place(out, thing.place)
    if thing.relative is not None:
        marker = out.at[thing.relative, "marker"]
        out.add(",", marker)
        gap = "nominative" if thing.relative.gap == "subject" else "accusative"
        out.add(ARTICLE[gap][column], marker)
        _clause(out, thing.relative, thing, final=True)
        out.add(",", marker)


def noun_form(thing: Thing, case: str) -> str:
    singular, plural, oblique = thing.noun.de
    if not thing.plural:
        return singular if case == "nominative" else oblique
    return plural + "n" if case == "dative" and plural[-1] not in "ns" else plural


def determined(determiner: Determiner, case: str, column: int) -> str:
    match determiner.bends:
        case "der":
            return ARTICLE[case][column]
        case "ein":
            return determiner.de + MIXED[case][column]
        case "dies" | "einig":
            return determiner.de + STRONG[case][column]
        case _:
            return determiner.de


def ending(determiner: Determiner | None, case: str, column: int) -> str:
    """The ending of an adjective: weak behind der and dieser, mixed behind ein and mein, strong behind zwei."""
    assert determiner is not None
    match determiner.bends:
        case "der" | "dies":
            return AFTER_DER[case][column]
        case "ein":
            return AFTER_EIN[case][column]
        case _:
            return STRONG[case][column]


def _quality(out: German, quality: Quality, ending: str):
    """An adjective with its ending; the predicative form has none."""
    if quality.very:
        out.add("sehr", out.at[quality, "very"])
    base, stem = quality.adjective.de
    out.add(stem + ending if ending else base, out.at[quality, "adjective"])


def _place(out: German, place: Place):
    preposition = (place.preposition.de, out.at[place, "preposition"])
    _thing(out, place.phrase, place.preposition.case, preposition)


def _clause(out: German, clause: Clause, antecedent: Thing | None, *, final: bool):
    """The finite verb stands second, or last where a subordinate clause demands it."""
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
        out.add(clause.adverb.de, out.at[clause, "adverb"])
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
        out.add(adverb.de, out.at[clause, "adverb"])
    if clause.receiver is not None:
        # English says to, German says it by the case: to meets the article, or the name that has none.
        here = len(out.words)
        _thing(out, clause.receiver, "dative")
        out.links[here] = (out.at[clause.receiver, "preposition"], *out.links[here])
    if clause.object is not None:
        _phrase(out, clause.object, "accusative")
    if clause.negated:
        assert clause.object is None or is_definite(clause.object)
        out.add("nicht", out.at[clause, "not"])
    if adverb is not None and adverb.group != "time":
        out.add(adverb.de, out.at[clause, "adverb"])
    if clause.goal is not None and clause.verb is not None and clause.verb.goal is not None:
        preposition = (clause.verb.goal.de, out.at[clause.goal, "preposition"])
        _thing(out, clause.goal, "dative", preposition)
    if clause.place is not None:
        _place(out, clause.place)
    if clause.quality is not None:
        _quality(out, clause.quality, "")


Part = tuple[str, Links]


def _verb(out: German, clause: Clause, many: int) -> tuple[Part, Part | None]:
    """The finite word and what stands at the end of the clause: prefix, participle or infinitive."""
    at = out.at
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
