"""Recurrent encoder–decoders: Bahdanau's and Luong's models against their formulas."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import Additive, Bilinear, Recipe, Sinusoidal, reinforce
from regard.layers.rnn import HiddenState, RNNLayers
from regard.models import ModelConfig, build_model
from regard.models.rnn_seq2seq import (
    BackwardStateBridge,
    BahdanauDecoder,
    InputFeedingDecoder,
    LuongDecoder,
    Maxout,
    RNNAttention,
    RNNAttentionSeq2Seq,
)
from tests.models.small_models import LENGTHS, SOURCE, TARGET, model_of, recurrent, sentences
from tests.narrowing import assert_is_instance
from tests.recorded import call_with_steps


def attention_model(config: ModelConfig) -> RNNAttentionSeq2Seq:
    return assert_is_instance(build_model(config, SOURCE, TARGET).double().eval(), RNNAttentionSeq2Seq)


def annotations(model: RNNAttentionSeq2Seq, source: Tensor) -> tuple[Tensor, HiddenState]:
    """The encoder's states of one sentence, without padding, and the decoder's first state."""
    states, first = model.encoder(model.embeddings.embed_source(source[None]), torch.tensor([len(source)]))
    return states[0], tuple(part[0, 0] for part in first)


def cell(rnn: RNNLayers, x: Tensor, state: HiddenState) -> HiddenState:
    """One step of the decoder's cell for one sentence."""
    U, W, b, c = rnn.weights()
    new = rnn.cell.step((U @ x + b)[None], (W @ state[0] + c)[None], tuple(part[None] for part in state))
    return tuple(part[0] for part in new)


def context_vector(scores: list[Tensor], h: Tensor) -> Tensor:
    """Σ_j α_j h_j, one word after the other."""
    total = torch.stack([score.exp() for score in scores]).sum()
    return torch.stack([score.exp() / total * h_j for score, h_j in zip(scores, h, strict=True)]).sum(0)


def test_bahdanau_is_its_formula():
    model, (source, lengths, target) = attention_model(recurrent("bahdanau")), sentences()
    decoder = assert_is_instance(model.decoder, BahdanauDecoder)
    readout = assert_is_instance(decoder.readout, Maxout).weight
    score = assert_is_instance(model.attention.recipe.score, Additive)
    got = model(source, lengths, target)
    for n, length in enumerate(LENGTHS):
        h, s = annotations(model, source[n, :length])
        for t, y in enumerate(model.embeddings.embed_target(target[n : n + 1])[0]):
            scores = [score.v @ torch.tanh(score.W.weight @ s[0] + score.U.weight @ h_j) for h_j in h]
            c = context_vector(scores, h)
            s = cell(decoder.rnn, torch.cat((y, c)), s)
            pairs = readout.weight @ torch.cat((s[0], c, y)) + readout.bias
            concluded = torch.stack([max(pairs[m], pairs[m + 1]) for m in range(0, len(pairs), 2)])
            logits = model.embeddings.table("output").weight @ concluded + model.embeddings.bias
            assert_close(got[n, t], logits)


def test_bahdanau_starts_from_the_first_word_read_backwards():
    model, (source, _, _) = attention_model(recurrent("bahdanau")), sentences()
    h, (s,) = annotations(model, source[0])
    bridge = assert_is_instance(assert_is_instance(model.encoder.bridge, BackwardStateBridge).weights[0], nn.Linear)
    backward = h[0, 10:]  # the second half of the first annotation: the reader that came from the end
    assert_close(s, torch.tanh(bridge.weight @ backward + bridge.bias))


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("kind", ["luong-dot", "luong-general"])
def test_luong_is_its_formula(kind, fed):
    model, (source, lengths, target) = attention_model(recurrent(kind, input_feeding=fed)), sentences()
    decoder, score = model.decoder, model.attention.recipe.score
    assert isinstance(decoder, InputFeedingDecoder if fed else LuongDecoder)
    got = model(source, lengths, target)
    W = score.weight if isinstance(score, Bilinear) else torch.eye(10, dtype=torch.double)
    layer = decoder.readout.weight
    for n, length in enumerate(LENGTHS):
        h, s = annotations(model, source[n, :length])
        concluded = torch.zeros(6, dtype=torch.double)
        for t, y in enumerate(model.embeddings.embed_target(target[n : n + 1])[0]):
            s = cell(decoder.rnn, torch.cat((y, concluded)) if fed else y, s)
            c = context_vector([s[0] @ W @ h_j for h_j in h], h)
            concluded = torch.tanh(layer.weight @ torch.cat((c, s[0])) + layer.bias)
            assert_close(got[n, t], model.embeddings.table("output").weight @ concluded + model.embeddings.bias)


def test_without_attention_the_sentence_is_one_state():
    """However long the source, the decoder is told as many numbers."""
    model, (source, lengths, _) = model_of("lstm"), sentences()
    assert [part.shape for part in model.encode(source, lengths).initial_state] == [(3, 2, 10)] * 2
    h, c = model.encode(source[:1, :2], torch.tensor([2])).initial_state
    assert h.shape == c.shape == (1, 2, 10)


def test_hard_attention_can_be_trained_by_reinforce():
    """Drawn weights let no gradient through; the log-probabilities of the draws do."""
    config = recurrent("bahdanau", cross='normaliser = "Hard()"')
    model, (source, lengths, target) = attention_model(config).train(), sentences()
    logits, record = call_with_steps(model, source, lengths, target)
    assert record.weights("attention").unique().tolist() == [0.0, 1.0]
    drawn = record.log_probability("attention")
    assert drawn is not None
    assert drawn.shape == (3, 1, 5)
    reward = logits.log_softmax(-1)[..., 2][:, None]
    v = assert_is_instance(model.attention.recipe.score, Additive).v
    assert torch.autograd.grad(reward.sum(), v, retain_graph=True, allow_unused=True)[0] is None
    loss = reinforce(drawn, reward, torch.zeros_like(reward))
    assert torch.autograd.grad(loss, v)[0].abs().sum() > 0


def test_embedding_positions_are_refused_by_recurrent_models():
    with pytest.raises(ValueError, match="leave the position out"):
        RNNAttention(Recipe(position=Sinusoidal()))
