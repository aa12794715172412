"""What makes a learner anew in; the learner trained without a break out, if one that was interrupted ends the same."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.tasks.pretrained import PretrainedModel
from regard.training.run import TrainingRun

L = TypeVar("L", bound=PretrainedModel)


def assert_resumes(
    fresh: Callable[[], L], examples: Sequence[Any], held_out: Sequence[Any], folder: Path, *, cut: int
) -> L:
    """Straight through in folder / "a"; left at step `cut` and gone on with in folder / "b": the same bits."""

    def run(place: Path, leave: int | None = None) -> L:
        one: Any = fresh()
        steps = TrainingRun(one.job(examples, held_out), place).steps()
        for report in steps:
            if report.step == leave:
                steps.close()
                return run(place)
        return one

    straight, resumed = run(folder / "a"), run(folder / "b", cut)
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    return straight
