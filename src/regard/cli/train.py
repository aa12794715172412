"""A recipe's file or plain flags in; a folder with a trained model out."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import starting
from regard.cli.options import FILES, SHOWN, DataFolder, Device, command_of, device_of, folder_for
from regard.cli.tasks import NAMES, Task, task_at, task_of

if TYPE_CHECKING:
    from regard.tasks.data import Read
    from regard.tasks.job import Learner
    from regard.tasks.tables import Tables
    from regard.train.fit import Fit

# tokens in a batch that do not pay for a second thread; on a busy machine two wait long for each other
SMALL = 512
# settings that are words and have a flag of their own
FLAGS = {
    "data.corpus": "--corpus",
    "data.source": "--from",
    "data.target": "--to",
    "model.kind": "--model",
    "model.size": "--size",
    "train.precision": "--precision",
}


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML file with [data], [text], [model], [train].")] = None,
    task: Annotated[str | None, typer.Option(help=f"{', '.join(NAMES)}; without one, translate.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the run; one that holds a run goes on.")] = Path("run"),
    start: Annotated[Path | None, typer.Option(help="A run whose model this one begins with.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of --start: best, last or a step.")] = None,
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

    Ctrl-C saves; the same command goes on, and ends with the same weights as if nothing had happened. What was saved
    can be used as it stands. A run goes on with other settings, too, if they leave its model the same: --steps makes it
    longer or shorter.

    How many steps, tokens in a batch and pieces there are follows from the number of examples, unless they are given.

    Example: `regard train --train train.en --train train.de --to de --size small --out run`

    Example: `regard train recipes/multi30k-en-de.toml --data corpora --out run`

    Example: `regard train --task tag --train train.conllu --valid dev.conllu --out tagger`

    Example: `regard train --out run` (goes on with the run)

    Example: `regard train --out run --steps 20000` (goes on until then)

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
    if checkpoint and not start:
        raise ValueError(f"--checkpoint {checkpoint} is of the run to start from; add --start RUN")
    try:
        run(recipe, asked, out, data, device, task=task, start=start, checkpoint=checkpoint, tensorboard=tensorboard)
    except ValueError as mistake:
        raise ValueError(with_flags(str(mistake), asked)) from None


def with_flags(message: str, asked: Mapping[str, object]) -> str:
    """The library knows nothing of a command's flags: behind a value that it quotes, the flag that gave it is named."""
    from regard.tasks.tables import plain

    values = {name: plain(value) for name, value in asked.items() if isinstance(value, str) and name not in message}
    given = [
        f"{FLAGS[name]} {value[:SHOWN]}" if name in FLAGS else f"--set {name}={value[:SHOWN]}"
        for name, value in values.items()
        if isinstance(value, str) and repr(value) in message
    ]
    return f"{message} (given by {' and '.join(given)})" if given else message


def run(
    recipe: Path | None,
    asked: Mapping[str, object],
    out: Path,
    data: Path | None,
    device: str,
    *,
    task: str | None = None,
    start: Path | None = None,
    checkpoint: str | None = None,
    tensorboard: bool = False,
) -> None:
    import torch
    from rich.console import Console

    from regard.cli.watch import curves, require_tensorboard, watch
    from regard.tasks.defaults import count_of, fitted, planned
    from regard.train.claim import claimed
    from regard.train.fit import Fit, plan_of
    from regard.train.log import write_line

    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    asked_device, device = device, device_of(device)
    # first of all, for whoever is refused must have changed nothing of another's run
    with claimed(folder_for(out)) as claim:
        kind = asked_task(start or out, recipe, task)
        settings, begun = agreed(kind, out, recipe, asked, start)
        plan_of(settings.train, 1)  # a mistake in it should not wait for the corpus to be read
        if tensorboard:
            require_tensorboard()
        with console.status(f"reading {kind.examples}"):
            examples, held_out = (kind.read(settings, split, data) for split in ("train", "valid"))
        follows, count = begun is None and recipe is None and "data.corpus" in asked, count_of(examples.examples)
        if follows and not start:
            settings = fitted(settings, count, asked)
        if device == "cpu" and settings.train.tokens <= SMALL:
            torch.set_num_threads(1)
        with console.status("preparing the model"):
            learner: Any = begun and replace(begun, settings=settings)  # type: ignore[type-var]
            if start and not begun:
                learner = starting.started(kind, start, settings, checkpoint)
            learner = learner or kind.fresh(examples.examples, settings)
            job = learner.job(examples.examples, held_out.examples, device)
            if follows:
                train = planned(settings.train, count, job.data.steps(0), asked)
                learner = replace(learner, settings=replace(settings, train=train))  # type: ignore[type-var]
                job = replace(job, train=train, describe=learner.describe)
            fit = Fit(job, out, claim)
            starting.settle(learner, out, start, begun=begun is not None)
        changes, done = changed(begun.settings, settings) if begun else {}, fit.done
        refuse_idle(fit, done, changes)
        for line in described(kind, learner.settings, fit, done, examples, held_out):
            console.print(line)
        fits = f", to fit {count:,} {kind.examples}" if follows and "train.steps" not in asked else ""
        console.print(f"{length_of(kind, learner.settings, fit)}{fits}")
        if start and not begun:
            console.print(f"starting from the weights and the vocabulary of {start}")
        if begun and changes:
            for line in notices(fit, done, begun.settings, changes):
                console.print(line)
            write_line(out, done, changed=changes)
        with curves(out / "tensorboard", done) if tensorboard else nullcontext() as track:
            finished = watch(fit, console, track)
        if finished:
            starting.forget(out)
            kind.finish(learner, held_out.examples, out)
            typer.echo(f"trained: {out}; try: {command_of('regard', *kind.tries(out))}")
            return
    again = ["--out", out, *(["--data", data] if data else []), *(["--tensorboard"] if tensorboard else [])]
    again += ["--device", asked_device] if asked_device != "auto" else []
    typer.echo(f"saved: {out} at step {fit.done:,}; go on with: {command_of('regard', 'train', *again)}")
    raise typer.Exit(130)


def described(
    task: Task, settings: "Tables", fit: "Fit", done: int, examples: "Read[Any]", held_out: "Read[Any]"
) -> Iterator[str]:
    """What is trained on what, and what of it is left out."""
    train, total = fit.job.train, len(examples.examples) + len(held_out.examples)
    if skipped := examples.skipped:
        yield f"left out: {len(skipped):,} of {total + len(skipped):,} {task.examples}, for empty parts ({skipped[0]})"
    if fit.job.left_out:
        limits = f"train.longest = {train.longest} or train.tokens = {train.tokens}"
        yield f"left out: {fit.job.left_out:,} of {total:,} {task.examples}, with more tokens on a side than {limits}"
    weights = sum(parameter.numel() for parameter in fit.job.model.parameters())
    begun = f"; going on from step {done:,}" if done else ""
    yield (
        f"{len(examples.examples):,} {task.examples}, {len(held_out.examples):,} held out; "
        f"{settings.model.kind} with {weights:,} weights on {next(fit.job.model.parameters()).device}{begun}"
    )


def length_of(task: Task, settings: "Tables", fit: "Fit") -> str:
    """How long it will train; how many minutes that is, the first steps will tell."""
    train = fit.job.train
    unit = "tokens" if "text" in settings.names() and settings.task != "answer" else task.examples
    batch = "" if settings.task == "graph" else f" of {train.tokens * train.accumulate:,} {unit}"
    text = vars(settings).get("text")
    pieces = f", {text.size:,} pieces" if text and text.kind in ("bpe", "unigram") else ""
    return f"{train.steps:,} steps{batch} (≈ {train.steps / fit.job.data.steps(0):,.0f} epochs){pieces}"


# --- a run that goes on with other settings ---


def changed(before: "Tables", after: "Tables") -> dict[str, list[Any]]:
    """Lines that differ, by name, as they were and as they are."""
    was, now = (tomllib.loads(one.to_toml()) for one in (before, after))
    if was["task"] != now["task"]:
        return {"task": [was["task"], now["task"]]}
    return {
        f"{table}.{key}": [was[table].get(key), value]
        for table in before.names()
        for key, value in now[table].items()
        if was[table].get(key) != value
    }


def notices(fit: "Fit", done: int, before: "Tables", changes: Mapping[str, list[Any]]) -> Iterator[str]:
    """What is not as it was, and whether the weights will be those of a run that was so from the beginning."""
    from regard.train.fit import schedule_of

    for name, (was, now) in changes.items():
        yield f"changed: {name} = {now} (was {was})"
    old, new = (schedule_of(train, fit.job.width) for train in (before.train, fit.job.train))
    if other := next((step for step in range(1, done + 1) if old.rate(step) != new.rate(step)), None):
        yield (
            f"the {fit.job.train.schedule} schedule gives other rates from step {other:,} on, so the weights will not "
            f"be those of a run planned so from the beginning; the rate goes on at {new.rate(done + 1):.2e}"
        )


def refuse_idle(fit: "Fit", done: int, changes: Mapping[str, list[Any]]) -> None:
    """Other data for a run with nothing left to learn is a forgotten --out, or a start."""
    data = [name for name in changes if name.startswith("data.")]
    if data and done >= fit.job.train.steps:
        raise ValueError(
            f"{fit.folder} holds a run with another {data[0]}, trained to its last step, {done:,}; choose another "
            f"--out, go on with more --steps, or begin with its model: --start {fit.folder}"
        )


# --- which run it is ---


def asked_task(out: Path, recipe: Path | None, name: str | None) -> Task:
    """The one named, that of the recipe, that of the run in the folder, or translation."""
    from regard.tasks.run_folder import SETTINGS, run_of
    from regard.tasks.tables import FIRST, task_in

    if recipe is None:
        there = task_at(out) if (run_of(out)[0] / SETTINGS).exists() else None
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

    Flags change the settings that it has; a recipe, or data for a run that has learnt nothing yet, describes it anew.
    Once something is learnt, what would make another model needs a folder of its own.
    """
    from regard.tasks.run_folder import SETTINGS

    learnt = [name for name in ("model.safetensors", "checkpoints/*/*") if any(out.glob(name))]
    if not (out / SETTINGS).exists():
        if learnt:
            raise ValueError(f"{out} holds {learnt[0]} but no settings.toml, so it is not a run; choose another --out")
        return settings_of(task, recipe, asked, start), None
    begun = task_at(out).described(out)
    learnt = learnt or starting.has_begun(out)
    same_task = isinstance(begun.settings, task.settings)
    anew = not learnt and (start or asked.keys() & {"data.corpus", "data.train"})
    if recipe or anew or not same_task:
        wanted = settings_of(task, recipe, asked, start)
    else:
        wanted = begun.settings.changed(asked).rooted(Path.cwd()) if asked else begun.settings
    if wanted == begun.settings:
        return wanted, begun
    if not learnt:
        return wanted, None
    if same_task and not starting.other_model(begun.settings, wanted):
        return wanted, begun
    name, (was, now) = next(
        (name, both)
        for name, both in changed(begun.settings, wanted).items()
        if name.split(".")[0] not in starting.FREE
    )
    key = name.split(".")[-1]
    raise ValueError(
        f"{out} holds a run with {key} = {json.dumps(was)}, not {key} = {json.dumps(now)}; choose another --out, or "
        f"go on with it: {command_of('regard', 'train', '--out', out)}"
    )


def settings_of(task: Task, recipe: Path | None, asked: Mapping[str, object], start: Path | None = None) -> "Tables":
    """Paths in a recipe are read from where it lies, those on the command line from where one stands."""
    from regard.tasks.settings import warmup_for

    if recipe is not None:
        usual = task.settings.load(recipe).rooted(recipe.absolute().parent)
    elif start is not None:
        usual = starting.settings_at(task, start, asked)
    else:
        usual = task.settings() if "data.corpus" in asked else task.settings.of_world()
    settings = usual.changed(asked).rooted(Path.cwd())
    if recipe is None and "train.steps" in asked and "train.warmup" not in asked:
        warmup = min(settings.train.warmup, warmup_for(settings.train.steps))
        return replace(settings, train=replace(settings.train, warmup=warmup))  # type: ignore[type-var]
    return settings


def assignment(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise ValueError(f"--set {line}: write table.key=value, e.g. train.warmup=100")
    return name.strip(), value.strip()
