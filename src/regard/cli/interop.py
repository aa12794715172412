"""`regard import`, `export` and `publish`: checkpoints of other libraries as runs, and runs for other engines."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.options import (
    ChangedPartsOption,
    CheckpointOption,
    DataFolder,
    PartsOption,
    load_parts,
    writable_folder,
)


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
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder of one of its checkpoints.")],
    to: Annotated[
        Literal["hf", "onnx", "ctranslate2"],
        typer.Option(help="hf: a Hugging Face folder (transformers); onnx (onnxruntime); ctranslate2."),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    precision: Annotated[
        Literal["float32", "int8"], typer.Option(help="Of the weights; int8 for ctranslate2.")
    ] = "float32",
    sentences: Annotated[
        Path | None, typer.Option(help="A text file to prove it on; default: what the run was validated on.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many sentences the proof runs.")] = 100,
    data: DataFolder = None,
    checkpoint: CheckpointOption = None,
    parts: PartsOption = None,
    changed_parts: ChangedPartsOption = None,
) -> None:
    """Export a trained model to another engine, and prove that it gives the same tokens there.

    The exported model runs in its own engine, greedily and with a beam of 4; where a token differs in float32, nothing
    is written. proof.json says what was compared, README.md how to load the model. A Hugging Face folder loads with
    transformers' Auto classes, without code of its own, and `regard import` makes the same run of it, bit by bit.

    Example: `regard export run --to hf --out exported-hf`

    Example: `regard export run --to ctranslate2 --out exported`

    Example: `regard export run --to ctranslate2 --precision int8 --out exported-int8`

    Example: `regard export run --to onnx --out exported-onnx --sentences test.en --count 500`
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
    typer.echo(f"exported: {out}")


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
