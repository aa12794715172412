"""Tables and picture of long_inputs.py, for the terminal and docs/16-long-inputs.md."""

import json
import statistics
from math import inf
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from machine import RESULTS

ROOT = Path(__file__).parent.parent
PAGE, PICTURE = ROOT / "docs" / "16-long-inputs.md", ROOT / "docs" / "pictures" / "long-inputs.png"
MARKS = {name: f"<!-- {name}: python benchmarks/long_inputs.py --show -->\n" for name in ("long-inputs", "stories")}
STOP = "<!-- end -->"
BUDGET = 1024  # MiB
FORMER = {"full, in the open": "full, reference"}  # kinds of attention in results that are published
NOTHING = "*Nothing was measured yet.*\n"


def show() -> None:
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if (rows := rows_of("long-inputs")) and any("mib" in row for row in rows):
        draw(rows)


def replaced(page: str) -> str:
    for name, table in (("long-inputs", trade_off), ("stories", extracts)):
        before, rest = page.split(MARKS[name])
        made = table(result(name)) if (RESULTS / f"{name}.json").exists() else NOTHING
        page = before + MARKS[name] + made + STOP + rest.split(STOP, 1)[1]
    return page


def result(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows_of(name: str) -> list[dict]:
    return result(name)["rows"] if (RESULTS / f"{name}.json").exists() else []


def where(found: dict) -> str:
    machine = found["machine"]
    return f"on {'an ' + machine['gpu'] if machine['gpu'] else machine['cpu']}, torch {machine['torch']}"


def mean(rows: list[dict], what: str, **wanted) -> float | None:
    """Over the seeds; None where nothing ran."""
    mine = [row[what] for row in rows if all(row[key] == value for key, value in wanted.items()) and what in row]
    return statistics.mean(mine) if mine else None


def trade_off(found: dict) -> str:
    rows = found["rows"]
    lengths = sorted({row["words"] for row in rows})
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in rows))
    seeds = 1 + max(row["seed"] for row in rows)
    lines = [
        f"Accuracy on held-out texts in per cent after {found['steps']} steps of short texts and "
        f"as many of long ones, {'one seed' if seeds == 1 else f'mean of up to {seeds} seeds'}; a guess is "
        "right in 10. Milliseconds and peak MiB for a batch forwards and backwards, "
        f"{where(found)}: `{found['command']}`.",
        "",
        "| | " + " | ".join(f"{n:,} words" for n in lengths) + " |",
        "| --- " * (len(lengths) + 1) + "|",
    ]
    for task in dict.fromkeys(row["task"] for row in rows):
        for mechanism in mechanisms:
            cells = (mean(rows, "accuracy", task=task, mechanism=mechanism, words=n) for n in lengths)
            said = ("–" if cell is None else f"{100 * cell:.1f}" for cell in cells)
            lines.append(f"| {task}, {mechanism} | " + " | ".join(said) + " |")
    for what, unit in (("ms", "ms"), ("mib", "MiB")):
        if not any(what in row for row in rows):
            continue
        for mechanism in mechanisms:
            cells = (mean(rows, what, mechanism=mechanism, words=n) for n in lengths)
            said = ("–" if cell is None else f"{cell:,.1f}" if what == "ms" else f"{cell:,.0f}" for cell in cells)
            lines.append(f"| {unit}, {mechanism} | " + " | ".join(said) + " |")
    batches = ", ".join(f"{mean(rows, 'batch', words=n) or 0:.0f} of {n:,}" for n in lengths)
    lines += ["", f"Texts in a batch: {batches} words."]
    if any("mib" in row for row in rows):
        lines += ["", f"![Time and memory against length, a word](pictures/{PICTURE.name})"]
    return "\n".join(lines) + "\n"


def extracts(found: dict) -> str:
    memory, trained, alone = found["memory"], found["rows"], found["weights_alone"]
    lengths = sorted({row["words"] for row in memory})
    lines = [
        f"Peak MiB of a training step on one story beside the weights, {where(found)}: `{found['command']}`.",
        "",
        "| | " + " | ".join(f"{n:,} words" for n in lengths) + " |",
        "| --- " * (len(lengths) + 1) + "|",
    ]
    for kind in dict.fromkeys(row["kind"] for row in memory):
        cells = (mean(memory, "mib", kind=kind, words=n) for n in lengths)
        lines.append(
            f"| {FORMER.get(kind, kind)} | "
            + " | ".join("–" if cell is None else f"{cell:,.0f}" for cell in cells)
            + " |"
        )
    fits = [row["kind"] for row in memory if row["words"] == lengths[-1] and row.get("mib", inf) <= BUDGET]
    lines += [
        "| the weights alone, by arithmetic | " + " | ".join(f"{alone[str(n)]:,.0f}" for n in lengths) + " |",
        "",
        f"Within {BUDGET:,} MiB, {lengths[-1]:,} words are trained on by {', '.join(fits) or 'none'}.",
    ]
    if trained:
        lines += [
            "",
            f"Held-out stories of {trained[0]['words']:,} words after {found['steps']:,} steps:",
            "",
            "| encoder | extracts right to the letter | BLEU | ms a batch |",
            "| --- | --- | --- | --- |",
        ]
        lines += [f"| {r['kind']} | {r['exact']:.1f} % | {r['bleu']:.1f} | {r['ms']:.0f} |" for r in trained]
    return "\n".join(lines) + "\n"


def draw(rows: list[dict]) -> None:
    """Time and memory against length, both axes in powers."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    lengths = sorted({row["words"] for row in rows})
    parts = (("ms", "milliseconds a word of the batch, × 1,000"), ("mib", "peak KiB a word of the batch"))
    for axes, (what, label) in zip(figure.subplots(1, 2), parts, strict=True):
        for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
            points = []
            for n in lengths:
                value, batch = (mean(rows, key, mechanism=mechanism, words=n) for key in (what, "batch"))
                if value is not None and batch is not None:
                    points.append((n, value * (1000 if what == "ms" else 1024) / (n * batch)))
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=mechanism)
        axes.set(xscale="log", yscale="log", xlabel="words of a text", title=label)
        axes.set_xticks(lengths, labels=[f"{n // 1024}k" for n in lengths])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False)
    figure.savefig(PICTURE, dpi=130)


# --- on the terminal ---


def said(row: dict) -> str:
    return ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in row.items())


def print_table(rows: list[dict]) -> None:
    lengths = sorted({row["words"] for row in rows})
    for name in dict.fromkeys(row["task"] for row in rows):
        table = Table(name, *(f"{n:,} words" for n in lengths))
        for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
            table.add_row(mechanism, *(summary(rows, name, mechanism, n) for n in lengths))
        Console(width=120).print(table)


def summary(rows: list[dict], task: str, mechanism: str, words: int) -> str:
    mine = [row for row in rows if (row["task"], row["mechanism"], row["words"]) == (task, mechanism, words)]
    good = [row for row in mine if "failed" not in row]
    if not good:
        return mine[0]["failed"][:40] if mine else ""
    means = {key: statistics.mean(row[key] for row in good) for key in ("accuracy", "ms", "mib") if key in good[0]}
    memory = f"\n{means['mib']:,.0f} MiB" if "mib" in means else ""
    return f"{100 * means['accuracy']:.1f} %\n{means['ms']:.1f} ms{memory}"
