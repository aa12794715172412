"""`regard train`: trains, resumes and fine-tunes a model from a recipe and flags, or says what that would take."""

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    FILES,
    MAX_QUOTED,
    ChangedPartsOption,
    DataFolder,
    DeviceOption,
    PartsOption,
    load_parts,
    model_folder,
    resolve_device,
    shell_command,
    with_progress,
    writable_folder,
)
from regard.tasks.registry import TASKS, get_task, task_of_run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from regard.tasks.config import RunSettings
    from regard.tasks.own_parts import OwnParts
    from regard.tasks.pretrained import PretrainedModel
    from regard.tasks.protocol import Task
    from regard.tasks.splits import LoadedExamples
    from regard.training.checkpoint import FolderLock
    from regard.training.config import TrainingData
    from regard.training.distributed import ProcessGroup
    from regard.training.run import TrainingRun
    from regard.training.step import Report

# initial weights, in a run folder: the run may be killed before its first checkpoint
START_WEIGHTS = "start.safetensors"
# tables on which neither the model nor its vocabulary depends
MODEL_INDEPENDENT_TABLES = ("data", "augment", "train", "measure")
# below this many tokens in a batch a second thread does not pay; on a busy machine two wait long for each other
SMALL_BATCH_TOKENS = 512
DRY_RUN = "Train nothing: print the recipe of the run, the model's size, and the memory and time it would take."
# settings that are strings and have a flag of their own
FLAG_NAMES = {
    "data.corpus": "--corpus",
    "data.source": "--from",
    "data.target": "--to",
    "model.kind": "--model",
    "model.size": "--size",
    "train.precision": "--precision",
}


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML file with [data], [text], [model], [train].")] = None,
    task: Annotated[str | None, typer.Option(help=f"{', '.join(TASKS)}; default: translation.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder; an existing run is resumed.")] = Path("run"),
    start: Annotated[
        Path | None,
        typer.Option(
            "--init-from",
            "--start",
            help="Initialise weights and vocabulary from this run, or a model of regard models (fine-tuning).",
            callback=model_folder,
        ),
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of --init-from: best, last or a step.")] = None,
    train: Annotated[list[str] | None, typer.Option(help=FILES)] = None,
    valid: Annotated[list[str] | None, typer.Option(help="The same for validation.")] = None,
    corpus: Annotated[str | None, typer.Option(help="A known corpus instead of files; see regard data.")] = None,
    source: Annotated[str | None, typer.Option("--from", help="The language to translate from.")] = None,
    target: Annotated[str | None, typer.Option("--to", help="The language to translate into.")] = None,
    model: Annotated[str | None, typer.Option(help="transformer, bahdanau, luong-dot, luong-general, gru, …")] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small or base.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps.")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "--tokens", min=1, help="Tokens in a batch, padding included.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--rate", help="Peak learning rate.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, as table.key=value.")] = None,
    data: DataFolder = None,
    device: DeviceOption = "auto",
    parts: PartsOption = None,
    changed_parts: ChangedPartsOption = None,
    track: Annotated[
        str | None, typer.Option(help="Show the curves in tensorboard, wandb or mlflow; the log is OUT/log.jsonl.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", hidden=True)] = False,  # noqa: FBT002
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,  # noqa: FBT002
) -> None:
    """Train a model. Without training files it learns the miniature world in about a minute.

    Ctrl-C saves a checkpoint; the same command resumes, and ends with the same weights as an uninterrupted run. An
    interrupted run can be used by every command. A run can be resumed with other settings if they do not change its
    model: --steps makes it longer or shorter.

    Steps, tokens in a batch and subwords follow from the number of examples, unless they are set.

    Example: `regard train --train train.en --train train.de --to de --size small --out run`

    Example: `regard train recipes/multi30k-en-de.toml --data corpora --out run`

    Example: `regard train --task tagging --train train.conllu --valid dev.conllu --out tagger`

    Example: `regard train --out run` (resumes the run)

    Example: `regard train --out run --steps 20000` (resumes the run until then)

    Example: `regard train --init-from run --train my.en --train my.de --learning-rate 1e-4 --steps 500 --out mine`

    Example: `regard train --train prepared --size base --out run` (token files of regard data prepare)

    Example: `regard train --train prepared/europarl:1 --train prepared/tatoeba:3 --out run` (weights)

    Example: `regard train --train train.tsv --size small --dry-run > recipe.toml` (what it would do, and take)

    Example: `regard train --track tensorboard --out run`

    Example: `regard train --parts mine.py --set model.encoder='score = "Gated()"' --out run` (a part of your own)
    """
    track = track or ("tensorboard" if tensorboard else None)
    flags = {
        "data.train": train,
        "data.valid": valid,
        "data.corpus": corpus or ("files" if train else None),
        "data.source": source,
        "data.target": target,
        "model.kind": model,
        "model.size": size,
        "train.steps": steps,
        "train.batch_size": batch_size,
        "train.learning_rate": learning_rate,
        "train.precision": precision,
        "train.seed": seed,
        **dict(parse_assignment(line) for line in set_ or []),
    }
    overrides = {name: value for name, value in flags.items() if value is not None}
    if checkpoint and not start:
        raise ValueError(f"--checkpoint {checkpoint} is of the run to initialise from; add --init-from RUN")
    try:
        own_parts = load_parts(parts, changed_parts)
        request = TrainRequest(out, recipe, overrides, data, device, task, start, checkpoint, own_parts)
        if dry_run:
            if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
                raise ValueError("--dry-run measures one process; leave out torchrun, or --dry-run")
            writable_folder(out)
            print_dry_run(prepare_run(request))
            return
        run = train_run(request, track)
    except ValueError as mistake:
        raise ValueError(name_flags(str(mistake), overrides)) from None
    if not run.is_main:
        raise typer.Exit(0 if run.finished else 130)
    files = [word for file in run.own_parts.files for word in ("--parts", file)]
    if run.finished:
        typer.echo(f"trained: {out}; try: {shell_command('regard', run.task.suggested_command, out, *files)}")
        return
    again = ["--out", out, *(["--data", data] if data else []), *(["--track", track] if track else [])]
    again += [*(["--device", device] if device != "auto" else []), *files]
    typer.echo(f"saved: {out} at step {run.last_step:,}; resume with: {shell_command('regard', 'train', *again)}")
    raise typer.Exit(130)


def name_flags(message: str, overrides: Mapping[str, object]) -> str:
    """Appends the flag that set the quoted value: the library's messages do not know the flags of a command."""
    from regard.tasks.config import parse_value

    values = {
        name: parse_value(value) for name, value in overrides.items() if isinstance(value, str) and name not in message
    }
    flags = [
        f"{FLAG_NAMES[name]} {value[:MAX_QUOTED]}" if name in FLAG_NAMES else f"--set {name}={value[:MAX_QUOTED]}"
        for name, value in values.items()
        if isinstance(value, str) and repr(value) in message
    ]
    return f"{message} (set by {' and '.join(flags)})" if flags else message


@dataclass(frozen=True)
class TrainedRun:
    """How training ended: at its last step, or interrupted before."""

    task: "Task"
    finished: bool
    last_step: int
    own_parts: "OwnParts"  # that the model uses
    is_main: bool = True  # rank 0, if several processes trained it


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
    own_parts: "OwnParts | None" = None
    stop: Callable[[], bool] = lambda: False


def train_run(request: TrainRequest, track: str | None = None) -> TrainedRun:
    """Trains a run to its end, or until it is interrupted; an interrupted run is resumed.

    If torchrun started several processes, all of them call this, and train one run together.
    """
    from regard.training.distributed import join_processes

    with join_processes(resolve_device(request.device)) as group:
        return train_in_group(replace(request, device=group.device), group, track)


def train_in_group(request: TrainRequest, group: "ProcessGroup", track: str | None) -> TrainedRun:
    from regard.tasks.own_parts import OwnParts
    from regard.training.checkpoint import SETTINGS, lock_folder, save_example
    from regard.training.run import discard_log, last_logged_step, write_line
    from regard.training.tracking import TrackedRun, require_tracker, start_tracker

    out = request.out
    console = progress_console(quiet=not group.is_main)
    if track:
        require_tracker(track)
    # first, so that a refused command has changed nothing of the run that holds the lock
    with lock_folder(writable_folder(out)) if group.is_main else nullcontext() as claim:
        run = prepare_run(request, claim, group)
        group.barrier()  # all have read the folder now
        fit, task_model = run.fit, run.task_model
        if group.is_main and run.existing is None and (out / SETTINGS).exists():
            discard_log(out)
        if group.is_main or run.existing:
            keep_start_weights(task_model, out, request.start, resumed=run.existing is not None)
        for line in run.lines():
            console.print(line)
        if run.changes and group.is_main:
            write_line(out, run.last_step, changed=run.changes)
        if track and group.is_main:
            tracked = TrackedRun(out, task_model.settings.to_flat_dict(), last_logged_step(out))
            fit = replace(fit, tracker=start_tracker(track, tracked))
        finished = train_with_progress(fit, console, request.stop)
        if finished and group.is_main:
            remove_start_weights(out)
            run.task.after_training(task_model, run.held_out.examples, out, progress=with_progress)
            if task_model.settings.data.corpus != "world":  # its sentence is known
                save_example(out, map(run.task.example_text, run.held_out.examples))
        group.barrier()  # the run is complete
        return TrainedRun(run.task, finished, fit.last_step, OwnParts(task_model.settings.own_parts), group.is_main)


def progress_console(*, quiet: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, quiet=quiet)


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

    task: "Task"
    task_model: Any  # PretrainedModel
    fit: "TrainingRun"
    examples: "LoadedExamples[Any]"
    held_out: "LoadedExamples[Any]"
    existing: "RunSettings | None"
    last_step: int
    start: Path | None
    fitted_examples: int | None

    @property
    def changes(self) -> dict[str, list[Any]]:
        """Settings that differ from those of the run in the folder: [before, after]."""
        from regard.tasks.config import changed_settings

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
    request: TrainRequest, lock: "FolderLock | None" = None, group: "ProcessGroup | None" = None
) -> PreparedRun:
    """Reads the data, resolves the settings and builds the model, as far as all of it makes sense."""
    import torch

    from regard.tasks.config import changed_settings, effective_examples, fit_to_data, plan_steps
    from regard.tasks.own_parts import OwnParts
    from regard.training.config import make_train_config
    from regard.training.distributed import ProcessGroup
    from regard.training.run import TrainingRun

    group = group or ProcessGroup()
    out, recipe, start = request.out, request.recipe, request.start
    console, device = progress_console(quiet=not group.is_main), resolve_device(request.device)
    kind = resolve_task(start or out, recipe, request.task)
    overrides = kind.settings.current_names(request.overrides)
    own_parts = with_recipe_parts(request.own_parts or OwnParts(), recipe)
    settings, existing = resolve_settings(kind, out, recipe, overrides, start, own_parts)
    make_train_config(settings.train, 1)  # an error in it should not wait for the corpus to be read
    with console.status(f"reading {kind.examples}"):
        examples, held_out = (kind.read(settings, split, request.data) for split in ("train", "valid"))
    settings = kind.fit_settings(settings, examples.examples, overrides)
    follows = existing is None and recipe is None and "data.corpus" in overrides
    count = effective_examples(examples.examples)
    if follows and not start:
        settings = kind.fit_settings(fit_to_data(settings, count, overrides), examples.examples, overrides)
    if device == "cpu" and settings.train.batch_size <= SMALL_BATCH_TOKENS:
        torch.set_num_threads(1)
    with console.status("preparing the model"):
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
    task: "Task",
    settings: "RunSettings",
    fit: "TrainingRun",
    done: int,
    examples: "LoadedExamples[Any]",
    held_out: "LoadedExamples[Any]",
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


def describe_rows(data: "TrainingData") -> str:
    """Why a GPU could be faster with shorter rows of packed texts; nothing if it could not."""
    from regard.attention.backends.packed import MAX_ROW
    from regard.training.corpus import PrefetchedMixture
    from regard.training.packed_corpus import PackedCorpus, PackedMixture

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


def describe_length(task: "Task", settings: "RunSettings", fit: "TrainingRun") -> str:
    """Steps, batch size, epochs and vocabulary size."""
    train = fit.job.train
    batch = f" of {train.batch_size * train.gradient_accumulation:,} {task.batch_unit}" if task.batch_unit else ""
    text = vars(settings).get("text")
    subwords = f", {text.vocab_size:,} subwords" if text and text.kind in ("bpe", "unigram") else ""
    epochs = f"{train.steps / fit.job.data.steps(0):,.0f}"
    return f"{train.steps:,} steps{batch} (≈ {epochs} epoch{'s' * (epochs != '1')}){subwords}"


# --- fine-tuning: weights and vocabulary of another run ---


def start_settings(task: "Task", start: Path, overrides: Mapping[str, object], own_parts: "OwnParts") -> "RunSettings":
    """The settings of the run to initialise from, without its files where other files are passed."""
    from regard.tasks.pretrained import load_settings

    found: Any = load_settings(start, task.settings, own_parts)
    if overrides.keys() & {"data.train", "data.corpus"}:
        found = replace(found, data=replace(found.data, train=(), valid=(), test=()))
    return found


def load_start(
    task: "Task", start: Path, settings: "RunSettings", checkpoint: str | None, own_parts: "OwnParts"
) -> "PretrainedModel":
    """The model and vocabulary of the run to initialise from; the tables that define them must be equal."""
    task_model: Any = task.task_model.load(start, "cpu", checkpoint, own_parts)
    if name := changed_model_table(task_model.settings, settings):
        raise ValueError(
            f"{start} was trained with another [{name}]; to initialise from it, leave out what changes that table"
        )
    return replace(task_model, settings=settings)


def changed_model_table(one: "RunSettings", other: "RunSettings") -> str | None:
    """The first table in which two settings of a task differ such that their models differ."""
    differ = (name for name in one.table_names() if getattr(one, name) != getattr(other, name))
    return next((name for name in differ if name not in MODEL_INDEPENDENT_TABLES), None)


def keep_start_weights(task_model: "PretrainedModel", out: Path, start: Path | None, *, resumed: bool) -> None:
    """Saves the initial weights of a fine-tuning run until its first checkpoint, and reloads them on resume."""
    from regard.data.files import make_folder
    from regard.models.safetensors_io import load_weights, saveable_tensors, write_weights

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


def change_notices(
    fit: "TrainingRun", done: int, before: "RunSettings", changes: Mapping[str, list[Any]]
) -> Iterator[str]:
    """The changed settings, and whether the weights will differ from those of a run that had them from the start."""
    from regard.training.config import make_schedule

    for name, (was, now) in changes.items():
        yield f"changed: {name} = {now} (was {was})"
    old, new = (make_schedule(train, fit.job.width) for train in (before.train, fit.job.train))
    if other := next((step for step in range(1, done + 1) if old.rate(step) != new.rate(step)), None):
        yield (
            f"the {fit.job.train.schedule} schedule gives other learning rates from step {other:,} on, so the weights "
            f"will not be those of a run with it from the start; the learning rate is now {new.rate(done + 1):.2e}"
        )


def refuse_finished_run(fit: "TrainingRun", done: int, changes: Mapping[str, list[Any]]) -> None:
    """Other data for a finished run is a forgotten --out, or meant as --init-from."""
    data = [name for name in changes if name.startswith("data.")]
    if data and done >= fit.job.train.steps:
        raise ValueError(
            f"{fit.folder} holds a run with another {data[0]}, trained to its last step, {done:,}; choose another "
            f"--out, resume it with more --steps, or fine-tune its model: --init-from {fit.folder}"
        )


# --- the task and the settings of a run ---


def resolve_task(out: Path, recipe: Path | None, name: str | None) -> "Task":
    """The task of --task, of the recipe, of the run in the folder, or translation."""
    from regard.tasks.config import DEFAULT_TASK, read_task_name, resolve_task_name
    from regard.training.checkpoint import SETTINGS, resolve_run

    if recipe is None:
        there = task_of_run(out) if (resolve_run(out)[0] / SETTINGS).exists() else None
        return get_task(name) if name else there or get_task(DEFAULT_TASK)
    if recipe.suffix != ".toml" and not recipe.is_dir():
        raise ValueError(f"{recipe}: a recipe ends in .toml; pass two text files as --train ONE --train OTHER")
    if name and resolve_task_name(name) != (written := read_task_name(recipe)):
        raise ValueError(f"{recipe} is a recipe for the task {written!r}, not {name!r}; leave out --task")
    return get_task(read_task_name(recipe))


def with_recipe_parts(own_parts: "OwnParts", recipe: Path | None) -> "OwnParts":
    """And those of the files that a recipe names; the settings of a run are none: what they name is not run."""
    from regard.tasks.config import read_tables
    from regard.tasks.own_parts import read_record
    from regard.training.checkpoint import SETTINGS

    if recipe is None or recipe.name == SETTINGS:
        return own_parts
    named = [recipe.parent / one.file for one in read_record(read_tables(recipe).get("parts", [])) if not one.names]
    files = [file for file in named if file.absolute() not in own_parts.files]
    for file in files:
        typer.echo(f"{recipe} runs {file}", err=True)
    return own_parts.load_more(files)


def resolve_settings(
    task: "Task",
    out: Path,
    recipe: Path | None,
    overrides: Mapping[str, object],
    start: Path | None,
    own_parts: "OwnParts",
) -> "tuple[RunSettings, PretrainedModel | None]":
    """The settings of the run, and the model in its folder, if there is one.

    Flags change the settings of an existing run; a recipe, or data for a run without a checkpoint, replaces them.
    A run with weights refuses settings of another model: they need a folder of their own.
    """
    from regard.tasks.config import changed_settings
    from regard.training.checkpoint import SETTINGS

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
        f"resume it: {shell_command('regard', 'train', '--out', out)}"
    )


def build_settings(
    task: "Task",
    recipe: Path | None,
    overrides: Mapping[str, object],
    start: Path | None,
    own_parts: "OwnParts",
) -> "RunSettings":
    """Paths in a recipe are relative to the recipe, those on the command line to the working directory."""
    from regard.training.config import warmup_for

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


def parse_assignment(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise ValueError(f"--set {line}: write table.key=value, such as train.warmup_steps=100")
    return name.strip(), value.strip()


# --- progress: bar, time estimate, Ctrl-C ---


FIRST_REPORT_SECONDS, REPORT_EVERY_SECONDS = 3.0, 10.0  # seconds
SMOOTH = 0.95  # decay of the running averages, per step


def train_with_progress(
    fit: "TrainingRun", console: "Console", should_stop: Callable[[], bool] = lambda: False
) -> bool:
    """Train to the end, or until a signal or `should_stop` says to stop; True if it reached the end."""
    from regard.training.loop import DivergedError

    config, step = fit.config, fit.last_step
    with graceful_stop() as stop, progress_bar(console) as progress:
        task = progress.add_task("training", total=config.steps, completed=step, stats="")
        steps, running, pace = fit.steps(), RunningStats(), TimeEstimate(config.steps, repeat=not console.is_terminal)
        try:
            for report in steps:
                step = report.step
                running.add(report)
                progress.update(task, completed=step, stats=str(running))
                if report.validation:
                    running.measure(fit)
                    progress.console.print(validation_line(report, running), highlight=False, soft_wrap=True)
                elif line := pace.line(step, running):
                    progress.console.print(line, highlight=False, soft_wrap=True)
                if fit.group.any(flag=stop.is_set() or should_stop()) and step < config.steps:
                    steps.close()  # writes a checkpoint
                    return False
        except DivergedError as error:
            raise ValueError(str(error)) from None
    if step < config.steps:
        console.print(
            f"early stopping at step {step:,}: no improvement in {config.patience} validations", soft_wrap=True
        )
    return True


def progress_bar(console: "Console") -> "Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[stats]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )


def validation_line(report: "Report", running: "RunningStats") -> str:
    held_out = "   ".join(f"{name} {value:.3f}" for name, value in (report.validation or {}).items())
    return f"step {report.step:>7,}   valid {held_out}   {running}   learning rate {report.rate:.2e}"


class RunningStats:
    """Running averages: the loss, and the tokens per second since the first step, which includes warming up.

    Losses of a GPU are read when they have arrived: reading the newest would make it wait.
    """

    def __init__(self) -> None:
        self.loss, self.tokens, self.started_at = float("nan"), 0, time.perf_counter()
        self.pending: deque[Report] = deque()
        self.flops_share: float | None = None  # of a second at the matmul peak, per token

    def add(self, report: "Report") -> None:
        self.pending.append(report)
        while self.pending and self.pending[0].scalars.is_ready:
            arrived = self.pending.popleft()
            if self.loss != self.loss:
                self.loss, self.started_at = arrived.loss, time.perf_counter()
            else:
                self.loss = SMOOTH * self.loss + (1 - SMOOTH) * arrived.loss
                self.tokens += arrived.tokens

    @property
    def speed(self) -> float:
        return self.tokens / max(1e-9, time.perf_counter() - self.started_at)

    def measure(self, fit: "TrainingRun") -> None:
        """Once, on a GPU, after training has begun: deterministic steps must be the first to use it."""
        from regard.training.loop import autocast_dtype, device_of
        from regard.training.run import measure_matmul_flops

        device = device_of(fit.job.model)
        if self.flops_share is None and fit.job.flops and device.type == "cuda":
            self.flops_share = fit.job.flops / measure_matmul_flops(device, autocast_dtype(fit.config))

    def __str__(self) -> str:
        used = "" if self.flops_share is None else f" ({self.speed * self.flops_share:.0%} of the matmul peak)"
        return f"loss {self.loss:.3f}   {self.speed:,.0f} tokens/s{used}"


class TimeEstimate:
    """Estimates the remaining time from the first steps: printed once; repeatedly where there is no progress bar."""

    def __init__(self, steps: int, *, repeat: bool, clock: Callable[[], float] = time.perf_counter):
        self.steps, self.repeat, self.clock = steps, repeat, clock
        self.first, self.began, self.due = 0, 0.0, FIRST_REPORT_SECONDS

    def seconds_per_step(self, step: int) -> float | None:
        """Once enough steps are measured. The first step, which includes warming up, is not."""
        if not self.first:
            self.first, self.began = step, self.clock()
            return None
        took = self.clock() - self.began
        if took < self.due:
            return None
        self.due = took + REPORT_EVERY_SECONDS if self.repeat else inf
        return took / (step - self.first)

    def line(self, step: int, running: RunningStats) -> str | None:
        """A line, if one is due."""
        if (seconds := self.seconds_per_step(step)) is None:
            return None
        left = format_duration(seconds * (self.steps - step))
        return f"step {step:>7,} of {self.steps:,}   {running}   about {left} left on this machine"


def format_duration(seconds: float) -> str:
    """Hours, minutes or seconds."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


@contextmanager
def graceful_stop() -> Iterator[Event]:
    """SIGINT, SIGTERM and SIGHUP set an event, which is read between two steps; a second signal stops at once.

    Signals that the caller ignores, as nohup does, stay ignored. Windows has no SIGHUP.
    """
    stop = Event()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before: dict[int, Callable | int | None] = {}
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    # Python lets the main thread alone handle signals
    for number in numbers if current_thread() is main_thread() else ():
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def print_dry_run(run: "PreparedRun") -> None:
    """The recipe on stdout; on stderr what the run is, and what it would take."""
    from regard.training.loop import DivergedError
    from regard.training.run import check_steps

    console = progress_console()
    check_steps(run.fit.folder, run.fit.config)
    for line in run.lines():
        console.print(line)
    try:
        with console.status("measuring a few steps"):
            lines = list(describe_cost(run))
    except DivergedError as error:
        raise ValueError(str(error)) from None
    for line in lines:
        console.print(line)
    typer.echo(run.task_model.settings.to_toml(), nl=False)


def describe_cost(run: "PreparedRun") -> Iterator[str]:
    """The size of the model, the peak of the memory, and the time of the steps that are left."""
    from regard.training.loop import device_of
    from regard.training.run import measure_memory, measure_steps, measure_validation, optimiser_bytes, weight_bytes

    model, config, done = run.fit.job.model, run.fit.config, run.last_step
    parameters, weights = sum(one.numel() for one in model.parameters()), weight_bytes(model)
    yield (
        f"model: {parameters:,} parameters, {format_bytes(weights)}; to train, with gradients and the state of AdamW, "
        f"{format_bytes(weights + optimiser_bytes(model))}"
    )
    if done >= config.steps:
        yield f"time: none; all {config.steps:,} steps are done"
        return
    seconds = measure_steps(run.fit, TimeEstimate(config.steps, repeat=False).seconds_per_step)
    validation, validations = measure_validation(run.fit), config.validations_between(done, config.steps)
    if (peak := measure_memory(device_of(model))) is not None:
        where = f"on {device_of(model)}" if device_of(model).type == "cuda" else "with Python, torch and the data"
        yield f"memory: about {format_bytes(peak)} at its peak, {where}"
    total = seconds * (config.steps - done) + validation * validations
    yield (
        f"time: about {format_duration(total)} on this machine: {config.steps - done:,} steps of "
        f"{1000 * seconds:,.0f} ms, {validations:,} validations of {validation:,.1f} s"
    )


def format_bytes(count: float) -> str:
    """kB, MB or GB."""
    unit, size = next((one for one in (("GB", 1e9), ("MB", 1e6)) if count >= one[1]), ("kB", 1e3))
    return f"{count / size:,.{0 if count >= 100 * size else 1}f} {unit}"
