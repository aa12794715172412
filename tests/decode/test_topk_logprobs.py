"""Words scored slice by slice, beams that are dropped, and sentences that move: what is saved changes nothing."""

import pytest
import torch
from torch.testing import assert_close

from regard.data.tokenizers.base import EOS
from regard.decode import Beam, LengthLimit, kv_cache, prepare, quantized_linear, translate
from regard.decode import beam as searching
from regard.decode.batched_beam import keep_sentences
from regard.decode.beam import initial_beam_state, select_candidates
from regard.decode.kv_cache import TransformerBeams
from regard.decode.quantized_linear import ChunkedVocabLinear, RowQuantizer, chunked_vocab_topk
from regard.decode.search import Constraints, DecodingRequest
from regard.decode.topk import CHUNK, topk_logprobs_torch
from regard.models.transformer import Transformer

from .reference_beam import reference_translate
from .test_models import SOURCES, model
from .toy_models import same


def scored(vocabulary, rows):
    torch.manual_seed(vocabulary)
    weight, bias = torch.randn(vocabulary, 13), torch.randn(vocabulary)
    bias[[3, 700]] = -1e4  # a sum of exponentials must not be taken from these
    closed = torch.zeros(vocabulary, dtype=torch.uint8)
    closed[[0, 1, 600, vocabulary - 1]] = 1
    return ChunkedVocabLinear.of(weight, bias, rows), closed, torch.randn(7, 13)


@pytest.mark.parametrize("vocabulary", [1024, 1999, 2690])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_slice_by_slice_as_all_at_once(vocabulary, count):
    words, closed, x = scored(vocabulary, 5 * CHUNK)
    wanted, found = (
        topk_logprobs_torch(words(x), closed, count, None),
        chunked_vocab_topk(words, x, closed, count, None),
    )
    assert torch.equal(found.tokens, wanted.tokens)
    assert_close(found.values, wanted.values)
    assert found.finite
    assert len(words.parts) > 1


def test_a_word_that_must_come_is_told_wherever_it_stands():
    words, closed, x = scored(1999, 5 * CHUNK)
    must = torch.tensor([[-1], [1998], [0], [639], [640], [-1], [1279]])
    wanted, found = topk_logprobs_torch(words(x), closed, 3, must), chunked_vocab_topk(words, x, closed, 3, must)
    assert torch.equal(found.tokens, wanted.tokens)
    assert_close(found.values, wanted.values)


def test_scores_that_are_no_numbers_are_told():
    words, closed, x = scored(1999, 5 * CHUNK)
    x[2, 5] = torch.nan
    assert not chunked_vocab_topk(words, x, closed, 3, None).finite


def test_a_search_in_slices_finds_what_it_found(monkeypatch):
    ready, beam = prepare(model("transformer"), "int8"), Beam(4, 0.6, n_best=4)
    plain = translate(ready, SOURCES, beam)
    monkeypatch.setattr(quantized_linear, "MIN_ROWS", 1)
    sliced = translate(ready, SOURCES, beam)
    for one, other in zip(plain, sliced, strict=True):
        assert all(same(*pair, within=1e-5) for pair in zip(one, other, strict=True)), (one, other)


def test_whole_numbers_on_paper():
    """127 for the largest, a half to the even neighbour, 128 in the middle; a row of nothing is all middle."""
    whole, size = RowQuantizer.create().quantize(
        torch.tensor([[-2.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [127.0, 1.5, -2.5, -1]])
    )
    assert whole.tolist() == [[1, 192, 128, 255], [128] * 4, [255, 130, 126, 127]]
    assert_close(size[:, 0], torch.tensor([2.0, 0.0, 127.0]))


# --- beams that cannot win ---


def initial_beams(alpha, limit):
    beam = Beam(3, alpha, max_length=LengthLimit(0, limit))
    beams = initial_beam_state(beam, [DecodingRequest((4, 5))], Constraints(), 11, torch.device("cpu"), 9)
    beams.totals.copy_(torch.tensor([[-0.1, -0.2, -0.3]]))
    return beams


def test_a_beam_below_what_is_finished_is_dropped():
    """An end at -1.1 is the best so far: of the two that go on, -0.7 may still beat it and -2.2 may not."""
    beams = initial_beams(0.0, 7)
    values = torch.tensor([[[-1.0, -9.0], [-0.5, -9.0], [-1.9, -9.0]]], dtype=torch.double)
    words = torch.tensor([[[EOS, 4], [5, 4], [6, 4]]])
    select_candidates(beams, values, words, torch.tensor([1]))
    assert_close(beams.totals[0, :1], torch.tensor([-0.7], dtype=torch.double))
    assert torch.isneginf(beams.totals[0, 1:]).all()
    assert beams.tokens[0, 0] == 5
    assert beams.finished_step[0] == -1


def test_a_beam_that_a_long_translation_would_reward_is_not_dropped():
    """With α = 1 the end scores -1.1 / ((5 + 2) / 6); -1.2 may yet be divided by (5 + 7) / 6."""
    beams = initial_beams(1.0, 7)
    values = torch.tensor([[[-1.0, -9.0], [-1.0, -9.0], [-1.9, -9.0]]], dtype=torch.double)
    select_candidates(beams, values, torch.tensor([[[EOS, 4], [5, 4], [6, 4]]]), torch.tensor([1]))
    assert_close(beams.totals[0, :1], torch.tensor([-1.2], dtype=torch.double))
    assert torch.isneginf(beams.totals[0, 1:]).all()


@pytest.mark.parametrize(("alpha", "best"), [(0.0, 1), (0.0, 2), (1.0, 3)])
def test_beams_that_leave_are_not_asked_and_nothing_else_changes(monkeypatch, alpha, best):
    monkeypatch.setattr(kv_cache, "FEW_BEAMS", 1)
    monkeypatch.setattr(searching, "LEAVING", 100)
    made, beam = model("transformer").double(), Beam(3, alpha, n_best=best)
    for one, other in zip(
        translate(prepare(made), SOURCES, beam), reference_translate(made, SOURCES, beam), strict=True
    ):
        assert all(same(*pair, within=1e-9) for pair in zip(one, other, strict=True)), (one, other)


def test_who_stays_keeps_his_keys():
    ready = prepare(model("transformer"))
    assert isinstance(ready, Transformer)
    with torch.inference_mode():
        cache = TransformerBeams.of(ready, SOURCES, beams=3, slots=7, steps=9).cache
        stores = [part for pair in (*cache.sources, *cache.past) for part in pair]
        for store in stores:
            store.normal_()
        before = [store.clone() for store in stores]
        rows = torch.tensor([0, 4, 2])
        kept = keep_sentences(cache, rows)
    for now, then in zip((part for pair in (*kept.sources, *kept.past) for part in pair), before, strict=True):
        assert torch.equal(now, then[rows])
    assert torch.equal(kept.source_mask, cache.source_mask[rows])
