"""A prepared model: by tensors alone beam search finds what the definition finds, in every precision it can say so."""

import random
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear
from torch.testing import assert_close

from regard.attention.core import AttentionCall, RecordedCall, hook_attention
from regard.decode import (
    Beam,
    Constraints,
    Greedy,
    LengthLimit,
    Sampling,
    cuda_graphs,
    is_prepared,
    prepare,
    score,
    stream,
    translate,
    translate_all,
)
from regard.decode.beam import search_single_threaded
from regard.decode.beam_decoder import search_by_cores
from regard.decode.kv_cache import TransformerBeams
from regard.decode.quantized_linear import INT8_BATCH_TOLERANCE, Int8Linear, KernelLinear
from regard.decode.search import make_requests
from regard.decode.topk import chunked_topk, stable_topk
from regard.models import ModelConfig, build_model
from regard.models.seq2seq import inference_mode
from regard.models.transformer import Transformer
from regard.ops.linear import MkldnnLinear
from tests.narrowing import assert_is_instance

from .reference_beam import reference_translate
from .test_models import SOURCES, model
from .toy_models import Plain, naive_beam, same

LIMIT = LengthLimit(1.0, 5)
HALVES = "position = \"Sinusoidal(pairs='halves', first=2)\""
PREFIXES = [(4,), (), (3, 5, 6), (), (9,)]


def decided(**changes):
    """Like the ladder's models: weights large enough that some translations end."""
    torch.manual_seed(17)
    made = build_model(ModelConfig(kind="transformer", model=12, hidden=14, heads=6, layers=2, **changes), 11, 11)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.4)
        made.get_parameter("embeddings.bias")[2] = 2.0
    return made.double()


def assert_same(one, other, within=1e-9):
    for some, others in zip(one, other, strict=True):
        assert all(same(*pair, within=within) for pair in zip(some, others, strict=True)), (some, others)


@pytest.mark.parametrize(("size", "alpha", "best"), [(1, 0.0, 1), (2, 1.0, 2), (3, 0.0, 1), (5, 0.6, 5)])
def test_it_finds_what_the_definition_finds(size, alpha, best):
    made, beam = model("transformer").double(), Beam(size, alpha, n_best=best, max_length=LIMIT)
    found = translate(prepare(made), SOURCES, beam)
    assert_same(found, reference_translate(made, SOURCES, beam))
    assert_same(found, translate(made, SOURCES, beam))
    assert any(h.finished for some in found for h in some)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("size", "alpha"), [(1, 0.0), (2, 1.0), (4, 0.0)])
def test_beams_that_are_refilled_share_one_cache_too(size, alpha):
    made, beam = model("transformer").double().eval(), Beam(size, alpha, n_best=size, max_length=LIMIT, refill=True)
    found = translate(prepare(made), SOURCES, beam)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        expected = naive_beam(made, tuple(source), LIMIT.of(len(source)), beam)
        assert [(one.ids, one.finished) for one in hypotheses] == [(ids, over) for ids, _, _, over in expected]
        assert [one.score for one in hypotheses] == pytest.approx([score for *_, score, _ in expected], abs=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "post", "tie": "all", "activation": "gelu"},
        {"groups": 3, "tie": "target"},
        {"groups": 2, "decoder": 'position = "Rotary()"', "encoder": 'position = "Rotary()"'},
        {"decoder": 'position = "Learned(30, 12)"', "cross": 'score = "Cosine()"'},
        {"cross": 'position = "Rotary()"'},
        {"norm": "post", "activation": "silu", "tie": "all", "encoder": HALVES, "decoder": HALVES, "decoder_layers": 3},
        {"norm_type": "rms", "feed_forward_type": "gated", "bias": False, "head": 4, "embedding_scale": "output"},
        {"qk_norm": True, "groups": 2, "feed_forward_type": "gated", "embedding_scale": "none", "output_bias": False},
        {"output_gate": True, "decoder": 'position = "XPos(scale=8.0)"\nscore = "LogitScale(6)"'},
    ],
    ids=[
        *("post norm", "grouped", "rotary", "learned and cosine", "rotary across", "Marian", "T5's layers", "QK-norm"),
        "gated output, xPos",
    ],
)
def test_whatever_the_transformer_is_made_of(changes):
    made, beam = decided(**changes), Beam(3, 0.7, n_best=3, max_length=LIMIT)
    ready = prepare(made)
    assert is_prepared(ready)
    assert_same(translate(ready, SOURCES, beam), reference_translate(made, SOURCES, beam))


def test_a_prepared_model_that_is_set_to_train_decodes_without_dropout():
    ready, beam = prepare(model("transformer")), Beam(3, max_length=LIMIT)
    assert isinstance(ready, Transformer)
    wanted = translate(ready, SOURCES, beam)
    assert translate(ready.train(), SOURCES, beam) == wanted
    assert ready.training


@pytest.mark.parametrize(
    "allowed", [Constraints(), Constraints(banned=frozenset({4, 10}), min_length=4)], ids=["all", "some"]
)
def test_forced_beginnings_and_closed_words(allowed):
    made, beam = model("transformer").double(), Beam(3, 0.5, n_best=3, max_length=LIMIT)
    one = translate(prepare(made), SOURCES, beam, prefixes=PREFIXES, constraints=allowed)
    other = reference_translate(made, SOURCES, beam, prefixes=PREFIXES, constraints=allowed)
    assert_same(one, other)
    assert all(h.ids[: len(p)] == p for some, p in zip(one, PREFIXES, strict=True) for h in some)


def test_where_nothing_may_follow_what_stands_is_cut():
    made, everything = model("transformer").double(), Constraints(banned=frozenset(range(2, 11)))
    for prefixes in (None, PREFIXES):
        beam = Beam(3, n_best=2)
        one = translate(prepare(made), SOURCES, beam, prefixes=prefixes, constraints=everything)
        other = reference_translate(made, SOURCES, beam, prefixes=prefixes, constraints=everything)
        assert_same(one, other)
        assert not any(h.finished for some in one for h in some)


def test_greedy_search_runs_the_same_way():
    made = model("transformer").double()
    assert_same(translate(prepare(made), SOURCES, Greedy(LIMIT)), translate(Plain(made), SOURCES, Greedy(LIMIT)))


def test_no_company_changes_a_translation():
    ready, beam = prepare(model("transformer")), Beam(4, 0.6, n_best=4, max_length=LIMIT)
    together = translate(ready, SOURCES, beam)
    for n, source in enumerate(SOURCES):
        assert_same(translate(ready, [source], beam), together[n : n + 1], within=1e-5)


def test_company_changes_a_score_in_8_bits_within_its_bound():
    """And in float32 in its last bits alone; where two are as close as that, another may come first."""
    torch.manual_seed(3)
    made = build_model(ModelConfig(kind="transformer", model=32, hidden=64, heads=4, layers=1), 107, 107)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    chance = random.Random(0)
    sources = [tuple(chance.randrange(4, 107) for _ in range(chance.randrange(2, 13))) for _ in range(17)]
    for precision, bound, same_lists in (("float32", 1e-4, 17), ("int8", INT8_BATCH_TOLERANCE, 16)):
        ready, beam = prepare(made, precision), Beam(3, 1.0, n_best=3, max_length=LIMIT)
        together = translate(ready, sources, beam)
        alone = [translate(ready, [source], beam)[0] for source in sources]
        agree = [
            [abs(h.log_probability - g.log_probability) for h, g in zip(one, other, strict=True)]
            for one, other in zip(together, alone, strict=True)
            if [h.ids for h in one] == [h.ids for h in other]
        ]
        assert len(agree) >= same_lists
        assert max(max(differences) for differences in agree) <= bound
        for one, other in zip(together, alone, strict=True):
            assert one[0].score == pytest.approx(other[0].score, abs=bound)


@pytest.mark.parametrize("prefixes", [None, PREFIXES], ids=["free", "forced"])
def test_stages_of_other_shapes_take_over_from_each_other(monkeypatch, prefixes):
    """The GPU's way, run on the CPU without its graphs: sentences leave by halves, slots are few and become more."""
    monkeypatch.setattr(cuda_graphs, "MIN_SENTENCES", 2)
    monkeypatch.setattr(cuda_graphs, "SLOTS", 16)
    made, beam = model("transformer").double(), Beam(3, 1.0, n_best=3, max_length=LengthLimit(1.0, 9))
    ready, allowed = prepare(made), Constraints(min_length=2)
    assert isinstance(ready, Transformer)
    with inference_mode(ready):
        found = cuda_graphs.run(ready, beam, make_requests(SOURCES, prefixes), allowed)
        again = cuda_graphs.run(ready, beam, make_requests(SOURCES, prefixes), allowed)
    assert_same(found, reference_translate(made, SOURCES, beam, prefixes=prefixes, constraints=allowed))
    assert_same(found, again, within=0.0)
    shapes = cuda_graphs.captured_steps(ready).by_shape
    assert len({shape.slots for shape in shapes}) > 1
    assert len({shape.sentences for shape in shapes}) > 1


@pytest.mark.parametrize("cores", [2, 3])
def test_cores_that_search_apart_find_the_same_in_the_same_order(cores):
    made, beam, before = decided(), Beam(3, n_best=2, max_length=LIMIT), torch.get_num_threads()
    requests, threads = make_requests([source for source in SOURCES for _ in range(3)], None), []
    ready = prepare(made)
    assert isinstance(ready, Transformer)
    search = partial(search_single_threaded, ready, beam, Constraints())
    found = search_by_cores(lambda part: threads.append(torch.get_num_threads()) or search(part), requests, cores)
    assert_same(found, search(requests), within=1e-12)
    assert threads == [1] * cores
    assert torch.get_num_threads() == before


def test_what_goes_wrong_on_one_core_is_told():
    made = decided()
    made.get_parameter("embeddings.bias").data.fill_(torch.nan)
    ready = assert_is_instance(prepare(made), Transformer)
    search = partial(search_single_threaded, ready, Beam(2, max_length=LIMIT), Constraints())
    with pytest.raises(ValueError, match="its weights hold NaN or infinity; load another checkpoint"):
        search_by_cores(search, make_requests(SOURCES, None), 2)


def test_a_model_that_cannot_be_prepared_says_why():
    gru = model("gru")
    assert prepare(gru) is gru
    with pytest.raises(ValueError, match="is no Transformer; use precision float32"):
        prepare(gru, "int8")
    windowed = decided(decoder='pattern = "Window(3)"')
    assert prepare(windowed) is windowed
    with pytest.raises(ValueError, match="no precision is called 'int4'"):
        prepare(gru, "int4")


def test_a_search_that_needs_more_falls_back_on_the_model_or_refuses():
    made = model("transformer").double()
    ready, beam = prepare(made), Beam(3, 0.8, 0.2, max_length=LIMIT)
    assert_same(translate(ready, SOURCES, beam), reference_translate(made, SOURCES, beam))
    rule = Constraints(allowed_next=lambda written: [4, 2] if len(written) < 2 else [2])
    narrow = Beam(2, max_length=LIMIT)
    one = translate(ready, SOURCES, narrow, constraints=rule)
    other = reference_translate(made, SOURCES, narrow, constraints=rule)
    assert_same(one, other)
    assert tuple(stream(ready, SOURCES[0], Greedy(LIMIT))) == translate(ready, SOURCES[:1], Greedy(LIMIT))[0][0].ids


@pytest.mark.parametrize("samples", [1, 3])
def test_samples_from_the_beam_cache_are_those_of_any_model(samples, monkeypatch):
    """Of many sentences, some of which leave before others; with forced tokens and forbidden ones."""
    made, chance = decided(), random.Random(3)
    sources = [tuple(chance.randrange(3, 11) for _ in range(chance.randrange(1, 9))) for _ in range(23)]
    search = Sampling(0.9, top_p=0.95, seed=4, samples=samples, max_length=LengthLimit(2.0, 40))
    more = {
        "prefixes": [PREFIXES[n % 5] for n in range(23)],
        "constraints": Constraints(min_length=2, banned=frozenset({7})),
    }
    wanted = translate(Plain(made), sources, search, **more)
    lengths = {len(one.ids) for some in wanted for one in some}
    assert min(lengths) < 5 < 25 < max(lengths)  # more than the slots at first
    asked = []
    step = TransformerBeams.step
    monkeypatch.setattr(TransformerBeams, "step", lambda self, *rest: asked.append(1) or step(self, *rest))
    for ready in (made, prepare(made)):
        assert_same(translate(ready, sources, search, **more), wanted)
        assert asked
        asked.clear()


def test_of_many_samples_each_has_a_cache_of_its_own(monkeypatch):
    """In the beams' cache each would read the keys of all: 256 took 1.7 times as long as without."""
    made = build_model(ModelConfig(kind="transformer", model=12, hidden=14, heads=2, layers=1), 40, 40)
    monkeypatch.setattr(TransformerBeams, "step", None)
    (found,) = translate(prepare(made), SOURCES[:1], Sampling(samples=33, max_length=LIMIT))
    assert len(found) == 33


def test_in_8_bits_too_every_search_runs_the_model_that_was_prepared():
    made = model("transformer")
    eight = prepare(made, "int8")
    assert eight is prepare(eight)
    for search in (Beam(3, 0.8, 0.2, max_length=LIMIT), Sampling(top_k=1, max_length=LIMIT)):
        found = zip(translate(eight, SOURCES, search), translate(made, SOURCES, search), strict=True)
        assert sum(one[0].ids == other[0].ids for one, other in found) >= 3
    beam = Beam(3, n_best=3, max_length=LIMIT)
    found = translate(eight, SOURCES, beam)
    assert_same(found, translate(Plain(eight), SOURCES, beam), within=INT8_BATCH_TOLERANCE)
    ended = [(source, one) for some, source in zip(found, SOURCES, strict=True) for one in some if one.finished]
    assert ended
    for source, one in ended:  # and a score is that model's own log-probability
        assert score(eight, [source], [one.ids]) == pytest.approx([one.log_probability], abs=INT8_BATCH_TOLERANCE)


def test_a_prepared_model_is_the_model():
    """Its weights stay the model's own where they are not swapped, and the model stays as it was."""
    made = model("transformer").double()
    before = {name: weight.clone() for name, weight in made.state_dict().items()}
    ready = prepare(made)
    assert isinstance(ready, Transformer)
    assert made.training
    assert not ready.training
    assert made.state_dict().keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in made.state_dict().items())
    source, lengths = torch.randint(4, 11, (2, 6)), torch.tensor([6, 4])
    target = torch.randint(4, 11, (2, 5))
    with inference_mode(made):
        assert_close(ready(source, lengths, target), made(source, lengths, target))


def test_a_model_whose_attention_is_watched_runs_as_it_is():
    made, seen = model("transformer"), []

    def watch(call: RecordedCall) -> None:
        seen.append(assert_is_instance(call, AttentionCall).q.shape)

    ready = prepare(made)
    for one in (made, ready):
        seen.clear()
        with hook_attention(one, watch):
            assert prepare(made) is made or one is ready
            found = translate(one, SOURCES, Beam(3, max_length=LIMIT))
        assert any(shape[2] == 1 for shape in seen)  # one token of each row, as the hook expects it
        assert_same(found, translate(made, SOURCES, Beam(3, max_length=LIMIT)), within=1e-4)


def test_broken_weights_are_told():
    made = model("transformer")
    with torch.no_grad():
        made.get_parameter("embeddings.bias")[5] = torch.nan
    with pytest.raises(ValueError, match="the model's probabilities are not finite"):
        translate(prepare(made), SOURCES, Beam(3))


def test_many_batches_are_prepared_once_and_change_nothing():
    made, beam = model("transformer").double(), Beam(3, 0.6, max_length=LIMIT)
    assert_same(translate_all(made, SOURCES, beam, tokens=20), reference_translate(made, SOURCES, beam))
    assert made.training


# --- multiplying ---


@pytest.mark.parametrize("rows", [1, 5])
def test_packed_weights_multiply_as_they_did(rows):
    weight, bias, x = torch.randn(19, 13), torch.randn(19), torch.randn(rows, 13)
    assert_close(MkldnnLinear(weight, bias)(x), linear(x, weight, bias))


def test_eight_bits_on_paper():
    """Of a row whose largest is 1.27 a hundredth is one step; weights that are multiples of 1/127 are kept exactly."""
    weight = torch.tensor([[1.0, -1.0, 0.0], [127.0, 0.0, -64.0]]) / 127
    x = torch.tensor([[1.27, 0.50, -0.02], [-127.0, 0.4, 100.6]])
    whole = torch.tensor([[1.27, 0.50, -0.02], [-127.0, 0.0, 101.0]])
    assert_close(Int8Linear(weight, torch.tensor([3.0, 5.0]))(x), whole @ weight.T + torch.tensor([3.0, 5.0]))


def test_eight_bits_are_near_and_nobody_s_neighbours_change_them():
    weight, bias, x = torch.randn(31, 64), torch.randn(31), torch.randn(7, 64) * torch.rand(7, 1) * 9
    x[3] = 0.0
    eight = Int8Linear(weight, bias)
    assert (eight(x) - x @ weight.T - bias).norm() / (x @ weight.T).norm() < 0.02
    assert_close(eight(x)[3], bias)
    alone = torch.cat([eight(x[n : n + 1]) for n in range(7)])
    assert_close(alone, eight(x), rtol=0, atol=1e-5)


def test_eight_bits_say_what_thirty_two_said_where_the_model_is_sure():
    made, beam = model("transformer"), Beam(3, max_length=LIMIT)
    exact, eight = reference_translate(made, SOURCES, beam), translate(prepare(made, "int8"), SOURCES, beam)
    assert sum(one[0].ids == other[0].ids for one, other in zip(exact, eight, strict=True)) >= 3


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), vocabulary=st.sampled_from([2560, 2699, 3001]))
def test_the_few_best_of_many_words_equals_included(seed, count, vocabulary):
    scores = torch.randint(-400, 5, (3, vocabulary), generator=torch.Generator().manual_seed(seed)).double()
    scores[1] = 0.0
    scores[2, 2] = -torch.inf
    for ours, theirs in zip(chunked_topk(scores, count), stable_topk(scores, count), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_hook_on_a_swapped_linear_is_called(precision):
    prepared, seen = prepare(model("transformer"), precision), list[tuple[int, ...]]()
    found = translate(prepared, SOURCES, Beam(2, max_length=LIMIT))
    up = assert_is_instance(prepared, Transformer).get_submodule("decoder.0.feed_forward.up")
    assert isinstance(up, MkldnnLinear | Int8Linear | KernelLinear)
    with up.register_forward_hook(lambda module, args, output: seen.append(output.shape)):
        assert translate(prepared, SOURCES, Beam(2, max_length=LIMIT)) == found
    assert seen
    assert all(shape[-1] == len(up.bias) for shape in seen)
