"""Flat AdamW: the steps, the state and the checkpoints of torch's AdamW."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.models.safetensors_io import saveable_tensors
from regard.ops.flat_adamw import FlatAdamW, adamw_torch
from regard.tasks.seq2seq import LabelSmoothingLoss
from regard.training import ConstantSchedule, TrainConfig
from regard.training.checkpoint import Progress, read_checkpoint, write_checkpoint
from regard.training.loop import make_captured_step, make_optimiser, one_step, parameter_groups
from regard.training.numerics import FlatBF16Backward
from regard.training.step import CapturedStep, LossScaleState
from tests.attention.triton_interpreter import compile_to_ptx, print_json
from tests.narrowing import not_none
from tests.training.test_master_weights import RATE, SHAKY, capture_on_cpu
from tests.training.test_packed_corpus import corpus, translator

HOW = {"lr": RATE, "betas": (0.9, 0.98), "eps": 1e-9}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


def stepped(model: nn.Module, optimiser: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    """By gradients that are drawn anew for each step, divided by 3."""
    optimiser.grad_scale, optimiser.found_inf = torch.tensor(3.0), torch.tensor(0.0)  # type: ignore[attr-defined]
    for step in range(first, first + steps):
        torch.manual_seed(step)
        for weight in model.parameters():
            weight.grad = torch.randn_like(weight)
        if isinstance(optimiser, FlatAdamW):
            for weight, place in optimiser.views_by_parameter(optimiser.gradients).items():
                place.copy_(not_none(weight.grad))
        optimiser.step()


def pair() -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    one, other = network(), network()
    return [
        (one, torch.optim.AdamW(parameter_groups(one, 0.1), **HOW, fused=True)),
        (other, FlatAdamW(parameter_groups(other, 0.1), **HOW, copy_dtype=torch.float32)),
    ]


def assert_one(one: nn.Module, other: nn.Module) -> None:
    assert_close([weight.detach() for weight in one.parameters()], [weight.detach() for weight in other.parameters()])


# --- the optimiser ---


def test_a_first_step_on_paper():
    """m = g/10 and v = g²/50 are set straight to g and g²: each weight goes by the rate, after a decay of 5 %."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
    optimiser = FlatAdamW(parameter_groups(model, 0.1), lr=0.5, betas=(0.9, 0.98), eps=0.0)
    weight = model.get_parameter("weight")
    optimiser.views_by_parameter(optimiser.gradients)[weight].copy_(torch.tensor([[8.0, -4.0]]))
    optimiser.step()
    assert_close(model.weight.tolist(), [[0.95 - 0.5, -1.9 + 0.5]])
    copy = optimiser.views_by_parameter([flat.copies for flat in optimiser.flats])[weight]
    assert_close(copy, model.weight.detach().bfloat16())


def test_its_steps_are_those_of_torch():
    (one, usual), (other, flat) = pair()
    for model, optimiser in ((one, usual), (other, flat)):
        stepped(model, optimiser, 5)
    assert_one(one, other)


def test_a_broken_step_leaves_everything_as_it_was():
    _, (model, flat) = pair()
    stepped(model, flat, 2)
    assert isinstance(flat, FlatAdamW)
    buffers = [
        part for each in flat.flats for part in (each.weights, each.copies, each.exp_avg, each.exp_avg_sq, each.steps)
    ]
    before = [buffer.clone() for buffer in buffers]
    flat.found_inf = torch.tensor(1.0)
    flat.gradients[0].fill_(torch.nan)
    flat.step()
    assert all(torch.equal(*each) for each in zip(before, buffers, strict=True))


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (1, 1)])
def test_a_checkpoint_of_one_is_gone_on_with_by_the_other(tmp_path, first, second):
    straight, _ = pair()[0]
    stepped(straight, torch.optim.AdamW(parameter_groups(straight, 0.1), **HOW, fused=True), 5)
    model, optimiser = pair()[first]
    stepped(model, optimiser, 3)
    write_checkpoint(tmp_path, model, optimiser, Progress(step=3))
    model, optimiser = pair()[second]
    assert read_checkpoint(tmp_path, model, optimiser) == Progress(step=3)
    stepped(model, optimiser, 2, first=3)
    assert_one(straight, model)
    if isinstance(optimiser, FlatAdamW):
        assert all(torch.equal(flat.weights, flat.copies) for flat in optimiser.flats)


# --- whole steps ---


def trained(*, flat: bool, steps: int = 5) -> tuple[list[Tensor], list[float]]:
    made = translator(replace(SHAKY, dropout=0.2, attention_dropout=0.1))
    model, data = made.model, corpus(made)
    plan = TrainConfig(ConstantSchedule(RATE), steps, clip=0.7, weight_decay=0.1, precision="bf16-pure")
    optimiser = make_optimiser(model, plan, captured=flat)
    step = make_captured_step(model, LabelSmoothingLoss(0.1), plan, optimiser, capture_on_cpu)
    assert isinstance(step.backward, FlatBF16Backward) == flat == isinstance(optimiser, FlatAdamW)
    progress, health, figures = Progress(), LossScaleState.of(0, 1.0, torch.device("cpu")), []
    for _ in range(steps):
        report, progress, health = one_step(model, optimiser, data, step, plan, progress, health)
        figures += [report.loss, report.norm]
    return [weight.detach() for weight in model.parameters()], figures


def test_a_bfloat16_step_is_the_same_with_either_optimiser():
    """The first step has the same loss and the same gradient; further ones differ in what rounding makes of weights."""
    (one, expected), (other, found) = (trained(flat=flat) for flat in (False, True))
    assert expected[0] == found[0]
    assert_close(expected[1], found[1], rtol=1e-5, atol=0)
    assert_close(expected, found, rtol=2e-2, atol=0)
    moved = torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).norm()
    assert moved < 0.01 * torch.cat([weight.flatten() for weight in one]).norm()


def test_a_weight_that_nobody_reads_has_no_gradient():
    model = nn.ModuleDict({"read": nn.Linear(2, 1), "unread": nn.Linear(2, 1)})
    optimiser = FlatAdamW(parameter_groups(model, 0.0), **HOW)

    def loss(copy: nn.Module, batch: tuple[Tensor, int]) -> tuple[Tensor, int]:
        return copy.get_submodule("read")(batch[0].bfloat16()).float().sum(), 1

    step = CapturedStep(
        model,
        optimiser,
        FlatBF16Backward(model, loss, optimiser),
        clip=1.0,
        capture=capture_on_cpu,
    )
    before = {name: weight.clone() for name, weight in saveable_tensors(model).items()}
    assert not step([(torch.ones(3, 2), 1)], torch.tensor(1.0), RATE).skipped
    assert {name for name, weight in saveable_tensors(model).items() if not torch.equal(weight, before[name])} == {
        "read.weight",
        "read.bias",
    }


# --- the kernel ---


def drawn() -> tuple[list[Tensor], list[Any]]:
    torch.manual_seed(0)
    weights, grads, first, second, copies = (torch.randn(1_009) for _ in range(5))
    given = [torch.tensor(RATE), torch.tensor(3.0), torch.tensor(0.0), torch.tensor([0.1, 0.02]), 0.1, 0.9, 0.98, 1e-9]
    return [weights, grads, first, second.abs(), copies], given


def by_kernel() -> dict[str, Any]:
    """How far the kernel is from plain torch, under the interpreter; and if a broken step writes anything."""
    from regard.ops.flat_adamw_triton import launch_adamw

    found = {}
    for name, broken in (("whole", 0.0), ("broken", 1.0)):
        results = []
        for go in (adamw_torch, lambda *all: launch_adamw(*all, block=128)):
            buffers, given = drawn()
            given[2] = torch.tensor(broken)
            go(*buffers, *given)
            results.append(torch.cat(buffers))
        found[name] = (results[0] - results[1]).abs().max().item()
    return found


def test_the_kernel_interpreted_is_plain_torch(interpreted):
    assert interpreted["whole"] < 1e-5
    assert interpreted["broken"] == 0


def test_the_kernel_compiles_for_a_hopper():
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.ops.flat_adamw_triton import adamw_kernel

    wide = ("weights", "first", "second", "rate", "scale", "broken", "fixes")
    kinds = {**dict.fromkeys(wide, "*fp32"), **dict.fromkeys(("decay", "beta1", "beta2", "eps"), "fp32"), "size": "i32"}
    assert ".target sm_90" in compile_to_ptx(adamw_kernel, {"BLOCK": 2048}, kinds)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_kernel_is_plain_torch():
    from regard.ops.flat_adamw_triton import launch_adamw

    (one, given), (other, _) = drawn(), drawn()
    adamw_torch(*one, *given)
    on_gpu = [part.cuda() for part in other]
    launch_adamw(*on_gpu, *(part.cuda() if isinstance(part, Tensor) else part for part in given))
    assert_close([part.cpu() for part in on_gpu], one)


if __name__ == "__main__":
    print_json(by_kernel)
