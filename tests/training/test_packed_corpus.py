"""Packed batches: nothing is lost, nothing else is learnt, every batch has one size, and resuming is exact."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.attention import MultiHeadAttention, TopBlocks
from regard.data import SentencePair, collate
from regard.data.packing import NO_SEGMENT, RowPlan, fit_windows, pack_first_fit
from regard.data.token_files import CorpusMixture
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.models.config import ModelConfig, build_model
from regard.models.transformer import Transformer
from regard.ops import dispatch
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.seq2seq import LabelSmoothingLoss, RDropLoss, packing_objections
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.training import ConstantSchedule, TrainConfig, train
from regard.training.config import Loss, TrainSettings
from regard.training.corpus import PrefetchedMixture
from regard.training.packed_corpus import PackedCorpus, PackedMixture, PackedPairs, epoch_rows
from regard.training.run import TrainingRun, flops
from regard.world import World, translation_pairs
from tests.data.prepared import write_examples
from tests.narrowing import assert_is_instance

MODEL = ModelConfig(kind="transformer", layers=2, model=12, heads=3, hidden=14, dropout=0.0, tie="target")
PAIRS = [SentencePair(*pair) for pair in translation_pairs(World(max_length=9), "fr", 131)]
GPU = torch.cuda.is_available()


def settings(model: ModelConfig = MODEL, **train: Any) -> TranslationSettings:
    few = {"batch_size": 211, "max_length": 30, "packed": True, "steps": 7, "validate_every": 3, "checkpoint_every": 2}
    few |= {"learning_rate": 1e-2, "warmup_steps": 2}
    return TranslationSettings(
        text=PairTokenizerSettings(kind="words", joint=False), model=model, train=TrainSettings(**{**few, **train})
    )


def translator(model: ModelConfig = MODEL, **train: Any) -> Translator:
    return Translator.from_examples(PAIRS, settings(model, **train))


def corpus(made: Translator) -> PackedCorpus:
    return PackedCorpus.of(made.examples(PAIRS), made.settings.train)


# --- the batches ---


def words_of(found: PackedCorpus, batch: PackedPairs) -> list[tuple[list[int], list[int], list[int]]]:
    """The words of each text: source, target and wanted."""
    texts = []
    for n in range(len(batch.labels)):
        for number in range(1, int(batch.source.segment_ids[n].max()) + 1):
            ours, theirs = batch.source.segment_ids[n] == number, batch.target.segment_ids[n] == number
            sides = (batch.source.tokens[n, ours], batch.target.tokens[n, theirs], batch.labels[n, theirs])
            assert batch.source.position_ids[n, ours].tolist() == list(range(int(ours.sum())))
            texts.append(tuple(side.tolist() for side in sides))
    return texts


def all_of(found: PackedCorpus, epoch: int) -> list:
    return [
        text
        for index in range(found.steps(epoch))
        for batch, _ in found.at(epoch, index)
        for text in words_of(found, batch)
    ]


def test_every_pair_comes_once_an_epoch_and_in_another_order_in_the_next():
    made = translator()
    found = corpus(made)
    wanted = sorted(([*s, EOS], [BOS, *t], [*t, EOS]) for s, t in made.examples(PAIRS))
    epochs = [all_of(found, epoch) for epoch in (0, 1)]
    assert [sorted(epoch) == [tuple(each) for each in wanted] for epoch in epochs] == [True, True]
    assert epochs[0] != epochs[1]
    assert epochs[0] == all_of(corpus(made), 0)


def test_tokens_are_those_that_are_wanted():
    for batch, tokens in corpus(translator()).at(0, 1):
        assert tokens == int((batch.labels != PAD).sum()) == int((batch.target.segment_ids != NO_SEGMENT).sum())


def test_rows_are_nearly_full_and_batches_about_as_large():
    found = corpus(translator(batch_size=400))
    assert found.padding < 0.15
    sizes = [len(rows) for rows in epoch_rows(found, 0)]
    assert max(sizes) <= found.rows_per_batch == 400 // 64
    assert max(sizes) - min(sizes) <= 1


def test_first_fit_on_paper():
    """Rows of 10|10: 7|3 leaves 3|7, 6|6 does not fit and leaves 4|4, 3|4 fits the first, 2|2 not any more."""
    sizes = np.array([(2, 2), (7, 3), (6, 6), (3, 4)])
    row, order = pack_first_fit(sizes, 10, seed=0)
    assert order.tolist() == [1, 2, 3, 0]
    assert row.tolist() == [1, 0, 1, 0]


def first_fit(sizes: np.ndarray, length: int) -> list[int]:
    """By the plain definition: the first row that has room on both sides."""
    free: list[list[int]] = []
    found = []
    for source, target in sizes.tolist():
        fitting = [n for n, (one, other) in enumerate(free) if one >= source and other >= target]
        found.append(fitting[0] if fitting else len(free))
        if not fitting:
            free.append([length, length])
        free[found[-1]] = [free[found[-1]][0] - source, free[found[-1]][1] - target]
    return found


def random_lengths(count: int, longest: int = 40) -> np.ndarray:
    return np.clip(np.random.default_rng(count).gamma(2.0, 6.0, (count, 2)).astype(np.int64), 1, longest)


def test_windows_that_are_packed_together_are_packed_as_each_alone():
    windows = np.stack([random_lengths(90 + n)[:90] for n in range(7)])
    windows[3, 80:] = 0  # a window of fewer pairs
    laid, rows = fit_windows(windows, 64)
    for window, row, count in zip(windows, laid, rows, strict=True):
        real = window[window.sum(1) > 0]
        assert row[: len(real)].tolist() == first_fit(real, 64)
        assert count == max(first_fit(real, 64)) + 1


# --- pairs of prepared corpora ---


def prepared_mixture(folder: Path, *counts: int, weights: tuple[float, ...] | None = None) -> CorpusMixture:
    """Corpora of so many pairs, each with ids of its own, so that a pair is known by them."""
    corpora, number = [], 4
    for at, count in enumerate(counts):
        examples = []
        for source, target in random_lengths(count).tolist():
            examples.append(([number, *[4] * (source - 1)], [number] * target))
            number += 1
        half = count // 2
        corpora.append(write_examples(folder / str(at), [examples[:half], examples[half:]]))
    return CorpusMixture(tuple(corpora), weights)


def packed_mixture(mixture: CorpusMixture, **train: Any) -> PackedMixture:
    few: dict[str, Any] = {"batch_size": 1000, "max_length": 39, "seed": 3}
    return PackedMixture.of(mixture, TrainSettings(**few | train))


def pairs_of(found: PackedMixture, epoch: int) -> list[int]:
    """The first id of every pair, in the order of an epoch."""
    return [
        int(batch.source.tokens[n, t])
        for number in range(found.num_batches(epoch))
        for batch in [found.numbered(epoch, number)]
        for n, t in ((batch.source.segment_ids > 0) & (batch.source.position_ids == 0)).nonzero().tolist()
    ]


@pytest.mark.parametrize("count", [1, 7, 1025, 2100])
def test_every_prepared_pair_comes_once_an_epoch(count, tmp_path):
    mixture = prepared_mixture(tmp_path, count, 3 + count // 2)
    found = packed_mixture(mixture)
    fitting = sorted(source[0] for source, target in mixture if max(len(source), len(target)) <= 39)
    one, two = pairs_of(found, 0), pairs_of(found, 1)
    assert sorted(one) == sorted(two) == fitting
    assert found.left_out == len(mixture) - len(fitting)
    assert one == pairs_of(packed_mixture(mixture), 0)
    if count > 7:
        assert one != two
        assert one != pairs_of(packed_mixture(mixture, seed=4), 0)


def test_a_prepared_row_is_a_row_of_a_packed_corpus(tmp_path):
    """A pair's ids, their segments and positions, and what is to be predicted; rows nearly full, batches about even."""
    mixture = prepared_mixture(tmp_path, 3000)
    found = packed_mixture(mixture)
    known = {source[0]: (source, target) for source, target in mixture}
    batches = [found.numbered(2, number) for number in range(found.num_batches(2))]
    sizes = {len(batch.labels) for batch in batches}
    assert max(sizes) <= found.rows_per_batch == 1000 // 64
    assert max(sizes) - min(sizes) <= 1
    for batch in batches[:20]:
        for n in range(len(batch.labels)):
            for segment in range(1, int(batch.source.segment_ids[n].max()) + 1):
                ours, theirs = batch.source.segment_ids[n] == segment, batch.target.segment_ids[n] == segment
                source, target = known[int(batch.source.tokens[n, ours][0])]
                assert batch.source.tokens[n, ours].tolist() == [*source, EOS]
                assert batch.target.tokens[n, theirs].tolist() == [BOS, *target]
                assert batch.labels[n, theirs].tolist() == [*target, EOS]
                assert batch.target.position_ids[n, theirs].tolist() == list(range(len(target) + 1))
    tokens = sum(int((batch.source.tokens != PAD).sum()) for batch in batches)
    assert tokens / sum(batch.source.tokens.numel() for batch in batches) > 0.85


def test_batches_made_ahead_by_a_thread_are_those_that_are_asked_for(tmp_path, monkeypatch):
    """In the order of training over the end of an epoch, and from any step on, as a resumed run asks."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)  # which needs a GPU
    monkeypatch.setattr("regard.training.corpus.WINDOW", 3)
    plain = replace(packed_mixture(prepared_mixture(tmp_path, 900, 300)), device="cuda")
    made: list[tuple[int, range]] = []
    several = PackedMixture.several
    monkeypatch.setattr(PackedMixture, "several", lambda self, *which: (made.append(which), several(self, *which))[1])
    ahead, count = PrefetchedMixture(plain), plain.num_batches(0)
    assert count % 3 != 0
    steps = [(0, number) for number in range(count)] + [(1, number) for number in range(5)]
    resumed = [(3, 4), (2, count - 1), (3, 0)]
    for epoch, number in (*steps, *resumed):
        found, wanted = ahead.numbered(epoch, number), several(plain, epoch, range(number, number + 1))[0]
        for ours, theirs in ((found.source, wanted.source), (found.target, wanted.target)):
            assert torch.equal(ours.tokens, theirs.tokens)
            assert torch.equal(ours.segment_ids, theirs.segment_ids)
            assert torch.equal(ours.position_ids, theirs.position_ids)
        assert torch.equal(found.labels, wanted.labels)
    ahead.thread.shutdown()
    in_order = [(0, range(first, min(first + 3, count))) for first in range(0, count, 3)]
    in_order += [(1, range(3)), (1, range(3, 6)), (1, range(6, 9))]
    assert made[: len(in_order)] == in_order, "a window was made twice, or not ahead"
    assert len(ahead.windows) == 2, "what is behind is kept"


def test_windows_of_a_series_have_one_plan():
    """Ten windows; from 1, 3 and 8 on the next longer pair comes in, and from 4 on the longest is missing."""
    sizes = np.array([(3, 4), (9, 8), (20, 30), (31, 31)])
    plan = RowPlan.of(sizes, np.array([4001, 3007, 1995, 501]), 64)
    assert plan.first_windows.tolist() == [0, 1, 3, 4, 8]
    series = np.searchsorted(plan.first_windows, np.arange(plan.windows), "right") - 1
    for window in range(plan.windows):
        found = plan.place_sizes(plan.window_places(window))
        assert plan.laid[series[window], : len(found)].tolist() == first_fit(found, plan.length)
    places = np.sort(np.concatenate([plan.window_places(window) for window in range(plan.windows)]))
    assert np.array_equal(places, np.arange(plan.places))


def test_a_few_plans_describe_many_windows():
    """A million pairs of four lengths: at most four changes, and one where windows have a pair less."""
    plan = RowPlan.of(np.array([(3, 4), (9, 8), (20, 30), (31, 31)]), np.array([400_000, 300_001, 200_002, 99_997]), 64)
    assert plan.windows == 977
    assert len(plan.first_windows) <= 6
    tokens = 400_000 * 4 + 300_001 * 9 + 200_002 * 30 + 99_997 * 31
    assert tokens / 64 <= plan.rows <= 1.12 * tokens / 64


def test_prepared_pairs_come_as_often_as_their_weights_say(tmp_path):
    """Twice as many pairs of the second corpus, of all lengths, though most lengths have but a pair or two."""
    mixture = prepared_mixture(tmp_path, 900, 700, weights=(1.0, 2.0))
    found = packed_mixture(mixture, max_length=40)
    seen = [np.array(pairs_of(found, epoch)) < 904 for epoch in (0, 1)]
    for first in seen:
        assert int(first.sum()) == 900
        assert abs(int((~first).sum()) - 1800) <= 1


def test_filled_batches_all_have_one_size(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)  # which needs a GPU
    found = replace(corpus(translator()), device="cuda")
    shapes = {
        tuple(tuple(x.shape) for x in (batch.source.tokens, batch.target.position_ids, batch.labels))
        for epoch in (0, 1)
        for rows in epoch_rows(found, epoch)
        if (batch := found.batch(rows))
    }
    assert shapes == {((found.rows_per_batch, 64),) * 3}


def test_what_does_not_fit_is_left_out_or_refused():
    made = translator()
    assert PackedCorpus.of(made.examples(PAIRS), replace(made.settings.train, max_length=6)).left_out > 0
    with pytest.raises(ValueError, match=r"all 131 examples are longer than train\.max_length = 1"):
        PackedCorpus.of(made.examples(PAIRS), replace(made.settings.train, max_length=1))
    with pytest.raises(ValueError, match=r"train\.batch_size = 50 is less than a row of 64 tokens; raise it"):
        PackedCorpus.of(made.examples(PAIRS), replace(made.settings.train, batch_size=50))


# --- the loss ---


def loss_and_gradient(model: nn.Module, loss: Loss, batch: Any) -> list[torch.Tensor]:
    summed, _ = loss(model, (batch, 1))
    return [summed, *torch.autograd.grad(summed, list(model.parameters()))]


PACKED_RECIPES = {
    "plain": "",
    "rotary": 'position = "Rotary()"',
    "alibi": 'position = "Alibi(heads=3)"',
    "shaw": 'position = "RelativeVectors(Clipped(3), head=4)"',
    "learned": 'position = "Learned(max_length=64, model=12)"',
    "window": 'pattern = "Window(3)"',
    "prefix": 'pattern = "Prefix(2) | Window(2)"',
    "strided": 'pattern = "Strided(3)"',
    "additive": 'score = "Additive(4, 5)"',
    "sparsemax": 'normaliser = "Sparsemax()"',
    "linear": 'score = "Feature()"\nnormaliser = "Proportional()"',
    "a window, then linear": ('pattern = "Window(3)"', 'score = "Feature()"\nnormaliser = "Proportional()"'),
    "strides, then all": ('pattern = "Strided(3)"', 'normaliser = "Sparsemax()"'),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PACKED_RECIPES)
def test_every_recipe_packs(name):
    """Each text is read as if it stood alone, whatever the recipe asks about: positions, the first tokens, strides."""
    recipe = PACKED_RECIPES[name]
    cross = recipe if name in ("rotary", "alibi", "additive", "sparsemax") else ""
    made = translator(replace(MODEL, encoder=recipe, decoder=recipe, cross=cross))
    model, found = made.model.double(), corpus(made)
    pack = found.at(0, 0)[0][0]
    padded = collate([(source[:-1], wanted[:-1]) for source, _, wanted in words_of(found, pack)])
    assert_close(*(loss_and_gradient(model, LabelSmoothingLoss(0.1), batch) for batch in (padded, pack)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("place", ["", 'position = "Rotary()"'])
@pytest.mark.parametrize("loss", [LabelSmoothingLoss(0.1), RDropLoss(0.1, 1.5)], ids=["smoothed", "rdrop"])
@pytest.mark.parametrize("fused", [False, True])
def test_packed_and_padded_have_one_loss_and_one_gradient(loss, norm, place, fused, monkeypatch):
    made = translator(replace(MODEL, norm=norm, encoder=place, decoder=place, groups=1 if place else None))
    model, found = made.model.double(), corpus(made)
    pack = found.at(0, 0)[0][0]
    texts = words_of(found, pack)
    assert len(texts) > 3
    padded = collate([(source[:-1], wanted[:-1]) for source, _, wanted in texts])
    plain = loss_and_gradient(model, loss, padded)
    monkeypatch.setattr(dispatch, "use_fused", lambda x: fused)
    assert_close(plain, loss_and_gradient(model, loss, pack))
    assert_close(plain, loss_and_gradient(model, loss, padded))


def test_one_table_for_both_sides_is_read_once_and_learns_from_both():
    joint = replace(settings(replace(MODEL, tie="all")), text=PairTokenizerSettings(kind="words", joint=True))
    made = Translator.from_examples(PAIRS, joint)
    model, found = made.model.double(), corpus(made)
    pack = found.at(0, 0)[0][0]
    padded = collate([(source[:-1], wanted[:-1]) for source, _, wanted in words_of(found, pack)])
    results = []
    for batch in (padded, pack):
        summed, _ = LabelSmoothingLoss(0.1)(model, (batch, 1))
        results.append([summed, *torch.autograd.grad(summed, list(model.parameters()))])
    assert_close(*results)


def test_fused_dropout_is_another_noise_of_the_same_size(monkeypatch):
    """Without dropout the loss is the same; with it, another one, and the mean of many is that of torch's."""
    made = translator(replace(MODEL, dropout=0.2, attention_dropout=0.1))
    batch, many, still = corpus(made).at(0, 0)[0], [], []
    for fused in (False, True):
        monkeypatch.setattr(dispatch, "use_fused", lambda x, fused=fused: fused)
        with torch.no_grad():
            many.append(torch.stack([LabelSmoothingLoss(0.1)(made.model.train(), batch)[0] for _ in range(40)]))
            still.append(LabelSmoothingLoss(0.1)(made.model.eval(), batch)[0])
    assert_close(*still)
    (one, other), spread = (each.mean() for each in many), torch.stack([each.std() for each in many]).norm() / 40**0.5
    assert many[1].unique().numel() == 40
    assert abs(one - other) < 5 * spread


def test_padding_at_the_end_changes_nothing(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    made = translator()
    model, found = made.model.double(), corpus(made)
    rows = epoch_rows(found, 0)[0][:2]
    filled = replace(found, device="cuda").batch(rows)
    assert len(filled.labels) == found.rows_per_batch > len(rows)
    results = []
    for batch in (found.batch(rows), filled):
        summed, _ = RDropLoss(0.1, 1.5)(model, (batch, 1))
        results.append([summed, *torch.autograd.grad(summed, list(model.parameters()))])
    assert_close(*results)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("fused", [False, True])
def test_each_layer_is_one_graph(fused, monkeypatch):
    """Traced without its kernels, which take a minute to make on a CPU."""
    from torch._dynamo.testing import CompileCounterWithBackend

    made, counted = translator(replace(MODEL, layers=3)), CompileCounterWithBackend("aot_eager")
    model, batch = made.model.double(), corpus(made).at(0, 0)[0]
    plain = LabelSmoothingLoss(0.1)(model, batch)[0]
    monkeypatch.setattr(dispatch, "use_fused", lambda x: fused)
    transformer = assert_is_instance(model, Transformer)
    for layer in (*transformer.encoder, *transformer.decoder):
        layer.compile(backend=counted, dynamic=False, fullgraph=True)
    assert_close(plain, LabelSmoothingLoss(0.1)(model, batch)[0])
    assert counted.frame_count == 6


def test_models_that_cannot_be_packed_raise_with_the_reason():
    assert packing_objections(translator().model) == []
    choosing = translator(packed=False).model
    for layer in choosing.modules():
        if isinstance(layer, MultiHeadAttention):
            layer.recipe = replace(layer.recipe, pattern=TopBlocks(2, 4))
    assert "TopBlocks(k=2, block=4, queries=None) mixes the tokens of a row" in packing_objections(choosing)[0]
    gru = translator(ModelConfig(kind="gru", model=12, hidden=10), packed=False)
    assert "reads token after token" in packing_objections(gru.model)[0]
    with pytest.raises(ValueError, match=r"train\.packed = true cannot be had: .* reads token after token"):
        translator(ModelConfig(kind="gru", model=12, hidden=10)).job(PAIRS, PAIRS[:7])


def test_settings_that_need_one_another():
    with pytest.raises(ValueError, match=r"train\.cuda_graph = true wants batches of one shape; say packed = true"):
        TranslationSettings(train=TrainSettings(cuda_graph=True))
    with pytest.raises(ValueError, match=r"compile = true: .* say deterministic = false as well"):
        TrainSettings(packed=True, compile=True)
    assert TrainSettings(packed=True, compile=True, deterministic=False).compile


# --- runs ---


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["float32", "bf16-pure"])
def test_leaving_and_going_on_ends_with_the_same_bits(tmp_path, precision):
    shaky = replace(MODEL, dropout=0.2, attention_dropout=0.1)

    def fit(name: str) -> TrainingRun:
        made = translator(shaky, rdrop=1.5, cuda_graph=True, precision=precision)
        return TrainingRun(made.job(PAIRS, PAIRS[:11]), tmp_path / name)

    list(fit("straight").steps())
    for report in (steps := fit("left").steps()):
        if report.step == 5:
            steps.close()
    list(fit("left").steps())
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "left"))
    assert one == other


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("consistency", "precision", "accumulate"),
    [(0.0, "bfloat16", 2), (1.5, "bfloat16", 2), (1.5, "bfloat16", 1), (0.0, "bf16-pure", 1), (0.0, "bf16-pure", 2)],
)
def test_a_captured_step_has_the_bits_of_one_launched_kernel_by_kernel(tmp_path, consistency, precision, accumulate):
    """By our kernels; with one batch a step the optimiser's part is captured, too, and in pure bfloat16 is our own."""
    wide = replace(MODEL, model=64, heads=2, hidden=96, dropout=0.2, attention_dropout=0.1)
    # a power of 2, since the rate of a captured step is a float32
    how = {"rdrop": consistency, "precision": precision, "gradient_accumulation": accumulate, "steps": 9}
    how |= {"schedule": "constant", "learning_rate": 2.0**-7, "warmup_steps": 0}
    weights = []
    for name in ("launched", "captured", "again"):
        made = translator(wide, cuda_graph=name != "launched", **how)
        fit = TrainingRun(made.job(PAIRS, PAIRS[:11], "cuda"), tmp_path / name)
        for report in (steps := fit.steps()):
            if name == "again" and report.step == 4:
                steps.close()
        if name == "again":
            again = translator(wide, cuda_graph=True, **how)
            list(TrainingRun(again.job(PAIRS, PAIRS[:11], "cuda"), tmp_path / name).steps())
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    if precision != "bf16-pure" or accumulate > 1:
        assert weights[0] == weights[1]
    assert weights[1] == weights[2]


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("loss", [LabelSmoothingLoss(0.1), RDropLoss(0.1, 1.5)], ids=["smoothed", "rdrop"])
def test_on_a_gpu_packed_gradients_are_as_good_as_padded_ones(loss):
    """In bfloat16: error at most twice that of the padded way, both against float64 on the CPU."""
    wide = replace(MODEL, model=64, heads=2, hidden=96)
    results = []
    for device, filled in (("cpu", False), ("cuda", True), ("cuda", False)):
        made = translator(wide)
        model = made.model.double() if device == "cpu" else made.model.to(device)
        pack = replace(corpus(made), device=device).at(0, 0)[0][0]
        texts = words_of(corpus(made), corpus(made).at(0, 0)[0][0])
        padded = collate([(source[:-1], wanted[:-1]) for source, _, wanted in texts]).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            summed, _ = loss(model, (pack if filled else padded, 1))
        results.append([grad.double().cpu() for grad in torch.autograd.grad(summed, list(model.parameters()))])
    exact, packed_way, padded_way = (torch.cat([part.flatten() for part in parts]) for parts in results)
    assert (packed_way - exact).norm() <= 2 * (padded_way - exact).norm()


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_a_broken_step_is_skipped_on_a_gpu_without_asking(tmp_path):
    made = translator(precision="bfloat16")
    job = made.job(PAIRS, PAIRS[:11], "cuda")
    before = [weight.clone() for weight in job.model.parameters()]

    def broken(model, batch):
        summed, count = job.loss(model, batch)
        return summed * torch.nan, count

    reports = list(train(job.model, job.data, broken, TrainConfig(ConstantSchedule(0.1), 7), tmp_path))
    assert [report.skips for report in reports] == list(range(1, 8))
    assert all(torch.equal(one, other) for one, other in zip(before, job.model.parameters(), strict=True))


def test_the_arithmetic_of_a_step_on_paper():
    """One layer of width 2 and 3, five words, one pair of 3 and 4 tokens, each weight met six times by its tokens.

    Source: four squares of 4, twice 6, and the decoder's keys and values, 8: 36 · 3. Target: six squares, twice 6.
    Words: 4 · 2 · 5. Looks, 2 for each of two widths: 2 · (2 · 9 + 16 + 2 · 12).
    """
    small = ModelConfig(kind="transformer", layers=1, model=2, heads=1, hidden=3)
    made = build_model(small, 7, 5)
    assert isinstance(made, Transformer)
    assert flops(made, [(3, 4)]) == 6 * (36 * 3 + 36 * 4 + 40 + 2 * 58)
