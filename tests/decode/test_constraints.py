"""How a translation begins, what may come in it, and where it has to stop."""

from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode import Beam, Constraints, Greedy, LengthLimit, Sampling, score, stream, translate

from .toy_models import BOS, EOS, PAD, Toy, dice, following, same

SHORT = LengthLimit(0, 7)
SEARCHES = [Greedy(SHORT), Beam(3, 0.7, n_best=3, max_length=SHORT), Sampling(seed=3, samples=3, max_length=SHORT)]
by_name = pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)


@by_name
def test_padding_and_beginning_are_never_produced(search):
    """A model that wants nothing else."""
    model = Toy(lambda source, written: [9.0, 8.0, 0.0, 1.0, 2.0])
    for hypothesis in translate(model, [(3,)], search)[0]:
        assert not {PAD, BOS, EOS} & set(hypothesis.ids)


@by_name
def test_a_prefix_is_kept_and_scored_by_the_model(search):
    model = Toy(dice(1))
    sources, prefixes = [(3,), (4, 5), (6,)], [(), (5, 5, 5), (6,)]
    for source, prefix, found in zip(
        sources, prefixes, translate(model, sources, search, prefixes=prefixes), strict=True
    ):
        assert found
        for hypothesis in found:
            assert hypothesis.ids[: len(prefix)] == prefix
            for at, token in enumerate(prefix):
                assert hypothesis.scores[at] == pytest.approx(following(model, source, prefix[:at])[token])
    alone = translate(model, [(4, 5)], Greedy(SHORT), prefixes=[(5, 5, 5)])[0][0]
    again = translate(model, sources, Greedy(SHORT), prefixes=prefixes)[1][0]
    assert same(alone, again)


def test_a_prefix_is_not_bound_by_what_is_allowed_nor_by_the_limit():
    model = Toy(dice(1))
    [[found]] = translate(
        model, [(3,)], Greedy(LengthLimit(0, 2)), prefixes=[(5, 6, 5)], constraints=Constraints(banned=frozenset({5}))
    )
    assert found.ids[:3] == (5, 6, 5)
    assert 5 not in found.ids[3:]


@by_name
def test_what_is_banned_does_not_come(search):
    model = Toy(dice(8))
    free = [token for h in translate(model, [(3,), (4,)], search)[0] for token in h.ids]
    assert 4 in free or 5 in free
    for some in translate(model, [(3,), (4,)], search, constraints=Constraints(banned=frozenset({4, 5}))):
        assert not {4, 5} & {token for h in some for token in h.ids}


@by_name
def test_the_end_waits_for_the_shortest(search):
    model = Toy(lambda source, written: [0.0, 0.0, 5.0, 1.0, 1.0])
    found = translate(model, [(3,)], search, constraints=Constraints(min_length=3))[0]
    assert all(len(h.ids) >= 3 for h in found)
    assert any(len(h.ids) == 3 and h.finished for h in found)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), index=st.integers(0, 2))
def test_a_rule_decides_what_follows_what(seed, index):
    """Each token must be higher than the last; the highest must come, and only then the end."""

    def rising(written):
        return {t for t in range(3, 7) if not written or t > written[-1]} or {EOS}

    for hypothesis in translate(Toy(dice(seed)), [(3,)], SEARCHES[index], constraints=Constraints(allowed_next=rising))[
        0
    ]:
        assert list(hypothesis.ids) == sorted(set(hypothesis.ids))
        assert hypothesis.ids[-1] == 6
        assert hypothesis.finished


def test_a_rule_does_not_bring_back_what_is_banned():
    model = Toy(lambda source, written: [9.0, 9.0, 0.0, 9.0, 1.0])
    [[found]] = translate(
        model, [(3,)], Greedy(), constraints=Constraints(frozenset({3}), min_length=2, allowed_next=lambda _: range(5))
    )
    assert found.ids == (4,) * 12


@by_name
def test_where_a_rule_lets_nothing_follow_the_translation_is_unfinished(search):
    model = Toy(dice(0))
    found = translate(
        model, [(3,)], search, constraints=Constraints(allowed_next=lambda written: () if len(written) == 2 else (4,))
    )[0]
    assert {(h.ids, h.finished) for h in found} == {((4, 4), False)}
    assert len(found[0].scores) == 2
    nothing = translate(model, [(3,)], search, constraints=Constraints(allowed_next=lambda written: ()))[0]
    assert {(h.ids, h.finished, h.log_probability) for h in nothing} == {((), False, 0)}


@by_name
def test_the_limit_leaves_a_translation_unfinished_with_its_own_log_probability(search):
    endless = Toy(lambda source, written: [-50.0, -50.0, -50.0, 1.0, 0.0, -1.0])
    for hypothesis in translate(endless, [(3, 4)], search)[0]:
        assert not hypothesis.finished
        assert len(hypothesis.ids) == len(hypothesis.scores) == 7
        beginning = score(endless, [(3, 4)], [hypothesis.ids])[0] - following(endless, (3, 4), hypothesis.ids)[EOS]
        assert hypothesis.log_probability == pytest.approx(beginning)


def test_a_limit_grows_with_the_source_or_does_not():
    endless = Toy(lambda source, written: [-50.0, -50.0, -50.0, 1.0, 0.0])
    found = translate(endless, [(3,) * 5, (3,) * 2, ()], Greedy(LengthLimit(1.5, 3)))
    assert [len(h.ids) for [h] in found] == [10, 6, 3]
    assert LengthLimit(0, 50).of(999) == 50
    with pytest.raises(ValueError, match="leaves no token"):
        LengthLimit(2.0, 0)


def test_tokens_outside_the_vocabulary_are_named():
    model = Toy(dice(0))
    with pytest.raises(ValueError, match="token 99 is not in the vocabulary of 7"):
        translate(model, [(3,)], Greedy(), constraints=Constraints(banned=frozenset({99})))
    with pytest.raises(ValueError, match="token 8 is not in the vocabulary of 7"):
        translate(model, [(3,)], Greedy(), prefixes=[(8,)])
    with pytest.raises(ValueError, match="prefix of source 0 holds the special token 2"):
        translate(model, [(3,)], Greedy(), prefixes=[(2,)])
    with pytest.raises(ValueError, match="2 prefixes for 1 sources"):
        translate(model, [(3,)], Greedy(), prefixes=[(), ()])


@pytest.mark.parametrize("search", [Greedy(SHORT), Sampling(seed=5, max_length=SHORT)], ids=["greedy", "sampled"])
def test_a_stream_gives_the_same_tokens_as_they_come(search):
    for source in [(3,), (4, 5), (), (6, 6, 6)]:
        model = Toy(dice(2))
        for prefix in [(), (5, 6)]:
            expected = translate(model, [source], search, prefixes=[prefix])[0][0].ids
            assert tuple(stream(model, source, search, prefix=prefix)) == expected


def test_a_stream_computes_no_further_than_it_is_read():
    model = Toy(lambda source, written: [0.0, 0.0, -9.0, 1.0, 0.0])
    tokens = stream(model, (3,), Greedy())
    assert [next(tokens), next(tokens)] == [3, 3]
    assert model.rows == [1, 1]


def test_a_stream_leaves_its_reader_s_gradients_alone():
    model = Toy(dice(2)).train()
    for _ in stream(model, (3,), Greedy()):
        assert torch.is_grad_enabled()
        assert model.training


def test_the_log_probability_of_what_is_banned_is_not_shared_out():
    """Banning takes a token away; it does not make the others likelier: the log-probability stays the model's."""
    model = Toy(lambda source, written: [-99.0, -99.0, log(0.2), log(0.5), log(0.3)])
    [[found]] = translate(model, [(3,)], Greedy(LengthLimit(0, 1)), constraints=Constraints(banned=frozenset({3})))
    assert found.ids == (4,)
    assert found.log_probability == pytest.approx(log(0.3))
