"""A trained model and held-out examples in; its figures, with the signatures that make them comparable, out."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import (
    LONGEST,
    LONGEST_TEXT,
    BeamSize,
    Checkpoint,
    CoveragePenalty,
    DataFolder,
    Device,
    LengthPenalty,
    Model,
    Split,
    device_of,
    files_for,
    search_of,
)
from regard.cli.tasks import task_at

USUAL: tuple[int, float, float] = (5, 1.0, 0.0)


def evaluate(
    model: Model,
    on: Annotated[
        list[str] | None, typer.Option("--on", "--pairs", help="Files such as it was trained with; else --split.")
    ] = None,
    split: Annotated[Split, typer.Option(help="Of the data it was trained with.")] = "valid",
    beam: BeamSize = USUAL[0],
    length_penalty: LengthPenalty = USUAL[1],
    coverage_penalty: CoveragePenalty = USUAL[2],
    save: Annotated[Path | None, typer.Option(help="Write the figures as JSON here.")] = None,
    said: Annotated[
        Path | None, typer.Option("--said", "--translations", help="Write here what the model said, line by line.")
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(min=1, help=f"Refuse an example of more tokens than {LONGEST}, or {LONGEST_TEXT} to classify."),
    ] = None,
    data: DataFolder = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Measure a model on held-out examples.

    Example: `regard evaluate run`

    Example: `regard evaluate run --on test.en --on test.de --save figures.json`

    Example: `regard evaluate tagger --on test.conllu`
    """
    import json

    from regard.cli.check import refuse_long
    from regard.cli.measure import measured
    from regard.text.files import write_whole

    save, said = files_for(save=save, said=said)
    task = task_at(model)
    learner: Any = task.load(model, device_of(device), checkpoint)
    settings = learner.settings
    if on:
        settings = replace(settings, data=replace(settings.data, corpus="files", train=(), valid=(), test=tuple(on)))
    examples = task.read(settings, "test" if on else split, data).examples
    named = on or [f"{settings.data.corpus}, {split}"]
    if not examples:
        raise ValueError(f"{' and '.join(named)}: no {task.examples} to measure on; give at least one")
    refuse_long(task.ids(learner, examples), lambda number: f"{task.examples[:-1]} {number}", longest or task.longest)
    what: dict[str, Any] = {"model": str(model), "on": named}
    if settings.task == "translate":
        search = search_of(beam, length_penalty, coverage_penalty)
        found, what = measured(learner, examples, search), what | {"search": repr(search)}
    elif (beam, length_penalty, coverage_penalty) != USUAL:
        raise ValueError(f"--beam and penalties are for translations; {model} is for the task {settings.task!r}")
    else:
        found = task.measure(learner, examples)
    typer.echo(found.table())
    if said:
        write_whole(said, "".join(f"{line}\n" for line in found.lines()))
        typer.echo(f"written: {said}")
    if save:
        write_whole(save, json.dumps({**what, **found.figures()}, indent=1, ensure_ascii=False) + "\n")
        typer.echo(f"written: {save}")
