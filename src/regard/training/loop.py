"""Training loop: steps, validation and checkpoints; resumed runs end with bit-identical weights.

Every step is a function of the weights, the optimiser's state and the step's number: the batches come from
(seed, epoch), the rate from the schedule, and the dropout masks from (seed, step), which is why resuming needs no
random state. A step's gradient is that of the mean over all its tokens, so it does not depend on how they are split.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.ops.cuda_graph import GraphCapture
from regard.ops.flat_adamw import FlatAdamW
from regard.training.checkpoint import (
    Progress,
    best_steps,
    has_finite_validation,
    is_validation_step,
    lock_folder,
    out_of_patience,
    prune_checkpoints,
    record_validation,
    resume,
    resume_progress,
    save,
    weights_are_finite,
    with_loss_scale,
)
from regard.training.config import Loss, TrainConfig, TrainingData
from regard.training.corpus import Corpus
from regard.training.cpu_parallel import ThreadedBackward
from regard.training.distributed import DistributedLoss, DistributedStep, ProcessGroup, Replica
from regard.training.numerics import BF16Backward, FlatBF16Backward, use_deterministic
from regard.training.step import (
    AsyncScalars,
    BackwardFunction,
    CapturedBackward,
    CapturedStep,
    LossScaleState,
    Report,
    no_batches,
    take_step,
)
from regard.world.splitmix import GOLDEN_GAMMA, MIX_1, MIX_2, mix64


class DivergedError(RuntimeError):
    """The loss or the gradient was not a number several times in a row.

    Examples:
        >>> from pathlib import Path
        >>> from regard.data import LMBlocks
        >>> data, layer = LMBlocks(torch.arange(4, 104), length=10), torch.nn.Linear(1, 1)
        >>> def loss(model, block):
        ...     return model(torch.ones(1)).sum() * torch.nan, 1
        >>> try:
        ...     list(train(layer, data, loss, TrainConfig(ConstantSchedule(0.001), steps=100), Path("diverged")))
        ... except DivergedError as error:
        ...     print(str(error).partition(";")[0])
        step 10: the loss or its gradient was not a number 10 times in a row
    """


MAX_SKIPS = 10  # skipped steps in a row, whose gradients were not finite, before the run fails
FIRST_SCALE = 2.0**4  # of a summed loss in float16; for the mean over a few thousand tokens it is the usual 2¹⁶
MAX_PENDING = 3  # steps a GPU may be behind before the host waits for its figures


def train(
    model: nn.Module,
    data: TrainingData,
    loss: Loss,
    config: TrainConfig,
    folder: Path,
    validate: Callable[[nn.Module], dict[str, float]] | None = None,
    group: ProcessGroup = ProcessGroup(),
) -> Generator[Report]:
    """Train in `folder`, resuming from its newest checkpoint if there is one; yields a report after every step.

    `validate` returns figures, of which `config.best` selects the best checkpoint. Leaving the iterator early (Ctrl-C)
    writes a checkpoint, so that calling again resumes from there. With a `group`, all its processes call this.

    Examples:
        >>> from pathlib import Path
        >>> class Ones:  # one step of one batch each epoch
        ...     def steps(self, epoch):
        ...         return 1
        ...     def at(self, epoch, index):
        ...         return [torch.ones(4, 3)]
        >>> def loss(model, x):
        ...     return (model(x) ** 2).sum(), len(x)
        >>> layer = torch.nn.Linear(3, 1)
        >>> def steps(upto):
        ...     config = TrainConfig(ConstantSchedule(1e-3), steps=upto)
        ...     return [report.step for report in train(layer, Ones(), loss, config, Path("resumed"))]
        >>> steps(2), steps(5)  # the second goes on after the first
        ([1, 2], [3, 4, 5])
    """
    trained, data, config = Replica.of(model, loss, config, group), group.share(data), group.adapt(config)
    module, device = trained.module, device_of(trained.module)
    optimiser = make_optimiser(module, config, captured=is_captured(module, config))
    saved = folder / "checkpoints"

    def due(step: int) -> bool:
        validated = validate is not None and is_validation_step(config, step)
        return step % config.checkpoint_every == 0 or step == config.steps or validated

    with lock_folder(saved) if group.is_main else nullcontext():
        progress = group.resume(lambda: resume(saved, model, optimiser, config, due if group.is_main else None))
        trained.load()
        if progress.step < config.steps:
            progress = resume_progress(progress, config, data)
        scale = float(progress.scaler.get("scale", FIRST_SCALE)) if config.precision == "float16" else 1.0
        loss_scale = LossScaleState.of(progress.skips, scale, device)
        with use_deterministic(device) if config.deterministic else nullcontext():
            backward = make_step(module, data, loss, config, optimiser, group)
        written, settled, pending = progress.step, True, deque[Report]()
        try:
            while progress.step < config.steps and not out_of_patience(progress, config):
                settled = False  # an interruption from here on leaves weights, or a history, between two steps
                with use_deterministic(device) if config.deterministic else nullcontext():
                    report, progress, loss_scale = one_step(
                        module, optimiser, data, backward, config, progress, loss_scale
                    )
                    pending.append(report)
                    check_divergence(pending, MAX_PENDING if not due(report.step) else 0)
                    if due(report.step):
                        trained.gather()
                    if validate and is_validation_step(config, report.step):
                        figures = group.from_main(lambda: trained.evaluate(validate, autocast(module, config)))
                        progress = record_validation(progress, figures, config.best)
                        report = replace(report, validation=figures)
                if due(report.step):
                    check_finite_weights(model, progress, config, report)
                settled = True
                if due(report.step) and has_finite_validation(progress):
                    save(saved, trained, optimiser, with_loss_scale(progress, loss_scale, config))
                    written = report.step
                    if group.is_main:
                        prune_checkpoints(saved, config.keep, always=best_steps(progress, config), due=due)
                yield report
        finally:
            if settled and progress.step > written and has_finite_validation(progress):
                trained.gather()
                if weights_are_finite(model):
                    save(saved, trained, optimiser, with_loss_scale(progress, loss_scale, config))


def one_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    data: TrainingData,
    backward: BackwardFunction | CapturedStep | DistributedStep,
    config: TrainConfig,
    progress: Progress,
    loss_scale: LossScaleState,
) -> tuple[Report, Progress, LossScaleState]:
    step, rate = progress.step + 1, config.schedule.rate(progress.step + 1)
    model.train()
    torch.manual_seed(step_seed(config.seed, step))
    batches = data.at(progress.epoch, progress.index)
    if isinstance(backward, CapturedStep | DistributedStep):
        done = backward(list(batches), loss_scale.scale, rate)
    else:
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=not config.cuda_graph)  # a CUDA graph adds to the same addresses every time
        with backward.limited_threads() if isinstance(backward, ThreadedBackward) else nullcontext():
            done = take_step(optimiser, batches, backward, loss_scale.scale, clip=config.clip)
    loss_scale = loss_scale.after(done.skipped, step, scaled=config.precision == "float16")
    more = progress.index + 1 < data.steps(progress.epoch)
    after = replace(
        progress,
        step=step,
        epoch=progress.epoch if more else progress.epoch + 1,
        index=progress.index + 1 if more else 0,
    )
    sent = AsyncScalars.start_copy(torch.stack((done.loss.float(), done.norm.float(), loss_scale.skips)))
    return Report(step, rate, done.tokens, sent), after, loss_scale


def make_backward(
    model: nn.Module, loss: Loss, config: TrainConfig, warmup_batches: Callable[[], Iterable[Any]] = no_batches
) -> BackwardFunction:
    def autocast_backward(batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        with autocast(model, config):
            summed, count = loss(model, batch)
        (summed * scale).backward()
        return summed.detach(), count

    if device_of(model).type == "cpu" and config.precision != "bf16-pure" and not isinstance(loss, DistributedLoss):
        # autocast's cache of cast weights is shared by all threads
        return ThreadedBackward(model, loss, autocast_backward, lambda: autocast(model, config, cached=False))
    backward = BF16Backward(model, loss) if config.precision == "bf16-pure" else autocast_backward
    if config.cuda_graph and device_of(model).type == "cuda":
        return CapturedBackward(model, backward, warmup_batches)
    return backward


def is_captured(model: nn.Module, config: TrainConfig) -> bool:
    """Whether a step is captured as a whole, the optimiser included."""
    return config.capture_step and device_of(model).type == "cuda"


def make_step(
    model: nn.Module,
    data: TrainingData,
    loss: Loss,
    config: TrainConfig,
    optimiser: torch.optim.Optimizer,
    group: ProcessGroup = ProcessGroup(),
) -> BackwardFunction | CapturedStep | DistributedStep:
    """What `one_step` runs for the gradients of a batch, or for a whole step."""
    if group.size > 1:
        return DistributedStep.of(group, model, data, loss, config, optimiser, make_backward)
    if is_captured(model, config):
        return make_captured_step(model, loss, config, optimiser)
    return make_backward(model, loss, config, data.longest_first if isinstance(data, Corpus) else no_batches)


def make_optimiser(model: nn.Module, config: TrainConfig, *, captured: bool) -> torch.optim.Optimizer:
    """AdamW; FlatAdamW where a bfloat16 step is captured as a whole."""
    groups = parameter_groups(model, config.weight_decay)
    options = {"lr": config.schedule.rate(1), "betas": config.betas, "eps": 1e-9}
    if captured and config.precision == "bf16-pure":
        return FlatAdamW(groups, **options)
    return torch.optim.AdamW(groups, **options, fused=True, capturable=captured)


def make_captured_step(
    model: nn.Module,
    loss: Loss,
    config: TrainConfig,
    optimiser: torch.optim.Optimizer,
    capture: GraphCapture | None = None,
) -> CapturedStep:
    backward = make_backward(model, loss, replace(config, cuda_graph=False))
    if isinstance(optimiser, FlatAdamW):
        backward = FlatBF16Backward(model, loss, optimiser)
    return CapturedStep(model, optimiser, backward, clip=config.clip, capture=capture)


def check_divergence(pending: deque[Report], most: int) -> None:
    """Check the steps whose figures have arrived, and wait for those that more than `most` steps have followed."""
    while pending and (pending[0].scalars.is_ready or len(pending) > most):
        report = pending.popleft()
        if report.skips >= MAX_SKIPS:
            raise DivergedError(
                f"step {report.step}: the loss or its gradient was not a number {report.skips} times in a row; "
                f"lower the learning rate (it was {report.rate:.2g}) or use precision bfloat16 or float32"
            )


def check_finite_weights(model: nn.Module, progress: Progress, config: TrainConfig, report: Report) -> None:
    """Weights of a checkpoint must be finite, and so must some validation of a run that ends."""
    ends = progress.step == config.steps or out_of_patience(progress, config)
    never = ends and not has_finite_validation(progress)
    if never or not weights_are_finite(model):
        what = "no validation" if never else "not every weight"
        raise DivergedError(
            f"step {report.step}: {what} is a number; lower the learning rate (it was {report.rate:.2g}) or use "
            "precision bfloat16 or float32"
        )


def autocast(model: nn.Module, config: TrainConfig, *, cached: bool = True):
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(device_of(model).type, dtype=autocast_dtype(config), cache_enabled=cached)


def autocast_dtype(config: TrainConfig) -> torch.dtype:
    """The dtype of matrix products."""
    return torch.bfloat16 if config.precision == "bf16-pure" else getattr(torch, config.precision)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for biases, norms and other vectors."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for every step."""
    return mix64(seed * GOLDEN_GAMMA + step * MIX_1 + MIX_2) % 2**63
