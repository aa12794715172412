"""A recipe's file or plain flags in; a folder with a trained model out."""

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import FILES, DataFolder, Device, command_of, device_of, folder_for

if TYPE_CHECKING:
    from regard.tasks.data import Parallel
    from regard.tasks.settings import Settings
    from regard.tasks.translate import Translator
    from regard.train.fit import Fit

# tokens in a batch that do not pay for a second thread; on a busy machine two wait long for each other
SMALL = 512


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML file with [data], [text], [model], [train].")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the run; one that holds a run goes on.")] = Path("run"),
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
    """Train a model on sentence pairs. Without any, it learns the miniature world's French.

    Ctrl-C saves; the same command goes on, and ends with the same weights as if nothing had happened.

    Example: `regard train --train train.en --train train.de --to de --size small --out run`

    Example: `regard train recipes/multi30k-en-de.toml --data corpora --out run`

    Example: `regard train --out run` (goes on with the run)
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
    run(recipe, asked, out, data, device, tensorboard=tensorboard)


def run(
    recipe: Path | None, asked: Mapping[str, object], out: Path, data: Path | None, device: str, *, tensorboard: bool
) -> None:
    import torch
    from rich.console import Console

    from regard.cli.heads import keep_heads
    from regard.cli.watch import curves, require_tensorboard, watch
    from regard.tasks.data import read_split
    from regard.tasks.translate import Translator
    from regard.train.fit import Fit, plan_of

    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    asked_device, device = device, device_of(device)
    settings, begun = agreed(folder_for(out), recipe, asked)
    plan_of(settings.train, settings.model.model)  # a mistake in it should not wait for the corpus to be read
    if tensorboard:
        require_tensorboard()
    if device == "cpu" and settings.train.tokens <= SMALL:
        torch.set_num_threads(1)
    with console.status("reading sentence pairs"):
        pairs, held_out = (read_split(settings.data, split, data) for split in ("train", "valid"))
    with console.status("learning the vocabulary"):
        translator = begun or Translator.fresh(pairs.pairs, settings)
        fit = Fit(translator.job(pairs.pairs, held_out.pairs, device), out)
    for line in described(settings, fit, pairs, held_out):
        console.print(line)
    with curves(out / "tensorboard", fit.done) if tensorboard else nullcontext() as track:
        finished = watch(fit, console, track)
    if finished:
        keep_heads(translator, held_out.pairs, out)
        typer.echo(f"trained: {out}; try: {command_of('regard', 'translate', out)}")
    else:
        again = ["--out", out, *(["--data", data] if data else []), *(["--tensorboard"] if tensorboard else [])]
        again += ["--device", asked_device] if asked_device != "auto" else []
        typer.echo(f"saved: {out} at step {fit.done:,}; go on with: {command_of('regard', 'train', *again)}")
        raise typer.Exit(130)


def described(settings: "Settings", fit: "Fit", pairs: "Parallel", held_out: "Parallel") -> Iterator[str]:
    """What is trained on what, and what of it is left out."""
    total = len(pairs.pairs) + len(held_out.pairs)
    if skipped := pairs.skipped:
        yield f"left out: {len(skipped):,} of {total + len(skipped):,} pairs, with an empty side ({skipped[0]})"
    if fit.job.left_out:
        limits = f"train.longest = {settings.train.longest} or train.tokens = {settings.train.tokens}"
        yield f"left out: {fit.job.left_out:,} of {total:,} pairs, with more tokens on a side than {limits}"
    weights = sum(parameter.numel() for parameter in fit.job.model.parameters())
    done = f"; going on from step {fit.done:,}" if fit.done else ""
    yield (
        f"{len(pairs.pairs):,} pairs, {len(held_out.pairs):,} held out; "
        f"{settings.model.kind} with {weights:,} weights on {next(fit.job.model.parameters()).device}{done}"
    )


# --- which run it is ---


def agreed(out: Path, recipe: Path | None, asked: Mapping[str, object]) -> "tuple[Settings, Translator | None]":
    """The settings of the run, and what is in its folder already.

    To change the settings would make another run, which needs a folder of its own once something is learnt.
    """
    from regard.tasks.translate import Translator

    learnt = [name for name in ("model.safetensors", "checkpoints/*/*") if any(out.glob(name))]
    if not (out / "settings.toml").exists():
        if learnt:
            raise ValueError(f"{out} holds {learnt[0]} but no settings.toml, so it is not a run; choose another --out")
        return settings_of(recipe, asked), None
    begun = Translator.described(out)
    wanted = settings_of(recipe, asked) if recipe or asked else begun.settings
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


def settings_of(recipe: Path | None, asked: Mapping[str, object]) -> "Settings":
    """Paths in a recipe are read from where it lies, those on the command line from where one stands."""
    from regard.tasks.settings import Settings

    if recipe and recipe.suffix != ".toml" and not recipe.is_dir():
        raise ValueError(f"{recipe}: a recipe ends in .toml; two files of text are given as --train ONE --train OTHER")
    if recipe is None:
        start = Settings() if "data.corpus" in asked else Settings.of_world()
    else:
        start = rooted(Settings.load(recipe), recipe.absolute().parent)
    return rooted(start.changed(asked), Path.cwd())


def rooted(settings: "Settings", folder: Path) -> "Settings":
    """Absolute paths, since a run may go on from another folder."""
    data = settings.data
    train, valid, test = (
        tuple(os.path.abspath(folder / path) for path in paths) for paths in (data.train, data.valid, data.test)
    )
    return replace(settings, data=replace(data, train=train, valid=valid, test=test))


def assignment(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise ValueError(f"--set {line}: write table.key=value, e.g. train.warmup=100")
    return name.strip(), value.strip()
