"""What the page proposes to read is made of words that the model has seen."""

from dataclasses import replace

import pytest

from regard.serve.examples import SENTENCE, example_of
from regard.text.vocabulary import UNK
from tests.see.scenes import author, classifier, tagger, translator


@pytest.mark.parametrize("make", [translator, tagger, classifier, author])
def test_a_model_of_another_corpus_is_shown_words_of_its_own(make):
    learner = make()
    assert example_of(learner) == SENTENCE
    other = replace(learner, settings=replace(learner.settings, data=replace(learner.settings.data, corpus="files")))
    text = example_of(other)
    assert text != SENTENCE
    assert len(text.split()) == 6
    tokeniser = learner.parts["source" if make is translator else "words"]
    assert UNK not in tokeniser.encode(text)


def test_a_model_that_spells_is_shown_letters():
    learner = author(text="characters")
    other = replace(learner, settings=replace(learner.settings, data=replace(learner.settings.data, corpus="files")))
    assert all(len(word) == 1 for word in example_of(other).split())
