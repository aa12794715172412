"""`regard evaluate`: computes a model's metrics on held-out examples, with their signatures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    MAX_LENGTH_NAMES,
    DataFolder,
    LoadOptions,
    ModelArgument,
    SearchOptions,
    Split,
    refuse_long,
    with_option_groups,
    with_progress,
    writable_files,
)
from regard.tasks.registry import MAX_SENTENCE_TOKENS, MAX_TEXT_TOKENS, task_of_run

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
