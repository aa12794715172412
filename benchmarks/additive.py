"""Bahdanau's attention, forwards and backwards: time and memory of the fused operation, eager torch and torch.compile.

    python benchmarks/additive.py                 whatever machine this is
    python benchmarks/additive.py --sweep         on a GPU: the shapes of the kernels' tiles, to choose from

On the CPU each way runs in a process of its own, all on the same numbers; the last column says how far the norms of its
output and gradients are from eager torch's.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from machine import alone, forget_peak, peak_mib, write
from regard.attention.kernels import additive_tiled
from regard.attention.kernels.additive_tiled import Sight, additive
from regard.attention.pattern import Causal, Full

SIZES = {"cuda": (8, 1024, 1024, 512), "cpu": (2, 256, 251, 128)}  # sentences, queries, keys, width
SHAPES = [(64, 32, 4), (64, 64, 4), (64, 64, 8), (64, 16, 4), (128, 32, 8), (32, 32, 2), (32, 64, 4)]
CELLS = [2**20, 2**21, 2**22, 2**23]
WARM, ROUNDS = 3, 10


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
    return additive(a, b, v, values, Sight.of(Causal() if causal else Full(), a, b))


def shaped(shape: tuple[int, int, int], *given: Tensor) -> Tensor:
    from regard.attention.kernels.additive import Fused, Shape

    return additive(*given, pairs=partial(Fused.of, shape=Shape(*shape)))


def way(name: str) -> Callable[..., Tensor]:
    """By name, because a process of its own is told by name."""
    who, *sizes = name.split()
    match who:
        case "eager":
            return eager
        case "compiled":
            return torch.compile(eager)
        case "regard":
            return fused
        case "regard-causal":
            return partial(fused, causal=True)
        case "regard-keeping-nothing":
            additive_tiled.CELLS_KEPT = 0
            return fused
        case "regard-banded":
            additive_tiled.CELLS_AT_ONCE = int(sizes[0])
            return fused
        case _:
            return partial(shaped, (int(sizes[0]), int(sizes[1]), int(sizes[2])))


def measure(name: str, device: str, dtype: torch.dtype) -> dict:
    """Milliseconds (the best of several rounds), and what is held at most beyond the inputs."""
    if device == "cpu":
        torch.set_num_threads(1)
    run, given = way(name), numbers(device, dtype)
    upstream = torch.randn_like(given[3][:, :, :1]).expand(-1, -1, given[0].shape[2], -1).contiguous()

    def once(tokens: int | None = None) -> list[Tensor]:
        out = run(*(x[:, :, :tokens] if x.dim() == 4 else x for x in given))
        return [out, *torch.autograd.grad(out, given, upstream[:, :, :tokens])]

    if device == "cpu":
        once(tokens=2)  # so that torch's libraries are loaded
    before = start(device)  # on the CPU before the first call: what a process once held it does not give back
    results = once()
    norms = [float(x.detach().double().norm()) for x in results]
    results.clear()
    rounds = []
    if device == "cuda":
        for _ in range(WARM):
            once()
        before = start(device)
    for _ in range(ROUNDS if device == "cuda" else 3):
        began = clock(device)
        once()
        rounds.append(clock(device) - began)
    return {"way": name, "device": device, "dtype": str(dtype).removeprefix("torch."), "ms": 1e3 * min(rounds)} | {
        "mib": held(device) - before,
        "norms": norms,
    }


def start(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    forget_peak()
    return peak_mib()


def held(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peak_mib()


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="also other shapes of tiles and bands (GPU)")
    sweep = parser.parse_args().sweep
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = ["regard", "eager", "regard-causal", "regard-keeping-nothing"]
    dtypes = [torch.float32]
    if device == "cuda":
        names, dtypes = [*names, "compiled"], [torch.bfloat16, torch.float32]
        if sweep:
            names += [f"regard-shaped {' '.join(map(str, shape))}" for shape in SHAPES]
            names += [f"regard-banded {cells}" for cells in CELLS]
    rows = []
    for dtype in dtypes:
        for name in names:
            # a GPU's memory is counted apart for each; only what changes the module's sizes needs a process of its own
            apart = device == "cpu" or name.startswith(("regard-keeping", "regard-banded"))
            rows.append(alone(measure, name, device, dtype) if apart else measure(name, device, dtype))
            print(f"{name}, {rows[-1]['dtype']}: {rows[-1]['ms']:.2f} ms, {rows[-1]['mib']:.0f} MiB", flush=True)
    table = Table("way", "dtype", "ms", "times eager's speed", "MiB beyond the inputs", "off eager's norms")
    for row in rows:
        base = next(other for other in rows if other["way"] == "eager" and other["dtype"] == row["dtype"])
        row["speed"] = base["ms"] / row["ms"]
        row["off"] = max(abs(x - y) / y for x, y in zip(row["norms"], base["norms"], strict=True))
        off = "(sees less)" if "causal" in row["way"] else f"{row['off']:.0e}"
        table.add_row(row["way"], row["dtype"], f"{row['ms']:.2f}", f"{row['speed']:.1f}", f"{row['mib']:.0f}", off)
    sizes = dict(zip(("sentences", "queries", "keys", "width"), SIZES[device], strict=True))
    print(f"additive attention, forwards and backwards, {sizes}")
    Console(width=130).print(table)
    command = "python benchmarks/additive.py" + " --sweep" * sweep
    print(write(f"additive-{device}", command, rows, **sizes))


if __name__ == "__main__":
    main()
