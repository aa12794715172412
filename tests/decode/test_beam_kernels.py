"""Kernels of beam search in C: the same bits as the torch operations, which are used where C cannot be compiled."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.attention.parts import field_values
from regard.data.tokenizers.base import EOS, PAD
from regard.decode import Beam, Constraints, LengthLimit, beam_kernels, kv_cache, prepare, translate
from regard.decode import beam as searching
from regard.decode.beam import Backpointers, BeamState, backtrack, initial_beam_state, select_candidates
from regard.decode.kv_cache import BeamKVCache
from regard.decode.search import DecodingRequest, Hypothesis

from .test_models import SOURCES, model

compiled = pytest.mark.skipif(beam_kernels.beam_kernels() is None, reason="needs a C compiler and AVX-512 VNNI")
CPU, STEPS = torch.device("cpu"), 7
# sentences, beam, candidates of each beam more than there are beams
SEARCHES = [
    (4, Beam(4, 0.7), 0),
    (5, Beam(3, 1.0, n_best=3), 2),
    (3, Beam(1), 0),
    (4, Beam(5, n_best=4), 3),
    (4, Beam(3, 0.6, n_best=2, refill=True), 1),
    (2, Beam(9, n_best=9, refill=True), 1),
]


@pytest.fixture
def no_kernels(monkeypatch):
    """As on a machine without a compiler."""
    monkeypatch.setenv("CC", "no-such-compiler")
    beam_kernels.beam_kernels.cache_clear()
    yield
    beam_kernels.beam_kernels.cache_clear()


def beams_of(b: int, beam: Beam) -> BeamState:
    requests = [DecodingRequest((5,) * (n % 4), index=n) for n in range(b)]
    beam = replace(beam, max_length=LengthLimit(1, 3))
    return initial_beam_state(beam, requests, Constraints(), 40, CPU, STEPS)


def copy_of(beams: BeamState, *, by_sentence: bool = False) -> BeamState:
    """In memory of its own; the history step by step, or one sentence behind the other."""
    parts = {name: part.clone() for name, part in vars(beams).items() if isinstance(part, Tensor)}
    history = [part.clone() for part in field_values(beams.backpointers)]
    history = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in history] if by_sentence else history
    return replace(beams, **parts, backpointers=Backpointers(*history))


def assert_same(one: BeamState, other: BeamState) -> None:
    pairs = [(getattr(one, name), getattr(other, name)) for name in vars(one)]
    pairs += zip(field_values(one.backpointers), field_values(other.backpointers), strict=True)
    for part, again in pairs:
        if isinstance(part, Tensor):
            assert torch.equal(part.nan_to_num(99.5), again.nan_to_num(99.5)), (part, again)


def select_by_kernel(beams: BeamState, values: Tensor, tokens: Tensor, step: Tensor, live: Tensor | None) -> None:
    kernels = kv_cache.find_kernels(values.dtype, beams.tokens)
    assert kernels is not None
    beam_kernels.select_candidates(kernels, beams, values, tokens, step, live)


# --- candidates ---


@compiled
def test_two_beams_and_their_candidates_by_hand():
    """Totals -1 and -2; the candidates are -1 + (-0.5, -3) and -2 + (0, -1). The best two are token 7 of beam 0 at -1.5
    and the end of beam 1 at -2, which is recorded as finished; -1.5 may still become better, so it goes on alone."""
    beams = initial_beam_state(Beam(2), [DecodingRequest((4, 5))], Constraints(), 40, CPU, STEPS)
    beams.totals.copy_(torch.tensor([[-1.0, -2.0]]))
    values, tokens = torch.tensor([[-0.5, -3.0], [0.0, -1.0]]), torch.tensor([[7, 8], [EOS, 9]])
    select_by_kernel(beams, values, tokens, torch.tensor([1]), None)
    assert beams.tokens.tolist() == [[7, PAD]]
    assert beams.parents.tolist() == [[0, 0]]
    assert beams.totals.tolist() == [[-1.5, -torch.inf]]
    assert beams.best_finished.tolist() == [[-2.0]]
    assert beams.finished_step.tolist() == [-1]
    history = beams.backpointers
    assert history.tokens[1].tolist() == [[7, EOS]]
    assert history.parents[1].tolist() == [[0, 1]]
    assert history.log_probabilities[1].tolist() == [[-0.5, 0.0]]
    assert history.scores[1].tolist() == [[-1.5, -2.0]]


@compiled
def test_of_ties_the_lower_token_then_the_lower_beam():
    beams = initial_beam_state(Beam(3), [DecodingRequest((4, 5))], Constraints(), 40, CPU, STEPS)
    beams.totals.copy_(torch.tensor([[-1.0, -1.0, -1.0]]))
    values, tokens = torch.full((3, 2), -1.0), torch.tensor([[9, 8], [5, 8], [8, 5]])
    select_by_kernel(beams, values, tokens, torch.tensor([0]), None)
    assert beams.tokens.tolist() == [[5, 5, 8]]
    assert beams.parents.tolist() == [[1, 2, 0]]


@compiled
def test_a_beam_that_is_not_live_has_no_candidates():
    beams = initial_beam_state(Beam(2), [DecodingRequest((4, 5))] * 2, Constraints(), 40, CPU, STEPS)
    values, tokens = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]), torch.tensor([[7, 8], [9, 6]])
    select_by_kernel(beams, values, tokens, torch.tensor([0]), torch.tensor([2, 0]))
    assert beams.tokens.tolist() == [[9, 6], [7, 8]]
    assert beams.totals.tolist() == [[-3.0, -4.0], [-1.0, -2.0]]


@compiled
def test_a_step_that_the_history_has_no_room_for_is_a_mistake():
    beams = initial_beam_state(Beam(1), [DecodingRequest((4, 5))], Constraints(), 40, CPU, STEPS)
    with pytest.raises(AssertionError, match="no room for step 99"):
        select_by_kernel(beams, torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.long), torch.tensor([99]), None)


@compiled
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize(("b", "beam", "more"), SEARCHES, ids=str)
def test_candidates_are_selected_as_by_torch(b, beam, more, prune, seed):
    """Few numbers, so that there are equals; some beams have no candidates, and some sentences run ahead."""
    draw = torch.Generator().manual_seed(seed)
    one = replace(beams_of(b, beam), prune=prune)
    k, c = beam.size, beam.size + beam.refill + more
    other, ahead = copy_of(one, by_sentence=seed % 2 == 0), torch.randint(0, 2, (b,), generator=draw) * (seed % 3 > 0)
    for step in range(STEPS - 1):
        values = -torch.randint(0, 5, (b * k, c), generator=draw) / 2
        values[torch.rand(b * k, c, generator=draw) < 0.15] = -torch.inf
        if step == 3:
            values[torch.rand(b * k, c, generator=draw) < 0.1] = torch.nan
        tokens = torch.stack([torch.randperm(15, generator=draw)[:c] for _ in range(b * k)])
        steps = ahead + step if seed % 3 else torch.tensor([step])
        live, wide, words = None, values, tokens
        if seed % 2:
            live = (torch.rand(b * k, generator=draw) < 0.8).nonzero()[:, 0].flip(0)
            wide = torch.full_like(values, -torch.inf).index_copy_(0, live, values[live])
            words = torch.zeros_like(tokens).index_copy_(0, live, tokens[live])
            values, tokens = values[live], tokens[live]
        select_candidates(one, wide.view(b, k, c), words.view(b, k, c), steps)
        select_by_kernel(other, values, tokens, steps, live)
        assert_same(one, other)


# --- hypotheses ---


@compiled
def test_hypotheses_by_hand():
    """Step 0 says 7 and 8; step 1 says 9 after 8, and the end after 7; step 2, the limit, says 6 after 9. So 7 and its
    end are the finished hypothesis, and 8, 9, 6 the truncated one."""
    beams = initial_beam_state(Beam(2, n_best=2), [DecodingRequest((4, 5))], Constraints(), 40, CPU, 3)
    history = beams.backpointers
    history.tokens[:3].copy_(torch.tensor([[[7, 8]], [[9, EOS]], [[6, -1]]]))
    history.parents[:3].copy_(torch.tensor([[[0, 0]], [[1, 0]], [[0, 0]]]))
    history.log_probabilities[:3].copy_(torch.tensor([[[-1.0, -2.0]], [[-0.25, -0.5]], [[-0.125, 0.0]]]))
    history.scores[:3].copy_(torch.tensor([[[-1.0, -2.0]], [[-2.25, -1.5]], [[-2.375, -9.0]]]))
    beams.finished_step[0] = 2
    (found,) = backtrack(beams, [DecodingRequest((4, 5), index=3)], [0], 3).values()
    assert found == [
        Hypothesis((7,), (-1.0, -0.5), finished=True, score=-1.5),
        Hypothesis((8, 9, 6), (-2.0, -0.25, -0.125), finished=False, score=-2.375),
    ]


@compiled
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("b", "beam", "more"), SEARCHES, ids=str)
def test_hypotheses_are_those_of_numpy(b, beam, more, seed, monkeypatch):
    """Of sentences that end at different steps, some of them stuck, as no token follows."""
    draw = torch.Generator().manual_seed(seed)
    beams = beams_of(b, beam)
    beams = copy_of(beams, by_sentence=True) if seed % 2 else beams
    k, c = beam.size, beam.size + beam.refill + more
    for step in range(STEPS):
        values = -torch.randint(0, 5, (b, k, c), generator=draw) / 2
        values[torch.rand(b, generator=draw) < 0.15 * (step > 0 or seed == 7)] = -torch.inf
        tokens = torch.stack([torch.randperm(15, generator=draw)[:c] for _ in range(b * k)]).view(b, k, c)
        select_candidates(beams, values, tokens, torch.tensor([step]))
    beams.finished_step[beams.finished_step < 0] = STEPS - 1
    rows = [row for row in reversed(range(b)) if row != 1]
    requests, steps = [DecodingRequest((5,), index=10 + row) for row in rows], int(beams.finished_step[rows].max()) + 1
    found = backtrack(beams, requests, rows, steps)
    monkeypatch.setattr(searching, "find_kernels", lambda *_: None)
    assert found == backtrack(beams, requests, rows, steps)
    assert sum(map(len, found.values())) >= len(rows)


@compiled
def test_a_sentence_that_is_not_done_has_no_hypotheses_yet():
    beams = initial_beam_state(Beam(1), [DecodingRequest((4, 5))], Constraints(), 40, CPU, STEPS)
    for ended in (-1, 5):
        beams.finished_step[0] = ended
        with pytest.raises(AssertionError, match="not done within 3 steps"):
            backtrack(beams, [DecodingRequest((4, 5))], [0], 3)


# --- slots ---


def cache_of(seen: Tensor) -> BeamKVCache:
    return BeamKVCache((), torch.zeros(len(seen), 1, 1, 3), (), seen, torch.zeros(1, 1, dtype=torch.long))


@compiled
def test_slots_by_hand():
    """Beam 0 saw slots 0 and 2, beam 1 slots 0 and 3. Both go on from beam 1: nobody sees 1 and 2, which are theirs."""
    seen = torch.tensor([[[1, 0, 1, 0, 0], [1, 0, 0, 1, 0]]]).bool()
    slots, mask, used = kv_cache.follow_parents(cache_of(seen), torch.tensor([[1, 1]]))
    hidden = -torch.inf
    assert slots.tolist() == [[1, 2]]
    assert mask.tolist() == [[[0, 0, hidden, 0, hidden], [0, hidden, 0, 0, hidden]]]
    assert seen.long().tolist() == [[[1, 1, 0, 1, 0], [1, 0, 1, 1, 0]]]
    assert used == 4


@compiled
def test_keys_and_values_are_written_to_their_slots_by_hand():
    keys, values = torch.zeros(2, 1, 1, 3, 2)
    key, value = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([[[[5.0, 6.0], [7.0, 8.0]]]])
    kv_cache.write_slots((keys, values), key, value, torch.tensor([[2, 0]]))
    assert keys.tolist() == [[[[3, 4], [0, 0], [1, 2]]]]
    assert values.tolist() == [[[[7, 8], [0, 0], [5, 6]]]]


@compiled
@pytest.mark.parametrize(("b", "k", "c"), [(1, 1, 4), (3, 4, 64), (5, 3, 17), (2, 9, 70)])
def test_parents_are_followed_as_by_torch(b, k, c, monkeypatch):
    draw = torch.Generator().manual_seed(c)
    seen, other = torch.zeros(2, b, k, c, dtype=torch.bool)
    for _ in range(c // k):
        parents = torch.randint(k, (b, k), generator=draw)
        found = kv_cache.follow_parents(cache_of(seen), parents)
        with monkeypatch.context() as patch:
            patch.setattr(kv_cache, "find_kernels", lambda *_: None)
            expected = kv_cache.follow_parents(cache_of(other), parents)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        assert torch.equal(seen, other)
        assert found[2] == expected[2]


@compiled
def test_a_token_without_a_slot_is_a_mistake():
    with pytest.raises(AssertionError, match="no slot"):
        kv_cache.follow_parents(cache_of(torch.ones(1, 2, 3, dtype=torch.bool)), torch.tensor([[0, 1]]))


@compiled
@pytest.mark.parametrize("rotated", [False, True])
def test_keys_and_values_are_written_as_by_torch(rotated, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 3, 5, 2, 6, generator=draw).transpose(2, 3)  # b k g d, as projections have it
    key = key.contiguous() if rotated else key
    slots = torch.stack([torch.randperm(11, generator=draw)[:5] for _ in range(3)])
    past, other = torch.zeros(2, 2, 3, 2, 11, 6)
    kv_cache.write_slots((past[0], past[1]), key, value, slots)
    monkeypatch.setattr(kv_cache, "find_kernels", lambda *_: None)
    kv_cache.write_slots((other[0], other[1]), key, value, slots)
    assert torch.equal(past, other)


# --- who runs ---


@compiled
def test_other_numbers_and_other_rules_are_for_torch():
    one = torch.zeros(2, 3)
    assert kv_cache.find_kernels(torch.float32, one) is not None
    assert kv_cache.find_kernels(torch.float64, one) is None
    assert kv_cache.find_kernels(torch.float32, one, one.T) is None


@compiled
@pytest.mark.parametrize("beam", [Beam(4, 0.8, n_best=3), Beam(3, refill=True), Beam(1)], ids=str)
def test_a_search_has_the_same_bits_by_either(beam, monkeypatch):
    made = prepare(model("transformer").float())
    found = translate(made, SOURCES, beam)
    monkeypatch.setenv("REGARD_KERNELS", "0")
    beam_kernels.beam_kernels.cache_clear()
    try:
        assert beam_kernels.beam_kernels() is None
        assert translate(made, SOURCES, beam) == found
    finally:
        beam_kernels.beam_kernels.cache_clear()


@pytest.mark.usefixtures("no_kernels")
def test_without_a_compiler_torch_searches():
    assert kv_cache.find_kernels(torch.float32) is None
    key = torch.ones(1, 1, 2, 3)
    keys, values = torch.zeros(2, 1, 1, 4, 3)
    slots, _, used = kv_cache.follow_parents(
        cache_of(torch.zeros(1, 2, 4, dtype=torch.bool)), torch.zeros(1, 2, dtype=torch.long)
    )
    kv_cache.write_slots((keys, values), key, key, slots)
    assert keys.tolist() == values.tolist() == [[[[1] * 3, [1] * 3, [0] * 3, [0] * 3]]]
    assert used == 2
