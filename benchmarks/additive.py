"""Bahdanau's attention, forwards and backwards: time and memory of the fused operation, eager torch and torch.compile.

    python benchmarks/additive.py                 whatever machine this is
    python benchmarks/additive.py --sweep         on a GPU: first find the kernels' best shapes, then also measure those
    python benchmarks/additive.py --sweep --quick only that, where its time goes, and nothing is written

On a GPU `ms` is the median between CUDA events, of calls in a row, `latency_ms` the least that a caller waits for one
call, and `cuda_graph_ms` that of a CUDA graph. On the CPU each implementation runs in a process of its own. All on the
same numbers; the last column says how far the norms of output and gradients are from eager torch's.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from machine import alone, forget_peak, peak_mib, write
from regard.attention.backends import additive as backends_additive
from regard.attention.backends.additive import QueryVisibility, additive_attention
from regard.attention.pattern import Causal, Full
from timing import cuda_graph_milliseconds, latency, mib, milliseconds

SIZES = {"cuda": (8, 1024, 1024, 512), "cpu": (2, 256, 251, 128)}  # sentences, queries, keys, width
# down, across, share, warps, registers; the first is the default
SCORINGS = [(16, 2, 4, 4, 128), (16, 2, 4, 8, 128), (8, 4, 4, 8, 128), (8, 2, 4, 8, 96)]
# pairs, widths, warps, chunk, alone, registers, warps that fill the machine, ahead
GRADIENTS = [(8, 2, 16, 16, True, 128, 2048, True), (16, 1, 8, 8, True, 128, 2048, True)]
GRADIENTS += [(16, 1, 8, 8, True, 128, 2048, False), (16, 1, 8, 8, False, 128, 2048, True)]
GRADIENTS += [(16, 1, 8, 16, True, 128, 2048, True), (8, 2, 8, 8, True, 128, 2048, True)]
GRADIENTS += [(8, 2, 8, 8, True, 128, 2048, False), (8, 2, 4, 16, True, 168, 1584, True)]
CELLS = [2**21, 3 * 2**20, 2**22, 2**23]
CALLS = 5  # to be profiled


def numbers(device: str, dtype: torch.dtype) -> list[Tensor]:
    """a, b, v, values: of the size a trained model's are, so that tanh is neither straight nor flat."""
    sentences, queries, keys, width = SIZES[device]
    torch.manual_seed(0)
    shapes = [(sentences, 1, queries, width), (sentences, 1, keys, width), (width,), (sentences, 1, keys, width)]
    made = [torch.randn(shape) for shape in shapes]
    return [x.to(device, dtype).requires_grad_() for x in made]


def eager(a: Tensor, b: Tensor, v: Tensor, values: Tensor) -> Tensor:
    return (torch.tanh(a[:, :, :, None] + b[:, :, None]) @ v).softmax(-1) @ values


def fused(a: Tensor, b: Tensor, v: Tensor, values: Tensor, *, causal: bool = False) -> Tensor:
    return additive_attention(a, b, v, values, QueryVisibility.of(Causal() if causal else Full(), a, b))


def shaped(scoring: tuple, gradient: tuple, *given: Tensor) -> Tensor:
    a, b, v, values = given
    engine = partial(kernels().TritonAdditive.of, shape=shape_of(scoring, gradient))
    return additive_attention(a, b, v, values, pairs=engine)


def shape_of(scoring: tuple, gradient: tuple) -> Any:
    return kernels().AdditiveTileShapes(kernels().ScoreTileShape(*scoring), kernels().GradientTileShape(*gradient))


def kernels() -> Any:
    """Only on a GPU is Triton needed."""
    from regard.attention.kernels import additive

    return additive


def implementations(best: tuple[tuple, tuple] | None) -> dict[str, Callable[..., Tensor]]:
    """By name, because a process of its own is passed the name; torch.compile last, since it compiles for long."""
    found: dict[str, Callable[..., Tensor]] = {"regard": fused}
    if best is not None:
        found["regard, best shapes"] = partial(shaped, *best)
    found |= {
        "eager": eager,
        "regard, causal": partial(fused, causal=True),
        "regard, nothing saved for the backward pass": fused,
    }
    if best is not None:
        found |= {f"regard, backward in bands of {cells}": partial(shaped, *best) for cells in CELLS}
    return found | {"compiled": torch.compile(eager)}


def measure(name: str, device: str, dtype: torch.dtype, best: tuple[tuple, tuple] | None = None) -> dict[str, Any]:
    """Milliseconds, and what is held at most beyond the inputs."""
    before = {name: vars(backends_additive)[name] for name in ("CELLS_KEPT", "CELLS_BACK")}
    if "nothing saved" in name:
        backends_additive.CELLS_KEPT = 0
    if "bands" in name:
        backends_additive.CELLS_BACK = int(name.split()[-1])
    try:
        row = timed(implementations(best)[name], numbers(device, dtype), device)
    finally:
        for changed, value in before.items():
            setattr(backends_additive, changed, value)
    return {"way": name, "device": device, "dtype": str(dtype).removeprefix("torch.")} | row


def timed(run: Callable[..., Tensor], given: list[Tensor], device: str) -> dict[str, Any]:
    if device == "cpu":
        torch.set_num_threads(1)
    upstream = torch.randn_like(given[3][:, :, :1]).expand(-1, -1, given[0].shape[2], -1).contiguous()

    def once(tokens: int | None = None) -> list[Tensor]:
        out = run(*(x[:, :, :tokens] if x.dim() == 4 else x for x in given))
        return [out, *torch.autograd.grad(out, given, upstream[:, :, :tokens])]

    if device == "cuda":
        norms = norms_of(once())
        return {
            "ms": milliseconds(once),
            "mib": mib(once),
            "norms": norms,
            "latency_ms": latency(once),
            "cuda_graph_ms": cuda_graph_milliseconds(once),
        }
    once(tokens=2)  # so that torch's libraries are loaded
    forget_peak()
    before = peak_mib()  # before the first call: what a process once held it does not give back
    norms = norms_of(once())
    rounds = []
    for _ in range(3):
        began = time.perf_counter()
        once()
        rounds.append(1e3 * (time.perf_counter() - began))
    return {"ms": min(rounds), "mib": peak_mib() - before, "norms": norms}


def norms_of(results: list[Tensor]) -> list[float]:
    return [float(x.detach().double().norm()) for x in results]


def sweep(dtype: torch.dtype) -> tuple[tuple[tuple, tuple], list[dict[str, Any]]]:
    """The best shapes of `scores_forward` and `scores_backward`, each measured with the little that belongs to it."""
    a, b, v, _ = (x.detach() for x in numbers("cuda", dtype))
    rows, weights = slice(0, a.shape[2]), v[None]
    bands = [
        (rows, torch.randn(*a.shape[:2], rows.stop - rows.start, b.shape[2], device=a.device), None)
        for rows in backends_additive.bands(a, b, backends_additive.CELLS_BACK)
    ]
    made = {
        scoring: kernels().TritonAdditive.of(a, b, weights, shape=shape_of(scoring, GRADIENTS[0]))
        for scoring in SCORINGS
    }
    made |= {
        gradient: kernels().TritonAdditive.of(a, b, weights, shape=shape_of(SCORINGS[0], gradient))
        for gradient in GRADIENTS
    }

    def work(shape: tuple) -> tuple[Tensor, ...]:
        return (made[shape].scores(rows, None),) if shape in SCORINGS else made[shape].gradients(bands)

    def flat(shape: tuple) -> Tensor:
        return torch.cat([x.flatten().float() for x in work(shape)])

    def attempt(task: Callable[[tuple], Any], shape: tuple) -> Any:
        try:
            return task(shape)
        except Exception as error:  # one that does not compile must not end the others
            print(f"{shape}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
            return None

    for first in (SCORINGS[0], GRADIENTS[0]):
        attempt(work, first)
    began = time.perf_counter()
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(partial(attempt, lambda shape: flat(shape).norm()), [*SCORINGS, *GRADIENTS]))
    print(f"{len(made)} shapes compiled in {time.perf_counter() - began:.0f} s", flush=True)
    found, best = [], []
    for name, shapes in (("scores_forward", SCORINGS), ("scores_backward", GRADIENTS)):
        right, times = attempt(flat, shapes[0]), {shapes[0]: torch.inf}
        for shape in shapes:
            if right is None:
                break
            got = attempt(flat, shape)
            ms = None if got is None else attempt(lambda shape: milliseconds(lambda: work(shape), 0.04), shape)
            if got is None or ms is None:
                continue
            off = float((got - right).norm() / right.norm())
            times[shape] = ms if off < 1e-3 else torch.inf  # gradients are rounded to the dtype of a and b
            found.append({"way": name, "shape": list(shape), "ms": ms, "off": off})
            print(f"{name} {shape}: {ms:.3f} ms, off the first by {off:.0e}", flush=True)
        best.append(min(times, key=lambda shape: times[shape]))
        print(f"best {name}: {best[-1]}", flush=True)
    return (best[0], best[1]), found


def quick(best: tuple[tuple, tuple] | None) -> None:
    """The fused operation alone, as it is and in the best shapes, and what each of its kernels takes."""
    for name in ["regard"] + ["regard, best shapes"] * (best is not None):
        row = measure(name, "cuda", torch.bfloat16, best)
        waits = f"{row['latency_ms']:.3f} for a caller, {row['cuda_graph_ms'] or torch.nan:.3f} in a CUDA graph"
        print(f"{name}: {row['ms']:.3f} ms, {waits}, {row['mib']:.1f} MiB", flush=True)
        given = numbers("cuda", torch.bfloat16)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for _ in range(CALLS):
                torch.autograd.grad(implementations(best)[name](*given), given, given[3].detach())
            torch.cuda.synchronize()
        taken = sorted(seen.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
        for kernel in taken[:18]:
            each = kernel.self_device_time_total / CALLS
            print(f"  {each:8.1f} µs in {kernel.count / CALLS:.0f} of {kernel.key[:80]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="first find the best shapes of the kernels (GPU)")
    parser.add_argument("--quick", action="store_true", help="only the fused operation, nothing written (GPU)")
    args = parser.parse_args()
    if args.quick:
        quick(sweep(torch.bfloat16)[0] if args.sweep else None)
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = dict(zip(("sentences", "queries", "keys", "width"), SIZES[device], strict=True))
    print(f"additive attention, forwards and backwards, {sizes}", flush=True)
    rows, found, best = [], [], None
    command = "python benchmarks/additive.py" + " --sweep" * args.sweep
    keep = partial(write, f"additive-{device}", command, rows, sweep=found, **sizes)
    if args.sweep and device == "cuda":
        best, shapes = sweep(torch.bfloat16)
        found += shapes
        keep()
    for name, dtype in planned(device, list(implementations(best))):
        try:
            row = alone(measure, name, device, dtype) if device == "cpu" else measure(name, device, dtype, best)
        except Exception as error:  # what was measured before is kept
            print(f"{name}, {dtype}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
            continue
        rows.append(row | ({"shapes": [list(x) for x in best]} if best and "best" in name else {}))
        others = {"for a caller": row.get("latency_ms"), "in a CUDA graph": row.get("cuda_graph_ms")}
        waits = "".join(f", {ms:.2f} {how}" for how, ms in others.items() if ms is not None)
        print(f"{name}, {row['dtype']}: {row['ms']:.2f} ms{waits}, {row['mib']:.0f} MiB", flush=True)
        compare(rows)
        keep()
    show(rows)
    print(keep())


def planned(device: str, names: list[str]) -> list[tuple[str, torch.dtype]]:
    """torch.compile last, since it compiles for long."""
    if device == "cpu":
        return [(name, torch.float32) for name in names if name != "compiled"]
    first = [(name, torch.bfloat16) for name in names if name != "compiled"]
    return [*first, *((name, torch.float32) for name in ("regard", "eager")), ("compiled", torch.bfloat16)]


def compare(rows: list[dict[str, Any]]) -> None:
    """Against eager torch, once that is known."""
    for row in rows:
        for base in (x for x in rows if x["way"] == "eager" and x["dtype"] == row["dtype"]):
            row["speed"] = base["ms"] / row["ms"]
            row["off"] = max(abs(x - y) / y for x, y in zip(row["norms"], base["norms"], strict=True))


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("way", "dtype", "ms", "times eager's speed", "MiB beyond the inputs", "off eager's norms")
    for row in rows:
        speed = f"{row['speed']:.1f}" if "speed" in row else ""
        off = "(sees less)" if "causal" in row["way"] else f"{row['off']:.0e}" if "off" in row else ""
        table.add_row(row["way"], row["dtype"], f"{row['ms']:.2f}", speed, f"{row['mib']:.0f}", off)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
