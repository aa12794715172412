"""`regard import`: makes a run of a checkpoint of another library."""

from pathlib import Path
from typing import Annotated

import typer


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
