"""Commands on runs: `regard runs`, `compare` and `evaluate`, and `import`, `export`, `publish` for other libraries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.options import (
    MAX_LENGTH_NAMES,
    ChangedPartsOption,
    CheckpointOption,
    DataFolder,
    LoadOptions,
    ModelArgument,
    PartsOption,
    SearchOptions,
    Split,
    load_parts,
    model_folder,
    refuse_long,
    with_option_groups,
    writable_file,
    writable_files,
    writable_folder,
)
from regard.cli.progress import with_progress
from regard.tasks.registry import MAX_SENTENCE_TOKENS, MAX_TEXT_TOKENS, TASKS, task_of_run

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
    first: Annotated[Path, typer.Argument(help="A run folder, or a name.", metavar="A", callback=model_folder)],
    second: Annotated[Path, typer.Argument(help="Another run of the same task.", metavar="B", callback=model_folder)],
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


# --- regard evaluate ---


if TYPE_CHECKING:
    from regard.decode.search import Search
    from regard.tasks.config import RunSettings
    from regard.tasks.metrics import TaskMetrics
    from regard.tasks.pretrained import PretrainedModel
    from regard.tasks.protocol import Task
    from regard.tasks.translation.metrics import CometScorer


@with_option_groups
def evaluate(
    model: ModelArgument,
    on: Annotated[
        list[str] | None,
        typer.Option("--on", "--pairs", help="Files in the format of the training files; default: --split."),
    ] = None,
    split: Annotated[Split, typer.Option(help="Of the corpus it was trained on.")] = "valid",
    search: SearchOptions = SearchOptions(),
    save: Annotated[Path | None, typer.Option(help="Write the metrics as JSON here.")] = None,
    outputs: Annotated[
        Path | None,
        typer.Option("--outputs", "--said", "--translations", help="Write the model's outputs here, one per line."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            *MAX_LENGTH_NAMES,
            min=1,
            help=f"Maximum tokens of an example; default {MAX_SENTENCE_TOKENS}, or {MAX_TEXT_TOKENS} to classify.",
        ),
    ] = None,
    comet: Annotated[
        str | None,
        typer.Option(help="Measure COMET too, by the Python of an environment that has it.", metavar="PYTHON"),
    ] = None,
    comet_model: Annotated[
        str | None, typer.Option(help="Of --comet: the name or the checkpoint of a COMET model.")
    ] = None,
    data: DataFolder = None,
    load: LoadOptions = LoadOptions(),
) -> None:
    """Evaluate a model on held-out examples.

    Translations are measured by BLEU, chrF, chrF++ and TER (sacreBLEU), labels by accuracy, precision, recall and F1,
    with a confusion matrix. Two runs are compared by `regard compare`.

    Example: `regard evaluate run`

    Example: `regard evaluate run --on test.en --on test.de --save metrics.json`

    Example: `regard evaluate tagger --on test.conllu`

    Example: `regard evaluate run --on test.en --on test.de --comet ~/comet/bin/python`
    """
    import json

    from regard.data.files import write_text_atomic

    save, outputs = writable_files(save=save, outputs=outputs)
    task = task_of_run(model)
    scorer = find_comet(task, model, comet, comet_model, load.torch_device)
    task_model = load.load(task.task_model, model)
    examples, named = read_examples(task, task_model, on or [], split, data)
    refuse_long_examples(task, task_model, examples, max_length)
    what: dict[str, Any] = {"model": str(model), "on": named}
    chosen = check_search(task, model, search)
    counted = task.examples if len(examples) != 1 else task.examples.removesuffix("s")
    typer.echo(f"on {len(examples):,} {counted}: {' and '.join(named)}", err=True)
    found = task.evaluate(task_model, examples, search=chosen, progress=with_progress)
    what |= {"search": repr(chosen)} if chosen else {}
    if scorer:
        found = add_comet(found, scorer, [pair.source for pair in examples])
    typer.echo(found.table())
    if outputs:
        write_text_atomic(outputs, "".join(f"{line}\n" for line in found.lines()))
        typer.echo(f"written: {outputs}")
    if save:
        write_text_atomic(save, json.dumps({**what, **found.to_json()}, indent=1, ensure_ascii=False) + "\n")
        typer.echo(f"written: {save}")


def check_search(task: "Task", model: Path, search: SearchOptions) -> "Search | None":
    """The search of --beam and penalties, which a task that does not search refuses."""
    if not task.searches and search != SearchOptions():
        raise ValueError(f"--beam and penalties are for translations; {model} is for the task {task.name!r}")
    return search.build() if task.searches else None


def refuse_long_examples(
    task: "Task", task_model: "PretrainedModel", examples: Sequence[Any], max_length: int | None
) -> None:
    """Examples of more tokens than are allowed."""
    ids = task.token_ids(task_model, examples)
    refuse_long(ids, lambda number: f"{task.examples[:-1]} {number}", max_length or task.max_tokens)


def find_comet(
    task: "Task", model: Path, python: str | None, comet_model: str | None, device: str
) -> "CometScorer | None":
    """What scores translations by COMET, if it is asked for; before they are made, since it may be missing."""
    if python is None:
        if comet_model:
            raise ValueError(f"--comet-model {comet_model} is run by a Python that has COMET; add --comet PYTHON")
        return None
    if not task.searches:
        raise ValueError(f"--comet is for translations; {model} is for the task {task.name!r}")
    from regard.tasks.translation.metrics import DEFAULT_COMET_MODEL, CometScorer

    return CometScorer.find(python, comet_model or DEFAULT_COMET_MODEL, gpus=int(device.startswith("cuda")))


def add_comet(found: "TaskMetrics", scorer: "CometScorer", sources: Sequence[str]) -> "TaskMetrics":
    """With the score of COMET; if that fails, the others are shown before it says so."""
    from regard.tasks.translation.metrics import TranslationMetrics

    assert isinstance(found, TranslationMetrics), "others are refused before they are measured"
    try:
        return replace(found, further_scores=(scorer.score(sources, found.translations, found.references),))
    except ValueError:
        typer.echo(found.table())
        raise


def read_examples(
    task: "Task", task_model: "PretrainedModel", on: list[str], split: Split, data: Path | None
) -> tuple[Sequence[Any], list[str]]:
    """The examples to evaluate on, and what they are called: of these files, or of a split of the model's corpus."""
    settings = settings_on(task_model.settings, on)
    examples = task.read(settings, "test" if on else split, data).examples
    named = on or [f"{settings.data.corpus}, {split}"]
    if not examples:
        raise ValueError(f"{' and '.join(named)}: no {task.examples} to evaluate on; give at least one")
    return examples, named


def settings_on(settings: "RunSettings", on: list[str]) -> Any:
    """The settings of a run, with these files as its test set."""
    if not on:
        return settings
    data = replace(settings.data, corpus="files", train=(), valid=(), test=tuple(on))
    return replace(settings, data=data)  # type: ignore[type-var]


# --- regard import, export, publish ---


def import_command(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="Of a Hugging Face model, or the name of one that the hub cache holds already."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the run; it must be new, or empty.")] = Path("run"),
    source_language: Annotated[
        str | None, typer.Option(help="Of a model of many languages: the tag of the language to translate from.")
    ] = None,
    target_language: Annotated[str | None, typer.Option(help="The tag of the language to translate into.")] = None,
) -> None:
    """Import a Hugging Face model as a run: to translate, generate or classify with, to train on, and to look into.

    Its weights must be safetensors. Nothing is downloaded, and no code or pickle of the folder is executed. What is
    imported gives the logits that transformers gives.

    Example: `regard import opus-mt-en-de --out en-de`, then `regard translate en-de "The cat sleeps."`

    Example: `regard import nllb-200-distilled-600M --out nllb --source-language eng_Latn --target-language fra_Latn`

    Example: `regard import HuggingFaceTB/SmolLM2-135M --out smollm2` (from the hub cache)
    """
    from regard.interop import import_model
    from regard.models.seq2seq import count_parameters
    from regard.tasks.registry import task_of_run

    run = import_model(folder, out, source_language=source_language, target_language=target_language)
    task = task_of_run(run)
    model = task.task_model.load(run)
    typer.echo(f"imported: {run}, {task.name}, {count_parameters(model.model):,} weights")
    if task.verb:
        typer.echo(f"next: regard {task.suggested_command or task.verb} {run}")


def export(
    run: Annotated[
        Path,
        typer.Argument(help="A run folder, the folder of one of its checkpoints, or a name.", callback=model_folder),
    ],
    to: Annotated[
        Literal["hf", "onnx", "ctranslate2", "regard"],
        typer.Option(
            help="hf: a Hugging Face folder (transformers); onnx (onnxruntime); ctranslate2; regard: a small run."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    precision: Annotated[
        Literal["float32", "int8"] | None,
        typer.Option(help="Of the weights: float32, or int8 for ctranslate2 and regard, there the default."),
    ] = None,
    sentences: Annotated[
        Path | None, typer.Option(help="A text file to prove it on; default: what the run was validated on.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many sentences the proof runs.")] = 100,
    data: DataFolder = None,
    checkpoint: CheckpointOption = None,
    parts: PartsOption = None,
    changed_parts: ChangedPartsOption = None,
) -> None:
    """Export a trained model to another engine, or as a run a quarter as large; prove that it gives the same tokens.

    The exported model runs in its own engine, greedily and with a beam of 4; where a token differs in float32, nothing
    is written. proof.json says what was compared, README.md how to load the model. A Hugging Face folder loads with
    transformers' Auto classes, without code of its own, and `regard import` makes the same run of it, bit by bit.

    Example: `regard export run --to hf --out exported-hf`

    Example: `regard export run --to ctranslate2 --out exported`

    Example: `regard export run --to ctranslate2 --precision int8 --out exported-int8`

    Example: `regard export run --to onnx --out exported-onnx --sentences test.en --count 500`

    Example: `regard export run --to regard --out en-fr` (matrices in 8 bits; every command reads it as a run)
    """
    from regard.interop.exporter import export as export_run
    from regard.interop.exporter import proof_lines

    writable_folder(out)
    proof = export_run(
        run,
        to,
        out,
        precision=precision,
        sentences=sentences,
        count=count,
        checkpoint=checkpoint,
        data=data,
        own_parts=load_parts(parts, changed_parts),
    )
    for line in proof_lines(proof):
        typer.echo(line.removeprefix("- "))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    typer.echo(f"exported: {out}, {size / 1e6:,.1f} MB")


def publish(
    folder: Annotated[Path, typer.Argument(help="A folder that regard export wrote.")],
    repo: Annotated[str, typer.Option(help="Its name on the Hugging Face hub: user/name.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go, and upload nothing.")] = False,  # noqa: FBT002
    private: Annotated[bool, typer.Option("--private", help="Others cannot see a repository that is made.")] = False,  # noqa: FBT002
) -> None:
    """Upload an exported model to the Hugging Face hub, if its proof is there and of these very files.

    Example: `regard publish exported --repo me/en-fr --dry-run`

    Example: `regard publish exported --repo me/en-fr`
    """
    from regard.interop.exporter import publish as publish_folder

    files = publish_folder(folder, repo, dry_run=dry_run, private=private)
    for name, size in files.items():
        typer.echo(f"{size:>14,}  {name}")
    done = "would go" if dry_run else "published"
    typer.echo(f"{done}: {len(files)} files, {sum(files.values()):,} bytes, to {repo}")
