"""Defaults that follow the data: a table of what so many examples ask for, and that what is given stays."""

import pytest

from regard.tasks.classify import ClassifySettings
from regard.tasks.defaults import count_of, epochs_for, fitted, pieces_for, planned, steps_for, tokens_for
from regard.tasks.picture import PictureSettings
from regard.tasks.settings import Settings, TrainSettings
from regard.tasks.write import WriteSettings


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
    assert (tokens_for(examples), pieces_for(examples)) == (tokens, pieces)
    assert epochs_for(examples) == pytest.approx(epochs, abs=0.05)


@pytest.mark.parametrize(
    ("examples", "epoch", "steps"), [(2_970, 20, 1271), (40, 1, 250), (30_000, 110, 2200), (10**8, 10**6, 100_000)]
)
def test_steps_are_passes_over_the_data(examples, epoch, steps):
    assert steps_for(examples, epoch) == steps


def test_running_text_is_counted_by_its_length():
    assert count_of(["one\n", "two\n"]) == 2
    assert count_of(["x" * 8_000]) == 100
    assert count_of([object()] * 7) == 7


def test_batches_and_pieces_fit_the_data_and_never_exceed_what_is_usual():
    small = fitted(Settings(), 2_970, ())
    assert (small.train.tokens, vars(small)["text"].size) == (2048, 2000)
    assert fitted(Settings(), 10**7, ()) == Settings()
    assert fitted(PictureSettings(), 10, ()) == PictureSettings()  # batches of 128 pictures
    words = ClassifySettings().changed({"text.kind": "words"})
    assert vars(fitted(words, 100, ()))["text"].size == 8000  # to leave words out would make them unknown
    long = WriteSettings().changed({"train.longest": 700})
    assert fitted(long, 100, ()).train.tokens == 1400


def test_what_was_given_stays():
    given = Settings().changed({"train.tokens": 3000, "text.size": 7000})
    assert fitted(given, 10, {"train.tokens", "text.size"}) == given
    train = TrainSettings(steps=70, warmup=3, validate_every=17, checkpoint_every=19)
    every = {"train.steps", "train.warmup", "train.validate_every", "train.checkpoint_every"}
    assert planned(train, 10, 1, every) == train


def test_what_follows_from_steps_follows_from_those_given():
    found = planned(TrainSettings(steps=400), 10**6, 10**4, {"train.steps"})
    assert (found.steps, found.warmup, found.validate_every, found.checkpoint_every) == (400, 40, 20, 20)
    found = planned(TrainSettings(), 2_970, 20, ())
    assert (found.steps, found.warmup, found.validate_every) == (1271, 127, 63)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 1), (9, 1), (500, 50), (5_000, 500), (10_000, 500)])
def test_a_warm_up_that_is_not_given_is_a_tenth_of_the_run(steps, warmup):
    assert TrainSettings(steps=steps).warmup == warmup
    assert Settings.from_toml(f"[train]\nsteps = {steps}").train.warmup == warmup
    assert TrainSettings(steps=steps, warmup=7).warmup == 7
    assert TrainSettings(steps=steps, warmup=0).warmup == 0
