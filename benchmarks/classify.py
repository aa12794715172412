"""Text classification from TF-IDF to the Transformer: every model on the same texts, in one table.

    python benchmarks/classify.py world                          trains and measures, writes results/classify-world.json
    python benchmarks/classify.py sst2 --data FOLDER             on dev; with --test, on the test sentences
    python benchmarks/classify.py world --seeds 1 --rungs 3      only the first three rungs

Every rung has the same texts, steps and vocabulary; the checkpoint is chosen on validation texts. Three seeds are three
first weights and three orders of the texts.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from machine import write
from regard.cli.options import resolve_device
from regard.cli.progress import train_with_progress
from regard.data.labelled import LabelledText
from regard.tasks.sequence_classification.task import ClassificationSettings, TextClassifier, evaluate_classifier
from regard.tasks.splits import Split
from regard.training.run import TrainingRun

COUNTED = {"words.kind": "one-hot", "model.kind": "embed"}
VECTORS = {"model.kind": "embed"}
RNN = {"model.directions": 2, "model.layers": 1, "pooling.kind": "attention"}
STACK = {"model.kind": "transformer", "pooling.kind": "attention"}
RUNGS: dict[str, dict[str, object]] = {
    "words counted, all alike": {**COUNTED, "pooling.kind": "mean"},
    "words counted, by TF-IDF": {**COUNTED, "pooling.kind": "tf-idf"},
    "words counted, learned weights": {**COUNTED, "pooling.kind": "weights"},
    "bigrams counted, by log-count ratio": {**COUNTED, "pooling.kind": "log-ratio", "words.ngrams": 2},
    "skip-gram vectors, mean": {**VECTORS, "words.kind": "skip-gram", "pooling.kind": "mean"},
    "learned vectors, mean": {**VECTORS, "pooling.kind": "mean"},
    "learned vectors, learned weights": {**VECTORS, "pooling.kind": "weights"},
    "learned vectors, attention": {**VECTORS, "pooling.kind": "attention"},
    "bidirectional GRU, attention": {**RNN, "model.kind": "gru"},
    "bidirectional LSTM, attention": {**RNN, "model.kind": "lstm"},
    "Transformer, attention": {**STACK},
    "Transformer, rotary, attention": {**STACK, "model.recipe": 'position = "Rotary()"'},
}
WIDE = {"embed": {"model.model": 64}, "gru": {"model.model": 64, "model.hidden": 64}}
WIDE |= {"lstm": WIDE["gru"], "transformer": {"model.layers": 2, "model.model": 64, "model.hidden": 128}}
CORPORA: dict[str, dict[str, object]] = {
    "world": {"model.dropout": 0.0, "train.steps": 1000, "train.batch_size": 512, "train.validate_every": 250},
    "sst2": {
        "data.corpus": "sst2",
        "data.phrases": True,
        "text.vocab_size": 20_000,
        "model.dropout": 0.3,
        "words.dropout": 0.1,
        "train.steps": 2000,
        "train.batch_size": 2048,
        "train.validate_every": 250,
    },
}
SHARED = {"text.kind": "words", "train.learning_rate": 3e-3, "train.warmup_steps": 100, "train.max_length": 1000}
RATE = {"one-hot": 3e-2}  # a sum of single numbers learns ten times as slowly as a product of vectors


def settings_of(corpus: str, rung: str, seed: int) -> ClassificationSettings:
    chosen = RUNGS[rung]
    wide = WIDE[str(chosen["model.kind"])]
    rate = {"train.learning_rate": RATE[str(chosen["words.kind"])]} if chosen.get("words.kind") in RATE else {}
    return ClassificationSettings().with_changes(
        {**SHARED, **CORPORA[corpus], **chosen, **wide, **rate, "train.seed": seed}
    )


def measure(
    settings: ClassificationSettings, texts: Mapping[str, Sequence[LabelledText]], split: Split
) -> dict[str, float]:
    began, train, held_out = time.process_time(), texts["train"], texts["valid"]
    classifier = TextClassifier.from_examples(train, settings)
    with tempfile.TemporaryDirectory() as folder:
        if not train_with_progress(
            TrainingRun(classifier.job(train, held_out, resolve_device("auto")), Path(folder)), Console(quiet=True)
        ):
            raise SystemExit("stopped before the end; nothing is measured")
    weights = sum(parameter.numel() for parameter in classifier.model.parameters() if parameter.requires_grad)
    seconds = time.process_time() - began
    return {"accuracy": evaluate_classifier(classifier, texts[split]).accuracy, "weights": weights, "seconds": seconds}


def row_of(rung: str, found: list[dict[str, float]]) -> dict[str, Any]:
    accuracies = [one["accuracy"] for one in found]
    return {
        "rung": rung,
        "accuracy": statistics.mean(accuracies),
        "spread": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "by_seed": accuracies,
        "weights": int(found[0]["weights"]),
        "seconds": statistics.mean(one["seconds"] for one in found),
    }


def shown(rows: list[dict[str, Any]]) -> Table:
    table = Table("", "accuracy", "±", "weights", "s a run")
    for row in rows:
        table.add_row(
            row["rung"],
            f"{row['accuracy']:.2f} %",
            f"{row['spread']:.2f}",
            f"{row['weights']:,}",
            f"{row['seconds']:.0f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--data", type=Path, help="the folder of known corpora")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rungs", type=int, default=len(RUNGS), help="only the first so many")
    parser.add_argument("--test", action="store_true", help="measure on the test texts of a real corpus")
    given, console = parser.parse_args(), Console(stderr=True)
    split: Split = "test" if given.test or given.corpus == "world" else "valid"
    if resolve_device("auto") == "cpu":
        torch.set_num_threads(1)
    rows, named = [], list(RUNGS)[: given.rungs]
    parts: tuple[Split, ...] = ("train", "valid", split)
    texts = {part: settings_of(given.corpus, named[0], 0).data.read(part, given.data).examples for part in parts}
    for rung in named:
        runs = [settings_of(given.corpus, rung, seed) for seed in range(given.seeds)]
        rows.append(row_of(rung, [measure(settings, texts, split) for settings in runs]))
        console.print(f"{rung}: {rows[-1]['accuracy']:.2f} ± {rows[-1]['spread']:.2f}", highlight=False)
    Console().print(shown(rows))
    command = f"python benchmarks/classify.py {given.corpus}{' --data FOLDER' if given.data else ''}"
    command += f"{' --test' if given.test else ''} --seeds {given.seeds}"
    settings = settings_of(given.corpus, named[-1], 0).to_toml()
    print(write(f"classify-{given.corpus}", command, rows, split=split, settings_of_the_last=settings))


if __name__ == "__main__":
    main()
