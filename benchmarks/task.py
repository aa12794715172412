"""Recipes of any task but translation: trained with several seeds; mean and standard deviation of every metric."""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from machine import add_recipe_options, spend, spent, write
from regard.cli.progress import train_with_progress
from regard.tasks.config import read_task_name
from regard.tasks.protocol import Task
from regard.tasks.registry import get_task
from regard.training.run import TrainingRun


def main() -> None:
    args = arguments()
    task = get_task(read_task_name(args.recipe))
    settings = task.settings.load(args.recipe).with_changes(dict(line.split("=", 1) for line in args.set))
    splits = ("train", "valid", "test") if args.test else ("train", "valid")
    examples = {split: task.read(settings, split, args.data).examples for split in splits}
    seeds = range(args.seeds) if args.only is None else [args.only]
    rows = [row for seed in seeds for row in one_run(task, settings, seed, examples, args)]
    name = f"{settings.task}-{args.recipe.stem}" + ("" if args.only is None else f"-{args.only}")
    print(write(name, " ".join(["python", *sys.argv]), rows, summary=summary(rows), settings=lines_of(settings)))
    for split, figures in summary(rows).items():
        shown = ", ".join(f"{key} {one['mean']:.4g} ± {one['spread']:.2g}" for key, one in figures.items())
        print(f"{split}: {shown} ({len(seeds)} seeds)")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python benchmarks/task.py recipes/mnist.toml --data corpora --out runs"
    )
    add_recipe_options(parser, out="a folder for the runs; those it holds are resumed")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--only", type=int, help="one of the seeds, so that several machines can share the work")
    parser.add_argument("--set", nargs="+", default=[], help="lines to change, as table.key=value")
    return parser.parse_args()


def one_run(
    task: Task, settings: Any, seed: int, examples: Mapping[str, Sequence[Any]], args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """As `regard train` and `regard evaluate` do it; a run that is finished is only read."""
    folder = args.out / f"{args.recipe.stem}-{seed}"
    wanted = settings.with_changes({"train.seed": seed})
    begun = (folder / "settings.toml").exists()
    task_model = (
        task.task_model.from_description(folder) if begun else task.task_model.from_examples(examples["train"], wanted)
    )
    if task_model.settings != wanted:
        raise ValueError(f"{folder} holds a run with other settings; choose another --out")
    fit = TrainingRun(task_model.job(examples["train"], examples["valid"], args.device), folder)
    before, began, left = spent(folder), time.perf_counter(), wanted.train.steps - fit.last_step
    finished = train_with_progress(fit, Console(stderr=True))
    if left:
        spend(folder, before + time.perf_counter() - began)
    if not finished:
        raise SystemExit(f"stopped: {folder}")
    if left:
        task.after_training(task_model, examples["valid"], folder)
    trained = task.task_model.load(folder, args.device)
    weights = sum(weight.numel() for weight in trained.model.parameters())
    for split in [split for split in examples if split != "train"]:
        figures = task.evaluate(trained, examples[split]).to_json()
        yield {"seed": seed, "split": split, "weights": weights, "seconds": round(spent(folder)), "figures": figures}


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and spread (standard deviation between seeds) of every figure that is a number."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for split in dict.fromkeys(row["split"] for row in rows):
        figures = [row["figures"] for row in rows if row["split"] == split]
        names = [name for name, value in figures[0].items() if isinstance(value, float)]
        values = {name: [one[name] for one in figures] for name in names}
        found[split] = {
            name: {"mean": statistics.fmean(some), "spread": statistics.stdev(some) if len(some) > 1 else 0.0}
            for name, some in values.items()
        }
    return found


def lines_of(settings: Any) -> list[str]:
    return replace(settings, data=replace(settings.data, train=(), valid=(), test=())).to_toml().splitlines()


if __name__ == "__main__":
    main()
