"""Drawing tokens: the right set, the right frequencies, and draws that belong to their sentence."""

from collections import Counter
from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.decode import Constraints, Greedy, LengthLimit, Sampling, translate
from regard.decode.stepwise import draw_indices
from regard.decode.topk import stable_topk

from .toy_models import EOS, Toy, dice, every_translation, same

SCORES = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]]).double().log()


def kept(sample: Sampling) -> dict[int, float]:
    probabilities, tokens = sample.truncate_distribution(SCORES)
    return {t: p for t, p in zip(tokens[0].tolist(), probabilities[0].tolist(), strict=True) if p > 0}


def test_the_nucleus_on_paper():
    """0.4, then 0.7, then 0.85: the token that crosses p is kept, the one after it is not."""
    assert set(kept(Sampling(top_p=0.35))) == {1}
    assert set(kept(Sampling(top_p=0.41))) == {1, 3}
    assert set(kept(Sampling(top_p=0.69))) == {1, 3}
    assert set(kept(Sampling(top_p=0.71))) == {1, 3, 4}
    assert set(kept(Sampling(top_p=1.0))) == {0, 1, 2, 3, 4}
    steep = torch.tensor([[0.0, -20.0, -21.0, -22.0]]).log_softmax(-1)
    assert (Sampling(top_k=3, top_p=1.0).truncate_distribution(steep)[0] > 0).all()


def test_the_probabilities_of_a_draw_add_up_to_one_over_what_is_kept():
    """Padding and the start are never drawn; of the others 0.05, 0.3 and 0.15 two are kept: ⅔ and ⅓."""
    drawn = Sampling(top_k=2).probabilities(SCORES[0])
    assert drawn.tolist() == pytest.approx([0, 0, 0, 2 / 3, 1 / 3])
    assert Sampling(top_p=0.5).probabilities(SCORES[0]).tolist() == pytest.approx([0, 0, 0, 1, 0])


def test_top_k_on_paper():
    assert kept(Sampling(top_k=2)) == pytest.approx({1: 4 / 7, 3: 3 / 7})
    assert set(kept(Sampling(top_k=99))) == {0, 1, 2, 3, 4}
    # the nucleus is measured on what top-k left: 4/7 is more than a half
    assert set(kept(Sampling(top_k=2, top_p=0.5))) == {1}


def test_temperature_on_paper():
    """At temperature ½ probabilities are squared: 16 : 9 : 2¼ : 1 : ¼."""
    expected = {1: 16 / 28.5, 3: 9 / 28.5, 4: 2.25 / 28.5, 0: 1 / 28.5, 2: 0.25 / 28.5}
    assert kept(Sampling(temperature=0.5)) == pytest.approx(expected)
    assert kept(Sampling(temperature=1e6)) == pytest.approx(dict.fromkeys(range(5), 0.2), abs=1e-5)


def test_a_draw_is_where_the_running_sum_passes_the_number():
    probabilities = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).double().expand(6, 4)
    assert draw_indices(probabilities, [0.0, 0.49, 0.5, 0.74, 0.75, 1 - 1e-17]).tolist() == [0, 0, 1, 1, 2, 2]
    assert draw_indices(probabilities.float().flip(-1), [0.0, 0.24, 0.25, 0.5, 0.75, 1 - 1e-9]).tolist() == [
        1,
        1,
        2,
        3,
        3,
        3,
    ]
    # what is cut off is shared out: ½ and ¼ are two thirds and one third
    assert draw_indices(torch.tensor([[0.5, 0.25, 0.0]]).expand(2, 3), [0.66, 0.67]).tolist() == [0, 1]


@pytest.mark.parametrize("sample", [Sampling(top_k=1), Sampling(temperature=1e-5), Sampling(top_p=1e-9)], ids=str)
def test_one_token_kept_is_greedy_search(sample):
    model, sources = Toy(dice(4)), [(3,), (4, 5), (), (6, 3, 5)]
    for [greedy], [sampled] in zip(translate(model, sources, Greedy()), translate(model, sources, sample), strict=True):
        assert same(sampled, greedy)


def test_frequencies_are_the_model_s_probabilities():
    """Whole translations, each as often as the model says."""
    model, draws = Toy(dice(6, vocabulary=5)), 3000
    [found] = translate(model, [(3,)], Sampling(samples=draws, max_length=LengthLimit(0, 3)))
    counts = Counter(h.ids for h in found if h.finished)
    expected = {ids: exp(total) for ids, total in every_translation(model, (3,), 3, vocabulary=5).items()}
    # pad and bos have a share in the model's distribution and none here, so each step is shared out anew
    shares = {}
    for ids in expected:
        share = 1.0
        for at, token in enumerate([*ids, EOS]):
            row = torch.tensor(model.logits_of((3,), ids[:at]))[2:].softmax(-1)
            share *= row[token - 2].item()
        shares[ids] = share
    for ids, share in shares.items():
        deviation = (share * (1 - share) / draws) ** 0.5
        assert abs(counts[ids] / draws - share) < 4.5 * deviation, ids


@settings(max_examples=15, deadline=None)
@given(others=st.lists(st.integers(3, 6), max_size=5), seed=st.integers(0, 2**40))
def test_draws_belong_to_the_sentence_s_place_alone(others, seed):
    model, sample = Toy(dice(0)), Sampling(seed=seed, max_length=LengthLimit(0, 6))
    first = translate(model, [(3, 4)], sample)[0][0]
    assert same(translate(model, [(3, 4), *[(other,) for other in others]], sample)[0][0], first)
    more = translate(model, [(3, 4)], Sampling(seed=seed, samples=3, max_length=LengthLimit(0, 6)))[0]
    assert same(more[0], first)


def test_places_seeds_and_draws_differ():
    model = Toy(lambda source, written: [0.0] * 97)
    long = LengthLimit(0, 11)
    found = translate(model, [(3,)] * 5, Sampling(samples=3, max_length=long), constraints=Constraints(min_length=11))
    found += translate(
        model, [(3,)] * 5, Sampling(seed=1, samples=3, max_length=long), constraints=Constraints(min_length=11)
    )
    assert len({h.ids for some in found for h in some}) == 30


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 0.0}])
def test_what_cannot_be_drawn_from_is_refused(wrong):
    with pytest.raises(ValueError, match=r"Greedy|top_k=0|top_p=0\.0"):
        Sampling(**wrong)
    with pytest.raises(ValueError, match="seed -1"):
        Sampling(seed=-1)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([-torch.inf, 0.0, 1.0, 2.0]), min_size=11, max_size=11), min_size=1, max_size=3),
    st.integers(1, 12),
)
def test_the_best_few_are_those_of_a_stable_sort(rows, count):
    scores = torch.tensor(rows)
    values, ids = stable_topk(scores, count)
    all_values, all_ids = scores.sort(dim=-1, descending=True, stable=True)
    assert_close(values, all_values[:, :count])
    real = values > -torch.inf
    assert torch.equal(ids[real], all_ids[:, :count][real])


def test_a_model_in_half_precision_is_scored_in_single():
    logits = torch.tensor([-9.0, -9.0, 0.3, 0.1, 0.2], dtype=torch.bfloat16)

    class Half(Toy):
        def step(self, tokens, state, memory):
            logits, state = super().step(tokens, state, memory)
            return logits.bfloat16(), state

    [[found]] = translate(Half(lambda source, written: logits.tolist()), [(3,)], Greedy())
    assert found.log_probability == pytest.approx(logits.double().log_softmax(-1)[2].item(), abs=1e-6)
