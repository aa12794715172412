"""Data parallelism on a CPU: the same gradients, deterministic, and models that cannot be split."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.data import SentencePair
from regard.data.batching import Batch
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.training import cpu_parallel
from regard.training.config import TrainingJob, TrainSettings, make_train_config
from regard.training.cpu_parallel import Splittable, ThreadedBackward, make_pool
from regard.training.loop import make_backward
from regard.training.packed_corpus import PackedPairs
from regard.training.run import TrainingRun
from regard.training.step import BackwardFunction
from regard.world import World, translation_pairs
from tests.narrowing import assert_is_instance, not_none

SENTENCES = [SentencePair(*each) for each in translation_pairs(World(max_length=9), "fr", 53)]
MODEL = ModelConfig(kind="transformer", layers=2, model=12, heads=3, hidden=14, dropout=0.2, tie="all")
TRAIN = TrainSettings(steps=5, batch_size=200, warmup_steps=2, learning_rate=3e-3, validate_every=3, checkpoint_every=3)
KINDS = {
    "transformer": MODEL,
    "bahdanau": ModelConfig(kind="bahdanau", layers=1, model=12, hidden=10, dropout=0.2),
    "gru": ModelConfig(kind="gru", layers=1, model=12, hidden=10, dropout=0.2),
}


@pytest.fixture(autouse=True, params=[2, 3])
def cores(request, monkeypatch):
    """So many, and batches that are worth it."""
    monkeypatch.setattr(cpu_parallel, "MIN_TOKENS", 16)
    threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(threads)


def job(model: ModelConfig = MODEL, **train: Any) -> TrainingJob:
    settings = TranslationSettings(
        text=PairTokenizerSettings(kind="words", joint=model.tie == "all"), model=model, train=replace(TRAIN, **train)
    )
    return Translator.from_examples(SENTENCES, settings).job(SENTENCES, SENTENCES[:7])


def backward_of(made: TrainingJob) -> ThreadedBackward:
    backward = make_backward(made.model, made.loss, make_train_config(made.train, made.width))
    return assert_is_instance(backward, ThreadedBackward)


def gradients(made: TrainingJob, backward: BackwardFunction, steps: int = 2) -> tuple[float, dict[str, Tensor | None]]:
    """Of micro-batches that are added up."""
    made.model.train()
    torch.manual_seed(7)
    total = sum(
        float(backward(batch, torch.tensor(1.0))[0]) for index in range(steps) for batch in made.data.at(0, index)
    )
    return total, {name: weight.grad for name, weight in made.model.named_parameters()}


def weights(made: TrainingJob, folder: Path) -> list[Tensor]:
    list(TrainingRun(made, folder).steps())
    return [weight.detach() for weight in made.model.parameters()]


@pytest.mark.parametrize("packed", [False, True])
def test_parts_have_the_gradients_of_the_whole(packed):
    still = replace(MODEL, dropout=0.0)
    one, other = job(still, packed=packed), job(still, packed=packed)
    found = backward_of(one)
    (cost, parted), (wanted, whole) = gradients(one, found), gradients(other, backward_of(other).fallback)
    assert found.pool is not None
    assert cost == pytest.approx(wanted, rel=1e-6)
    assert_close(parted, whole, rtol=1e-4, atol=1e-5)
    assert all(not_none(weight.grad).stride() == weight.stride() for weight in one.model.parameters())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("transformer", "float32"),
        ("transformer", "bfloat16"),
        ("bahdanau", "float32"),
        ("gru", "bfloat16"),
        pytest.param("bahdanau", "bfloat16", marks=pytest.mark.slow),
        pytest.param("gru", "float32", marks=pytest.mark.slow),
    ],
)
def test_the_same_bits_every_time(kind, precision):
    found = []
    for _ in range(3):
        made = job(KINDS[kind], precision=precision)
        backward = backward_of(made)
        found.append(gradients(made, backward, steps=3))
    assert_close(found[1:], found[:1] * 2, rtol=0.0, atol=0.0)


@pytest.mark.sampled(2)
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path):
    wanted = weights(job(), tmp_path / "straight")
    list(islice(TrainingRun(job(), tmp_path / "broken").steps(), 2))
    found = weights(job(), tmp_path / "broken")
    assert all(map(torch.equal, found, wanted))


def test_every_part_has_noise_of_its_own():
    made = job()
    backward = backward_of(made)
    ((batch, tokens),) = made.data.at(0, 0)
    seen = []
    made.model.get_submodule("dropout").register_forward_hook(
        lambda _, given, out: seen.append((out == 0).double().mean().item())
    )
    torch.manual_seed(1)
    backward((batch, tokens), torch.tensor(1.0))
    assert len(set(seen)) == len(seen) >= 4  # source and target of each


@pytest.mark.sampled(2)
def test_who_draws_in_the_open_is_left_whole(monkeypatch):
    """Attention's dropout is torch's own, of one generator."""
    noisy = replace(MODEL, attention_dropout=0.3)
    one, other = job(noisy), job(noisy)
    backward = backward_of(one)
    found, wanted = gradients(one, backward), gradients(other, backward_of(other).fallback)
    assert_close(found, wanted, rtol=0.0, atol=0.0)
    assert backward.pool is None


def test_no_part_is_empty():
    batch = assert_is_instance(job().data.at(0, 0)[0][0], Batch)
    assert isinstance(batch, Splittable)
    parts = batch.split_rows(len(batch) + 5)
    assert [len(part) for part in parts] == [1] * len(batch)
    assert sum(part.tokens for part in parts) == batch.tokens
    pack, tokens = job(packed=True).data.at(0, 0)[0]
    pack = assert_is_instance(pack, PackedPairs)
    assert isinstance(pack, Splittable)
    parts = pack.split_rows(99)
    assert [len(part.labels) for part in parts] == [1] * len(pack.labels)
    assert sum(part.tokens for part in parts) == tokens


def test_small_batches_and_large_models_are_left_whole(monkeypatch):
    made, whole = job(), (torch.tensor(0.0), 1)
    for name, value in (("MIN_TOKENS", 10**6), ("MAX_GRADIENT_BYTES", 1)):
        monkeypatch.setattr(cpu_parallel, name, value)
        backward = ThreadedBackward(made.model, made.loss, lambda batch, scale: whole, torch.enable_grad)
        assert backward(made.data.at(0, 0)[0], torch.tensor(1.0)) is whole


def test_a_mistake_in_a_part_is_heard():
    made = job()

    def broken(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        raise ValueError("no such word")

    backward = ThreadedBackward(made.model, broken, backward_of(made).fallback, torch.enable_grad)
    with pytest.raises(ValueError, match="no such word"):
        backward(made.data.at(0, 0)[0], torch.tensor(1.0))


def test_workers_have_threads_of_their_own(cores):
    made = make_pool(cores, 1)
    assert set(made.map(lambda _: torch.get_num_threads(), range(8))) == {1}
    assert torch.get_num_threads() == cores


def test_unused_weights_get_no_gradient():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

    def loss(model: nn.Module, batch: tuple[Splittable, int]) -> tuple[Tensor, int]:
        return model.get_parameter("used") * batch[0].num_positions, 1

    def fallback(batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        raise AssertionError("the batch can be split")

    model = Half()
    backward = ThreadedBackward(model, loss, fallback, torch.enable_grad)
    (given,) = job().data.at(0, 0)
    backward(given, torch.tensor(2.0))
    assert model.used.grad == 2.0 * given[0].num_positions
    assert model.idle.grad is None


def test_around_a_step_the_caller_works_alone_but_not_on_a_whole(cores):
    made, seen = job(), []

    def whole(batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        seen.append(torch.get_num_threads())
        return torch.tensor(0.0), 1

    backward = ThreadedBackward(made.model, made.loss, whole, torch.enable_grad)
    with backward.limited_threads():
        assert torch.get_num_threads() == 1
        backward(("nothing to deal", 1), torch.tensor(1.0))
        assert torch.get_num_threads() == 1
    assert (seen, torch.get_num_threads()) == ([cores], cores)
