"""Ambiguous words: both readings occur, they come out differently, and the word said to decide does decide."""

from collections import Counter, defaultdict
from functools import cache

from regard.world import SENSES, World
from regard.world.lexicon import Adjective, Noun, Verb
from tests.world.derivations import ADJECTIVE, NOUN, VERB


@cache
def drawn_sentences():
    return [World(seed=9, max_length=9).sentence(number) for number in range(5003)]


@cache
def drawn_ambiguities():
    return [(sentence, ambiguity) for sentence in drawn_sentences() for ambiguity in sentence.ambiguities]


def word_with(sentence, index):
    """The verb entries a word can be."""
    return [verb for verb in VERB.values() if sentence.words[index] in verb.en]


def test_a_third_of_the_sentences_has_one():
    assert sum(bool(sentence.ambiguities) for sentence in drawn_sentences()) > len(drawn_sentences()) / 4


def test_all_readings_of_at_least_eight_words_occur():
    seen = Counter(ambiguity.sense for _, ambiguity in drawn_ambiguities())
    words = {
        reading.split(".")[0]
        for _, ambiguity in drawn_ambiguities()
        for reading in ambiguity.senses
        if len(ambiguity.languages) == 2
    }
    assert len(words) >= 8
    for entries in SENSES.values():
        assert all(seen[entry.key] >= 3 for entry in entries), [entry.key for entry in entries]


def test_every_word_with_several_readings_is_reported():
    for sentence in drawn_sentences():
        assert {a.index for a in sentence.ambiguities} == {i for i, word in enumerate(sentence.words) if word in SENSES}


def test_readings_come_out_as_different_words():
    renderings_by_sense = defaultdict(set)
    for sentence, ambiguity in drawn_ambiguities():
        for language in ambiguity.languages:
            renderings_by_sense[language, sentence.words[ambiguity.index], ambiguity.sense].add(
                sentence.expected_words(ambiguity, language)
            )
    for (language, word, reading), renderings in renderings_by_sense.items():
        for (other_language, other_word, other), others in renderings_by_sense.items():
            if (other_language, other_word) == (language, word) and other != reading:
                assert not renderings & others, (word, reading, other)


def test_the_decider_is_another_word():
    for sentence, ambiguity in drawn_ambiguities():
        assert 0 <= ambiguity.decider < len(sentence.words)
        assert ambiguity.decider != ambiguity.index


def test_the_deciding_adjective_or_verb_suits_one_reading_only():
    checked = 0
    for sentence, ambiguity in drawn_ambiguities():
        entry, decider = NOUN.get(ambiguity.sense), sentence.words[ambiguity.decider]
        rivals = [NOUN[reading] for reading in ambiguity.senses if reading in NOUN and reading != ambiguity.sense]
        if entry is None or not rivals:
            continue
        deciding = [adjective for adjective in ADJECTIVE.values() if adjective.en == decider]
        accepted = [adjective.kinds for adjective in deciding]
        for verb in word_with(sentence, ambiguity.decider):
            before = ambiguity.index < ambiguity.decider
            accepted.append(
                verb.subjects if before else verb.objects or (verb.goal.kinds if verb.goal else frozenset())
            )
        assert any(kinds & entry.kinds and not any(kinds & rival.kinds for rival in rivals) for kinds in accepted), (
            sentence.text(),
            decider,
        )
        checked += 1
    assert checked > 100


def test_an_ambiguous_adjective_is_decided_by_its_noun():
    for sentence, ambiguity in drawn_ambiguities():
        if ambiguity.sense in ADJECTIVE:
            assert sentence.tags[ambiguity.decider] == "NOUN"
            nouns = [noun for noun in NOUN.values() if sentence.words[ambiguity.decider] in noun.en]
            assert any(ADJECTIVE[ambiguity.sense].kinds & noun.kinds for noun in nouns), sentence.text()


def test_readings_are_entries_of_the_lexicon():
    for entries in SENSES.values():
        assert all(isinstance(entry, Noun | Verb | Adjective) for entry in entries)
