"""Training step: clipping, seeds and loss scaling, worked by hand."""

from math import nan

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.models.seq2seq import count_parameters
from regard.training import ConstantSchedule, TrainConfig, train
from regard.training.checkpoint import Progress, record_validation
from regard.training.loop import make_optimiser
from regard.training.step import LossScaleState, take_step
from tests.training.toy import Data, fresh, loss, plan


@pytest.mark.parametrize(("clip", "left"), [(2.5, 0.5), (10.0, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_a_gradient_is_cut_to_the_clip_on_paper(clip, left, scale):
    """Batches of 2 and of 3 tokens pull by 6 and 9 at one weight, by 8 and 12 at the other: 3 and 4 a token, norm 5.

    The first mean that Adam remembers is a tenth of what is left of them.
    """
    model = nn.ParameterList([torch.zeros(1), torch.zeros(1, 1)])
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), fused=True)

    def backward(tokens, scale):
        summed = 3.0 * tokens * model[0].sum() + 4.0 * tokens * model[1].sum() + 7.0 * tokens
        (summed * scale).backward()
        return summed.detach(), tokens

    done = take_step(optimiser, [2, 3], backward, torch.tensor(scale), clip=clip)
    assert (done.loss.item(), done.norm.item(), done.tokens, done.skipped.item()) == (7.0, 5.0, 5, 0.0)
    remembered = [optimiser.state[weight]["exp_avg"].item() for weight in model]
    assert_close(remembered, [0.3 * left, 0.4 * left])


@pytest.mark.parametrize(("summed", "pull"), [(1.0, torch.inf), (nan, 1.0)])
def test_a_loss_or_a_gradient_that_is_no_number_moves_nothing(summed, pull):
    weight = nn.Parameter(torch.ones(1))
    optimiser = torch.optim.AdamW([weight], fused=True)

    def backward(tokens, scale):
        weight.grad = torch.tensor([pull])
        return torch.tensor(summed), tokens

    assert take_step(optimiser, [1], backward, torch.tensor(1.0), clip=1.0).skipped == 1
    assert weight.item() == 1.0


def test_matrices_decay_and_vectors_do_not():
    """Where nothing pulls, a rate of 0.5 and a decay of 0.1 take a twentieth of a weight."""
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    optimiser = make_optimiser(model, TrainConfig(ConstantSchedule(0.5), 1, weight_decay=0.1), captured=False)
    model(torch.zeros(1, 1)).mul(0.0).sum().backward()
    optimiser.step()
    assert_close([model.weight.item(), model.bias.item()], [0.95, 1.0])


def test_every_step_and_every_seed_draws_noise_of_its_own(tmp_path):
    def drawn(seed: int) -> list[float]:
        found = []

        def noisy(model, x):
            found.append(torch.rand(()).item())
            return loss(model, x)

        list(train(fresh(), Data(), noisy, plan(3, seed=seed), tmp_path / str(len(list(tmp_path.iterdir())))))
        return found

    once = drawn(0)
    assert once == drawn(0)
    assert len({*once, *drawn(1)}) == 12  # two batches a step, three steps, two seeds


def test_a_run_step_by_step(tmp_path):
    """Three steps an epoch; each weight pulls by 1 a token at every step, so the norm is always that of the first."""
    visited, modes, checked = [], set(), set()

    class Asked(Data):
        def at(self, epoch, index):
            visited.append((epoch, index))
            return super().at(epoch, index)

    def pulling(model, x):
        modes.add(model.training)
        return len(x) * torch.stack([weight.sum() for weight in model.parameters()]).sum(), len(x)

    def validate(model):
        checked.add(model.training)
        return {"loss": 1.0}

    model, plan = fresh(), TrainConfig(ConstantSchedule(0.4, warmup=4), 7, validate_every=2, checkpoint_every=9)
    reports = list(train(model, Asked(), pulling, plan, tmp_path, validate))
    assert visited == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert (modes, checked) == ({True}, {False})
    assert [report.step for report in reports if report.validation] == [2, 4, 6, 7]
    assert_close([report.rate for report in reports], [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])
    assert_close([report.norm for report in reports], [count_parameters(model) ** 0.5] * 7)


@pytest.mark.parametrize(
    ("by", "found", "best", "worse"),
    [
        ("loss", [3.0, 2.0, 2.0, nan, 2.5, 1.0, 1.0], [1, 2, 2, 2, 2, 6, 6], [0, 0, 1, 2, 3, 0, 1]),
        ("accuracy", [0.2, 0.5, 0.5, 0.1, 0.6], [1, 2, 2, 2, 5], [0, 0, 1, 2, 0]),
    ],
)
def test_a_table_of_validations(by, found, best, worse):
    """Of equals the first stays the best, and a validation that is no number is none."""
    progress, seen = Progress(), []
    for step, figure in enumerate(found, 1):
        progress = record_validation(Progress(**{**vars(progress), "step": step}), {by: figure}, by)
        seen.append((progress.best_step, progress.worse))
    assert seen == list(zip(best, worse, strict=True))
    assert [row["step"] for row in progress.history] == list(range(1, len(found) + 1))


def test_the_history_of_a_loss_scale():
    """It doubles every two thousand steps, up to 2²⁴, and an overflow halves it, on such a step as well."""
    overflows = {2002, 2003, 8000}
    health, history = LossScaleState.of(0, 2.0**22, torch.device("cpu")), []
    for step in (1999, 2000, 2001, 2002, 2003, 2004, 4000, 6000, 8000, 10_000, 12_000):
        health = health.after(torch.tensor(float(step in overflows)), step, scaled=True)
        history.append((health.scale.log2().item(), health.skips.item()))
    scales, skips = zip(*history, strict=True)
    assert scales == (22, 23, 23, 22, 21, 21, 22, 23, 22, 23, 24)
    assert skips == (0, 0, 0, 1, 2, 0, 0, 0, 1, 0, 0)
    assert health.after(torch.tensor(0.0), 14_000, scaled=True).scale.log2() == 24
    assert health.after(torch.tensor(1.0), 14_000, scaled=False).scale.log2() == 24
