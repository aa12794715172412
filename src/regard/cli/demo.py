"""Nothing but a minute's patience in; a trained translator, what it writes and where it looks, and what is next out."""

from pathlib import Path
from typing import Annotated

import typer

SENTENCE = "the black cat ate the mouse"
KEPT = 10  # checkpoints at least, all along the training
SHOWN = 6  # held-out sentences with their translations


def demo(
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("out/demo"),
    steps: Annotated[int | None, typer.Option(min=1, help="Fewer steps end sooner and translate worse.")] = None,
) -> None:
    """Train a small Transformer on the miniature world, translate with it, and show what it looked at.

    Example: `regard demo`
    """
    from rich.console import Console
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    from regard import see
    from regard.cli.tasks.translate import alignment
    from regard.cli.train import run
    from regard.decode import Greedy
    from regard.decode.reading import kept_heads, look
    from regard.decode.texts import translate_texts
    from regard.tasks.data import read_split
    from regard.tasks.metrics import exact
    from regard.tasks.settings import Settings
    from regard.tasks.translate import Translator

    console = Console()
    console.print(Rule("1. Training a small Transformer: English to French", align="left"))
    many = steps or Settings.of_world().train.steps
    kept = {"train.checkpoint_every": max(1, many // KEPT), "train.keep": 2 * KEPT}  # to be watched as they came about
    run(None, kept | ({"train.steps": steps} if steps else {}), out, None, "cpu")
    translator = Translator.load(out)
    console.print(Rule("2. Sentences it has never seen", align="left"))
    held_out = read_split(translator.settings.data, "test").examples
    with console.status(f"translating {len(held_out)} held-out sentences"):
        found = translate_texts(translator, [pair.source for pair in held_out], Greedy())
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for pair, text in list(zip(held_out, found, strict=True))[:SHOWN]:
        table.add_row(Text(pair.source), Text(text), "✓" if text == pair.target else f"✗ {pair.target}")
    console.print(table)
    right = exact(found, [pair.target for pair in held_out])
    console.print(
        f"Word for word right: {right.value:.1f} % of {len(held_out)} sentences, each with a pair of words "
        "that never stood together in training.\n"
    )
    console.print(Rule("3. Where it looked", align="left"))
    written = translate_texts(translator, [SENTENCE], Greedy())[0]
    seen = look(translator, SENTENCE, written or "?")  # a model that has learnt nothing may write nothing
    heads = kept_heads(out)
    title = f"{'the mean of ' if len(heads) > 1 else ''}{' and '.join(head.name for head in heads)}"
    picture = see.look(alignment(translator, seen, SENTENCE, heads), title=title)
    console.print(Text(see.ascii(picture)), soft_wrap=True)
    console.print(Text(f"\nThe picture is {see.save(see.draw(picture), out / 'alignment.png')}.\n"))
    console.print(Rule("What to try next", align="left"))
    console.print(Text("  source .venv/bin/activate", "bold"))
    commands = after(out)
    width = max(map(len, commands))
    for command, does in commands.items():
        console.print(Text.assemble("  ", (f"{command:<{width}}", "bold"), f"  {does}"), soft_wrap=True)


def after(out: Path) -> dict[str, str]:
    return {
        f"regard translate {out}": "type a sentence",
        f'regard look {out} "the man carries the light box" --word light': "which word decided",
        f'regard look {out} "{SENTENCE}" --every': "all heads",
        f"regard evaluate {out}": "BLEU, chrF, BLEU by length",
        "regard ladder": "models without and with attention, side by side",
        "regard train --train my.en --train my.de --to de --out mine": "your own sentences",
        "regard lecture": "attention by hand, and the gallery",
    }


def lecture(folder: Annotated[Path, typer.Option(help="Where the gallery is drawn.")] = Path("out")) -> None:
    """Walk through the lectures' example, a mask and an explanation, and draw the gallery.

    Example: `regard lecture`
    """
    from rich.console import Console

    from regard.see.lecture import walk

    walk(Console(), folder)
