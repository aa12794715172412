"""CUDA graphs in training: steps of each recipe launched kernel by kernel and captured, on synthetic data.

    python benchmarks/capture.py                      all recipes, about two minutes on a GPU
    python benchmarks/capture.py --only vit sst2      those whose name contains one of these
    python benchmarks/capture.py --only vit --profile     and what the GPU does in a step

Steps are those of the loop itself, data included, without validation and checkpoints. Where both have the same
batches, the losses of the eighth step are compared too: they must have the same bits. Tagging and classification have
other batches where they are captured, so their tokens a second count, not the milliseconds of a step.
"""

import argparse
import gc
import random
import string
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernel_profile import profile_kernels
from machine import write
from regard.data.images import LabelledImage
from regard.data.labelled import LabelledText, TaggedSentence
from regard.tasks.image_classification.task import ImageClassificationSettings, ImageClassifier
from regard.tasks.language_modeling.task import LanguageModelingSettings, TextGenerator
from regard.tasks.sequence_classification.task import ClassificationSettings, TextClassifier
from regard.tasks.tagging.task import Tagger, TaggingSettings
from regard.tasks.vqa.task import ImageQuestion, QuestionAnswerer, VQASettings
from regard.training.checkpoint import Progress
from regard.training.config import TrainingJob, make_train_config
from regard.training.corpus import Corpus
from regard.training.loop import make_backward, one_step, parameter_groups
from regard.training.numerics import use_deterministic
from regard.training.step import CapturedBackward, LossScaleState, no_batches

RECIPES = Path(__file__).parent.parent / "recipes"
SEEN = 8  # the step whose losses are compared
DRAW = random.Random(0)  # of synthetic data


# --- synthetic data ---


def pictures(count: int, shape: tuple[int, int, int]) -> list[LabelledImage]:
    pixels = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return [LabelledImage(one, str(n % 10), f"picture {n}") for n, one in enumerate(pixels)]


def questions() -> list[ImageQuestion]:
    """As easy-VQA has them: 64 x 64 pixels, some ten questions about each, thirteen answers."""
    words, shown = [f"word{n}" for n in range(26)], pictures(700, (3, 64, 64))
    return [
        ImageQuestion(one, " ".join(DRAW.choices(words, k=DRAW.randint(4, 9))), str(DRAW.randrange(13)))
        for one in shown
        for _ in range(DRAW.randint(8, 12))
    ]


def spelt() -> str:
    return "".join(DRAW.choices(string.ascii_lowercase, k=min(22, 1 + int(DRAW.expovariate(1 / 4)))))


def lengths(count: int, mean: float, most: int) -> list[int]:
    return [min(most, 1 + int(DRAW.expovariate(1 / mean))) for _ in range(count)]


def sentences() -> list[TaggedSentence]:
    """As English-EWT has them, a third as many."""
    words = [spelt() for _ in range(12_000)]
    return [
        TaggedSentence(tuple(DRAW.choices(words, k=n)), tuple(f"T{DRAW.randrange(17)}" for _ in range(n)))
        for n in lengths(4000, 16, 80)
    ]


def texts() -> list[LabelledText]:
    """As SST-2 has them with its phrases, a third as many."""
    words = [f"w{n}" for n in range(14_000)]
    return [LabelledText(" ".join(DRAW.choices(words, k=n)), str(n % 2)) for n in lengths(30_000, 9, 50)]


def lines(words: list[str], between: str, count: int) -> list[str]:
    return [between.join(DRAW.choices(words, k=40)) + "\n" for _ in range(count)]


@dataclass(frozen=True)
class Trial:
    """The settings of a recipe, its task model, and its data."""

    settings: Any
    task_model: Any
    data: Callable[[], list[Any]]


TRIALS = {
    "mnist-vit": Trial(ImageClassificationSettings, ImageClassifier, lambda: pictures(6000, (1, 28, 28))),
    "mnist-cnn": Trial(ImageClassificationSettings, ImageClassifier, lambda: pictures(6000, (1, 28, 28))),
    "cifar10-vit": Trial(ImageClassificationSettings, ImageClassifier, lambda: pictures(6000, (3, 32, 32))),
    "cifar10-cnn": Trial(ImageClassificationSettings, ImageClassifier, lambda: pictures(6000, (3, 32, 32))),
    "shakespeare": Trial(
        LanguageModelingSettings, TextGenerator, lambda: lines(list(string.ascii_letters + ",.;:!? '-"), "", 25_000)
    ),
    "wikitext2": Trial(
        LanguageModelingSettings, TextGenerator, lambda: lines([f"w{n}" for n in range(33_278)], " ", 12_000)
    ),
    "easy-vqa": Trial(VQASettings, QuestionAnswerer, questions),
    "ud-ewt": Trial(TaggingSettings, Tagger, sentences),
    "sst2": Trial(ClassificationSettings, TextClassifier, texts),
    "sst2-transformer": Trial(ClassificationSettings, TextClassifier, texts),
}


# --- measuring ---


def measured(
    job: TrainingJob, seconds: float, device: torch.device, *, capture: bool, profile: bool
) -> dict[str, float]:
    """Steps for so many seconds, after some that are not counted."""
    plan = replace(make_train_config(job.train, job.width), cuda_graph=capture)
    optimiser = torch.optim.AdamW(
        parameter_groups(job.model, plan.weight_decay), lr=1e-4, betas=plan.betas, eps=1e-9, fused=True
    )
    ahead = job.data.longest_first if isinstance(job.data, Corpus) else no_batches
    backward = make_backward(job.model, job.loss, plan, ahead)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    said: dict[str, float] = {}

    def stepping() -> Iterator[int]:
        progress, health = Progress(), LossScaleState.of(0, 1.0, device)
        while True:
            with use_deterministic(device) if plan.deterministic else nullcontext():
                report, progress, health = one_step(job.model, optimiser, job.data, backward, plan, progress, health)
            if report.step == SEEN:
                said["loss"] = report.loss
            yield report.tokens

    steps, began = stepping(), time.perf_counter()
    warm = 60 if isinstance(job.data, Corpus) and capture else 2 * SEEN
    for _ in range(warm if device.type == "cuda" else SEEN):
        next(steps)
    wait(device)
    first, started, done, tokens = time.perf_counter() - began, time.perf_counter(), 0, 0
    while time.perf_counter() - started < seconds:
        for _ in range(5):
            tokens += next(steps)
        done += 5
    wait(device)
    spent = time.perf_counter() - started
    if profile:
        profile_kernels(lambda: next(steps), device, partial(print, flush=True))
    return {
        "ms": 1e3 * spent / done,
        "tokens/s": tokens / spent,
        "data, ms": milliseconds_of_data(job, device),
        "first steps, s": first,
        "graphs": len(backward.captured_graphs) if isinstance(backward, CapturedBackward) else 0,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0,
        **said,
    }


def milliseconds_of_data(job: TrainingJob, device: torch.device) -> float:
    """What the CPU needs to make a step's batches and send them."""
    wait(device)
    began, count = time.perf_counter(), min(20, job.data.steps(0))
    for index in range(count):
        job.data.at(0, index)
    return 1e3 * (time.perf_counter() - began) / count


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weights_of(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def rows_of(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    trial, device = TRIALS[name], torch.device(args.device)
    examples, found = trial.data(), {}
    for way in ("launched", "captured"):
        settings = trial.settings.load(RECIPES / f"{name}.toml").with_changes({"train.cuda_graph": way == "captured"})
        task_model = trial.task_model.from_examples(examples, settings)
        job = task_model.job(examples, examples[:64], args.device)
        try:
            found[way] = measured(job, args.each, device, capture=way == "captured", profile=args.profile)
        except Exception as error:  # one way that fails must not hide the other
            said = (str(error).splitlines() or [""])[0]
            print(f"{name:17} {way:9} {type(error).__name__}: {said[:300]}", flush=True)
            continue
        row = {"recipe": name, "way": way, "weights": weights_of(job.model), **found[way]}
        if len(found) == 2:
            row["faster"] = found["captured"]["tokens/s"] / found["launched"]["tokens/s"]
            if not isinstance(job.data, Corpus):
                row["same loss"] = found["captured"]["loss"] == found["launched"]["loss"]
        shown = ", ".join(f"{key} {value:.4g}" for key, value in row.items() if not isinstance(value, str))
        print(f"{name:17} {way:9} {shown}", flush=True)
        yield row
        del job, task_model
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    args, rows, began = arguments(), [], time.perf_counter()
    for name in TRIALS:
        if args.only and not any(part in name for part in args.only):
            continue
        if time.perf_counter() - began > args.seconds:
            print(f"{name:17} left out: no time", flush=True)
            continue
        try:
            rows += rows_of(name, args)
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            print(f"{name:17} {type(error).__name__}: {said[:300]}", flush=True)
        if args.write:  # again after each, so that a run that is killed has written most
            write("capture", " ".join(["python", *sys.argv]), rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="recipes whose name contains one of these")
    parser.add_argument("--each", type=float, default=2.0, help="seconds that each way is measured")
    parser.add_argument("--seconds", type=float, default=110.0, help="no further recipe is started after so many")
    parser.add_argument("--profile", action="store_true", help="what the GPU did in one more step of each way")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    return parser.parse_args()


if __name__ == "__main__":
    main()
