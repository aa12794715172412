"""Long inputs: accuracy, time and memory of full, window, BigBird, Linformer and linear attention, 1k to 16k words.

    python benchmarks/long_inputs.py                   the whole table; wants a GPU
    python benchmarks/long_inputs.py --quick           a small one, on a CPU, in a few minutes; writes nothing
    python benchmarks/long_inputs.py --show            writes what was measured into docs/16-long-inputs.md

Every mechanism reads the same texts in the same order, for the same number of steps, with the same other parts: first
short texts, from which the task is learnt, then as many steps of long ones. The label is read from the first word.
One pass of all cells is made for each seed, as long as there are minutes left.
"""

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing import get_context

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from long_inputs_page import print_table, said, show
from machine import write
from regard.attention import Context, Linformer
from regard.data.tokenizers.base import WordTokenizer
from regard.layers.pooling import StaticPooling
from regard.models.config import EncoderConfig
from regard.models.encoder import ContextLayers, Encoder, SequenceClassifier, TransformerContext
from regard.training.config import TrainConfig
from regard.training.loop import make_backward
from regard.training.step import CosineSchedule, take_step
from regard.world.long_inputs import DIGITS, TOWNS, ListOps, Retrieval, listops_examples, retrieval_examples

LENGTHS = (1024, 2048, 4096, 8192, 16384)
ENCODER = EncoderConfig(kind="transformer", layers=2, model=128, heads=4, hidden=256, dropout=0.0)
RATE, WARMUP = 1e-3, 30
MECHANISMS = ("full", "window", "bigbird", "linformer", "linear")
SHORT, MOST = 256, 64  # words of a short text, and texts in a batch
TIMED = 10  # steps, of which the median counts


# --- the tasks ---


@dataclass(frozen=True)
class Task:
    """Texts with labels: `examples(words, count, split, start)`."""

    labels: tuple[str, ...]
    examples: Callable[[int, int, str, int], Iterator[tuple[str, str]]]


def arithmetic(words: int, count: int, split, start: int) -> Iterator[tuple[str, str]]:
    # without SUM: a sum of hundreds of digits modulo 10 is learnt by nobody in hundreds of steps
    world = ListOps(words=words, depth=2, operators=("MAX", "MIN", "MED"))
    return listops_examples(world, count, split, start)


def needle(chains: int, words: int, count: int, split, start: int) -> Iterator[tuple[str, str]]:
    return retrieval_examples(Retrieval(words=words, chains=chains), count, split, start)


TASKS = {
    "listops": Task(DIGITS, arithmetic),
    "retrieval": Task(TOWNS, partial(needle, 1)),
    "retrieval of 4": Task(TOWNS, partial(needle, 4)),
}
Arrays = tuple[NDArray[np.int16], NDArray[np.int64]]  # as they leave a process: word numbers and labels
Encoded = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Texts:
    """All texts of a task at one length, as processes of their own write them."""

    size: int  # of the vocabulary
    short: tuple[Future[Arrays], ...]
    train: tuple[Future[Arrays], ...]
    test: tuple[Future[Arrays], ...]


def encoded(name: str, words: int, vocabulary: WordTokenizer, split: str, start: int, count: int) -> Arrays:
    task = TASKS[name]
    texts = list(task.examples(words, count, split, start))
    ids = np.array([vocabulary.encode(text) for text, _ in texts], dtype=np.int16)
    return ids, np.array([task.labels.index(label) for _, label in texts])


def ordered(name: str, words: int, steps: int, *, batch: int, tests: int, pool: ProcessPoolExecutor) -> Texts:
    vocabulary = WordTokenizer.train(text for text, _ in TASKS[name].examples(min(words, 1024), 256, "train", 0))

    def submit(words: int, split: str, count: int) -> tuple[Future[Arrays], ...]:
        each = -(-count // (os.cpu_count() or 1))
        starts = range(0, count, each)
        return tuple(
            pool.submit(encoded, name, words, vocabulary, split, start, min(each, count - start)) for start in starts
        )

    short = submit(min(SHORT, words // 4), "train", steps * MOST)
    return Texts(vocabulary.size, short, submit(words, "train", steps * batch), submit(words, "test", tests))


def gathered(parts: tuple[Future[Arrays], ...]) -> Encoded:
    ids, labels = zip(*(part.result() for part in parts), strict=True)
    return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(np.concatenate(labels))


# --- the models ---


class First(StaticPooling):
    """The vector of the first word, which begins the question or is the outermost operator."""

    def weights(self, tokens, lengths):
        return (torch.arange(tokens.shape[1], device=tokens.device) == 0).float().expand(tokens.shape)


class Unpadded(ContextLayers):
    """Layers without a padding mask, since all texts are equally long: the fastest kernels take none."""

    def __init__(self, inner: TransformerContext):
        super().__init__()
        self.inner = inner

    def forward(self, x, lengths, tree):
        for layer in self.inner.layers:
            x = layer(x, Context(tree=tree))
        return self.inner.norm(x)


def recipe(mechanism: str, words: int) -> str:
    reach, block = min(256, words // 4), min(64, words // 16)
    match mechanism:
        case "window":
            return f'pattern = "Window({reach})"'
        case "bigbird":
            return f'pattern = "Block({block}, Window(2) | Global(1) | Random(3, seed=0))"'
        case "linear":
            return 'score = "Feature()"\nnormaliser = "Proportional()"'
    return ""


def model_of(mechanism: str, words: int, size: int, labels: int) -> SequenceClassifier:
    encoder = Encoder(replace(ENCODER, recipe=recipe(mechanism, words)), size)
    assert isinstance(encoder.context, TransformerContext)
    if mechanism == "linformer":
        for layer in encoder.context.layers:
            layer.attention.compress = Linformer(max_length=words, rank=min(256, words // 4))  # type: ignore[union-attr]
    encoder.context = Unpadded(encoder.context)
    return SequenceClassifier(encoder, First(), labels=labels)


# --- one cell of the table ---


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    lengths = torch.full((len(ids),), ids.shape[1], device=ids.device)
    half = torch.autocast("cuda", torch.bfloat16) if ids.is_cuda else nullcontext()
    with half:
        return model(ids.long(), lengths).float()


def cell(name: str, texts: Texts, mechanism: str, seed: int, steps: int, device: str) -> dict:
    """Train, test, and time one mechanism; what cannot run says why."""
    short, train, test = (gathered(parts) for parts in (texts.short, texts.train, texts.test))
    words, batch = train[0].shape[1], len(train[0]) // steps
    row = {"task": name, "words": words, "mechanism": mechanism, "seed": seed}
    torch.manual_seed(seed)
    model = model_of(mechanism, words, texts.size, len(TASKS[name].labels)).to(device)
    try:
        loss = trained(model, (short, train), steps, device)
        return {
            **row,
            "loss": loss,
            "accuracy": tested(model, test, batch, device),
            **cost(model, train, batch, device),
        }
    except (RuntimeError, ValueError) as error:  # out of memory, or what cannot be compiled: a result like any other
        return {**row, "failed": str(error).strip().splitlines()[0]}


def trained(model: nn.Module, texts: tuple[Encoded, ...], steps: int, device: str) -> float:
    """So many steps of each kind of text in turn; the mean loss of the last tenth of the steps."""
    schedule, scale = CosineSchedule(RATE, len(texts) * steps, min(WARMUP, steps - 1)), torch.ones((), device=device)
    plan = TrainConfig(
        schedule, len(texts) * steps, cuda_graph=True
    )  # on a GPU, captured: these are many small kernels
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    backward = make_backward(model, loss_of, plan)
    batches = [part.to(device).split(len(part) // steps) for kind in texts for part in kind]
    losses = []
    for step, batch in enumerate(zip(chain(*batches[::2]), chain(*batches[1::2]), strict=True), 1):
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate(step)
        optimiser.zero_grad(set_to_none=False)
        losses.append(take_step(optimiser, [(batch, len(batch[1]))], backward, scale, clip=1.0).loss)
    return torch.stack(losses[-max(1, steps // 10) :]).mean().item()


def loss_of(model: nn.Module, batch: tuple[Encoded, int]) -> tuple[Tensor, int]:
    (ids, labels), count = batch
    return cross_entropy(logits_of(model, ids), labels, reduction="sum"), count


def tested(model: nn.Module, texts: Encoded, batch: int, device: str) -> float:
    """The share of texts labelled right. In the mode and the sizes of training: nothing is compiled twice."""
    right = 0
    for ids, labels in zip(*(part.split(batch) for part in texts), strict=True):
        right += int((logits_of(model, ids.to(device)).argmax(-1) == labels.to(device)).sum())
    return right / len(texts[1])


def cost(model: nn.Module, texts: Encoded, batch: int, device: str) -> dict[str, float]:
    """Milliseconds for a batch forwards and backwards; on a GPU also the most memory it needs beside the weights."""
    ids, labels = (part[:batch].to(device) for part in texts)
    times, found = [], {}
    for _ in range(TIMED if device == "cuda" else 3):
        model.zero_grad()
        before = 0
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        cross_entropy(logits_of(model, ids), labels).backward()
        if device == "cuda":
            torch.cuda.synchronize()
            found["mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        times.append(1000 * (time.perf_counter() - began))
    return {"batch": batch, "ms": statistics.median(times), **found}


# --- the table ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="128 words, few steps; writes nothing")
    parser.add_argument("--show", action="store_true", help="only rewrite docs/16-long-inputs.md and its picture")
    parser.add_argument("--tasks", default="listops,retrieval", help=f"of {', '.join(TASKS)} (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=200, help="on short texts, and as many on long ones (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="at most so many (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=4.7, help="begin no cell after that (default: %(default)s)")
    args = parser.parse_args()
    if args.show:
        show()
        return
    began = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths, steps, seeds = ((128,), 100, 1) if args.quick else (LENGTHS, args.steps, args.seeds)
    tasks = args.tasks.split(",")
    if unknown := [name for name in tasks if name not in TASKS]:
        raise SystemExit(f"no task is called {unknown[0]!r}; there are {', '.join(TASKS)}")
    # one kernel for each length, kept for all tasks and seeds; torch would soon stop, or compile one for any length
    kernels = importlib.import_module("torch._dynamo").config  # slow to load, and pages and tests do not need it
    kernels.recompile_limit, kernels.automatic_dynamic_shapes = 64, False
    rows: list[dict] = []
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        texts = {}
        for words in lengths:
            batch, tests = (16, 256) if args.quick else (min(MOST, 2**17 // words), min(1024, 2**22 // words))
            for name in tasks:
                texts[words, name] = ordered(name, words, steps, batch=batch, tests=tests, pool=pool)
        cells = [(words, kind, name) for words in lengths for kind in MECHANISMS for name in tasks]
        for seed in range(seeds):
            for words, mechanism, name in cells:
                if not args.quick and time.perf_counter() - began > 60 * args.minutes:
                    break
                rows.append(cell(name, texts[words, name], mechanism, seed, steps, device))
                print(f"{time.perf_counter() - began:5.0f} s  {said(rows[-1])}", flush=True)
    print_table(rows)
    if not args.quick:
        command = " ".join(["python benchmarks/long_inputs.py", *sys.argv[1:]])
        print(write("long-inputs", command, rows, encoder=ENCODER.to_dict(), steps=steps, rate=RATE))


if __name__ == "__main__":
    main()
