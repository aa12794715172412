"""Training run: trains a task's model in a folder, resumes if interrupted, and writes the final weights.

A run's folder holds what the task describes (settings.toml and the like) from the start, checkpoints/ and log.jsonl
while it runs, and in the end model.safetensors: the average of the last checkpoints, or the best of them.
"""

import json
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from regard.models.safetensors_io import load_weights, write_weights
from regard.train.checkpoint import average
from regard.train.config import TrainSettings
from regard.train.corpus import PackedCorpus
from regard.train.job import TrainingJob
from regard.train.lock import FolderLock, lock_folder
from regard.train.loop import Report, TrainConfig, train
from regard.train.report import TrainingLog
from regard.train.run_folder import CHECKPOINTS, WEIGHTS, checkpoints, read_valid_state
from regard.train.schedule import ConstantSchedule, CosineSchedule, NoamSchedule, Schedule


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A job and its folder; its lock, if the caller holds one already."""

    job: TrainingJob
    folder: Path
    lock: FolderLock | None = None

    def __post_init__(self):
        if self.job.train.packed and not isinstance(self.job.data, PackedCorpus):
            raise ValueError("train.packed = true: only sentence pairs can be packed; leave it out")
        if self.job.train.cuda_graph and self.job.capture_objection:
            raise ValueError(f"train.cuda_graph = true is not possible: {self.job.capture_objection}; leave it out")

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
        # around all of it, since a second process would overwrite the description
        with nullcontext() if self.lock else lock_folder(self.folder):
            check_steps(self.folder, self.config)
            note, log = job.describe(self.folder), TrainingLog(self.folder)
            with closing(train(job.model, job.data, job.loss, self.config, self.folder, job.validate)) as steps:
                for report in steps:
                    (self.folder / WEIGHTS).unlink(missing_ok=True)  # of an earlier end, if the run is extended
                    log.add(report)
                    yield report
            write_final_weights(job.model, job.train.average_checkpoints, self.folder, note)


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


def make_train_config(train: TrainSettings, width: int) -> TrainConfig:
    return TrainConfig(
        make_schedule(train, width),
        train.steps,
        seed=train.seed,
        clip=train.max_grad_norm,
        weight_decay=train.weight_decay,
        precision=train.precision,
        validate_every=train.validate_every,
        checkpoint_every=train.checkpoint_every,
        best=train.best_metric,
        patience=train.patience,
        deterministic=train.deterministic,
        cuda_graph=train.cuda_graph,
        capture_step=train.cuda_graph
        and train.packed
        and train.gradient_accumulation == 1,  # packed batches have one shape
        keep=max(2, train.average_checkpoints, train.keep_checkpoints),  # the one before, should the newest be damaged
    )


def make_schedule(train: TrainSettings, width: int) -> Schedule:
    match train.schedule:
        case "noam":
            return NoamSchedule(width, train.warmup_steps, train.learning_rate)
        case "cosine":
            return CosineSchedule(train.learning_rate, train.steps, min(train.warmup_steps, train.steps - 1))
        case _:
            return ConstantSchedule(train.learning_rate, train.warmup_steps)
