"""What the page proposes to read is made of words that the model has seen."""

from dataclasses import replace

import pytest

from regard.data.tokenizers.base import UNK
from regard.serve.model_store import EXAMPLE_SENTENCE, example_input
from tests.see.untrained_models import author, classifier, tagger, translator


@pytest.mark.parametrize("make", [translator, tagger, classifier, author])
def test_a_model_of_another_corpus_is_shown_words_of_its_own(make):
    learner = make()
    assert example_input(learner) == EXAMPLE_SENTENCE
    other = replace(learner, settings=replace(learner.settings, data=replace(learner.settings.data, corpus="files")))
    text = example_input(other)
    assert text != EXAMPLE_SENTENCE
    assert len(text.split()) == 6
    tokenizer = learner.parts["source" if make is translator else "words"]
    assert UNK not in tokenizer.encode(text)


def test_a_model_that_spells_is_shown_letters():
    learner = author(text="characters")
    other = replace(learner, settings=replace(learner.settings, data=replace(learner.settings.data, corpus="files")))
    assert all(len(word) == 1 for word in example_input(other).split())
