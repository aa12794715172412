"""The lectures' own sentences come out word by word."""

import pytest

from regard.world import LECTURE, known


def links(sentence, language):
    rendering = sentence.into[language]
    return {(sentence.words[here], rendering.words[there]) for here, there in rendering.alignment}


def test_the_black_cat_ate_the_mouse():
    cat = known("The black cat ate the mouse.")
    assert cat is not None
    assert cat.text("fr") == "le chat noir a mangé la souris"
    assert cat.text("de") == "die schwarze Katze hat die Maus gefressen"
    assert cat.tags == ("DET", "ADJ", "NOUN", "VERB", "DET", "NOUN")
    assert cat.heads == (3, 3, 4, 0, 6, 4)
    assert cat.into["fr"].alignment == {(0, 0), (1, 2), (2, 1), (3, 3), (3, 4), (4, 5), (5, 6)}
    assert cat.into["de"].alignment == {(0, 0), (1, 1), (2, 2), (3, 3), (3, 6), (4, 4), (5, 5)}


def test_light_is_read_by_its_company():
    lamp, box = known("please turn off the light"), known("this box is very light to carry")
    assert lamp is not None
    assert box is not None
    assert ("light", "lumière") in links(lamp, "fr")
    assert ("light", "Licht") in links(lamp, "de")
    assert ("light", "légère") in links(box, "fr")
    assert ("light", "leicht") in links(box, "de")
    (noun,), (adjective,) = lamp.ambiguities, box.ambiguities
    assert (noun.reading, lamp.words[noun.decider]) == ("light.noun", "turn")
    assert (adjective.reading, box.words[adjective.decider]) == ("light.adj", "box")
    assert lamp.expected(noun, "fr") == ("lumière",)


def test_the_man_eats_as_people_do_and_the_cat_as_animals_do():
    man, cat = known("Man eats small dinosaur."), known("the black cat ate the mouse")
    assert man is not None
    assert cat is not None
    assert man.text("fr") == "un homme mange un petit dinosaure"
    assert man.text("de") == "Mann isst kleinen Dinosaurier"
    assert cat.expected(cat.ambiguities[0], "de") == ("hat", "gefressen")
    assert cat.ambiguities[0].languages == ("de",)


def test_a_sentence_of_nobody_is_not_known():
    assert known("the cat ate the black mouse") is None


@pytest.mark.parametrize("sentence", LECTURE, ids=lambda sentence: sentence.text())
def test_every_word_of_a_lecture_is_linked(sentence):
    for language in sentence.into:
        rendering = sentence.into[language]
        assert {here for here, _ in rendering.alignment} == set(range(len(sentence.words)))
        assert {there for _, there in rendering.alignment} == set(range(len(rendering.words)))
