"""Parts of newer papers against plain causal attention: forward and backward pass on a GPU, in one run.

    python benchmarks/family_parts.py                                      sinks, soft cap, QK-norm, rotary, ALiBi
    python benchmarks/family_parts.py --length 32768 --parts ALiBi         some of them, for longer texts
    python benchmarks/family_parts.py --length 131072 --parts TopBlocks

Each row names the backend that `explain` chooses. `ms` is the time of one call among several in a row, as the layers of
a model follow one another; `cuda_graph_ms` that of the same captured in a CUDA graph, where no kernel waits for the
processor. Plain causal attention is measured first and last: the two differ by the noise of the run.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import timing
from machine import write
from regard.attention import (
    Alibi,
    Causal,
    LayerOptions,
    MultiHeadAttention,
    Recipe,
    Rotary,
    SinkSoftmax,
    SoftCap,
    TopBlocks,
    attend,
    explain,
)

HEADS, HEAD = 12, 64
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def recipes() -> dict[str, Recipe]:
    plain = Recipe(pattern=Causal())
    return {
        "plain causal": plain,
        "sinks": Recipe(pattern=Causal(), normaliser=SinkSoftmax(HEADS).cuda()),
        "soft cap": Recipe(pattern=Causal(), score=SoftCap(50.0)),
        "QK-norm": plain,
        "rotary": Recipe(pattern=Causal(), position=Rotary(pairs="halves")),
        "partial rotary": Recipe(pattern=Causal(), position=Rotary(pairs="halves", fraction=0.25)),
        "ALiBi": Recipe(pattern=Causal(), position=Alibi(HEADS)),
        "TopBlocks": Recipe(pattern=TopBlocks(16, 64)),
        "plain causal, again": plain,
    }


def attention(name: str, recipe: Recipe) -> tuple[Attention, list[Tensor]]:
    """The call, and the weights that learn besides q, k and v."""
    learned: list[Tensor] = list(recipe.learned().parameters())
    if name != "QK-norm":
        return lambda q, k, v: attend(q, k, v, recipe), learned
    layer = MultiHeadAttention(HEADS * HEAD, heads=HEADS, options=LayerOptions(head_norm=nn.RMSNorm)).to(
        "cuda", torch.bfloat16
    )
    norms: list[Tensor] = [weight for name, weight in layer.named_parameters() if "norm" in name]
    return lambda q, k, v: attend(layer.norm_queries(q), layer.norm_keys(k), v, recipe), norms


def measure(name: str, recipe: Recipe, given: list[Tensor], upstream: Tensor) -> dict[str, Any]:
    run, learned = attention(name, recipe)

    def once() -> None:
        torch.autograd.grad(run(*given), (*given, *learned), upstream)

    row: dict[str, Any] = {"part": name, "backend": explain(recipe, given[0]).backend}
    try:
        row |= {"ms": timing.milliseconds(once), "cuda_graph_ms": timing.cuda_graph_milliseconds(once)}
    except Exception as error:  # one that fails must not hide the others
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192, help="tokens")
    parser.add_argument("--parts", nargs="*", help="some of them; default: all")
    options = parser.parse_args()
    length, parts = options.length, options.parts
    torch.manual_seed(0)
    given = [torch.randn(1, HEADS, length, HEAD, device="cuda").bfloat16().requires_grad_() for _ in range(3)]
    upstream = torch.randn_like(given[0])
    chosen = {name: recipe for name, recipe in recipes().items() if not parts or name in parts or "plain" in name}
    rows = [measure(name, recipe, given, upstream) for name, recipe in chosen.items()]
    table = Table("part", "backend", "ms", "in a CUDA graph", "times plain", "times plain in a graph")
    for row in rows:
        for name in ("ms", "cuda_graph_ms"):
            row[f"times_plain_{name}"] = row[name] / rows[0][name] if row.get(name) and rows[0].get(name) else None
        figures = (row.get(name) for name in ("ms", "cuda_graph_ms", "times_plain_ms", "times_plain_cuda_graph_ms"))
        table.add_row(row["part"], row["backend"], *("" if x is None else f"{x:.3f}" for x in figures))
    Console(width=110).print(table)
    command = f"python benchmarks/family_parts.py --length {length}" + (f" --parts {' '.join(parts)}" if parts else "")
    print(write(f"family-parts-{length}", command, rows, heads=HEADS, head=HEAD, length=length, dtype="bfloat16"))


if __name__ == "__main__":
    main()
