"""Masked language modeling: masks, a model of the miniature world that fills them, and vectors of texts."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS
from regard.tasks.masked_language_modeling.task import (
    MaskedBatch,
    MaskedLMSettings,
    TextEncoder,
    mask_tokens,
    mean_vectors,
)
from regard.training.run import TrainingRun


def test_the_mean_of_a_text_leaves_out_its_padding():
    states = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [99.0, 99.0]]])
    assert mean_vectors(states, torch.tensor([2])).tolist() == [[2.0, 4.0]]


def test_masks_never_hide_special_tokens_or_padding_and_fall_as_bert_s_do():
    """Of the tokens to predict 80 % are masked, 10 % are others, 10 % stay (Devlin et al. 2019)."""
    ids = torch.randint(NUM_SPECIAL_TOKENS, 50, (100, 97), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = NUM_SPECIAL_TOKENS - 1
    batch = MaskedBatch(ids, torch.full((100,), 90))
    read, chosen = mask_tokens(batch, 0.15, 1, 50, torch.Generator().manual_seed(1))
    assert not chosen[:, 0].any()
    assert not chosen[:, 90:].any()
    assert torch.equal(read[~chosen], ids[~chosen])
    assert float(chosen[:, 1:90].float().mean()) == pytest.approx(0.15, abs=0.02)
    assert float((read[chosen] == 1).float().mean()) == pytest.approx(0.8, abs=0.04)
    assert float((read[chosen] == ids[chosen]).float().mean()) == pytest.approx(0.1, abs=0.04)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> TextEncoder:
    """After 50 steps on sentences of the miniature world."""
    settings = MaskedLMSettings.of_world()
    settings = replace(settings, data=replace(settings.data, sentences=600))
    settings = settings.with_changes({"train.steps": "50", "train.validate_every": "50", "train.warmup_steps": "20"})
    train, valid = (settings.data.read(split, None).examples for split in ("train", "valid"))
    made = TextEncoder.from_examples(train, settings)
    before = {name: weight.clone() for name, weight in made.model.state_dict().items()}
    reports = list(TrainingRun(made.job(train, valid[:50]), tmp_path_factory.mktemp("run")).steps())
    assert reports[-1].loss < reports[0].loss
    assert any(not torch.equal(weight, before[name]) for name, weight in made.model.state_dict().items())
    made.model.eval()
    return made


def test_it_fills_a_mask_by_the_words_beside_it(encoder):
    """After "the" and before a verb stands a noun; what is filled in is the most probable of the alternatives."""
    found = encoder.fill("the [MASK] sleeps", count=3)
    (row,) = found.alternatives
    assert [share for _, share in row] == sorted((share for _, share in row), reverse=True)
    assert found.text.split()[1] == row[0][0]
    with pytest.raises(ValueError, match="nothing to fill"):
        encoder.fill("the cat sleeps")


def test_a_vector_has_length_one_and_does_not_depend_on_the_batch(encoder):
    texts = ["the cat sleeps", "the black cat ate the mouse", "a dog"]
    vectors = encoder.embed(texts)
    assert_close(vectors.norm(dim=-1), torch.ones(3))
    assert_close(encoder.embed(texts[1]), vectors[1], rtol=0, atol=1e-6)


def test_a_saved_model_gives_the_same_vectors(encoder, tmp_path):
    encoder.save(tmp_path / "run")
    assert torch.equal(TextEncoder.load(tmp_path / "run").embed("the cat sleeps"), encoder.embed("the cat sleeps"))
