"""`regard models`: lists trained models that packages ship, and makes a translator from the corpora, with its card."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    DataFolder,
    DeviceOption,
    MinutesOption,
    print_notice,
    resolve_device,
    stop_after,
    writable_file,
    writable_folder,
)
from regard.cli.runs import JsonOption, align_columns

if TYPE_CHECKING:
    from regard.tasks.translation.model_build import BuildCallbacks

models = typer.Typer(
    rich_markup_mode="markdown",
    help="""List the trained models that installed packages ship; or make a translator from public corpora.

    Each name works wherever a run's folder does. A folder of that name in the working directory comes first.

    Example: `regard models`

    Example: `regard models --json`

    Example: `regard models show en-fr`

    Example: `regard translate en-fr "Where is the train station?"`

    Example: `regard models build recipes/shipped/en-fr.toml`
    """,
)


@models.callback(invoke_without_command=True)
def list_models(context: typer.Context, as_json: JsonOption = False) -> None:  # noqa: FBT002
    if context.invoked_subcommand is not None:
        return
    import json

    from regard.tasks.model_packages import OUR_PACKAGE, packaged_models

    found = [model.describe() for model in packaged_models()]
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    if not found:
        typer.echo(f"no installed package ships models; pip install {OUR_PACKAGE} brings translators", err=True)
        return
    rows = [
        (
            one["name"],
            one["languages"] or one["task"],
            f"{one['bytes'] / 1e6:.1f} MB",
            "–" if one["bleu"] is None else f"{one['bleu']:.1f}",
            one["licence"] or "–",
            one["folder"],
        )
        for one in found
    ]
    typer.echo("\n".join(align_columns([("model", "languages", "size", "BLEU", "licence", "where"), *rows], (2, 3))))


@models.command()
def show(name: Annotated[str, typer.Argument(help="As regard models lists it.")]) -> None:
    """Print the card of a model: its data and licences, how good it is on which test sets, and what it fails at.

    Example: `regard models show en-fr`
    """
    from regard.tasks.model_packages import find_model

    model = find_model(name)
    typer.echo(model.card.rstrip("\n") or f"{name} has no card; its files are in {model.folder}")


@models.command()
def build(
    recipe: Annotated[Path, typer.Argument(help="A TOML file, as those of recipes/shipped.")],
    out: Annotated[Path, typer.Option(help="The folder of all builds; each has its own in it.")] = Path("models"),
    test: Annotated[bool, typer.Option("--test", help="Measure the test sets, too: once, in the end.")] = False,  # noqa: FBT002
    minutes: MinutesOption = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Another line of the recipe, as teacher.train.steps=100.")
    ] = None,
    data: DataFolder = None,
    device: DeviceOption = "auto",
) -> None:
    """Make a translator from the corpora: teacher, back-translation, distillation, student, measurements and card.

    Each stage is resumed where it was interrupted, and skipped if it has ended by the same settings. What a recipe
    needs of others, such as the teacher of the other direction, is made first, and shared.

    Example: `regard models build recipes/shipped/en-fr.toml --data corpora --out models`

    Example: `regard models build recipes/shipped/en-fr.toml --data corpora --out models --minutes 9`

    Example: `regard models build recipes/shipped/en-fr.toml --data corpora --out try --set data.sentences=20000`
    """
    from regard.cli.train import parse_assignment
    from regard.tasks.translation.build_recipe import BuildRecipe
    from regard.tasks.translation.build_stages import BuildStoppedError
    from regard.tasks.translation.model_build import ModelBuild

    stop, changes = stop_after(minutes), dict(map(parse_assignment, set_ or []))
    made = ModelBuild(
        recipe=BuildRecipe.load(recipe, changes),
        data=data,
        out=writable_folder(out),
        device=resolve_device(device),
        stop=stop,
        test=test,
        changes=changes,
        callbacks=build_callbacks(),
    )
    try:
        written = made.run()
    except BuildStoppedError as stopped:
        typer.echo(f"stopped at {stopped}; the same command goes on")
        raise typer.Exit(130) from None
    typer.echo(f"made: {made.folder / ('student' if written else 'teacher')}")
    if written:
        typer.echo(f"written: {written}")


def build_callbacks() -> "BuildCallbacks":
    """A build trains as `regard train` does, and shows bars and the names of its stages on stderr."""
    from regard.cli.progress import format_duration, step_progress, with_progress
    from regard.cli.train import train_run
    from regard.tasks.translation.model_build import BuildCallbacks

    def print_stage(name: str, seconds: float | None) -> None:
        print_notice(name if seconds is None else f"{name}: {format_duration(seconds)}")

    return BuildCallbacks(
        train=lambda request: train_run(request).finished,
        stage=print_stage,
        progress=with_progress,
        steps=step_progress,
    )


@models.command()
def card(
    measurements: Annotated[Path, typer.Argument(help="measurements.json of a build.")],
    out: Annotated[Path | None, typer.Option(help="Write here instead of stdout.")] = None,
) -> None:
    """Write the model card of a build, as Markdown.

    Example: `regard models card models/en-fr/measurements.json`

    Example: `regard models card models/en-fr/measurements.json --out card.md`
    """
    import json

    from regard.data.files import require_file, write_text_atomic
    from regard.tasks.translation.model_card import render_card

    try:
        text = render_card(json.loads(require_file(measurements).read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{measurements}: no measurements of a build ({error!r}); see regard models build") from None
    if out is None:
        typer.echo(text, nl=False)
        return
    write_text_atomic(writable_file(out), text)
    typer.echo(f"written: {out}")
