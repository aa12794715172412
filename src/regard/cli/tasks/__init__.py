"""The name of a task in; out comes how the commands train, measure and look into its models.

Each task is one value in a file of its own, which is loaded when a command needs it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from regard.cli.options import LONGEST

if TYPE_CHECKING:
    from regard.see.panel import View
    from regard.tasks.data import Read, Split
    from regard.tasks.job import Learner
    from regard.tasks.tables import Tables

NAMES = ("translate", "tag", "classify", "write", "picture", "answer", "graph", "rebuild")


class Measured(Protocol):
    """What `regard evaluate` shows and writes."""

    def table(self) -> str: ...

    def figures(self) -> dict[str, Any]: ...

    def lines(self) -> list[str]:
        """What the model said, a line for an example."""
        ...


@dataclass(frozen=True)
class Looking:
    """What `regard look` is asked for beside the text; None is the task's own choice."""

    head: str | None = None
    every: bool = False
    word: str | None = None
    target: str | None = None
    beam: int = 5
    longest: int = 1000
    question: str | None = None


@dataclass(frozen=True)
class Task:
    """One kind of model.

    Args:
        settings: the tables of its runs.
        examples: what they are called.
        read: the examples of a split of its [data]; the folder holds known corpora.
        fresh: from training examples and settings, a model with new weights.
        described: the same from the folder of a run.
        load: from the folder of a run, to a device; at a checkpoint, or as the run stands.
        measure: a trained model on examples.
        look: a trained model, its folder and a text (or the path of a picture); what to say and to show of it.
        reads: what `look` is given.
        ids: of examples, those that the model reads at once; none if it reads pictures, or a text in windows.
        longest: how many of them an example may have when it is measured.
        finish: what to keep beside a trained model, from held-out examples.
        tries: arguments of a command to try when it is trained; it asks for what it reads, which we do not know.
    """

    settings: "type[Tables]"
    examples: str
    read: "Callable[[Any, Split, Path | None], Read[Any]]"
    fresh: "Callable[[Any, Any], Learner]"
    described: "Callable[[Path], Learner]"
    load: "Callable[[Path, str, str | None], Learner]"
    measure: "Callable[[Any, list[Any]], Measured]"
    look: "Callable[[Any, Path, str, Looking], tuple[str, View]]"
    tries: "Callable[[Path], tuple[object, ...]]"
    reads: str = "a sentence"
    ids: "Callable[[Any, list[Any]], Iterable[Sequence[int]]]" = lambda learner, examples: ()
    longest: int = LONGEST
    finish: "Callable[[Any, list[Any], Path], object]" = lambda learner, held_out, folder: None


def task_of(name: str) -> Task:
    match name:
        case "translate":
            from regard.cli.tasks.translate import TRANSLATE as task
        case "tag":
            from regard.cli.tasks.tag import TAG as task
        case "classify":
            from regard.cli.tasks.classify import CLASSIFY as task
        case "write":
            from regard.cli.tasks.write import WRITE as task
        case "picture":
            from regard.cli.tasks.picture import PICTURE as task
        case "answer":
            from regard.cli.tasks.answer import ANSWER as task
        case "graph":
            from regard.cli.tasks.graph import GRAPH as task
        case "rebuild":
            from regard.cli.tasks.rebuild import REBUILD as task
        case _:
            raise ValueError(f"no task is called {name!r}; choose from {', '.join(NAMES)}")
    return task


def task_at(folder: Path) -> Task:
    """The task of a run."""
    from regard.tasks.kept import described
    from regard.tasks.tables import task_in

    return task_of(task_in(described(folder)))
