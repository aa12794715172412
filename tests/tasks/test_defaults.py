"""Defaults that follow the data: a table of what so many examples ask for, and that what is given stays."""

import pytest

from regard.tasks.config import (
    batch_tokens_for,
    effective_examples,
    epochs_for,
    fit_to_data,
    plan_steps,
    steps_for,
    vocabulary_size_for,
)
from regard.tasks.image_classification.task import ImageClassificationSettings
from regard.tasks.language_modeling.task import LanguageModelingSettings
from regard.tasks.sequence_classification.task import ClassificationSettings
from regard.tasks.translation.task import TranslationSettings
from regard.training.config import TrainSettings


@pytest.mark.parametrize(
    ("examples", "tokens", "pieces", "epochs"),
    [
        (1, 512, 500, 100),
        (249, 512, 500, 100),
        (250, 1024, 500, 100),
        (1_000, 1024, 1000, 100),
        (2_970, 2048, 2000, 63.6),
        (12_000, 2048, 8000, 31.6),
        (30_000, 4096, 8000, 20),
        (300_000, 4096, 8000, 6.3),
        (10_000_000, 4096, 8000, 2),
    ],
)
def test_so_many_examples_ask_for(examples, tokens, pieces, epochs):
    assert (batch_tokens_for(examples), vocabulary_size_for(examples)) == (tokens, pieces)
    assert epochs_for(examples) == pytest.approx(epochs, abs=0.05)


@pytest.mark.parametrize(
    ("examples", "epoch", "steps"), [(2_970, 20, 1271), (40, 1, 250), (30_000, 110, 2200), (10**8, 10**6, 100_000)]
)
def test_steps_are_passes_over_the_data(examples, epoch, steps):
    assert steps_for(examples, epoch) == steps


def test_running_text_is_counted_by_its_length():
    assert effective_examples(["one\n", "two\n"]) == 2
    assert effective_examples(["x" * 8_000]) == 100
    assert effective_examples([object()] * 7) == 7


def test_batches_and_pieces_fit_the_data_and_never_exceed_what_is_usual():
    small = fit_to_data(TranslationSettings(), 2_970, ())
    assert (small.train.batch_size, vars(small)["text"].vocab_size) == (2048, 2000)
    assert fit_to_data(TranslationSettings(), 10**7, ()) == TranslationSettings()
    assert (
        fit_to_data(ImageClassificationSettings(), 10, ()) == ImageClassificationSettings()
    )  # batches of 128 pictures
    words = ClassificationSettings().with_changes({"text.kind": "words"})
    assert vars(fit_to_data(words, 100, ()))["text"].vocab_size == 8000  # to leave words out would make them unknown
    long = LanguageModelingSettings().with_changes({"train.max_length": 700})
    assert fit_to_data(long, 100, ()).train.batch_size == 1400


def test_what_was_given_stays():
    given = TranslationSettings().with_changes({"train.batch_size": 3000, "text.vocab_size": 7000})
    assert fit_to_data(given, 10, {"train.batch_size", "text.vocab_size"}) == given
    train = TrainSettings(steps=70, warmup_steps=3, validate_every=17, checkpoint_every=19)
    every = {"train.steps", "train.warmup_steps", "train.validate_every", "train.checkpoint_every"}
    assert plan_steps(train, 10, 1, every) == train


def test_what_follows_from_steps_follows_from_those_given():
    found = plan_steps(TrainSettings(steps=400), 10**6, 10**4, {"train.steps"})
    assert (found.steps, found.warmup_steps, found.validate_every, found.checkpoint_every) == (400, 40, 20, 20)
    found = plan_steps(TrainSettings(), 2_970, 20, ())
    assert (found.steps, found.warmup_steps, found.validate_every) == (1271, 127, 63)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 1), (9, 1), (500, 50), (5_000, 500), (10_000, 500)])
def test_a_warm_up_that_is_not_given_is_a_tenth_of_the_run(steps, warmup):
    assert TrainSettings(steps=steps).warmup_steps == warmup
    assert TranslationSettings.from_toml(f"[train]\nsteps = {steps}").train.warmup_steps == warmup
    assert TrainSettings(steps=steps, warmup_steps=7).warmup_steps == 7
    assert TrainSettings(steps=steps, warmup_steps=0).warmup_steps == 0
