"""What a task brings to training in; a folder with the finished model out, going on if interrupted.

A run's folder holds what the task describes (settings.toml and the like) from the start, checkpoints/ and log.jsonl
while it runs, and in the end model.safetensors: the mean of the last checkpoints, or the best of them.
"""

import json
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from regard.models.weights import load_weights, write_weights
from regard.tasks.job import Job
from regard.tasks.packed import PackedCorpus
from regard.tasks.run_folder import CHECKPOINTS, WEIGHTS, checkpoints, whole
from regard.tasks.settings import TrainSettings
from regard.train.checkpoint import average
from regard.train.claim import Claim, claimed
from regard.train.log import Log
from regard.train.loop import Plan, Report, train
from regard.train.schedule import Constant, Cosine, Noam, Schedule


@dataclass(frozen=True, eq=False)
class Fit:
    """A job, and the folder where it is done; a claim of it, if somebody has made one for longer than this lasts."""

    job: Job
    folder: Path
    claim: Claim | None = None

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
        return max((int(path.name) for path in checkpoints(self.folder / CHECKPOINTS) if whole(path)), default=0)

    def steps(self) -> Generator[Report]:
        """Train, a report for each step; leaving early saves. The finished model is written at the end."""
        job = self.job
        # all of it, since whoever comes second would describe another run
        with nullcontext() if self.claim else claimed(self.folder):
            refuse_undoing(self.folder, self.plan)
            note, log = job.describe(self.folder), Log(self.folder)
            with closing(train(job.model, job.data, job.loss, self.plan, self.folder, job.validate)) as steps:
                for report in steps:
                    (self.folder / WEIGHTS).unlink(missing_ok=True)  # of an earlier end, where a run was extended
                    log.add(report)
                    yield report
            finish(job.model, job.train.average, self.folder, note)


def refuse_undoing(folder: Path, plan: Plan) -> None:
    """A run can be made shorter, but not than it is."""
    steps = [int(path.name) for path in checkpoints(folder / CHECKPOINTS)]
    if steps and steps[-1] > plan.steps:
        raise ValueError(
            f"{folder} has taken {steps[-1]:,} steps already, more than {plan.steps:,}; ask for at least as many, or "
            f"use a checkpoint as it is: {', '.join(map(str, steps))}"
        )


def finish(model: nn.Module, count: int, folder: Path, note: str = "") -> None:
    """The weights to keep: the mean of the `count` newest checkpoints; of one only, the best that validation found."""
    paths = [path for path in checkpoints(folder / CHECKPOINTS) if whole(path)]
    best = json.loads((paths[-1] / "state.json").read_text())["progress"]["best_step"]
    chosen = paths[-count:] if count > 1 else [path for path in paths if int(path.name) == best] or paths[-1:]
    final = folder / WEIGHTS
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
