"""Autoencoders: only the latent passes, whatever the padding, the batch and the chunking."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from regard.data.batching import collate
from regard.models.autoencoder import Autoencoder, AutoencoderConfig, build_autoencoder
from regard.models.seq2seq import count_parameters
from regard.tasks.seq2seq import LabelSmoothingLoss
from tests.models.small_models import check_chunks, check_single_precision
from tests.recorded import call_recorded

SIZE, LENGTHS = 17, (7, 2, 5)
EXACT: Any = {"rtol": 0.0, "atol": 1e-10}


def config(kind, **changes) -> AutoencoderConfig:
    sizes = {"layers": 2, "model": 6, "hidden": 10, "latents": 3, "latent": 5, "dropout": 0.0}
    return AutoencoderConfig(**{"kind": kind, **sizes} | changes)


MODELS = {
    "elman, last": config("elman", bottleneck="last", layers=1, latents=1),
    "gru, mean": config("gru", bottleneck="mean", directions=2),
    "lstm, last, cut": config("lstm", bottleneck="last"),
    "gru, attention": config("gru", heads=2, directions=2),
    "lstm, attention": config("lstm", heads=1),
    "transformer, last": config("transformer", bottleneck="last", heads=2, latents=1),
    "transformer, mean, cut": config("transformer", bottleneck="mean", heads=2),
    "transformer, attention": config("transformer", heads=2),
    "transformer, more latents than words": config("transformer", heads=2, latents=11, groups=1, norm="post"),
    "transformer, rotary": config("transformer", heads=1, recipe='position = "Rotary()"'),
    "transformer, learned places": config("transformer", heads=2, recipe='position = "Learned(longest=11, model=6)"'),
}
ASKING = [name for name in MODELS if MODELS[name].bottleneck == "attention"]


def model_of(name: str) -> Autoencoder:
    """In double precision and without noise, so that equal means equal."""
    return build_autoencoder(MODELS[name], SIZE).double().eval()


def sentences():
    tokens, lengths = torch.randint(3, SIZE, (3, 7)), torch.tensor(LENGTHS)
    return tokens.where(torch.arange(7) < lengths[:, None], 0), lengths, torch.randint(1, SIZE, (3, 5))


@pytest.mark.parametrize("name", MODELS)
def test_batch_and_padding_change_nothing(name):
    model, (source, lengths, target) = model_of(name), sentences()
    together, latent = model(source, lengths, target), model.encode_latent(source, lengths)
    assert latent.shape == (3, MODELS[name].latents, MODELS[name].latent)
    for n, length in enumerate(LENGTHS):
        one = slice(n, n + 1)
        assert_close(model.encode_latent(source[one, :length], lengths[one])[0], latent[n], **EXACT)
        assert_close(model(source[one, :length], lengths[one], target[one])[0], together[n], **EXACT)
    filled = torch.cat((source, torch.full((3, 4), 5)), 1)  # whatever stands beyond the end
    assert_close(model(filled, lengths, target), together, **EXACT)


@pytest.mark.parametrize("name", ["gru, attention", "transformer, mean, cut", "transformer, attention"])
def test_in_single_precision_too(name):
    check_single_precision(model_of(name), sentences())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pieces", [[1] * 5, [2, 3]], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_decoding_in_chunks_is_decoding_at_once(name, pieces):
    check_chunks(model_of(name), sentences(), pieces)


@pytest.mark.parametrize("name", MODELS)
def test_picked_sentences_go_on_where_they_were(name):
    model, (source, lengths, target), rows = model_of(name), sentences(), torch.tensor([2, 0, 2, 2])
    memory = model.encode(source, lengths)
    _, state = model.step(target[:, :2], model.start(memory), memory)
    expected, _ = model.step(target[:, 2:], state, memory)
    picked, _ = model.step(target[rows, 2:], state.pick(rows), memory.pick(rows))
    assert_close(picked, expected[rows], **EXACT)


# --- the latent is all that passes ---


@pytest.mark.parametrize("name", MODELS)
def test_the_decoder_knows_the_latent_and_nothing_else_of_the_source(name):
    """Another source with the same latent gives the same scores; another latent does not."""
    model, (source, lengths, target) = model_of(name), sentences()
    expected, latent = model(source, lengths, target), model.encode_latent(source, lengths)
    model.bottleneck.forward = lambda x, tokens, lengths: latent[: len(x)]  # whatever it is given
    other = (source + 1) % SIZE
    assert_close(model(other[:, :3], torch.tensor([3, 1, 2]), target), expected, **EXACT)
    memory = model.memory_from_latent(latent.roll(1, 0))
    assert not torch.allclose(model.step(target, model.start(memory), memory)[0], expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_all_of_the_source_can_enter_the_latent(name):
    """Every word, and every place in the latent."""
    model, (source, lengths, _) = model_of(name), sentences()
    latent = model.encode_latent(source, lengths)
    for n, length in enumerate(LENGTHS):
        for at in range(length):
            other = source.clone()
            other[n, at] = 3 + (source[n, at] - 2) % (SIZE - 3)
            assert ((model.encode_latent(other, lengths) - latent)[n].abs() > 1e-9).all(), (n, at)


@pytest.mark.parametrize("name", MODELS)
def test_nobody_sees_the_future(name):
    model, (source, lengths, target) = model_of(name), sentences()
    logits, other = model(source, lengths, target), target.clone()
    other[:, 3:] = (other[:, 3:] + 1) % SIZE
    changed = model(source, lengths, other)
    assert_close(changed[:, :3], logits[:, :3], **EXACT)
    assert not torch.allclose(changed[:, 3:], logits[:, 3:])


@pytest.mark.parametrize("name", MODELS)
def test_recording_captures_both_attentions_and_changes_nothing(name):
    model, (source, lengths, target) = model_of(name), sentences()
    logits, record = call_recorded(model, source, lengths, target)
    assert_close(logits, model(source, lengths, target), rtol=0, atol=0)
    k = MODELS[name].latents
    heads, queries = (MODELS[name].heads, k) if name in ASKING else (1, 1)
    entered = record.weights("bottleneck")
    assert entered.shape == (3, heads, queries, 7)
    assert_close(entered.sum(-1), torch.ones(3, heads, queries, dtype=torch.double))
    layers, deep = range(MODELS[name].layers), name.startswith("transformer")
    across = [f"decoder.{n}.cross" for n in layers] if deep else ["decoder.attention"]
    assert [site.name for site in record.sites if site.queries == "written"] == across
    assert [site.name for site in record.sites if site.keys == "source"] == [
        *(f"encoder.{n}" for n in layers if deep),
        "bottleneck",
    ]
    assert all(record.weights(layer).shape[2:] == (5, k) for layer in across)


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_learns(name):
    model, (source, lengths, target) = model_of(name).train(), sentences()
    model(source, lengths, target).logsumexp(-1).sum().backward()
    idle = [key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # softmax ignores what all keys have in common; and whoever is given one latent does not choose by asking
    asking = ("cross.query", "cross.key", "residual_cross.norm") if MODELS[name].latents == 1 else ()
    assert [key for key in idle if not key.endswith("key.bias") and not any(one in key for one in asking)] == []
    weights = model.state_dict()
    assert len({weight.data_ptr() for weight in weights.values()}) == len(weights) == len(list(model.parameters()))
    assert count_parameters(model) == sum(weight.numel() for weight in weights.values())


# --- learning ---

TEN = [
    [3, 4, 5, 6],
    [6, 5, 4, 3],
    [3, 4],
    [7],
    [8, 9, 10, 11, 12],
    [8, 9, 10, 12, 11],
    [7, 7, 7],
    [13, 14],
    [14, 13],
    [16],
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("gru, last", 100),
        ("gru, attention", 100),
        pytest.param("transformer, mean", 300, marks=pytest.mark.slow),
        ("transformer, attention", 300),
    ],
)
def test_ten_sentences_are_learnt_by_heart(name, steps):
    kind, bottleneck = name.split(", ")
    given = config(kind, bottleneck=bottleneck, layers=1, model=32, hidden=64, latents=2, latent=24)
    model = build_autoencoder(given, SIZE)
    batch = collate([(sentence, sentence) for sentence in TEN])
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    slower = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.1, total_iters=steps)  # so that the end is calm
    for _ in range(steps):
        optimiser.zero_grad()
        summed, count = LabelSmoothingLoss()(model, (batch, batch.tokens))
        (summed / count).backward()
        optimiser.step()
        slower.step()
        losses.append(summed.item())
    assert losses[1] < losses[0]
    memory = model.eval().encode(batch.source, batch.source_lengths)
    state, word, written = model.start(memory), batch.target[:, :1], []
    for _ in range(batch.target.shape[1] - 1):
        logits, state = model.step(word, state, memory)
        word = logits.argmax(-1)
        written.append(word)
    wanted = batch.target[:, 1:]
    assert torch.equal(torch.cat(written, 1).where(wanted != 0, 0), wanted)


# --- descriptions ---


def test_a_description_goes_to_a_file_and_back():
    for given in MODELS.values():
        assert AutoencoderConfig.from_dict(given.to_dict()) == given
    text = 'kind = "gru"\nsize = "small"\nbottleneck = "last"\nlatents = 1'
    assert AutoencoderConfig.from_dict(tomllib.loads(text)) == replace(
        AutoencoderConfig.from_size("gru", "small"), bottleneck="last", latents=1
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "embed"}, "kind = 'embed' is unknown; choose from elman, gru, lstm, transformer"),
        ({"bottleneck": "max"}, "bottleneck = 'max' is unknown; choose from attention, last, mean"),
        ({"latents": 0}, "latents = 0 should be at least 1"),
        ({"latent": 1.5}, "latent = 1.5 should be a whole number"),
        ({"kind": "gru", "bottleneck": "last", "heads": 2}, "heads = 2 means nothing .* use bottleneck = 'attention'"),
        ({"kind": "gru", "bottleneck": "last", "directions": 2}, "depends on no other; use directions = 1"),
        ({"kind": "gru", "norm": "post"}, "norm = 'post' means nothing to the kind 'gru'"),
        ({"kind": "gru", "hidden": 7}, "heads = 4 does not divide the states' width 7"),
        ({"heads": 3}, "heads = 3 does not divide"),
        ({"recipe": 'position = "TreeDepth()"'}, "needs the trees of whole sentences, .* such as Sinusoidal"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as refused:
        AutoencoderConfig(**{"kind": "transformer", "hidden": 8} | changes)
    assert "\n" not in str(refused.value)


def test_a_size_or_a_latent_that_is_none_is_refused():
    with pytest.raises(ValueError, match="no size is called 'huge'; there are tiny, small"):
        AutoencoderConfig.from_size("gru", "huge")
    with pytest.raises(ValueError, match=r"latents are 3 vectors of width 5, \(b, 3, 5\), not \(2, 15\)"):
        model_of("gru, attention").memory_from_latent(torch.zeros(2, 15))
