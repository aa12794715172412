"""Data larger than memory: bytes of disk for a pair, and the memory of training from 1, 10 and 100 million pairs.

    python benchmarks/big_data.py                      1 and 10 million synthetic pairs
    python benchmarks/big_data.py --pairs 100000000    14 GB of disk, some minutes to write
    python benchmarks/big_data.py --packed             the same, with packed = true
    python benchmarks/big_data.py --tokens 10000000 1000000000     running text, for a language model

Synthetic pairs have 68 ids on average, lengths and ids at random. They are written shard by shard and never held. The
memory of training is what the process holds of its own, sampled all the time: pages of files are the system's, which
takes them back when it needs them.
"""

import argparse
import json
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from machine import alone, write

VOCABULARY, SHARD_PAIRS, SHARD_TOKENS = 16_000, 2**19, 2**26
STEPS, BATCH = 30, 4096


def write_synthetic(folder: Path, pairs: int) -> None:
    """A corpus of so many pairs, each side of 34 ids on average."""
    from regard.data.token_files import write_corpus, write_shard
    from regard.data.tokenizers.base import WordTokenizer

    folder.mkdir(parents=True)
    tokenizer = WordTokenizer(tuple(f"w{n}" for n in range(VOCABULARY - 4)))
    tokenizer.save(folder / "source.json")
    tokenizer.save(folder / "target.json")
    chance, infos = np.random.default_rng(0), []
    for first in range(0, pairs, SHARD_PAIRS):
        count = min(SHARD_PAIRS, pairs - first)
        source = np.clip(chance.gamma(3.0, 11.0, count).astype(np.int64) + 1, 1, 200)
        target = np.clip(source + chance.normal(0, 4, count).astype(np.int64), 1, 200)
        lengths = np.stack((source, target), 1)
        ids = chance.integers(4, VOCABULARY, int(lengths.sum()), dtype=np.uint16)
        infos.append(write_shard(folder / f"{len(infos):05d}.tokens", lengths, ids, id_bytes=2))
    text = {"kind": "words", "vocab_size": VOCABULARY, "joint": True}
    write_corpus(folder, infos, {"source": "en", "target": "fr", "vocabulary": "synthetic", "text": text})
    (folder / "valid.jsonl").write_text(json.dumps({"source": "w1 w2 w3", "target": "w4 w5"}) + "\n")


def write_synthetic_text(folder: Path, tokens: int) -> None:
    """Running text of so many ids at random."""
    from regard.data.token_files import write_corpus, write_text_shard
    from regard.data.tokenizers.base import WordTokenizer

    folder.mkdir(parents=True)
    WordTokenizer(tuple(f"w{n}" for n in range(VOCABULARY - 4))).save(folder / "tokenizer.json")
    chance, infos = np.random.default_rng(0), []
    for first in range(0, tokens, SHARD_TOKENS):
        ids = chance.integers(4, VOCABULARY, min(SHARD_TOKENS, tokens - first), dtype=np.uint16)
        infos.append(write_text_shard(folder / f"{len(infos):05d}.tokens", ids, id_bytes=2))
    text = {"kind": "words", "vocab_size": VOCABULARY}
    about = {
        "content": "text",
        "vocabulary": "synthetic",
        "text": text,
        "texts": tokens // 20,
        "characters": 6 * tokens,
    }
    write_corpus(folder, infos, about)
    (folder / "valid.txt").write_text("w1 w2 w3\n" * 20)


def own_memory() -> dict[str, float]:
    """MiB that are of the process alone, and those of pages of files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(status[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile")}


class PeakSampler:
    """The most memory that was held, looked at every 20 ms."""

    def __init__(self) -> None:
        self.peak, self.stopped = own_memory(), threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        while not self.stopped.wait(0.02):
            self.peak = {name: max(value, self.peak[name]) for name, value in own_memory().items()}

    def stop(self) -> dict[str, float]:
        self.stopped.set()
        self.thread.join()
        return self.peak


def measure(folder: str, steps: int, task: str, packed: bool) -> dict[str, Any]:  # noqa: FBT001
    """Trains a small Transformer for some steps, as `regard train --train FOLDER` does."""
    import torch

    from regard.models.config import LanguageModelConfig, ModelConfig
    from regard.tasks.registry import get_task
    from regard.training.config import TrainSettings

    torch.set_num_threads(1)
    sampler, kind = PeakSampler(), get_task(task)
    config: Any = ModelConfig if task == "translation" else LanguageModelConfig
    plain: Any = kind.settings()
    settings = replace(
        plain,
        data=replace(plain.data, corpus="files", train=(folder,)),
        model=config(kind="transformer", layers=2, model=64, heads=4, hidden=128),
        train=TrainSettings(batch_size=BATCH, packed=packed, label_smoothing=0.0),
    )
    began = time.perf_counter()
    mixture: Any = settings.data.read("train").examples
    settings = kind.fit_settings(settings, mixture, ())
    task_model = kind.task_model.from_examples(mixture, settings)
    job = task_model.job(mixture, settings.data.read("valid").examples)
    batches = job.data.steps(0)
    opened = time.perf_counter() - began
    optimiser = torch.optim.AdamW(job.model.parameters(), lr=1e-3)
    reading = 0.0
    for step in range(steps):
        began = time.process_time()
        batch = job.data.at(0, step * batches // steps)  # from all over the epoch
        reading += time.process_time() - began
        loss, _ = job.loss(job.model, batch[0])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    peak, corpus = sampler.stop(), mixture.corpora[0]
    size = (
        {"pairs": len(mixture), "tokens_a_pair": corpus.ids / len(mixture), "bytes_a_pair": corpus.bytes / len(mixture)}
        if task == "translation"
        else {"tokens": corpus.ids, "bytes_a_token": corpus.bytes / corpus.ids}
    )
    return {
        **size,
        "batches": batches,
        "seconds_to_open": opened,
        "ms_a_batch": 1000 * reading / steps,
        "own_mib": peak["RssAnon"],
        "file_mib": peak["RssFile"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 10_000_000])
    what.add_argument("--tokens", type=int, nargs="+", help="of running text, for a language model")
    parser.add_argument("--folder", type=Path, default=Path("big-data"), help="where the files are written")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--packed", action="store_true", help="with several pairs in a row")
    parser.add_argument("--keep", action="store_true", help="do not remove the files")
    given = parser.parse_args()
    unit, sizes, task, write_files = (
        ("tokens", given.tokens, "language_modeling", write_synthetic_text)
        if given.tokens
        else ("pairs", given.pairs, "translation", write_synthetic)
    )
    rows = []
    for size in sizes:
        folder = given.folder / f"{size}-{unit}"
        if not (folder / "corpus.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            alone(write_files, folder, size)
        rows.append(alone(measure, str(folder), given.steps, task, given.packed))
        if not given.keep:
            shutil.rmtree(folder)
    each = f"bytes_a_{unit.removesuffix('s')}"
    table = Table(unit, each.replace("_", " "), "own memory, MiB", "file pages, MiB", "to open, s", "ms CPU a batch")
    for row in rows:
        figures = (row[each], row["own_mib"], row["file_mib"], row["seconds_to_open"], row["ms_a_batch"])
        table.add_row(f"{row[unit]:,}", *(f"{figure:,.1f}" for figure in figures))
    Console().print(table)
    command = f"python benchmarks/big_data.py --{unit} {' '.join(map(str, sizes))}{' --packed' * given.packed}"
    name = "big_data_text" if given.tokens else "big_data_packed" if given.packed else "big_data"
    print(write(name, command, rows))


if __name__ == "__main__":
    main()
