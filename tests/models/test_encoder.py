"""Text encoders and classifiers: contracts of every kind, for sequences and tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from regard.attention import Hard, MultiHeadAttention, Recipe, StraightThrough
from regard.layers.pooling import AttentionPooling, MeanPooling, TokenWeightPooling
from regard.models.baselines import TfIdfPooling
from regard.models.config import EncoderConfig, PoolingConfig, build_pooling
from regard.models.encoder import Encoder, SequenceClassifier, TokenClassifier
from tests.recorded import call_recorded, call_with_steps

SIZE, LABELS, LENGTHS = 13, 3, (7, 2, 5)
EXACT: Any = {"rtol": 0.0, "atol": 1e-10}


def recurrent(kind, **changes) -> EncoderConfig:
    return EncoderConfig(**{"kind": kind, "layers": 1, "model": 6, "hidden": 10, "dropout": 0.0} | changes)


def transformer(**changes) -> EncoderConfig:
    return EncoderConfig(
        **{"kind": "transformer", "layers": 2, "model": 8, "hidden": 11, "heads": 2, "dropout": 0.0} | changes
    )


ENCODERS = {
    "embed": EncoderConfig(kind="embed", model=6, dropout=0.0),
    "elman": recurrent("elman"),
    "gru, both ways": recurrent("gru", directions=2, layers=2),
    "lstm": recurrent("lstm", layers=2),
    "transformer": transformer(),
    "transformer, post": transformer(norm="post", activation="gelu", groups=1),
    "transformer, windows": transformer(recipe='pattern = "Window(2) | Global(1)"'),
    "transformer, linear": transformer(recipe='score = "Feature()"\nnormaliser = "Proportional()"'),
    "transformer, sparsemax": transformer(recipe='normaliser = "Sparsemax()"\nposition = "Rotary()"'),
    "transformer, a recipe per layer": transformer(recipe=('pattern = "Window(2)"', 'normaliser = "Sparsemax()"')),
    "transformer, learned places": transformer(recipe='position = "Learned(longest=11, model=8)"'),
    "transformer, tree depth": transformer(recipe='position = "Sinusoidal() + TreeDepth()"'),
    "transformer, tree path": transformer(recipe='position = "RelativeVectors(TreePath(2), 4)"'),
    "transformer, tree bias": transformer(recipe='position = "TreeDepth() + RelativeBias(TreePath(3), 2)"'),
}
TREES = [name for name in ENCODERS if "tree" in name]


def encoder_of(name: str) -> Encoder:
    return Encoder(ENCODERS[name], SIZE).double().eval()


def texts():
    """Tokens, lengths, and heads: each word hangs on the one before it, or now and then on the first."""
    lengths = torch.tensor(LENGTHS)
    tokens = torch.randint(3, SIZE, (3, 7))
    heads = torch.stack([torch.tensor([0, 1, 2, 1, 4, 4, 6])] * 3)
    here = torch.arange(7) < lengths[:, None]
    return tokens.where(here, 0), lengths, heads.where(here, 0)


@pytest.mark.parametrize("name", ENCODERS)
def test_batch_and_padding_change_nothing(name):
    encoder, (tokens, lengths, heads) = encoder_of(name), texts()
    together = encoder(tokens, lengths, heads)
    assert together.shape == (3, 7, encoder.width)
    for n, length in enumerate(LENGTHS):
        one = slice(n, n + 1)
        alone = encoder(tokens[one, :length], lengths[one], heads[one, :length])
        assert_close(alone[0], together[n, :length], **EXACT)
        assert (together[n, length:] == 0).all()
    here = torch.arange(7) < lengths[:, None]
    filled, heads = tokens.where(here, -1), heads.where(here, 7)  # whatever stands beyond the end, words or not
    more = torch.full((3, 2), 5)
    longer = encoder(torch.cat((filled, more), 1), lengths, torch.cat((heads, more), 1))
    assert_close(longer[:, :7], together, **EXACT)


@pytest.mark.parametrize("name", ["gru, both ways", "transformer", *TREES])
def test_in_single_precision_too(name):
    encoder, (tokens, lengths, heads) = encoder_of(name).float(), texts()
    together = encoder(tokens, lengths, heads)
    alone = encoder(tokens[1:2, :2], lengths[1:2], heads[1:2, :2])
    assert_close(alone[0], together[1, :2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "weights", "attention"])
@pytest.mark.parametrize("name", ["embed", "gru, both ways", "transformer", "transformer, tree path"])
def test_half_precision_is_near(name, pooling):
    encoder, (tokens, lengths, heads) = encoder_of(name).float(), texts()
    model = SequenceClassifier(encoder, build_pooling(PoolingConfig(kind=pooling), encoder.width, SIZE), labels=LABELS)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(tokens, lengths, heads)
    assert_close(half.float(), model(tokens, lengths, heads), rtol=0, atol=0.1)


@pytest.mark.parametrize("name", ["embed", "elman", "gru, both ways"])
def test_dropout_falls_on_what_leaves_the_encoder_and_only_while_training(name):
    encoder, (tokens, lengths, _) = Encoder(replace(ENCODERS[name], dropout=0.5), SIZE), texts()
    gone = (encoder.train()(tokens[:1], lengths[:1]) == 0).float().mean()
    assert 0.2 < gone < 0.8
    assert (encoder.eval()(tokens[:1], lengths[:1]) != 0).all()


def test_a_transformers_dropouts_are_where_they_are_set():
    encoder = Encoder(replace(ENCODERS["transformer"], dropout=0.3, attention_dropout=0.2), SIZE)
    rates = {name: part.p for name, part in encoder.named_modules() if isinstance(part, nn.Dropout)}
    assert set(rates.values()) == {0.3}
    assert len(rates) == 1 + 2 * 2  # on the words, and around both parts of both layers
    layers = [part for part in encoder.modules() if isinstance(part, MultiHeadAttention)]
    assert [layer.dropout for layer in layers] == [0.2, 0.2]


@pytest.mark.parametrize("name", ENCODERS)
def test_recording_captures_weights_and_changes_nothing(name):
    encoder, (tokens, lengths, heads) = encoder_of(name), texts()
    states, record = call_recorded(encoder, tokens, lengths, heads)
    assert_close(states, encoder(tokens, lengths, heads), rtol=0, atol=0)
    assert list(record.calls) == (["layers.0", "layers.1"] if name.startswith("transformer") else [])
    for weights in map(record.weights, record.calls):
        assert weights.shape == (3, 2, 7, 7)
        assert_close(weights.sum(-1)[:, :, :2], torch.ones(3, 2, 2, dtype=torch.double))
        assert (weights[1, :, :, 2:] == 0).all()


def test_a_word_has_one_vector_without_context_and_several_with_it():
    """light and light: word 5 among others."""
    tokens, lengths = torch.tensor([[5, 6, 7], [8, 5, 9]]), torch.tensor([3, 3])
    for name in ENCODERS.keys() - {"embed", *TREES}:
        x = encoder_of(name)(tokens, lengths)
        assert not torch.allclose(x[0, 0], x[1, 1]), name
    x = encoder_of("embed")(tokens, lengths)
    assert torch.equal(x[0, 0], x[1, 1])


@pytest.mark.parametrize("name", TREES)
def test_the_tree_is_used_and_wanted(name):
    encoder, (tokens, lengths, heads) = encoder_of(name), texts()
    other = heads.clone()
    other[0, 6] = 1
    changed, before = encoder(tokens, lengths, other), encoder(tokens, lengths, heads)
    assert not torch.allclose(changed[0], before[0])
    assert_close(changed[1:], before[1:], **EXACT)
    with pytest.raises(ValueError, match="needs the governors of the sentences' tokens: give governors="):
        encoder(tokens, lengths)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in TREES])
def test_an_encoder_of_rows_does_not_ask_for_trees(name):
    encoder, (tokens, lengths, heads) = encoder_of(name), texts()
    assert torch.equal(encoder(tokens, lengths), encoder(tokens, lengths, heads))


@pytest.mark.parametrize("name", ENCODERS)
def test_every_weight_learns_and_is_stored_once(name):
    model, (tokens, lengths, heads) = (
        SequenceClassifier(encoder_of(name).train(), MeanPooling(), labels=LABELS).double(),
        texts(),
    )
    model(tokens, lengths, heads).logsumexp(-1).sum().backward()
    idle = [key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # softmax ignores what all keys have in common; where the tree's paths never reach so far, nothing is learnt
    assert [key for key in idle if not key.endswith("key.bias")] == []
    weights = model.state_dict()
    assert len({weight.data_ptr() for weight in weights.values()}) == len(weights)


@pytest.mark.parametrize("pooling", ["mean", "max", "last", "weights", "attention"])
def test_one_label_for_a_text(pooling):
    tokens, lengths, _ = texts()
    encoder = encoder_of("transformer")
    model = SequenceClassifier(encoder, build_pooling(PoolingConfig(kind=pooling), encoder.width, SIZE), labels=LABELS)
    model = model.double().eval()
    together, record = call_recorded(model, tokens, lengths)
    assert_close(model(tokens, lengths), together, rtol=0, atol=0)
    assert together.shape == (3, LABELS)
    assert record.weights("pooling").shape == (3, 1, 1, 7)
    assert list(record.calls) == ["encoder.0", "encoder.1", "pooling"]
    for n, length in enumerate(LENGTHS):
        assert_close(model(tokens[n : n + 1, :length], lengths[n : n + 1])[0], together[n], **EXACT)


def test_hard_attention_is_a_line_of_the_description():
    config = PoolingConfig(recipe='normaliser = "Hard(training=Sampled())"\nscore = "Additive(6, 3)"')
    tokens, lengths, _ = texts()
    model = SequenceClassifier(encoder_of("embed"), build_pooling(config, 6, SIZE), labels=2).double()
    drawn = call_with_steps(model.train(), tokens, lengths)[1].log_probability("pooling")
    assert drawn is not None
    assert drawn.shape == (3, 1, 1)
    assert drawn.requires_grad
    _, record = call_with_steps(model.eval(), tokens, lengths)
    assert record.log_probability("pooling") is None
    assert record.weights("pooling").sum(-1).tolist() == [[[1.0]]] * 3


def test_static_weights_serve_learned_embeddings_as_well():
    tokens, lengths, _ = texts()
    model = SequenceClassifier(encoder_of("embed"), TfIdfPooling(torch.rand(SIZE)), labels=2).double().eval()
    assert_close(model(tokens[1:2, :2], lengths[1:2])[0], model(tokens, lengths)[1], **EXACT)


@pytest.mark.parametrize(
    "pooling",
    [
        TokenWeightPooling(20),
        AttentionPooling(8),
        AttentionPooling(8, recipe=Recipe(normaliser=Hard(StraightThrough()))),
    ],
    ids=["weights", "soft", "hard"],
)
def test_poolings_learn_to_find_the_word_that_decides(pooling):
    tokens, label = torch.randint(4, 20, (100, 7)), torch.randint(0, 2, (100,))
    tokens[torch.arange(100), torch.randint(0, 7, (100,))] = label + 2
    lengths = torch.full((100,), 7)
    model = SequenceClassifier(Encoder(EncoderConfig(kind="embed", model=8, dropout=0.0), 20), pooling, labels=2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        cross_entropy(model(tokens, lengths), label).backward()
        optimiser.step()
    assert (model.eval()(tokens, lengths).argmax(-1) == label).float().mean() > 0.95


@pytest.mark.parametrize("name", ENCODERS)
def test_one_label_for_every_word(name):
    """From first pieces alone; company changes nothing."""
    tokens, lengths, heads = texts()
    model = TokenClassifier(encoder_of(name), labels=LABELS).double().eval()
    first = torch.tensor([[0, 2, 3, 6], [1, 0, 0, 0], [0, 4, 0, 0]])
    together = model(tokens, lengths, first, heads)
    assert together.shape == (3, 4, LABELS)
    states = model.encoder(tokens, lengths, heads)
    assert_close(together[0, 3], model.output(states[0, 6]), **EXACT)
    alone = model(tokens[2:, :5], lengths[2:], first[2:, :2], heads[2:, :5])
    assert_close(alone[0], together[2, :2], **EXACT)
    logits, record = call_recorded(model, tokens, lengths, first, heads)
    assert_close(logits, together, rtol=0, atol=0)
    assert all(layer.startswith("encoder.") for layer in record.calls)


def test_mistakes_are_named():
    tokens, lengths, _ = texts()
    with pytest.raises(ValueError, match="first pieces are at 0 to 6, not at 0 or 7"):
        TokenClassifier(encoder_of("embed"), labels=2)(tokens, lengths, torch.tensor([[0, 7]] * 3))
    with pytest.raises(ValueError, match="2 labels or more to choose from, not 1"):
        TokenClassifier(encoder_of("embed"), labels=1)
