"""Master weights, and captured steps: the same gradients, the same weights."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.models.config import ModelConfig
from regard.ops import dispatch
from regard.tasks.seq2seq import LabelSmoothingLoss
from regard.training import ConstantSchedule, TrainConfig, train
from regard.training.checkpoint import Progress
from regard.training.loop import make_backward, one_step, parameter_groups
from regard.training.numerics import BF16Backward, use_deterministic
from regard.training.step import CapturedStep, LossScaleState
from tests.training.test_packed_corpus import corpus, translator

SHAKY = ModelConfig(kind="transformer", layers=2, model=64, heads=4, hidden=96, dropout=0.0, tie="target", norm="post")
RATE = 2.0**-7  # a float32, as the rate of a captured step is
GPU = torch.cuda.is_available()


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([weight.grad.double().flatten() for weight in model.parameters() if weight.grad is not None])


# --- bfloat16 ---


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("fused", [False, True])
def test_bfloat16_gradients_are_as_good_as_those_of_autocast(norm, fused, monkeypatch):
    """Error at most twice that of autocast in the same precision, both against float64."""
    monkeypatch.setattr(dispatch, "use_fused", lambda x: fused)
    found = {}
    for precision in ("float64", "bfloat16", "bf16-pure"):
        made = translator(replace(SHAKY, norm=norm))
        model, batch = made.model, corpus(made).at(0, 0)[0]
        plan = TrainConfig(ConstantSchedule(0.1), 1, precision="float32" if precision == "float64" else precision)
        model = model.double() if precision == "float64" else model
        summed, tokens = make_backward(model, LabelSmoothingLoss(0.1), plan)(batch, torch.tensor(1.0))
        found[precision] = gradients(model)
        assert tokens == batch[1]
        assert summed.isfinite()
    exact = found["float64"]
    assert (found["bf16-pure"] - exact).norm() <= 2 * (found["bfloat16"] - exact).norm()


def test_bfloat16_gradients_are_added_to_float32_gradients():
    made = translator(SHAKY)
    batch, backward = corpus(made).at(0, 0)[0], BF16Backward(made.model, LabelSmoothingLoss(0.1))
    backward(batch, torch.tensor(1.0))
    once = gradients(made.model)
    backward(batch, torch.tensor(2.0))
    assert_close(gradients(made.model), 3 * once)
    assert {weight.dtype for weight in made.model.parameters()} == {torch.float32}
    assert {weight.grad.dtype for weight in made.model.parameters() if weight.grad is not None} == {torch.float32}


def test_small_updates_are_not_lost_to_bfloat16_weights():
    """A step of 2⁻¹² is a thirty-second of what bfloat16 can tell from 1, and thirty-two of them are felt."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    backward = BF16Backward(model, lambda copy, batch: (copy(batch).float().sum(), 1))
    seen = []
    for _ in range(33):
        seen.append(backward(torch.ones(1, 1, dtype=torch.bfloat16), torch.tensor(1.0))[0].item())
        with torch.no_grad():
            model.weight += 2.0**-12
    assert seen[0] == seen[1] == 1.0
    assert seen[-1] == 1 + 2.0**-7


def test_a_model_that_keeps_means_is_refused():
    with pytest.raises(ValueError, match="buffer running_mean would not be copied back; use precision = 'bfloat16'"):
        BF16Backward(nn.BatchNorm1d(3), lambda model, batch: (batch, 1))


# --- steps captured as a whole ---


def capture_on_cpu(work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], object], Tensor]:
    """A recorder for any device: it does the work again."""
    found = work().clone()
    return lambda: found.copy_(work()), found


def trained(*, captured: bool, steps: int = 5, broken: int = 0, device: str = "cpu", **how) -> tuple[list, list[float]]:
    made = translator(replace(SHAKY, dropout=0.2, attention_dropout=0.1))
    model, data = made.model.to(device), replace(corpus(made), device=device)
    smoothed, calls = LabelSmoothingLoss(0.1), []

    def loss(model, batch):
        summed, count = smoothed(model, batch)
        return summed * (torch.nan if broken and len(calls) == broken else 1.0), count

    plan = TrainConfig(ConstantSchedule(RATE, warmup=4), steps, clip=0.7, **how)  # quarters of it are float32 too
    optimiser = torch.optim.AdamW(parameter_groups(model, 0.1), lr=torch.tensor(RATE, device=device), fused=True)
    for group in optimiser.param_groups:
        group["capturable"] = device == "cuda"
    backward = make_backward(model, loss, replace(plan, cuda_graph=False))
    if captured:
        options = {} if device == "cuda" else {"capture": capture_on_cpu}
        backward = CapturedStep(model, optimiser, backward, clip=plan.clip, **options)
    progress, health, losses = Progress(), LossScaleState.of(0, 1.0, torch.device(device)), []
    for step in range(1, steps + 1):
        calls[:] = [None] * step
        with use_deterministic(torch.device(device)):
            report, progress, health = one_step(model, optimiser, data, backward, plan, progress, health)
        losses += [report.loss, report.norm, report.skips]
    return [weight.detach().cpu() for weight in model.parameters()], losses


@pytest.mark.parametrize("precision", ["float32", "bf16-pure"])
def test_a_step_as_a_whole_is_the_step_in_parts(precision):
    (one, launched), (other, captured) = (trained(captured=kind, precision=precision) for kind in (False, True))
    assert launched == captured
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_a_broken_step_as_a_whole_is_skipped():
    _, figures = trained(captured=True, broken=3)
    assert figures[2::3] == [0, 0, 1, 0, 0]
    (before, _), (after, _) = (trained(captured=True, broken=3, steps=steps) for steps in (2, 3))
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_a_capture_alone_leaves_running_means_as_they_were():
    """Of 3, 5 and 10 a mean that moves by a tenth is 0.6 after one step; the warm-up steps before it are forgotten."""
    model, batch = nn.BatchNorm1d(1), torch.tensor([[3.0], [5.0], [10.0]])
    optimiser = torch.optim.AdamW(model.parameters(), lr=torch.tensor(RATE), fused=True)

    def backward(given, scale):
        summed = model(given[0]).square().sum()
        (summed * scale).backward()
        return summed.detach(), 3

    step = CapturedStep(model, optimiser, backward, clip=1.0, capture=capture_on_cpu)
    step([(batch, 3)], torch.tensor(1.0), RATE)
    assert model.running_mean is not None
    assert_close(model.running_mean.item(), 0.6)


def test_a_whole_step_has_one_batch():
    model = nn.Linear(2, 3)
    step = CapturedStep(model, torch.optim.AdamW(model.parameters()), lambda batch, scale: (scale, 1), clip=1.0)
    with pytest.raises(ValueError, match="2 batches a step cannot be captured as one CUDA graph"):
        step([(torch.ones(1), 1)] * 2, torch.tensor(1.0), 0.1)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["bfloat16", "bf16-pure"])
def test_on_a_gpu_leaving_and_going_on_ends_with_the_same_bits(tmp_path, precision):
    plan = TrainConfig(ConstantSchedule(0.01), 9, precision=precision, capture_step=True, checkpoint_every=2)
    weights = []
    for name, leave in (("straight", 0), ("left", 4), ("left", 0)):
        made = translator(replace(SHAKY, dropout=0.2, attention_dropout=0.1))
        data, loss = replace(corpus(made), device="cuda"), LabelSmoothingLoss(0.1)
        for report in (steps := train(made.model.cuda(), data, loss, plan, tmp_path / name)):
            if report.step == leave:
                steps.close()
        weights.append([weight.detach().cpu() for weight in made.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(weights[0], weights[2], strict=True))


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["bfloat16", "bf16-pure"])
def test_on_a_gpu_a_captured_step_is_the_step_in_parts(precision):
    (one, launched), (other, captured) = (
        trained(captured=kind, precision=precision, device="cuda") for kind in (False, True)
    )
    assert launched == captured
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
