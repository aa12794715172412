"""Training run: trains a task's model in a folder, resumes if interrupted, and writes the final weights; its cost.

A run's folder holds what the task describes (settings.toml and the like) from the start, checkpoints/ and log.jsonl
while it runs, and in the end model.safetensors: the average of the last checkpoints, or the best of them.

The log has a line for the first step and the last, every few seconds of training, every validation and every change of
settings:

{"step": 300, "loss": 2.31, "rate": 0.001, "tokens_per_second": 5210.3, "time": "2026-01-31T12:00:05+00:00"}
{"step": 400, "loss": 2.25, …, "validation": {"loss": 2.4}}
{"step": 400, "changed": {"train.steps": [1000, 2000]}, "time": …}

A run that was killed resumes from its newest checkpoint, so later steps come again: the later line holds. A tracker
(TensorBoard and the like) is sent all steps up to a line before that line is written, so the log says what it has.
"""

import json
import logging
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data.files import require_file
from regard.layers.transformer_layers import EncoderLayer
from regard.models.safetensors_io import load_weights, write_weights
from regard.models.transformer import Transformer
from regard.training.checkpoint import (
    CHECKPOINTS,
    WEIGHTS,
    FolderLock,
    Progress,
    average,
    checkpoints,
    lock_folder,
    read_valid_state,
)
from regard.training.config import TrainConfig, TrainingJob, make_train_config
from regard.training.distributed import ProcessGroup
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
    train,
)
from regard.training.numerics import use_deterministic
from regard.training.packed_corpus import PackedBatches
from regard.training.step import LossScaleState, Report
from regard.training.tracking import RUN_IDS, TrackedStep, Tracker


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A job and its folder; its lock, if the caller holds one already; a tracker that shows its figures.

    Args:
        group: the processes that train it together; rank 0 alone writes to the folder.
    """

    job: TrainingJob
    folder: Path
    lock: FolderLock | None = None
    tracker: Tracker | None = None
    group: ProcessGroup = ProcessGroup()

    def __post_init__(self):
        if self.job.train.packed and not isinstance(self.job.data, PackedBatches):
            raise ValueError("train.packed = true: only sentence pairs can be packed; leave it out")
        if self.job.train.cuda_graph and self.job.capture_objection:
            raise ValueError(f"train.cuda_graph = true is not possible: {self.job.capture_objection}; leave it out")
        if self.group.size > 1 and (why := self.job.shard_objection or batch_norm_objection(self.job.model)):
            raise ValueError(f"{self.group.size} processes cannot share its batches: {why}; train it in one process")
        if self.job.train.best_metric not in self.job.figures:
            found = " and ".join(self.job.figures)
            raise ValueError(
                f"train.best_metric = {self.job.train.best_metric!r}: validation finds {found}; choose that"
            )

    @property
    def config(self) -> TrainConfig:
        return make_train_config(self.job.train, self.job.width)

    @property
    def last_step(self) -> int:
        """The step of the newest checkpoint."""
        return max(
            (int(path.name) for path in checkpoints(self.folder / CHECKPOINTS) if read_valid_state(path)), default=0
        )

    def steps(self) -> Generator[Report]:
        """Train, a report for each step; leaving early saves. The finished model is written at the end."""
        job = self.job
        training = train(job.model, job.data, job.loss, self.config, self.folder, job.validate, self.group)
        if not self.group.is_main:
            yield from training
            return
        # around all of it, since a second process would overwrite the description
        with nullcontext() if self.lock else lock_folder(self.folder):
            check_steps(self.folder, self.config)
            note = job.describe(self.folder)
            with TrainingLog.open(self.folder, self.tracker) as log, closing(training) as steps:
                for report in steps:
                    (self.folder / WEIGHTS).unlink(missing_ok=True)  # of an earlier end, if the run is extended
                    log.add(report)
                    yield report
            if self.group.size > 1:
                job.model.to(self.group.device)  # with FSDP it is on the host
            write_final_weights(job.model, job.train.average_checkpoints, self.folder, note)


def batch_norm_objection(model: nn.Module) -> str:
    """Why processes cannot share a batch, each with its rows; "" if they can."""
    found = [type(part).__name__ for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    return f"{found[0]} takes the mean over all examples of a batch" if found else ""


def check_steps(folder: Path, config: TrainConfig) -> None:
    """A run cannot be made shorter than it is already."""
    steps = [int(path.name) for path in checkpoints(folder / CHECKPOINTS)]
    if steps and steps[-1] > config.steps:
        raise ValueError(
            f"{folder} has taken {steps[-1]:,} steps already, more than {config.steps:,}; ask for at least as many, or "
            f"use a checkpoint as it is: {', '.join(map(str, steps))}"
        )


def write_final_weights(model: nn.Module, count: int, folder: Path, note: str = "") -> None:
    """The average of the `count` newest checkpoints; for a count of 1, the best by validation."""
    paths = [path for path in checkpoints(folder / CHECKPOINTS) if read_valid_state(path)]
    best = json.loads((paths[-1] / "state.json").read_text())["progress"]["best_step"]
    chosen = paths[-count:] if count > 1 else [path for path in paths if int(path.name) == best] or paths[-1:]
    final = folder / WEIGHTS
    write_weights(average(chosen), final, note)
    load_weights(model, final)
    model.eval()


# --- the log ---


LOG_FILE = "log.jsonl"
LOG_INTERVAL = 5.0  # seconds


def write_line(folder: Path, step: int, **what: Any) -> None:
    """Append a line. A run does not fail because its log cannot be written: its checkpoints report a full disk."""
    line = json.dumps({"step": step, **what, "time": datetime.now(UTC).isoformat(timespec="seconds")})
    with suppress(OSError), (folder / LOG_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, oldest first; the last may be torn, if the run was killed."""
    path = folder / LOG_FILE
    if not path.exists():
        return []
    lines = require_file(path).read_text(encoding="utf-8", errors="replace").splitlines()
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse_log_line(line))
        except (ValueError, RecursionError):
            if number < len(lines):
                raise ValueError(f"{path}:{number}: not a line of a training log; delete that line") from None
    return found


def parse_log_line(line: str) -> dict[str, Any]:
    match json.loads(line):
        case {"step": int(), **rest} as found if isinstance(rest.get("validation", {}), dict):
            return found
    raise ValueError("a line has a step, and figures of its validation by name")


@dataclass
class TrainingLog:
    """The log of a run's steps. On a GPU figures are written when they have arrived, without waiting for them.

    Args:
        tracker: is sent every step beyond `tracked_step`, each time that a line is written.
    """

    folder: Path
    tracker: Tracker | None = None
    tracked_step: int = 0
    pending: deque[Report] = field(default_factory=deque)
    untracked: list[TrackedStep] = field(default_factory=list)
    last: Report | None = None
    logged_step: int = 0
    tokens: int = 0
    since: float = field(default_factory=time.perf_counter)

    @staticmethod
    @contextmanager
    def open(folder: Path, tracker: Tracker | None) -> Iterator["TrainingLog"]:
        """A log that ends with the last step that was taken; leaving the block finishes the tracker."""
        log, completed = TrainingLog(folder, tracker, last_logged_step(folder) if tracker else 0), False
        try:
            yield log
            completed = True
        except GeneratorExit:  # the caller has seen enough; an error of a step would come again
            log.write_last()
            raise
        finally:
            log.track(lambda tracker: tracker.finish(completed=completed))

    def add(self, report: Report) -> None:
        self.pending.append(report)
        while self.pending and (self.pending[0].validation or self.pending[0].scalars.is_ready):
            self.write(self.pending.popleft())

    def write(self, report: Report) -> None:
        self.tokens += report.tokens
        took = time.perf_counter() - self.since
        is_first, self.last = self.last is None, report
        if self.tracker and report.step > self.tracked_step:
            self.untracked.append((report.step, tracked_figures(report)))
        if is_first or took >= LOG_INTERVAL or report.validation:
            self.write_figures(report, took)

    def write_figures(self, report: Report, took: float) -> None:
        speed = round(self.tokens / max(took, 1e-9), 1)
        if self.untracked:
            steps, self.untracked = self.untracked, []
            steps[-1] = (report.step, {**steps[-1][1], "train/tokens_per_second": speed})
            self.track(lambda tracker: tracker.log(steps))
        what: dict[str, Any] = {"loss": finite_or_none(report.loss), "rate": report.rate, "tokens_per_second": speed}
        if report.validation:
            what["validation"] = finite_figures(report.validation)
        write_line(self.folder, report.step, **what)
        self.logged_step, self.tokens, self.since = report.step, 0, time.perf_counter()

    def write_last(self) -> None:
        """The step that a run was left at."""
        while self.pending:
            self.write(self.pending.popleft())
        if self.last and self.last.step > self.logged_step:
            self.write_figures(self.last, time.perf_counter() - self.since)

    def track(self, send: Callable[[Tracker], None]) -> None:
        """Calls the tracker; a run does not fail because its tracker does."""
        if self.tracker is None:
            return
        try:
            send(self.tracker)
        except Exception as error:  # each library has exceptions of its own
            name, self.tracker = type(self.tracker).__name__, None
            logging.getLogger(__name__).warning(f"{name} fails, and gets no further figures of this run: {error}")


def discard_log(folder: Path) -> None:
    """Deletes the log of a run that another one replaces, and the ids that trackers know it by."""
    for name in (LOG_FILE, RUN_IDS):
        (folder / name).unlink(missing_ok=True)


def last_logged_step(folder: Path) -> int:
    """The highest step that the log holds; 0 if it holds none."""
    return max((line["step"] for line in read_log(folder)), default=0)


def tracked_figures(report: Report) -> dict[str, float]:
    """The figures of a step, by the names that trackers show; only numbers."""
    figures = {"train/loss": report.loss, "train/learning_rate": report.rate, "train/gradient_norm": report.norm}
    figures |= {f"valid/{name}": value for name, value in (report.validation or {}).items()}
    return {name: value for name, value in figures.items() if finite_or_none(value) is not None}


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return value if value - value == 0 else None


def finite_figures(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in figures.items()}


# --- what a run costs ---
# FLOPs are those of the model, not what an implementation does besides (Chowdhery et al. 2022, appendix B): each weight
# of a product is used once by each token forwards and twice backwards, two operations each time. Causal attention costs
# half.


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


# --- the machine ---


def describe_hardware() -> dict[str, Any]:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in read_file("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
    }


def read_file(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""
