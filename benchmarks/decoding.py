"""Beam search: tokens a second beside Hugging Face and CTranslate2, with the same weights and sentences.

    python benchmarks/decoding.py                   CPU, 2 threads: Hugging Face and CTranslate2, if installed
    python benchmarks/decoding.py --device cuda     GPU, bfloat16: Hugging Face's generate

Ours and theirs take turns, round after round, so that whoever else uses the machine disturbs both; a figure is the
median over the rounds of the ratio within a round. On a CPU each has a process of its own, since the threads of one
library, waiting for work, would take the cores from another. Beside each stands how many translations are the same,
token for token, as those of our own search in float32.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from decoding_peers import Ids, Translate, copier, ctranslate2, hugging_face, marian, sources
from machine import write
from regard.decode import Beam, prepare, translate
from regard.models import Seq2Seq

BEAM, ALONE = 4, 4  # so many sentences at least, one after the other where a batch holds fewer
WARM = {"cpu": 1, "cuda": 2}
PAUSE = 0.3  # seconds before a turn: threads that have nothing to do watch for work for a while before they sleep
Batches = Sequence[Sequence[Ids]]


def ours(model: Seq2Seq, precision: str) -> Translate:
    prepared, beam = prepare(model, precision), Beam(BEAM)
    return lambda batch: [found[0].ids for found in translate(prepared, batch, beam)]


def implementations(model: Seq2Seq, device: str, threads: int) -> dict[str, Callable[[], Translate]]:
    """Who takes part, in the order of the turns; each is built only where it is installed."""
    if device == "cuda":
        return {
            "regard bfloat16": lambda: ours(model, "bfloat16"),
            "regard float32": lambda: ours(model, "float32"),
            "hugging face bfloat16": lambda: hugging_face(marian(model, device, torch.bfloat16), BEAM),
        }
    found = dict[str, Callable[[], Translate]]()
    for kind in ("float32", "int8"):
        found[f"regard {kind}"] = partial(ours, model, kind)
        found[f"ctranslate2 {kind}"] = partial(ctranslate2, model, BEAM, kind, threads)
        found[f"ctranslate2 {kind}, apart"] = partial(ctranslate2, model, BEAM, kind, threads, apart=True)
    return found | {"hugging face float32": lambda: hugging_face(marian(model, device, torch.float32), BEAM)}


def make_implementation(name: str, threads: int) -> Translate:
    """One of them on a CPU."""
    return implementations(copier(), "cpu", threads)[name]()


class InProcess:
    """An implementation that runs in this process."""

    def __init__(self, run: Translate, device: str):
        self.run, self.device = run, device

    def turn(self, batches: Batches) -> tuple[float, list[Ids]]:
        if self.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        found = [ids for batch in batches for ids in self.run(batch)]
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start, found

    def close(self) -> None:
        """No process to end."""


class OwnProcess:
    """An implementation that is made and runs in a process of its own, and sleeps between its turns."""

    def __init__(self, make: Callable[[], Translate], threads: int):
        self.pipe, there = get_context("spawn").Pipe()
        get_context("spawn").Process(target=served, args=(there, make, threads), daemon=True).start()
        if error := self.pipe.recv():
            raise ImportError(error)

    def turn(self, batches: Batches) -> tuple[float, list[Ids]]:
        self.pipe.send(batches)
        seconds, found = self.pipe.recv()
        if isinstance(found, str):
            raise RuntimeError(found)
        return seconds, found

    def close(self) -> None:
        self.pipe.send(())


def served(pipe: Connection, make: Callable[[], Translate], threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        who = InProcess(make(), "cpu")
    except ImportError as error:
        pipe.send(str(error))
        return
    pipe.send("")
    while batches := pipe.recv():
        time.sleep(PAUSE)
        try:
            pipe.send(who.turn(batches))
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            pipe.send((0.0, str(error).splitlines()[0]))


def measured(
    made: Mapping[str, InProcess | OwnProcess], texts: Sequence[Ids], batch: int, rounds: int, device: str, until: float
) -> tuple[dict[str, list[float]], dict[str, list[Ids]]]:
    """Seconds of every round, and what each found in the first."""
    seconds, first = {name: [] for name in made}, {}
    batches = [texts[start : start + batch] for start in range(0, len(texts), batch)]
    for name, who in made.items():
        try:
            for _ in range(WARM[device]):
                first[name] = who.turn(batches)[1]
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            print(f"{name} fails at batch {batch}: {str(error).splitlines()[0]}", flush=True)
    made, seconds = {name: made[name] for name in first}, {name: seconds[name] for name in first}
    for n in range(rounds):
        if n and time.perf_counter() > until:
            break
        for name, who in made.items():
            seconds[name].append(who.turn(batches)[0])
    return seconds, first


def compare(batch: int, seconds: Mapping[str, list[float]], found: Mapping[str, list[Ids]]) -> list[dict[str, Any]]:
    """A row of each: tokens a second, how many are the same as ours in float32, and ratios within the rounds."""
    base, rows = next(found[name] for name in ("regard float32", *found) if name in found), []
    for name in found:
        tokens = sum(len(ids) + 1 for ids in found[name])
        row = {
            "who": name,
            "batch": batch,
            "tokens": tokens,
            "tokens_per_second": round(tokens / median(seconds[name]), 1),
            "same": round(sum(a == b for a, b in zip(found[name], base, strict=True)) / len(base), 3),
            "rounds": len(seconds[name]),
            "times": {
                other: round(median(b / a for a, b in zip(seconds[name], seconds[other], strict=True)), 2)
                for other in found
                if name.startswith("regard") and not other.startswith("regard")
            },
        }
        rows.append(row)
        print(row, flush=True)
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("who", "batch", "tokens/s", "same as our float32", "times as fast as")
    for row in rows:
        times = ", ".join(f"{other} {ratio}×" for other, ratio in row["times"].items())
        table.add_row(row["who"], str(row["batch"]), f"{row['tokens_per_second']:,}", f"{row['same']:.1%}", times)
    Console(width=160).print(table)


def profiled(run: Translate, batch: int, device: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    texts = sources(batch, seed=batch)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]) as seen:
        run(texts)
    order = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    print(seen.key_averages().table(sort_by=order, row_limit=30, max_name_column_width=60), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=200.0, help="no round is begun later than that")
    parser.add_argument("--profile", action="store_true", help="print which kernels our last batch spends its time in")
    parser.add_argument("--only", nargs="*", default=[], help="words of the names that take part")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    start = time.perf_counter()
    model = copier().to(given.device)
    made: dict[str, InProcess | OwnProcess] = {}
    for name, make in implementations(model, given.device, given.threads).items():
        if given.only and not any(word in name for word in given.only):
            continue
        try:
            own = partial(make_implementation, name, given.threads)
            made[name] = InProcess(make(), given.device) if given.device == "cuda" else OwnProcess(own, given.threads)
        except ImportError as error:
            print(f"{name} does not take part: {error}", flush=True)
    rows: list[dict[str, Any]] = []
    batches = given.batches or ([1, 32] if given.device == "cpu" else [1, 32, 256])
    for place, batch in enumerate(batches):
        left = given.seconds - (time.perf_counter() - start)
        until = time.perf_counter() + left / (len(batches) - place)
        try:
            texts = sources(max(batch, ALONE), seed=batch)
            seconds, found = measured(made, texts, batch, given.rounds, given.device, until)
        except RuntimeError as error:
            print(f"batch {batch}: {str(error).splitlines()[0]}", flush=True)
            continue
        if not found:
            continue
        rows += compare(batch, seconds, found)
    if not given.only:
        write(f"decoding-{given.device}", f"python benchmarks/decoding.py --device {given.device}", rows, beam=BEAM)
    print_table(rows)
    for who in made.values():
        who.close()
    if given.profile:
        make = next(make for name, make in implementations(model, given.device, given.threads).items() if name in made)
        profiled(make(), batches[-1], given.device)


if __name__ == "__main__":
    main()
