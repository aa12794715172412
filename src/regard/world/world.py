"""World: an endless source of sentences by seed and number, and the sentences of the lectures."""

from collections.abc import Iterator
from dataclasses import dataclass

from regard.world.grammar import (
    SHORTEST,
    AdjectivePhrase,
    Clause,
    Derivation,
    DerivationError,
    Grammar,
    NounPhrase,
    Tense,
)
from regard.world.lexicon import SPLITS, Split, composition_split
from regard.world.sentence import LANGUAGES, Ambiguity, Rendering, Renderings, Sentence, build_sentence
from regard.world.splitmix import SplitMix64
from regard.world.word_tables import ADJECTIVES, NOUNS, PRONOUNS, THE, THIS, VERBS

ATTEMPTS = 10_000
LONGEST = 10_000  # words: a sentence is derived at once, and a larger number is a mistake


@dataclass(frozen=True)
class World:
    """Sentences of `min_length` to `max_length` English words, every length equally often.

    The compositions (adjective, noun) and (verb, object) are divided once, in every world alike: train never shows
    those held out; every test sentence has one that occurs in test alone, every valid sentence one of valid alone.
    """

    seed: int = 0
    min_length: int = SHORTEST
    max_length: int = 12

    def __post_init__(self):
        if not SHORTEST <= self.min_length <= self.max_length <= LONGEST:
            raise ValueError(
                f"min_length = {self.min_length} and max_length = {self.max_length} cannot be: the world's sentences "
                f"have {SHORTEST} to {LONGEST:,} words, and min_length is at most max_length"
            )

    def sentence(self, number: int, split: Split = "train") -> Sentence:
        """The sentence with this number, at random access."""
        if split not in SPLITS:
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
        if number < 0:
            raise ValueError(f"sentences are counted from 0, not from {number}")
        lengths = self.max_length - self.min_length + 1
        origin = (self.seed, SPLITS.index(split), number)
        size = self.min_length + SplitMix64(*origin).randbelow(lengths)
        for attempt in range(ATTEMPTS):
            try:
                sentence = build_sentence(Grammar(SplitMix64(*origin, 1 + attempt), split).draw_derivation(size))
            except DerivationError:
                continue
            if split == "train" or any(composition_split(*pair) == split for pair in sentence.compositions):
                return sentence
        raise AssertionError(f"no sentence of {size} words in {ATTEMPTS} attempts")


def translation_pairs(
    world: World, language: str, count: int, split: Split = "train", start: int = 0
) -> Iterator[tuple[str, str]]:
    """English and the other language, words joined by spaces: the sentences numbered from `start`."""
    if language not in LANGUAGES:
        raise ValueError(f"the world translates into {' and '.join(LANGUAGES)}, not into {language!r}")
    for number in range(start, start + count):
        sentence = world.sentence(number, split)
        yield " ".join(sentence.words), " ".join(sentence.renderings[language].words)


# --- the sentences of the lectures ---


_NOUNS = {noun.key: noun for noun in (*NOUNS, *PRONOUNS)}
_VERBS = {verb.key: verb for verb in VERBS}
_ADJECTIVES = {adjective.key: adjective for adjective in ADJECTIVES}


def _the(noun: str, *adjectives: str) -> NounPhrase:
    return NounPhrase(
        _NOUNS[noun], THE, adjective_phrases=tuple(AdjectivePhrase(_ADJECTIVES[adjective]) for adjective in adjectives)
    )


def _verb_clause(subject: NounPhrase, verb: str, direct_object: NounPhrase, *, tense: Tense = "past") -> Sentence:
    return build_sentence(Derivation((Clause(_VERBS[verb], tense, subject=subject, object=direct_object),)))


def _copular_clause(subject: NounPhrase, adjective: str, *, very: bool = False) -> Sentence:
    return build_sentence(
        Derivation((Clause(None, "present", subject=subject, quality=AdjectivePhrase(_ADJECTIVES[adjective], very)),))
    )


def _rendering(words: str, links: str) -> Rendering:
    """Links in Pharaoh format: English index, hyphen, index here."""
    pairs = [link.split("-") for link in links.split()]
    return Rendering(tuple(words.split()), frozenset((int(here), int(there)) for here, there in pairs))


# Three sentences of the lectures are no statements of the grammar (a request, a headline, "to carry"), so they are
# written out.
_REQUEST = Sentence(
    words=("please", "turn", "off", "the", "light"),
    tags=("INTJ", "VERB", "ADP", "DET", "NOUN"),
    governors=(2, 0, 2, 5, 2),
    sentiment=0,
    ambiguities=(Ambiguity(4, "light.noun", ("light.noun", "light.verb", "light.adj"), 1, ("fr", "de")),),
    compositions=(("turn_off", "light.noun"),),
    renderings=Renderings(
        fr=_rendering("éteignez la lumière s' il vous plaît", "1-0 2-0 3-1 4-2 0-3 0-4 0-5 0-6"),
        de=_rendering("bitte schalten Sie das Licht aus", "0-0 1-1 1-2 3-3 4-4 2-5"),
    ),
)
_HEADLINE = Sentence(
    words=("man", "eats", "small", "dinosaur"),
    tags=("NOUN", "VERB", "ADJ", "NOUN"),
    governors=(2, 0, 4, 2),
    sentiment=0,
    ambiguities=(Ambiguity(1, "eat.person", ("eat.person", "eat.animal"), 0, ("de",)),),
    compositions=(("small", "dinosaur"), ("eat.person", "dinosaur")),
    renderings=Renderings(
        fr=_rendering("un homme mange un petit dinosaure", "0-0 0-1 1-2 3-3 2-4 3-5"),
        de=_rendering("Mann isst kleinen Dinosaurier", "0-0 1-1 2-2 3-3"),
    ),
)
_TO_CARRY = Sentence(
    words=("this", "box", "is", "very", "light", "to", "carry"),
    tags=("DET", "NOUN", "AUX", "ADV", "ADJ", "PART", "VERB"),
    governors=(2, 5, 5, 5, 0, 7, 5),
    sentiment=0,
    ambiguities=(Ambiguity(4, "light.adj", ("light.noun", "light.verb", "light.adj"), 1, ("fr", "de")),),
    compositions=(("light.adj", "box"),),
    renderings=Renderings(
        fr=_rendering("cette boîte est très légère à porter", "0-0 1-1 2-2 3-3 4-4 5-5 6-6"),
        de=_rendering("diese Kiste ist sehr leicht zu tragen", "0-0 1-1 2-2 3-3 4-4 5-5 6-6"),
    ),
)

LECTURE_SENTENCES: tuple[Sentence, ...] = (
    _verb_clause(_the("cat", "black"), "eat.animal", _the("mouse")),
    _HEADLINE,
    _verb_clause(_the("man"), "see", _the("dinosaur", "small")),
    _REQUEST,
    _TO_CARRY,
    _verb_clause(NounPhrase(_NOUNS["she"]), "turn_off", _the("light.noun")),
    _verb_clause(NounPhrase(_NOUNS["he"]), "light.verb", _the("lamp")),
    _copular_clause(NounPhrase(_NOUNS["box"], THIS), "light.adj", very=True),
    _verb_clause(_the("man"), "carry", _the("box", "light.adj"), tense="present"),
)


def find_lecture_sentence(text: str) -> Sentence | None:
    """The lecture sentence with this text, ignoring case and full stops; None if there is none."""
    wanted = " ".join(text.lower().replace(".", " ").split())
    return next((sentence for sentence in LECTURE_SENTENCES if " ".join(sentence.words) == wanted), None)
