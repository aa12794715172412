"""Training: the loop, schedules, checkpoints and exact resuming."""

from regard.train.checkpoint import Progress, average, checkpoints, read_checkpoint, write_checkpoint
from regard.train.loop import Data, Diverged, Plan, Report, train
from regard.train.schedule import Constant, Cosine, Noam, Schedule
