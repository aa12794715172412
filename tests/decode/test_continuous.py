"""Continuous batching: sentences that join and leave a running search have the hypotheses of a search alone."""

import random

import pytest
import torch

from regard.decode import Beam, LengthLimit, continuous, prepare, translate
from regard.decode.continuous import ContinuousBeamSearch
from regard.decode.search import DecodingRequest
from regard.models import ModelConfig
from regard.models.config import build_model
from regard.models.transformer import Transformer

VOCABULARY = 29
SEARCHES = [
    Beam(1),
    Beam(4, length_penalty=1.0, n_best=3),
    Beam(3, refill=True, max_length=LengthLimit(1.5, 4)),
]


def model_of(*, bias: float = 0.0, **changes) -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(kind="transformer", layers=2, model=12, heads=3, hidden=17, **changes)
    model = build_model(config, VOCABULARY, VOCABULARY).eval()
    assert isinstance(model, Transformer)
    with torch.no_grad():
        model.embeddings.bias[2] = 1.5  # EOS, so that sentences end at different steps
        model.embeddings.bias[5] += bias
    found = prepare(model)
    assert isinstance(found, Transformer)
    return found


def sources(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.choices(range(4, VOCABULARY), k=draw.randint(1, 13))) for _ in range(count)]


def search_continuously(model, beam, requests, seed, *, leaving=()):
    """Some requests join before each step; some of them are removed again."""
    draw, search, found, waiting = random.Random(seed), ContinuousBeamSearch(model, beam), {}, list(requests)
    while waiting or search.requests:
        new = [waiting.pop(0) for _ in range(min(len(waiting), draw.randint(0, 3)))]
        if new:
            search.add(new)
        gone = {request.index for request in search.requests} & {*leaving}
        if gone and draw.random() < 0.5:
            search.remove(gone)
        if search.requests:
            found |= search.step()
    return found


def assert_alike(found, expected):
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.finished for one in found] == [one.finished for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("beam", SEARCHES, ids=str)
@pytest.mark.parametrize(
    "changes", [{}, {"encoder": 'position = "Rotary()"', "decoder": 'position = "Rotary()"'}], ids=str
)
def test_sentences_of_different_ages_have_the_hypotheses_of_a_search_alone(beam, changes):
    model, texts = model_of(**changes), sources(17)
    prefixes = [(7, 9) if index % 3 == 0 else () for index in range(17)]
    requests = [DecodingRequest(*pair, index=n) for n, pair in enumerate(zip(texts, prefixes, strict=True))]
    found = search_continuously(model, beam, requests, seed=1)
    assert {*found} == {*range(17)}
    for request in requests:
        (expected,) = translate(model, [request.source], beam, prefixes=[request.prefix])
        assert_alike(found[request.index], expected)


def test_who_is_removed_leaves_the_others_as_they_are():
    model, beam = model_of(), Beam(4)
    requests = [DecodingRequest(source, index=n) for n, source in enumerate(sources(13, seed=2))]
    found = search_continuously(model, beam, requests, seed=3, leaving=(0, 4, 5, 12))
    assert {*found} >= {*range(13)} - {0, 4, 5, 12}
    assert len(found) < 13
    for index, hypotheses in found.items():
        assert_alike(hypotheses, translate(model, [requests[index].source], beam)[0])


def test_a_finished_sentence_leaves_at_once_and_what_took_much_memory_is_not_kept_at_the_end(monkeypatch):
    monkeypatch.setattr(continuous, "IDLE_BYTES", 1)
    search = ContinuousBeamSearch(model_of(), Beam(2, max_length=LengthLimit(1, 1)))
    long, short = DecodingRequest((5,) * 9, (7,) * 6, index=8), DecodingRequest((6,), (7,), index=9)
    search.add([long])
    search.step()
    search.add([short])
    assert [*search.step(), *search.step()] == [9]  # at its limit of two steps
    assert search.requests == [long]
    while search.requests:
        assert {*search.step()} <= {8}
    assert search.store is search.beams is search.decoder is None


def test_a_source_longer_than_the_store_joins_one_that_is_there():
    model, search, found = model_of(), ContinuousBeamSearch(model_of(), Beam(3)), {}
    short, long, prefix = (
        (5, 6, 7),
        tuple(range(4, 28)) * 2,
        (7, 9, 8, 6),
    )  # so that it is there for four steps at least
    search.add([DecodingRequest(short, prefix, index=0)])
    found |= search.step()
    search.add([DecodingRequest(long, index=1)])
    while search.requests:
        found |= search.step()
    assert_alike(found[0], translate(model, [short], Beam(3), prefixes=[prefix])[0])
    assert_alike(found[1], translate(model, [long], Beam(3))[0])


def test_an_idle_search_is_used_again_and_grows():
    """Longer sentences, more of them and more steps than it has room for; what others left in its rows is not read."""
    model, beam = model_of(), Beam(3, n_best=2, max_length=LengthLimit(1.0, 30))
    search, memory = ContinuousBeamSearch(model, beam), []
    for first, texts in ((0, sources(2)), (10, sources(2)), (20, [*sources(9, seed=4), (7,) * 40])):
        search.add([DecodingRequest(source, index=first + n) for n, source in enumerate(texts)])
        memory.append(search.store and search.store.past.data_ptr())
        found = {}
        while search.requests:
            found |= search.step()
        assert search.beams is None
        for n, source in enumerate(texts):
            assert_alike(found[first + n], translate(model, [source], beam)[0])
    assert memory[0] == memory[1] != memory[2]


def test_a_model_with_weights_that_are_not_finite_is_refused():
    search = ContinuousBeamSearch(model_of(bias=torch.nan), Beam(2))
    search.add([DecodingRequest((5, 6))])
    with pytest.raises(ValueError, match="not finite"):
        search.step()
