"""One corpus in; every rung of the ladder trained on it, and the two pictures that made attention famous, out."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import BeamSize, DataFolder, Device, LengthPenalty, Split, device_of, search_of
from regard.cli.tasks import task_of
from regard.cli.train import assignment, run, settings_of

if TYPE_CHECKING:
    from regard.cli.measure import Measured

RUNGS = ("gru", "bahdanau", "luong-dot", "transformer")
SENTENCE = "the black cat ate the mouse"
# with no corpus given: long sentences, so that there is a length to fall at
LONG_WORLD = {"data.longest": 20, "data.sentences": 60_000}
LONG_WORLD |= {"train.steps": 1500, "train.tokens": 2048, "train.rate": 2e-3, "train.validate_every": 500}


def ladder(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML file; its [model] is replaced rung by rung.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of all runs and pictures.")] = Path("ladder"),
    models: Annotated[str, typer.Option(help="The rungs, with commas between.")] = ",".join(RUNGS),
    size: Annotated[str, typer.Option(help="tiny, small or base.")] = "tiny",
    steps: Annotated[int | None, typer.Option(min=1, help="How many steps for each.")] = None,
    sentence: Annotated[str | None, typer.Option(help="Whose alignment is drawn.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other line, as table.key=value.")] = None,
    split: Annotated[Split, typer.Option(help="What to measure on.")] = "valid",
    beam: BeamSize = 5,
    length_penalty: LengthPenalty = 1.0,
    data: DataFolder = None,
    device: Device = "auto",
) -> None:
    """Train models without and with attention on one corpus; draw BLEU against length, and the alignments.

    Without a recipe it uses the miniature world with long sentences, which takes a quarter of an hour on two cores.
    What is trained already is not trained again.

    Example: `regard ladder --out ladder`

    Example: `regard ladder recipes/multi30k-de-en-transformer.toml --data corpora --size small --out ladder`
    """
    from rich.console import Console

    from regard import see
    from regard.cli.measure import measured
    from regard.see.lengths import Lengths
    from regard.tasks.data import read_split
    from regard.tasks.tables import FIRST
    from regard.tasks.translate import Translator

    console, device = Console(stderr=True), device_of(device)
    asked: dict[str, Any] = {} if recipe else dict(LONG_WORLD)
    asked |= {"train.steps": steps} if steps else {}
    asked |= dict(assignment(line) for line in set_ or [])
    rungs = [(kind, asked | {"model.kind": kind, "model.size": size}) for kind in models.replace(" ", "").split(",")]
    for _, changes in rungs:
        settings_of(task_of(FIRST), recipe, changes)  # a mistake in the last should not wait for the first
    found: dict[str, Measured] = {}
    for kind, changes in rungs:
        console.rule(kind, align="left")
        folder = out / kind
        if not (folder / "model.safetensors").exists():
            run(recipe, changes, folder, data, device)
        translator = Translator.load(folder, device)
        pairs = read_split(translator.settings.data, split, data).examples
        found[kind] = measured(translator, pairs, search_of(beam, length_penalty, 0.0))
        text = sentence or (SENTENCE if translator.settings.data.corpus == "world" else pairs[0].source)
        if kind not in ("elman", "gru", "lstm"):
            typer.echo(f"drawn: {draw_alignment(translator, folder, text, out / f'alignment-{kind}.png')}")
    curves = tuple((kind, tuple((b.length, b.bleu, b.sentences) for b in one.lengths)) for kind, one in found.items())
    picture = Lengths(curves)
    typer.echo(see.ascii(picture))
    typer.echo(f"\ndrawn: {see.save(see.draw(picture), out / 'bleu-by-length.png')}\n")
    typer.echo("\n".join(f"{kind:<14} {one.scores[0]}" for kind, one in found.items()))
    write(out, {kind: one.figures() for kind, one in found.items()})


def draw_alignment(translator, folder: Path, text: str, picture: Path) -> Path:
    """The matrix of the heads that align best, on the model's own translation."""
    from regard import see
    from regard.cli.tasks.translate import alignment
    from regard.decode import Greedy
    from regard.decode.reading import kept_heads, look
    from regard.decode.texts import translate_texts

    written = translate_texts(translator, [text], Greedy())[0]
    seen = look(translator, text, written or "?")
    return see.save(see.draw(alignment(translator, seen, text, kept_heads(folder))), picture)


def write(out: Path, figures: dict[str, Any]) -> None:
    from regard.text.files import write_whole

    write_whole(out / "ladder.json", json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
