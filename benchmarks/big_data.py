"""Data larger than memory: bytes of disk for a pair, and the memory of training from 1, 10 and 100 million pairs.

    python benchmarks/big_data.py                      1 and 10 million synthetic pairs
    python benchmarks/big_data.py --pairs 100000000    14 GB of disk, some minutes to write
    python benchmarks/big_data.py --packed             the same, with packed = true

Synthetic pairs have 68 ids on average, lengths and ids at random. They are written shard by shard and never held. The
memory of training is what the process holds of its own, sampled all the time: pages of files are the system's, which
takes them back when it needs them.
"""

import argparse
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from machine import alone, write

VOCABULARY, SHARD_PAIRS = 16_000, 2**19
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


def measure(folder: str, steps: int, packed: bool) -> dict[str, Any]:  # noqa: FBT001
    """Trains a small Transformer for some steps, as `regard train --train FOLDER` does."""
    import torch

    from regard.data.token_files import CorpusMixture
    from regard.models.config import ModelConfig
    from regard.tasks.translation.task import TASK, TranslationData, TranslationSettings, Translator
    from regard.training.config import TrainSettings

    torch.set_num_threads(1)
    sampler = PeakSampler()
    model = ModelConfig(kind="transformer", layers=2, model=64, heads=4, hidden=128)
    settings = TranslationSettings(
        data=TranslationData(corpus="files", train=(folder,)),
        model=model,
        train=TrainSettings(batch_size=BATCH, packed=packed),
    )
    began = time.perf_counter()
    mixture = settings.data.read("train").examples
    assert isinstance(mixture, CorpusMixture)
    settings = TASK.fit_settings(settings, mixture, ())
    translator = Translator.from_examples(mixture, settings)
    job = translator.job(mixture, settings.data.read("valid").examples)
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
    peak = sampler.stop()
    corpus = mixture.corpora[0]
    return {
        "pairs": len(mixture),
        "tokens_a_pair": corpus_ids(corpus) / len(mixture),
        "bytes_a_pair": corpus.bytes / len(mixture),
        "batches": batches,
        "seconds_to_open": opened,
        "ms_a_batch": 1000 * reading / steps,
        "own_mib": peak["RssAnon"],
        "file_mib": peak["RssFile"],
    }


def corpus_ids(corpus: Any) -> int:
    return sum(len(shard.ids) for shard in corpus.shards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--folder", type=Path, default=Path("big-data"), help="where the files are written")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--packed", action="store_true", help="with several pairs in a row")
    parser.add_argument("--keep", action="store_true", help="do not remove the files")
    given = parser.parse_args()
    rows = []
    for pairs in given.pairs:
        folder = given.folder / str(pairs)
        if not (folder / "corpus.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            alone(write_synthetic, folder, pairs)
        rows.append(alone(measure, str(folder), given.steps, given.packed))
        if not given.keep:
            shutil.rmtree(folder)
    table = Table("pairs", "bytes a pair", "own memory, MiB", "file pages, MiB", "to open, s", "ms CPU a batch")
    for row in rows:
        figures = (row["bytes_a_pair"], row["own_mib"], row["file_mib"], row["seconds_to_open"], row["ms_a_batch"])
        table.add_row(f"{row['pairs']:,}", *(f"{figure:,.1f}" for figure in figures))
    Console().print(table)
    command = f"python benchmarks/big_data.py --pairs {' '.join(map(str, given.pairs))}{' --packed' * given.packed}"
    print(write("big_data_packed" if given.packed else "big_data", command, rows))


if __name__ == "__main__":
    main()
