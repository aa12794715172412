"""Sparse attention on a GPU: our kernels, FlexAttention through our block maps, and dense cuDNN, in one run.

    python benchmarks/window.py                 Window(512) at 32k, 131k and 8k tokens, BigBird, packed texts
    python benchmarks/window.py --seconds 90    long enough for FlexAttention, whose compiling takes most of the time
    python benchmarks/window.py --sweep         first the shapes of the kernels' tiles, to choose from
    python benchmarks/window.py --sweep window texts bigbird

12 heads of 64, bfloat16, batch 1. Milliseconds are medians by the GPU's own clock, of calls that follow one another
and, forwards and backwards, of the same work captured in a CUDA graph, which does not wait for the processor; MiB are
peak memory beyond the inputs. `off` is the norm of FlexAttention's difference from our output, relative to it.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from machine import write
from regard.attention import Block, Causal, Documents, Global, Pattern, Random, Recipe, Window, attend
from regard.attention.backends import block_sparse
from regard.attention.backends.block_sparse import BlockSparseTiles
from regard.attention.kernels.block_sparse import SparseTileShape, SparseTileShapes, block_sparse_attention
from regard.attention.pattern import Positions
from timing import cuda_graph_milliseconds, mib, milliseconds

HEADS, WIDTH = 12, 64
LENGTHS = (32768, 131072, 8192)  # what matters most first
COMPILING = 10  # seconds that FlexAttention takes before its first figure
BIGBIRD = Block(64, Window(2) | Global(1) | Random(3))
KINDS = ["window", "texts", "bigbird"]
Run = Callable[[Tensor, Tensor, Tensor], Tensor]

# own tokens a tile, the other side's, warps, stages; none of these spills or outgrows shared memory
FORWARD = [(128, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 4, 2)]
FORWARD += [(64, 64, 4, 3), (64, 128, 4, 2), (128, 32, 4, 4), (256, 64, 8, 3)]
QUERIES = [(128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3)]
QUERIES += [(128, 128, 8, 2), (128, 32, 4, 3), (64, 128, 4, 2), (256, 64, 8, 2)]
KEYS = [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2)]
KEYS += [(64, 128, 4, 2), (128, 32, 4, 3), (64, 32, 4, 3), (128, 32, 8, 3)]
# with at most so many registers a thread
TIGHT = [
    [(128, 64, 4, 3, 168), (128, 64, 4, 2, 168), (128, 64, 8, 3, 128)],
    [(128, 64, 8, 2, 128), (64, 64, 4, 2, 128), (128, 64, 4, 2, 168)],
    [(64, 64, 4, 2, 168), (64, 64, 4, 3, 168), (128, 64, 8, 2, 128)],
]


def say(*words: Any) -> None:
    print(f"{time.perf_counter() - BEGAN:6.1f} s ", *words, flush=True)


def numbers(n: int, *, batch: int = 1) -> list[Tensor]:
    """q, k, v and the gradient of the output."""
    torch.manual_seed(n)
    shape = batch, HEADS, n, WIDTH
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


# --- the implementations ---


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v)


def dense_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def ours(pattern: Pattern) -> Run:
    return lambda q, k, v: block_sparse.attend(Recipe(pattern=pattern), q, k, v, Positions.of(q, k, None, None))


def flex(pattern: Pattern) -> Run:
    return lambda q, k, v: attend(q, k, v, Recipe(pattern=pattern), backend="flex")


def shaped(pattern: Pattern, shapes: SparseTileShapes) -> Run:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tiles = BlockSparseTiles.of(pattern, q.shape[2], k.shape[2], device=q.device)
        return block_sparse_attention(q, k, v, tiles, scale=WIDTH**-0.5, shapes=shapes)

    return run


# --- measuring ---


def measured(name: str, run: Run, n: int, *, batch: int = 1, base: Run | None = None, **more: Any) -> dict[str, Any]:
    """One implementation at one length; an error is a row too, so that the rest is still measured."""
    q, k, v, upstream = numbers(n, batch=batch)
    row: dict[str, Any] = {"way": name, "tokens": n, "batch": batch, **more}
    try:
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.no_grad():
            out = run(q, k, v)
            if base is not None:
                other = base(q, k, v).float()
                row["off"] = float((out.float() - other).norm() / other.norm())
            row["forward_ms"] = milliseconds(lambda: run(q, k, v))
        both = lambda: torch.autograd.grad(run(*given), given, upstream)  # noqa: E731
        row["both_ms"] = milliseconds(both)
        row["mib"] = mib(both)
        row["cuda_graph_ms"] = cuda_graph_milliseconds(both)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    figures = {name: round(value, 4) for name, value in row.items() if isinstance(value, float)}
    say(name, f"{batch} × {n}", row.get("error") or figures, *more.values())
    return row


# --- the sweep ---


def compiled(triple: tuple[SparseTileShape, SparseTileShape, SparseTileShape], kind: str) -> str | None:
    """In a process of its own, for the cache on disk: 16 cores compile faster than one."""
    try:
        q, k, v, upstream = numbers(512)
        given = [x.requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(shaped(pattern_of(kind, 512), SparseTileShapes(*triple))(*given), given, upstream)
        torch.cuda.synchronize()
    except Exception as error:
        return str(error).splitlines()[0][:120]
    return None


def pattern_of(kind: str, n: int) -> Pattern:
    return {"window": Window(min(512, n // 2)), "texts": texts(n).to("cuda") & Causal(), "bigbird": BIGBIRD}[kind]


def candidates(kind: str) -> tuple[list[SparseTileShape], ...]:
    """Everything for windows; for the others what is likely."""
    found = []
    for some, tight in zip((FORWARD, QUERIES, KEYS), TIGHT, strict=True):
        if kind == "window":
            shapes = [SparseTileShape(*c, parts, bulk=True) for c in some for parts in (1, 3)]
            shapes += [SparseTileShape(*c, parts) for c in some[:5] for parts in (1, 3)]
            shapes += [SparseTileShape(*c[:4], parts, bulk=True, registers=c[4]) for c in tight for parts in (1, 3)]
        else:
            shapes = [SparseTileShape(*c, bulk=True) for c in some if kind == "texts" or max(c[:2]) <= 64]
        found.append(shapes)
    return tuple(found)


def sweep(kind: str, n: int) -> tuple[SparseTileShapes, list[dict[str, Any]]]:
    """The best shape of each kernel, one after the other, the rest as it is."""
    forward, queries, keys = candidates(kind)
    longest = max(map(len, (forward, queries, keys)))
    triples = [tuple(some[i % len(some)] for some in (forward, queries, keys)) for i in range(longest)]
    with ProcessPoolExecutor(min(12, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        for triple, error in zip(triples, pool.map(compiled, triples, [kind] * longest), strict=True):
            if error:
                say("does not run:", *triple, error)
    say(f"{kind}: compiled")
    best, rows, pattern = SparseTileShapes.of(WIDTH, torch.bfloat16), [], pattern_of(kind, n)
    q, k, v, upstream = numbers(n)
    given = [x.requires_grad_() for x in (q, k, v)]
    for name, shapes in zip(("forward", "queries", "keys"), (forward, queries, keys), strict=True):
        found: list[tuple[float, SparseTileShape]] = []
        for shape in shapes:
            tried = replace(best, **{name: shape})
            try:
                if name == "forward":
                    with torch.no_grad():
                        found.append((milliseconds(lambda: shaped(pattern, tried)(q, k, v), seconds=0.04), shape))  # noqa: B023
                else:
                    out = shaped(pattern, tried)(*given)
                    back = lambda: torch.autograd.grad(out, given, upstream, retain_graph=True)  # noqa: B023, E731
                    found.append((milliseconds(back, seconds=0.04), shape))
            except Exception as error:
                say("failed:", name, shape, str(error).splitlines()[0][:120])
        found.sort(key=lambda pair: pair[0])
        if found:
            best = replace(best, **{name: found[0][1]})
        rows += [{"sweep": kind, "kernel": name, "tokens": n, "shape": str(shape), "ms": ms} for ms, shape in found]
        for ms, shape in (*found[:6], *found[-1:]):
            say(f"{kind} {name:8s} {ms:.3f} ms  {shape}")
    say(f"BEST for {kind}: {best}")
    return best, rows


# --- what is compared ---


def texts(n: int) -> Documents:
    """Texts of 32 to 1024 tokens, as many as fill n."""
    generator, lengths = torch.Generator().manual_seed(0), []
    while (left := n - sum(lengths)) > 0:
        lengths.append(min(left, int(torch.randint(32, 1025, (1,), generator=generator))))
    return Documents.from_lengths(lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", nargs="*", choices=KINDS, help="other shapes of tiles too, of windows unless named")
    parser.add_argument("--seconds", type=float, default=25, help="after which nothing more is started (%(default)s)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this compares kernels for a GPU, and there is none")
    command, rows, swept = " ".join(["python benchmarks/window.py", *sys.argv[1:]]), [], []

    def note(name: str, run: Run, n: int, *, needs: float = 0.0, **more: Any) -> None:
        if time.perf_counter() - BEGAN > args.seconds - needs:
            say("no time left for", name, n, more["pattern"])
            return
        rows.append(measured(name, run, n, **more))
        compare(rows)
        write("window", command, rows, heads=HEADS, width=WIDTH, dtype="bfloat16", sweep=swept)

    best: dict[str, SparseTileShapes] = {}
    for kind in () if args.sweep is None else args.sweep or ["window"]:
        best[kind], found = sweep(kind, 32768)
        swept += found
    for n in LENGTHS:
        note("cuDNN, dense", dense, n, pattern="Full()")
        note("regard", ours(Window(512)), n, pattern="Window(512)")
        if "window" in best:
            note("regard, best", shaped(Window(512), best["window"]), n, pattern="Window(512)")
        note("regard", ours(Causal() & Window(512)), n, pattern="Causal() & Window(512)")
        note(
            "regard, wide tiles",
            shaped(Window(512), SparseTileShapes.of(WIDTH, torch.bfloat16)),
            n,
            pattern="Window(512)",
        )
    for n in LENGTHS[:2]:
        note("regard", ours(BIGBIRD), n, pattern="BigBird")
    packed, sentences = texts(32768), int(texts(32768).segment_ids.max()) + 1
    causal = packed.to("cuda") & Causal()
    note("regard, packed", ours(causal), 32768, pattern="packed texts")
    note("cuDNN, padded", dense_causal, 1024, batch=sentences, pattern="padded texts")
    slow: list[tuple[int, str, Pattern]] = [(n, "Window(512)", Window(512)) for n in LENGTHS]
    slow += [(32768, "BigBird", BIGBIRD), (32768, "packed texts", causal)]
    for n, name, pattern in slow:
        note("FlexAttention", flex(pattern), n, needs=COMPILING, base=ours(pattern), pattern=name)
    for row in rows:
        if "times_dense" in row:
            graph = (
                f", in a CUDA graph {row['times_dense_cuda_graph']:.1f} ×" if "times_dense_cuda_graph" in row else ""
            )
            say(
                f"{row['way']:18s} {row['pattern']:24s} {row['tokens']:7d}  forward {row['forward_ms']:8.3f} ms "
                f"({row['times_dense_forward']:.1f} × dense)  both {row['both_ms']:8.3f} ms "
                f"({row['times_dense']:.1f} ×{graph})  {row['mib']:.0f} MiB"
            )
    say(write("window", command, rows, heads=HEADS, width=WIDTH, dtype="bfloat16", sweep=swept))


def compare(rows: list[dict[str, Any]]) -> None:
    """How many times as long dense attention takes."""
    for row in rows:
        base = [x for x in rows if x["way"] == "cuDNN, dense" and x["tokens"] == row["tokens"] and "both_ms" in x]
        if "both_ms" in row and base:
            row["times_dense_forward"] = base[0]["forward_ms"] / row["forward_ms"]
            row["times_dense"] = base[0]["both_ms"] / row["both_ms"]
            if row.get("cuda_graph_ms") and base[0].get("cuda_graph_ms"):
                row["times_dense_cuda_graph"] = base[0]["cuda_graph_ms"] / row["cuda_graph_ms"]


BEGAN = time.perf_counter()

if __name__ == "__main__":
    main()
