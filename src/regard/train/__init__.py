"""Training: the loop, schedules, checkpoints and deterministic resuming."""

from regard.train.checkpoint import Progress, average, checkpoints, read_checkpoint, write_checkpoint
from regard.train.loop import DivergedError, Report, TrainConfig, TrainingData, train
from regard.train.schedule import ConstantSchedule, CosineSchedule, NoamSchedule, Schedule
