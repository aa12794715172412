"""A small translator trained in a process of its own, which is killed from outside or kills itself at a moment."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from regard.data import SentencePair
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.training import checkpoint, loop
from regard.training.config import TrainSettings
from regard.training.run import TrainingRun
from regard.world import World, translation_pairs
from tests.forks import FORKS

OVERFLOWING = 2.0**20  # the first scale of a loss in float16, so that there are steps to skip
TRANSFORMER = ModelConfig(kind="transformer", layers=1, model=28, heads=2, hidden=44, dropout=0.2)
BAHDANAU = ModelConfig(kind="bahdanau", layers=2, model=12, hidden=14, dropout=0.2)
SENTENCES = [SentencePair(*each) for each in translation_pairs(World(max_length=6), "fr", 83 + 31)]
KNOWN, HELD_OUT = SENTENCES[:83], SENTENCES[83:]  # so few that a Transformer soon knows them by heart


def settings(model: ModelConfig, steps: int, **more: Any) -> TranslationSettings:
    often: Any = {"checkpoint_every": 2, "validate_every": 4, "average_checkpoints": 3}
    train = TrainSettings(steps=steps, batch_size=110, learning_rate=2e-3, warmup_steps=7, **often, **more)
    return TranslationSettings(text=PairTokenizerSettings(kind="words", joint=False), model=model, train=train)


SHORT = {
    "transformer that stops early": settings(
        TRANSFORMER, 300, schedule="constant", patience=3, gradient_accumulation=2
    ),
    "transformer in float16": settings(TRANSFORMER, 31, precision="float16", gradient_accumulation=3),
    "bahdanau in bfloat16": settings(BAHDANAU, 31, precision="bfloat16"),
}
LONG = {
    "transformer that stops late": settings(TRANSFORMER, 300, schedule="constant", patience=6, gradient_accumulation=2),
    "transformer in float16, longer": settings(TRANSFORMER, 71, precision="float16", gradient_accumulation=3),
    "bahdanau in bfloat16, longer": settings(BAHDANAU, 71, precision="bfloat16"),
}
RUNS = SHORT | LONG


def fit(name: str, folder: Path) -> TrainingRun:
    return TrainingRun(Translator.from_examples(KNOWN, RUNS[name]).job(KNOWN, HELD_OUT), folder)


# --- moments to die at, inside the second checkpoint that is written or the first that is deleted ---


@dataclass(frozen=True)
class Moment:
    """The n-th call of a function that is about such a file: `act` takes its place, and the process dies."""

    owner: Any
    function: str
    about: Callable[[Path], bool]
    act: Callable[..., Any]
    call: int = 2

    def prepare(self) -> None:
        function, calls = getattr(self.owner, self.function), count(1)

        def deadly(*args: Any, **more: Any) -> Any:
            path = next(each for each in args if isinstance(each, Path))
            if not self.about(path) or next(calls) < self.call:
                return function(*args, **more)
            self.act(function, *args)
            return os.kill(os.getpid(), signal.SIGKILL)

        setattr(self.owner, self.function, deadly)


def done(function: Callable, *args: Any) -> None:
    function(*args)


def not_done(function: Callable, *args: Any) -> None:
    pass


def half_written(function: Callable, tensors: Any, path: Path) -> None:
    function(tensors, path)
    path.write_bytes(path.read_bytes()[:99])


def half_deleted(function: Callable, folder: Path) -> None:
    sorted(folder.iterdir())[0].unlink()


MOMENTS = {
    "in the file of the weights": Moment(checkpoint, "save_tensors", lambda path: "model" in path.name, half_written),
    "after the file of the weights": Moment(checkpoint, "save_tensors", lambda path: "model" in path.name, done),
    "after the file of the optimiser": Moment(checkpoint, "save_tensors", lambda path: "optim" in path.name, done),
    "before the rename": Moment(Path, "rename", lambda path: ".draft" in path.name, not_done),
    "after the rename": Moment(Path, "rename", lambda path: ".draft" in path.name, done),
    "in deleting": Moment(shutil, "rmtree", lambda path: ".gone" in path.name and path.exists(), half_deleted, 1),
}


# --- from outside ---


@dataclass(frozen=True)
class Lived:
    """What a process did: the steps it reported, and how it ended."""

    steps: list[int]
    exitcode: int | None

    @property
    def killed(self) -> bool:
        return self.exitcode == -signal.SIGKILL


@dataclass(frozen=True)
class Soon:
    """Killed from outside, some time after it reported this step."""

    step: int
    seconds: float


def live(name: str, folder: Path, end: Soon | str | None = None) -> Lived:
    """Train in a process of its own, to the end of the run or the given one."""
    receiver, process = born(name, folder, end if isinstance(end, str) else None)
    steps: list[int] = []
    try:
        while True:
            steps.append(receiver.recv())
            if isinstance(end, Soon) and steps[-1] == max(end.step, steps[0]):
                time.sleep(end.seconds)
                process.kill()
    except (EOFError, OSError):
        process.join()
    return Lived(steps, process.exitcode)


@contextmanager
def lives(name: str, folder: Path) -> Iterator[ForkServerProcess]:
    """A process that is training."""
    receiver, process = born(name, folder, None)
    try:
        receiver.recv()
        yield process
    finally:
        process.kill()
        process.join()


def born(name: str, folder: Path, moment: str | None) -> tuple[Connection, ForkServerProcess]:
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=life, args=(name, folder, moment, sender))
    process.start()
    sender.close()  # so that the end of the process is the end of what it has to say
    return receiver, process


def life(name: str, folder: Path, moment: str | None, pipe: Connection) -> None:
    torch.set_num_threads(1)
    loop.FIRST_SCALE = OVERFLOWING
    if moment:
        MOMENTS[moment].prepare()
    for report in fit(name, folder).steps():
        pipe.send(report.step)
