"""Sentence pairs in; a small Transformer trained on them by us, by plain torch and by other toolkits, to be timed, out.

Everybody is a process of its own with the same number of threads, trains a model of the same shape on the same text
files by its own loop, and is timed by the same stopwatch (trained_by_peers.py). Rates, smoothing, clipping and dropout
are the same; how sentences are put into batches of so many tokens is each one's own, and only real tokens count.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from regard.cli.benches import trained_by_peers
from regard.cli.benches.texts import Texts, write_texts
from regard.cli.benches.work import Case, Missing, Setting, Turn, Verdict, Way
from regard.tasks.data import read_split
from regard.tasks.settings import DataSettings

ROUNDS = 3
STEPS, STEPS_QUICK = 50, 12
WARM = 5  # steps before the clock starts; the last one is left out too, since for us it ends with validation
LONGEST = 600.0  # seconds that a run may take
WORSE = 0.05  # by this part our held-out loss may be above theirs
BEHIND = 0.25  # by this part theirs may be above ours; beyond that they did not learn the same thing
SHAPE = {"layers": 2, "model": 128, "heads": 4, "hidden": 512, "dropout": 0.1, "tokens": 4096, "longest": 256}
SHAPE_QUICK = SHAPE | {"layers": 1, "model": 32, "hidden": 64, "tokens": 1024}
TRAINING = {"rate": 1e-3, "smoothing": 0.1, "clip": 1.0, "seed": 1}
WORLD = DataSettings(corpus="world", sentences=20_000)
MULTI30K = DataSettings(corpus="multi30k", source="en", target="de")


@dataclass(frozen=True)
class Learnt:
    """What a run came to: the loss on held-out sentences, how many weights it trained, and tokens a processor second.

    The last is what a machine that others use leaves comparable, with one thread: several also count while they wait.
    """

    loss: float
    weights: int
    worked: float


def train(setting: Setting) -> Iterator[Case]:
    data = WORLD if setting.data is None else MULTI30K
    pairs, valid = (read_split(data, split, setting.data).examples for split in ("train", "valid"))
    texts = write_texts(pairs, valid, setting.folder / "texts")
    ours, others = (
        [Way(name, lambda name=name: turn([sys.executable, "-m", HERE, name], texts, setting)) for name in names]
        for names in (OURS, ("nn.Transformer",))
    )
    missing: list[Missing] = []
    for name in trained_by_peers.PEERS:
        python = setting.peers / name / "bin" / "python"
        words = [str(python), trained_by_peers.__file__, name]
        if python.exists():
            others.append(Way(name, lambda words=words: turn(words, texts, setting)))
        else:
            missing.append(Missing(name, f"no {python}; benchmarks/peers.sh {setting.peers} {name} makes it"))
    shape = shape_of(setting)
    name = f"{data.corpus}, {shape['layers']}+{shape['layers']} layers of width {shape['model']}"
    name += f", batches of {shape['tokens']:,}, {setting.threads} threads"
    yield Case(name, tuple(ours), tuple(others), tuple(missing), judge, ROUNDS)


HERE = "regard.cli.benches.trained_here"
OURS = ("regard", "regard packed", "regard bfloat16", "regard packed bfloat16")


def shape_of(setting: Setting) -> dict[str, Any]:
    return SHAPE_QUICK if setting.quick else SHAPE


def turn(words: list[str], texts: Texts, setting: Setting) -> Turn:
    """One run from the start, in a folder of its own."""
    folder = Path(mkdtemp(dir=setting.folder, prefix="run-"))
    plan = {**texts.plan(), **shape_of(setting), **TRAINING, "device": setting.device, "threads": setting.threads}
    plan |= {"steps": STEPS_QUICK if setting.quick else STEPS}
    plan |= {"folder": str(folder / "model"), "answer": str(folder / "answer.json")}
    (folder / "model").mkdir()
    (folder / "plan.json").write_text(json.dumps(plan))
    threads = {"OMP_NUM_THREADS": str(setting.threads), "MKL_NUM_THREADS": str(setting.threads)}
    with (folder / "log").open("w") as log:
        try:
            code = subprocess.run(
                [*words, str(folder / "plan.json")],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | threads,
                timeout=LONGEST,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not ready after {LONGEST:.0f} s; see {folder / 'log'}") from None
    if code:
        raise RuntimeError(f"{last_line(folder / 'log')}; see {folder / 'log'}")
    return read_answer(folder / "answer.json")


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"


def read_answer(path: Path, warm: int = WARM) -> Turn:
    told = json.loads(path.read_text())
    ends, tokens = told["ends"], told["tokens"]
    if len(ends) < warm + 2:
        raise RuntimeError(f"only {len(ends)} steps were taken")
    amount, worked = sum(tokens[warm:-1]), told["worked"][-2] - told["worked"][warm - 1]
    return Turn(ends[-2] - ends[warm - 1], amount, Learnt(told["loss"], told["weights"], amount / worked))


def judge(found: Learnt, ours: Learnt) -> Verdict:
    """Not the same numbers, for everybody begins elsewhere: but we must not have learnt less, nor they far less."""
    said = f"held-out loss {found.loss:.3f}"
    if not found.loss < float("inf"):
        return Verdict(f"{said} is not a number", right=False)
    if ours.loss > found.loss * (1 + WORSE):
        return Verdict(f"{said}, and ours is {ours.loss:.3f}: we learnt less", right=False)
    if found.loss > ours.loss * (1 + BEHIND):
        return Verdict(f"{said}, and ours is {ours.loss:.3f}: they did not learn the same", right=False)
    return Verdict(f"{said}; {found.worked:,.0f} tokens a processor second")
