"""`regard train`: trains, resumes and fine-tunes a model from a recipe and flags, or says what that would take."""

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    print_notice,
    resolve_device,
    shell_command,
    with_option_groups,
    writable_folder,
)
from regard.cli.progress import (
    TimeEstimate,
    format_bytes,
    format_duration,
    progress_console,
    train_with_progress,
    with_progress,
)
from regard.tasks.registry import TASKS

if TYPE_CHECKING:
    from regard.tasks.own_parts import OwnParts
    from regard.tasks.protocol import Task
    from regard.tasks.train_request import PreparedRun, TrainRequest
    from regard.training.distributed import ProcessGroup

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


@dataclass(frozen=True)
class StartOptions:
    """The run to begin with the weights of."""

    start: Annotated[
        Path | None,
        typer.Option(
            "--init-from",
            "--start",
            help="Initialise weights and vocabulary from this run, or a model of regard models (fine-tuning).",
            callback=model_folder,
        ),
    ] = None
    checkpoint: Annotated[str | None, typer.Option(help="Of --init-from: best, last or a step.")] = None

    def __post_init__(self) -> None:
        if self.checkpoint and not self.start:
            raise ValueError(f"--checkpoint {self.checkpoint} is of the run to initialise from; add --init-from RUN")


@dataclass(frozen=True)
class SettingOptions:
    """Settings that have a flag of their own, and --set for all others."""

    train: Annotated[list[str] | None, typer.Option(help=FILES)] = None
    valid: Annotated[list[str] | None, typer.Option(help="The same for validation.")] = None
    corpus: Annotated[str | None, typer.Option(help="A known corpus instead of files; see regard data.")] = None
    source: Annotated[str | None, typer.Option("--from", help="The language to translate from.")] = None
    target: Annotated[str | None, typer.Option("--to", help="The language to translate into.")] = None
    model: Annotated[str | None, typer.Option(help="transformer, bahdanau, luong-dot, luong-general, gru, …")] = None
    size: Annotated[str | None, typer.Option(help="tiny, small or base.")] = None
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps.")] = None
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "--tokens", min=1, help="Tokens in a batch, padding included.")
    ] = None
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", "--rate", help="Peak learning rate.")] = None
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None
    seed: Annotated[int | None, typer.Option(min=0)] = None
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, as table.key=value.")] = None

    def overrides(self) -> dict[str, object]:
        """The settings that are passed, by their keys."""
        flags = {
            "data.train": self.train,
            "data.valid": self.valid,
            "data.corpus": self.corpus or ("files" if self.train else None),
            "data.source": self.source,
            "data.target": self.target,
            "model.kind": self.model,
            "model.size": self.size,
            "train.steps": self.steps,
            "train.batch_size": self.batch_size,
            "train.learning_rate": self.learning_rate,
            "train.precision": self.precision,
            "train.seed": self.seed,
            **dict(parse_assignment(line) for line in self.set_ or []),
        }
        return {name: value for name, value in flags.items() if value is not None}


@dataclass(frozen=True)
class TrackOptions:
    """Where the curves are shown."""

    track: Annotated[
        str | None, typer.Option(help="Show the curves in tensorboard, wandb or mlflow; the log is OUT/log.jsonl.")
    ] = None
    tensorboard: Annotated[bool, typer.Option("--tensorboard", hidden=True)] = False

    @property
    def tracker(self) -> str | None:
        return self.track or ("tensorboard" if self.tensorboard else None)


@with_option_groups
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML file with [data], [text], [model], [train].")] = None,
    task: Annotated[str | None, typer.Option(help=f"{', '.join(TASKS)}; default: translation.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder; an existing run is resumed.")] = Path("run"),
    start: StartOptions = StartOptions(),
    settings: SettingOptions = SettingOptions(),
    data: DataFolder = None,
    device: DeviceOption = "auto",
    parts: PartsOption = None,
    changed_parts: ChangedPartsOption = None,
    tracking: TrackOptions = TrackOptions(),
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
    from regard.tasks.train_request import TrainRequest

    overrides = settings.overrides()
    try:
        own_parts = load_parts(parts, changed_parts)
        request = TrainRequest(out, recipe, overrides, data, device, task, start.start, start.checkpoint, own_parts)
        if dry_run:
            print_dry_run(request)
            return
        run = train_run(request, tracking.tracker)
    except ValueError as mistake:
        raise ValueError(name_flags(str(mistake), overrides)) from None
    if run.is_main:
        typer.echo(describe_end(run, request, tracking.tracker))
    if not run.finished:
        raise typer.Exit(130)


def describe_end(run: "TrainedRun", request: "TrainRequest", track: str | None) -> str:
    """Where the weights are, and the command that comes next."""
    out = request.out
    files = [word for file in run.own_parts.files for word in ("--parts", file)]
    if run.finished:
        return f"trained: {out}; try: {shell_command('regard', run.task.suggested_command, out, *files)}"
    again = ["--out", out, *(["--data", request.data] if request.data else []), *(["--track", track] if track else [])]
    again += [*(["--device", request.device] if request.device != "auto" else []), *files]
    return f"saved: {out} at step {run.last_step:,}; resume with: {shell_command('regard', 'train', *again)}"


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


def train_run(request: "TrainRequest", track: str | None = None) -> TrainedRun:
    """Trains a run to its end, or until it is interrupted; an interrupted run is resumed.

    If torchrun started several processes, all of them call this, and train one run together.
    """
    from regard.training.distributed import join_processes

    with join_processes(resolve_device(request.device)) as group:
        return train_in_group(replace(request, device=group.device), group, track)


def train_in_group(request: "TrainRequest", group: "ProcessGroup", track: str | None) -> TrainedRun:
    from regard.tasks.own_parts import OwnParts
    from regard.tasks.train_request import keep_start_weights, prepare_run, remove_start_weights
    from regard.training.checkpoint import SETTINGS, lock_folder, save_example
    from regard.training.run import discard_log, last_logged_step, write_line
    from regard.training.tracking import TrackedRun, require_tracker, start_tracker

    out = request.out
    console = progress_console(quiet=not group.is_main)
    if track:
        require_tracker(track)
    # first, so that a refused command has changed nothing of the run that holds the lock
    with lock_folder(writable_folder(out)) if group.is_main else nullcontext() as claim:
        run = prepare_run(request, claim, group, notice=print_notice, status=console.status)
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


def parse_assignment(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise ValueError(f"--set {line}: write table.key=value, such as train.warmup_steps=100")
    return name.strip(), value.strip()


# --- dry run ---


def print_dry_run(request: "TrainRequest") -> None:
    """The recipe on stdout; on stderr what the run is, and what it would take."""
    from regard.tasks.train_request import prepare_run
    from regard.training.loop import DivergedError
    from regard.training.run import check_steps

    if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        raise ValueError("--dry-run measures one process; leave out torchrun, or --dry-run")
    writable_folder(request.out)
    console = progress_console()
    request = replace(request, device=resolve_device(request.device))
    run = prepare_run(request, notice=print_notice, status=console.status)
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
