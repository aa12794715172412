"""Long sources: memory, time and accuracy of full, window and BigBird attention on extracts from stories.

    python benchmarks/stories.py             memory up to 16k words, then training on 127 words; wants a GPU
    python benchmarks/stories.py --words 63  on a CPU: memory up to 4k words, then training for a quarter of an hour
    python benchmarks/stories.py --quick     memory up to 4k words and a little training, on a CPU; writes nothing

Memory is that of one training step on one story, beside the weights. "Full, reference" is attention as the formula
says it, every weight kept for the backward pass; "full" leaves it to torch's fused kernels, which keep none. A batch is
timed forwards and backwards, alone on the machine; then the three learn side by side, each in a process of its own.
"""

import argparse
import gc
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from machine import alone, forget_peak, peak_mib, write
from regard.attention import Normaliser, Softmax
from regard.cli.options import resolve_device
from regard.cli.progress import train_with_progress
from regard.data.batching import collate
from regard.data.parallel import SentencePair
from regard.decode import Greedy
from regard.decode.translation import translate_texts
from regard.layers.transformer_layers import EncoderLayer
from regard.models.config import ModelConfig
from regard.models.transformer import Transformer
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.seq2seq import LabelSmoothingLoss
from regard.tasks.translation.metrics import bleu, exact_match
from regard.tasks.translation.task import TranslationData, TranslationSettings, Translator
from regard.training.config import TrainSettings
from regard.training.run import TrainingRun
from regard.world.long_inputs import Stories, graded_story_pairs, story_pairs

ROTARY = 'position = "Rotary()"\n'
KINDS = {
    "full, reference": ROTARY,
    "full": ROTARY,
    "window": ROTARY + 'pattern = "Window({reach})"',
    "bigbird": ROTARY + 'pattern = "Block({block}, Window(2) | Global(1) | Random(3, seed=0))"',
}
HEADS, LAYERS = 4, 3  # with two, words do not learn whether theirs is the sentence of the question
WARM, TIMED = 5, 20  # batches
TOKENS = {"cuda": 16_384, "cpu": 4096}  # of a batch


@dataclass(frozen=True)
class UnfusedSoftmax(Normaliser):
    """Softmax by another name, which no fused kernel knows: the definition runs."""

    def weigh(self, scores, visible):
        return Softmax().weigh(scores, visible)


def settings_of(kind: str, words: int, steps: int, batch: int, device: str) -> TranslationSettings:
    encoder = KINDS[kind].format(reach=min(256, words // 4), block=max(4, min(64, (words + 1) // 16)))
    return TranslationSettings(
        data=TranslationData(target="en"),
        text=PairTokenizerSettings(kind="words"),
        model=ModelConfig(
            kind="transformer",
            layers=LAYERS,
            model=128,
            heads=HEADS,
            hidden=256,
            dropout=0.0,
            tie="all",
            encoder=encoder,
            decoder=ROTARY,
        ),
        train=TrainSettings(
            steps=steps,
            batch_size=batch * (words + 1),
            max_length=words,
            learning_rate=2e-3,
            warmup_steps=min(100, steps // 4),
            label_smoothing=0.0,
            validate_every=steps,
            checkpoint_every=steps,
            precision="bfloat16" if device == "cuda" else "float32",
            deterministic=False,
        ),
    )


def stories_of(words: int, count: int, split) -> list[SentencePair]:
    return [SentencePair(*pair) for pair in story_pairs(Stories(words=words, relevant=1), count, split)]


# --- memory ---


def memory(kind: str, words: int, device: str) -> dict:
    """The peak of one training step beyond what was there before."""
    translator = Translator.from_examples(stories_of(words, 4, "train"), settings_of(kind, words, 1, 1, device))
    model = translator.model.to(device)
    if kind == "full, reference":
        use_reference(model)
    batch = collate(translator.examples(stories_of(words, 1, "train"))).to(device)
    half = torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()

    def step() -> None:
        model.zero_grad()
        with half:
            loss, _ = LabelSmoothingLoss()(model, (batch, batch.tokens))
        loss.backward()

    try:
        if device == "cuda":
            step()  # compiles what has to be compiled
            model.zero_grad()
        gc.collect()
        before = start(device)
        step()
    except torch.OutOfMemoryError as error:
        return {"kind": kind, "words": words, "failed": str(error).splitlines()[0]}
    return {"kind": kind, "words": words, "mib": stop(device) - before}


def use_reference(model: nn.Module) -> None:
    assert isinstance(model, Transformer)
    for layer in model.encoder:
        assert isinstance(layer, EncoderLayer)
        layer.attention.recipe = replace(layer.attention.recipe, normaliser=UnfusedSoftmax())


def start(device: str) -> float:
    if device == "cpu":
        forget_peak()
        return peak_mib()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**20


def stop(device: str) -> float:
    return peak_mib() if device == "cpu" else torch.cuda.max_memory_allocated() / 2**20


def arithmetic(words: int) -> float:
    """MiB of the attention weights alone: heads × n² numbers of four bytes in every layer of the encoder."""
    return LAYERS * HEADS * words**2 * 4 / 2**20


# --- training ---


def milliseconds(kind: str, words: int, batch: int, device: str) -> float:
    """Of a batch of stories of this length, forwards and backwards; the median."""
    translator = Translator.from_examples(stories_of(words, 4, "train"), settings_of(kind, words, 1, batch, device))
    model, given = (
        translator.model.to(device),
        collate(translator.examples(stories_of(words, batch, "train"))).to(device),
    )
    half = torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()
    found = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        with half:
            loss, _ = LabelSmoothingLoss()(model, (given, given.tokens))
        loss.backward()
        loss.item()  # which waits for the device
        found.append(1000 * (time.perf_counter() - began))
    return statistics.median(found[WARM:])


def trained(kind: str, stories: list[SentencePair], words: int, steps: int, batch: int, device: str) -> dict:
    """On stories of all lengths up to this one; measured on stories of this one."""
    held_out, tests = stories_of(words, batch, "valid"), stories_of(words, 256, "test")
    translator = Translator.from_examples(stories, settings_of(kind, words, steps, batch, device))
    with tempfile.TemporaryDirectory() as folder:
        if not train_with_progress(
            TrainingRun(translator.job(stories, held_out, device), Path(folder)), Console(stderr=True)
        ):
            raise SystemExit(f"{kind}: stopped before the end; nothing is measured")
    texts = translate_texts(translator, [pair.source for pair in tests], Greedy())
    wanted = [pair.target for pair in tests]
    return {
        "kind": kind,
        "words": words,
        "exact": exact_match(texts, wanted).value,
        "bleu": bleu(texts, wanted, tokenised=True).value,
        "tokens": steps * batch * (words + 1),
    }


def compared(words: int, steps: int, batch: int, device: str) -> list[dict]:
    kinds = list(KINDS)[1:]
    times = [milliseconds(kind, words, batch, device) for kind in kinds]
    stories = [
        SentencePair(*pair)
        for pair in graded_story_pairs(Stories(words=words, relevant=1), min(2 * steps * batch, 65_536))
    ]
    with ProcessPoolExecutor(len(kinds), mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(trained, kind, stories, words, steps, batch, device) for kind in kinds]
        return [each.result() | {"ms": ms} for each, ms in zip(waiting, times, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few words and steps, for a CPU; writes nothing")
    parser.add_argument("--words", type=int, default=127, help="of a story to train on (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="of training; 0 for none (default: %(default)s)")
    args = parser.parse_args()
    device, console = resolve_device("auto"), Console(width=120)
    lengths = (4095, 8191, 16383) if device == "cuda" else (1023, 2047, 4095)
    # on a CPU in a process of its own each, so that the peak is its own too
    run = alone if device == "cpu" else lambda function, *given: function(*given)
    used = [run(memory, kind, words, device) for words in lengths for kind in KINDS]
    table = Table("peak MiB", *(f"{words:,} words" for words in lengths))
    table.add_row("weights alone, by arithmetic", *(f"{arithmetic(words):,.0f}" for words in lengths))
    for kind in KINDS:
        mine = [row for row in used if row["kind"] == kind]
        table.add_row(kind, *(f"{row['mib']:,.0f}" if "mib" in row else "does not fit" for row in mine))
    console.print(table)
    words, steps, batch = (63, 300, 16) if args.quick else (args.words, args.steps, TOKENS[device] // (args.words + 1))
    rows = compared(words, steps, batch, device) if steps else []
    table = Table("encoder", "extracts right", "BLEU", "ms a batch")
    for row in rows:
        table.add_row(row["kind"], f"{row['exact']:.1f} %", f"{row['bleu']:.1f}", f"{row['ms']:.0f}")
    console.print(table)
    if not args.quick:
        weights = {str(words): arithmetic(words) for words in lengths}
        command = " ".join(["python benchmarks/stories.py", *sys.argv[1:]])
        print(write("stories", command, rows, steps=steps, memory=used, weights_alone=weights))


if __name__ == "__main__":
    main()
