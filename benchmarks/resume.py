"""Exact resume: training runs killed at random moments and resumed, compared bit for bit with uninterrupted ones.

    python benchmarks/resume.py                            on a GPU if there is one; writes results/resume-DEVICE.json
    python benchmarks/resume.py --device cpu --kills 3 --steps 30

Every run is a fresh process that dies by kill -9. The texts are long enough for a GPU to add up the gradient of one
attention in several blocks at once. Also measured: whether two runs without `deterministic` differ, and what it costs.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
from safetensors.torch import load_file

from machine import alone, write
from regard.data import SentencePair
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.training import Report, train
from regard.training.config import TrainSettings
from regard.training.run import TrainingRun, write_final_weights
from regard.world import World, translation_pairs

FRESH = get_context("spawn")
MODELS = ("transformer", "bahdanau")
SENTENCES, PARAGRAPHS = 400, 300  # of the world, and made of them
RUNS = ("killed", "straight", "again", "free", "free again")
FREE = "not deterministic"
INSIDE = 3  # every so many kills one waits for a checkpoint to be written


@dataclass(frozen=True)
class Job:
    """One run: which model, how, and where."""

    model: str
    folder: Path
    device: str
    precision: str
    steps: int
    deterministic: bool = True


# --- in the process that may be killed ---


def fit_of(job: Job) -> TrainingRun:
    torch.set_num_threads(1)
    long, gpu = job.model == "transformer", job.device == "cuda"
    model = (
        ModelConfig(kind="transformer", layers=2, model=128, heads=2, hidden=256, dropout=0.1, attention_dropout=0.1)
        if long
        else ModelConfig(kind="bahdanau", layers=2, model=128, hidden=192, dropout=0.2)
    )
    how = TrainSettings(
        steps=job.steps,
        batch_size=(8192 if long else 2048) if gpu else 256,
        gradient_accumulation=2,
        warmup_steps=10,
        precision=job.precision,
        max_length=1000,
        validate_every=10,
        checkpoint_every=5,
        average_checkpoints=3,
    )
    settings = TranslationSettings(text=PairTokenizerSettings(kind="words", joint=False), model=model, train=how)
    known = texts(sentences=(40 if gpu else 3) if long else 1)
    return TrainingRun(Translator.from_examples(known, settings).job(known[20:], known[:20], job.device), job.folder)


def texts(sentences: int) -> list[SentencePair]:
    """Paragraphs of so many sentences of the miniature world."""
    single = list(translation_pairs(World(), "fr", SENTENCES))
    rows = [[single[(7 * number + 13 * at) % SENTENCES] for at in range(sentences)] for number in range(PARAGRAPHS)]
    return [SentencePair(*(" ".join(side) for side in zip(*row, strict=True))) for row in rows]


def steps_of(fit: TrainingRun, job: Job) -> Generator[Report]:
    plan, given = replace(fit.config, deterministic=job.deterministic), fit.job
    return train(given.model, given.data, given.loss, plan, fit.folder, given.validate)


def train_in_process(job: Job, pipe: Connection) -> None:
    """Build the model, wait for the signal, train; send the number of every step."""
    fit = fit_of(job)
    pipe.send(0)
    pipe.recv()
    for report in steps_of(fit, job):
        pipe.send(report.step)
    write_final_weights(fit.job.model, fit.job.train.average_checkpoints, fit.folder)


def cost(job: Job) -> dict[str, float]:
    """The median seconds of a step, deterministic or not, the two taking turns in one process."""
    both = (True, False)
    jobs = {only: replace(job, folder=job.folder / str(only), deterministic=only, steps=10**6) for only in both}
    runs = {only: steps_of(fit_of(each), each) for only, each in jobs.items()}
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(30):
        for only, run in runs.items():
            began = time.perf_counter()
            report = next(run)  # waits for the GPU, since it reads the loss
            if report.step % 5:  # no checkpoint and no validation
                times[only].append(time.perf_counter() - began)
    for run in runs.values():
        run.close()
    exact, free = (statistics.median(times[only][6:]) for only in both)
    return {"deterministic": exact, "not deterministic": free, "ratio": exact / free}


# --- outside of it ---


class Processes:
    """Fresh processes for one run after the other. Some start in advance, since loading torch takes long."""

    def __init__(self, job: Job, ahead: int):
        self.job, self.waiting = job, deque([spawn(job) for _ in range(ahead)])

    def start_next(self) -> tuple[Connection, SpawnProcess]:
        """The next one, from now on training."""
        self.waiting.append(spawn(self.job))
        pipe, process = self.waiting.popleft()
        pipe.recv()
        pipe.send("go")
        return pipe, process

    def close(self) -> None:
        for _, process in self.waiting:
            process.kill()
            process.join()


def spawn(job: Job) -> tuple[Connection, SpawnProcess]:
    here, there = FRESH.Pipe()
    process = FRESH.Process(target=train_in_process, args=(job, there))
    process.start()
    there.close()  # so that the end of the process closes the pipe
    return here, process


def straight(job: Job) -> float:
    """A run that is not interrupted; the seconds it took."""
    pipe, process = spawn(job)
    pipe.recv()
    began = time.perf_counter()
    pipe.send("go")
    to_the_end(pipe, process)
    return time.perf_counter() - began


def to_the_end(pipe: Connection, process: SpawnProcess) -> None:
    try:
        while True:
            pipe.recv()
    except EOFError:
        process.join()
    if process.exitcode:
        raise RuntimeError(f"a run failed with exit code {process.exitcode}; see above")


def killed(job: Job, kills: int, ahead: int) -> dict[str, object]:
    """A run killed so many times before it may go on to the end; when, and how often while it wrote or deleted."""
    chance, saved, at, inside = random.Random(0), job.folder / "checkpoints", [], 0
    processes = Processes(job, ahead)
    try:
        for number, step in enumerate(sorted(chance.sample(range(1, job.steps - 5), kills)), 1):
            pipe, process = processes.start_next()
            at.append(reached(pipe, step))
            if number % INSIDE == 0:
                while process.is_alive() and not any(saved.glob(".draft-*")):
                    time.sleep(0.0005)
                time.sleep(chance.uniform(0, 0.01))
            else:
                time.sleep(chance.uniform(0, 0.3))
            process.kill()
            process.join()
            if process.exitcode != -signal.SIGKILL:
                raise RuntimeError(f"{job.model} ended by itself before kill {number}; give more --steps")
            inside += any(saved.glob(".*-*"))
            print(f"{job.model}: kill {number} after step {at[-1]}", file=sys.stderr, flush=True)
        to_the_end(*processes.start_next())
    finally:
        processes.close()
    return {"kills": len(at), "inside a write": inside, "at": at}


def reached(pipe: Connection, step: int) -> int:
    """The first step from the given one on that the run reports."""
    while (now := pipe.recv()) < step:
        pass
    return now


def compared(one: Path, other: Path) -> dict[str, object]:
    """Every tensor of every file that two runs left behind, bit by bit, and the rest of what they wrote."""
    files, others = ({path.relative_to(x) for path in x.rglob("*") if path.suffix} for x in (one, other))
    tensors, different, largest = 0, sorted(map(str, files ^ others)), 0.0
    for name in sorted(files & others):
        if name.suffix != ".safetensors":
            different += [str(name)] if (one / name).read_bytes() != (other / name).read_bytes() else []
            continue
        ours, theirs = load_file(one / name), load_file(other / name)
        tensors += len(ours)
        for key, tensor in ours.items():
            bits = [each.flatten().view(torch.uint8) for each in (tensor, theirs[key])]
            if not torch.equal(*bits):
                different.append(f"{name}:{key}")
                largest = max(largest, float((tensor - theirs[key]).abs().max()))
    return {"tensors": tensors, "different": len(different), "largest difference": largest, "first": different[:3]}


def proof(args: argparse.Namespace, folder: Path) -> list[dict]:
    """Every model killed, straight, straight again, and twice not deterministic; all at once on many cores."""
    ahead = max(1, (os.cpu_count() or 1) // 6)
    with ThreadPoolExecutor(5 * len(MODELS) if ahead > 1 else 1) as pool:
        started = {}
        for model in MODELS:
            job = Job(model, folder, args.device, args.precision, args.steps)
            jobs = {name: replace(job, folder=folder / model / name, deterministic="free" not in name) for name in RUNS}
            others = {name: pool.submit(straight, jobs[name]) for name in RUNS[1:]}
            started[model] = jobs, pool.submit(killed, jobs["killed"], args.kills, ahead), others
        rows = []
        for model, (jobs, deaths, others) in started.items():
            seconds = {name: round(run.result(), 1) for name, run in others.items()}
            compare = {
                "killed": ("straight", "killed"),
                "straight": ("straight", "again"),
                FREE: ("free", "free again"),
            }
            for run, (one, other) in compare.items():
                more = deaths.result() if run == "killed" else {"seconds": seconds[other]}
                rows.append({"model": model, "run": run, **more, **compared(jobs[one].folder, jobs[other].folder)})
    return rows


def table(rows: list[dict], columns: tuple[str, ...]) -> str:
    cells = [list(columns), *([str(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=None, help="default: 120 on a GPU, 60 on a CPU")
    parser.add_argument("--precision", default="bfloat16")
    args = parser.parse_args()
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    args.steps = args.steps or (120 if args.device == "cuda" else 60)
    if args.steps < args.kills + 10:
        parser.error(f"--steps {args.steps} are too few for {args.kills} kills; give {args.kills + 10} or more")
    return args


def main() -> int:
    args, began = arguments(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="resume-") as folder:
        rows = proof(args, Path(folder))
        columns = ("model", "run", "kills", "inside a write", "tensors", "different", "largest difference", "first")
        print(table(rows, columns), flush=True)
        costs = []
        for model in MODELS:
            job = Job(model, Path(folder) / "cost" / model, args.device, args.precision, args.steps)
            costs.append({"model": model, **alone(cost, job)})
            print(
                "{model}: a deterministic step takes {ratio:.2f} times as long ({deterministic:.4f} s)".format(
                    **costs[-1]
                )
            )
    wrong = [row for row in rows if row["different"] and row["run"] != FREE]
    flags = (f"--{name} {value}" for name, value in vars(args).items())
    command = f"python benchmarks/resume.py {' '.join(flags)}"
    seconds = round(time.perf_counter() - began)
    print(write(f"resume-{args.device}", command, rows, costs=costs, seconds=seconds), f"({seconds} s)")
    print("NOT the same" if wrong else "bit-identical")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
