"""Contracts of every Seq2Seq model: padding, batch and chunking change nothing, and decoding is causal."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from regard.layers import TiedEmbeddings
from regard.models import count_parameters
from tests.models.small_models import (
    LADDER,
    LENGTHS,
    TARGET,
    WITH_ATTENTION,
    check_chunks,
    check_single_precision,
    model_of,
    sentences,
)
from tests.narrowing import assert_is_instance
from tests.recorded import call_recorded

TRANSFORMERS = [name for name in LADDER if name.startswith("transformer")]
EXACT: Any = {"rtol": 0.0, "atol": 1e-10}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LADDER)
def test_batch_and_padding_change_nothing(name):
    model, (source, lengths, target) = model_of(name), sentences()
    together = model(source, lengths, target)
    for n, length in enumerate(LENGTHS):
        assert_close(model(source[n : n + 1, :length], lengths[n : n + 1], target[n : n + 1])[0], together[n], **EXACT)
    filled = torch.cat((source, torch.full((3, 4), 5)), 1)  # whatever stands beyond the end
    assert_close(model(filled, lengths, target), together, **EXACT)


@pytest.mark.parametrize("name", ["elman", "lstm", "bahdanau", "luong general, fed", *TRANSFORMERS[:3]])
def test_in_single_precision_too(name):
    check_single_precision(model_of(name), sentences())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pieces", [[1] * 5, [2, 3]], ids=str)
@pytest.mark.parametrize("name", LADDER)
def test_decoding_in_chunks_is_decoding_at_once(name, pieces):
    check_chunks(model_of(name), sentences(), pieces)


@pytest.mark.parametrize("name", LADDER)
def test_the_old_state_stays_as_it_was(name):
    model, (source, lengths, target) = model_of(name), sentences()
    memory = model.encode(source, lengths)
    _, state = model.step(target[:, :3], model.start(memory), memory)
    once, twice = (model.step(target[:, 3:], state, memory)[0] for _ in range(2))
    assert torch.equal(once, twice)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LADDER)
def test_picked_sentences_go_on_where_they_were(name):
    """Reordered, left out and repeated, before the first word and in the middle."""
    model, (source, lengths, target) = model_of(name), sentences()
    rows = torch.tensor([2, 0, 2, 2])
    memory = model.encode(source, lengths)
    _, state = model.step(target[:, :2], model.start(memory), memory)
    expected, _ = model.step(target[:, 2:], state, memory)
    picked, _ = model.step(target[rows, 2:], state.pick(rows), memory.pick(rows))
    assert_close(picked, expected[rows], **EXACT)
    chosen = memory.pick(rows)
    assert_close(
        model.step(target[rows], model.start(chosen), chosen)[0], model(source, lengths, target)[rows], **EXACT
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LADDER)
def test_nobody_sees_the_future(name):
    """Neither the scores nor their gradients know of later target words."""
    model, (source, lengths, target) = model_of(name), sentences()
    logits = model(source, lengths, target)
    other = target.clone()
    other[:, 3:] = (other[:, 3:] + 1) % TARGET
    changed = model(source, lengths, other)
    assert_close(changed[:, :3], logits[:, :3], **EXACT)
    assert not torch.allclose(changed[:, 3:], logits[:, 3:])
    table = assert_is_instance(model.embeddings, TiedEmbeddings).table("target").weight
    late = torch.tensor([[1, 2, 3, 15, 16]] * 3)  # words 15 and 16 stand nowhere else
    scores = model(source, lengths, late)[:, :3, :10].square().sum()  # those of words that are not asked about
    (gradient,) = torch.autograd.grad(scores, table)
    assert (gradient[15:] == 0).all()
    assert gradient[1:4].abs().sum() > 0


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_recording_captures_weights_and_changes_nothing(name):
    model, (source, lengths, target) = model_of(name), sentences()
    logits, record = call_recorded(model, source, lengths, target)
    assert_close(logits, model(source, lengths, target), rtol=0, atol=0 if "linear" not in name else 1e-10)
    heads = 2 if name.startswith("transformer") else 1
    layers = [f"decoder.{n}.cross" for n in range(LADDER[name].layers)]
    names = layers if name.startswith("transformer") else ["attention"]
    assert [site.name for site in record.sites if site.queries == "written"] == names
    for layer in names:
        model.get_submodule(layer)  # the name is the layer's own
        weights = record.weights(layer)
        assert weights.shape == (3, heads, 5, 7)
        assert_close(weights.sum(-1), torch.ones(3, heads, 5, dtype=torch.double))
        padding = torch.arange(7) >= lengths[:, None]
        assert (weights.masked_select(padding[:, None, None]) == 0).all()


@pytest.mark.parametrize("name", ["elman", "gru", "lstm"])
def test_without_attention_there_is_nothing_to_show(name):
    model, (source, lengths, target) = model_of(name), sentences()
    assert not call_recorded(model, source, lengths, target)[1].calls


@pytest.mark.parametrize("name", LADDER)
def test_every_weight_learns(name):
    """While training, each parameter gets a gradient that is not zero throughout."""
    model, (source, lengths, target) = model_of(name).train(), sentences()
    model(source, lengths, target).logsumexp(-1).sum().backward()
    idle = [key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # softmax ignores what all keys have in common, which is all that a bias of the keys adds to the score
    assert [key for key in idle if not key.endswith("key.bias")] == []
    assert count_parameters(model) == sum(weight.numel() for weight in set(model.parameters()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LADDER)
def test_weights_are_stored_once_and_make_the_same_model_again(name):
    model, again, (source, lengths, target) = model_of(name), model_of(name), sentences()
    weights = model.state_dict()
    assert len({weight.data_ptr() for weight in weights.values()}) == len(weights)
    again.load_state_dict(weights)
    assert torch.equal(again(source, lengths, target), model(source, lengths, target))


@pytest.mark.parametrize("name", ["gru", "bahdanau", "luong general, fed", "transformer, pre"])
def test_half_precision_is_near(name):
    model, (source, lengths, target) = model_of(name).float(), sentences()
    with torch.autocast("cpu", torch.bfloat16):
        half = model(source, lengths, target)
    assert_close(half.float(), model(source, lengths, target), rtol=0, atol=0.1)
