"""Sentences to latents and back: the same sentences as by way of the source, one after another or all at once."""

import pytest
import torch
from torch.testing import assert_close

from regard.decode import Beam, Greedy
from regard.decode.search import LengthLimit, translate
from regard.models.autoencoder import AutoencoderConfig, build_autoencoder
from regard.tasks.autoencoding.task import decode_latents, encode_latents, interpolate_latents

SIZE = 13
SOURCES = [[5, 4, 3], [7], [9, 10, 11, 12, 3], [4, 4]]
MODELS = {
    "gru": AutoencoderConfig(kind="gru", bottleneck="last", layers=1, model=6, hidden=10, latents=1, latent=7),
    "transformer": AutoencoderConfig(kind="transformer", layers=1, model=8, hidden=11, heads=2, latents=3, latent=5),
}


def model_of(name):
    return build_autoencoder(MODELS[name], SIZE).double()


@pytest.mark.parametrize("name", MODELS)
def test_latents_come_in_order_and_batches_change_nothing(name):
    model = model_of(name)
    together = encode_latents(model, SOURCES)
    assert together.shape == (4, MODELS[name].latents, MODELS[name].latent)
    assert_close(encode_latents(model, SOURCES, tokens=6), together, rtol=0, atol=1e-10)
    assert_close(encode_latents(model, SOURCES[2:3])[0], together[2], rtol=0, atol=1e-10)
    assert not together.requires_grad
    assert model.training  # again, as before


@pytest.mark.parametrize(
    "search", [Greedy(LengthLimit(0, 9)), Beam(3, max_length=LengthLimit(0, 9), n_best=2)], ids=["greedy", "beam"]
)
@pytest.mark.parametrize("name", MODELS)
def test_from_a_sentences_latent_is_from_the_sentence(name, search):
    model = model_of(name)
    by_latent, by_source = (
        decode_latents(model, encode_latents(model, SOURCES), search),
        translate(model, SOURCES, search),
    )
    for found, wanted in zip(by_latent, by_source, strict=True):
        assert [one.ids for one in found] == [one.ids for one in wanted]
        assert [one.score for one in found] == pytest.approx([one.score for one in wanted])


def test_points_between_on_paper():
    one, other = torch.tensor([[0.0, 8.0]]), torch.tensor([[4.0, 0.0]])
    assert_close(interpolate_latents(one, other, 3), torch.tensor([[[0.0, 8.0]], [[2.0, 4.0]], [[4.0, 0.0]]]))
    with pytest.raises(ValueError, match="a line has two ends, so at least 2 points, not 1"):
        interpolate_latents(one, other, 1)


def test_a_line_begins_and_ends_with_the_sentences_own_words():
    model = model_of("transformer")
    one, other = encode_latents(model, SOURCES[:2])
    search = Greedy(LengthLimit(0, 9))
    line = decode_latents(model, interpolate_latents(one, other, 4), search)
    assert [line[0][0].ids, line[-1][0].ids] == [found[0].ids for found in translate(model, SOURCES[:2], search)]


def test_what_is_no_latent_of_the_model_is_refused():
    model = model_of("transformer")
    with pytest.raises(ValueError, match=r"3 vectors of width 5, \(b, 3, 5\), not \(4, 5, 3\)"):
        decode_latents(model, torch.zeros(4, 5, 3))
    with pytest.raises(ValueError, match="no sentence to take the latent of"):
        encode_latents(model, [])
    assert decode_latents(model, torch.zeros(0, 3, 5)) == []
