"""Beam search: the definition, exhaustive search, penalties, early stopping, n-best."""

import re
from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.attention import AttentionSites, SiteName, record_attention
from regard.decode import Beam, Constraints, Greedy, LengthLimit, translate
from regard.decode.beam import MAX_PENALTY, length_penalty
from regard.decode.beam_decoder import mean_cross_attention

from .reference_beam import reference_translate
from .toy_models import (
    EOS,
    UNK,
    FixedAttention,
    Ids,
    LogitsOf,
    Toy,
    dice,
    every_translation,
    glance,
    naive_beam,
    naive_greedy,
    penalised,
    tree,
)

PENALTIES = [(0.0, 0.0), (0.6, 0.0), (1.0, 0.0), (2.5, 0.0), (0.0, 0.3), (0.8, 0.2)]


def test_wu_s_length_penalty_on_paper():
    assert length_penalty(1, 1.0) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert length_penalty(13, 2.0) == 9.0
    assert length_penalty(13, 0.0) == 1.0


class NamedAttentions(nn.ModuleDict):
    attention_sites: AttentionSites


def test_attention_is_that_of_the_last_word_in_the_last_layer_the_mean_of_its_heads():
    """Of self-attention nobody asks: what counts is what the target's tokens saw of the source."""
    last = torch.tensor([[[[0.5, 0.5], [0.5, 0.5], [0.25, 0.75]], [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]]])
    sites = {"decoder.0.cross": last.flip(-1), "decoder.1.self": last.flip(-1), "decoder.1.cross": last}
    model = NamedAttentions({name.replace(".", " "): FixedAttention() for name in sites})
    model.attention_sites = {
        name.replace(".", " "): SiteName(name, "read" if "self" in name else "written", "source") for name in sites
    }
    with record_attention(model) as record:
        for name, weights in sites.items():
            model[name.replace(".", " ")](weights)
    assert mean_cross_attention(record).tolist() == [[0.625, 0.375]]


def test_wu_s_coverage_penalty_on_paper():
    """Two source tokens and the end got 1¼, ½ and ¼ from two predictions: β (log 1 + log ½ + log ¼)."""
    weights_after = {(): [[0.75, 0.25, 0.0]], (4,): [[0.5, 0.25, 0.25]]}
    model = Toy(tree({(): {4: 1.0}}), lambda source, written: weights_after[written])
    [[found]] = translate(model, [(5, 6)], Beam(2, coverage_penalty=0.7))
    assert found.ids == (4,)
    assert found.score == pytest.approx(-0.7 * log(8))
    assert found.log_probability == 0.0


@pytest.mark.sampled(5)
@pytest.mark.parametrize("refill", [False, True], ids=["narrowing", "refilled"])
@pytest.mark.parametrize(("alpha", "beta"), PENALTIES)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_batch_finds_what_the_definition_finds(size, alpha, beta, refill):
    """Batched, cached and stopped early = one by one, from scratch, to the very end."""
    model = Toy(dice(size), glance(size))
    beam = Beam(size, alpha, beta, n_best=size, max_length=LengthLimit(0.5, 4), refill=refill)
    sources = [(3, 4), (), (5,), (6, 6, 3, 4, 5), (4, 4, 4)]
    for source, found in zip(sources, translate(model, sources, beam), strict=True):
        expected = naive_beam(model, source, len(source) // 2 + 4, beam)
        assert [(h.ids, h.finished) for h in found] == [(ids, finished) for ids, _, _, finished in expected]
        assert [h.log_probability for h in found] == pytest.approx([total for _, total, _, _ in expected], abs=1e-9)
        assert [h.score for h in found] == pytest.approx([score for _, _, score, _ in expected], abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
    refill=st.booleans(),
    data=st.data(),
)
def test_stopping_early_changes_nothing(seed, size, alpha, spread, refill, data):
    best = data.draw(st.integers(1, size))
    model = Toy(dice(seed, vocabulary=5, spread=spread))
    beam = Beam(size, alpha, n_best=best, max_length=LengthLimit(0, 7), refill=refill)
    found = translate(model, [(3,)], beam)[0]
    assert [h.ids for h in found] == [ids for ids, *_ in naive_beam(model, (3,), 7, beam)]


def test_what_ends_leaves_its_place_empty_or_to_the_next_best():
    """After one step "" has ended with 0.5 and 4 goes on with 0.3; 5, with 0.2, goes on to 0.2 where it is kept."""
    model = Toy(tree({(): {EOS: 0.5, 4: 0.3, 5: 0.2}, (4,): {4: 0.5, 5: 0.5}, (5,): {EOS: 1.0}}))
    for refill, second in ((False, (4, 4)), (True, (5,))):
        [found] = translate(model, [(3,)], Beam(2, n_best=2, max_length=LengthLimit(0, 2), refill=refill))
        assert [one.ids for one in found] == [(), second]


def late_bloomer(steps: int) -> Toy:
    """Ends at once with probability 0.6; or sets out with 0.4 on a way that is certain and long."""
    certain = {(4,) * n: {4: 1.0} for n in range(1, steps)}
    return Toy(tree({(): {EOS: 0.6, 4: 0.4}, **certain}))


def test_a_long_translation_overtakes_a_short_one_at_the_last_moment():
    """log 0.6 / 1 against log 0.4 / lp: with α = 1 the long one wins from lp > 1.79, which is 6 tokens."""
    for steps, winner in [(4, ()), (5, (4,) * 5), (11, (4,) * 11)]:
        [[found]] = translate(late_bloomer(steps), [(3,)], Beam(2, length_penalty=1.0))
        assert found.ids == winner, steps


def test_without_length_penalty_a_sentence_stops_as_soon_as_the_best_has_ended():
    model = late_bloomer(9)
    assert translate(model, [(3,)], Beam(2))[0][0].ids == ()
    assert len(model.rows) == 1


def test_a_limit_that_leaves_no_room_to_overtake_stops_the_search():
    """The way would win at 6 tokens, but 5 are allowed: there is nothing to wait for."""
    model = late_bloomer(9)
    beam = Beam(2, length_penalty=1.0, max_length=LengthLimit(0, 5))
    assert translate(model, [(3,)], beam)[0][0].ids == ()
    assert len(model.rows) == 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("alpha", "beta"), PENALTIES)
def test_a_beam_as_wide_as_the_world_is_exhaustive_search(alpha, beta):
    """4 tokens, at most 4 places with the end: 85 translations, all of them found and in the right order."""
    model, source, limit = Toy(dice(11), glance(11)), (5, 3), 4
    everything = every_translation(model, source, limit)
    assert len(everything) == 1 + 4 + 16 + 64
    beam = Beam(4**4 + 85, alpha, beta, n_best=85, max_length=LengthLimit(0, limit))
    [found] = translate(model, [source], beam)
    scores = {ids: penalised(model, source, ids, total, beam) for ids, total in everything.items()}
    assert [h.ids for h in found] == sorted(scores, key=lambda ids: -scores[ids])
    assert [h.score for h in found] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-9)
    assert [h.log_probability for h in found] == pytest.approx([everything[h.ids] for h in found], abs=1e-9)


@pytest.mark.parametrize(("alpha", "beta"), PENALTIES)
def test_a_beam_of_one_is_greedy_search_whatever_the_penalties(alpha, beta):
    model = Toy(dice(5), glance(5))
    sources = [(3,) * n for n in range(11)]
    beams = translate(model, sources, Beam(1, alpha, beta))
    for source, [beam], [greedy] in zip(sources, beams, translate(model, sources, Greedy()), strict=True):
        assert (beam.ids, beam.scores, beam.finished) == (greedy.ids, greedy.scores, greedy.finished)
        ids, total, finished = naive_greedy(model, source, 2 * len(source) + 10)
        assert (greedy.ids, greedy.finished) == (ids, finished)
        assert greedy.score == greedy.log_probability == pytest.approx(total)


def test_the_best_are_distinct_and_in_order():
    found = translate(Toy(dice(2)), [(4,), (5, 3)], Beam(7, 0.6, n_best=7))
    for hypotheses in found:
        assert len({h.ids for h in hypotheses}) == len(hypotheses) > 1
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_equals_go_to_the_lower_token_and_then_the_lower_beam():
    even = Toy(lambda source, written: [0.0] * 7)
    assert translate(even, [(3,)], Greedy())[0][0].ids == ()  # the end has the lowest id that may come
    found = translate(
        even, [(3,)], Beam(4, n_best=4, max_length=LengthLimit(0, 2)), constraints=Constraints(min_length=1)
    )[0]
    assert [h.ids for h in found] == [(3,), (4,), (5,), (6,)]
    assert all(h.finished for h in found)
    # seven tokens are equal but the beam has room for three
    found = translate(
        even, [(3,)], Beam(3, n_best=3, max_length=LengthLimit(0, 1)), constraints=Constraints(min_length=1)
    )[0]
    assert [h.ids for h in found] == [(3,), (4,), (5,)]


def test_what_meets_the_limit_is_unfinished_and_ranks_behind_what_is_finished():
    """The way that never ends is the more probable, and still no translation."""
    model = Toy(tree({(4,) * n: {4: 0.9, EOS: 0.1} for n in range(9)}))
    beam = Beam(3, length_penalty=1.0, n_best=3, max_length=LengthLimit(0, 2))
    found = translate(model, [(3,)], beam)[0]
    assert [(h.ids, h.finished) for h in found] == [((4,), True), ((), True), ((4, 4), False)]
    assert found[2].log_probability == pytest.approx(2 * log(0.9))
    assert found[2].score == pytest.approx(2 * log(0.9) / (7 / 6))
    assert found[0].score == pytest.approx(log(0.09) / (7 / 6))


def test_sentences_that_are_done_leave_the_batch():
    """Sentence n ends after n tokens; beams of one sentence start as one row."""
    ends = Toy(lambda source, written: [0.0] * 2 + [9.0 if len(written) >= len(source) else -99.0, 0.0, 1.0])
    sources = [(4,) * n for n in (3, 1, 2)]
    translate(ends, sources, Greedy())
    assert ends.rows == [3, 3, 2, 1]
    ends.rows.clear()
    translate(ends, sources, Beam(2))
    assert ends.rows == [3, 6, 4, 2]


def test_a_sentence_that_met_its_limit_is_computed_no_further():
    """One in seventeen: too few to move the others to new rows for it."""
    endless = Toy(lambda source, written: [0.0, 0.0, -99.0, 1.0, 0.0])
    translate(endless, [(), *[(4, 4)] * 16], Beam(1, max_length=LengthLimit(1.0, 1)))
    assert endless.rows == [17, 16, 16]


def test_penalties_and_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="size 3 cannot give the best 4"):
        Beam(3, n_best=4)
    for penalty in (-0.5, 1e300, float("inf"), float("nan")):
        for name in ("length", "coverage"):
            with pytest.raises(ValueError, match=f"a {name} penalty of {re.escape(str(penalty))} should lie between 0"):
                replace(Beam(3), **{f"{name}_penalty": penalty})
    translate(Toy(dice(0)), [(3,)], Beam(3, length_penalty=MAX_PENALTY))
    with pytest.raises(ValueError, match="use coverage_penalty=0"):
        translate(Toy(dice(0)), [(3,)], Beam(3, coverage_penalty=0.1))
    with pytest.raises(ValueError, match="NaN"):
        translate(Toy(lambda source, written: [float("nan")] * 7), [(3,)], Beam(3))


# --- against the reference search ---


def coarse(seed: int, vocabulary: int) -> LogitsOf:
    """Logits that are whole numbers, so that there are ties; some tokens are impossible."""

    def logits_of(source: Ids, written: Ids) -> list[float]:
        logits = np.random.default_rng([seed, *source, 0, *written]).integers(-3, 2, vocabulary)
        return [-np.inf if logit == -3 and token > UNK else float(logit) for token, logit in enumerate(logits)]

    return logits_of


def successors(written: Ids) -> list[int]:
    """A rule that forbids much, and after some prefixes everything."""
    return [token for token in range(2, 7) if (token + sum(written)) % 3] if sum(written) % 11 else [4, 5]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 2, 3, 4, 6, 9, 20]),
    alpha=st.sampled_from([0.0, 0.4, 1.0, 2.0]),
    beta=st.sampled_from([0.0, 0.0, 0.3]),
    constraints=st.sampled_from(
        [
            Constraints(),
            Constraints(min_length=3),
            Constraints(banned=frozenset({4, 6})),
            Constraints(banned=frozenset({3, 4, 5, 6}), min_length=2),
            Constraints(allowed_next=successors),
            Constraints(banned=frozenset({5}), min_length=1, allowed_next=lambda written: range(2, 9 - len(written))),
        ]
    ),
    data=st.data(),
)
def test_a_search_by_tensors_finds_the_reference_bit_for_bit(seed, size, alpha, beta, constraints, data):
    """Ties, impossible tokens, prefixes that nothing may follow, beams wider than the vocabulary: the same numbers."""
    best, ties = data.draw(st.integers(1, size)), data.draw(st.booleans())
    vocabulary = 9 if constraints.allowed_next else 7
    model = Toy(coarse(seed, vocabulary) if ties else dice(seed, vocabulary), glance(seed))
    beam = Beam(size, alpha, beta, n_best=best, max_length=LengthLimit(0.5, 4))
    sources = [(3, 4), (), (5,), (6, 6, 3, 4, 5), (4, 4, 4)]
    prefixes = data.draw(st.sampled_from([None, [(5,), (), (4, 6), (), (3, 3, 3)]]))
    found = translate(model, sources, beam, prefixes=prefixes, constraints=constraints)
    assert found == reference_translate(model, sources, beam, prefixes=prefixes, constraints=constraints)
