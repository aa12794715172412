"""Autoencoders as a task: a sentence through its latent, whatever else is in the batch; exact resume; refusals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from regard.data.batching import collate
from regard.models.autoencoder import AutoencoderConfig
from regard.tasks.autoencoding.task import (
    AutoencodingData,
    AutoencodingSettings,
    SentenceAutoencoder,
    encode_latents,
    interpolate_sentences,
    reconstruct,
)
from regard.tasks.config import TokenizerSettings
from regard.tasks.seq2seq import build_loss
from regard.tasks.splits import Split
from regard.training.config import TrainSettings
from tests.tasks.resume_check import assert_resumes

SIZES: dict[str, Any] = {"layers": 1, "model": 24, "hidden": 32, "latents": 3, "latent": 11, "heads": 2, "dropout": 0.0}
MODELS = {
    "transformer": AutoencoderConfig(kind="transformer", **SIZES),
    "gru": AutoencoderConfig(kind="gru", **SIZES),
    "mean": AutoencoderConfig(kind="transformer", bottleneck="mean", **SIZES),
}
SETTINGS = AutoencodingSettings(
    data=AutoencodingData(sentences=13, max_length=5),
    text=TokenizerSettings(kind="words"),
    model=MODELS["transformer"],
    train=TrainSettings(
        steps=120, batch_size=80, learning_rate=1e-2, warmup_steps=5, label_smoothing=0.0, validate_every=50
    ),
)


def sentences(split: Split = "train", **changes) -> Sequence[str]:
    return replace(SETTINGS, **changes).data.read(split).examples


def sentence_autoencoder(kind: str = "transformer", **changes) -> SentenceAutoencoder:
    return SentenceAutoencoder.from_examples(sentences(), replace(SETTINGS, model=MODELS[kind], **changes))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", MODELS)
def test_a_sentence_does_not_depend_on_its_batch(kind):
    one, given = sentence_autoencoder(kind), sentences()[:7]
    one.model.double().eval()
    sources = one.tokenizer.encode_batch(given)
    together = encode_latents(one.model, sources)
    for source, latent in zip(sources, together, strict=True):
        assert_close(encode_latents(one.model, [source])[0], latent)
    assert list(reconstruct(one, given)) == [next(reconstruct(one, [text])) for text in given]
    assert list(reconstruct(one, given, tokens=9)) == list(reconstruct(one, given))


def test_every_sentence_is_its_own_target():
    one = sentence_autoencoder()
    ((source, target),) = one.examples(["the cat"])
    assert source == target == one.tokenizer.encode("the cat")


def test_the_gradient_does_not_depend_on_the_split():
    one, given = sentence_autoencoder("gru"), sentences()[:6]
    one.model.double()

    def gradient(parts: list[Sequence[str]]) -> list[torch.Tensor]:
        one.model.zero_grad()
        for part in parts:
            batch = collate(one.examples(part))
            build_loss(SETTINGS.train)(one.model, (batch, batch.tokens))[0].backward()
        return [weight.grad.clone() for weight in one.model.parameters() if weight.grad is not None]

    for whole, split in zip(gradient([given]), gradient([given[:1], given[1:4], given[4:]]), strict=True):
        assert_close(whole, split)


def test_training_stops_goes_on_and_ends_with_the_same_bits(tmp_path):
    given = sentences()
    assert_resumes(sentence_autoencoder, given, given, tmp_path, cut=107)
    loaded = SentenceAutoencoder.load(tmp_path / "a")
    assert list(reconstruct(loaded, given)) == given
    line = interpolate_sentences(loaded, given[0], given[1], 4)
    assert len(line) == 4
    assert (line[0], line[-1]) == (given[0], given[1])


def test_empty_lines_stay_where_they_are():
    assert [bool(line) for line in reconstruct(sentence_autoencoder(), ["", "the cat", ""])][::2] == [False, False]
    with pytest.raises(ValueError, match="there is no way from or to an empty sentence; give two sentences"):
        interpolate_sentences(sentence_autoencoder(), "", "the cat")


def test_lines_of_files_are_sentences():
    Path("a.txt").write_text("the cat ran\n\nthe dog ran\n")
    Path("b.txt").write_text("we ran\n")
    data = AutoencodingData(corpus="files", train=("a.txt", "b.txt"), valid=("b.txt",))
    with pytest.raises(ValueError, match=r"a\.txt:2: an empty line; fill it in, remove it, or train with --set data"):
        sentences(data=data)
    found = replace(SETTINGS, data=replace(data, skip_empty=True)).data.read("train")
    assert found.examples == ["the cat ran", "the dog ran", "we ran"]
    assert found.skipped == ("a.txt:2: an empty line",)
    with pytest.raises(ValueError, match=r"data\.corpus = 'imdb' is not for autoencoding; give text files"):
        sentences(data=AutoencodingData(corpus="imdb"))


def test_words_of_another_run_are_not_taken_for_its_own(tmp_path):
    sentence_autoencoder().save(tmp_path)
    words = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(words.replace("the", "teh"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not what the weights were trained with; put it back"):
        SentenceAutoencoder.load(tmp_path)
