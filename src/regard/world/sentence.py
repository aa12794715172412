"""Sentences: English with annotation, French and German with word alignments, built from a derivation.

Spelling. Words are lower-case, except what a language always capitalises (names; German nouns). There is no full stop.
The comma occurs in German alone, before subordinate clauses and "aber", and is a word of its own; so are l',
d', n' and qu' in French. Words are joined by single spaces; `Sentence.text` joins them as people write.

Alignment. Every word of both sides is aligned at least once. A verb of two words is aligned with both (ate: a, mangé).
An auxiliary is aligned with its counterpart where there is one (did: a, will: wird), otherwise with the verb (does,
will: mangera); ne and pas both with not, du with both words it contracts, a comma with the word that requires it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from regard.world.english import English, render_english
from regard.world.entries import Adjective, Noun, Verb
from regard.world.french import render_french
from regard.world.german import render_german
from regard.world.grammar import Clause, Derivation, NounPhrase, noun_phrases
from regard.world.lexicon import SENSES, Entry, distinguishing_languages

LANGUAGES = ("fr", "de")


@dataclass(frozen=True)
class Ambiguity:
    """An English word with several senses, and the word of the sentence that disambiguates it.

    `languages` are those that translate the senses by different words.
    """

    index: int
    sense: str
    senses: tuple[str, ...]
    decider: int
    languages: tuple[str, ...]


@dataclass(frozen=True)
class Rendering:
    """The sentence in one other language: its words and the aligned pairs (English index, index here)."""

    words: tuple[str, ...]
    alignment: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Renderings(Mapping[str, Rendering]):
    """The sentence in every other language of the world, by the language's code."""

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
