"""What a sentence's translation does not depend on: its company, its order, the budget, the cache."""

from contextlib import ExitStack
from threading import Event, Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode import (
    Beam,
    Greedy,
    LengthLimit,
    Sampling,
    perplexity,
    score,
    score_targets,
    translate,
    translate_all,
    translate_as_found,
)
from regard.decode.translation import batch_by_tokens
from regard.models.seq2seq import inference_mode

from .toy_models import Ids, Toy, Vector, dice, glance, same

SHORT = LengthLimit(1.0, 5)
SEARCHES = [
    Greedy(SHORT),
    Beam(3, 0.7, 0.2, n_best=2, max_length=SHORT),
    Sampling(temperature=0.8, top_k=4, top_p=0.9, seed=7, samples=2, max_length=SHORT),
]
SOURCES = st.lists(st.lists(st.integers(3, 6), max_size=5).map(tuple), min_size=1, max_size=7)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
@settings(max_examples=12, deadline=None)
@given(sources=SOURCES, tokens=st.integers(1, 60), seed=st.integers(0, 99))
def test_a_translation_does_not_depend_on_its_batch(search, sources, tokens, seed):
    model = Toy(dice(seed), glance(seed))
    together = translate(model, sources, search)
    grouped = translate_all(model, sources, search, tokens=tokens)
    for one, other in zip(together, grouped, strict=True):
        assert all(same(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("search", SEARCHES[:2], ids=lambda search: type(search).__name__)
def test_order_does_not_matter(search):
    model, sources = Toy(dice(1), glance(1)), [(3, 4, 5), (), (6,), (4, 4), (5, 3, 6, 3)]
    forwards, backwards = translate(model, sources, search), translate(model, sources[::-1], search)
    for one, other in zip(forwards, backwards[::-1], strict=True):
        assert all(same(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_the_log_probability_is_the_model_s_own(search):
    """Whatever the temperature, the cuts and the penalties: the sum over exactly these tokens and the end."""
    model, sources = Toy(dice(3), glance(3)), [(3, 4, 5), (), (6,), (4, 4)]
    found = [(source, h) for source, some in zip(sources, translate(model, sources, search), strict=True) for h in some]
    assert any(h.finished for _, h in found)
    given_back = score_targets(model, [source for source, _ in found], [h.ids for _, h in found])
    for (_, ours), theirs in zip(found, given_back, strict=True):
        assert len(ours.scores) == len(ours.ids) + ours.finished
        assert ours.scores == pytest.approx(theirs.scores[: len(ours.scores)], abs=1e-12)
        assert ours.log_probability == pytest.approx(sum(theirs.scores[: len(ours.scores)]), abs=1e-12)


def test_score_and_perplexity_on_paper():
    """Every next token has probability ¼, so three tokens and an end have 4⁻⁴, and the perplexity is 4."""
    model = Toy(lambda source, written: [-torch.inf, -torch.inf, 0.0, 0.0, 0.0, 0.0])
    assert score(model, [(3,), ()], [(3, 4, 5), ()]) == pytest.approx([-4 * 1.3862943611, -1.3862943611])
    assert perplexity(score_targets(model, [(3,), ()], [(3, 4, 5), ()])) == pytest.approx(4.0)
    assert score(model, [], []) == []


def test_batches_keep_the_budget_and_lose_nothing():
    lengths = [3, 11, 2, 7, 7, 5, 23]
    batches = batch_by_tokens(lengths, 15)
    assert sorted(index for batch in batches for index in batch) == list(range(7))
    assert [[lengths[index] for index in batch] for batch in batches] == [[23], [11], [7, 7], [5, 3, 2]]
    with pytest.raises(ValueError, match="budget of 0"):
        batch_by_tokens(lengths, 0)


def test_a_budget_counts_beams():
    model = Toy(dice(0))
    translate_all(model, [(3,)] * 6, Beam(5, max_length=SHORT), tokens=20)
    assert max(model.rows) <= 10


def test_translations_come_as_they_are_found_with_their_places():
    model, sources = Toy(dice(4)), [(3,), (4, 5, 6), (5, 5)]
    places = [place for place, _ in translate_as_found(model, sources, Greedy(), tokens=4)]
    assert places == [1, 2, 0]
    assert dict(translate_as_found(model, sources, Greedy(), tokens=4)) == dict(
        enumerate(translate(model, sources, Greedy()))
    )


def test_no_sources_give_no_translations():
    assert translate(Toy(dice(0)), [], Beam(3)) == translate_all(Toy(dice(0)), [], Greedy()) == []


def test_a_model_rests_while_it_decodes_and_goes_on_training():
    model = torch.nn.ModuleDict({"still": torch.nn.Dropout()})
    toy = Toy(dice(0))
    toy.add_module("parts", model)
    toy.train()
    model["still"].eval()
    seen = []
    logits_of = toy.logits_of

    def watched(source: Ids, written: Ids) -> Vector:
        seen.append((toy.training, torch.is_grad_enabled()))
        return logits_of(source, written)

    def broken(source: Ids, written: Ids) -> Vector:
        raise ZeroDivisionError

    toy.logits_of = watched
    translate(toy, [(3,)], Greedy())
    assert set(seen) == {(False, False)}
    assert toy.training
    assert model.training
    assert not model["still"].training
    toy.logits_of = broken
    with pytest.raises(ZeroDivisionError):
        translate(toy, [(3,)], Greedy())
    assert toy.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_who_leaves_first_does_not_wake_a_model_that_another_thread_lets_rest(first_leaves_first):
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(3, 3), torch.nn.Dropout().eval())
    came, leave = [Event(), Event()], [Event(), Event()]
    seen = {}

    def rest(number: int) -> None:
        with inference_mode(model):
            came[number].set()
            assert leave[number].wait(10)
            seen[number] = [part.training for part in model.modules()]

    threads = [Thread(target=rest, args=(number,)) for number in range(2)]
    for number, thread in enumerate(threads):
        thread.start()
        assert came[number].wait(10)
    order = [0, 1] if first_leaves_first else [1, 0]
    for number in order:
        leave[number].set()
        threads[number].join()
    assert seen == dict.fromkeys(order, [False] * 4)
    assert [part.training for part in model.modules()] == [True, True, True, False]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=9))
def test_however_rests_overlap_the_last_to_leave_wakes_the_model(leaving):
    """Parts of one model rest in turns and together; each number lets one more rest, and a 2 the earliest go."""
    whole = torch.nn.ModuleList([torch.nn.Dropout(), torch.nn.ModuleList([torch.nn.Dropout(), torch.nn.ReLU().eval()])])
    parts, held = [whole, whole[1], whole[0]], []
    with torch.enable_grad():  # which whoever leaves out of turn would leave switched off
        for number in leaving:
            held.append((parts[number], ExitStack()))
            held[-1][1].enter_context(inference_mode(parts[number]))
            if number == 2:
                held.pop(0)[1].close()
            assert not any(part.training for one, _ in held for part in one.modules())
        for _, tired in held:
            tired.close()
    assert [part.training for part in whole.modules()] == [True, True, True, True, False]


def test_sources_come_plain():
    with pytest.raises(ValueError, match="source 1 holds the special token 2"):
        translate(Toy(dice(0)), [(3,), (4, 2)], Greedy())
    with pytest.raises(ValueError, match="target 0 holds the special token 1"):
        score(Toy(dice(0)), [(3,)], [(1, 4)])
    with pytest.raises(ValueError, match="1 sources but 2 targets"):
        score(Toy(dice(0)), [(3,)], [(3,), (3,)])
