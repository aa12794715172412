"""The ways to attend with learned relative positions that relative_bias.py compares, and how it times them."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import on_gpu
from regard.attention import Clipped, LogBuckets, Recipe, RelativeBias, RelativeVectors, attend
from regard.attention.backends import relative
from regard.attention.positions import Positions

HEADS, HEAD = 12, 64
BEGAN = time.perf_counter()


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


def milliseconds(work: Callable[[], Any], rounds: int = 10, warm: int = 3) -> float:
    """On a GPU of calls in a row; on the CPU the median of several rounds."""
    if torch.cuda.is_available():
        return on_gpu.milliseconds(work)
    for _ in range(warm):
        work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - began))
    return median(times)
