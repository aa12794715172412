"""Public API: load, train and trace a model, in one line each.

import regard

model = regard.train(train="pairs.tsv", out="run", steps=500)
print(model.translate("the black cat ate the mouse"))
model.look("the black cat ate the mouse").save("alignment.png")
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from regard.attention.parts import find_own_parts
from regard.cli.look import ModelInput, view_input
from regard.cli.options import Split, resolve_device
from regard.cli.progress import with_progress
from regard.cli.runs import read_examples
from regard.cli.train import train_run
from regard.interop.foreign import is_transformers_model
from regard.see import Trace, ascii, draw, save, trace_model
from regard.see.plots.panels import View
from regard.tasks.metrics import TaskMetrics
from regard.tasks.model_packages import resolve_model
from regard.tasks.own_parts import OwnParts, PartReference
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import Task
from regard.tasks.registry import ViewRequest, task_of_run
from regard.tasks.train_request import TrainRequest, resolve_task

FilePaths = str | Path | Sequence[str | Path]


@dataclass(frozen=True, eq=False)
class AttentionView:
    """What a model made of an input, and its attention: text when printed, a picture in a notebook or a file."""

    output: str
    view: View

    def __str__(self) -> str:
        return f"{self.output}\n\n{ascii(self.view)}"

    def save(self, path: str | Path) -> Path:
        """Writes the picture: .png, .svg or .pdf."""
        return save(draw(self.view), Path(path))

    def _repr_png_(self) -> bytes:
        return draw(self.view)._repr_png_()


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A trained model: callable on its inputs, and with all that its task's own object has, its verb above all.

    `model.translate(...)`, `model.tag(...)`, `model.classify(...)`, `model.generate(...)`, `model.answer(...)` and
    `model.reconstruct(...)` are methods of that object, `task_model`; `model(...)` calls the one there is.

    Args:
        task: which kind of model it is.
        task_model: the network, its tokenizers and labels, and the settings of its run.
        folder: of the run.

    Examples:
        >>> model = regard.load("run")
        >>> model
        LoadedModel('run', task='translation', verb='translate')
        >>> len(model(["the cat sleeps", "a dog"]))
        2
    """

    task: Task
    task_model: PretrainedModel
    folder: Path

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The output for an input, or for each of a list, as the task's verb gives it."""
        if not self.task.verb:
            raise ValueError(
                f"{self.folder} is run by transformers; here it is traced: model.trace(text), model.look(text)"
            )
        return getattr(self.task_model, self.task.verb)(*inputs, **options)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in dir(self.task_model):
            return getattr(self.task_model, name)
        verb = f"its verb is {self.task.verb!r}" if self.task.verb else "trace it or look at it"
        raise AttributeError(f"a model for the task {self.task.name!r} has no {name!r}; {verb}")

    def __dir__(self) -> list[str]:
        plumbing = {*dir(PretrainedModel)} - {"save"}
        shared = (name for name in dir(self.task_model) if not name.startswith("_") and name not in plumbing)
        return sorted({*super().__dir__(), *shared})

    def __repr__(self) -> str:
        return f"LoadedModel({str(self.folder)!r}, task={self.task.name!r}, verb={self.task.verb!r})"

    def evaluate(
        self, on: FilePaths | None = None, *, split: Split = "valid", data: str | Path | None = None, search: Any = None
    ) -> TaskMetrics:
        """The metrics on files in the format of the training files, or on a split of the corpus it was trained on.

        Args:
            data: the folder that holds known corpora.
            search: how a model that writes decodes, such as `regard.decode.Beam(4)`; by default as `regard evaluate`.
        """
        examples, _ = read_examples(self.task, self.task_model, file_paths(on), split, Path(data) if data else None)
        return self.task.evaluate(self.task_model, examples, search=search, progress=with_progress)

    def trace(self, text: str, **options: Any) -> Trace:
        """What the model makes of an input, with every attention as it ran; options as of `regard.trace`."""
        return trace_model(self.task_model, text, **options)

    def look(self, text: str, **options: Any) -> AttentionView:
        """The output and its attention, to print, to show in a notebook or to save.

        Args:
            options: head, all_heads, word, target, beam, question, as of `regard look`.
        """
        seen = ModelInput(self.task, self.task_model, self.folder, text, ViewRequest(**options))
        return AttentionView(*view_input(seen))


def load(
    run: str | Path,
    *,
    device: str = "auto",
    checkpoint: str | int | None = None,
    parts: Iterable[PartReference] = (),
    changed_parts: Iterable[PartReference] = (),
) -> LoadedModel:
    """A trained model from the folder of its run, or of one of its checkpoints, or by the name of a shipped model.

    Args:
        run: a folder, or a name that `regard models` lists, such as "en-fr"; a folder of that name comes first.
        device: cpu, cuda, cuda:1 or mps; auto takes the fastest there is.
        checkpoint: best, last or a step; by default the final weights, or the best checkpoint of an interrupted run.
        parts: Python files of your own parts, which are run, or the classes themselves. A run that was trained with
            some needs them again; a file that is not named here is not run.
        changed_parts: the same, of files that have changed since.

    Examples:
        >>> output = regard.load("run", checkpoint="best").translate("the cat sleeps")
        >>> output.source
        'the cat sleeps'
    """
    return load_run(resolve_model(run), device, checkpoint, OwnParts.load(parts, changed_parts))


def load_run(folder: Path, device: str, checkpoint: str | int | None, own_parts: OwnParts) -> LoadedModel:
    task = task_of_run(folder)
    return LoadedModel(task, task.task_model.load(folder, resolve_device(device), checkpoint, own_parts), folder)


def train(
    task: str | None = None,
    *,
    train: FilePaths | None = None,
    valid: FilePaths | None = None,
    out: str | Path = "run",
    recipe: str | Path | None = None,
    init_from: str | Path | None = None,
    data: str | Path | None = None,
    device: str = "auto",
    track: str | None = None,
    parts: Iterable[PartReference] = (),
    changed_parts: Iterable[PartReference] = (),
    **settings: Any,
) -> LoadedModel:
    """Trains a model as `regard train` does, with its defaults, progress and resuming, and loads it.

    Without training files or a corpus the model learns the miniature world. Ctrl-C saves a checkpoint and returns the
    model as it stands; the same call goes on.

    Args:
        task: translation (the default), tagging, sequence_classification, language_modeling and so on.
        train: a file, or several.
        valid: the same, for validation.
        out: the run's folder; a run that is there is resumed.
        recipe: a TOML file of settings.
        init_from: a run, or a shipped model, to begin with the weights and the vocabulary of (fine-tuning).
        data: the folder that holds known corpora.
        track: tensorboard, wandb or mlflow, to follow the run there; its log is out/log.jsonl in any case.
        parts, changed_parts: Python files of your own parts, which are run, as of `regard.load`.
        settings: by their keys, such as steps=2000, model="bahdanau", size="tiny", vocab_size=4000; a key of several
            tables with its table: **{"train.max_length": 100}. An attention is a `Recipe`: attention=Recipe(...), or of
            a translator encoder=Recipe(...), decoder=... and cross=.... `regard settings TASK` lists all keys.

    Examples:
        >>> model = regard.train(train="pairs.tsv", out="run", size="tiny", steps=2, batch_size=64)
        >>> model.task_model.settings.train.steps
        2
    """
    folder = Path(out)
    toml, corpora = (Path(path) if path else None for path in (recipe, data))
    start = resolve_model(init_from) if init_from else None
    files = {"data.train": file_paths(train), "data.valid": file_paths(valid)}
    overrides: dict[str, object] = {name: value for name, value in files.items() if value}
    if train is not None:
        overrides["data.corpus"] = "files"
    if not isinstance(settings.get("attention", ""), str):
        settings[attention_key(resolve_task(start or folder, toml, task))] = settings.pop("attention")
    own_parts = OwnParts.load(parts, changed_parts).load_more(find_own_parts(list(settings.values())).values())
    request = TrainRequest(folder, toml, overrides | settings, corpora, device, task, start, own_parts=own_parts)
    run = train_run(request, track)
    return load_run(folder, device, None, run.own_parts)


def attention_key(task: Task) -> str:
    """The setting of the recipe of a model's attention, where all its layers have the same."""
    names = task.settings.keys()["model"]
    if "recipe" in names:
        return "model.recipe"
    places = [f"{name}=Recipe(...)" for name in ("encoder", "decoder", "cross") if name in names]
    remedy = f"; name one: {', '.join(places)}" if places else ""
    raise ValueError(f"a model for the task {task.name!r} has {len(places) or 'no'} recipes of attention{remedy}")


def trace(model: LoadedModel | PretrainedModel | nn.Module | str | Path, *inputs: Any, **options: Any) -> Trace:
    """What a model makes of an input, with every attention as it ran: see `regard.see.trace_model` for the options.

    Args:
        model: a trained model, its folder or name, the folder of a Hugging Face model, or a model of transformers.
        inputs: the text; of a model of transformers its tokenizer, and the text, or its image processor or processor,
            and a picture or a sound: the path of a file, or what is in memory.

    Examples:
        >>> seen = regard.trace("run", "the cat sleeps")
        >>> seen.axes["source"].labels
        ('the', 'cat', 'sleeps', '</s>')
    """
    if isinstance(model, nn.Module):
        return trace_huggingface(model, *inputs, **options)
    return trace_model(model.task_model if isinstance(model, LoadedModel) else model, *inputs, **options)


def trace_huggingface(model: nn.Module, *inputs: Any, **options: Any) -> Trace:
    if not is_transformers_model(model):
        raise ValueError(f"{type(model).__name__} is no model of transformers; watch it with regard.watch(model)")
    if len(inputs) != 2:
        raise ValueError(
            "a model of transformers needs its tokenizer or processor too: regard.trace(model, tokenizer, text)"
        )
    from regard.interop.huggingface.tasks import HuggingFaceTaskModel

    processor, given = inputs
    return trace_model(HuggingFaceTaskModel.of(model, processor), given, **options)


def file_paths(files: FilePaths | None) -> list[str]:
    if files is None:
        return []
    return [str(files)] if isinstance(files, str | Path) else [str(file) for file in files]
