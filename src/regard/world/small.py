"""The small words in three languages: determiners, names, pronouns, prepositions, adverbs, conjunctions."""

from dataclasses import dataclass

from regard.world.entries import Noun


@dataclass(frozen=True, eq=False)
class Determiner:
    """English singular and plural ("" where there is none); French masculine, feminine, plural and both before a vowel.

    German: how it bends (der, dies, ein, einig, or zwei for not at all) and its stem.
    """

    en: tuple[str, str]
    part: str
    fr: tuple[str, str, str, str, str]
    bends: str
    de: str
    definite: bool = False


@dataclass(frozen=True, eq=False)
class Preposition:
    """The kinds it governs, the kinds it describes ("" if it can also describe a deed), and the German case."""

    en: str
    fr: tuple[str, ...]
    de: str
    case: str
    kinds: frozenset[str]
    hosts: frozenset[str]
    adverbial: bool = True


@dataclass(frozen=True, eq=False)
class Adverb:
    """`group` is what a verb must take; tenses are those it goes with; French may want it next to the verb."""

    en: str
    fr: str
    de: str
    group: str
    tenses: tuple[str, ...] = ("present", "past", "future")
    beside_verb: bool = False
    valence: int = 0


@dataclass(frozen=True, eq=False)
class Conjunction:
    """Joins clauses. `final` sends the German verb to the end; `comma` is demanded before it."""

    en: str
    part: str
    fr: tuple[str, ...]
    de: str
    comma: bool
    final: bool


def _number(en: str, fr: str, de: str) -> Determiner:
    return Determiner(("", en), "NUM", ("", "", fr, "", ""), "zwei", de)


A = Determiner(("a", ""), "DET", ("un", "une", "", "un", "une"), "ein", "ein")
THE = Determiner(("the", "the"), "DET", ("le", "la", "les", "l'", "l'"), "der", "", definite=True)
THIS = Determiner(("this", "these"), "DET", ("ce", "cette", "ces", "cet", "cette"), "dies", "dies", definite=True)
MY = Determiner(("my", "my"), "PRON", ("mon", "ma", "mes", "mon", "mon"), "ein", "mein", definite=True)
HIS = Determiner(("his", "his"), "PRON", ("son", "sa", "ses", "son", "son"), "ein", "sein", definite=True)
HER = Determiner(("her", "her"), "PRON", ("son", "sa", "ses", "son", "son"), "ein", "ihr", definite=True)
OUR = Determiner(("our", "our"), "PRON", ("notre", "notre", "nos", "notre", "notre"), "ein", "unser", definite=True)
EVERY = Determiner(("every", ""), "DET", ("chaque", "chaque", "", "chaque", "chaque"), "dies", "jed")
SOME = Determiner(("", "some"), "DET", ("", "", "quelques", "", ""), "einig", "einig")
SEVERAL = Determiner(("", "several"), "ADJ", ("", "", "plusieurs", "", ""), "einig", "mehrer")
NUMBERS = tuple(
    _number(*words)
    for words in [
        ("two", "deux", "zwei"),
        ("three", "trois", "drei"),
        ("four", "quatre", "vier"),
        ("five", "cinq", "fünf"),
        ("six", "six", "sechs"),
        ("seven", "sept", "sieben"),
        ("eight", "huit", "acht"),
        ("ten", "dix", "zehn"),
    ]
)
# Repeated by how often they are wanted.
SINGULAR = (*[THE] * 9, *[A] * 5, THIS, THIS, MY, MY, HIS, HER, OUR, EVERY)
PLURAL = (*[THE] * 8, THIS, THIS, MY, MY, HIS, HER, OUR, SOME, SOME, SEVERAL, *NUMBERS)
OWNERS = (MY, HIS, HER, OUR)
DEFINITE = (*[THE] * 8, THIS, THIS, MY, MY, HIS, HER, OUR)


def _name(name: str, gender: str) -> Noun:
    kinds = frozenset([name, "person"])
    return Noun(name, (name, "-"), (name, "-"), gender, (name, "-", name), gender, kinds, part="PROPN")


NAMES = tuple(
    [_name(name, "f") for name in ("Anna", "Clara", "Emma", "Julia", "Laura", "Marie", "Nina", "Sophie")]
    + [_name(name, "m") for name in ("Felix", "Lucas", "Martin", "Max", "Oscar", "Paul", "Simon", "Thomas")]
)


def _pronoun(en: str, fr: str, de: str, gender: str, number: str) -> Noun:
    """A pronoun as a subject. Its plural form alone is filled where it has no singular."""
    return Noun(
        key=en,
        en=(en, en),
        fr=(fr, fr),
        fr_gender=gender,
        de=(de, de, de),
        de_gender=gender,
        kinds=frozenset([en, "person"]),
        part="PRON",
        plural_only=number == "plural",
        first_person=en == "we",
    )


PRONOUNS = (
    _pronoun("he", "il", "er", "m", "singular"),
    _pronoun("she", "elle", "sie", "f", "singular"),
    _pronoun("they", "ils", "sie", "m", "plural"),
    _pronoun("we", "nous", "wir", "m", "plural"),
)

_SMALL = frozenset(["host"])
_ALL = frozenset(["host", "site"])
_PEOPLE = frozenset(["person"])
IN = Preposition("in", ("dans",), "in", "dative", frozenset(["in"]), _SMALL)
ON = Preposition("on", ("sur",), "auf", "dative", frozenset(["on"]), _SMALL)
UNDER = Preposition("under", ("sous",), "unter", "dative", frozenset(["under"]), _SMALL)
BEHIND = Preposition("behind", ("derrière",), "hinter", "dative", frozenset(["by"]), _ALL)
BESIDE = Preposition("beside", ("à", "côté", "de"), "neben", "dative", frozenset(["by"]), _ALL)
WITH = Preposition(
    "with", ("avec",), "mit", "dative", frozenset(["carried", "dog", "cat", "bag", "horse"]), _PEOPLE, adverbial=False
)
WITHOUT = Preposition(
    "without", ("sans",), "ohne", "accusative", frozenset(["carried", "bag"]), _PEOPLE, adverbial=False
)
PREPOSITIONS = (IN, IN, ON, UNDER, BEHIND, BESIDE, WITH, WITHOUT)

ADVERBS = (
    Adverb("quickly", "rapidement", "schnell", "pace"),
    Adverb("slowly", "lentement", "langsam", "pace"),
    Adverb("well", "bien", "gut", "skill", beside_verb=True, valence=1),
    Adverb("badly", "mal", "schlecht", "skill", beside_verb=True, valence=-1),
    Adverb("happily", "joyeusement", "fröhlich", "mood", valence=1),
    Adverb("sadly", "tristement", "traurig", "mood", valence=-1),
    Adverb("carefully", "soigneusement", "sorgfältig", "care"),
    Adverb("often", "souvent", "oft", "often", beside_verb=True),
)
TIMES = (
    Adverb("yesterday", "hier", "gestern", "time", ("past",)),
    Adverb("tomorrow", "demain", "morgen", "time", ("future",)),
    Adverb("now", "maintenant", "jetzt", "time", ("present",)),
    Adverb("today", "aujourd'hui", "heute", "time"),
)

AND = Conjunction("and", "CCONJ", ("et",), "und", comma=False, final=False)
BUT = Conjunction("but", "CCONJ", ("mais",), "aber", comma=True, final=False)
BECAUSE = Conjunction("because", "SCONJ", ("parce", "que"), "weil", comma=True, final=True)
