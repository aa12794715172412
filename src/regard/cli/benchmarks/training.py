"""Training benchmark: a small translation Transformer, trained by Regard, nn.Transformer and other toolkits.

All toolkits read the same files, already cut into subwords: a subword is written as its id, so that every toolkit
splits at blanks and has the same vocabulary, the subwords of the training set. No tokenizer can differ.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from regard.cli.benchmarks import train_peers
from regard.cli.benchmarks.harness import BenchmarkSettings, Case, Implementation, MissingPeer, TimingSample, Verdict
from regard.data.files import write_text_atomic
from regard.data.parallel import SentencePair
from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS
from regard.data.tokenizers.subwords import SubwordTokenizer
from regard.tasks.translation.data import TranslationData, read_translation_pairs

SUBWORDS = 8000


@dataclass(frozen=True)
class CorpusFiles:
    """The folder with train.source, train.target, valid.source, valid.target and vocabulary, one subword per line."""

    folder: Path
    pairs: int
    tokens: int

    @property
    def vocabulary(self) -> Path:
        return self.folder / "vocabulary"

    def plan(self) -> dict[str, object]:
        names = {name: str(self.folder / name) for name in ("train", "valid", "vocabulary")}
        return {**names, "pairs": self.pairs, "words": self.tokens + NUM_SPECIAL_TOKENS}


def write_texts(
    train: Sequence[SentencePair], valid: Sequence[SentencePair], folder: Path, subwords: int = SUBWORDS
) -> CorpusFiles:
    tokenizer = SubwordTokenizer.bpe([text for pair in train for text in (pair.source, pair.target)], size=subwords)
    counts: Counter[int] = Counter()
    for name, pairs in (("train", train), ("valid", valid)):
        for side in ("source", "target"):
            rows = tokenizer.encode_batch([getattr(pair, side) for pair in pairs])
            counts.update(id for row in rows for id in row if name == "train")
            write_text_atomic(folder / f"{name}.{side}", "".join(f"{' '.join(map(str, row))}\n" for row in rows))
    write_text_atomic(folder / "vocabulary", "".join(f"{id}\n" for id, _ in counts.most_common()))
    return CorpusFiles(folder, len(train), len(counts))


# --- training ---


ROUNDS = 3
STEPS, STEPS_QUICK = 50, 12
WARMUP_STEPS = 5  # untimed steps; the last one is not timed either, since with Regard it ends with validation
MAX_SECONDS = 600.0  # of a run
MAX_LOSS_ABOVE_PEER = 0.05  # relative: how far Regard's validation loss may be above a peer's
MAX_PEER_LOSS_ABOVE = (
    0.25  # relative: how far a peer's may be above Regard's; beyond that the peer trained something else
)
SHAPE = {"layers": 2, "model": 128, "heads": 4, "hidden": 512, "dropout": 0.1, "tokens": 4096, "longest": 256}
SHAPE_QUICK = SHAPE | {"layers": 1, "model": 32, "hidden": 64, "tokens": 1024}
TRAINING = {"rate": 1e-3, "smoothing": 0.1, "clip": 1.0, "seed": 1}
WORLD = TranslationData(corpus="world", sentences=20_000)
MULTI30K = TranslationData(corpus="multi30k", source="en", target="de")


@dataclass(frozen=True)
class TrainingResult:
    """The validation loss, the number of parameters, and tokens per CPU second.

    The last is comparable on a shared machine, with one thread: several threads also count while they wait.
    """

    loss: float
    weights: int
    tokens_per_cpu_second: float


def train(setting: BenchmarkSettings) -> Iterator[Case]:
    data = WORLD if setting.data is None else MULTI30K
    pairs, valid = (read_translation_pairs(data, split, setting.data).examples for split in ("train", "valid"))
    texts = write_texts(pairs, valid, setting.folder / "texts")
    ours, others = (
        [
            Implementation(
                name, lambda name=name: run_training([sys.executable, "-m", REGARD_SCRIPT, name], texts, setting)
            )
            for name in names
        ]
        for names in (REGARD_VARIANTS, ("nn.Transformer",))
    )
    missing: list[MissingPeer] = []
    for name in train_peers.PEERS:
        python = setting.peers / name / "bin" / "python"
        words = [str(python), train_peers.__file__, name]
        if python.exists():
            others.append(Implementation(name, lambda words=words: run_training(words, texts, setting)))
        else:
            missing.append(MissingPeer(name, f"no {python}; benchmarks/peers.sh {setting.peers} {name} creates it"))
    shape = shape_of(setting)
    name = f"{data.corpus}, {shape['layers']}+{shape['layers']} layers of width {shape['model']}"
    name += f", batches of {shape['tokens']:,}, {setting.threads} threads"
    yield Case(name, tuple(ours), tuple(others), tuple(missing), judge, ROUNDS)


REGARD_SCRIPT = "regard.cli.benchmarks.train_regard"
REGARD_VARIANTS = ("regard", "regard packed", "regard bfloat16", "regard packed bfloat16")


def shape_of(setting: BenchmarkSettings) -> dict[str, Any]:
    return SHAPE_QUICK if setting.quick else SHAPE


def run_training(words: list[str], texts: CorpusFiles, setting: BenchmarkSettings) -> TimingSample:
    """One training run, in a folder of its own."""
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
                timeout=MAX_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not finished after {MAX_SECONDS:.0f} s; see {folder / 'log'}") from None
    if code:
        raise RuntimeError(f"{last_line(folder / 'log')}; see {folder / 'log'}")
    return read_result(folder / "answer.json")


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "exited without output"


def read_result(path: Path, warm: int = WARMUP_STEPS) -> TimingSample:
    result = json.loads(path.read_text())
    ends, tokens = result["ends"], result["tokens"]
    if len(ends) < warm + 2:
        raise RuntimeError(f"only {len(ends)} steps were completed")
    amount, cpu_seconds = sum(tokens[warm:-1]), result["cpu_seconds"][-2] - result["cpu_seconds"][warm - 1]
    return TimingSample(
        ends[-2] - ends[warm - 1], amount, TrainingResult(result["loss"], result["weights"], amount / cpu_seconds)
    )


def judge(found: TrainingResult, ours: TrainingResult) -> Verdict:
    """Compares validation losses, since initial weights differ: Regard's must not be higher, a peer's not much."""
    loss = f"validation loss {found.loss:.3f}"
    if not found.loss < float("inf"):
        return Verdict(f"{loss} is not a number", correct=False)
    if ours.loss > found.loss * (1 + MAX_LOSS_ABOVE_PEER):
        return Verdict(f"{loss}, Regard's is {ours.loss:.3f}: Regard's is higher", correct=False)
    if found.loss > ours.loss * (1 + MAX_PEER_LOSS_ABOVE):
        return Verdict(f"{loss}, Regard's is {ours.loss:.3f}: not the same training", correct=False)
    return Verdict(f"{loss}; {found.tokens_per_cpu_second:,.0f} tokens per CPU second")
