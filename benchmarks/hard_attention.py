"""Hard attention, trained by the exact sum, REINFORCE and straight-through, against soft attention on three tasks.

    python benchmarks/hard_attention.py           trains, measures and draws; a few minutes on two cores
    python benchmarks/hard_attention.py draw      draws what was measured into docs/pictures

The label is a sentence's sentiment in the miniature world. In `one word` exactly one word decides it, and is known; in
`all words` several add up and "not" turns them round, so that no single word is enough; in `in context` the words of
those same sentences pass through a Transformer's layer first, so that one position may know all. Held out are the
world's test sentences, with compositions that occur in no training sentence.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hard_attention_tasks import (
    BATCH,
    ESTIMATORS,
    FEELING,
    TASKS,
    WIDTH,
    Estimator,
    Sentences,
    Task,
    sentences,
    shown_sentence,
    vocabulary,
)
from machine import RESULTS, write
from regard.attention import Additive, Hard, Recipe, record_attention
from regard.layers.pooling import AttentionPooling
from regard.models.encoder import Encoder, SequenceClassifier
from regard.tasks.sequence_classification.task import (
    ExpectedLoss,
    GradientNoise,
    HardAttentionClassifier,
    LabelledBatch,
    LearnedBaseline,
    NoBaseline,
    collate,
    compute_gradient,
    draw_gradients,
    lengths_of,
)
from regard.tasks.splits import iterate_batches
from regard.training import ConstantSchedule, TrainConfig, train
from regard.world import Sentence

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
STEPS, RATE = 400, 5e-3
SEEDS = (0, 1, 2)
WATCHED = (0, 25, 50, 100, 200, 400)
DRAWS, TURNS, EARLY = 400, 60, 100
EXACT = ("soft", "hard, every word summed")  # draw nothing
DRAWN = ("soft", "REINFORCE, baseline", "straight-through 1")


# --- train and measure ---


def fresh(way: Estimator, task: Task, seed: int) -> HardAttentionClassifier:
    torch.manual_seed(seed)
    encoder, labels = Encoder(task.encoder, vocabulary().size), len(task.names)
    recipe = Recipe(score=Additive(encoder.width, WIDTH), normaliser=way.normaliser)
    classifier = SequenceClassifier(encoder, AttentionPooling(encoder.width, recipe=recipe), labels=labels)
    learned = LearnedBaseline(encoder.width, labels=labels) if way.learned_baseline else NoBaseline(labels)
    return HardAttentionClassifier(classifier, learned)


def with_weights(way: Estimator, task: Task, model: HardAttentionClassifier) -> HardAttentionClassifier:
    """Another estimator at the same weights."""
    other = fresh(way, task, seed=0)
    other.classifier.load_state_dict(model.classifier.state_dict())
    if way.learned_baseline:
        other.baseline.load_state_dict(model.baseline.state_dict())
    return other


def trained(model: HardAttentionClassifier, way: Estimator, task: Task, seed: int) -> Iterator[int]:
    """The number of every step, after it."""
    plan = TrainConfig(ConstantSchedule(RATE), STEPS, seed=seed, clip=0.0, checkpoint_every=STEPS)
    with tempfile.TemporaryDirectory() as folder:
        for report in train(model, sentences("train", task).corpus(seed), way.loss, plan, Path(folder)):
            yield report.step


@torch.no_grad()
def measured(model: HardAttentionClassifier, held_out: Sentences) -> dict[str, float]:
    """Accuracy, and how often the word with the largest weight is the one that decides, where one does."""
    model.eval()
    right, found = 0, []
    for rows, texts, _ in iterate_batches(held_out.examples, lengths_of, collate):
        with record_attention(model.classifier) as record:
            logits = model(texts.terms, texts.lengths)
        most = record.weights("pooling")[:, 0, 0].argmax(-1).tolist()
        right += int((logits.argmax(-1) == texts.labels).sum())
        deciding = [held_out.deciding[row] for row in rows]
        found += [at == decides for at, decides in zip(most, deciding, strict=True) if decides is not None]
    return {"accuracy": 100 * right / len(held_out.examples), "decider": 100 * statistics.mean(found)}


def learning(name: str, way_name: str, seed: int) -> dict[str, Any]:
    """One model, from new weights to its figures on held-out sentences."""
    task, way = TASKS[name], ESTIMATORS[way_name]
    held_out, model, early = sentences("test", task), fresh(way, task, seed), 0.0
    for step in trained(model, way, task, seed):
        if step == EARLY:
            early = measured(model, held_out)["accuracy"]
    chosen = with_weights(replace(way, normaliser=Hard()), task, model) if way_name == "soft" else model
    shown = {
        "early": early,
        **measured(model, held_out),
        "chosen": measured(chosen, held_out)["accuracy"],
    }
    strip = attended(model, task, shown_sentence(task)) if seed == SEEDS[0] else None
    return {"task": name, "way": way_name, "seed": seed, **shown, "looked": strip}


@torch.no_grad()
def attended(model: HardAttentionClassifier, task: Task, sentence: Sentence) -> dict[str, Any]:
    model.eval()
    texts = collate([(vocabulary().encode(" ".join(sentence.words)), 0)])
    with record_attention(model.classifier) as record:
        logits = model(texts.terms, texts.lengths)
    chance, label = logits.softmax(-1)[0].max(-1)
    return {
        "words": sentence.words,
        "weights": record.weights("pooling")[0, 0, 0].tolist(),
        "said": task.names[int(label)],
        "chance": chance.item(),
        "right": FEELING[sentence.sentiment],
    }


# --- the gradient's noise ---


def noises(seed: int) -> list[dict[str, Any]]:
    """Every estimator's gradient at the weights of REINFORCE with a baseline as it trains, against the exact one."""
    task, leader = TASKS["one word"], ESTIMATORS["REINFORCE, baseline"]
    model = fresh(leader, task, seed)
    texts = collate(sentences("valid", task).examples[:BATCH])
    rows = list(noise_of(model, task, texts, {"seed": seed, "step": 0}))
    for step in trained(model, leader, task, seed):
        if step in WATCHED:
            rows += noise_of(model, task, texts, {"seed": seed, "step": step})
    return rows


def noise_of(
    model: HardAttentionClassifier, task: Task, texts: LabelledBatch, where: dict[str, int]
) -> Iterator[dict[str, Any]]:
    batch = (texts, texts.tokens)
    for name, way in ESTIMATORS.items():
        other = with_weights(way, task, model).train()
        chooses = list(other.classifier.pooling.parameters())
        rest = [*other.classifier.encoder.parameters(), *other.classifier.output.parameters()]
        with torch.random.fork_rng(devices=[]):
            true = compute_gradient(other, ExpectedLoss(), batch, chooses + rest)
            drawn = draw_gradients(other, way.loss, batch, chooses + rest, draws=2 if name in EXACT else DRAWS)
        size = sum(weights.numel() for weights in chooses)
        for part, found in (
            ("attention", GradientNoise.of(drawn[:, :size], true[:size])),
            ("all", GradientNoise.of(drawn, true)),
        ):
            yield {**where, "way": name, "of": part, **asdict(found), "relative": found.relative}


# --- the cost ---


def costs(name: str) -> dict[str, float]:
    """The time of one loss and its gradient, in units of soft attention's; all take turns."""
    task = TASKS[name]
    models = {way: fresh(ESTIMATORS[way], task, 0).train() for way in ESTIMATORS}
    texts = collate(sentences("train", task).examples[:BATCH])
    times: dict[str, list[float]] = {way: [] for way in ESTIMATORS}
    for _ in range(TURNS):
        for way, model in models.items():
            start = perf_counter()
            summed, _ = ESTIMATORS[way].loss(model, (texts, texts.tokens))
            summed.backward()
            times[way].append(perf_counter() - start)
    return {
        way: statistics.median(one / soft for one, soft in zip(some, times["soft"], strict=True))
        for way, some in times.items()
    }


# --- tables and pictures ---


def spread(values: list[float], digits: int = 1) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def summary(rows: list[dict[str, Any]], noise: list[dict[str, Any]], cost: dict[str, dict[str, float]]) -> list[dict]:
    """A line for each estimator: means over the seeds, and of the noise the middle one, since a few draws are wild."""
    lines = []
    for way in ESTIMATORS:
        line: dict[str, Any] = {"way": way}
        for task in TASKS:
            mine = [row for row in rows if row["task"] == task and row["way"] == way]
            line |= {f"{task}: {what}": spread([row[what] for row in mine]) for what in ("accuracy", "chosen")}
            line[f"{task}: at step {EARLY}"] = spread([row["early"] for row in mine])
            line[f"{task}: decider"] = spread([row["decider"] for row in mine])
            line[f"{task}: cost"] = cost[task][way]
        for step in WATCHED:
            at = [row for row in noise if (row["way"], row["step"], row["of"]) == (way, step, "attention")]
            line |= {
                f"step {step}: {what}": statistics.median(row[what] for row in at)
                for what in ("relative", "variance", "bias", "unsure", "cosine")
            }
        lines.append(line)
    return lines


def show(lines: list[dict[str, Any]]) -> None:
    console = Console(width=160)
    for columns in (
        [f"{task}: {what}" for task in TASKS for what in ("accuracy", f"at step {EARLY}", "decider")],
        [f"{task}: cost" for task in TASKS] + [f"{task}: chosen" for task in TASKS],
        [f"step {step}: {what}" for step in (0, EARLY, STEPS) for what in ("relative", "bias", "unsure", "cosine")],
    ):
        table = Table("", *columns)
        for line in lines:
            cells = (line[column] for column in columns)
            table.add_row(line["way"], *(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells))
        console.print(table)


def draw() -> None:
    from matplotlib.figure import Figure

    from regard import see
    from regard.see import stack, strip

    found = json.loads((RESULTS / "hard-attention.json").read_text())
    strips = []
    for task in ("one word", "all words"):
        for row in found["rows"]:
            if row["task"] == task and row["looked"] and row["way"] in DRAWN:
                seen = row["looked"]
                title = f"{task}, {row['way']}: {seen['said']} ({seen['chance']:.2f}); it is {seen['right']}"
                strips.append(strip(seen["words"], torch.tensor(seen["weights"]), title))
    PICTURES.mkdir(exist_ok=True)
    see.save(see.draw(stack(*strips)), PICTURES / "hard-attention.png")
    figure = Figure(figsize=(10, 4), layout="constrained")
    titles = {
        "relative": "variance of the gradient / squared norm of its mean",
        "cosine": "cosine to the exact gradient",
    }
    for axes, (what, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for n, line in enumerate(found["summary"]):
            if line["way"] in EXACT and what == "relative":
                continue
            points = [line[f"step {step}: {what}"] for step in WATCHED]
            axes.plot(WATCHED, points, color=f"C{n}", marker="o", ms=4, label=line["way"])
        axes.set(title=title, xlabel="step", **({"yscale": "log"} if what == "relative" else {"ylim": (0.5, 1.02)}))
        axes.grid(alpha=0.3)
    figure.axes[1].legend(frameon=False, fontsize=8)
    see.save(figure, PICTURES / "gradient-noise.png")


def alone() -> None:
    torch.set_num_threads(1)


def main() -> None:
    alone()
    start, console = perf_counter(), Console(stderr=True)
    jobs = [(task, way, seed) for task in TASKS for way in ESTIMATORS for seed in SEEDS]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=alone) as pool:
        found, scattered = pool.map(learning, *zip(*jobs, strict=True)), pool.map(noises, SEEDS)
        rows = list(track(found, description="learning", total=len(jobs), console=console))
        noise = [
            row for some in track(scattered, description="noise", total=len(SEEDS), console=console) for row in some
        ]
    cost = {task: costs(task) for task in TASKS}
    lines = summary(rows, noise, cost)
    show(lines)
    sizes = {"width": WIDTH, "batch": BATCH, "steps": STEPS, "rate": RATE, "draws": DRAWS, "seeds": len(SEEDS)}
    print(
        write(
            "hard-attention",
            "python benchmarks/hard_attention.py",
            rows,
            sizes=sizes,
            seconds=perf_counter() - start,
            summary=lines,
            noise=noise,
            cost=cost,
        )
    )
    draw()


if __name__ == "__main__":
    draw() if sys.argv[1:] == ["draw"] else main()
