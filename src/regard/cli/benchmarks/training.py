"""Training benchmark: a small translation Transformer, trained by Regard, nn.Transformer and other toolkits.

All toolkits read the same files, already cut into subwords: a subword is written as its id, so that every toolkit
splits at blanks and has the same vocabulary, the subwords of the training set. No tokenizer can differ. Each training
runs in a process of its own. Regard trains as `regard train` does; nn.Transformer by the shortest equivalent loop, on
the same batches.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear

from regard.attention import Recipe, Sinusoidal
from regard.cli.benchmarks import train_peers
from regard.cli.benchmarks.harness import BenchmarkSettings, Case, Implementation, MissingPeer, TimingSample, Verdict
from regard.cli.benchmarks.train_peers import RunPlan, Stopwatch, count_subwords, weights, write_result
from regard.data.batching import Batch, InMemoryBatches, TokenBatchSampler, pair_lengths
from regard.data.files import write_text_atomic
from regard.data.parallel import SentencePair
from regard.data.tokenizers.base import BOS, EOS, NUM_SPECIAL_TOKENS, PAD
from regard.data.tokenizers.subwords import SubwordTokenizer
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationData, TranslationSettings, Translator
from regard.training.config import TrainingData, TrainSettings
from regard.training.packed_corpus import PackedPairs
from regard.training.run import TrainingRun

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
    pairs, valid = (data.read(split, setting.data).examples for split in ("train", "valid"))
    texts = write_texts(pairs, valid, setting.folder / "texts")
    ours, others = (
        [
            Implementation(name, lambda name=name: run_training([sys.executable, "-c", RUN_MAIN, name], texts, setting))
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


RUN_MAIN = "from regard.cli.benchmarks.training import main; main()"
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


# --- a run of Regard or nn.Transformer ---


def settings_of(plan: RunPlan) -> TranslationSettings:
    train, valid = ((f"{plan[name]}.source", f"{plan[name]}.target") for name in ("train", "valid"))
    return TranslationSettings(
        data=TranslationData(corpus="files", train=train, valid=valid),
        text=PairTokenizerSettings(kind="words", vocab_size=plan["words"], joint=True),
        model=ModelConfig(
            kind="transformer",
            layers=plan["layers"],
            model=plan["model"],
            heads=plan["heads"],
            hidden=plan["hidden"],
            dropout=plan["dropout"],
            tie="all",
        ),
        train=TrainSettings(
            steps=plan["steps"],
            batch_size=plan["tokens"],
            schedule="constant",
            learning_rate=plan["rate"],
            warmup_steps=0,
            label_smoothing=plan["smoothing"],
            max_grad_norm=plan["clip"],
            seed=plan["seed"],
            max_length=plan["longest"],
            validate_every=plan["steps"],
            checkpoint_every=plan["steps"],
        ),
    )


def train_regard(plan: RunPlan, watch: Stopwatch, **more: Any) -> tuple[float, int]:
    settings = settings_of(plan)
    settings = replace(settings, train=replace(settings.train, **more))
    pairs, held_out = (settings.data.read(split).examples for split in ("train", "valid"))
    translator = Translator.from_examples(pairs, settings)
    fit = TrainingRun(translator.job(pairs, held_out, plan["device"]), Path(plan["folder"]))
    loss = float("nan")
    for report in fit.steps():
        watch.step(0)
        loss = report.validation["loss"] if report.validation else loss
    # the batches of a step are a function of its number, so their subwords are counted after the timing
    counted = (sum(subwords_in(batch) for batch, _ in batches) for batches in steps_of(fit.job.data))
    watch.tokens[:] = [next(counted) for _ in watch.ends]
    return loss, weights(translator.model)


def steps_of(data: TrainingData) -> Iterator[Sequence[tuple[Batch | PackedPairs, int]]]:
    """The batches of every step, endlessly."""
    for epoch in count():
        for index in range(data.steps(epoch)):
            yield data.at(epoch, index)


def subwords_in(batch: Batch | PackedPairs) -> int:
    sides = (batch.source, batch.target)
    return sum(count_subwords(side if isinstance(side, Tensor) else side.tokens, (PAD, BOS, EOS)) for side in sides)


# --- nn.Transformer ---


class TorchTransformer(nn.Module):
    """nn.Transformer with tied embeddings."""

    def __init__(self, plan: RunPlan, words: int):
        super().__init__()
        width = plan["model"]
        self.table, self.bias = nn.Parameter(torch.randn(words, width) * width**-0.5), nn.Parameter(torch.zeros(words))
        self.dropout = nn.Dropout(plan["dropout"])
        self.stacks = nn.Transformer(
            width,
            plan["heads"],
            plan["layers"],
            plan["layers"],
            plan["hidden"],
            plan["dropout"],
            batch_first=True,
            norm_first=True,
        )

    def read(self, ids: Tensor) -> Tensor:
        placed = Recipe(position=Sinusoidal()).embed(
            embedding(ids, self.table) * self.table.shape[1] ** 0.5, torch.arange(ids.shape[1], device=ids.device)
        )
        return self.dropout(placed)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = source == PAD
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        states = self.stacks(
            self.read(source),
            self.read(target),
            tgt_mask=later,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return linear(states, self.table, self.bias)


def torch_transformer(plan: RunPlan, watch: Stopwatch) -> tuple[float, int]:
    settings, device = settings_of(plan), plan["device"]
    pairs, held_out = (settings.data.read(split).examples for split in ("train", "valid"))
    translator = Translator.from_examples(pairs, settings)  # for its vocabulary
    torch.manual_seed(plan["seed"])
    model = TorchTransformer(plan, translator.source.size).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), plan["rate"], (0.9, 0.98), weight_decay=0.0, fused=True)
    examples, valid = translator.examples(pairs), translator.examples(held_out)
    lengths = pair_lengths(examples)
    feed = InMemoryBatches(
        examples, TokenBatchSampler(lengths, tokens=plan["tokens"], limit=plan["longest"], seed=plan["seed"])
    )
    for batch in islice(chain.from_iterable(map(feed.epoch, count())), plan["steps"]):
        optimiser.zero_grad(set_to_none=True)
        (summed_loss(model, batch.to(device), plan["smoothing"]) / batch.tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), plan["clip"])
        optimiser.step()
        watch.step(subwords_in(batch))
    model.eval()
    rest = InMemoryBatches(valid, TokenBatchSampler(pair_lengths(valid), tokens=plan["tokens"]))
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in rest.epoch(0):
            total, tokens = total + float(summed_loss(model, batch.to(device), 0.0)), tokens + batch.tokens
    return total / tokens, weights(model)


def summed_loss(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    logits = rearrange(model(batch.source, batch.target[:, :-1]), "b t v -> (b t) v")
    wanted = rearrange(batch.target[:, 1:], "b t -> (b t)")
    return cross_entropy(logits, wanted, ignore_index=PAD, reduction="sum", label_smoothing=smoothing)


TRAINERS = {
    "regard": train_regard,
    "regard packed": partial(train_regard, packed=True),
    "regard bfloat16": partial(train_regard, precision="bfloat16"),
    "regard packed bfloat16": partial(train_regard, packed=True, precision="bfloat16"),
    "nn.Transformer": torch_transformer,
}


def main() -> None:
    """In a process of its own: reads the plan and writes the result of train_peers.py."""
    write_result(json.loads(Path(sys.argv[2]).read_text()), TRAINERS[sys.argv[1]])
