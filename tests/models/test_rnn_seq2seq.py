"""Recurrent encoder–decoders: Bahdanau's and Luong's models against their formulas."""

import pytest
import torch
from torch.testing import assert_close

from regard.attention import Recipe, Sinusoidal, reinforce
from regard.models import build_model
from regard.models.rnn_seq2seq import RNNAttention
from tests.models.small_models import LENGTHS, SOURCE, TARGET, model_of, recurrent, sentences
from tests.recorded import call_with_steps


def annotations(model, source):
    """The encoder's states of one sentence, without padding, and the decoder's first state."""
    states, first = model.encoder(model.embeddings.embed_source(source[None]), torch.tensor([len(source)]))
    return states[0], tuple(part[0, 0] for part in first)


def cell(rnn, x, state):
    """One step of the decoder's cell for one sentence."""
    U, W, b, c = rnn.weights()
    new = rnn.cell.step((U @ x + b)[None], (W @ state[0] + c)[None], tuple(part[None] for part in state))
    return tuple(part[0] for part in new)


def weighted(scores, h):
    """Σ_j α_j h_j, one word after the other."""
    total = sum(score.exp() for score in scores)
    return sum(score.exp() / total * h_j for score, h_j in zip(scores, h, strict=True))


def test_bahdanau_is_its_formula():
    model, (source, lengths, target) = model_of("bahdanau"), sentences()
    got = model(source, lengths, target)
    score = model.attention.recipe.score
    for n, length in enumerate(LENGTHS):
        h, s = annotations(model, source[n, :length])
        for t, y in enumerate(model.embeddings.embed_target(target[n : n + 1])[0]):
            scores = [score.v @ torch.tanh(score.W.weight @ s[0] + score.U.weight @ h_j) for h_j in h]
            c = weighted(scores, h)
            s = cell(model.decoder.rnn, torch.cat((y, c)), s)
            readout = model.decoder.readout.weight
            pairs = readout.weight @ torch.cat((s[0], c, y)) + readout.bias
            concluded = torch.stack([max(pairs[m], pairs[m + 1]) for m in range(0, len(pairs), 2)])
            logits = model.embeddings.table("output").weight @ concluded + model.embeddings.bias
            assert_close(got[n, t], logits)


def test_bahdanau_starts_from_the_first_word_read_backwards():
    model, (source, _, _) = model_of("bahdanau"), sentences()
    h, (s,) = annotations(model, source[0])
    bridge = model.encoder.bridge.weights[0]
    backward = h[0, 10:]  # the second half of the first annotation: the reader that came from the end
    assert_close(s, torch.tanh(bridge.weight @ backward + bridge.bias))


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("kind", ["luong-dot", "luong-general"])
def test_luong_is_its_formula(kind, fed):
    config = recurrent(kind, input_feeding=fed)
    model, (source, lengths, target) = build_model(config, SOURCE, TARGET).double().eval(), sentences()
    got = model(source, lengths, target)
    W = model.attention.recipe.score.weight if kind == "luong-general" else torch.eye(10, dtype=torch.double)
    for n, length in enumerate(LENGTHS):
        h, s = annotations(model, source[n, :length])
        concluded = torch.zeros(6, dtype=torch.double)
        for t, y in enumerate(model.embeddings.embed_target(target[n : n + 1])[0]):
            s = cell(model.decoder.rnn, torch.cat((y, concluded)) if fed else y, s)
            c = weighted([s[0] @ W @ h_j for h_j in h], h)
            layer = model.decoder.readout.weight
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
    model, (source, lengths, target) = build_model(config, SOURCE, TARGET).double(), sentences()
    logits, record = call_with_steps(model, source, lengths, target)
    assert record.weights("attention").unique().tolist() == [0.0, 1.0]
    drawn = record.log_probability("attention")
    assert drawn is not None
    assert drawn.shape == (3, 1, 5)
    reward = logits.log_softmax(-1)[..., 2][:, None]
    v = model.attention.recipe.score.v
    assert torch.autograd.grad(reward.sum(), v, retain_graph=True, allow_unused=True)[0] is None
    loss = reinforce(drawn, reward, torch.zeros_like(reward))
    assert torch.autograd.grad(loss, v)[0].abs().sum() > 0


def test_embedding_positions_are_refused_by_recurrent_models():
    with pytest.raises(ValueError, match="leave the position out"):
        RNNAttention(Recipe(position=Sinusoidal()))
