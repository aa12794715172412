"""Block maps: time and memory up to a million tokens, beside FlexAttention's create_block_mask where it fits."""

import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from machine import alone, forget_peak, peak_mib, write

MILLION, BLOCK = 2**20, 128
PATTERNS = [
    "Causal()",
    "Window(512)",
    "Causal() & Window(512)",
    "Strided(3) | Strided(5)",
    "Causal() & (Window(128) | Strided(128))",
    "Window(512) | Global(1)",
    "~(Window(512) | Global(64)) & Causal()",
    "Random(3, seed=0)",
    "Window(64) | Global(1) | Random(3, seed=0)",
    "Causal() & ~Random(3, seed=0)",
    "Block(64, Window(2) | Global(1) | Random(3, seed=0))",
]
FLEX_LENGTHS = [4096, 8192, 16384]


def ours(text: str, n: int) -> dict:
    from regard.attention import parse_part

    pattern = parse_part(text)
    forget_peak()
    before, began = peak_mib(), time.perf_counter()
    counts = pattern.blocks(n, block=BLOCK).counts()
    return {"seconds": time.perf_counter() - began, "mib": peak_mib() - before, **counts}


def flex(text: str, n: int) -> dict:
    from torch.nn.attention.flex_attention import create_block_mask

    from regard.attention import parse_part

    pattern = parse_part(text)
    forget_peak()
    before, began = peak_mib(), time.perf_counter()
    create_block_mask(lambda b, h, i, j: pattern.sees(b, h, i, j), 1, 1, n, n, device="cpu", BLOCK_SIZE=BLOCK)
    return {"seconds": time.perf_counter() - began, "mib": peak_mib() - before}


def main() -> None:
    jobs = [("ours", ours, text, MILLION) for text in PATTERNS]
    jobs += [(who, make, PATTERNS[2], n) for n in FLEX_LENGTHS for who, make in (("flex", flex), ("ours", ours))]
    rows = [
        {"who": who, "pattern": text, "tokens": n, **alone(make, text, n)}
        for who, make, text, n in track(jobs, description="mapping")
    ]
    table = Table("who", "pattern", "tokens", "seconds", "MiB", "empty", "mixed", "full")
    for row in rows:
        counts = [f"{row[kind]:,}" if kind in row else "" for kind in ("empty", "mixed", "full")]
        numbers = f"{row['tokens']:,}", f"{row['seconds']:.2f}", f"{row['mib']:.0f}"
        table.add_row(row["who"], row["pattern"], *numbers, *counts)
    Console(width=150).print(table)
    million = [row for row in rows if row["tokens"] == MILLION]
    slowest, largest = max(row["seconds"] for row in million), max(row["mib"] for row in million)
    print(f"a million tokens: at most {slowest:.1f} s and {largest:.0f} MiB")
    print(write("block_maps", "python benchmarks/block_maps.py", rows, block=BLOCK))


if __name__ == "__main__":
    main()
