"""Task registry: from the name of a task to how the commands train, evaluate and show its models.

Each task is one value in a file of its own, which is loaded when a command needs it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from regard.see.plots.panels import View
    from regard.tasks.config import RunSettings
    from regard.tasks.protocol import TaskModel
    from regard.tasks.splits import LoadedExamples, Split

MAX_SENTENCE_TOKENS, MAX_TEXT_TOKENS = 1000, 4096  # of an example, when a model is evaluated
TASK_NAMES = (
    "translation",
    "tagging",
    "sequence_classification",
    "language_modeling",
    "image_classification",
    "vqa",
    "node_classification",
    "autoencoding",
)


class TaskMetrics(Protocol):
    """What `regard evaluate` shows and writes."""

    def table(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...

    def lines(self) -> list[str]:
        """What the model said, a line for an example."""
        ...


@dataclass(frozen=True)
class ViewRequest:
    """What a view is asked for beside the text; None is the task's own choice."""

    head: str | None = None
    all_heads: bool = False
    word: str | None = None
    target: str | None = None
    beam: int = 5
    max_tokens: int = 1000
    question: str | None = None


@dataclass(frozen=True)
class Task:
    """One kind of model.

    Args:
        settings: the tables of its runs.
        examples: what they are called.
        read: the examples of a split of its [data]; the folder holds known corpora.
        from_examples: from training examples and settings, a model with new weights.
        from_description: the same from the folder of a run.
        load: from the folder of a run, to a device; at a checkpoint, or as the run stands.
        evaluate: a trained model on examples.
        view: a trained model, its folder and a text (or the path of a picture); what to say and to show of it.
        input_description: what `view` is given.
        token_ids: of examples, those that the model reads at once; none if it reads images, or a text in windows.
        max_tokens: how many of them an example may have when it is evaluated.
        after_training: what to save beside a trained model, from held-out examples.
        suggested_command: arguments of a command to try when it is trained.
    """

    settings: "type[RunSettings]"
    examples: str
    read: "Callable[[Any, Split, Path | None], LoadedExamples[Any]]"
    from_examples: "Callable[[Any, Any], TaskModel]"
    from_description: "Callable[[Path], TaskModel]"
    load: "Callable[[Path, str, str | None], TaskModel]"
    evaluate: "Callable[[Any, list[Any]], TaskMetrics]"
    view: "Callable[[Any, Path, str, ViewRequest], tuple[str, View]]"
    suggested_command: "Callable[[Path], tuple[object, ...]]"
    input_description: str = "a sentence"
    token_ids: "Callable[[Any, list[Any]], Iterable[Sequence[int]]]" = lambda learner, examples: ()
    max_tokens: int = MAX_SENTENCE_TOKENS
    after_training: "Callable[[Any, list[Any], Path], object]" = lambda learner, held_out, folder: None


def get_task(name: str) -> Task:
    """The task of a name, also of a former one."""
    from regard.tasks.config import resolve_task_name

    match resolve_task_name(name):
        case "translation":
            from regard.tasks.translation.cli import TRANSLATION as task
        case "tagging":
            from regard.tasks.tagging.cli import TAGGING as task
        case "sequence_classification":
            from regard.tasks.sequence_classification.cli import SEQUENCE_CLASSIFICATION as task
        case "language_modeling":
            from regard.tasks.language_modeling.cli import LANGUAGE_MODELING as task
        case "image_classification":
            from regard.tasks.image_classification.cli import IMAGE_CLASSIFICATION as task
        case "vqa":
            from regard.tasks.vqa.cli import VQA as task
        case "node_classification":
            from regard.tasks.node_classification.cli import NODE_CLASSIFICATION as task
        case "autoencoding":
            from regard.tasks.autoencoding.cli import AUTOENCODING as task
        case _:
            raise ValueError(f"no task is called {name!r}; choose from {', '.join(TASK_NAMES)}")
    return task


def task_of_run(folder: Path) -> Task:
    """The task of a run."""
    from regard.tasks.config import read_task_name
    from regard.tasks.pretrained import settings_path

    return get_task(read_task_name(settings_path(folder)))
