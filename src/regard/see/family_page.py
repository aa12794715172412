"""Family page: the family ladder as a page of tables, findings and pictures of what its models attend to."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from regard.attention import record_attention
from regard.data.files import write_text_atomic
from regard.models.language_model import LanguageModel
from regard.models.safetensors_io import load_weights
from regard.see.gallery import draw_tile, save_small_png
from regard.see.plots.layout import PAPER, TextLine
from regard.see.plots.mpl_figure import draw_text_line
from regard.see.plots.panels import ColourScale, Panel
from regard.tasks.language_modeling.family import (
    SOLVED,
    VALID_SEQUENCES,
    WEIGHT_DECAY,
    WEIGHTS,
    Answers,
    FamilyLadder,
    FamilyRun,
    cached_task,
    machine,
    measure_recipe,
    refuse_other_budget,
    train_family,
)
from regard.tasks.protocol import ProgressBar


def write_family(
    ladder: FamilyLadder, jobs: int, command: str, notice: Callable[[str], object], progress: ProgressBar
) -> Path:
    """Trains and measures what is missing, and writes the page."""
    refuse_other_budget(ladder)
    rows = train_family(ladder, jobs, notice, progress)
    speed = {recipe: measure_recipe(ladder, recipe) for recipe in progress(ladder.rungs, "speed", len(ladder.rungs))}
    content = {
        "command": command,
        "machine": machine(ladder.device),
        "size": asdict(ladder.size),
        "rows": rows,
        "speed": speed,
    }
    write_text_atomic(ladder.out / "family.json", json.dumps(content, indent=1) + "\n")
    page = ladder.out / "family.md"
    write_text_atomic(page, family_page(ladder, rows, speed, command))
    save_attention(ladder, rows, ladder.out / "family-attention.png")
    return page


def recorded_weights(
    ladder: FamilyLadder, recipe: str, rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Tensor]]:
    """The weights of every layer and head on one held-out sequence of the first task, the first seed's model."""
    name = ladder.tasks[0]
    task = cached_task(name, ladder.size, ladder.text_folder)
    rate = next(row["rate"] for row in rows if row["recipe"] == recipe and row["task"] == task.name)
    run = FamilyRun(name, recipe, ladder.config(recipe, task.vocabulary), rate, ladder.size.seeds[0])
    model = LanguageModel(run.config, task.vocabulary).eval()
    load_weights(model, run.folder(ladder.out) / WEIGHTS)
    batch = task.data(0, "cpu").at(0, 0)[0]
    tokens = (batch[0].tokens if isinstance(batch[0], Answers) else batch[0].inputs)[:1]
    with torch.no_grad(), record_attention(model) as record:
        model(tokens)
    for site in record.sites:
        for head, weights in enumerate(record.weights(site.name)[0]):
            yield f"{site.name.removeprefix('blocks.')}.{head}", weights.detach().double()


def save_attention(ladder: FamilyLadder, rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """A row of tiles for each recipe, one for each layer and head."""
    tile, gap, left, top, line = 0.9, 0.12, 0.2, 0.2, 1.45
    heads = ladder.size.layers * ladder.size.heads
    figure = Figure(
        figsize=(left + heads * (tile + gap) + 0.1, top + line * len(ladder.rungs)), facecolor=PAPER, dpi=110
    )
    for n, recipe in enumerate(ladder.rungs):
        y = top + n * line
        draw_text_line(figure, TextLine(recipe, left, y, "heading"))
        for t, (title, weights) in enumerate(recorded_weights(ladder, recipe, rows)):
            panel = Panel(title, weights, ColourScale.robust_of_rows(weights))
            draw_tile(figure, panel, left + t * (tile + gap), y + 0.4, tile, tile)
    save_small_png(figure, path)
    return path


def mean_and_spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.3f} (1 seed)"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def bytes_text(count: float) -> str:
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:,.0f} B"


def cache_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bytes a token, from the two longest lengths; of a state, its size."""
    if len(rows) < 2:
        return bytes_text(rows[-1]["cache"]) if rows else "–"
    one, other = rows[-2:]
    grows = (other["cache"] - one["cache"]) / (other["length"] - one["length"])
    return f"{grows:,.0f} B" if grows else f"0 ({bytes_text(other['cache'])} in all)"


def family_page(
    ladder: FamilyLadder,
    rows: Sequence[Mapping[str, Any]],
    speed: Mapping[str, Sequence[Mapping[str, Any]]],
    command: str,
) -> str:
    size, names = ladder.size, list(dict.fromkeys(row["task"] for row in rows))
    by = {(row["task"], row["recipe"]): row for row in rows}
    tasks = [next(row for row in rows if row["task"] == name) for name in names]
    counts = [row["parameters"] for row in rows if row["task"] == names[0]]
    lines = ["# The family on one budget", "", f"Made by `{command}` on {machine(ladder.device)}.", ""]
    lines += [
        f"Every recipe is a language model of {size.layers} layers, width {size.model} and {size.heads} heads, with "
        f"{min(counts):,} to {max(counts):,} parameters ({names[0]}): the width of the feed-forward layers makes up "
        "for what a recipe has more. A hybrid of fewer layers than its period has the last of them. All read the same "
        "tokens in the same order, "
        f"{size.steps:,} steps of {size.rows} rows of text, or {size.sequences} sequences that are generated; AdamW, "
        f"weight decay {WEIGHT_DECAY}, cosine schedule, products in {ladder.precision}. "
        f"The learning rate is the best of {', '.join(f'{rate:g}' for rate in size.rates)} on validation, for each "
        f"recipe and task, by the first of {len(size.seeds)} seeds; figures are mean and standard deviation over these "
        f"seeds, on validation ({size.held_out:,} bytes of a text; {VALID_SEQUENCES} sequences that are generated, so "
        "that a share of single answers is known to 4 points). All have rotary positions, and none the short "
        "convolution that papers on states put before it.",
        "",
    ]
    head = ["recipe", *(f"{row['task']}, {figure_name(row['figure'])}" for row in tasks), "rates", "parameters"]
    lines += [table_line(head), table_line(["---"] * len(head))]
    for recipe in ladder.rungs:
        own = [by[name, recipe] for name in names]
        cells = [mean_and_spread(row["values"]) for row in own]
        lines.append(
            table_line([recipe, *cells, ", ".join(f"{row['rate']:g}" for row in own), f"{own[0]['parameters']:,}"])
        )
    if any(row["guess"] is not None for row in tasks):
        guesses = ["–" if row["guess"] is None else f"{row['guess']:.3f}" for row in tasks]
        lines.append(table_line(["a guess, which looks nothing up", *guesses, "–", "–"]))
    lines += ["", *finding_lines(ladder, by, names)]
    lengths = size.lengths
    head = ["recipe", *(f"train, {n:,}" for n in lengths), f"memory, {lengths[-1]:,}"]
    head += [*(f"decode, {n:,}" for n in lengths), "cache a token"]
    lines += ["## Speed, memory and cache against length", ""]
    memory = "peak of a training step" if ladder.on_gpu else "kept for the backward pass"
    how = "in bfloat16 and captured in a CUDA graph; decoding in float32, launched" if ladder.on_gpu else "in float32"
    lines += [
        f"One sequence; training {how}. Tokens a second; memory: {memory}; a state has a cache of fixed size.",
        "",
    ]
    lines += [table_line(head), table_line(["---"] * len(head))]
    for recipe, found in speed.items():
        at = {row["length"]: row for row in found}
        cells = [f"{at[n]['train']:,.0f}" if n in at else "–" for n in lengths]
        cells += [bytes_text(at[lengths[-1]]["memory"]) if lengths[-1] in at else "–"]
        cells += [f"{at[n]['decode']:,.0f}" if n in at else "–" for n in lengths]
        lines.append(table_line([recipe, *cells, cache_text(found)]))
    lines += [
        "",
        "## What they attend to",
        "",
        f"Every layer and head on one sequence of {names[0]}: queries down, keys across.",
    ]
    lines += [
        "Weights of a state are its effective weights, exact; orange is negative.",
        "",
        "![attention of each recipe](family-attention.png)",
        "",
    ]
    return "\n".join(lines)


def finding_lines(
    ladder: FamilyLadder, by: Mapping[tuple[str, str], Mapping[str, Any]], names: Sequence[str]
) -> list[str]:
    """Who answers what, in words."""
    found = []
    for name in names:
        means = {recipe: statistics.mean(by[name, recipe]["values"]) for recipe in ladder.rungs}
        figure = by[name, next(iter(ladder.rungs))]["figure"]
        order = sorted(means, key=lambda recipe: means[recipe], reverse=figure == "accuracy")
        if figure == "loss":
            found += [
                f"{name}: best {order[0]} ({means[order[0]]:.3f}), last {order[-1]} ({means[order[-1]]:.3f}).",
                "",
            ]
            continue
        solved = [recipe for recipe in order if means[recipe] >= SOLVED]
        rest = ", ".join(f"{recipe} {means[recipe]:.0%}" for recipe in order if recipe not in solved)
        which = f"solved by {', '.join(solved)}" if solved else "solved by none"
        guess = by[name, next(iter(ladder.rungs))]["guess"]
        share = f"{SOLVED:.0%} of the answers or more; a guess has {guess:.0%}"
        found += [f"{name}: {which} ({share}){f'; {rest}' if rest else ''}.", ""]
    return found


def figure_name(figure: str) -> str:
    return {"loss": "nats a byte", "accuracy": "share right"}[figure]


def table_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
