"""Train request: what is to be trained and where; its task, settings and model, new, resumed or fine-tuned."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from regard.attention.backends.packed import MAX_ROW
from regard.data.files import make_folder
from regard.models.safetensors_io import load_weights, saveable_tensors, write_weights
from regard.tasks.config import (
    DEFAULT_TASK,
    RunSettings,
    changed_settings,
    effective_examples,
    fit_to_data,
    plan_steps,
    read_tables,
    read_task_name,
    resolve_task_name,
)
from regard.tasks.own_parts import OwnParts, read_record
from regard.tasks.pretrained import PretrainedModel, load_settings
from regard.tasks.protocol import Task
from regard.tasks.registry import get_task, task_of_run
from regard.tasks.splits import LoadedExamples
from regard.training.checkpoint import SETTINGS, FolderLock, resolve_run
from regard.training.config import TrainingData, make_schedule, make_train_config, warmup_for
from regard.training.corpus import PrefetchedMixture
from regard.training.distributed import ProcessGroup
from regard.training.packed_corpus import PackedCorpus, PackedMixture
from regard.training.run import TrainingRun

# initial weights, in a run folder: the run may be killed before its first checkpoint
START_WEIGHTS = "start.safetensors"
# tables on which neither the model nor its vocabulary depends
MODEL_INDEPENDENT_TABLES = ("data", "augment", "train", "measure")
# below this many tokens in a batch a second thread does not pay; on a busy machine two wait long for each other
SMALL_BATCH_TOKENS = 512


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """What is to be trained, and where.

    Args:
        out: the run's folder.
        recipe: a TOML file of settings.
        overrides: settings by their keys, which come before those of the recipe.
        data: the folder that holds known corpora.
        start: a run to begin with the weights and the vocabulary of.
        checkpoint: which of that run.
        own_parts: parts of the user's own that settings may name.
        stop: whether to save and to leave; asked after every step.
    """

    out: Path
    recipe: Path | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    data: Path | None = None
    device: str = "auto"
    task: str | None = None
    start: Path | None = None
    checkpoint: str | None = None
    own_parts: OwnParts | None = None
    stop: Callable[[], bool] = lambda: False


# --- a run before its first step ---


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A run before its first step: all is read, checked and built, and nothing is written.

    Args:
        existing: the settings that the run in the folder has, if there is one to resume.
        last_step: the step of its newest checkpoint.
        start: the run whose weights it begins with.
        fitted_examples: how many its steps follow from; None if they are set.
    """

    task: Task
    task_model: Any  # PretrainedModel
    fit: TrainingRun
    examples: LoadedExamples[Any]
    held_out: LoadedExamples[Any]
    existing: RunSettings | None
    last_step: int
    start: Path | None
    fitted_examples: int | None

    @property
    def changes(self) -> dict[str, list[Any]]:
        """Settings that differ from those of the run in the folder: [before, after]."""
        return changed_settings(self.existing, self.task_model.settings) if self.existing else {}

    def lines(self) -> Iterator[str]:
        """The data, the model, the length, and what is changed of the run in the folder."""
        settings = self.task_model.settings
        yield from describe_run(self.task, settings, self.fit, self.last_step, self.examples, self.held_out)
        fits = f", to fit {self.fitted_examples:,} {self.task.examples}" if self.fitted_examples is not None else ""
        yield f"{describe_length(self.task, settings, self.fit)}{fits}"
        if self.start and not self.existing:
            yield f"initialised with the weights and the vocabulary of {self.start}"
        if self.existing and self.changes:
            yield from change_notices(self.fit, self.last_step, self.existing, self.changes)


def prepare_run(
    request: TrainRequest,
    lock: FolderLock | None = None,
    group: ProcessGroup | None = None,
    *,
    notice: Callable[[str], object],
    status: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> PreparedRun:
    """Reads the data, resolves the settings and builds the model, as far as all of it makes sense.

    Args:
        request: its device is one that torch can use.
        notice: is told of files that are run because a recipe names them.
        status: a context that shows what is being done.
    """

    group = group or ProcessGroup()
    out, recipe, start = request.out, request.recipe, request.start
    device = request.device
    kind = resolve_task(start or out, recipe, request.task)
    overrides = kind.settings.current_names(request.overrides)
    own_parts = with_recipe_parts(request.own_parts or OwnParts(), recipe, notice)
    settings, existing = resolve_settings(kind, out, recipe, overrides, start, own_parts)
    make_train_config(settings.train, 1)  # an error in it should not wait for the corpus to be read
    with status(f"reading {kind.examples}"):
        examples, held_out = (kind.read(settings, split, request.data) for split in ("train", "valid"))
    settings = kind.fit_settings(settings, examples.examples, overrides)
    follows = existing is None and recipe is None and "data.corpus" in overrides
    count = effective_examples(examples.examples)
    if follows and not start:
        settings = kind.fit_settings(fit_to_data(settings, count, overrides), examples.examples, overrides)
    if device == "cpu" and settings.train.batch_size <= SMALL_BATCH_TOKENS:
        torch.set_num_threads(1)
    with status("preparing the model"):
        task_model: Any = existing and replace(existing, settings=settings)  # type: ignore[type-var]
        if start and not existing:
            task_model = load_start(kind, start, settings, request.checkpoint, own_parts)
        task_model = task_model or kind.task_model.from_examples(examples.examples, settings)
        job = task_model.job(examples.examples, held_out.examples, device)
        if follows:
            train = plan_steps(settings.train, count, job.data.steps(0), overrides)
            task_model = replace(task_model, settings=replace(settings, train=train))  # type: ignore[type-var]
            job = replace(job, train=train, describe=task_model.describe)
        fit = TrainingRun(job, out, lock, group=group)
    done, before = fit.last_step, existing.settings if existing else None
    refuse_finished_run(fit, done, changed_settings(before, settings) if before else {})
    fitted = count if follows and "train.steps" not in overrides else None
    return PreparedRun(kind, task_model, fit, examples, held_out, before, done, start, fitted)


def describe_run(
    task: Task,
    settings: RunSettings,
    fit: TrainingRun,
    done: int,
    examples: LoadedExamples[Any],
    held_out: LoadedExamples[Any],
) -> Iterator[str]:
    """The data, the model, the device, and how many examples are skipped."""
    train, total = fit.job.train, len(examples.examples) + len(held_out.examples)
    if skipped := examples.skipped:
        yield f"skipped: {len(skipped):,} of {total + len(skipped):,} {task.examples}, for empty parts ({skipped[0]})"
    if fit.job.left_out:
        limits = f"train.max_length = {train.max_length} or train.batch_size = {train.batch_size}"
        yield f"skipped: {fit.job.left_out:,} of {total:,} {task.examples}, with more tokens on a side than {limits}"
    if notice := describe_rows(fit.job.data):
        yield notice
    weights = sum(parameter.numel() for parameter in fit.job.model.parameters())
    existing = f"; resuming from step {done:,}" if done else ""
    yield (
        f"{len(examples.examples):,} {task.examples}, {len(held_out.examples):,} for validation; "
        f"{settings.model.kind} with {weights:,} parameters on {next(fit.job.model.parameters()).device}{existing}"
    )


def describe_rows(data: TrainingData) -> str:
    """Why a GPU could be faster with shorter rows of packed texts; nothing if it could not."""

    match data.batches if isinstance(data, PrefetchedMixture) else data:
        case PackedCorpus(labels=labels, device=device):
            length = labels.shape[1]
        case PackedMixture(plan=plan, device=device):
            length = plan.length
        case _:
            return ""
    if device == "cpu" or length <= MAX_ROW:
        return ""
    return (
        f"rows of {length} tokens, as the longest pairs need: with train.max_length = {MAX_ROW - 1}, which "
        f"leaves out longer ones, they have {MAX_ROW} at most, and one kernel attends to a row at once"
    )


def describe_length(task: Task, settings: RunSettings, fit: TrainingRun) -> str:
    """Steps, batch size, epochs and vocabulary size."""
    train = fit.job.train
    batch = f" of {train.batch_size * train.gradient_accumulation:,} {task.batch_unit}" if task.batch_unit else ""
    text = vars(settings).get("text")
    subwords = f", {text.vocab_size:,} subwords" if text and text.kind in ("bpe", "unigram") else ""
    epochs = f"{train.steps / fit.job.data.steps(0):,.0f}"
    return f"{train.steps:,} steps{batch} (≈ {epochs} epoch{'s' * (epochs != '1')}){subwords}"


# --- fine-tuning: weights and vocabulary of another run ---


def start_settings(task: Task, start: Path, overrides: Mapping[str, object], own_parts: OwnParts) -> RunSettings:
    """The settings of the run to initialise from, without its files where other files are passed."""

    found: Any = load_settings(start, task.settings, own_parts)
    if overrides.keys() & {"data.train", "data.corpus"}:
        found = replace(found, data=replace(found.data, train=(), valid=(), test=()))
    return found


def load_start(
    task: Task, start: Path, settings: RunSettings, checkpoint: str | None, own_parts: OwnParts
) -> PretrainedModel:
    """The model and vocabulary of the run to initialise from; the tables that define them must be equal."""
    task_model: Any = task.task_model.load(start, "cpu", checkpoint, own_parts)
    if name := changed_model_table(task_model.settings, settings):
        raise ValueError(
            f"{start} was trained with another [{name}]; to initialise from it, leave out what changes that table"
        )
    return replace(task_model, settings=settings)


def changed_model_table(one: RunSettings, other: RunSettings) -> str | None:
    """The first table in which two settings of a task differ such that their models differ."""
    differ = (name for name in one.table_names() if getattr(one, name) != getattr(other, name))
    return next((name for name in differ if name not in MODEL_INDEPENDENT_TABLES), None)


def keep_start_weights(task_model: PretrainedModel, out: Path, start: Path | None, *, resumed: bool) -> None:
    """Saves the initial weights of a fine-tuning run until its first checkpoint, and reloads them on resume."""

    if resumed:
        if (out / START_WEIGHTS).exists():
            load_weights(task_model.model, out / START_WEIGHTS)
    elif start is None:
        remove_start_weights(out)  # left over from another run
    else:
        make_folder(out)
        write_weights(saveable_tensors(task_model.model), out / START_WEIGHTS)


def start_weights_saved(out: Path) -> list[str]:
    """The file of initial weights, which a fine-tuning run has before its first checkpoint."""
    return [START_WEIGHTS] if (out / START_WEIGHTS).exists() else []


def remove_start_weights(out: Path) -> None:
    (out / START_WEIGHTS).unlink(missing_ok=True)


# --- resuming with other settings ---


def change_notices(fit: TrainingRun, done: int, before: RunSettings, changes: Mapping[str, list[Any]]) -> Iterator[str]:
    """The changed settings, and whether the weights will differ from those of a run that had them from the start."""

    for name, (was, now) in changes.items():
        yield f"changed: {name} = {now} (was {was})"
    old, new = (make_schedule(train, fit.job.width) for train in (before.train, fit.job.train))
    if other := next((step for step in range(1, done + 1) if old.rate(step) != new.rate(step)), None):
        yield (
            f"the {fit.job.train.schedule} schedule gives other learning rates from step {other:,} on, so the weights "
            f"will not be those of a run with it from the start; the learning rate is now {new.rate(done + 1):.2e}"
        )


def refuse_finished_run(fit: TrainingRun, done: int, changes: Mapping[str, list[Any]]) -> None:
    """Other data for a finished run is a forgotten --out, or meant as --init-from."""
    data = [name for name in changes if name.startswith("data.")]
    if data and done >= fit.job.train.steps:
        raise ValueError(
            f"{fit.folder} holds a run with another {data[0]}, trained to its last step, {done:,}; choose another "
            f"--out, resume it with more --steps, or fine-tune its model: --init-from {fit.folder}"
        )


# --- the task and the settings of a run ---


def resolve_task(out: Path, recipe: Path | None, name: str | None) -> Task:
    """The task of --task, of the recipe, of the run in the folder, or translation."""

    if recipe is None:
        there = task_of_run(out) if (resolve_run(out)[0] / SETTINGS).exists() else None
        return get_task(name) if name else there or get_task(DEFAULT_TASK)
    if recipe.suffix != ".toml" and not recipe.is_dir():
        raise ValueError(f"{recipe}: a recipe ends in .toml; pass two text files as --train ONE --train OTHER")
    if name and resolve_task_name(name) != (written := read_task_name(recipe)):
        raise ValueError(f"{recipe} is a recipe for the task {written!r}, not {name!r}; leave out --task")
    return get_task(read_task_name(recipe))


def with_recipe_parts(own_parts: OwnParts, recipe: Path | None, notice: Callable[[str], object]) -> OwnParts:
    """And those of the files that a recipe names; the settings of a run are none: what they name is not run."""

    if recipe is None or recipe.name == SETTINGS:
        return own_parts
    named = [recipe.parent / one.file for one in read_record(read_tables(recipe).get("parts", [])) if not one.names]
    files = [file for file in named if file.absolute() not in own_parts.files]
    for file in files:
        notice(f"{recipe} runs {file}")
    return own_parts.load_more(files)


def resolve_settings(
    task: Task,
    out: Path,
    recipe: Path | None,
    overrides: Mapping[str, object],
    start: Path | None,
    own_parts: OwnParts,
) -> tuple[RunSettings, PretrainedModel | None]:
    """The settings of the run, and the model in its folder, if there is one.

    Flags change the settings of an existing run; a recipe, or data for a run without a checkpoint, replaces them.
    A run with weights refuses settings of another model: they need a folder of their own.
    """

    saved = [name for name in ("model.safetensors", "checkpoints/*/*") if any(out.glob(name))]
    if not (out / SETTINGS).exists():
        if saved:
            raise ValueError(f"{out} holds {saved[0]} but no settings.toml, so it is not a run; choose another --out")
        return build_settings(task, recipe, overrides, start, own_parts), None
    existing = task_of_run(out).task_model.from_description(out, own_parts)
    saved = saved or start_weights_saved(out)
    same_task = isinstance(existing.settings, task.settings)
    replaced = not saved and (start or overrides.keys() & {"data.corpus", "data.train"})
    if recipe or replaced or not same_task:
        wanted = build_settings(task, recipe, overrides, start, own_parts)
    else:
        wanted = (
            existing.settings.with_changes(overrides, own_parts).with_absolute_paths(Path.cwd())
            if overrides
            else existing.settings
        )
    if wanted == existing.settings:
        return wanted, existing
    if not saved:
        return wanted, None
    if same_task and not changed_model_table(existing.settings, wanted):
        return wanted, existing
    name, (was, now) = next(
        (name, both)
        for name, both in changed_settings(existing.settings, wanted).items()
        if name.split(".")[0] not in MODEL_INDEPENDENT_TABLES
    )
    key = name.split(".")[-1]
    raise ValueError(
        f"{out} holds a run with {key} = {json.dumps(was)}, not {key} = {json.dumps(now)}; choose another --out, or "
        f"resume it: {shlex.join(['regard', 'train', '--out', str(out)])}"
    )


def build_settings(
    task: Task,
    recipe: Path | None,
    overrides: Mapping[str, object],
    start: Path | None,
    own_parts: OwnParts,
) -> RunSettings:
    """Paths in a recipe are relative to the recipe, those on the command line to the working directory."""

    if recipe is not None:
        usual = task.settings.load(recipe, own_parts).with_absolute_paths(recipe.absolute().parent)
    elif start is not None:
        usual = start_settings(task, start, overrides, own_parts)
    else:
        usual = task.settings() if "data.corpus" in overrides else task.settings.of_world()
    settings = usual.with_changes(overrides, own_parts).with_absolute_paths(Path.cwd())
    if recipe is None and "train.steps" in overrides and "train.warmup_steps" not in overrides:
        warmup = min(settings.train.warmup_steps, warmup_for(settings.train.steps))
        return replace(settings, train=replace(settings.train, warmup_steps=warmup))  # type: ignore[type-var]
    return settings
