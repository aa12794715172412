"""Lexical entries: one sense of a word in three languages at once, parsed from the lines of a table.

A key is the English word, with its sense after a dot where the word has several (bat.animal, bat.club).
Kinds are the selectional restrictions of verbs and adjectives; a noun's own key is one of its kinds.
"""

from dataclasses import dataclass, field

CONSONANTS = frozenset("bcdfghjklmnpqrstvwxz")


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun, name or pronoun. German forms: nominative singular, plural, and the other cases of the singular."""

    key: str
    en: tuple[str, str]
    fr: tuple[str, str]
    fr_gender: str
    de: tuple[str, str, str]
    de_gender: str
    kinds: frozenset[str]
    upos: str = "NOUN"
    plural_only: bool = False
    first_person: bool = False

    @property
    def countable(self) -> bool:
        return self.en[1] != "-"


@dataclass(frozen=True, eq=False)
class Adjective:
    """French: masculine, feminine, masculine before a vowel. German: predicative form, stem of the inflected ones."""

    key: str
    en: str
    fr: tuple[str, str, str]
    precedes_noun: bool
    de: tuple[str, str]
    rank: int
    kinds: frozenset[str]
    gradable: bool = False
    predicative: bool = True
    valence: int = 0


@dataclass(frozen=True)
class Goal:
    """Goal of a verb of motion: the preposition in three languages (the German one with the dative) and the kinds."""

    en: str
    fr: str
    de: str
    kinds: frozenset[str]


@dataclass(frozen=True, eq=False)
class Verb:
    """English: base, third person, past. French: present of il, nous, ils; participle; stem of the future.

    German: separable prefix, infinitive and present without it, participle.
    """

    key: str
    en: tuple[str, str, str]
    particle: str
    fr: tuple[str, str, str, str, str]
    fr_aux: str
    de: tuple[str, str, str, str]
    de_aux: str
    subjects: frozenset[str]
    objects: frozenset[str]
    receives: bool = False
    goal: Goal | None = None
    features: frozenset[str] = field(default_factory=frozenset)
    valence: int = 0


def parse_nouns(table: str) -> tuple[Noun, ...]:
    """Lines such as `mouse/mice | souris f | Maus/Mäuse f | animal prey`."""
    return tuple(_noun(*[cell.strip() for cell in line.split("|")]) for line in table.strip().splitlines())


def parse_adjectives(table: str) -> tuple[Adjective, ...]:
    """Lines such as `beautiful | beau belle bel before | schön | 0 + very | person animal`."""
    return tuple(_adjective(*[cell.strip() for cell in line.split("|")]) for line in table.strip().splitlines())


def parse_verbs(table: str) -> tuple[Verb, ...]:
    """Lines such as `see saw | voit voyons voient vu verr | sehen sieht gesehen | person | thing | pace`."""
    return tuple(_verb(*[cell.strip() for cell in line.split("|")]) for line in table.strip().splitlines())


def french_plural(word: str) -> str:
    if word[-1] in "sxz":
        return word
    return word + ("x" if word.endswith("eau") else "s")


def _with_s(word: str) -> str:
    """An English word with its s: box, boxes; story, stories; go, goes."""
    if word.endswith("y") and word[-2] in CONSONANTS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "o")) else "s")


def _past(word: str) -> str:
    if word.endswith("y") and word[-2] in CONSONANTS:
        return word[:-1] + "ied"
    return word + ("d" if word.endswith("e") else "ed")


def _noun(english: str, french: str, german: str, kinds: str) -> Noun:
    key, _, plural = english.partition("/")
    word = key.split(".")[0]
    (fr, fr_gender), (de, de_gender) = french.split(), german.split()
    fr, _, fr_plural = fr.partition("/")
    forms = de.split("/")
    return Noun(
        key=key,
        en=(word, plural or _with_s(word)),
        fr=(fr, fr_plural or french_plural(fr)),
        fr_gender=fr_gender,
        de=(forms[0], forms[1], forms[2] if len(forms) > 2 else forms[0]),
        de_gender=de_gender,
        kinds=frozenset([key, *kinds.split()]),
    )


def _adjective(key: str, french: str, german: str, features: str, kinds: str) -> Adjective:
    rank, *flags = features.split()
    before = french.endswith(" before")
    forms = french.removesuffix(" before").split()
    predicative, *stem = german.split()
    return Adjective(
        key=key,
        en=key.split(".")[0],
        fr=(forms[0], forms[1], forms[2] if len(forms) > 2 else forms[0]),
        precedes_noun=before,
        de=(predicative, stem[0] if stem else predicative),
        rank=int(rank),
        kinds=frozenset(kinds.split()),
        gradable="very" in flags,
        predicative="attributive" not in flags,
        valence=("+" in flags) - ("-" in flags),
    )


def _french_verb(forms: list[str]) -> tuple[str, str, str, str, str]:
    """The five principal parts; a regular verb in -er gives them by its infinitive alone."""
    if len(forms) == 5:
        return forms[0], forms[1], forms[2], forms[3], forms[4]
    (infinitive,) = forms
    stem = infinitive.removesuffix("er")
    soft = stem[:-1] + "ç" if stem.endswith("c") else stem + "e" if stem.endswith("g") else stem
    return stem + "e", soft + "ons", stem + "ent", stem + "é", infinitive


def _verb(english: str, french: str, german: str, subjects: str, objects: str, features: str) -> Verb:
    key, *past = english.split()
    flags = features.split()
    base = key.split(".")[0].split("_")[0]
    french_forms, german_forms = french.split(), german.split()
    prefix, _, infinitive = german_forms[0].rpartition("~")
    goal, receives, accepted = None, False, objects.split()
    if accepted and accepted[0] == "whom":
        receives, accepted = True, accepted[1:]
    if accepted and accepted[0] in ("to", "from"):
        goal, accepted = Goal(*accepted[:3], kinds=frozenset(accepted[3:])), []
    return Verb(
        key=key,
        en=(base, _with_s(base), past[0] if past else _past(base)),
        particle=key.partition("_")[2],
        fr=_french_verb([form for form in french_forms if form != "être"]),
        fr_aux="être" if "être" in french_forms else "avoir",
        de=(prefix, infinitive, german_forms[1], german_forms[2]),
        de_aux="sein" if "sein" in german_forms else "haben",
        subjects=frozenset(subjects.split()),
        objects=frozenset(accepted),
        receives=receives,
        goal=goal,
        features=frozenset(flags) - {"+", "-"},
        valence=("+" in flags) - ("-" in flags),
    )
