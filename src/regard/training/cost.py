"""Cost of a run: the time and memory of its steps, measured on a few whose weights are thrown away."""

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn

from regard.training.determinism import use_deterministic
from regard.training.loop import (
    FIRST_SCALE,
    MAX_PENDING,
    autocast,
    check_divergence,
    device_of,
    is_captured,
    make_optimiser,
    make_step,
    one_step,
)
from regard.training.run import TrainingRun
from regard.training.run_folder import Progress
from regard.training.step import LossScaleState, Report


def measure_steps(run: TrainingRun, pace: Callable[[int], float | None]) -> float:
    """Seconds per step, once `pace` knows them from the number of steps taken; the model is not that of the run then.

    A run of fewer steps is measured to its end, and a run of one step by that.
    """
    job, config, device = run.job, run.config, device_of(run.job.model)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    optimiser = make_optimiser(job.model, config, captured=is_captured(job.model, config))
    backward = make_step(job.model, job.data, job.loss, config, optimiser)
    scale = LossScaleState.of(0, FIRST_SCALE if config.precision == "float16" else 1.0, device)
    progress, seconds, pending = Progress(), None, deque[Report]()
    with use_deterministic(device) if config.deterministic else nullcontext():
        while seconds is None:
            began = time.perf_counter()
            report, progress, scale = one_step(job.model, optimiser, job.data, backward, config, progress, scale)
            pending.append(report)
            check_divergence(pending, MAX_PENDING)  # waits, as training does, for a GPU that is behind
            seconds = pace(report.step)
            if report.step >= config.steps:
                return seconds or time.perf_counter() - began
    return seconds


def measure_validation(run: TrainingRun) -> float:
    """Seconds that one validation takes."""
    began = time.perf_counter()
    run.job.model.eval()
    with torch.no_grad(), autocast(run.job.model, run.config):
        run.job.validate(run.job.model)
    return time.perf_counter() - began


def measure_memory(device: torch.device) -> int | None:
    """The peak in bytes: of a GPU since `measure_steps` began, else of the whole process; None where none is known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource  # Windows has none

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def weight_bytes(model: nn.Module) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def optimiser_bytes(model: nn.Module) -> int:
    """Of the gradients, and of the two moments that AdamW keeps of each."""
    return 3 * sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)
