"""The lecture: the worked examples, a causal mask, an explanation and the gallery, printed to a console."""

from pathlib import Path

import torch
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.attention import examples
from regard.attention.examples import EXAMPLES, WorkedExample
from regard.attention.functional import explain, steps
from regard.attention.pattern import Causal, Window
from regard.attention.recipe import Recipe
from regard.see.gallery import write_gallery
from regard.see.plots.draw import ascii

LONG_TOKENS = 16_384


NEXT_COMMANDS = {
    'regard draw "Causal() & Window(4)"': "any pattern, as text",
    'regard draw "Block(4, Window(2) | Global(1))"': "patterns combine",
    "regard draw rotary --save out/rotary.svg": "positions, as a picture",
    "regard draw sparsemax --save out/sparsemax.pdf": "named recipes",
    "regard explain bigbird --tokens 65536": "who runs a recipe, and why",
}


def print_lecture(console: Console, folder: Path) -> None:
    print_worked_example(console)
    print_causal_mask(console)
    print_block_sparsity(console)
    console.print(Rule("4. Every named attention", align="left"))
    page = write_gallery(folder)
    console.print(Text(f"The gallery is {page}, its contact sheet {page.parent / 'gallery' / 'overview.png'}.\n"))
    console.print(Rule("What to try next", align="left"))
    console.print(Text("  source .venv/bin/activate", "bold"))
    for command, does in NEXT_COMMANDS.items():
        console.print(Text.assemble("  ", (f"{command:<49}", "bold"), does))


def print_worked_example(console: Console) -> None:
    """x, q, k, v, scores, weights and outputs of the second lecture, 3 tokens of width 4."""
    plain, scaled = (example(f"self-attention, {name}") for name in ("unscaled", "scaled"))
    seen, unscaled = (steps(*case.qkv(), case.recipe) for case in (scaled, plain))
    console.print(Rule("1. Self-attention by hand (second lecture)", align="left"))
    console.print("Three tokens x, times three matrices, give each a query, a key and a value.")
    x, q, k, v = (examples.tensor(m) for m in (examples.X, examples.Q, examples.K, examples.V))
    console.print(Columns([matrix("x", x), matrix("q = x Wq", q), matrix("k = x Wk", k), matrix("v = x Wv", v)]))
    console.print("Each query meets each key. Scaled by √d, each row becomes weights of sum 1.")
    tables = [
        matrix("scores q kᵀ", unscaled.scores[0, 0]),
        matrix("scaled q kᵀ / √d", seen.scores[0, 0], 4),
        matrix("weights", seen.weights[0, 0], 4),
        matrix("output = weights v", seen.output[0, 0], 4),
    ]
    console.print(Columns(tables))
    console.print("The first token's output, scaled and unscaled:")
    for case, output in ((scaled, seen.output), (plain, unscaled.output)):
        console.print(Text(f"  {row(output[0, 0, 0])}  {agreement_mark(case, output)}"), soft_wrap=True)
    console.print()


def print_causal_mask(console: Console) -> None:
    case, told = example("look-ahead mask"), ("<start>", "I", "am", "fine")
    seen = steps(*case.qkv(), case.recipe)
    console.print(Rule("2. The look-ahead mask: ■ may look, · is hidden", align="left"))
    masked = ascii(case.recipe.pattern, tokens=told)
    weights = ascii(seen.weights, tokens=told, visible=seen.visible, numbers=True)
    console.print(Columns([Panel(Text(masked), title="Causal()"), Panel(Text(weights), title="weights")]))
    console.print(Text(f"  {agreement_mark(case, seen.output)}\n"), soft_wrap=True)


def print_block_sparsity(console: Console) -> None:
    recipe = Recipe(pattern=Causal() & Window(512))
    blocks = recipe.pattern.blocks(LONG_TOKENS, block=128)
    console.print(Rule(f"3. {recipe.pattern} on {LONG_TOKENS:,} tokens", align="left"))
    console.print(f"Of {len(blocks.rows) ** 2:,} blocks {blocks.counts()['empty']:,} are empty and are never computed.")
    console.print(Text(str(explain(recipe, torch.zeros(1, 8, LONG_TOKENS, 64)))), soft_wrap=True)
    console.print()


# --- how numbers are shown ---


def example(name: str) -> WorkedExample:
    return next(case for case in EXAMPLES if case.name == name)


def matrix(title: str, values: Tensor, digits: int = 0) -> Table:
    table = Table(title=title, show_header=False, title_justify="left", title_style="bold", border_style="dim")
    for line in values.tolist():
        table.add_row(*(f"{x:.{digits}f}" for x in line))
    return table


def row(values: Tensor) -> str:
    return "  ".join(f"{x:.4f}" for x in values.tolist())


def agreement_mark(case: WorkedExample, output: Tensor) -> str:
    """Do our numbers round to the printed ones?"""
    agrees = torch.allclose(output[0, 0], examples.tensor(case.output), rtol=0, atol=0.51 * 10**-case.digits)
    return f"{'✓' if agrees else '✗ not the numbers of'} {case.source}"
