"""Training: the loop, schedules, checkpoints and deterministic resuming."""

from regard.training.checkpoint import Progress, average, checkpoints, read_checkpoint, write_checkpoint
from regard.training.config import TrainConfig, TrainingData
from regard.training.distributed import ProcessGroup, join_processes
from regard.training.loop import DivergedError, train
from regard.training.step import ConstantSchedule, CosineSchedule, NoamSchedule, Report, Schedule

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "DivergedError",
    "NoamSchedule",
    "ProcessGroup",
    "Progress",
    "Report",
    "Schedule",
    "TrainConfig",
    "TrainingData",
    "average",
    "checkpoints",
    "join_processes",
    "read_checkpoint",
    "train",
    "write_checkpoint",
]
