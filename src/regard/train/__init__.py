"""Training: the loop, schedules, checkpoints and deterministic resuming."""

from regard.train.checkpoint import average, read_checkpoint, write_checkpoint
from regard.train.config import TrainConfig, TrainingData
from regard.train.loop import DivergedError, train
from regard.train.run_folder import Progress, checkpoints
from regard.train.step import ConstantSchedule, CosineSchedule, NoamSchedule, Report, Schedule

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "DivergedError",
    "NoamSchedule",
    "Progress",
    "Report",
    "Schedule",
    "TrainConfig",
    "TrainingData",
    "average",
    "checkpoints",
    "read_checkpoint",
    "train",
    "write_checkpoint",
]
