"""World: an endless source of annotated, aligned sentences by seed and number, and the sentences of the lectures.

Spelling. Words are lower-case, except what a language always capitalises (names; German nouns). There is no full stop.
The comma occurs in German alone, before subordinate clauses and "aber", and is a word of its own; so are l',
d', n' and qu' in French. Words are joined by single spaces; `Sentence.text` joins them as people write.

Alignment. Every word of both sides is aligned at least once. A verb of two words is aligned with both (ate: a, mangé).
An auxiliary is aligned with its counterpart where there is one (did: a, will: wird), otherwise with the verb (does,
will: mangera); ne and pas both with not, du with both words it contracts, a comma with the word that requires it.
"""

from collections.abc import Iterator, Mapping
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
    noun_phrases,
)
from regard.world.lexicon import (
    ADJECTIVES,
    NOUNS,
    PRONOUNS,
    SENSES,
    SPLITS,
    THE,
    THIS,
    VERBS,
    Adjective,
    Entry,
    Noun,
    Split,
    Verb,
    check_request,
    composition_split,
    distinguishing_languages,
)
from regard.world.rendering import English, render_english, render_french, render_german
from regard.world.splitmix import SplitMix64

LANGUAGES = ("fr", "de")
"""The languages that the world's English sentences are rendered in.

Examples:
    >>> LANGUAGES
    ('fr', 'de')
"""


@dataclass(frozen=True)
class Ambiguity:
    """An English word with several senses, and the word of the sentence that disambiguates it.

    `languages` are those that translate the senses by different words.

    Examples:
        >>> sentence = find_lecture_sentence("this box is very light to carry")
        >>> ambiguity = sentence.ambiguities[0]
        >>> sentence.words[ambiguity.index], ambiguity.sense, sentence.words[ambiguity.decider]
        ('light', 'light.adj', 'box')
        >>> sentence.expected_words(ambiguity, "de")
        ('leicht',)
    """

    index: int
    sense: str
    senses: tuple[str, ...]
    decider: int
    languages: tuple[str, ...]


@dataclass(frozen=True)
class Rendering:
    """The sentence in one other language: its words and the aligned pairs (English index, index here).

    Examples:
        >>> rendering = find_lecture_sentence("the black cat ate the mouse").renderings["fr"]
        >>> " ".join(rendering.words)
        'le chat noir a mangé la souris'
        >>> sorted(rendering.alignment)
        [(0, 0), (1, 2), (2, 1), (3, 3), (3, 4), (4, 5), (5, 6)]
    """

    words: tuple[str, ...]
    alignment: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Renderings(Mapping[str, Rendering]):
    """The sentence in every other language of the world, by the language's code.

    Examples:
        >>> renderings = find_lecture_sentence("the black cat ate the mouse").renderings
        >>> {language: " ".join(rendering.words) for language, rendering in renderings.items()}
        {'fr': 'le chat noir a mangé la souris', 'de': 'die schwarze Katze hat die Maus gefressen'}
    """

    fr: Rendering
    de: Rendering

    def __getitem__(self, language: str) -> Rendering:
        if language == "fr":
            return self.fr
        if language == "de":
            return self.de
        raise KeyError(f"the world speaks en, fr and de, not {language!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(LANGUAGES)

    def __len__(self) -> int:
        return len(LANGUAGES)


@dataclass(frozen=True)
class Sentence:
    """One sentence of the world with its annotation.

    `tags` are UPOS; `governors` are the HEAD column of CoNLL-U (1-based, 0 is the root); `sentiment` is -1, 0
    or 1; `compositions` are the pairs (adjective, noun) and (verb, object) by which sentences are held out.

    Examples:
        >>> sentence = find_lecture_sentence("the black cat ate the mouse")
        >>> list(zip(sentence.words, sentence.tags, sentence.governors))[:3]
        [('the', 'DET', 3), ('black', 'ADJ', 3), ('cat', 'NOUN', 4)]
        >>> sentence.text("de"), sentence.sentiment, sentence.compositions
        ('die schwarze Katze hat die Maus gefressen', 0, (('black', 'cat'), ('eat.animal', 'mouse')))
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    governors: tuple[int, ...]
    sentiment: int
    ambiguities: tuple[Ambiguity, ...]
    compositions: tuple[tuple[str, str], ...]
    renderings: Renderings

    def words_for(self, language: str) -> tuple[str, ...]:
        """The words in any of the three languages."""
        return self.words if language == "en" else self.renderings[language].words

    def text(self, language: str = "en") -> str:
        """The sentence as people write it: l'arbre, no space before a comma."""
        return " ".join(self.words_for(language)).replace("' ", "'").replace(" ,", ",")

    def expected_words(self, ambiguity: Ambiguity, language: str) -> tuple[str, ...]:
        """The words by which a translation shows that it took the right sense."""
        rendering = self.renderings[language]
        return tuple(rendering.words[there] for here, there in sorted(rendering.alignment) if here == ambiguity.index)


# --- from a derivation ---


# Every clause with the noun phrase it modifies, if it is a relative clause, and every noun phrase.
DerivationParts = tuple[list[tuple[Clause, NounPhrase | None]], list[NounPhrase]]


def build_sentence(derivation: Derivation) -> Sentence:
    out = render_english(derivation)
    clauses, phrases = collect_parts(derivation)
    return Sentence(
        words=tuple(out.words),
        tags=tuple(out.tags),
        governors=tuple([governor + 1 for governor in out.governors]),
        sentiment=_sentiment(clauses, phrases),
        ambiguities=tuple(sorted(_ambiguities(out, clauses, phrases), key=lambda ambiguity: ambiguity.index)),
        compositions=tuple(_compositions(clauses, phrases)),
        renderings=Renderings(
            fr=_rendering(*render_french(derivation, out.word_indices)),
            de=_rendering(*render_german(derivation, out.word_indices)),
        ),
    )


def _rendering(words: list[str], links: list[tuple[int, ...]]) -> Rendering:
    pairs = [(here, there) for there, linked in enumerate(links) for here in linked]
    return Rendering(tuple(words), frozenset(pairs))


def collect_parts(derivation: Derivation) -> DerivationParts:
    clauses: list[tuple[Clause, NounPhrase | None]] = []
    phrases: list[NounPhrase] = []
    for clause in derivation.clauses:
        _gather(clause, None, clauses, phrases)
    return clauses, phrases


def _gather(
    clause: Clause,
    modified: NounPhrase | None,
    clauses: list[tuple[Clause, NounPhrase | None]],
    phrases: list[NounPhrase],
):
    clauses.append((clause, modified))
    waiting: list[NounPhrase] = []
    for phrase in (clause.subject, clause.object, clause.receiver, clause.goal):
        if phrase is not None:
            waiting += noun_phrases(phrase)
    if clause.place is not None:
        waiting.append(clause.place.phrase)
    while waiting:
        noun_phrase = waiting.pop()
        phrases.append(noun_phrase)
        if noun_phrase.place is not None:
            waiting.append(noun_phrase.place.phrase)
        if noun_phrase.relative is not None:
            _gather(noun_phrase.relative, noun_phrase, clauses, phrases)


def _sentiment(clauses: list[tuple[Clause, NounPhrase | None]], phrases: list[NounPhrase]) -> int:
    """The sign of the sum of all evaluative words; in a negated clause it is reversed."""
    total = sum(quality.adjective.valence for noun_phrase in phrases for quality in noun_phrase.adjective_phrases)
    for clause, _ in clauses:
        valence = clause.verb.valence if clause.verb is not None else 0
        valence += clause.quality.adjective.valence if clause.quality is not None else 0
        valence += clause.adverb.valence if clause.adverb is not None else 0
        total += -valence if clause.negated else valence
    return (total > 0) - (total < 0)


def _subjects(clause: Clause, modified: NounPhrase | None) -> tuple[NounPhrase, ...]:
    if clause.subject is not None:
        return noun_phrases(clause.subject)
    assert modified is not None
    return (modified,)


def _objects(clause: Clause, modified: NounPhrase | None) -> tuple[NounPhrase, ...]:
    if clause.object is not None:
        return noun_phrases(clause.object)
    return (modified,) if clause.gap == "object" and modified is not None else ()


def _compositions(
    clauses: list[tuple[Clause, NounPhrase | None]], phrases: list[NounPhrase]
) -> Iterator[tuple[str, str]]:
    for noun_phrase in phrases:
        for quality in noun_phrase.adjective_phrases:
            yield quality.adjective.key, noun_phrase.noun.key
    for clause, modified in clauses:
        if clause.quality is not None:
            for noun_phrase in _subjects(clause, modified):
                if noun_phrase.noun.upos != "PRON":
                    yield clause.quality.adjective.key, noun_phrase.noun.key
        if clause.verb is not None:
            for noun_phrase in _objects(clause, modified):
                yield clause.verb.key, noun_phrase.noun.key


def _ambiguities(
    out: English, clauses: list[tuple[Clause, NounPhrase | None]], phrases: list[NounPhrase]
) -> Iterator[Ambiguity]:
    at = out.word_indices
    for noun_phrase in phrases:
        noun = at[noun_phrase, "noun"]
        if out.words[noun] in SENSES:
            yield _ambiguity(out, noun, noun_phrase.noun, _noun_decider(out, noun_phrase))
        for quality in noun_phrase.adjective_phrases:
            index = at[quality, "adjective"]
            if out.words[index] in SENSES:
                yield _ambiguity(out, index, quality.adjective, noun)
    for clause, modified in clauses:
        subject = at[_subjects(clause, modified)[0], "noun"]
        if clause.quality is not None and out.words[at[clause.quality, "adjective"]] in SENSES:
            yield _ambiguity(out, at[clause.quality, "adjective"], clause.quality.adjective, subject)
        if clause.verb is not None and out.words[at[clause, "verb"]] in SENSES:
            index, objects = at[clause, "verb"], _objects(clause, modified)
            # Where a homograph of the verb is intransitive, the object disambiguates it; otherwise the subject.
            intransitive = any(isinstance(other, Verb) and not other.objects for other in SENSES[out.words[index]])
            yield _ambiguity(out, index, clause.verb, at[objects[0], "noun"] if intransitive and objects else subject)


def _noun_decider(out: English, noun_phrase: NounPhrase) -> int:
    """The adjective that disambiguates a noun, else its governor; its determiner if the other sense is a verb."""
    noun = out.word_indices[noun_phrase, "noun"]
    if noun_phrase.disambiguated_by is not None:
        return out.word_indices[noun_phrase.disambiguated_by, "adjective"]
    others = [entry for entry in SENSES[out.words[noun]] if entry is not noun_phrase.noun]
    if any(isinstance(other, Noun | Adjective) for other in others):
        return out.governors[noun]
    return out.word_indices[noun_phrase, "determiner"]


def _ambiguity(out: English, index: int, entry: Entry, decider: int) -> Ambiguity:
    form = out.words[index]
    return Ambiguity(
        index, entry.key, tuple(other.key for other in SENSES[form]), decider, distinguishing_languages(form)
    )


# --- the world ---


ATTEMPTS = 10_000
LONGEST = 10_000  # words: a sentence is derived at once, and a larger number is a mistake


@dataclass(frozen=True)
class World:
    """Sentences of `min_length` to `max_length` English words, every length equally often.

    The compositions (adjective, noun) and (verb, object) are divided once, in every world alike: train never shows
    those held out; every test sentence has one that occurs in test alone, every valid sentence one of valid alone.

    Examples:
        >>> world = World(seed=0, max_length=8)
        >>> sentence = world.sentence(41)
        >>> sentence.text(), sentence.text("fr")
        ('her farmers played', 'ses fermiers ont joué')
        >>> world.sentence(41) == World(seed=0, max_length=8).sentence(41)
        True
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
        check_request(number, split, "sentences")
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
    """English and the other language, words joined by spaces: the sentences numbered from `start`.

    Examples:
        >>> list(translation_pairs(World(seed=0, max_length=6), "fr", count=2))
        [('Paul understood Clara', 'Paul a compris Clara'), ('the roof was red', 'le toit était rouge')]
    """
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


def _parse_rendering(words: str, links: str) -> Rendering:
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
        fr=_parse_rendering("éteignez la lumière s' il vous plaît", "1-0 2-0 3-1 4-2 0-3 0-4 0-5 0-6"),
        de=_parse_rendering("bitte schalten Sie das Licht aus", "0-0 1-1 1-2 3-3 4-4 2-5"),
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
        fr=_parse_rendering("un homme mange un petit dinosaure", "0-0 0-1 1-2 3-3 2-4 3-5"),
        de=_parse_rendering("Mann isst kleinen Dinosaurier", "0-0 1-1 2-2 3-3"),
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
        fr=_parse_rendering("cette boîte est très légère à porter", "0-0 1-1 2-2 3-3 4-4 5-5 6-6"),
        de=_parse_rendering("diese Kiste ist sehr leicht zu tragen", "0-0 1-1 2-2 3-3 4-4 5-5 6-6"),
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
"""The sentences of the lectures, annotated like all others.

Examples:
    >>> [sentence.text() for sentence in LECTURE_SENTENCES[:3]]
    ['the black cat ate the mouse', 'man eats small dinosaur', 'the man saw the small dinosaur']
"""


def find_lecture_sentence(text: str) -> Sentence | None:
    """The lecture sentence with this text, ignoring case and full stops; None if there is none.

    Examples:
        >>> find_lecture_sentence("The black cat ate the mouse.").text("fr")
        'le chat noir a mangé la souris'
        >>> find_lecture_sentence("the green cat") is None
        True
    """
    wanted = " ".join(text.lower().replace(".", " ").split())
    return next((sentence for sentence in LECTURE_SENTENCES if " ".join(sentence.words) == wanted), None)


SENTIMENTS = {-1: "negative", 0: "neutral", 1: "positive"}


def describe_sentence(sentence: Sentence) -> str:
    """A sentence with its translations, alignments, tags, governors and ambiguities."""
    lines = [f"{sentence.text()}   ({SENTIMENTS[sentence.sentiment]})"]
    for language in LANGUAGES:
        rendering = sentence.renderings[language]
        links = " ".join(
            f"{sentence.words[here]}–{rendering.words[there]}" for here, there in sorted(rendering.alignment)
        )
        lines += [f"  {language}  {sentence.text(language)}", f"      {links}"]
    tagged = zip(sentence.words, sentence.tags, sentence.governors, strict=True)
    lines.append("      " + " ".join(f"{word}/{tag}/{governor}" for word, tag, governor in tagged))
    for ambiguity in sentence.ambiguities:
        word, decider = sentence.words[ambiguity.index], sentence.words[ambiguity.decider]
        lines.append(f"      {word} is {ambiguity.sense}, because of {decider}")
    return "\n".join(lines)
