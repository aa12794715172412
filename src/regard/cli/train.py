"""A recipe's file or plain flags in; a folder with a trained model out."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import starting
from regard.cli.options import FILES, DataFolder, Device, command_of, device_of, folder_for
from regard.cli.tasks import NAMES, Task, task_at, task_of

if TYPE_CHECKING:
    from regard.tasks.data import Read
    from regard.tasks.job import Learner
    from regard.tasks.tables import Tables
    from regard.train.fit import Fit

# tokens in a batch that do not pay for a second thread; on a busy machine two wait long for each other
SMALL = 512


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML file with [data], [text], [model], [train].")] = None,
    task: Annotated[str | None, typer.Option(help=f"{', '.join(NAMES)}; without one, translate.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the run; one that holds a run goes on.")] = Path("run"),
    start: Annotated[Path | None, typer.Option(help="A trained run whose model this one begins with.")] = None,
    train: Annotated[list[str] | None, typer.Option(help=FILES)] = None,
    valid: Annotated[list[str] | None, typer.Option(help="The same for validation.")] = None,
    corpus: Annotated[str | None, typer.Option(help="A known corpus instead of files; see regard data.")] = None,
    source: Annotated[str | None, typer.Option("--from", help="The language to translate from.")] = None,
    target: Annotated[str | None, typer.Option("--to", help="The language to translate into.")] = None,
    model: Annotated[str | None, typer.Option(help="transformer, bahdanau, luong-dot, luong-general, gru, …")] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small or base.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="How many steps.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens in a batch, padding included.")] = None,
    rate: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other line, as table.key=value.")] = None,
    data: DataFolder = None,
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves to OUT/tensorboard.")] = False,  # noqa: FBT002
) -> None:
    """Train a model on examples of its task. Without any, it learns something of the miniature world in a minute.

    Ctrl-C saves; the same command goes on, and ends with the same weights as if nothing had happened.

    Example: `regard train --train train.en --train train.de --to de --size small --out run`

    Example: `regard train recipes/multi30k-en-de.toml --data corpora --out run`

    Example: `regard train --task tag --train train.conllu --valid dev.conllu --out tagger`

    Example: `regard train --out run` (goes on with the run)

    Example: `regard train --start run --train my.en --train my.de --rate 1e-4 --steps 500 --out mine`
    """
    flags = {
        "data.train": train,
        "data.valid": valid,
        "data.corpus": corpus or ("files" if train else None),
        "data.source": source,
        "data.target": target,
        "model.kind": model,
        "model.size": size,
        "train.steps": steps,
        "train.tokens": tokens,
        "train.rate": rate,
        "train.precision": precision,
        "train.seed": seed,
        **dict(assignment(line) for line in set_ or []),
    }
    asked = {name: value for name, value in flags.items() if value is not None}
    run(recipe, asked, out, data, device, task=task, start=start, tensorboard=tensorboard)


def run(
    recipe: Path | None,
    asked: Mapping[str, object],
    out: Path,
    data: Path | None,
    device: str,
    *,
    task: str | None = None,
    start: Path | None = None,
    tensorboard: bool = False,
) -> None:
    import torch
    from rich.console import Console

    from regard.cli.watch import curves, require_tensorboard, watch
    from regard.train.fit import Fit, plan_of

    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    asked_device, device = device, device_of(device)
    folder = folder_for(out)
    kind = asked_task(start or folder, recipe, task)
    settings, begun = agreed(kind, out, recipe, asked, start)
    plan_of(settings.train, 1)  # a mistake in it should not wait for the corpus to be read
    if tensorboard:
        require_tensorboard()
    if device == "cpu" and settings.train.tokens <= SMALL:
        torch.set_num_threads(1)
    with console.status(f"reading {kind.examples}"):
        examples, held_out = (kind.read(settings, split, data) for split in ("train", "valid"))
    with console.status("preparing the model"):
        learner = begun or (
            starting.started(kind, start, settings) if start else kind.fresh(examples.examples, settings)
        )
        fit = Fit(learner.job(examples.examples, held_out.examples, device), out)
        starting.settle(learner, out, start, begun=begun is not None)
    for line in described(kind, settings, fit, examples, held_out):
        console.print(line)
    if start and not begun:
        console.print(f"starting from the weights and the vocabulary of {start}")
    with curves(out / "tensorboard", fit.done) if tensorboard else nullcontext() as track:
        finished = watch(fit, console, track)
    if finished:
        starting.forget(out)
        kind.finish(learner, held_out.examples, out)
        typer.echo(f"trained: {out}; try: {command_of('regard', *kind.tries(out))}")
    else:
        again = ["--out", out, *(["--data", data] if data else []), *(["--tensorboard"] if tensorboard else [])]
        again += ["--device", asked_device] if asked_device != "auto" else []
        typer.echo(f"saved: {out} at step {fit.done:,}; go on with: {command_of('regard', 'train', *again)}")
        raise typer.Exit(130)


def described(
    task: Task, settings: "Tables", fit: "Fit", examples: "Read[Any]", held_out: "Read[Any]"
) -> Iterator[str]:
    """What is trained on what, and what of it is left out."""
    train, total = fit.job.train, len(examples.examples) + len(held_out.examples)
    if skipped := examples.skipped:
        yield f"left out: {len(skipped):,} of {total + len(skipped):,} {task.examples}, for empty parts ({skipped[0]})"
    if fit.job.left_out:
        limits = f"train.longest = {train.longest} or train.tokens = {train.tokens}"
        yield f"left out: {fit.job.left_out:,} of {total:,} {task.examples}, with more tokens on a side than {limits}"
    weights = sum(parameter.numel() for parameter in fit.job.model.parameters())
    done = f"; going on from step {fit.done:,}" if fit.done else ""
    yield (
        f"{len(examples.examples):,} {task.examples}, {len(held_out.examples):,} held out; "
        f"{settings.model.kind} with {weights:,} weights on {next(fit.job.model.parameters()).device}{done}"
    )


# --- which run it is ---


def asked_task(out: Path, recipe: Path | None, name: str | None) -> Task:
    """The one named, that of the recipe, that of the run in the folder, or translation."""
    from regard.tasks.tables import FIRST, task_in

    if recipe is None:
        there = task_at(out) if (out / "settings.toml").exists() else None
        return task_of(name) if name else there or task_of(FIRST)
    if recipe.suffix != ".toml" and not recipe.is_dir():
        raise ValueError(f"{recipe}: a recipe ends in .toml; two files of text are given as --train ONE --train OTHER")
    if name and name != (written := task_in(recipe)):
        raise ValueError(f"{recipe} is a recipe for the task {written!r}, not {name!r}; leave out --task")
    return task_of(task_in(recipe))


def agreed(
    task: Task, out: Path, recipe: Path | None, asked: Mapping[str, object], start: Path | None = None
) -> "tuple[Tables, Learner | None]":
    """The settings of the run, and what is in its folder already.

    To change the settings would make another run, which needs a folder of its own once something is learnt.
    """
    learnt = [name for name in ("model.safetensors", "checkpoints/*/*") if any(out.glob(name))]
    if not (out / "settings.toml").exists():
        if learnt:
            raise ValueError(f"{out} holds {learnt[0]} but no settings.toml, so it is not a run; choose another --out")
        return settings_of(task, recipe, asked, start), None
    begun = task_at(out).described(out)
    same_task = isinstance(begun.settings, task.settings)
    told = recipe or asked or start
    wanted = settings_of(task, recipe, asked, start) if told or not same_task else begun.settings
    if wanted == begun.settings:
        return wanted, begun
    if not learnt:
        return wanted, None
    here, there = (one.to_toml().splitlines() for one in (begun.settings, wanted))
    raise ValueError(
        f"{out} holds a run with {first_not_in(there, here)}, not {first_not_in(here, there)}; "
        f"choose another --out, or go on with it: {command_of('regard', 'train', '--out', out)}"
    )


def first_not_in(lines: list[str], other: list[str]) -> str:
    return next(line for line in other if line not in lines)


def settings_of(task: Task, recipe: Path | None, asked: Mapping[str, object], start: Path | None = None) -> "Tables":
    """Paths in a recipe are read from where it lies, those on the command line from where one stands."""
    if recipe is not None:
        usual = task.settings.load(recipe).rooted(recipe.absolute().parent)
    elif start is not None:
        usual = starting.settings_at(task, start, asked)
    else:
        usual = task.settings() if "data.corpus" in asked else task.settings.of_world()
    return usual.changed(asked).rooted(Path.cwd())


def assignment(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise ValueError(f"--set {line}: write table.key=value, e.g. train.warmup=100")
    return name.strip(), value.strip()
