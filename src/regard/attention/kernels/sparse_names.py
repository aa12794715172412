"""Triton kernels for packed texts: names in; for each tile of tokens, whom on the other side it can meet, out.

The equations are those of `sparse_tiles.meetings`. Two launches, and nobody waits: cheap enough to do in every call, so
that nothing that follows from a batch's data is ever kept.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

UNFIXED = ["n", "runs", "step", "own_b", "other_b"]
CHUNK = 256  # runs compared at once


@triton.jit(do_not_specialize=UNFIXED)
def run_extremes(names, least, most, n, runs, own_b, SIZE: tl.constexpr):
    """The smallest and the largest name of each run of SIZE tokens."""
    run, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    name = tl.load(names + b * own_b + tl.minimum(run * SIZE + tl.arange(0, SIZE), n - 1)).to(tl.int64)
    tl.store(least + b * runs + run, tl.min(name, 0))
    tl.store(most + b * runs + run, tl.max(name, 0))


@triton.jit(do_not_specialize=UNFIXED)
def tile_meetings(names, least, most, found, n, runs, step, own_b, other_b, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    tile, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    name = tl.load(names + b * own_b + tl.minimum(tile * SIZE + tl.arange(0, SIZE), n - 1)).to(tl.int64)
    low, high = tl.min(name, 0), tl.max(name, 0)
    first, stop, sure, unsure = runs, 0, 0, runs
    for start in range(0, runs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        inside = at < runs
        lowest = tl.load(least + b * other_b + at, mask=inside, other=0)
        highest = tl.load(most + b * other_b + at, mask=inside, other=0)
        first = tl.minimum(first, tl.min(tl.where(inside & (highest >= low), at, runs), 0))
        stop = tl.maximum(stop, tl.max(tl.where(inside & (lowest <= high), at + 1, 0), 0))
        sure = tl.maximum(sure, tl.max(tl.where(inside & (lowest < low), at + 1, 0), 0))
        unsure = tl.minimum(unsure, tl.min(tl.where(inside & (highest > low), at, runs), 0))
    into = found + (b * tl.num_programs(0) + tile) * 4
    tl.store(into, first * step)
    tl.store(into + 1, stop * step)
    tl.store(into + 2, tl.where(low == high, sure * step, 0))
    tl.store(into + 3, tl.where(low == high, unsure * step, 0))


def meetings_by_kernel(own: Tensor, other: Tensor, size: int, step: int) -> Tensor:
    """As `sparse_tiles.meetings`; sizes and steps are powers of two."""
    (rows, n), (other_rows, m), sentences = own.shape, other.shape, max(len(own), len(other))
    tiles, runs = -(-n // size), -(-m // step)
    of_runs: dict[str, Any] = {"SIZE": step}
    least, most = torch.empty(2, other_rows, runs, dtype=torch.int64, device=own.device)
    run_extremes[runs, other_rows](other, least, most, m, runs, m, **of_runs)
    found = torch.empty(sentences, tiles, 4, dtype=torch.int32, device=own.device)
    strides = n if rows > 1 else 0, runs if other_rows > 1 else 0
    sizes: dict[str, Any] = {"SIZE": size, "CHUNK": CHUNK}
    tile_meetings[tiles, sentences](own, least, most, found, n, runs, step, *strides, **sizes)
    return found
