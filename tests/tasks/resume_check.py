"""Exact resume: a run that was left or killed ends with the bits of one without a break."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.models.safetensors_io import saveable_tensors
from regard.tasks.pretrained import PretrainedModel
from regard.training.run import TrainingRun

L = TypeVar("L", bound=PretrainedModel)


def assert_resumes(
    fresh: Callable[[], L], examples: Sequence[Any], held_out: Sequence[Any], folder: Path, *, cut: int
) -> L:
    """Straight through in folder / "a", left at step `cut` in folder / "b", killed there in "c": the same bits."""

    def run(place: Path, leave: int | None = None) -> L:
        one: Any = fresh()
        steps = TrainingRun(one.job(examples, held_out), place).steps()
        for report in steps:
            if report.step == leave:  # the process could have died here: what is on the disk then
                shutil.copytree(place, folder / "c", ignore=shutil.ignore_patterns(".lock"))
                steps.close()
        return one

    straight = run(folder / "a")
    run(folder / "b", cut)
    for resumed in (run(folder / "b"), run(folder / "c")):
        wanted, found = (saveable_tensors(one.model) for one in (straight, resumed))
        assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    return straight
