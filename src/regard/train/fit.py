"""What a task brings to training in; a folder with the finished model out, going on if interrupted.

A run's folder holds what the task describes (settings.toml and the like) from the start, checkpoints/ while it runs,
and in the end model.safetensors: the mean of the last checkpoints, or the best of them.
"""

import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from regard.models.weights import load_weights, write_weights
from regard.tasks.job import Job
from regard.tasks.packed import PackedCorpus
from regard.tasks.settings import TrainSettings
from regard.train.checkpoint import average, checkpoints, whole
from regard.train.claim import claimed
from regard.train.loop import Plan, Report, train
from regard.train.schedule import Constant, Cosine, Noam, Schedule


@dataclass(frozen=True, eq=False)
class Fit:
    """A job, and the folder where it is done."""

    job: Job
    folder: Path

    def __post_init__(self):
        if self.job.train.packed and not isinstance(self.job.data, PackedCorpus):
            raise ValueError("train.packed = true: only sentence pairs can be packed; leave it out")
        if self.job.train.capture and self.job.unrecorded:
            raise ValueError(f"train.capture = true cannot be had: {self.job.unrecorded}; leave it out")

    @property
    def plan(self) -> Plan:
        return plan_of(self.job.train, self.job.width)

    @property
    def done(self) -> int:
        """The step of the newest checkpoint."""
        return max((int(path.name) for path in checkpoints(self.folder / "checkpoints") if whole(path)), default=0)

    def steps(self) -> Generator[Report]:
        """Train, a report for each step; leaving early saves. The finished model is written at the end."""
        job = self.job
        with claimed(self.folder):  # all of it, since whoever comes second would describe another run
            note = job.describe(self.folder)
            yield from train(job.model, job.data, job.loss, self.plan, self.folder, job.validate)
            finish(job.model, job.train.average, self.folder, note)


def finish(model: nn.Module, count: int, folder: Path, note: str = "") -> None:
    """The weights to keep: the mean of the `count` newest checkpoints; of one only, the best that validation found."""
    paths = [path for path in checkpoints(folder / "checkpoints") if whole(path)]
    best = json.loads((paths[-1] / "state.json").read_text())["progress"]["best_step"]
    chosen = paths[-count:] if count > 1 else [path for path in paths if int(path.name) == best] or paths[-1:]
    final = folder / "model.safetensors"
    write_weights(average(chosen), final, note)
    load_weights(model, final)
    model.eval()


def plan_of(train: TrainSettings, width: int) -> Plan:
    return Plan(
        schedule_of(train, width),
        train.steps,
        seed=train.seed,
        clip=train.clip,
        weight_decay=train.decay,
        precision=train.precision,
        validate_every=train.validate_every,
        checkpoint_every=train.checkpoint_every,
        best=train.best,
        patience=train.patience,
        exact=train.exact,
        capture=train.capture,
        whole=train.capture and train.packed and train.accumulate == 1,  # packed batches have one shape
        keep=max(2, train.average, train.keep),  # the one before, should the newest be torn
    )


def schedule_of(train: TrainSettings, width: int) -> Schedule:
    match train.schedule:
        case "noam":
            return Noam(width, train.warmup, train.rate)
        case "cosine":
            return Cosine(train.rate, train.steps, min(train.warmup, train.steps - 1))
        case _:
            return Constant(train.rate, train.warmup)
