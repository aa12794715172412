"""`regard train --dry-run`: the recipe of a run, and the memory and time it would take; nothing is written."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from regard.cli.train import TimeEstimate, format_duration, progress_console

if TYPE_CHECKING:
    from regard.cli.train import PreparedRun


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
    from regard.training.cost import measure_memory, measure_steps, measure_validation, optimiser_bytes, weight_bytes
    from regard.training.loop import device_of

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
