"""Cost of a run: the FLOPs of a Transformer's training, and the time and memory of steps, measured on a few.

FLOPs are those of the model, not what an implementation does besides (Chowdhery et al. 2022, appendix B): each weight
of a product is used once by each token forwards and twice backwards, two operations each time. Causal attention costs
half.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import nn

from regard.models.transformer import Transformer
from regard.models.transformer_layers import EncoderLayer
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
from regard.training.numerics import use_deterministic
from regard.training.run import TrainingRun
from regard.training.run_folder import Progress
from regard.training.step import LossScaleState, Report

# --- FLOPs ---


def flops(model: Transformer, lengths: Sequence[tuple[int, int]]) -> float:
    """Additions and multiplications, forwards and backwards; lengths in tokens, of source and target."""
    first = model.encoder[0]
    assert isinstance(first, EncoderLayer)
    up = first.feed_forward.up
    assert isinstance(up, nn.Linear)
    layers, width, hidden = len(model.decoder), model.embeddings.width, up.out_features
    source, target = (sum(side) for side in zip(*lengths, strict=True))
    square, feed_forward = width**2, 2 * width * hidden
    # the source is also each decoder layer's keys and values
    products = layers * (source * (4 * square + feed_forward + 2 * square) + target * (6 * square + feed_forward))
    logits = target * width * len(model.embeddings.bias)
    attention = layers * width * sum(2 * s * s + t * t + 2 * s * t for s, t in lengths)
    return 6.0 * (products + logits + attention)


def measure_matmul_flops(device: torch.device | str, dtype: torch.dtype = torch.bfloat16, *, size: int = 8192) -> float:
    """FLOP/s of one large matrix product on a GPU: what a model's utilisation is measured against."""
    a, b, c = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
    for _ in range(3):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize(device)
    began, times = time.perf_counter(), 20
    for _ in range(times):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize(device)
    return 2.0 * size**3 * times / (time.perf_counter() - began)


# --- time and memory ---


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
