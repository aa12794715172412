"""`regard runs` and `regard compare`: lists runs with what they have reached, and sets two of them side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.evaluate import check_search, read_examples, refuse_long_examples, settings_on
from regard.cli.options import (
    DataFolder,
    LoadOptions,
    SearchOptions,
    Split,
    with_option_groups,
    with_progress,
    writable_file,
)
from regard.tasks.registry import TASKS, task_of_run

if TYPE_CHECKING:
    from regard.see.plots.panels import View
    from regard.tasks.metrics import PairedResult, TaskMetrics
    from regard.tasks.protocol import Task
    from regard.tasks.runs import DamagedRun, RunSummary

SIGNIFICANT = 0.05  # p-values below are marked
MAX_VALUE_LETTERS = 40  # of a setting
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


# --- regard runs ---


def runs(
    folder: Annotated[Path, typer.Argument(help="A folder with runs in it, or below it.")] = Path(),
    sort: Annotated[
        Literal["best", "time", "path"],
        typer.Option(help="By best validation within each task, by time (the newest first), or by path."),
    ] = "best",
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """List runs: task, model, parameters, steps, best validation and when each was last trained.

    A run that cannot be read is listed with its error.

    Example: `regard runs experiments`

    Example: `regard runs experiments --sort time --json`
    """
    import json

    from regard.tasks.runs import DamagedRun, RunSummary, find_runs

    found = find_runs(folder)
    if not found:
        raise ValueError(f"{folder}: no runs in it or below; train one with regard train --out {folder / 'run'}")
    whole = sorted((one for one in found if isinstance(one, RunSummary)), key=SORT_KEYS[sort])
    damaged = [one for one in found if isinstance(one, DamagedRun)]
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in (*whole, *damaged)], indent=1, ensure_ascii=False))
        return
    typer.echo(runs_table(folder, whole, damaged))


def by_best(run: "RunSummary") -> tuple[Any, ...]:
    value = inf if run.best is None else run.best.value if run.best.metric == "loss" else -run.best.value
    return list(TASKS).index(run.task), run.best_metric, value, run.folder


SORT_KEYS = {"best": by_best, "time": lambda run: -run.updated.timestamp(), "path": lambda run: run.folder}


def runs_table(folder: Path, whole: "Sequence[RunSummary]", damaged: "Sequence[DamagedRun]") -> str:
    rows = [
        (
            relative(run.folder, folder),
            run.task,
            run.model,
            "–" if run.parameters is None else f"{run.parameters:,}",
            f"{run.step:,} / {run.steps:,}",
            str(run.best or "–"),
            f"{run.updated.astimezone():%Y-%m-%d %H:%M}",
        )
        for run in whole
    ]
    header = ("run", "task", "model", "parameters", "steps", "best validation", "last trained")
    lines = align_columns([header, *rows], right=(3, 4)) if rows else []
    return "\n".join([*lines, *(f"{relative(run.folder, folder)}: damaged: {run.error}" for run in damaged)])


def relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path != folder else str(path)


def align_columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Columns as wide as their widest cell; some of them aligned at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if n in right else f"{cell:<{width}}"
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


# --- regard compare ---


@dataclass(frozen=True)
class ScoredPair:
    """Two models measured on the same examples.

    Args:
        on: the names of the files, or the split.
        tests: significance by score; {} where the task has no test.
    """

    on: list[str]
    examples: int
    metrics: "tuple[TaskMetrics, TaskMetrics]"
    tests: "dict[str, PairedResult]"

    def to_json(self) -> dict[str, Any]:
        scores = {
            one.name: {
                "values": [one.value, two.value],
                "signature": one.signature,
                "test": vars(self.tests[one.name]) if one.name in self.tests else None,
            }
            for one, two in zip(*(found.scores for found in self.metrics), strict=True)
        }
        return {"on": self.on, "examples": self.examples, "scores": scores}


@with_option_groups
def compare(
    first: Annotated[Path, typer.Argument(help="A run folder.", metavar="A")],
    second: Annotated[Path, typer.Argument(help="Another run of the same task.", metavar="B")],
    on: Annotated[
        list[str] | None,
        typer.Option("--on", help="Measure both on these files, in the format of the training files."),
    ] = None,
    split: Annotated[Split | None, typer.Option(help="Measure both on this split of their corpus.")] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the validation curves: .png, .svg or .pdf.")] = None,
    search: SearchOptions = SearchOptions(),
    as_json: JsonOption = False,  # noqa: FBT002
    data: DataFolder = None,
    load: LoadOptions = LoadOptions(),
) -> None:
    """Compare two runs: the settings that differ, their validation curves and figures.

    With --on or --split both models are measured on the same examples, and differences are tested by paired bootstrap
    resampling: that of sacreBLEU for translations, of the accuracy for labels.

    Example: `regard compare runs/a runs/b --out curves.png`

    Example: `regard compare runs/a runs/b --split test`

    Example: `regard compare runs/a runs/b --on test.en --on test.de --beam 1`
    """
    import json

    from regard.tasks.config import differing_values
    from regard.tasks.runs import summarize_run

    if (on or split) is None and search != SearchOptions():
        raise ValueError("--beam and penalties are for translating a test set; name one with --on or --split")
    if on and split:
        raise ValueError(f"--on {on[0]} and --split {split} are two test sets; choose one")
    out = out and writable_file(out)
    one, two = summarize_run(first), summarize_run(second)
    if one.task != two.task:
        raise ValueError(f"{first} is for the task {one.task!r}, {second} for {two.task!r}; compare runs of one task")
    views = curve_views(one, two)
    if out and not views:
        raise ValueError(f"{out}: one of the runs has no validation yet, so there is nothing to draw; leave out --out")
    differences = differing_values(one.settings, two.settings)
    scored = None
    if on or split:
        loaded = [load.load(task_of_run(run).task_model, run) for run in (first, second)]
        scored = score_both(task_of_run(first), loaded, (first, second), on or [], split or "test", data, search)
    if as_json:
        found: dict[str, Any] = {"runs": [one.to_json(), two.to_json()], "settings": differences}
        found |= {"validations": [list(map(dict, run.validations)) for run in (one, two)]}
        typer.echo(json.dumps(found | ({"test": scored.to_json()} if scored else {}), indent=1, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(comparison_texts(one, two, differences, views, scored)))
    if out:
        from regard.see import draw, save

        save(draw(join_views(views)), out)
        typer.echo(f"written: {out}", err=as_json)


def curve_views(one: "RunSummary", two: "RunSummary") -> "list[View]":
    """The loss, and the metrics by which the best checkpoints are chosen, where both runs have validated by them."""
    from regard.see import validation_view

    short = one.folder.name, two.folder.name  # a chart has little room
    names = short if short[0] != short[1] else run_names(one, two)
    found = {metric: [run.curve(metric) for run in (one, two)] for metric in ("loss", one.best_metric, two.best_metric)}
    return [
        validation_view(f"valid {metric}", list(zip(names, curves, strict=True)))
        for metric, curves in found.items()
        if all(curves)
    ]


def join_views(views: "Sequence[View]") -> "View":
    return replace(views[0], rows=tuple(row for view in views for row in view.rows))


def run_names(one: "RunSummary", two: "RunSummary") -> tuple[str, str]:
    return str(one.folder), str(two.folder)


# --- measuring both ---


def score_both(
    task: "Task",
    loaded: Sequence[Any],
    runs: tuple[Path, Path],
    on: list[str],
    split: Split,
    data: Path | None,
    search: SearchOptions,
) -> ScoredPair:
    """Measures both models on the same examples; other examples, or other signatures, are refused."""
    from regard.tasks.metrics import check_same_signatures, signatures

    strategy = check_search(task, runs[0], search)
    (examples, named), (others, _) = (read_examples(task, model, on, split, data) for model in loaded)
    one, two = (settings_on(model.settings, on).data for model in loaded)
    if one != two and examples != others:
        raise ValueError(
            f"{runs[0]} and {runs[1]} have other {task.examples} in {' and '.join(named)}; name one test set with --on"
        )
    for model in loaded:
        refuse_long_examples(task, model, examples, None)

    def measure(some: Sequence[Any]) -> "tuple[TaskMetrics, TaskMetrics]":
        one, two = (task.evaluate(model, some, search=strategy, progress=with_progress) for model in loaded)
        check_same_signatures(signatures(one), signatures(two))
        return one, two

    if task.searches:
        measure(examples[:1])  # decoding takes long, and signatures may differ
    metrics = measure(examples)
    return ScoredPair(named, len(examples), metrics, metrics[0].compare(metrics[1]))


# --- as text ---


def comparison_texts(
    one: "RunSummary",
    two: "RunSummary",
    differences: dict[str, list[Any]],
    views: "Sequence[View]",
    scored: ScoredPair | None,
) -> list[str]:
    from regard.see import ascii

    names = run_names(one, two)
    figures = [
        ("", *names),
        ("model", one.model, two.model),
        ("parameters", *("–" if run.parameters is None else f"{run.parameters:,}" for run in (one, two))),
        ("steps", *(f"{run.step:,} of {run.steps:,}" for run in (one, two))),
        ("best validation", *(str(run.best or "–") for run in (one, two))),
    ]
    settings = [("settings that differ", "", "")] if differences else [("settings are the same", "", "")]
    settings += [(name, *map(shorten_value, values)) for name, values in differences.items()]
    texts = ["\n".join(align_columns([*figures, ("", "", ""), *settings]))]
    texts += [ascii(view) for view in views] or ["one of the runs has no validation yet, so no curves are drawn"]
    if scored:
        texts.append("\n".join(score_lines(names, scored)))
    return texts


def score_lines(names: tuple[str, str], scored: ScoredPair) -> list[str]:
    rows: list[Sequence[str]] = [("", *names, "difference", "p" if scored.tests else "")]
    for one, two in zip(*(found.scores for found in scored.metrics), strict=True):
        test = scored.tests.get(one.name)
        intervals = [f" ± {half:.2f}" for half in test.intervals] if test else ["", ""]
        values = [f"{each.value:.2f}{interval}" for each, interval in zip((one, two), intervals, strict=True)]
        p_value = f"{test.p_value:.3f}{' *' * (test.p_value < SIGNIFICANT)}" if test else ""
        rows.append((one.name, *values, f"{two.value - one.value:+.2f}", p_value))
    kind = f"* p < {SIGNIFICANT}, paired bootstrap resampling; ± is half the 95 % confidence interval"
    lines = [f"on {' and '.join(scored.on)}: {scored.examples:,} examples", *align_columns(rows, right=(1, 2, 3))]
    lines.append(kind if scored.tests else "there is no significance test for this task")
    for score in scored.metrics[0].scores:
        test = scored.tests.get(score.name)
        lines.append(f"{score.name}: {test.signature if test else score.signature}")
    return lines


def shorten_value(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= MAX_VALUE_LETTERS else f"{text[: MAX_VALUE_LETTERS - 1]}…"
