"""Attention statistics: their time and memory, which is not n², beside the fused forward pass that returns no weights.

python benchmarks/probes.py                          on the CPU, 4k to 16k tokens
python benchmarks/probes.py --device cuda            on a GPU, 131,072 tokens, 12 heads of 64, bfloat16
python benchmarks/probes.py --device cuda --sweep    the shapes of the kernels' tiles, to choose from

On a GPU every statistic is measured twice: with the log-sum-exp that the forward pass has kept, and without.
"""

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from machine import alone, forget_peak, peak_mib, write

PATTERNS = ["Full()", "Causal()", "Window(512)"]
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"rows": (0, 1000)},
    "columns": {"columns": (0, 1000)},
    "mass": {"mass": True},
    "top": {"top": 8},
    "entropy": {"entropy": True},
    "log_sum_exp": {"log_sum_exp": True},
    "map": {"map": (64, 64)},
    "peaks": {"peaks": (64, 64)},
}
KINDS["all"] = {name: value for request in KINDS.values() for name, value in request.items()}
CHECKED = 1024  # tokens at which every figure is preceded by a comparison with the reference


def inputs(heads: int, n: int) -> list:
    import torch

    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, n, 64, generator=generator) for _ in range(3)]


def seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def extra_mib(run: Callable[[], Any]) -> float:
    """The most memory it holds beyond what was there before."""
    forget_peak()
    before = peak_mib()
    run()
    return peak_mib() - before


def agrees(pattern: str) -> bool:
    """A faster wrong answer is a failure: mass, map and entropy against the whole matrix of weights."""
    import torch

    from regard.attention import Recipe, parse_part, steps
    from regard.attention.stats import StatsRequest, attention_stats

    q, k, _ = inputs(2, CHECKED)
    recipe = Recipe(pattern=parse_part(pattern))
    seen = attention_stats(q, k, recipe, StatsRequest(mass=True, entropy=True, map=(8, 8)))
    found = [x for x in (seen.mass, seen.entropy, seen.map) if x is not None]
    weights = steps(q.double(), k.double(), k.double(), recipe).weights
    exact = weights.sum(2), torch.special.entr(weights).sum(-1), weights.view(1, 2, 8, CHECKED // 8, 8, -1).sum((3, 5))
    return all(torch.allclose(got.double(), want, rtol=1e-4) for got, want in zip(found, exact, strict=True))


def measure(pattern: str, n: int, heads: int, kinds: list[str]) -> list[dict]:
    """Each statistic and the fused forward pass, taking turns; the memory of all together comes first."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from regard.attention import Recipe, parse_part
    from regard.attention.stats import StatsRequest, attention_stats

    q, k, v = inputs(heads, n)
    recipe = Recipe(pattern=parse_part(pattern))

    def compute(kind: str, length: int = n) -> Any:
        return attention_stats(q[:, :, :length], k[:, :, :length], recipe, StatsRequest(**KINDS[kind]))

    def fused() -> Any:  # dense for a window: what anyone would have to run
        return scaled_dot_product_attention(q, k, v, is_causal=pattern == "Causal()")

    compute("all", CHECKED)
    mib = extra_mib(lambda: compute("all"))
    assert agrees(pattern), f"{pattern}: not what the reference says"
    rows = []
    for kind in kinds:
        fused()
        times = [
            (seconds(lambda: compute(kind)), seconds(fused))  # noqa: B023 (called at once)
            for _ in range(1 if n > 8192 else 3)
        ]
        mine, theirs = (statistics.median(column) for column in zip(*times, strict=True))
        what = {"pattern": pattern, "kind": kind, "tokens": n, "heads": heads}
        rows.append(what | {"seconds": mine, "sdpa_seconds": theirs, "ratio": mine / theirs})
    whole = heads * n * n * torch.float32.itemsize / 2**20
    return [row | {"mib_of_all": mib, "mib_of_weights": whole} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where (default: %(default)s)")
    parser.add_argument("--tokens", type=int, nargs="+", help="lengths (default: 4k to 16k on the CPU, 128k on a GPU)")
    parser.add_argument("--heads", type=int, help="heads of width 64 (default: 2 on the CPU, 12 on a GPU)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="statistics (default: each)")
    parser.add_argument(
        "--sweep", action="store_true", help="on a GPU: shapes of tiles in place of each statistic alone"
    )
    parser.add_argument("--seconds", type=float, default=35, help="on a GPU: after which nothing more is begun")
    args = parser.parse_args()
    lengths = args.tokens or ([4096, 8192, 16384] if args.device == "cpu" else [131072])
    heads = args.heads or (2 if args.device == "cpu" else 12)
    command = shlex.join(["python", "benchmarks/probes.py", *sys.argv[1:]])
    rows: list[dict] = []
    if args.device == "cuda":
        from probes_gpu import measured

        name = "probes-cuda-sweep" if args.sweep else "probes-cuda"
        for n in lengths:
            for row in measured(n, heads, args.kinds, KINDS, sweep=args.sweep, until=args.seconds):
                rows.append(row)
                write(name, command, rows)  # as they come: whoever ends this too early has what there was
        print(write(name, command, rows))
        return
    for job in track([(pattern, n) for n in lengths for pattern in PATTERNS], description="measuring"):
        rows += alone(measure, *job, heads, args.kinds)
    table = Table("tokens", "pattern", "statistic", "ms", "fused forward, ms", "ratio", "extra MiB", "weights, MiB")
    for row in rows:
        times = f"{1000 * row['seconds']:,.1f}", f"{1000 * row['sdpa_seconds']:,.1f}", f"{row['ratio']:.2f}"
        sizes = (f"{row['mib_of_all']:,.0f}", f"{row['mib_of_weights']:,.0f}") if row["kind"] == "all" else ("", "")
        table.add_row(f"{row['tokens']:,}", row["pattern"], row["kind"], *times, *sizes)
    Console(width=120).print(table)
    print(write(f"probes-{args.device}", command, rows))


if __name__ == "__main__":
    main()
