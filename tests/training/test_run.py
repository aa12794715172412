"""Training runs: the folder, the final weights, and settings that are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from regard.data import SentencePair
from regard.data.batching import TokenBatchSampler
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.training.checkpoint import resolve_weights
from regard.training.config import TrainSettings, make_schedule, make_train_config
from regard.training.corpus import Corpus
from regard.training.run import TrainingRun
from regard.training.step import ConstantSchedule, CosineSchedule, NoamSchedule
from regard.world import World, translation_pairs

TINY = ModelConfig(kind="transformer", layers=1, model=12, heads=2, hidden=20, dropout=0.1)
KNOWN, HELD_OUT = (
    [SentencePair(*pair) for pair in translation_pairs(World(max_length=6), "fr", 31, split)]
    for split in ("train", "valid")
)


def settings(**train) -> TranslationSettings:
    few = {
        "batch_size": 110,
        "steps": 7,
        "validate_every": 3,
        "checkpoint_every": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
    }
    return TranslationSettings(
        text=PairTokenizerSettings(kind="words", joint=False), model=TINY, train=TrainSettings(**{**few, **train})
    )


def fit(
    folder: Path, known: list[SentencePair] = KNOWN, held_out: list[SentencePair] = HELD_OUT, **train
) -> TrainingRun:
    return TrainingRun(Translator.from_examples(known, settings(**train)).job(known, held_out), folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


# --- the folder ---


def test_a_finished_run_is_a_translator(tmp_path):
    run = fit(tmp_path)
    reports = list(run.steps())
    assert [report.step for report in reports] == [1, 2, 3, 4, 5, 6, 7]
    assert [report.step for report in reports if report.validation] == [3, 6, 7]
    assert run.last_step == 7
    again = Translator.load(tmp_path)
    assert again.settings == settings()
    for one, other in zip(again.model.parameters(), run.job.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not run.job.model.training


def test_a_run_is_described_before_its_first_step(tmp_path):
    steps = fit(tmp_path).steps()
    next(steps)
    steps.close()
    assert Translator.from_description(tmp_path).settings == settings()


def test_leaving_saves_and_going_on_ends_with_the_same_bits(tmp_path):
    list(fit(tmp_path / "straight").steps())
    for report in (steps := fit(tmp_path / "left").steps()):
        if report.step == 5:
            steps.close()
    assert fit(tmp_path / "left").last_step == 5
    assert [report.step for report in fit(tmp_path / "left").steps()] == [6, 7]
    one, other = weights(tmp_path / "straight"), weights(tmp_path / "left")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_folder_has_one_run_at_a_time_from_its_description_on(tmp_path):
    first = fit(tmp_path)
    steps = first.steps()
    next(steps)
    other = fit(tmp_path, steps=11)
    with pytest.raises(ValueError, match=f"this process itself is training in {tmp_path} already"):
        next(other.steps())
    assert Translator.from_description(tmp_path).settings == settings()
    steps.close()
    next(fit(tmp_path).steps())


# --- the weights that are kept ---


@pytest.mark.parametrize("keep", [2, 5])
def test_the_mean_of_the_newest_checkpoints(tmp_path, keep):
    list(fit(tmp_path, average_checkpoints=3, keep_checkpoints=keep).steps())
    newest = [tmp_path / f"checkpoints/0000000{step}" for step in (4, 6, 7)]
    for name, mean in weights(tmp_path).items():
        assert_close(mean, torch.stack([weights(path)[name].double() for path in newest]).mean(0).float())


def test_the_best_that_validation_found(tmp_path):
    run = fit(tmp_path, learning_rate=2.0, schedule="constant", steps=30, patience=3)
    reports = [report for report in run.steps() if report.validation]
    losses = {report.step: (report.validation or {})["loss"] for report in reports}
    best = min(losses, key=lambda step: losses[step])
    assert best < max(losses) < 30  # it got worse, and stopped early
    for name, tensor in weights(tmp_path).items():
        assert_close(tensor, weights(tmp_path / f"checkpoints/{best:08d}")[name], rtol=0, atol=0)
    assert run.job.validate(Translator.load(tmp_path).model)["loss"] == pytest.approx(losses[best])


# --- what is left out ---


def test_pairs_that_are_too_long_are_left_out_and_counted_on_both_sides(tmp_path):
    long = SentencePair("the cat " * 20, "le chat " * 20)
    run = fit(tmp_path, [*KNOWN, long, long], [long, *HELD_OUT], max_length=19)
    assert run.job.left_out == 3
    same = Translator.from_examples([*KNOWN, long, long], settings(max_length=19)).job(KNOWN, HELD_OUT)
    assert run.job.validate(run.job.model.eval()) == same.validate(run.job.model)
    assert isinstance(run.job.data, Corpus)
    assert isinstance(run.job.data.batches, TokenBatchSampler)
    rows = {row for batch in run.job.data.batches.epoch(0) for row in batch}
    assert rows == set(range(len(KNOWN)))
    assert fit(tmp_path).job.left_out == 0


def test_a_pair_that_no_batch_can_hold_is_left_out_too(tmp_path):
    assert fit(tmp_path, [*KNOWN, SentencePair("the cat " * 60, "le chat")]).job.left_out == 1


def test_nothing_but_long_pairs_cannot_be_trained_on(tmp_path):
    long = [SentencePair("the cat " * 20, "le chat " * 20)]
    with pytest.raises(ValueError, match=r"all 1 examples are longer than train\.max_length = 19; raise it"):
        fit(tmp_path, long, max_length=19)
    with pytest.raises(ValueError, match=r"of 1 held-out examples none is within train\.max_length = 19; raise it"):
        fit(tmp_path, KNOWN, long, max_length=19)


# --- the plan ---


def test_the_train_config_is_that_of_the_settings():
    config = settings(
        max_grad_norm=0.5, weight_decay=0.1, precision="bfloat16", patience=4, average_checkpoints=6, seed=3
    )
    plan = make_train_config(config.train, config.model.model)
    assert (plan.clip, plan.weight_decay, plan.precision, plan.patience, plan.seed) == (0.5, 0.1, "bfloat16", 4, 3)
    assert (plan.validate_every, plan.checkpoint_every, plan.steps) == (3, 2, 7)
    assert plan.keep == 6
    assert make_train_config(settings(average_checkpoints=1).train, 1).keep == 2


def test_a_packed_step_of_one_batch_is_captured_as_a_whole():
    """Only there have all batches one shape; several a step are captured one by one."""
    fast = {"packed": True, "cuda_graph": True, "precision": "bf16-pure"}
    plan = make_train_config(settings(**fast).train, 1)
    assert (plan.capture_step, plan.cuda_graph, plan.precision) == (True, True, "bf16-pure")
    assert not make_train_config(settings(**fast, gradient_accumulation=2).train, 1).capture_step
    assert not make_train_config(settings(packed=True).train, 1).capture_step
    assert not make_train_config(replace(settings(**fast).train, packed=False, precision="float32"), 1).capture_step
    with pytest.raises(ValueError, match="'bf16-pure' is made for packed batches; say packed = true as well"):
        settings(precision="bf16-pure")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("noam", NoamSchedule(12, 2, 0.01)),
        ("cosine", CosineSchedule(0.01, 7, 2)),
        ("constant", ConstantSchedule(0.01, 2)),
    ],
)
def test_schedules_by_name(name, wanted):
    assert make_schedule(settings(schedule=name).train, 12) == wanted


def test_a_warm_up_longer_than_the_run_is_cut():
    assert make_schedule(settings(warmup_steps=100).train, 12) == CosineSchedule(0.01, 7, 6)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 0, "steps = 0 should be at least 1"),
        ("batch_size", 0, "batch_size = 0 should be at least 1"),
        ("learning_rate", 0.0, "learning_rate = 0.0 should be at least 1e-12"),
        ("learning_rate", float("nan"), "learning_rate = nan should be at least 1e-12"),
        ("learning_rate", float("inf"), "learning_rate = inf should be at least 1e-12"),
        ("label_smoothing", 1.0, "label_smoothing = 1.0 should be at least 0 and below 1"),
        ("warmup_steps", -1, "warmup_steps = -1 should be at least 0"),
        ("max_grad_norm", -1.0, "max_grad_norm = -1.0 should be at least 0"),
        ("precision", "int8", "precision = 'int8' is unknown; choose from float32, bfloat16, float16, bf16-pure"),
    ],
)
def test_numbers_that_make_no_plan(name, value, message):
    config = settings()
    with pytest.raises(ValueError, match=message):
        make_train_config(replace(config.train, **{name: value}), 1)


# --- the metric by which the best checkpoint is chosen ---


def test_bleu_chooses_the_checkpoint_and_does_not_disturb_the_training(tmp_path):
    list(fit(tmp_path / "loss").steps())
    reports = list(fit(tmp_path / "bleu", best_metric="bleu").steps())
    found = {report.step: (report.validation or {}) for report in reports if report.validation}
    assert [sorted(figures) for figures in found.values()] == [["bleu", "loss"]] * 3
    assert all(0 <= figures["bleu"] <= 100 for figures in found.values())
    best = max(found, key=lambda step: found[step]["bleu"])
    assert resolve_weights(tmp_path / "bleu", "best").file.parent.name == f"{best:08d}"
    one, other = (weights(tmp_path / name / "checkpoints/00000007") for name in ("loss", "bleu"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_metric_that_validation_does_not_find_is_refused_before_the_first_step(tmp_path):
    with pytest.raises(ValueError, match=r"train\.best_metric = 'accuracy': validation finds loss; choose that"):
        fit(tmp_path, best_metric="accuracy")
    with pytest.raises(ValueError, match="best_metric"):
        settings(best_metric="meteor")
