"""Training speed of Transformer-base: every variant of ours, and torch's nn.Transformer, in one run.

    python benchmarks/training_speed.py                          on a GPU, about three minutes
    python benchmarks/training_speed.py --only "packed, compiled" --steps 50 --profile
    python benchmarks/training_speed.py --tiny --steps 2         on a CPU: does it run?

6 + 6 layers of width 512 and 2,048 with 8 heads, tied embeddings of 32,000 tokens, dropout 0.1, bfloat16 autocast,
AdamW, clipping, label smoothing 0.1: some 28,700 real tokens of both sides a step, in synthetic sentences whose lengths
are those of WMT. Tokens are counted without padding. Utilisation is against a matrix product measured in the same run.
First come losses and gradients without dropout, ours and those of plain cross-entropy over all logits in float32.
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

from kernel_profile import profile_kernels
from machine import write
from regard.data.batching import Example, collate
from regard.data.tokenizers.base import PAD
from regard.models.config import ModelConfig, build_model
from regard.models.transformer import Transformer
from regard.tasks.seq2seq import LabelSmoothingLoss
from regard.training.checkpoint import Progress
from regard.training.config import TrainConfig, TrainSettings
from regard.training.loop import make_backward, make_captured_step, make_optimiser, one_step, parameter_groups
from regard.training.numerics import use_deterministic
from regard.training.packed_corpus import PackedCorpus
from regard.training.run import flops, measure_matmul_flops
from regard.training.step import ConstantSchedule, LossScaleState
from training_variants import BASE, SMOOTHING, TINY, TrainingVariant, sentences, variants

WORDS, SIDE, WARM = 32_000, 14_350, 8
GPU = torch.cuda.is_available()
began = time.perf_counter()


def say(*what: Any) -> None:
    print(f"[{time.perf_counter() - began:5.1f} s]", *what, flush=True)


def measured(
    variant: TrainingVariant, steps: int, lengths: Sequence[tuple[int, int]], precision: str, *, profile: bool
) -> dict[str, float]:
    """Steps of the loop itself, without checkpoints: seconds a step, real tokens of both sides, peak memory."""
    device = next(variant.model.parameters()).device
    plan = TrainConfig(
        ConstantSchedule(1e-4),
        WARM + steps,
        precision=precision,
        deterministic=variant.deterministic,
        cuda_graph=variant.cuda_graph,
    )
    optimiser = make_optimiser(
        variant.model, plan, captured=variant.capture_step and (GPU or plan.precision == "bf16-pure")
    )
    if variant.torch_adamw:
        how = {"lr": 1e-4, "betas": plan.betas, "eps": 1e-9, "capturable": variant.capture_step and GPU}
        optimiser = torch.optim.AdamW(parameter_groups(variant.model, 0.0), **how, fused=True)
    backward = (
        make_captured_step(variant.model, variant.loss, plan, optimiser, None if GPU else again)
        if variant.capture_step
        else make_backward(variant.model, variant.loss, plan)
    )
    progress, health = Progress(), LossScaleState.of(0, 1.0, device)
    targets, started, first, report = 0, 0.0, 0.0, None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    with use_deterministic(device) if variant.deterministic else nullcontext():
        for step in range(WARM + steps):
            if step == WARM:
                wait(device)
                started, first = time.perf_counter(), time.perf_counter() - begin
            report, progress, health = one_step(
                variant.model, optimiser, variant.data, backward, plan, progress, health
            )
            targets += report.tokens * (step >= WARM)
        wait(device)
    seconds = (time.perf_counter() - started) / steps
    assert report is not None
    if profile:
        profile_kernels(
            lambda: one_step(variant.model, optimiser, variant.data, backward, plan, progress, health), device, say
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
    """Without a GPU nothing can be captured, and the work is done again."""
    found = work().clone()
    return lambda: found.copy_(work()), found


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compared_losses(args: argparse.Namespace, config: ModelConfig, examples: list[Example]) -> dict[str, float]:
    """Without dropout: plain cross-entropy of the padded model's logits, and ours in lower precision; the relative
    error of each gradient against the plain one in float32."""
    torch.manual_seed(0)
    model = build_model(config, args.words, args.words).to(args.device).eval()
    assert isinstance(model, Transformer)
    corpus = PackedCorpus.of(examples, TrainSettings(batch_size=round(args.side * 1.04), packed=True), args.device)
    pack, tokens = corpus.at(0, 0)[0]
    pairs = []
    for n in range(len(pack.labels)):
        for number in range(1, int(pack.source.segment_ids[n].max()) + 1):
            source, wanted = pack.source.segment_ids[n] == number, pack.target.segment_ids[n] == number
            pairs.append((pack.source.tokens[n, source].tolist()[:-1], pack.labels[n, wanted].tolist()[:-1]))
    batch = collate(pairs).to(args.device)

    def plain() -> Tensor:
        logits = model(batch.source, batch.source_lengths, batch.target[:, :-1]).float().flatten(0, 1)
        targets = batch.target[:, 1:].flatten()
        return cross_entropy(logits, targets, ignore_index=PAD, reduction="sum", label_smoothing=SMOOTHING)

    one = torch.ones((), device=args.device)
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
    parser.add_argument("--only", nargs="*", default=[], help="variants whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=190.0, help="no further variant is started after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--blas", default="default", help="library of matrix products: cublas, cublaslt, default")
    parser.add_argument("--profile", action="store_true", help="what the GPU did in one more step of each variant")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    args.words, args.side = (500, 900) if args.tiny else (WORDS, SIDE)
    return args


def main() -> None:
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # deterministic steps need it before the first matrix product
    args = arguments()
    config, examples = TINY if args.tiny else BASE, sentences(600 if args.tiny else 20_000, args.words)
    lengths = [(len(source) + 1, len(target) + 1) for source, target in examples]
    gpu = args.device != "cpu"
    if gpu:
        torch.backends.cuda.preferred_blas_library(args.blas)
    rate = measure_matmul_flops(args.device) if gpu else math.nan
    made = variants(args, config, examples)
    some = made["ours, padded"]()
    assert isinstance(some.model, Transformer)
    whole = flops(some.model, lengths)
    weights = sum(weight.numel() for weight in some.model.parameters())
    say(f"{weights:,} weights; a matrix product {rate / 1e12:.0f} TFLOP/s")
    del some
    losses = {}
    try:
        losses = compared_losses(args, config, examples)
        say(*(f"{name} {value:.5f};" for name, value in losses.items()))
    except Exception as error:  # one part that fails must not hide the others
        say("losses:", type(error).__name__, str(error).splitlines()[0] if str(error) else "")
    rows = []
    more = {"losses": losses, "weights": weights, "matrix TFLOP/s": rate / 1e12}
    keep = partial(write, "training-speed", " ".join(["python", *sys.argv]), rows, **more)
    for name in chosen(list(made), args.only):
        if time.perf_counter() - began > args.seconds:
            say(name, "left out: no time")
            continue
        try:
            variant = made[name]()
            precision = variant.precision if gpu or variant.precision == "bf16-pure" else "float32"
            found = measured(variant, args.steps, lengths, precision, profile=args.profile)
            found["utilisation"] = whole * found.pop("share") / (found["milliseconds"] / 1e3) / rate
            rows.append({"way": name, **found})
            say(f"{name:62}", *(f"{key} {value:,.3f};" for key, value in found.items()))
            if args.write:  # as they come, so that a run that is stopped has written most
                keep()
            del variant
        except Exception as error:
            say(f"{name:62}", type(error).__name__, str(error).splitlines()[0][:300] if str(error) else "")
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
    if args.write:
        print(keep())


def chosen(names: list[str], only: list[str]) -> list[str]:
    """One of ours, then the peers, so that there is a comparison if time ends; then the others of ours."""
    some = [name for name in names if not only or any(part in name for part in only)]
    first = next((name for name in some if name.startswith("ours")), None)
    return sorted(some, key=lambda name: (name != first, name.startswith("ours")))


if __name__ == "__main__":
    main()
