"""How fast Transformer-base trains: ours in every way it can be told, and torch's nn.Transformer, in one run.

    python benchmarks/training_speed.py                          on a GPU, about three minutes
    python benchmarks/training_speed.py --only "packed, compiled" --steps 50 --profile
    python benchmarks/training_speed.py --tiny --steps 2         on a CPU: does it run?

6 + 6 layers of width 512 and 2,048 with 8 heads, one table of 32,000 words, dropout 0.1, bfloat16 by autocast, AdamW,
clipping, label smoothing 0.1: some 28,700 real tokens of both sides a step, in sentences of made words whose lengths
are those of WMT. Tokens are counted without padding. Utilisation is against a product of matrices measured in the same
run. First come losses and gradients without dropout, ours and those of plain cross-entropy over all scores in float32.
"""

import argparse
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from machine import write
from profiled import kinds_and_kernels
from regard.data.batching import Example, collate
from regard.data.tokenizers.base import PAD
from regard.models.config import ModelConfig, build_model
from regard.models.flops import flops
from regard.models.transformer import Transformer
from regard.tasks.seq2seq import LabelSmoothingLoss
from regard.train.checkpoint import Progress
from regard.train.config import TrainConfig, TrainSettings
from regard.train.corpus import PackedCorpus
from regard.train.determinism import use_deterministic
from regard.train.hardware import measure_matmul_flops
from regard.train.loop import make_backward, make_captured_step, make_optimiser, one_step, parameter_groups
from regard.train.step import ConstantSchedule, LossScaleState
from training_ways import BASE, SMOOTHING, TINY, Way, sentences, ways

WORDS, SIDE, WARM = 32_000, 14_350, 8
GPU = torch.cuda.is_available()
began = time.perf_counter()


def say(*what: Any) -> None:
    print(f"[{time.perf_counter() - began:5.1f} s]", *what, flush=True)


def measured(
    way: Way, steps: int, lengths: Sequence[tuple[int, int]], precision: str, *, profile: bool
) -> dict[str, float]:
    """Steps of the loop itself, without checkpoints: seconds a step, real tokens of both sides, peak memory."""
    device = next(way.model.parameters()).device
    plan = TrainConfig(
        ConstantSchedule(1e-4), WARM + steps, precision=precision, deterministic=way.exact, cuda_graph=way.capture
    )
    optimiser = make_optimiser(way.model, plan, captured=way.whole and (GPU or plan.precision == "bf16-pure"))
    if way.torchs:
        how = {"lr": 1e-4, "betas": plan.betas, "eps": 1e-9, "capturable": way.whole and GPU}
        optimiser = torch.optim.AdamW(parameter_groups(way.model, 0.0), **how, fused=True)
    backward = (
        make_captured_step(way.model, way.loss, plan, optimiser, None if GPU else again)
        if way.whole
        else make_backward(way.model, way.loss, plan)
    )
    progress, health = Progress(), LossScaleState.of(0, 1.0, device)
    targets, started, first, report = 0, 0.0, 0.0, None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    with use_deterministic(device) if way.exact else nullcontext():
        for step in range(WARM + steps):
            if step == WARM:
                wait(device)
                started, first = time.perf_counter(), time.perf_counter() - begin
            report, progress, health = one_step(way.model, optimiser, way.data, backward, plan, progress, health)
            targets += report.tokens * (step >= WARM)
        wait(device)
    seconds = (time.perf_counter() - started) / steps
    assert report is not None
    if profile:
        kinds_and_kernels(
            lambda: one_step(way.model, optimiser, way.data, backward, plan, progress, health), device, say
        )
    source, target = (sum(side) for side in zip(*lengths, strict=True))
    share = targets / steps / target  # of all sentences, in a step
    return {
        "milliseconds": seconds * 1e3,
        "tokens a step": share * (source + target),
        "tokens/s": share * (source + target) / seconds,
        "first steps, s": first,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0,
        "loss": report.loss,
        "share": share,
    }


def again(work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], object], Tensor]:
    """Where nothing can be recorded, the work is done again."""
    found = work().clone()
    return lambda: found.copy_(work()), found


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compared_losses(asked: argparse.Namespace, config: ModelConfig, examples: list[Example]) -> dict[str, float]:
    """Without dropout: plain cross-entropy of the padded model's scores, and ours in narrower ways; how far each
    gradient is from the plain one in float32, as a share of it."""
    torch.manual_seed(0)
    model = build_model(config, asked.words, asked.words).to(asked.device).eval()
    assert isinstance(model, Transformer)
    corpus = PackedCorpus.of(examples, TrainSettings(batch_size=round(asked.side * 1.04), packed=True), asked.device)
    pack, tokens = corpus.at(0, 0)[0]
    pairs = []
    for n in range(len(pack.labels)):
        for number in range(1, int(pack.source.segment_ids[n].max()) + 1):
            source, wanted = pack.source.segment_ids[n] == number, pack.target.segment_ids[n] == number
            pairs.append((pack.source.tokens[n, source].tolist()[:-1], pack.labels[n, wanted].tolist()[:-1]))
    batch = collate(pairs).to(asked.device)

    def plain() -> Tensor:
        scores = model(batch.source, batch.source_lengths, batch.target[:, :-1]).float().flatten(0, 1)
        wanted = batch.target[:, 1:].flatten()
        return cross_entropy(scores, wanted, ignore_index=PAD, reduction="sum", label_smoothing=SMOOTHING)

    one = torch.ones((), device=asked.device)
    wide, autocast = TrainConfig(ConstantSchedule(1.0), 1), TrainConfig(ConstantSchedule(1.0), 1, precision="bfloat16")
    works = {
        "plain, float32": (lambda model, batch: (plain(), tokens), wide),
        "plain, bfloat16": (lambda model, batch: (plain(), tokens), autocast),
        "packed, bfloat16": (LabelSmoothingLoss(SMOOTHING), autocast),
        "packed, bf16-pure": (LabelSmoothingLoss(SMOOTHING), replace(wide, precision="bf16-pure")),
    }
    found: dict[str, float] = {}
    exact = None
    for name, (loss, plan) in works.items():
        model.zero_grad()
        summed, _ = make_backward(model, loss, plan)((pack, tokens), one)
        grads = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
        exact = grads if exact is None else exact
        found[name] = summed.item() / tokens
        found[f"{name}, gradient off by"] = ((grads - exact).norm() / exact.norm()).item()
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", nargs="*", default=[], help="ways whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=190.0, help="no further way is begun after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--blas", default="default", help="whose products of matrices: cublas, cublaslt, default")
    parser.add_argument("--profile", action="store_true", help="what the GPU did in one more step of each way")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    asked.words, asked.side = (500, 900) if asked.tiny else (WORDS, SIDE)
    return asked


def main() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # exact steps want it before the first product
    asked = arguments()
    config, examples = TINY if asked.tiny else BASE, sentences(600 if asked.tiny else 20_000, asked.words)
    lengths = [(len(source) + 1, len(target) + 1) for source, target in examples]
    gpu = asked.device != "cpu"
    if gpu:
        torch.backends.cuda.preferred_blas_library(asked.blas)
    rate = measure_matmul_flops(asked.device) if gpu else math.nan
    made = ways(asked, config, examples)
    some = made["ours, padded"]()
    assert isinstance(some.model, Transformer)
    whole = flops(some.model, lengths)
    weights = sum(weight.numel() for weight in some.model.parameters())
    say(f"{weights:,} weights; a product of matrices {rate / 1e12:.0f} TFLOP/s")
    del some
    losses = {}
    try:
        losses = compared_losses(asked, config, examples)
        say(*(f"{name} {value:.5f};" for name, value in losses.items()))
    except Exception as error:  # a benchmark that fails in one part must still tell the others
        say("losses:", type(error).__name__, str(error).splitlines()[0] if str(error) else "")
    rows = []
    more = {"losses": losses, "weights": weights, "matrix TFLOP/s": rate / 1e12}
    keep = partial(write, "training-speed", " ".join(["python", *sys.argv]), rows, **more)
    for name in chosen(list(made), asked.only):
        if time.perf_counter() - began > asked.seconds:
            say(name, "left out: no time")
            continue
        try:
            way = made[name]()
            precision = way.precision if gpu or way.precision == "bf16-pure" else "float32"
            found = measured(way, asked.steps, lengths, precision, profile=asked.profile)
            found["utilisation"] = whole * found.pop("share") / (found["milliseconds"] / 1e3) / rate
            rows.append({"way": name, **found})
            say(f"{name:62}", *(f"{key} {value:,.3f};" for key, value in found.items()))
            if asked.write:  # as they come: whoever ends this too early has what there was
                keep()
            del way
        except Exception as error:
            say(f"{name:62}", type(error).__name__, str(error).splitlines()[0][:300] if str(error) else "")
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
    if asked.write:
        print(keep())


def chosen(names: list[str], only: list[str]) -> list[str]:
    """One of ours, then the peers, so that there is a comparison if time ends; then the others of ours."""
    some = [name for name in names if not only or any(part in name for part in only)]
    first = next((name for name in some if name.startswith("ours")), None)
    return sorted(some, key=lambda name: (name != first, name.startswith("ours")))


if __name__ == "__main__":
    main()
