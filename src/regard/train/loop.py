"""Training loop: steps, validation and checkpoints; resumed runs end with bit-identical weights.

Every step is a function of the weights, the optimiser's state and the step's number: the batches come from
(seed, epoch), the rate from the schedule, and the dropout masks from (seed, step), which is why resuming needs no
random state. A step's gradient is that of the mean over all its tokens, so it does not depend on how they are split.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.ops.flat_adamw import FlatAdamW
from regard.train.checkpoint import Progress, prune_checkpoints, read_checkpoint, remove_leftovers, write_checkpoint
from regard.train.corpus import Corpus
from regard.train.cpu_parallel import ThreadedBackward
from regard.train.cuda_graph import CapturedBackward, CapturedStep, GraphCapture, no_batches
from regard.train.determinism import use_deterministic
from regard.train.job import Loss, TrainingData
from regard.train.lock import lock_folder
from regard.train.master_weights import BF16Backward, FlatBF16Backward
from regard.train.report import AsyncScalars, Report
from regard.train.schedule import Schedule
from regard.train.step import BackwardFunction, LossScaleState, take_step


@dataclass(frozen=True)
class TrainConfig:
    """How to train."""

    schedule: Schedule
    steps: int
    seed: int = 0
    clip: float = 1.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    precision: str = (
        "float32"  # "bfloat16" and "float16" use torch's autocast; "bf16-pure" master weights and a bfloat16 copy
    )
    validate_every: int = 500
    checkpoint_every: int = 500
    best: str = "loss"  # the validation figure that selects the best checkpoint: the lowest loss, else the highest
    patience: int = 0  # stop after so many validations without a better one; 0 never stops
    keep: int = 5
    deterministic: bool = True  # deterministic algorithms only; a few models have none on a GPU
    cuda_graph: bool = False  # on a GPU, capture the backward pass as a CUDA graph for each shape of a batch
    capture_step: bool = False  # on a GPU, capture the whole step, the optimiser included; for steps of one batch

    def __post_init__(self):
        if self.precision not in ("float32", "bfloat16", "float16", "bf16-pure"):
            raise ValueError(
                f"precision is float32, bfloat16 or float16, not {self.precision!r}; or bf16-pure: bfloat16 throughout"
            )
        for name in ("steps", "validate_every", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


class DivergedError(RuntimeError):
    """The loss or the gradient was not a number several times in a row."""


MAX_SKIPS = 10  # skipped steps in a row, whose gradients were not finite, before the run fails
FIRST_SCALE = 2.0**4  # of a summed loss in float16; for the mean over a few thousand tokens it is the usual 2¹⁶
MAX_PENDING = 3  # steps a GPU may be behind before the host waits for its figures


def train(
    model: nn.Module,
    data: TrainingData,
    loss: Loss,
    plan: TrainConfig,
    folder: Path,
    validate: Callable[[nn.Module], dict[str, float]] | None = None,
) -> Generator[Report]:
    """Train in `folder`, resuming from its newest checkpoint if there is one; yields a report after every step.

    `validate` returns figures, of which `plan.best` selects the best checkpoint. Leaving the iterator early (Ctrl-C)
    writes a checkpoint, so that calling again resumes from there.
    """
    whole = plan.capture_step and device_of(model).type == "cuda"
    optimiser = make_optimiser(model, plan, whole=whole)
    saved = folder / "checkpoints"

    def due(step: int) -> bool:
        return (
            step % plan.checkpoint_every == 0 or step == plan.steps or bool(validate and is_validation_step(plan, step))
        )

    with lock_folder(saved):
        progress = read_checkpoint(saved, model, optimiser) or Progress()
        remove_leftovers(saved, progress.step)
        prune_checkpoints(
            saved, plan.keep, always=best_steps(progress, plan), due=due
        )  # a killed run may not have done it
        if progress.step < plan.steps:
            progress = resume_progress(progress, plan, data)
        scale = float(progress.scaler.get("scale", FIRST_SCALE)) if plan.precision == "float16" else 1.0
        health = LossScaleState.of(progress.skips, scale, device_of(model))
        ahead = data.longest_first if isinstance(data, Corpus) else no_batches
        backward = (
            make_captured_step(model, loss, plan, optimiser) if whole else make_backward(model, loss, plan, ahead)
        )
        written, settled, late = progress.step, True, deque[Report]()
        try:
            while progress.step < plan.steps and not out_of_patience(progress, plan):
                settled = False  # an interruption from here on leaves weights, or a history, between two steps
                with use_deterministic(device_of(model)) if plan.deterministic else nullcontext():
                    report, progress, health = one_step(model, optimiser, data, backward, plan, progress, health)
                    late.append(report)
                    check_divergence(late, MAX_PENDING if not due(report.step) else 0)
                    if validate and is_validation_step(plan, report.step):
                        model.eval()
                        with torch.no_grad(), autocast(model, plan):
                            figures = validate(model)
                        progress, report = (
                            record_validation(progress, figures, plan.best),
                            replace(report, validation=figures),
                        )
                if due(report.step):
                    check_finite_weights(model, progress, plan, report)
                settled = True
                if due(report.step) and has_finite_validation(progress):
                    write_checkpoint(saved, model, optimiser, with_loss_scale(progress, health, plan))
                    written = report.step
                    prune_checkpoints(saved, plan.keep, always=best_steps(progress, plan), due=due)
                yield report
        finally:
            if settled and progress.step > written and has_finite_validation(progress) and weights_are_finite(model):
                write_checkpoint(saved, model, optimiser, with_loss_scale(progress, health, plan))


def one_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    data: TrainingData,
    backward: BackwardFunction | CapturedStep,
    plan: TrainConfig,
    progress: Progress,
    health: LossScaleState,
) -> tuple[Report, Progress, LossScaleState]:
    step, rate = progress.step + 1, plan.schedule.rate(progress.step + 1)
    model.train()
    torch.manual_seed(step_seed(plan.seed, step))
    batches = data.at(progress.epoch, progress.index)
    if isinstance(backward, CapturedStep):
        done = backward(list(batches), health.scale, rate)
    else:
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=not plan.cuda_graph)  # a CUDA graph adds to the same addresses every time
        with backward.limited_threads() if isinstance(backward, ThreadedBackward) else nullcontext():
            done = take_step(optimiser, batches, backward, health.scale, clip=plan.clip)
    health = health.after(done.skipped, step, scaled=plan.precision == "float16")
    more = progress.index + 1 < data.steps(progress.epoch)
    after = replace(
        progress,
        step=step,
        epoch=progress.epoch if more else progress.epoch + 1,
        index=progress.index + 1 if more else 0,
    )
    sent = AsyncScalars.start_copy(torch.stack((done.loss.float(), done.norm.float(), health.skips)))
    return Report(step, rate, done.tokens, sent), after, health


def make_backward(
    model: nn.Module, loss: Loss, plan: TrainConfig, warmup_batches: Callable[[], Iterable[Any]] = no_batches
) -> BackwardFunction:
    def wide(batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        with autocast(model, plan):
            summed, count = loss(model, batch)
        (summed * scale).backward()
        return summed.detach(), count

    if device_of(model).type == "cpu" and plan.precision != "bf16-pure":
        # autocast's cache of cast weights is shared by all threads
        return ThreadedBackward(model, loss, wide, lambda: autocast(model, plan, cached=False))
    backward = BF16Backward(model, loss) if plan.precision == "bf16-pure" else wide
    return (
        CapturedBackward(model, backward, warmup_batches)
        if plan.cuda_graph and device_of(model).type == "cuda"
        else backward
    )


def make_optimiser(model: nn.Module, plan: TrainConfig, *, whole: bool) -> torch.optim.Optimizer:
    """AdamW; FlatAdamW where a bfloat16 step is captured as a whole."""
    groups, how = (
        parameter_groups(model, plan.weight_decay),
        {"lr": plan.schedule.rate(1), "betas": plan.betas, "eps": 1e-9},
    )
    if whole and plan.precision == "bf16-pure":
        return FlatAdamW(groups, **how)
    return torch.optim.AdamW(groups, **how, fused=True, capturable=whole)


def make_captured_step(
    model: nn.Module,
    loss: Loss,
    plan: TrainConfig,
    optimiser: torch.optim.Optimizer,
    capture: GraphCapture | None = None,
) -> CapturedStep:
    backward = make_backward(model, loss, replace(plan, cuda_graph=False))
    if isinstance(optimiser, FlatAdamW):
        backward = FlatBF16Backward(model, loss, optimiser)
    return CapturedStep(model, optimiser, backward, clip=plan.clip, capture=capture)


def check_divergence(late: deque[Report], most: int) -> None:
    """Check the steps whose figures have arrived, and wait for those that more than `most` steps have followed."""
    while late and (late[0].scalars.is_ready or len(late) > most):
        report = late.popleft()
        if report.skips >= MAX_SKIPS:
            raise DivergedError(
                f"step {report.step}: the loss or its gradient was not a number {report.skips} times in a row; "
                f"lower the learning rate (it was {report.rate:.2g}) or use precision bfloat16 or float32"
            )


def check_finite_weights(model: nn.Module, progress: Progress, plan: TrainConfig, report: Report) -> None:
    """Weights of a checkpoint must be finite, and so must some validation of a run that ends."""
    ends = progress.step == plan.steps or out_of_patience(progress, plan)
    never = ends and not has_finite_validation(progress)
    if never or not weights_are_finite(model):
        what = "no validation" if never else "not every weight"
        raise DivergedError(
            f"step {report.step}: {what} is a number; lower the learning rate (it was {report.rate:.2g}) or use "
            "precision bfloat16 or float32"
        )


def has_finite_validation(progress: Progress) -> bool:
    """False if no validation so far was finite: a checkpoint would be useless."""
    return progress.best is not None or not progress.history


def weights_are_finite(model: nn.Module) -> bool:
    return bool(torch.stack([weight.isfinite().all() for weight in model.parameters()]).all())


def with_loss_scale(progress: Progress, health: LossScaleState, plan: TrainConfig) -> Progress:
    """Progress for a checkpoint, with the state of loss scaling from the device."""
    scaler = {"scale": float(health.scale)} if plan.precision == "float16" else {}
    return replace(progress, skips=int(health.skips), scaler=scaler)


def record_validation(progress: Progress, figures: dict[str, float], by: str = "loss") -> Progress:
    """With this validation in the history, and as the best if it is."""
    if by not in figures:
        raise ValueError(f"best = {by!r}: validation finds only {', '.join(figures)}; choose one of them")
    found = figures[by] if by == "loss" else -figures[by]
    numbers = all(map(math.isfinite, figures.values()))  # accuracy may be finite where the loss is not
    better = numbers and found < (math.inf if progress.best is None else progress.best)
    return replace(
        progress,
        best=found if better else progress.best,
        best_step=progress.step if better else progress.best_step,
        worse=0 if better else progress.worse + 1,
        history=(*progress.history, {"step": progress.step, **figures}),
    )


# --- resuming with another number of steps, or other settings ---


def resume_progress(progress: Progress, plan: TrainConfig, data: TrainingData) -> Progress:
    """The progress to resume from, as if the settings had always been these.

    With other data, or larger batches, the epoch may be over already.
    """
    progress = without_final_validation(progress, plan)
    if progress.index and progress.index >= data.steps(progress.epoch):
        return replace(progress, epoch=progress.epoch + 1, index=0)
    return progress


def without_final_validation(progress: Progress, plan: TrainConfig) -> Progress:
    """Without a validation that was due only because the run was at its end."""
    rest = [
        each for each in progress.history if each["step"] < progress.step or progress.step % plan.validate_every == 0
    ]
    found = replace(progress, best=None, best_step=0, worse=0, history=())
    for step, figures in ((each["step"], {k: v for k, v in each.items() if k != "step"}) for each in rest):
        found = record_validation(replace(found, step=int(step)), figures, plan.best)
    return replace(found, step=progress.step)


def best_steps(progress: Progress, plan: TrainConfig) -> set[int]:
    """The best checkpoint's step, and that of the best if the run is extended."""
    return {progress.best_step, without_final_validation(progress, plan).best_step}


def is_validation_step(plan: TrainConfig, step: int) -> bool:
    return step % plan.validate_every == 0 or step == plan.steps


def out_of_patience(progress: Progress, plan: TrainConfig) -> bool:
    return plan.patience > 0 and progress.worse >= plan.patience


def autocast(model: nn.Module, plan: TrainConfig, *, cached: bool = True):
    if plan.precision == "float32":
        return nullcontext()
    return torch.autocast(device_of(model).type, dtype=autocast_dtype(plan), cache_enabled=cached)


def autocast_dtype(plan: TrainConfig) -> torch.dtype:
    """The dtype of matrix products."""
    return torch.bfloat16 if plan.precision == "bf16-pure" else getattr(torch, plan.precision)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for biases, norms and other vectors."""
    wide = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    flat = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return [{"params": wide, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for every step (splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return (x ^ x >> 31) % 2**63
