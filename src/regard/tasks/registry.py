"""Task registry: the table of all tasks, which the command line, traces and the page iterate.

A task is one folder, and its line here. In the folder, task.py holds `TASK`, which is loaded when a command needs it.
cli.py may hold `COMMANDS`, the task's own commands by name, `FORMER_COMMANDS`, the same by names they had, and `view`,
what `regard look` shows. It loads without torch, so that `regard --help` is instant.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.decode import Sampling
    from regard.tasks.protocol import Task

TASKS: dict[str, str] = {
    "translation": "regard.tasks.translation",
    "tagging": "regard.tasks.tagging",
    "sequence_classification": "regard.tasks.sequence_classification",
    "language_modeling": "regard.tasks.language_modeling",
    "masked_language_modeling": "regard.tasks.masked_language_modeling",
    "image_classification": "regard.tasks.image_classification",
    "vqa": "regard.tasks.vqa",
    "node_classification": "regard.tasks.node_classification",
    "autoencoding": "regard.tasks.autoencoding",
}
"""The tasks by name, each with its package; `regard train --task NAME` trains a model for one.

Examples:
    >>> ", ".join(list(TASKS)[:4])
    'translation, tagging, sequence_classification, language_modeling'
    >>> TASKS["translation"]
    'regard.tasks.translation'
"""
# Those of Hugging Face models: they are traced and looked at like any other, but neither trained nor evaluated here.
FOREIGN_TASKS = ("causal_lm", "seq2seq_lm", "text_encoder", "image_encoder", "speech_seq2seq")
FOREIGN_MODULE = "regard.interop.huggingface"
MAX_SENTENCE_TOKENS, MAX_TEXT_TOKENS = 1000, 4096  # of an example, when a model is evaluated


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
    sampling: "Sampling | None" = None  # how the output is drawn
    branches: tuple[str, ...] = ()  # STEP:TOKEN, tokens that are forced


def get_task(name: str) -> "Task":
    """The task of a name, also of a former one, or of a Hugging Face model.

    Examples:
        >>> task = get_task("tagging")
        >>> task.name, task.verb
        ('tagging', 'tag')
        >>> get_task("taging")
        Traceback (most recent call last):
            ...
        ValueError: no task is called 'taging'; did you mean tagging?
    """
    from regard.models.config_base import suggest
    from regard.tasks.config import resolve_task_name

    if name in FOREIGN_TASKS:
        return import_module(f"{FOREIGN_MODULE}.tasks").TASKS[name]
    if (found := resolve_task_name(name)) not in TASKS:
        raise ValueError(f"no task is called {name!r:.80}; {suggest(name, TASKS)}")
    return import_module(f"{TASKS[found]}.task").TASK


def get_commands(name: str) -> ModuleType | None:
    """The command line of a task, if it has one of its own."""
    module = f"{TASKS[name]}.cli" if name in TASKS else None
    return import_module(module) if module and find_spec(module) else None


def task_of_run(folder: Path) -> "Task":
    """The task of a run, or of the folder of a Hugging Face model.

    Examples:
        >>> from pathlib import Path
        >>> task_of_run(Path("run")).name
        'translation'
    """
    from regard.tasks.config import read_task_name
    from regard.tasks.pretrained import settings_path

    if is_huggingface_folder(folder):
        return get_task(import_module(f"{FOREIGN_MODULE}.checkpoint").task_name(folder))
    return get_task(read_task_name(settings_path(folder)))


def is_huggingface_folder(folder: Path) -> bool:
    """Whether a folder holds a model as transformers saves it, and no run of ours."""
    return (folder / "config.json").is_file() and not (folder / "settings.toml").exists()
