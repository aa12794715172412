"""Batches keep the budget, lose nobody, waste little, and come in the same order from any step on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import InMemoryBatches, LongPolicy, ShuffleBuffer, StreamingBatches, TokenBatchSampler
from regard.data.batching import BatchCuts, MixtureSampler, collate, pad_rows, pair_lengths
from regard.data.token_files import CorpusMixture
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.world.splitmix import combine_seeds, permute, random_key, random_keys

from .prepared import write_examples

LENGTHS = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), min_size=1, max_size=101)


def examples_of(lengths):
    """Pairs whose first ids tell them apart."""
    return [
        ([5 + row, *[5] * (source - 1)][:source], [5 + row, *[7] * (target - 1)][:target])
        for row, (source, target) in enumerate(lengths)
    ]


def captions(count: int = 2003) -> list[tuple[int, int]]:
    """Lengths as of a corpus of captions: the sides are alike, but not equal."""
    chance = np.random.default_rng(0)
    source = chance.gamma(11.0, 1.3, count).astype(int) + 1
    return list(
        zip(source.tolist(), np.maximum(source + chance.normal(1, 2.5, count).astype(int), 1).tolist(), strict=True)
    )


def same(left, right) -> bool:
    return torch.equal(left.source, right.source) and torch.equal(left.target, right.target)


# --- one batch ---


def test_a_batch_begins_ends_and_pads():
    batch = collate([([11, 13], [17]), ([], [19, 23, 29])])
    assert batch.source.tolist() == [[11, 13, EOS], [EOS, PAD, PAD]]
    assert batch.source_lengths.tolist() == [3, 1]
    assert batch.target.tolist() == [[BOS, 17, EOS, PAD, PAD], [BOS, 19, 23, 29, EOS]]
    assert batch.target_lengths.tolist() == [3, 5]
    assert batch.tokens == 2 + 4
    assert len(batch) == 2
    assert {part.dtype for part in (batch.source, batch.target, batch.source_lengths)} == {torch.int64}
    assert same(batch.to("cpu"), batch)


def test_padding_inside_a_sentence_and_an_empty_batch_are_refused():
    with pytest.raises(ValueError, match="id 0 is padding and cannot occur inside a sentence"):
        pad_rows([[5, PAD, 7]])
    with pytest.raises(ValueError, match="a batch needs at least one sentence"):
        collate([])


# --- the plan ---


@given(LENGTHS, st.integers(31, 211), st.one_of(st.none(), st.integers(1, 7)), st.integers(0, 3), st.integers(0, 2**70))
def test_nobody_is_lost_and_the_budget_is_kept(lengths, tokens, sentences, epoch, seed):
    batches = TokenBatchSampler(lengths, tokens=tokens, sentences=sentences, seed=seed)
    plan = batches.epoch(epoch)
    assert sorted(row for rows in plan for row in rows) == list(range(len(lengths)))
    assert len(plan) == len(batches)
    assert all(len(rows) <= (sentences or len(lengths)) for rows in plan)
    for batch in InMemoryBatches(examples_of(lengths), batches).epoch(epoch):
        assert max(batch.source.numel(), batch.target.numel()) <= tokens


@given(LENGTHS, st.integers(0, 5), st.data())
def test_the_order_is_the_same_from_any_step(lengths, epoch, data):
    whole = list(InMemoryBatches(examples_of(lengths), TokenBatchSampler(lengths, tokens=97, seed=3)).epoch(epoch))
    step = data.draw(st.integers(0, len(whole)))
    resumed = InMemoryBatches(examples_of(lengths), TokenBatchSampler(lengths, tokens=97, seed=3)).epoch(epoch, step)
    assert all(same(left, right) for left, right in zip(whole[step:], resumed, strict=True))
    if step < len(whole):
        again = TokenBatchSampler(lengths, tokens=97, seed=3)
        assert again.batch_rows(epoch, step) == again.epoch(epoch)[step]


def test_epochs_and_seeds_differ_in_batches_and_in_their_order():
    plans = [TokenBatchSampler(captions(), tokens=509, seed=seed).epoch(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({str(plan) for plan in plans}) == 4
    assert len({str(sorted(sorted(rows) for rows in plan)) for plan in plans}) == 4
    # Short and long come mixed: otherwise an epoch would begin with all the short ones.
    halves = np.array_split([len(rows) for rows in plans[0]], 2)
    assert 0.8 < np.mean(halves[0]) / np.mean(halves[1]) < 1.25


def test_little_is_wasted_on_padding():
    assert TokenBatchSampler(captions(29_009), tokens=4096).padding_fraction < 0.08
    assert TokenBatchSampler([(3, 2)] * 7, tokens=64).padding_fraction == 0
    # Equally long targets, but not sources: those that lean alike share a batch.
    assert TokenBatchSampler([(1, 10), (9, 10)] * 4, tokens=4 * 12).padding_fraction == 0
    # Two batches of one pair each: 4 + 4 and 2 + 9 ids, none of them padding; together 2 × (4 + 9) and 26 − 19 wasted.
    assert TokenBatchSampler([(3, 2), (1, 7)], tokens=9).padding_fraction == 0
    assert TokenBatchSampler([(3, 2), (1, 7)], tokens=18).padding_fraction == pytest.approx(7 / 26)


def test_the_plan_is_the_same_everywhere():
    """Worked: five pairs of one length under a budget for two; the keys below say who sits where."""
    batches = TokenBatchSampler([(1, 1)] * 5, tokens=6, seed=0)
    order = sorted(range(5), key=lambda row: random_key(combine_seeds(0, 2, 0), row))
    turns = sorted(range(3), key=lambda turn: random_key(combine_seeds(0, 2, 1), turn))
    assert batches.epoch(2) == [[order[:2], order[2:4], order[4:]][turn] for turn in turns]


def test_the_keys_are_splitmix64():
    """The first numbers of the published generator for the seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [random_key(1234567, n) for n in range(4)] == published
    assert random_keys(1234567, 4).tolist() == published


@given(st.integers(0, 2**64 - 1))
def test_keys_one_by_one_and_at_once_agree(seed):
    assert random_keys(seed, 5).tolist() == [random_key(seed, n) for n in range(5)]


# --- long sentences ---


LONG = [(3, 5), (40, 2), (7, 60), (5, 3)]


def test_a_long_pair_is_refused_dropped_or_alone_by_its_policy():
    with pytest.raises(ValueError, match=r"^pair 1 is too long: 40 and 2 ids, and the limit is 39; 2 in all; raise"):
        TokenBatchSampler(LONG, limit=39)
    with pytest.raises(ValueError, match="pair 2 is too long: 7 and 60 ids, and a batch has 61 with BOS and EOS"):
        TokenBatchSampler(LONG, tokens=61, limit=60)
    dropped = TokenBatchSampler(LONG, limit=39, long=LongPolicy.DROP)
    assert dropped.dropped == [1, 2]
    assert sorted(row for rows in dropped.epoch(0) for row in rows) == [0, 3]
    alone = TokenBatchSampler(LONG, tokens=30, long=LongPolicy.ALONE)
    assert alone.dropped == []
    assert sorted(map(sorted, alone.epoch(0))) == [[0, 3], [1], [2]]
    assert 0 <= alone.padding_fraction < 1


def test_the_limit_itself_is_allowed():
    assert len(TokenBatchSampler([(39, 39)], limit=39)) == 1
    assert len(TokenBatchSampler([(39, 39)], tokens=41)) == 1


def test_a_line_of_ten_thousand_tokens_stops_nothing_when_dropped():
    lengths = [(10_000, 3), *[(5, 5)] * 7]
    assert TokenBatchSampler(lengths, long=LongPolicy.DROP).dropped == [0]
    assert TokenBatchSampler(lengths, long=LongPolicy("alone")).epoch(0).count([0]) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenBatchSampler([]), "the corpus is empty"),
        (lambda: TokenBatchSampler([(1, 1)], tokens=0), "tokens=0 must be at least 1"),
        (
            lambda: TokenBatchSampler([(1, 1)], long="dorp"),  # type: ignore[arg-type]
            "long='dorp' is no policy for long sentences; choose from refuse, drop",
        ),
        (lambda: TokenBatchSampler([(1, 1)], sentences=0), "sentences=0 must be at least 1"),
        (lambda: TokenBatchSampler([(1, 1)]).epoch(-1), "epochs count from 0"),
        (lambda: TokenBatchSampler([(1, 1)]).batch_rows(0, 1), "index=1: an epoch has 1 batches"),
        (lambda: InMemoryBatches([], TokenBatchSampler([(1, 1)])), "0 examples, but batches for 1"),
        (
            lambda: InMemoryBatches([([5], [5])], TokenBatchSampler([(1, 1)], tokens=2, long=LongPolicy.DROP)),
            "all 1 pairs are too long",
        ),
        (lambda: ShuffleBuffer(list, buffer=0), "buffer=0 must hold at least 1 item"),
        (lambda: ShuffleBuffer(list).epoch(0, -1), "start=-1 count from 0"),
        (
            lambda: next(StreamingBatches(ShuffleBuffer(list), lambda pair: pair).epoch(0)),
            "no batch in the whole stream",
        ),
        (
            lambda: StreamingBatches(ShuffleBuffer(list), lambda pair: pair).epoch(0, -1),
            "start=-1: batches count from 0",
        ),
    ],
)
def test_plans_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- streams ---


@given(st.integers(0, 97), st.integers(1, 23), st.integers(0, 3), st.data())
def test_a_stream_shuffles_everything_once_and_resumes_anywhere(count, buffer, epoch, data):
    whole = list(ShuffleBuffer(lambda: range(count), buffer=buffer, seed=5).epoch(epoch))
    assert sorted(whole) == list(range(count))
    assert all(item < place + buffer for place, item in enumerate(whole))
    start = data.draw(st.integers(0, count))
    assert list(ShuffleBuffer(lambda: range(count), buffer=buffer, seed=5).epoch(epoch, start)) == whole[start:]


def test_a_stream_comes_in_another_order_in_every_epoch_and_for_every_seed():
    orders = [
        tuple(ShuffleBuffer(lambda: range(97), buffer=13, seed=seed).epoch(epoch))
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4


def test_a_batch_is_dealt_like_cards():
    batch = collate(examples_of([(1, 1), (2, 1), (1, 3), (3, 2), (2, 2)]))
    parts = batch.split_rows(2)
    assert [part.source[:, 0].tolist() for part in parts] == [[5, 7, 9], [6, 8]]
    assert [part.target_lengths.tolist() for part in parts] == [[3, 5, 4], [3, 4]]
    assert [len(part) for part in batch.split_rows(9)] == [1] * 5


def test_a_stream_that_fits_its_buffer_is_shuffled_too():
    assert list(ShuffleBuffer(lambda: range(97), buffer=131).epoch(0)) != list(range(97))


def test_a_stream_keeps_no_more_than_its_buffer():
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield read

    stream = ShuffleBuffer(endless, buffer=13).epoch(0)
    taken = [next(stream) for _ in range(101)]
    assert len(set(taken)) == 101
    assert read == 101 + 13
    assert taken != sorted(taken)


@given(LENGTHS, st.integers(1, 31), st.integers(0, 3), st.data())
def test_streamed_batches_lose_nobody_keep_the_budget_and_resume_anywhere(lengths, buffer, epoch, data):
    pairs = examples_of([(source + 1, target) for source, target in lengths])

    def feed():
        return StreamingBatches(ShuffleBuffer(lambda: pairs, buffer=buffer, seed=2), lambda pair: pair, tokens=101)

    whole = list(feed().epoch(epoch))
    assert sorted(row for batch in whole for row in batch.source[:, 0].tolist()) == [
        5 + row for row in range(len(pairs))
    ]
    assert all(max(batch.source.numel(), batch.target.numel()) <= 101 for batch in whole)
    start = data.draw(st.integers(0, len(whole)))
    assert all(same(left, right) for left, right in zip(whole[start:], feed().epoch(epoch, start), strict=True))
    assert feed().count(epoch).batches == len(whole)


def test_a_stream_drops_counts_refuses_or_sets_apart_what_is_long():
    pairs = examples_of(LONG)

    def feed(long: LongPolicy):
        return StreamingBatches(ShuffleBuffer(lambda: pairs, buffer=3), lambda pair: pair, tokens=30, long=long)

    found = feed(LongPolicy.DROP).count()
    assert (found.pairs, found.dropped) == (2, 2)
    assert feed(LongPolicy.ALONE).count().pairs == 4
    with pytest.raises(ValueError, match=r"^too long: .* ids, and a batch has 30 with BOS and EOS; raise the limit"):
        list(feed(LongPolicy.REFUSE).epoch(0))


def test_a_stream_that_fits_the_buffer_wastes_as_little_as_memory():
    lengths = captions()
    streamed = list(
        StreamingBatches(ShuffleBuffer(lambda: examples_of(lengths)), lambda pair: pair, tokens=1021).epoch(0)
    )
    assert len(streamed) == len(TokenBatchSampler(lengths, tokens=1021))
    assert pair_lengths(examples_of(lengths)) == lengths


# --- prepared corpora: an order that is computed ---


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_a_computed_order_is_an_order(count, seed):
    assert sorted(permute(seed, count, np.arange(count))) == list(range(count))


def test_every_order_is_about_as_likely_and_each_number_may_have_its_own():
    orders = [tuple(permute(seed, 3, np.arange(3)).tolist()) for seed in range(600)]
    assert all(70 < orders.count(order) < 130 for order in set(orders))
    assert len(set(orders)) == 6
    seeds, counts, numbers = np.array([7, 8, 7], np.uint64), np.array([50, 3, 10**9]), np.array([20, 1, 123_456_789])
    alone = [
        permute(int(seed), int(count), np.array([n]))[0] for seed, count, n in zip(seeds, counts, numbers, strict=True)
    ]
    assert permute(seeds, counts, numbers).tolist() == alone


def cut_one_by_one(widths, tokens, sentences):
    """The definition: a pair that does not fit begins the next batch."""
    batches, start = [], 0
    for stop, width in enumerate(widths):
        if width * (stop + 1 - start) > tokens or stop - start == sentences:
            batches.append((start, stop))
            start = stop
    return [*batches, (start, len(widths))]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 99), st.sampled_from([None, 1, 2, 5]))
def test_batches_are_cut_as_pair_by_pair(widths, tokens, sentences):
    widths = sorted(widths)
    cuts = BatchCuts.of(*np.unique(widths, return_counts=True), tokens=tokens, sentences=sentences)
    assert [cuts.bounds(n) for n in range(len(cuts))] == cut_one_by_one(widths, tokens, sentences)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> CorpusMixture:
    """Two corpora in several shards, 300 pairs and 100, with the number of each pair as its first id."""
    here, examples = tmp_path_factory.mktemp("mixture"), examples_of(captions(400))
    one = write_examples(here / "one", [examples[:64], examples[64:200], examples[200:300]])
    return CorpusMixture((one, write_examples(here / "two", [examples[300:]])))


def all_rows(batches: MixtureSampler, epoch: int) -> list[list[int]]:
    return [batches.batch_rows(epoch, index) for index in range(len(batches))]


def test_prepared_corpora_make_the_batches_of_a_list_in_another_order(mixture):
    ours, theirs = MixtureSampler(mixture, tokens=211), listed_sampler(mixture, 211)
    epochs = [all_rows(ours, epoch) for epoch in (0, 1)]
    for epoch in epochs:
        assert sorted(row for rows in epoch for row in rows) == list(range(400))
    assert list(map(len, epochs[0])) != list(map(len, epochs[1])), "batches come in another order"
    of_two = [sorted(sum(row >= 300 for row in rows) for rows in epoch) for epoch in epochs]
    assert of_two[0] != of_two[1], "and other pairs meet in them"
    assert sorted(map(len, epochs[0])) == sorted(map(len, theirs.epoch(0)))

    def shapes(batches):
        return sorted(collate([mixture[row] for row in rows]).target.shape for rows in batches)

    assert shapes(epochs[0]) == shapes(epochs[1]) == shapes(theirs.epoch(0))


def listed_sampler(mixture: CorpusMixture, tokens: int, **options: int) -> TokenBatchSampler:
    return TokenBatchSampler(pair_lengths(list(mixture)), tokens=tokens, long=LongPolicy.DROP, **options)


def test_a_limit_drops_what_a_list_would_drop(mixture):
    ours, theirs = MixtureSampler(mixture, tokens=97, limit=17), listed_sampler(mixture, 97, limit=17)
    assert 0 < ours.num_dropped == theirs.num_dropped == len(theirs.dropped)
    assert {row for rows in all_rows(ours, 3) for row in rows} == set(range(400)) - set(theirs.dropped)


def test_a_batch_depends_on_seed_epoch_and_number_alone(mixture):
    found = all_rows(MixtureSampler(mixture, tokens=97, seed=3), 5)
    assert MixtureSampler(mixture, tokens=97, seed=3).batch_rows(5, 7) == found[7]
    assert MixtureSampler(mixture, tokens=97, seed=4).batch_rows(5, 7) != found[7]
    order = [row for rows in found for row in rows]
    assert abs(np.corrcoef(order, np.arange(400))[0, 1]) < 0.2


def test_corpora_are_mixed_in_proportion_to_their_weights(mixture):
    batches = MixtureSampler(CorpusMixture(mixture.corpora, (1.0, 1.5)), tokens=97)
    seen = np.zeros(400, int)
    for epoch in range(4):
        rows = [row for batch in all_rows(batches, epoch) for row in batch]
        first = sum(row < 300 for row in rows)
        assert first == 300, "that with the least weight is seen once"
        assert abs((len(rows) - first) / first - 1.5) < 0.05
        seen += np.bincount(rows, minlength=400)
    assert set(seen[:300]) == {4}
    lengths = [(max(len(source) + 1, len(target) + 2), (len(source) - len(target)) // 4) for source, target in mixture]
    for kind in set(lengths[300:]):
        assert np.ptp([seen[row] for row in range(300, 400) if lengths[row] == kind]) <= 1, "all as often, in the end"
    lone = [rows for rows in all_rows(batches, 0) if len({row < 300 for row in rows}) == 1]
    assert len(lone) < len(batches) / 2, "batches hold pairs of both"
