"""Linear layer and cross-entropy over a large vocabulary: time and memory chunk by chunk, and with all logits at once.

    python benchmarks/vocabulary_loss.py                   on a CPU, float32
    python benchmarks/vocabulary_loss.py --device cuda     on a GPU, under bfloat16 autocast
    python benchmarks/vocabulary_loss.py --write           also writes the results: only on a machine that is quiet

Forward and backward pass of one step: 28,672 tokens on a GPU, 8,192 on a CPU; a vocabulary of 32,000, hidden states of
width 512, label smoothing 0.1. All take turns in one process, and the ratio is that of their medians. Beside each
stands the relative error of its worst gradient against float64; the tests show that in float64 both are one.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

import timing
from machine import forget_peak, peak_mib, write
from regard.ops.linear_cross_entropy import linear_cross_entropy

TOKENS = {"cpu": 8192, "cuda": 28_672}
WORDS, WIDTH, SMOOTHING, IGNORED = 32_000, 512, 0.1, 0
MIB = 2**20
FULL, FULL_COMPILED = "all logits", "all logits, compiled"

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def full(x: Tensor, table: Tensor, bias: Tensor, wanted: Tensor) -> Tensor:
    logits = linear(x, table, bias).float()
    return cross_entropy(logits, wanted, reduction="sum", label_smoothing=SMOOTHING, ignore_index=IGNORED)


def chunked(mib: int) -> Loss:
    return partial(linear_cross_entropy, smoothing=SMOOTHING, ignore_index=IGNORED, budget=mib * MIB)


def implementations(device: str) -> dict[str, Loss]:
    if device == "cpu":
        return {FULL: full, **{f"chunks of {mib} MiB": chunked(mib) for mib in (16, 64, 256)}}
    # a compiled one has its chunks side by side in the graph, so fewer of them compile sooner
    return {
        FULL: full,
        FULL_COMPILED: torch.compile(full),
        **{f"chunks of {mib} MiB": chunked(mib) for mib in (64, 256, 1024)},
        **{f"chunks of {mib} MiB, compiled": torch.compile(chunked(mib)) for mib in (256, 1024)},
    }


def operands(tokens: int, device: str) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    drawn = torch.randn(tokens, WIDTH), torch.randn(WORDS, WIDTH) * WIDTH**-0.5, torch.zeros(WORDS)
    wanted = torch.randint(1, WORDS, (tokens,)).masked_fill(torch.rand(tokens) < 0.05, IGNORED)
    return [each.to(device).requires_grad_() for each in drawn], wanted.to(device)


def gradients(loss: Loss, weights: list[Tensor], wanted: Tensor, *, autocast: bool) -> tuple[Tensor, ...]:
    x, table, bias = weights
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        summed = loss(x, table, bias, wanted)
    return torch.autograd.grad(summed, weights)


def measured(step: Callable[[], Any]) -> tuple[float, float]:
    """On the CPU: seconds, and the MiB that were held beyond those held before."""
    forget_peak()
    before, began = peak_mib(), time.perf_counter()
    step()
    return time.perf_counter() - began, peak_mib() - before


def compared(tokens: int, device: str, rounds: int) -> list[dict[str, Any]]:
    weights, wanted = operands(tokens, device)
    doubled = [each.detach().double().requires_grad_() for each in weights]
    exact = gradients(chunked(256), doubled, wanted, autocast=False)
    del doubled
    steps = {
        name: partial(gradients, loss, weights, wanted, autocast=device != "cpu")
        for name, loss in implementations(device).items()
    }
    errors = {}
    for name, step in steps.items():  # this also warms each of them up
        pairs = zip(step(), exact, strict=True)
        errors[name] = max(((one - other).norm() / other.norm()).item() for one, other in pairs)
    held = {} if device == "cpu" else {name: timing.mib(step) for name, step in steps.items()}
    found = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            found[name].append(measured(step) if device == "cpu" else (timing.latency(step, 1) / 1e3, held[name]))
    seconds = {name: statistics.median(time for time, _ in some) for name, some in found.items()}
    peaks = {name: max(mib for _, mib in some) for name, some in found.items()}
    return [
        {
            "way": name,
            "milliseconds": seconds[name] * 1e3,
            "time": seconds[name] / seconds[FULL],
            "tflops": 6 * tokens * WORDS * WIDTH / seconds[name] / 1e12,
            "mib": peaks[name],
            "memory": peaks[name] / peaks[FULL],
            "error": errors[name],
        }
        for name in steps
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=TOKENS, default="cpu")
    parser.add_argument("--tokens", type=int, default=None, help="default: 28,672 on a GPU, 8,192 on a CPU")
    parser.add_argument("--rounds", type=int, default=None, help="default: 20 on a GPU, 3 on a CPU")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    args.tokens = args.tokens or TOKENS[args.device]
    args.rounds = args.rounds or (20 if args.device == "cuda" else 3)
    return args


def main() -> None:
    args = arguments()
    rows = compared(args.tokens, args.device, args.rounds)
    table = Table("way", "ms", "× time", "TFLOP/s", "MiB", "× memory", "error")
    for row in rows:
        table.add_row(
            row["way"],
            f"{row['milliseconds']:,.1f}",
            f"{row['time']:.2f}",
            f"{row['tflops']:,.2f}",
            f"{row['mib']:,.0f}",
            f"{row['memory']:.2f}",
            f"{row['error']:.1e}",
        )
    Console(width=120).print(table)
    if args.write:
        name = "vocabulary-loss" if args.device == "cpu" else f"vocabulary-loss-{args.device}"
        command = f"python benchmarks/vocabulary_loss.py --device {args.device} --tokens {args.tokens} --write"
        print(
            write(name, command, rows, words=WORDS, width=WIDTH, smoothing=SMOOTHING, threads=torch.get_num_threads())
        )


if __name__ == "__main__":
    main()
