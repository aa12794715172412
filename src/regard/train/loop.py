"""A model, data and a plan in; a trained model out. The same weights to the bit, however often it is interrupted.

Every step is a function of the weights, the optimiser's memory and the step's number: the batches come from
(seed, epoch), the rate from the schedule, and the noise of dropout from (seed, step), which is why resuming needs no
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

from regard.tasks.corpus import Corpus
from regard.tasks.job import Data, Loss
from regard.train.apart import Apart
from regard.train.capture import Captured, Recorder, none
from regard.train.checkpoint import Progress, keep, read_checkpoint, sweep, write_checkpoint
from regard.train.claim import claimed
from regard.train.exact import exactly
from regard.train.figures import Report, Sent
from regard.train.flat import FlatAdamW, NarrowFlat
from regard.train.narrow import Narrow
from regard.train.schedule import Schedule
from regard.train.step import Backward, Health, stepped
from regard.train.whole import Whole


@dataclass(frozen=True)
class Plan:
    """How to train."""

    schedule: Schedule
    steps: int
    seed: int = 0
    clip: float = 1.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    precision: str = "float32"  # "bfloat16" and "float16" use torch's autocast; "narrow" a copy in bfloat16
    validate_every: int = 500
    checkpoint_every: int = 500
    best: str = "loss"  # the figure of validation by which a checkpoint is the best: its least loss, most accuracy
    patience: int = 0  # stop after so many validations without a better one; 0 never stops
    keep: int = 5
    exact: bool = True  # only algorithms that give the same bits every time; a few models have none on a GPU
    capture: bool = False  # on a GPU, a batch's work is recorded once; for each shape of a batch
    whole: bool = False  # on a GPU, the whole step is, the optimiser's part included; for steps of one batch

    def __post_init__(self):
        if self.precision not in ("float32", "bfloat16", "float16", "narrow"):
            raise ValueError(
                f"precision is float32, bfloat16 or float16, not {self.precision!r}; or narrow: bfloat16 throughout"
            )
        for name in ("steps", "validate_every", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


class Diverged(RuntimeError):
    """The loss or the gradient was not a number several times in a row."""


MOST_SKIPS = 10  # steps in a row that may be skipped because a gradient was not finite
FIRST_SCALE = 2.0**4  # of a summed loss in float16; for the mean over a few thousand tokens it is the usual 2¹⁶
LATE = 3  # steps a GPU may be behind before its figures are waited for


def train(
    model: nn.Module,
    data: Data,
    loss: Loss,
    plan: Plan,
    folder: Path,
    validate: Callable[[nn.Module], dict[str, float]] | None = None,
) -> Generator[Report]:
    """Train in `folder`, going on from its newest checkpoint if there is one; yields a report after every step.

    `validate` returns figures, of which `plan.best` tells the best checkpoint. Leaving the iterator early (Ctrl-C)
    writes a checkpoint, so that calling again goes on from there.
    """
    whole = plan.whole and device_of(model).type == "cuda"
    optimiser = optimiser_of(model, plan, whole=whole)
    saved = folder / "checkpoints"

    def due(step: int) -> bool:
        return step % plan.checkpoint_every == 0 or step == plan.steps or bool(validate and validates(plan, step))

    with claimed(saved):
        progress = read_checkpoint(saved, model, optimiser) or Progress()
        sweep(saved, progress.step)
        keep(saved, plan.keep, always=best_steps(progress, plan), due=due)  # it may have been killed before it did
        if progress.step < plan.steps:
            progress = going_on(progress, plan, data)
        scale = float(progress.scaler.get("scale", FIRST_SCALE)) if plan.precision == "float16" else 1.0
        health = Health.of(progress.skips, scale, device_of(model))
        ahead = data.longest_first if isinstance(data, Corpus) else none
        backward = whole_of(model, loss, plan, optimiser) if whole else backward_of(model, loss, plan, ahead)
        written, settled, late = progress.step, True, deque[Report]()
        try:
            while progress.step < plan.steps and not out_of_patience(progress, plan):
                settled = False  # an interruption from here on leaves weights, or a history, that belong to no step
                with exactly(device_of(model)) if plan.exact else nullcontext():
                    report, progress, health = one_step(model, optimiser, data, backward, plan, progress, health)
                    late.append(report)
                    refuse_divergence(late, LATE if not due(report.step) else 0)
                    if validate and validates(plan, report.step):
                        model.eval()
                        with torch.no_grad(), autocast(model, plan):
                            figures = validate(model)
                        progress, report = judged(progress, figures, plan.best), replace(report, validation=figures)
                if due(report.step):
                    refuse_broken(model, progress, plan, report)
                settled = True
                if due(report.step) and learnt(progress):
                    write_checkpoint(saved, model, optimiser, healthy(progress, health, plan))
                    written = report.step
                    keep(saved, plan.keep, always=best_steps(progress, plan), due=due)
                yield report
        finally:
            if settled and progress.step > written and learnt(progress) and finite(model):
                write_checkpoint(saved, model, optimiser, healthy(progress, health, plan))


def one_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    data: Data,
    backward: Backward | Whole,
    plan: Plan,
    progress: Progress,
    health: Health,
) -> tuple[Report, Progress, Health]:
    step, rate = progress.step + 1, plan.schedule.rate(progress.step + 1)
    model.train()
    torch.manual_seed(hash_of(plan.seed, step))
    batches = data.at(progress.epoch, progress.index)
    if isinstance(backward, Whole):
        done = backward(list(batches), health.scale, rate)
    else:
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=not plan.capture)  # a recording adds to the same places every time
        with backward.stepping() if isinstance(backward, Apart) else nullcontext():
            done = stepped(optimiser, batches, backward, health.scale, clip=plan.clip)
    health = health.after(done.broken, step, scaled=plan.precision == "float16")
    more = progress.index + 1 < data.steps(progress.epoch)
    after = replace(
        progress,
        step=step,
        epoch=progress.epoch if more else progress.epoch + 1,
        index=progress.index + 1 if more else 0,
    )
    sent = Sent.off(torch.stack((done.loss.float(), done.norm.float(), health.skips)))
    return Report(step, rate, done.tokens, sent), after, health


def backward_of(model: nn.Module, loss: Loss, plan: Plan, ahead: Callable[[], Iterable[Any]] = none) -> Backward:
    def wide(batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        with autocast(model, plan):
            summed, count = loss(model, batch)
        (summed * scale).backward()
        return summed.detach(), count

    if device_of(model).type == "cpu" and plan.precision != "narrow":
        # autocast's memory of narrowed weights is one for all threads
        return Apart(model, loss, wide, lambda: autocast(model, plan, cached=False))
    backward = Narrow(model, loss) if plan.precision == "narrow" else wide
    return Captured(model, backward, ahead) if plan.capture and device_of(model).type == "cuda" else backward


def optimiser_of(model: nn.Module, plan: Plan, *, whole: bool) -> torch.optim.Optimizer:
    """AdamW; by a kernel of ours where a narrow step is recorded as a whole."""
    groups, how = grouped(model, plan.weight_decay), {"lr": plan.schedule.rate(1), "betas": plan.betas, "eps": 1e-9}
    if whole and plan.precision == "narrow":
        return FlatAdamW(groups, **how)
    return torch.optim.AdamW(groups, **how, fused=True, capturable=whole)


def whole_of(
    model: nn.Module, loss: Loss, plan: Plan, optimiser: torch.optim.Optimizer, recorder: Recorder | None = None
) -> Whole:
    backward = backward_of(model, loss, replace(plan, capture=False))
    if isinstance(optimiser, FlatAdamW):
        backward = NarrowFlat(model, loss, optimiser)
    return Whole(model, optimiser, backward, clip=plan.clip, recorder=recorder)


def refuse_divergence(late: deque[Report], most: int) -> None:
    """Look at the steps whose figures have arrived, and wait for those that more than `most` steps have followed."""
    while late and (late[0].sent.arrived or len(late) > most):
        report = late.popleft()
        if report.skips >= MOST_SKIPS:
            raise Diverged(
                f"step {report.step}: the loss or its gradient was not a number {report.skips} times in a row; "
                f"lower the learning rate (it was {report.rate:.2g}) or use precision bfloat16 or float32"
            )


def refuse_broken(model: nn.Module, progress: Progress, plan: Plan, report: Report) -> None:
    """What is kept must be numbers, and so must a validation of a run that ends, however few steps it took."""
    ends = progress.step == plan.steps or out_of_patience(progress, plan)
    never = ends and not learnt(progress)
    if never or not finite(model):
        what = "no validation" if never else "not every weight"
        raise Diverged(
            f"step {report.step}: {what} is a number; lower the learning rate (it was {report.rate:.2g}) or use "
            "precision bfloat16 or float32"
        )


def learnt(progress: Progress) -> bool:
    """Not yet, if whatever was validated is no number: nobody wants to go on from there."""
    return progress.best is not None or not progress.history


def finite(model: nn.Module) -> bool:
    return bool(torch.stack([weight.isfinite().all() for weight in model.parameters()]).all())


def healthy(progress: Progress, health: Health, plan: Plan) -> Progress:
    """Progress as a file keeps it, with what only the device knew."""
    scaler = {"scale": float(health.scale)} if plan.precision == "float16" else {}
    return replace(progress, skips=int(health.skips), scaler=scaler)


def judged(progress: Progress, figures: dict[str, float], by: str = "loss") -> Progress:
    """Is this validation the best so far? Kept with the whole history."""
    if by not in figures:
        raise ValueError(f"best = {by!r}: validation finds only {', '.join(figures)}; choose one of them")
    found = figures[by] if by == "loss" else -figures[by]
    numbers = all(map(math.isfinite, figures.values()))  # labels can be right by chance where the loss is none
    better = numbers and found < (math.inf if progress.best is None else progress.best)
    return replace(
        progress,
        best=found if better else progress.best,
        best_step=progress.step if better else progress.best_step,
        worse=0 if better else progress.worse + 1,
        history=(*progress.history, {"step": progress.step, **figures}),
    )


# --- runs that are given another number of steps, or other settings ---


def going_on(progress: Progress, plan: Plan, data: Data) -> Progress:
    """Where a run stands that goes on, as if it had always been planned so.

    With other data, or larger batches, an epoch may be over where it was not.
    """
    progress = without_end(progress, plan)
    if progress.index and progress.index >= data.steps(progress.epoch):
        return replace(progress, epoch=progress.epoch + 1, index=0)
    return progress


def without_end(progress: Progress, plan: Plan) -> Progress:
    """Without the validation that was due for no other reason than that the run was at its end."""
    rest = [
        each for each in progress.history if each["step"] < progress.step or progress.step % plan.validate_every == 0
    ]
    found = replace(progress, best=None, best_step=0, worse=0, history=())
    for step, figures in ((each["step"], {k: v for k, v in each.items() if k != "step"}) for each in rest):
        found = judged(replace(found, step=int(step)), figures, plan.best)
    return replace(found, step=progress.step)


def best_steps(progress: Progress, plan: Plan) -> set[int]:
    """Of the best checkpoint, and of what would be the best if the run went on."""
    return {progress.best_step, without_end(progress, plan).best_step}


def validates(plan: Plan, step: int) -> bool:
    return step % plan.validate_every == 0 or step == plan.steps


def out_of_patience(progress: Progress, plan: Plan) -> bool:
    return plan.patience > 0 and progress.worse >= plan.patience


def autocast(model: nn.Module, plan: Plan, *, cached: bool = True):
    if plan.precision == "float32":
        return nullcontext()
    return torch.autocast(device_of(model).type, dtype=narrow(plan), cache_enabled=cached)


def narrow(plan: Plan) -> torch.dtype:
    """The precision of products."""
    return torch.bfloat16 if plan.precision == "narrow" else getattr(torch, plan.precision)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def grouped(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and other vectors do not."""
    wide = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    flat = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return [{"params": wide, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]


def hash_of(seed: int, step: int) -> int:
    """A seed of its own for every step (splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return (x ^ x >> 31) % 2**63
