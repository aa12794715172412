"""What the page proposes to read is made of words that the model has seen."""

from dataclasses import replace

import pytest

from regard.data import LabelledText, SentencePair, TaggedSentence
from regard.data.tokenizers.base import UNK
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import EXAMPLE_SENTENCE
from regard.tasks.registry import get_task
from regard.training.checkpoint import read_example, save_example
from tests.see.untrained_models import classifier, generator, tagger, translator


def example_input(task_model: PretrainedModel) -> str:
    return get_task(task_model.settings.task).example_input(task_model).text


@pytest.mark.parametrize("make", [translator, tagger, classifier, generator])
def test_a_model_of_another_corpus_is_shown_words_of_its_own(make):
    task_model = make()
    assert example_input(task_model) == EXAMPLE_SENTENCE
    other = replace(
        task_model, settings=replace(task_model.settings, data=replace(task_model.settings.data, corpus="files"))
    )
    text = example_input(other)
    assert text != EXAMPLE_SENTENCE
    assert len(text.split()) == 6
    tokenizer = task_model.parts["source" if make is translator else "tokenizer"]
    assert UNK not in tokenizer.encode(text)


def test_a_model_that_spells_is_shown_letters():
    task_model = generator(text="characters")
    other = replace(
        task_model, settings=replace(task_model.settings, data=replace(task_model.settings.data, corpus="files"))
    )
    assert all(len(word) == 1 for word in example_input(other).split())


@pytest.mark.parametrize(
    ("task", "example"),
    [
        ("translation", SentencePair("the fox sings", "le renard chante")),
        ("tagging", TaggedSentence(("the", "fox", "sings"), ("DET", "NOUN", "VERB"))),
        ("sequence_classification", LabelledText("the  fox sings", "good")),
        ("language_modeling", "the fox sings\n"),
        ("autoencoding", "the fox sings"),
    ],
)
def test_a_run_keeps_a_held_out_text_for_the_page(task, example, tmp_path):
    save_example(tmp_path, [get_task(task).example_text(example)])
    assert read_example(tmp_path) == "the fox sings"


def test_without_a_text_of_a_few_words_nothing_is_kept(tmp_path):
    save_example(tmp_path, ["fox", "x " * 13, f"a b {'c' * 500}", get_task("vqa").example_text(object())])
    assert read_example(tmp_path) == ""
    assert not list(tmp_path.iterdir())
