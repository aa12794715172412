"""What every sentence of every world keeps: shape, lengths, splits, and the same answer everywhere."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from regard.world import (
    LANGUAGES,
    LECTURE_SENTENCES,
    SENSES,
    SPLITS,
    World,
    composition_split,
    find_lecture_sentence,
    translation_pairs,
)
from regard.world.lexicon import ADJECTIVES, NOUNS, VERBS, english_forms
from regard.world.splitmix import SplitMix64, hash_text
from tests.world.processes import outputs_by_hash_seed

UPOS = {"ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "NOUN", "NUM", "PART", "PRON", "PROPN", "SCONJ", "VERB"}
WORLD = World(seed=3)


@cache
def examples():
    return {split: [WORLD.sentence(number, split) for number in range(1009)] for split in SPLITS}


@cache
def long_sentences():
    return [World(seed=4, min_length=19, max_length=61).sentence(number) for number in range(211)]


@cache
def all_sentences():
    return [*examples()["train"], *examples()["valid"], *examples()["test"], *long_sentences()]


def test_alignments_are_total_on_both_sides():
    for sentence in all_sentences():
        for language in LANGUAGES:
            rendering = sentence.renderings[language]
            assert {source for source, _ in rendering.alignment} == set(range(len(sentence.words))), sentence.text()
            assert {target for _, target in rendering.alignment} == set(range(len(rendering.words))), sentence.text()


def test_tags_are_universal_and_as_many_as_words():
    for sentence in all_sentences():
        assert len(sentence.tags) == len(sentence.words)
        assert set(sentence.tags) <= UPOS


def test_heads_are_a_projective_tree_with_one_root():
    for sentence in all_sentences():
        heads = sentence.governors
        assert len(heads) == len(sentence.words)
        assert heads.count(0) == 1
        for word in range(1, len(heads) + 1):
            seen, at = set(), word
            while at:
                assert at not in seen, sentence.text()
                seen.add(at)
                at = heads[at - 1]
        arcs = [(min(head, word), max(head, word)) for word, head in enumerate(heads, 1)]
        for left, right in arcs:
            assert not any(left < start < right < end for start, end in arcs), sentence.text()


def test_words_are_single_and_text_is_joined_for_people():
    for sentence in all_sentences():
        for language in ("en", *LANGUAGES):
            assert not any(" " in word or not word for word in sentence.words_for(language))
            assert "' " not in sentence.text(language)
            assert " ," not in sentence.text(language)


def test_a_becomes_an_before_a_vowel():
    found = {
        (word, follows[0])
        for sentence in all_sentences()
        for word, follows in pairwise(sentence.words)
        if word in ("a", "an")
    }
    assert all((word == "an") == (letter in "aeiou") for word, letter in found)
    assert {word for word, _ in found} == {"a", "an"}


def test_every_length_is_equally_frequent():
    counts = Counter(len(sentence.words) for sentence in examples()["train"])
    assert set(counts) == set(range(3, 13))
    assert all(60 < count < 145 for count in counts.values())


@pytest.mark.parametrize("length", [3, 7, 13, 29, 61])
def test_the_length_dial_is_exact(length):
    world = World(min_length=length, max_length=length)
    for split in SPLITS:
        assert {len(world.sentence(number, split).words) for number in range(11)} == {length}


def test_train_never_shows_what_is_held_out_and_the_others_always_do():
    for sentence in examples()["train"]:
        assert {composition_split(*pair) for pair in sentence.compositions} <= {"train"}
    for split in ("valid", "test"):
        for sentence in examples()[split]:
            shown = {composition_split(*pair) for pair in sentence.compositions}
            assert split in shown
            assert shown <= {"train", split}


def test_no_sentence_is_in_two_splits_and_few_are_twice_in_one():
    texts = {split: {sentence.words for sentence in examples()[split]} for split in SPLITS}
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["valid"]
    assert not texts["valid"] & texts["test"]
    for split in SPLITS:
        longer = [sentence.words for sentence in examples()[split] if len(sentence.words) >= 6]
        assert len(set(longer)) > 0.98 * len(longer)


def test_every_entry_keeps_compositions_for_training():
    """Whatever can be combined at all is left a combination that is not held out."""
    found = {(word.key, noun.key) for noun in NOUNS for word in ADJECTIVES if word.kinds & noun.kinds}
    found |= {(verb.key, noun.key) for noun in NOUNS for verb in VERBS if verb.objects & noun.kinds}
    trained = {key for pair in found if composition_split(*pair) == "train" for key in pair}
    assert trained == {key for pair in found for key in pair}
    for split in ("valid", "test"):
        assert 0.06 < sum(composition_split(*pair) == split for pair in found) / len(found) < 0.11


@pytest.mark.slow
def test_every_single_word_occurs_in_train():
    seen = {word for number in range(30_011) for word in World().sentence(number).words}
    wanted = {form for entry in (*NOUNS, *ADJECTIVES, *VERBS) for form in english_forms(entry)}
    assert not wanted - seen


def test_a_sentence_is_a_function_of_its_number():
    assert WORLD.sentence(977) == examples()["train"][977]
    assert World(seed=3).sentence(12, "test") == examples()["test"][12]
    assert World(seed=4).sentence(977) != examples()["train"][977]
    assert hash(examples()["train"][0]) == hash(WORLD.sentence(0))


def test_the_same_sentences_in_every_process():
    program = "from regard.world import World; w = World(7, 3, 31); print([w.sentence(n, 'test') for n in range(23)])"
    assert len(outputs_by_hash_seed(program, "1", "2", "97")) == 1


def test_the_draws_are_pinned():
    """SplitMix64 from state 0 and a hash of a text, as anybody can compute them."""
    chance = SplitMix64()
    assert [chance.randbelow(1 << 64) for _ in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert hash_text("") != hash_text("a")


def test_pairs_are_the_words_joined_by_spaces():
    found = list(translation_pairs(WORLD, "fr", 5, "valid", start=17))
    sentences = examples()["valid"][17:22]
    assert found == [(" ".join(s.words), " ".join(s.renderings["fr"].words)) for s in sentences]


def test_one_english_text_has_one_translation():
    seen: dict[str, tuple[str, str]] = {}
    for number in range(6007):
        sentence = World(seed=8, max_length=5).sentence(number)
        translations = sentence.text("fr"), sentence.text("de")
        assert seen.setdefault(sentence.text(), translations) == translations


@pytest.mark.parametrize("form", sorted(SENSES))
def test_an_ambiguous_form_has_different_counterparts(form):
    assert len({entry.key for entry in SENSES[form]}) == len(SENSES[form]) >= 2


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: World(min_length=2),
        lambda: World(min_length=9, max_length=8),
        lambda: WORLD.sentence(-1),
        lambda: WORLD.sentence(0, "exam"),  # type: ignore[arg-type]
        lambda: next(translation_pairs(WORLD, "it", 1)),
    ],
)
def test_a_mistake_is_named(mistake):
    with pytest.raises(ValueError, match="not"):
        mistake()


def test_nothing_heavy_is_loaded():
    program = "import sys, regard.world; print([m for m in ('torch', 'numpy', 'random') if m in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert answer.stdout.strip() == "[]"


# --- test lecture ---


def links(sentence, language):
    rendering = sentence.renderings[language]
    return {(sentence.words[source], rendering.words[target]) for source, target in rendering.alignment}


def test_the_black_cat_ate_the_mouse():
    cat = find_lecture_sentence("The black cat ate the mouse.")
    assert cat is not None
    assert cat.text("fr") == "le chat noir a mangé la souris"
    assert cat.text("de") == "die schwarze Katze hat die Maus gefressen"
    assert cat.tags == ("DET", "ADJ", "NOUN", "VERB", "DET", "NOUN")
    assert cat.governors == (3, 3, 4, 0, 6, 4)
    assert cat.renderings["fr"].alignment == {(0, 0), (1, 2), (2, 1), (3, 3), (3, 4), (4, 5), (5, 6)}
    assert cat.renderings["de"].alignment == {(0, 0), (1, 1), (2, 2), (3, 3), (3, 6), (4, 4), (5, 5)}


def test_light_is_disambiguated_by_its_context():
    lamp, box = (
        find_lecture_sentence("please turn off the light"),
        find_lecture_sentence("this box is very light to carry"),
    )
    assert lamp is not None
    assert box is not None
    assert ("light", "lumière") in links(lamp, "fr")
    assert ("light", "Licht") in links(lamp, "de")
    assert ("light", "légère") in links(box, "fr")
    assert ("light", "leicht") in links(box, "de")
    (noun,), (adjective,) = lamp.ambiguities, box.ambiguities
    assert (noun.sense, lamp.words[noun.decider]) == ("light.noun", "turn")
    assert (adjective.sense, box.words[adjective.decider]) == ("light.adj", "box")
    assert lamp.expected_words(noun, "fr") == ("lumière",)


def test_the_man_eats_as_people_do_and_the_cat_as_animals_do():
    man, cat = find_lecture_sentence("Man eats small dinosaur."), find_lecture_sentence("the black cat ate the mouse")
    assert man is not None
    assert cat is not None
    assert man.text("fr") == "un homme mange un petit dinosaure"
    assert man.text("de") == "Mann isst kleinen Dinosaurier"
    assert cat.expected_words(cat.ambiguities[0], "de") == ("hat", "gefressen")
    assert cat.ambiguities[0].languages == ("de",)


def test_a_sentence_of_nobody_is_not_known():
    assert find_lecture_sentence("the cat ate the black mouse") is None


@pytest.mark.parametrize("sentence", LECTURE_SENTENCES, ids=lambda sentence: sentence.text())
def test_every_word_of_a_lecture_is_linked(sentence):
    for language in sentence.renderings:
        rendering = sentence.renderings[language]
        assert {source for source, _ in rendering.alignment} == set(range(len(sentence.words)))
        assert {target for _, target in rendering.alignment} == set(range(len(rendering.words)))
