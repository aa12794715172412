"""Learned relative positions, forwards and backwards: ours, cuDNN without any, and torch with the bias as a matrix.

    python benchmarks/relative_bias.py            whatever machine this is
    python benchmarks/relative_bias.py --sweep    on a GPU: also the shapes of the kernels' tiles, to choose from

`ms` is the time of one call among several in a row, as the layers of a model follow one another; `cuda_graph_ms` that
of the same captured in a CUDA graph, where no kernel waits for the processor; `latency_ms` the least that a caller
waits for one call which finds the GPU idle. One process and one run; errors of the output and of each gradient are
relative, against float64, at a smaller size.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import timing
from kernel_profile import profile_kernels
from machine import write
from regard.attention import Causal, Clipped, Full, LogBuckets, Recipe, RelativeBias, RelativeVectors, attend
from regard.attention.backends import relative
from regard.attention.pattern import Positions

HEADS, HEAD = 12, 64
BEGAN = time.perf_counter()
LENGTH = {"cuda": 8192, "cpu": 512}
SECONDS = 55  # when no further shape is tried
MATRIX = 12  # seconds after which the bias as a matrix, which takes some, is not started
SHAPES = {  # queries and keys a tile, warps, stages, width of the relation's tiles, registers
    "forward": [
        *((128, 64, 4, 3, 32, None), (128, 64, 4, 3, 16, None), (128, 64, 8, 3, 32, 128), (128, 128, 8, 3, 32, None)),
        *((64, 64, 4, 3, 16, 168), (128, 64, 4, 2, 32, None), (128, 32, 4, 4, 16, None), (64, 128, 4, 2, 32, None)),
        *((128, 64, 4, 4, 16, None), (128, 64, 8, 2, 16, 128), (128, 128, 8, 2, 16, None)),
    ],
    "queries": [
        *((64, 64, 4, 3, 32, 168), (64, 64, 4, 3, 16, 168), (128, 64, 8, 3, 32, 128), (128, 64, 8, 2, 16, 128)),
        *((64, 64, 4, 2, 32, 168), (128, 32, 8, 4, 32, 128), (64, 32, 4, 4, 16, 128), (128, 64, 8, 3, 32, None)),
        *((64, 128, 4, 2, 16, None), (128, 128, 8, 2, 32, None), (64, 64, 4, 4, 16, 128)),
    ],
    "keys": [
        *((64, 64, 4, 3, 32, 168), (64, 64, 4, 3, 16, 168), (64, 128, 8, 3, 32, None), (64, 128, 8, 2, 16, None)),
        *((64, 64, 4, 2, 16, 168), (32, 128, 8, 3, 32, 128), (32, 64, 4, 3, 16, 128), (32, 128, 4, 3, 16, None)),
        *((64, 64, 4, 4, 16, 128), (128, 64, 4, 2, 16, None), (128, 128, 8, 2, 16, None)),
    ],
}


# --- the implementations ---


def say(*words: Any) -> None:
    print(f"{time.perf_counter() - BEGAN:5.1f} s ", *words, flush=True)


def schemes(device: str) -> dict[str, RelativeBias | RelativeVectors]:
    return {
        "T5": RelativeBias(LogBuckets(), heads=HEADS).to(device),
        "Shaw": RelativeVectors(Clipped(16), head=HEAD).to(device),
    }


def numbers(length: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, length, HEAD, device=device).to(dtype).requires_grad_() for _ in range(3)]


def ours(recipe: Recipe) -> Callable[..., Tensor]:
    return lambda q, k, v: relative.attend(recipe, q, k, v, Positions.of(q, k, 0, None))


def defined(recipe: Recipe) -> Callable[..., Tensor]:
    return lambda q, k, v: attend(q, k, v, recipe, backend="reference")


def plain(backend: SDPBackend) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v)

    return run


def materialised(scheme: RelativeBias) -> Callable[..., Tensor]:
    """The bias of every pair as a matrix, its gradient by torch's index."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cells = Positions.of(q, k, 0, None).grid(*q.shape[:2])
        return scaled_dot_product_attention(q, k, v, attn_mask=scheme.bias(*cells.all()).to(q.dtype))

    return run


def milliseconds(work: Callable[[], Any]) -> float:
    return timing.milliseconds(work) if torch.cuda.is_available() else timing.cpu_milliseconds(work, warm=3)


# --- measuring ---


def measure(
    name: str, run: Callable[..., Tensor], given: list[Tensor], learned: Sequence[Tensor], *, few: bool = False
) -> dict:
    """Of what takes seconds, few calls are enough."""
    upstream = torch.randn_like(given[0])

    def once() -> None:
        torch.autograd.grad(run(*given), (*given, *learned), upstream)

    def forward() -> None:
        with torch.no_grad():
            run(*given)

    row: dict[str, Any] = {"way": name}
    try:
        if given[0].is_cuda:
            row["mib"] = timing.mib(once)
        if few:
            row |= {"forward_ms": timing.latency(forward, 1), "ms": timing.latency(once, 1)}
        else:
            row |= {"forward_ms": milliseconds(forward), "ms": milliseconds(once)}
        if given[0].is_cuda and not few:
            row |= {"latency_ms": timing.latency(once), "cuda_graph_ms": timing.cuda_graph_milliseconds(once)}
    except Exception as error:  # one that fails must not hide the others
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    say(*(f"{key} {value:.2f}" if isinstance(value, float) else value for key, value in row.items()))
    return row


# --- shapes of tiles ---


def stage(kind: str, name: str, shape: tuple, length: int, given: list[Tensor]) -> Callable[[], Any]:
    """One kernel alone, with this shape."""
    from regard.attention.kernels.relative import (
        RelativeLaunch,
        RelativePlan,
        RelativeTileShape,
        RelativeTileShapes,
    )

    q, k, v = (x.detach() for x in given)
    vectors, reach = name == "Shaw", relative.constant_from(schemes("cpu")[name].relation)
    assert reach is not None
    shapes = replace(RelativeTileShapes.of(q, vectors=vectors), **{kind: RelativeTileShape(*shape)})
    plan = RelativePlan(start=0, causal=False, lengths=None, scale=HEAD**-0.5, reach=reach, shapes=shapes)
    launch = RelativeLaunch(plan, q, k, v, vectors=vectors)
    rows = (1, HEADS, length, 2 * reach + 1) if vectors else (HEADS, 2 * reach + 1)
    bias = torch.randn(rows, device=q.device)
    if kind == "forward":
        return lambda: launch.forward(bias)
    totals, deltas = (torch.randn(1, HEADS, 3, length, device=q.device) + shift for shift in (20, 0))
    back = launch.backward_queries if kind == "queries" else launch.backward_keys
    return lambda: back(v, bias, bias, totals, deltas)


def compile_one(task: tuple) -> str | None:
    """In a process of its own, for the others to find in Triton's cache; the reason if it does not compile.

    A task is a kernel, a scheme and a shape, or a scheme and whether it is causal.
    """
    given = numbers(256, "cuda", torch.bfloat16)
    try:
        if len(task) == 3:
            stage(*task, 256, given)()
        else:
            scheme = schemes("cuda")[task[0]]
            out = ours(Recipe(position=scheme, pattern=Causal() if task[1] else Full()))(*given)
            torch.autograd.grad(out, (*given, *scheme.parameters()), torch.ones_like(out))
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def compile_all(tasks: list[tuple]) -> dict[tuple, str | None]:
    failed: dict[tuple, str | None] = dict.fromkeys(tasks)
    try:
        with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
            failed = dict(zip(tasks, pool.map(compile_one, tasks), strict=True))
    except Exception as error:  # then each is compiled when it is needed
        say(f"{type(error).__name__}: {error}".splitlines()[0])
    say(f"compiled {len(tasks)} kernels")
    for task, why in failed.items():
        if why:
            say(*task, why)
    return failed


def sweep(given: list[Tensor], failed: dict[tuple, str | None]) -> tuple[list[dict], dict[str, dict[str, tuple]]]:
    """Milliseconds of each kernel in each shape, and the best of them."""
    rows: list[dict] = []
    tasks = [task for task, why in failed.items() if len(task) == 3 and not why]
    for task in tasks:
        kind, name, shape = task
        if time.perf_counter() - BEGAN > SECONDS:
            say("no time left for", *task)
            break
        try:
            rows.append({"scheme": name, "kernel": kind, "shape": shape})
            rows[-1]["ms"] = timing.milliseconds(stage(kind, name, shape, given[0].shape[2], given), 0.04)
            say(name, kind, shape, f"{rows[-1]['ms']:.3f} ms")
        except Exception as error:
            rows.pop()
            say(name, kind, shape, f"{type(error).__name__}: {error}".splitlines()[0])
    best: dict[str, dict[str, tuple]] = {}
    for name in ("T5", "Shaw"):
        best[name] = {}
        for kind in SHAPES:
            if mine := [row for row in rows if (row["scheme"], row["kernel"]) == (name, kind)]:
                best[name][kind] = min(mine, key=lambda row: row["ms"])["shape"]
        say("best", name, best[name])
    return rows, best


def with_shapes(recipe: Recipe, best: dict[str, tuple]) -> Callable[..., Tensor]:
    from regard.attention.kernels import relative as relative_launch

    usual = relative_launch.RelativeTileShapes.of
    chosen = {kind: relative_launch.RelativeTileShape(*shape) for kind, shape in best.items()}

    def other(q: Tensor, *, vectors: bool) -> relative_launch.RelativeTileShapes:
        return replace(usual(q, vectors=vectors), **chosen)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        relative_launch.RelativeTileShapes.of = staticmethod(other)  # type: ignore[method-assign]
        try:
            return ours(recipe)(q, k, v)
        finally:
            relative_launch.RelativeTileShapes.of = staticmethod(usual)  # type: ignore[method-assign]

    return run


# --- errors ---


def errors(name: str, device: str, length: int = 1024) -> dict:
    """Of ours and of the definition in bfloat16, against the definition in float64."""
    given, scheme = numbers(length, device, torch.bfloat16), schemes(device)[name].bfloat16()
    recipe, upstream, found = Recipe(position=scheme), torch.randn_like(given[0]), {}
    for way, run in (("ours", ours(recipe)), ("plain", defined(recipe))):
        out = run(*given)
        found[way] = [out, *torch.autograd.grad(out, (*given, *scheme.parameters()), upstream)]
    scheme.double()
    exact = [x.detach().double().requires_grad_() for x in given]
    out = defined(recipe)(*exact)
    truth = [out, *torch.autograd.grad(out, (*exact, *scheme.parameters()), upstream.double())]
    row = {"scheme": name, "length": length} | {
        way: [float((x.double() - y).norm() / y.norm()) for x, y in zip(found[way], truth, strict=True)]
        for way in found
    }
    say(f"errors of {name}: " + "; ".join(f"{way} {' '.join(f'{x:.1e}' for x in row[way])}" for way in found))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="also other shapes of tiles (GPU)")
    sweeping = parser.parse_args().sweep
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    given = numbers(LENGTH[device], device, torch.bfloat16 if device == "cuda" else torch.float32)
    rows: list[dict] = []
    wrong: list[dict] = []
    more: dict[str, Any] = {}
    sizes = {"heads": HEADS, "head": HEAD, "length": LENGTH[device], "dtype": str(given[0].dtype)}
    command = "python benchmarks/relative_bias.py" + " --sweep" * sweeping

    def note(*new: dict) -> str:
        """Written as rows come: whoever ends this too early has what there was."""
        rows.extend(new)
        name = "relative_bias" if device == "cuda" else "relative_bias_cpu"
        return str(write(name, command, rows, **sizes, errors=wrong, **more))

    failed: dict[tuple, str | None] = {}
    if device == "cuda":
        tasks: list[tuple] = [(name, causal) for name in ("T5", "Shaw") for causal in (False, True)]
        if sweeping:
            tasks += [(kind, name, shape) for name in ("T5", "Shaw") for kind in SHAPES for shape in SHAPES[kind]]
        failed = compile_all(tasks)
    for pattern in (Full(), Causal()):
        for name, scheme in schemes(device).items():
            recipe, learned = Recipe(position=scheme, pattern=pattern), list(scheme.parameters())
            way = name if pattern == Full() else f"{name}, causal"
            note(measure(f"ours, {way}", ours(recipe), given, learned))
            if device == "cpu" and pattern == Full():
                note(measure(f"reference, {name}", defined(recipe), given, learned))
        if device == "cuda" and pattern == Full():
            note(measure("cuDNN, no bias", plain(SDPBackend.CUDNN_ATTENTION), given, []))
            note(measure("flash, no bias", plain(SDPBackend.FLASH_ATTENTION), given, []))
    if device == "cuda":
        for name in ("T5", "Shaw"):
            try:
                wrong.append(errors(name, device))
                note()
            except Exception as error:
                say("errors", name, f"{type(error).__name__}: {error}".splitlines()[0])
        if sweeping:
            tried, best = sweep(given, failed)
            more |= {"sweep": tried, "best": best}
            for name, scheme in schemes(device).items():
                run = with_shapes(Recipe(position=scheme), best[name])
                note(measure(f"ours, {name}, best shapes", run, given, list(scheme.parameters())))
        kernels_of(given)
        t5 = schemes(device)["T5"]
        assert isinstance(t5, RelativeBias)
        if sweeping or time.perf_counter() - BEGAN < MATRIX:
            note(measure("SDPA, T5 as a matrix", materialised(t5), given, [t5.weight], few=True))
    table = Table("way", "forward ms", "forward and backward ms", "in a CUDA graph", "latency", "MiB beyond the inputs")
    for row in rows:
        figures = (row.get(name) for name in ("forward_ms", "ms", "cuda_graph_ms", "latency_ms", "mib"))
        table.add_row(row["way"], *("" if x is None else f"{x:.2f}" for x in figures))
    Console(width=110).print(table)
    print(note())


def kernels_of(given: list[Tensor]) -> None:
    """What the GPU does in one call, kernel by kernel."""
    for name, scheme in schemes("cuda").items():
        run, learned = ours(Recipe(position=scheme)), list(scheme.parameters())
        upstream = torch.randn_like(given[0])
        say(f"the kernels of {name}")
        try:
            once = lambda: torch.autograd.grad(run(*given), (*given, *learned), upstream)  # noqa: B023, E731
            once()
            profile_kernels(once, given[0].device, say, most=16)
        except Exception as error:  # the profiler may not be allowed
            say(f"{type(error).__name__}: {error}".splitlines()[0])


if __name__ == "__main__":
    main()
