"""ReLU and hard attention, forwards and backwards: time and memory without n × n, beside eager torch and torch.compile.

    python benchmarks/hard_and_relu.py                 whatever machine this is
    python benchmarks/hard_and_relu.py --sweep         on a GPU: the shapes of the kernels' tiles, to choose from

Hard attention draws a key for each query; the gradient of its log p goes to q and k, that of its output to v. "off" is
how far output and gradients are from eager torch's by their norms or, since draws differ, log p from that of the same
keys in float64. Softmax by torch's fused kernel is a yardstick, not a peer: it gives something else. On a GPU
`cuda_graph_ms` is the time of the same work captured in a CUDA graph, whose kernels do not wait for the processor.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import timing
from machine import alone, forget_peak, peak_mib, write
from regard.attention import Causal, Full, Pattern, Recipe, ReLU, Sampled, attend, steps
from regard.attention.backends import elementwise
from regard.attention.backends.hard import hard_attention
from regard.attention.backends.tiles import Interval
from regard.attention.pattern import Positions

SIZES = {"cuda": (12, 64, 4096, 32_768), "cpu": (2, 32, 1024, 4096)}  # heads, width, tokens that fit eager, and not
SWEPT, WARM_TOKENS = 8192, 512
WORKERS = 14
AWHILE = 0.1  # seconds that each is timed on a GPU
# tokens a program owns, tokens a step, warps, steps in flight
SHAPES = {
    "relu out": [(128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 3), (128, 64, 8, 4)],
    "relu dq": [(128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2), (64, 128, 4, 2)],
    "relu dkv": [(128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (128, 32, 8, 3)],
    "hard choose": [(64, 128, 4, 3), (128, 128, 8, 3), (64, 64, 4, 3), (128, 64, 8, 3)],
    "hard dq": [(128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 3), (64, 128, 4, 3)],
    "hard dk": [(128, 64, 8, 3), (64, 64, 4, 3), (64, 128, 8, 3), (128, 32, 8, 3)],
}

Run = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


# --- the implementations ---


def relu_eager(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return (attend(q, k, v, Recipe(normaliser=ReLU()), backend="reference"),)


def relu_plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return ((q * q.shape[-1] ** -0.5 @ k.mT).relu() @ v,)


def relu_ours(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern = Full()) -> tuple[Tensor, ...]:
    recipe = Recipe(normaliser=ReLU(), pattern=pattern)
    return (elementwise.attend(recipe, q, k, v, Positions.of(q, k, None, None)),)


def hard_eager(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    seen = steps(q, k, v, Recipe(normaliser=Sampled()))
    assert seen.log_probability is not None
    return seen.output, seen.log_probability


def hard_plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    s = q * q.shape[-1] ** -0.5 @ k.mT
    key = (s - torch.empty_like(s).exponential_().log()).argmax(-1, keepdim=True)
    return v.gather(2, key.expand(-1, -1, -1, v.shape[-1])), s.log_softmax(-1).gather(-1, key).squeeze(-1)


def hard_ours(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern = Full()) -> tuple[Tensor, ...]:
    chosen = hard_attention(
        q, k, v, Recipe(normaliser=Sampled(), pattern=pattern)
    )  # a seed could not be copied during capture
    return chosen.out, chosen.log_probability


def softmax(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> tuple[Tensor, ...]:
    return (scaled_dot_product_attention(q, k, v, is_causal=causal),)


IMPLEMENTATIONS: dict[str, Callable[[], Run]] = {
    "relu, eager": lambda: relu_eager,
    "relu, compiled": lambda: torch.compile(relu_plain),
    "relu, regard": lambda: relu_ours,
    "relu, regard, causal": lambda: partial(relu_ours, pattern=Causal()),
    "hard, eager": lambda: hard_eager,
    "hard, compiled": lambda: torch.compile(hard_plain),
    "hard, regard": lambda: hard_ours,
    "hard, regard, causal": lambda: partial(hard_ours, pattern=Causal()),
    "softmax, fused": lambda: softmax,
    "softmax, fused, causal": lambda: partial(softmax, causal=True),
}
QUADRATIC = ("relu, eager", "relu, compiled", "hard, eager", "hard, compiled")


# --- measuring ---


def numbers(device: str, tokens: int) -> list[Tensor]:
    heads, width = SIZES[device][:2]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    return [torch.randn(1, heads, tokens, width, device=device).to(dtype).requires_grad_() for _ in range(3)]


def forwards_and_backwards(run: Run, given: list[Tensor]) -> list[Tensor]:
    out = run(*given)
    grads = torch.autograd.grad(out, given, [torch.ones_like(x) for x in out])
    return [*out, *grads]


def memory(run: Callable[[], Any]) -> float:
    """MiB that a CPU's process holds at most beyond the inputs; it does not give back what it once held."""
    forget_peak()
    before = peak_mib()
    run()
    return peak_mib() - before


def measure(name: str, device: str, tokens: int) -> dict[str, Any]:
    run, given = IMPLEMENTATIONS[name](), numbers(device, tokens)
    both = partial(forwards_and_backwards, run, given)
    cpu = partial(timing.cpu_milliseconds, limit=300)
    forward = lambda: run(*[x.detach() for x in given])  # noqa: E731
    row: dict[str, Any] = {"way": name, "tokens": tokens}
    if device == "cpu":
        torch.set_num_threads(1)
        forwards_and_backwards(run, numbers(device, 64))  # so that torch's libraries are loaded
        row |= {"mib": memory(both), "norms": norms(both()), "ms": cpu(both), "forward_ms": cpu(forward)}
    else:  # the memory after a first call, in which libraries take some for themselves
        row |= {"norms": norms(both()), "mib": timing.mib(both), "ms": timing.milliseconds(both, AWHILE)}
        row |= {
            "forward_ms": timing.milliseconds(forward, AWHILE),
            "cuda_graph_ms": timing.cuda_graph_milliseconds(both),
        }
    return row


def norms(results: list[Tensor]) -> list[float]:
    return [float(x.detach().double().norm()) for x in results]


def off_log_p(device: str, tokens: int) -> float:
    """The largest difference between log p of drawn keys and what float64 says of the same keys."""
    q, k, v = (x.detach() for x in numbers(device, tokens))
    found, worst = hard_attention(q, k, v, Recipe(normaliser=Sampled()), seed=1), 0.0
    for head in range(q.shape[1]):
        s = (q[:, head].double() @ k[:, head].double().mT * q.shape[-1] ** -0.5).log_softmax(-1)
        exact = s.gather(-1, found.key[:, head, :, None]).squeeze(-1)
        worst = max(worst, float((found.log_probability[:, head].double() - exact).abs().max()))
    return worst


# --- the kernels' tiles ---


def kernel(name: str, shape: tuple[int, ...], tokens: int) -> Callable[[], Any]:
    """One kernel alone, with tiles of this shape."""
    from regard.attention.kernels import tiles

    (q, k, v), cut = (x.detach() for x in numbers("cuda", tokens)), tiles.TileShape(*shape)
    if name.startswith("relu"):
        engine = tiles.TritonElementwise(ReLU(), Interval(), 0)
        out = [torch.empty_like(q) for _ in range(3)]
        match name:
            case "relu out":
                return lambda: engine.run(tiles.row_out, cut, tokens, q, k, v, out[0])
            case "relu dq":
                return lambda: engine.run(tiles.row_dq, cut, tokens, q, k, v, v, out[0])
            case _:
                return lambda: engine.run(tiles.row_dkv, cut, tokens, q, k, v, v, out[0], out[1])
    seed = torch.tensor(1, device="cuda")
    drawing = tiles.TritonHard(Interval(), 0, seed, replace(tiles.HardTileShapes(), choose=cut, dq=cut, dk=cut))
    if name == "hard choose":
        return lambda: drawing.choose(q, k, v)
    key, rows = torch.zeros(q.shape[:3], dtype=torch.int32, device="cuda"), torch.ones(q.shape[:3], device="cuda")
    one = tiles.log_p_dq if name == "hard dq" else tiles.log_p_dk
    out = torch.empty_like(q)
    return lambda: drawing.run(one, cut, tokens, q, k, key, rows, rows, out, D=q.shape[3], DP=q.shape[3])


def warm(job: str, shape: tuple[int, ...] | None) -> str:
    """Compile something, so that it is found ready on the disk."""
    try:
        if shape is None:
            forwards_and_backwards(IMPLEMENTATIONS[job](), numbers("cuda", SIZES["cuda"][2]))
        else:
            kernel(job, shape, WARM_TOKENS)()
        torch.cuda.synchronize()
    except Exception as problem:  # a shape too large for the machine is a finding, not an accident
        return f"{job} {shape}: {first_line(problem)}"
    return ""


def first_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}".splitlines()[0][:150]


def warm_all(*, sweep: bool) -> None:
    jobs: list[tuple[str, tuple[int, ...] | None]] = [(name, None) for name in IMPLEMENTATIONS if "eager" not in name]
    jobs += [(name, shape) for name, shapes in SHAPES.items() for shape in shapes] if sweep else []
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for trouble in pool.map(warm, *zip(*jobs, strict=True)):
            if trouble:
                say(trouble)


def sweep_all(until: float) -> Iterator[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, shapes in SHAPES.items():
        for shape in shapes:
            if time.perf_counter() > until:
                say(f"no time left for {name} {shape}")
                continue
            try:
                ms = timing.milliseconds(kernel(name, shape, SWEPT), 0.04)
            except Exception as problem:
                say(f"{name} {shape}: {first_line(problem)}")
                continue
            rows.append({"kernel": name, "shape": shape, "tokens": SWEPT, "ms": ms})
            say(f"{name:12} {shape!s:20} {ms:8.3f} ms at {SWEPT} tokens")
            yield rows[-1]
        if mine := [row for row in rows if row["kernel"] == name]:
            say(f"  best {name}: {min(mine, key=lambda row: row['ms'])['shape']}")


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="also other shapes of tiles (GPU)")
    parser.add_argument("--seconds", type=float, default=35, help="after which no other shape is begun")
    args, began = parser.parse_args(), time.perf_counter()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the pool below is threads enough
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        warm_all(sweep=args.sweep)
        say(f"compiled after {time.perf_counter() - began:.1f} s")
    *_, short, long = SIZES[device]
    names = [name for name in IMPLEMENTATIONS if device == "cuda" or "compiled" not in name]
    rows: list[dict[str, Any]] = []
    heads, width = SIZES[device][:2]
    command = "python benchmarks/hard_and_relu.py" + " --sweep" * args.sweep
    more: dict[str, Any] = {"heads": heads, "width": width, "off_log_p": None, "swept": []}

    def keep() -> str:
        """Written as they come: whoever ends this too early has what there was."""
        return str(write(f"hard-and-relu-{device}", command, rows, **more, seconds=time.perf_counter() - began))

    for name, tokens in [(name, short) for name in names] + [(name, long) for name in names if name not in QUADRATIC]:
        try:
            rows.append(measure(name, device, tokens) if device == "cuda" else alone(measure, name, device, tokens))
        except Exception as problem:
            say(f"{name} at {tokens}: {first_line(problem)}")
            continue
        graph = f" ({rows[-1]['cuda_graph_ms']:.2f} in a CUDA graph)" if rows[-1].get("cuda_graph_ms") else ""
        say(f"{name:24} {tokens:6} tokens {rows[-1]['ms']:9.2f} ms{graph} {rows[-1]['mib']:8.0f} MiB")
        compare(rows)
        keep()
    more["off_log_p"] = off_log_p(device, short)
    say(f"log p of drawn keys is within {more['off_log_p']:.1e} of float64's")
    for found in sweep_all(began + args.seconds) if args.sweep and device == "cuda" else []:
        more["swept"].append(found)
        keep()
    show(rows)
    print(keep())


def compare(rows: list[dict[str, Any]]) -> None:
    """Against eager torch, once that is known."""
    for row in rows:
        kind = row["way"].split(",")[0]
        eager = [x for x in rows if x["way"] == f"{kind}, eager" and x["tokens"] == row["tokens"]]
        row["speed"] = eager[0]["ms"] / row["ms"] if eager and "causal" not in row["way"] else None
        if kind == "relu" and row["speed"]:
            row["off"] = max(abs(x - y) / y for x, y in zip(row["norms"], eager[0]["norms"], strict=True))


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(
        "way", "tokens", "ms", "forward ms", "in a CUDA graph", "MiB beyond the inputs", "times eager's speed", "off"
    )
    for row in rows:
        speed = f"{row['speed']:.1f}" if row["speed"] else ""
        times = (row["ms"], row["forward_ms"], row.get("cuda_graph_ms"))
        cells = (*("" if x is None else f"{x:.2f}" for x in times), f"{row['mib']:.0f}", speed)
        table.add_row(row["way"], str(row["tokens"]), *cells, f"{row['off']:.0e}" if "off" in row else "")
    Console(width=130, file=sys.stdout).print(table)


if __name__ == "__main__":
    main()
