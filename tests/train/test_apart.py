"""A batch dealt out to cores: the same gradients, the same bits every time, and who draws in the open is left whole."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.models.config import ModelConfig
from regard.tasks.settings import Settings, TextSettings, TrainSettings
from regard.tasks.translate import Translator
from regard.text import Pair
from regard.train import apart
from regard.train.apart import Apart, pool
from regard.train.fit import Fit
from regard.train.loop import backward_of
from regard.world import World, pairs

SENTENCES = [Pair(*each) for each in pairs(World(longest=9), "fr", 53)]
MODEL = ModelConfig(kind="transformer", layers=2, model=12, heads=3, hidden=14, dropout=0.2, tie="all")
TRAIN = TrainSettings(steps=5, tokens=200, warmup=2, rate=3e-3, smoothing=0.1, validate_every=3, checkpoint_every=3)
KINDS = {
    "transformer": MODEL,
    "bahdanau": ModelConfig(kind="bahdanau", layers=1, model=12, hidden=10, dropout=0.2),
    "gru": ModelConfig(kind="gru", layers=1, model=12, hidden=10, dropout=0.2),
}


@pytest.fixture(autouse=True, params=[2, 3])
def cores(request, monkeypatch):
    """So many, and batches that are worth it."""
    monkeypatch.setattr(apart, "LEAST", 16)
    threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(threads)


def job(model: ModelConfig = MODEL, **train):
    settings = Settings(
        text=TextSettings(kind="words", joint=model.tie == "all"), model=model, train=replace(TRAIN, **train)
    )
    return Translator.fresh(SENTENCES, settings).job(SENTENCES, SENTENCES[:7])


def gradients(made, backward, steps: int = 2) -> tuple[float, dict[str, torch.Tensor]]:
    """Of micro-batches that are added up."""
    made.model.train()
    torch.manual_seed(7)
    total = sum(
        float(backward(batch, torch.tensor(1.0))[0]) for index in range(steps) for batch in made.data.at(0, index)
    )
    return total, {name: weight.grad for name, weight in made.model.named_parameters()}


def weights(made, folder) -> list[torch.Tensor]:
    list(Fit(made, folder).steps())
    return [weight.detach() for weight in made.model.parameters()]


@pytest.mark.parametrize("packed", [False, True])
def test_parts_have_the_gradients_of_the_whole(packed):
    still = replace(MODEL, dropout=0.0)
    one, other = job(still, packed=packed), job(still, packed=packed)
    found = backward_of(one.model, one.loss, Fit(one, None).plan)  # type: ignore[arg-type]
    assert isinstance(found, Apart)
    (cost, parted), (wanted, whole) = gradients(one, found), gradients(other, other_way(other))
    assert found.pool is not None
    assert cost == pytest.approx(wanted, rel=1e-6)
    assert_close(parted, whole, rtol=1e-4, atol=1e-5)
    assert all(weight.grad.stride() == weight.stride() for weight in one.model.parameters())


def other_way(made):
    found = backward_of(made.model, made.loss, Fit(made, None).plan)  # type: ignore[arg-type]
    assert isinstance(found, Apart)
    return found.whole


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_every_time(kind, precision):
    found = []
    for _ in range(3):
        made = job(KINDS[kind], precision=precision)
        backward = backward_of(made.model, made.loss, Fit(made, None).plan)  # type: ignore[arg-type]
        found.append(gradients(made, backward, steps=3))
    assert_close(found[1:], found[:1] * 2, rtol=0.0, atol=0.0)


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path):
    wanted = weights(job(), tmp_path / "straight")
    list(islice(Fit(job(), tmp_path / "broken").steps(), 2))
    found = weights(job(), tmp_path / "broken")
    assert all(map(torch.equal, found, wanted))


def test_every_part_has_noise_of_its_own():
    made = job()
    backward = backward_of(made.model, made.loss, Fit(made, None).plan)  # type: ignore[arg-type]
    ((batch, tokens),) = made.data.at(0, 0)
    seen = []
    made.model.dropout.register_forward_hook(lambda _, given, out: seen.append((out == 0).double().mean().item()))
    torch.manual_seed(1)
    backward((batch, tokens), torch.tensor(1.0))
    assert len(set(seen)) == len(seen) >= 4  # source and target of each


def test_who_draws_in_the_open_is_left_whole(monkeypatch):
    """Attention's dropout is torch's own, of one generator."""
    noisy = replace(MODEL, attention_dropout=0.3)
    one, other = job(noisy), job(noisy)
    backward = backward_of(one.model, one.loss, Fit(one, None).plan)  # type: ignore[arg-type]
    found, wanted = gradients(one, backward), gradients(other, other_way(other))
    assert_close(found, wanted, rtol=0.0, atol=0.0)
    assert backward.pool is None  # type: ignore[union-attr]


def test_no_part_is_empty():
    batch, _ = job().data.at(0, 0)[0]
    parts = batch.dealt(len(batch) + 5)
    assert [len(part) for part in parts] == [1] * len(batch)
    assert sum(part.tokens for part in parts) == batch.tokens
    pack, tokens = job(packed=True).data.at(0, 0)[0]
    parts = pack.dealt(99)
    assert [len(part.wanted) for part in parts] == [1] * len(pack.wanted)
    assert sum(part.tokens for part in parts) == tokens


def test_small_batches_and_large_models_are_left_whole(monkeypatch):
    made = job()
    for name, value in (("LEAST", 10**6), ("ROOM", 1)):
        monkeypatch.setattr(apart, name, value)
        backward = Apart(made.model, made.loss, lambda batch, scale: "whole", torch.enable_grad)  # type: ignore
        assert backward(made.data.at(0, 0)[0], torch.tensor(1.0)) == "whole"


def test_a_mistake_in_a_part_is_heard():
    made = job()

    def broken(model, batch):
        raise ValueError("no such word")

    backward = Apart(made.model, broken, other_way(made), torch.enable_grad)
    with pytest.raises(ValueError, match="no such word"):
        backward(made.data.at(0, 0)[0], torch.tensor(1.0))


def test_workers_have_threads_of_their_own(cores):
    made = pool(cores, 1)
    assert set(made.map(lambda _: torch.get_num_threads(), range(8))) == {1}
    assert torch.get_num_threads() == cores


def test_unused_weights_get_no_gradient():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

    model = Half()
    backward = Apart(model, lambda m, batch: (m.used * batch[0].words, 1), lambda *_: None, torch.enable_grad)  # type: ignore
    (given,) = job().data.at(0, 0)
    backward(given, torch.tensor(2.0))
    assert model.used.grad == 2.0 * given[0].words
    assert model.idle.grad is None


def test_around_a_step_the_caller_works_alone_but_not_on_a_whole(cores):
    made, seen = job(), []

    def whole(batch, scale):
        seen.append(torch.get_num_threads())
        return torch.tensor(0.0), 1

    backward = Apart(made.model, made.loss, whole, torch.enable_grad)
    with backward.stepping():
        assert torch.get_num_threads() == 1
        backward(("nothing to deal", 1), torch.tensor(1.0))
        assert torch.get_num_threads() == 1
    assert (seen, torch.get_num_threads()) == ([cores], cores)
