"""Words scored slice by slice, beams that are dropped, and sentences that move: what is saved changes nothing."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from regard.data.tokenizers.base import EOS
from regard.decode import Beam, LengthLimit, kv_cache, prepare, quantized_linear, translate
from regard.decode import beam as searching
from regard.decode.beam import initial_beam_state, select_candidates
from regard.decode.beam_decoder import keep_sentences
from regard.decode.kv_cache import TransformerBeams
from regard.decode.quantized_linear import (
    SCREENED_TOLERANCE,
    ChunkedVocabLinear,
    RowQuantizer,
    ScreenedLinear,
    chunked_vocab_topk,
)
from regard.decode.search import Constraints, DecodingRequest
from regard.decode.topk import CHUNK, topk_logprobs_torch
from regard.models import build_model
from regard.models.transformer import Transformer

from .reference_beam import reference_translate
from .test_models import CONFIGS, SOURCES, model
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


# --- words screened in 8 bits ---


def screened(vocabulary, seed, width=13, rows=7):
    torch.manual_seed(seed)
    weight, bias = torch.randn(vocabulary, width), torch.randn(vocabulary)
    closed = torch.zeros(vocabulary, dtype=torch.uint8)
    closed[[0, 1, 600, vocabulary - 1]] = 1
    return ScreenedLinear(weight, bias), closed, torch.randn(rows, width)


def assert_best(words, x, closed, count, within: Tensor | float = SCREENED_TOLERANCE):
    """The best tokens of the whole product in double precision, but for those that float32 cannot tell apart."""
    found = words.topk_screened(x, closed, count)
    assert found is not None
    logits = x.double() @ words.weight.double().T + words.bias.double()
    wanted = logits.log_softmax(-1).masked_fill(closed.bool(), -torch.inf).topk(count, -1).values
    assert ((found.values - wanted).abs() <= within).all()
    mine = logits.gather(1, found.tokens)
    assert_close(mine, logits.masked_fill(closed.bool(), -torch.inf).topk(count, -1).values, rtol=0, atol=1e-5)
    assert not closed[found.tokens].any()
    assert found.finite
    return found


def test_a_bound_on_paper():
    """W = 127, 63.4 is 127, 63 in whole numbers: an error of 0.4, times ‖x‖ = 5. Of x two terms leave nothing over. A
    second word, the negative of the first, makes the mean of both zero."""
    word, x = torch.tensor([[127.0, 63.4]]), torch.tensor([[3.0, 4.0]])
    words = ScreenedLinear(torch.cat((word, -word)), torch.tensor([1.0, 1.0]))
    scores, reach = words.screened_scores(x)
    assert_close(scores[0, 0], torch.tensor(127.0 * 3 + 63 * 4 + 1), rtol=1e-4, atol=0)
    assert_close(words.error[0, 0], torch.tensor(0.4), rtol=1e-3, atol=0)
    assert 5 <= float(reach) < 5.1
    assert float(words.error[0, 0] * reach) >= 63.4 * 4 - 63 * 4


def test_a_second_term_is_for_rows_that_one_rounds_too_coarsely():
    """x = 1, ..., 1 needs none, and random x of that length neither. One feature of 100 makes the steps of all others
    too large, and at ten times the length a step is worth too many nats. Each row is screened as if it were alone."""
    words, _, x = screened(1999, 7, width=512, rows=4)
    words = ScreenedLinear(words.weight * 512**-0.5 + 1, words.bias)
    x[0], x[2, 9], x[3] = 1.0, 100.0, 10 * x[3]
    scores, reach = words.screened_scores(x)
    share = reach[:, 0] / x.norm(dim=1) - 1  # of x's rounding, in parts of W's
    assert share[0] < 1e-3
    assert 0.5 < share[1] < quantized_linear.MAX_SHARE
    assert (share[2:] < 0.05).all()
    for n, row in enumerate(x):
        alone = words.screened_scores(row[None])
        assert torch.equal(alone[0][0], scores[n])
        assert torch.equal(alone[1][0], reach[n])


@settings(max_examples=25, deadline=None)
@example(seed=292834, count=1, vocabulary=1999)  # screened, another token has all of the first row's probability
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), vocabulary=st.sampled_from([1024, 1999, 2690]))
def test_no_screened_score_leaves_its_bound_and_the_best_are_the_best(seed, count, vocabulary):
    words, closed, x = screened(vocabulary, seed)
    x *= 10.0 ** torch.randint(-3, 2, (len(x), 1))
    x[0, 5] *= 300.0  # one feature that outweighs all others
    scores, reach = words.screened_scores(x)
    error = (scores[:, :vocabulary] - x.double() @ (words.weight - words.mean).double().T - words.bias).abs()
    bound = reach * words.error.flatten()
    assert (error <= bound[:, :vocabulary] + 1e-6).all()
    if words.topk_screened(x, closed, count) is not None:
        assert_best(words, x, closed, count, within=bound.amax(1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("sure", [0.0, 7.0, 14.0])
def test_log_probabilities_keep_their_tolerance_at_the_size_of_a_model(sure):
    """Vectors as long as those of a Transformer-base after its last norm, of a word that is sure or is not."""
    words, closed, x = screened(5000, 8, width=512, rows=32)
    words = ScreenedLinear(words.weight * 512**-0.5, words.bias)
    x += sure * words.weight[torch.randint(5000, (32,))]
    assert_best(words, x * 512**0.5 / x.norm(dim=1, keepdim=True), closed, 5)


def test_words_that_8_bits_cannot_tell_apart_are_told_apart():
    """Their rows differ by less than a step of their whole numbers; by these alone any of them might come first. Their
    errors are alike and do not cancel, so that of the proven bound is all that holds."""
    words, closed, x = screened(1999, 3)
    words.weight[400:500] = words.weight[400] + torch.rand(100, 13) * 1e-3
    words = ScreenedLinear(words.weight, words.bias.index_fill(0, torch.arange(400, 500), 9.0))
    wrong = words.screened_scores(x)[0][:, 400:500].argmax(-1) != words(x)[:, 400:500].argmax(-1)
    assert wrong.any()
    assert_best(words, x, closed, 4, within=x.norm(dim=1, keepdim=True) * words.error.max())


def test_a_word_whose_error_is_as_large_as_a_bound_can_be_is_found():
    """Rounding takes 12 · 0.49 from the best word, and nothing from seven in other chunks: it has 247 against 251.8. A
    negative of each word makes their mean zero, so that all others keep whole numbers."""
    weight, bias, near = torch.zeros(1000, 13), torch.zeros(2000), torch.arange(5, 800, 128)
    weight[:, 0], weight[near, 1:], weight[950, 1:], bias[near] = 127.0, 10.0, 10.49, 4.8
    words = ScreenedLinear(torch.cat((weight, -weight)), bias)
    found = assert_best(words, torch.ones(1, 13), torch.zeros(2000, dtype=torch.uint8), 2, 1e-4)
    assert found.tokens.tolist() == [[950, 5]]


def test_of_equal_words_the_lower_comes_first_screened_too():
    words, closed, x = screened(1999, 4, width=512)
    same = torch.tensor([77, 900, 901, 1500])
    words = ScreenedLinear(
        words.weight.index_copy(0, same, 2 * x[:1].expand(4, -1)), words.bias.index_fill(0, same, 0.5)
    )
    found = assert_best(words, x[:1].expand(3, -1), closed, 3)
    assert found.tokens.tolist() == [[77, 900, 901]] * 3
    assert (found.values == found.values[0, 0]).all()


def test_where_screening_says_nothing_the_whole_product_does(monkeypatch):
    words, closed, x = screened(1999, 5)
    must = torch.tensor([[-1], [1998], [0], [639], [640], [-1], [1279]])
    shut = torch.ones_like(closed).index_fill_(0, torch.tensor([5, 9]), 0)  # two words for three places
    monkeypatch.setattr(quantized_linear, "MAX_NEAR", 0)
    assert words.topk_screened(x, closed, 3) is None
    monkeypatch.undo()
    assert words.topk_screened(x, shut, 3) is None
    for banned, forced in ((closed, must), (shut, None)):
        wanted, found = topk_logprobs_torch(words(x), banned, 3, forced), words.topk(x, banned, 3, forced)
        assert torch.equal(found.tokens, wanted.tokens)
        assert torch.equal(found.values, wanted.values)


def test_screened_scores_that_miss_all_of_a_probability_are_computed_anew():
    """Their error is more than 88 nats, whose exponential is no number in float32."""
    words, closed, x = screened(1999, 6, width=24)
    for one in x * 1e6:
        wanted, found = topk_logprobs_torch(words(one[None]), closed, 3, None), words.topk(one[None], closed, 3, None)
        assert found.finite
        assert torch.equal(found.tokens, wanted.tokens)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_screened_scores_that_are_no_numbers_are_told(wrong):
    words, closed, x = screened(1999, 6)
    assert not words.topk(x.index_fill(1, torch.tensor([5]), wrong), closed, 3, None).finite
    words.weight[700, 3] = wrong
    assert not ScreenedLinear(words.weight, words.bias).topk(x, closed, 3, None).finite


def test_a_screened_search_finds_what_float32_finds():
    torch.manual_seed(13)
    made, beam = build_model(CONFIGS["transformer"], 11, 1999), Beam(4, 0.6, n_best=4)
    with torch.no_grad():
        made.get_parameter("embeddings.bias").normal_(std=2.0)[2] = 5.0
    plain, fast = (translate(prepare(made, how), SOURCES, beam) for how in ("float32", "screened"))
    for one, other in zip(plain, fast, strict=True):
        assert all(same(*pair, within=20 * SCREENED_TOLERANCE) for pair in zip(one, other, strict=True)), (one, other)
    with pytest.raises(
        ValueError, match=r"screened is float32, and the model is torch\.float64; use precision float32"
    ):
        prepare(made.double(), "screened")


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
