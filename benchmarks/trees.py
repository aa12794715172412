"""Dependency trees as positions: accuracy of tagging with positions in the row, in the tree, and in both.

The trees are the gold ones, so the figures say what a perfect parser would be worth to a tagger, not what tagging
without one reaches (Wang et al. 2019 compare the same positions for translation).
"""

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from machine import write
from regard.cli.progress import train_with_progress
from regard.models.config import EncoderConfig
from regard.tasks.config import TokenizerSettings
from regard.tasks.tagging.task import CharacterSettings, Tagger, TaggingData, TaggingSettings, evaluate_tagger
from regard.training.config import TrainSettings
from regard.training.run import TrainingRun

HEADS, MODEL = 4, 128
POSITIONS = {
    "no places": "NoPosition()",
    "row, absolute": "Sinusoidal()",
    "row, relative": f"RelativeVectors(Clipped(8), head={MODEL // HEADS})",
    "tree, absolute": "TreeDepth()",
    "tree, relative": f"RelativeVectors(TreePath(8), head={MODEL // HEADS})",
    "row and tree, absolute": "Sinusoidal() + TreeDepth()",
    "row and tree, both": f"Sinusoidal() + TreeDepth() + RelativeVectors(TreePath(8), head={MODEL // HEADS})",
}


def main() -> None:
    args = arguments()
    train = TrainSettings(
        steps=args.steps,
        batch_size=2048,
        learning_rate=2e-3,
        warmup_steps=100,
        label_smoothing=0.1,
        weight_decay=0.1,
        validate_every=args.steps,
    )
    settings = TaggingSettings(
        data=TaggingData(corpus=args.corpus, sentences=args.sentences),
        text=TokenizerSettings(kind="words", vocab_size=12_000),
        spelling=CharacterSettings(read=args.corpus != "world", hide=0.1),
        train=train,
    )
    examples, held_out = (settings.data.read(split, args.data).examples for split in ("train", "valid"))
    rows = []
    for name, position in POSITIONS.items():
        config = EncoderConfig(
            kind="transformer",
            layers=2,
            model=MODEL,
            heads=HEADS,
            hidden=256,
            dropout=0.3,
            recipe=f'position = "{position}"',
        )
        scores = [
            accuracy(replace(settings, model=config, train=replace(train, seed=seed)), examples, held_out, args.device)
            for seed in range(args.seeds)
        ]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        rows.append(
            {
                "places": name,
                "position": position,
                "mean": statistics.fmean(scores),
                "spread": spread,
                "accuracy": scores,
            }
        )
        print(f"{name:<24} {rows[-1]['mean']:6.2f} ± {spread:.2f} %", flush=True)
    print(write(f"trees-{args.corpus}", " ".join(["python", *sys.argv]), rows, words="valid"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", default="world", help="world or ud_english_ewt")
    parser.add_argument("--data", type=Path, help="the folder that holds known corpora")
    parser.add_argument("--sentences", type=int, default=300, help="of the world: few, or every tag is right")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def accuracy(settings: TaggingSettings, examples, held_out, device: str) -> float:
    tagger = Tagger.from_examples(examples, settings)
    with tempfile.TemporaryDirectory() as folder:
        if not train_with_progress(
            TrainingRun(tagger.job(examples, held_out, device), Path(folder)), Console(stderr=True, quiet=True)
        ):
            raise SystemExit("stopped")
    return evaluate_tagger(tagger, held_out).accuracy


if __name__ == "__main__":
    main()
