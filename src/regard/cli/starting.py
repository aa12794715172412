"""A trained run and other examples in; the same model with its vocabulary, ready to learn from them, out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.tasks import Task

if TYPE_CHECKING:
    from regard.tasks.job import Learner
    from regard.tasks.tables import Tables

WEIGHTS = "start.safetensors"  # in a run's folder: those it began with, for it may be killed before a checkpoint
FREE = ("data", "augment", "train", "measure")  # tables by which no weight and no vocabulary is made


def settings_at(task: Task, start: Path, asked: Mapping[str, object]) -> "Tables":
    """Those of the run to start from, without its own files where others are given."""
    from regard.tasks.kept import settings_in

    found: Any = settings_in(start, task.settings)
    if asked.keys() & {"data.train", "data.corpus"}:
        found = replace(found, data=replace(found.data, train=(), valid=(), test=()))
    return found


def started(task: Task, start: Path, settings: "Tables", checkpoint: str | None = None) -> "Learner":
    """Its model and vocabulary; whatever they were made by must be as it was."""
    learner: Any = task.load(start, "cpu", checkpoint)
    if name := other_model(learner.settings, settings):
        raise ValueError(
            f"{start} was trained with another [{name}]; to start from it, leave out what changes that table"
        )
    return replace(learner, settings=settings)


def other_model(one: "Tables", other: "Tables") -> str | None:
    """The first table in which two settings of a task differ so that their models are not the same."""
    differ = (name for name in one.names() if getattr(one, name) != getattr(other, name))
    return next((name for name in differ if name not in FREE), None)


def settle(learner: "Learner", out: Path, start: Path | None, *, begun: bool) -> None:
    """The weights that a run began with are kept until it is trained, and are those it begins with again."""
    from regard.models.weights import load_weights, tensors_of, write_weights
    from regard.text.files import make_folder

    if begun:
        if (out / WEIGHTS).exists():
            load_weights(learner.model, out / WEIGHTS)
    elif start is None:
        forget(out)  # what is left of another
    else:
        make_folder(out)
        write_weights(tensors_of(learner.model), out / WEIGHTS)


def has_begun(out: Path) -> list[str]:
    """What a run that began with another's model has before its first checkpoint."""
    return [WEIGHTS] if (out / WEIGHTS).exists() else []


def forget(out: Path) -> None:
    (out / WEIGHTS).unlink(missing_ok=True)
