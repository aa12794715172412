"""Packed batches: nothing is lost, nothing else is learnt, every batch has one size, and resuming is exact."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from regard.layers.hashed_dropout import by_hash
from regard.layers.packed import NONE
from regard.layers.packed_looks import Dense, Tiled, fastest
from regard.models.building import build_model
from regard.models.config import ModelConfig
from regard.models.packed import objections
from regard.models.packed_layers import Layers
from regard.models.transformer import Transformer
from regard.models.work import flops
from regard.tasks.packed import Pack, PackedCorpus, epoch_of, packed
from regard.tasks.settings import Settings, TextSettings, TrainSettings
from regard.tasks.translate import Consistent, Smoothed, Translator, layers_of
from regard.text import Pair, collate
from regard.text.vocabulary import BOS, EOS, PAD
from regard.train import Constant, Plan, train
from regard.train.fit import Fit
from regard.world import World, pairs

MODEL = ModelConfig(kind="transformer", layers=2, model=12, heads=3, hidden=14, dropout=0.0, tie="target")
PAIRS = [Pair(*pair) for pair in pairs(World(longest=9), "fr", 131)]
GPU = torch.cuda.is_available()


def settings(model: ModelConfig = MODEL, **train) -> Settings:
    few = {"tokens": 211, "longest": 30, "packed": True, "steps": 7, "validate_every": 3, "checkpoint_every": 2}
    few |= {"rate": 1e-2, "warmup": 2}
    return Settings(text=TextSettings(kind="words", joint=False), model=model, train=TrainSettings(**{**few, **train}))


def translator(model: ModelConfig = MODEL, **train) -> Translator:
    return Translator.fresh(PAIRS, settings(model, **train))


def corpus(made: Translator) -> PackedCorpus:
    return PackedCorpus.of(made.examples(PAIRS), made.settings.train)


# --- the batches ---


def words_of(found: PackedCorpus, batch: Pack) -> list[tuple[list[int], list[int], list[int]]]:
    """The words of each text: source, target and wanted."""
    texts = []
    for n in range(len(batch.wanted)):
        for number in range(1, int(batch.source.text[n].max()) + 1):
            ours, theirs = batch.source.text[n] == number, batch.target.text[n] == number
            sides = (batch.source.words[n, ours], batch.target.words[n, theirs], batch.wanted[n, theirs])
            assert batch.source.at[n, ours].tolist() == list(range(int(ours.sum())))
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
        assert tokens == int((batch.wanted != PAD).sum()) == int((batch.target.text != NONE).sum())


def test_rows_are_nearly_full_and_batches_about_as_large():
    found = corpus(translator(tokens=400))
    assert found.padding < 0.15
    sizes = [len(rows) for rows in epoch_of(found, 0)]
    assert max(sizes) <= found.most == 400 // 64
    assert max(sizes) - min(sizes) <= 1


def test_first_fit_on_paper():
    """Rows of 10|10: 7|3 leaves 3|7, 6|6 does not fit and leaves 4|4, 3|4 fits the first, 2|2 not any more."""
    sizes = np.array([(2, 2), (7, 3), (6, 6), (3, 4)])
    row, order = packed(sizes, 10, seed=0)
    assert order.tolist() == [1, 2, 3, 0]
    assert row.tolist() == [1, 0, 1, 0]


def test_filled_batches_all_have_one_size(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)  # which needs a GPU
    found = replace(corpus(translator()), device="cuda")
    shapes = {
        tuple(tuple(x.shape) for x in (batch.source.words, batch.target.at, batch.wanted))
        for epoch in (0, 1)
        for rows in epoch_of(found, epoch)
        if (batch := found.batch(rows))
    }
    assert shapes == {((found.most, 64),) * 3}


def test_what_does_not_fit_is_left_out_or_refused():
    made = translator()
    assert PackedCorpus.of(made.examples(PAIRS), replace(made.settings.train, longest=6)).left_out > 0
    with pytest.raises(ValueError, match=r"all 131 examples are longer than train\.longest = 1"):
        PackedCorpus.of(made.examples(PAIRS), replace(made.settings.train, longest=1))
    with pytest.raises(ValueError, match=r"train\.tokens = 50 has no room for a row of 64 words; raise it"):
        PackedCorpus.of(made.examples(PAIRS), replace(made.settings.train, tokens=50))


# --- the loss ---


TILED, FUSED, OURS = Layers(looking=Tiled()), Layers.fused(), Layers.by_kernels(Tiled())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("place", ["", 'position = "Rotary()"'])
@pytest.mark.parametrize(
    "loss",
    [Smoothed(0.1), Smoothed(0.1, TILED), Smoothed(0.1, FUSED), Smoothed(0.1, OURS), Consistent(0.1, 1.5, OURS)],
    ids=["smoothed", "by tiles", "fused", "by kernels", "consistent"],
)
def test_packed_and_padded_have_one_loss_and_one_gradient(loss, norm, place):
    made = translator(replace(MODEL, norm=norm, encoder=place, decoder=place, groups=1 if place else None))
    model, found = made.model.double(), corpus(made)
    pack = found.at(0, 0)[0][0]
    texts = words_of(found, pack)
    assert len(texts) > 3
    padded = collate([(source[:-1], wanted[:-1]) for source, _, wanted in texts])
    results = []
    for batch in (padded, pack):
        summed, _ = loss(model, (batch, 1))
        results.append([summed, *torch.autograd.grad(summed, list(model.parameters()))])
    assert_close(*results)


def test_one_table_for_both_sides_is_read_once_and_learns_from_both():
    joint = replace(settings(replace(MODEL, tie="all")), text=TextSettings(kind="words", joint=True))
    made = Translator.fresh(PAIRS, joint)
    model, found = made.model.double(), corpus(made)
    pack = found.at(0, 0)[0][0]
    padded = collate([(source[:-1], wanted[:-1]) for source, _, wanted in words_of(found, pack)])
    results = []
    for batch in (padded, pack):
        summed, _ = Smoothed(0.1)(model, (batch, 1))
        results.append([summed, *torch.autograd.grad(summed, list(model.parameters()))])
    assert_close(*results)


def test_dropout_by_a_hash_is_another_noise_of_the_same_size():
    """Without dropout the loss is the same; with it, another one, and the mean of many is that of torch's."""
    made = translator(replace(MODEL, dropout=0.2))
    batch = corpus(made).at(0, 0)[0]
    torch_way, hash_way = Smoothed(0.1), Smoothed(0.1, Layers(seeds=by_hash))
    with torch.no_grad():
        many = torch.tensor([[way(made.model, batch)[0] for way in (torch_way, hash_way)] for _ in range(40)])
        made.model.eval()
        assert_close(torch_way(made.model, batch), hash_way(made.model, batch))
    (one, other), spread = many.mean(0), many.std(0).norm() / 40**0.5
    assert many[:, 1].unique().numel() == 40
    assert abs(one - other) < 5 * spread


def test_padding_at_the_end_changes_nothing(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    made = translator()
    model, found = made.model.double(), corpus(made)
    rows = epoch_of(found, 0)[0][:2]
    filled = replace(found, device="cuda").batch(rows)
    assert len(filled.wanted) == found.most > len(rows)
    results = []
    for batch in (found.batch(rows), filled):
        summed, _ = Consistent(0.1, 1.5)(model, (batch, 1))
        results.append([summed, *torch.autograd.grad(summed, list(model.parameters()))])
    assert_close(*results)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "way", [Layers(), TILED, replace(FUSED, seeds=by_hash), OURS], ids=["dense", "tiled", "hashed", "ours"]
)
def test_each_layer_is_one_graph_for_all_layers_of_its_stack(way):
    """Traced without its kernels, which take a minute to make on a CPU."""
    from torch._dynamo.testing import CompileCounterWithBackend

    made, counted = translator(replace(MODEL, layers=3)), CompileCounterWithBackend("aot_eager")
    whole = partial(torch.compile, backend=counted, dynamic=False, fullgraph=True)
    layers = replace(way, encode=whole(way.encode), decode=whole(way.decode))
    model, batch = made.model.double(), corpus(made).at(0, 0)[0]
    plain, compiled = (Smoothed(0.1, way)(model, batch)[0] for way in (Layers(), layers))
    assert_close(plain, compiled)
    assert counted.frame_count == 2


def test_models_that_cannot_be_packed_say_why():
    assert objections(translator().model) == []
    gru = translator(ModelConfig(kind="gru", model=12, hidden=10), packed=False)
    assert "reads word after word" in objections(gru.model)[0]
    biased = translator(replace(MODEL, encoder='position = "Alibi(heads=3)"'))
    assert objections(biased.model) == ["encoder: Alibi(heads=3) adds something for each pair of words"]
    with pytest.raises(ValueError, match=r"train\.packed = true cannot be had: encoder: Alibi"):
        biased.job(PAIRS, PAIRS[:7])


def test_settings_that_need_one_another():
    with pytest.raises(ValueError, match=r"train\.capture = true wants batches of one shape; say packed = true"):
        Settings(train=TrainSettings(capture=True))
    with pytest.raises(ValueError, match=r"train\.compile = true: .* say exact = false as well"):
        TrainSettings(packed=True, compile=True)
    assert TrainSettings(packed=True, compile=True, exact=False).compile


def test_a_gpu_runs_our_kernels_and_a_cpu_torchs():
    made = translator()
    found = corpus(made)
    there = replace(found, device="cuda")
    assert layers_of(made.model, found, "narrow") == Layers()
    assert layers_of(made.model, there, "narrow") == layers_of(made.model, there, "bfloat16") == OURS
    assert layers_of(made.model, there, "float32") == Layers.by_kernels(Dense())
    wide = translator(replace(MODEL, model=260, heads=2))  # of a head of 130 no tile fits
    assert layers_of(wide.model, there, "bfloat16") == Layers.by_kernels(Dense())
    assert fastest(128, 64, "bfloat16") == Tiled()
    assert fastest(129, 64, "bfloat16") == fastest(128, 65, "bfloat16") == Dense()


# --- runs ---


@pytest.mark.parametrize("precision", ["float32", "narrow"])
def test_leaving_and_going_on_ends_with_the_same_bits(tmp_path, precision):
    shaky = replace(MODEL, dropout=0.2, attention_dropout=0.1)

    def fit(name: str) -> Fit:
        made = translator(shaky, consistency=1.5, capture=True, precision=precision)
        return Fit(made.job(PAIRS, PAIRS[:11]), tmp_path / name)

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
    [(0.0, "bfloat16", 2), (1.5, "bfloat16", 2), (1.5, "bfloat16", 1), (0.0, "narrow", 1), (0.0, "narrow", 2)],
)
def test_a_recorded_step_has_the_bits_of_one_told_kernel_by_kernel(tmp_path, consistency, precision, accumulate):
    """By our kernels; with one batch a step the optimiser's part is recorded, too, and if narrow, is our own."""
    wide = replace(MODEL, model=64, heads=2, hidden=96, dropout=0.2, attention_dropout=0.1)
    # a power of 2, for a recorded rate is a float32
    how = {"consistency": consistency, "precision": precision, "accumulate": accumulate, "steps": 9}
    how |= {"schedule": "constant", "rate": 2.0**-7, "warmup": 0}
    weights = []
    for name in ("told", "recorded", "again"):
        made = translator(wide, capture=name != "told", **how)
        fit = Fit(made.job(PAIRS, PAIRS[:11], "cuda"), tmp_path / name)
        for report in (steps := fit.steps()):
            if name == "again" and report.step == 4:
                steps.close()
        if name == "again":
            again = translator(wide, capture=True, **how)
            list(Fit(again.job(PAIRS, PAIRS[:11], "cuda"), tmp_path / name).steps())
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    if precision != "narrow" or accumulate > 1:
        assert weights[0] == weights[1]
    assert weights[1] == weights[2]


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize(
    "loss",
    [Smoothed(0.1), Smoothed(0.1, TILED), Smoothed(0.1, FUSED), Smoothed(0.1, OURS), Consistent(0.1, 1.5, OURS)],
    ids=["smoothed", "by tiles", "fused", "by kernels", "consistent"],
)
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

    reports = list(train(job.model, job.data, broken, Plan(Constant(0.1), 7), tmp_path))
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
