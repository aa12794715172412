"""Rows of scores in; in their place the gradients of what the wanted words cost, and these costs, out. Triton kernels.

With a = log p, and what smoothing takes from every word alike, ε/v, left to the caller, who knows it without looking:

    turn_rows    lse of each row;  then, by tiles of rows and words, p_j − (1 − ε)[j = y], and its sum over the rows
                 that count, which is what the words' bias learns by.  Costs lse − s_y.
    turn_pairs   two passes p and q of one word: pass 1: both lse;  pass 2: A = Σ p (a − b), B = Σ q (a − b);
                 pass 3: half of the above for each, and w/2 times
                     p_j ((a_j − b_j) − A) + p_j − q_j        for p's scores,
                     q_j (B − (a_j − b_j)) + q_j − p_j        for q's.
                 Costs half of both costs, and w/2 (A − B) for the pair: R-Drop (Liang et al. 2021).

turn_rows reads the scores twice, which is as fast as memory is; to do it in one pass takes longer, since the bias then
wants another one. turn_pairs has a program for a row and its twin, which the caches of a multiprocessor hold.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.layers.column_kernel import Walk, add_parts


@dataclass(frozen=True)
class Turning:
    """How a row is summed or turned: so many words at a time, and as deep. Speed alone.

    Many warps make few programs at a time, and the rows of few stay in the cache between two passes.
    """

    block: int = 4096
    warps: int = 16
    deep: int = 4


SUMMING, TURNING, PAIRS = Turning(2048, 8, 8), Walk(programs=2112, rows=16, columns=256, warps=8), Turning()


@triton.jit
def row_lse(row, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEEP: tl.constexpr):
    """log Σ exp of a row of scores. Deep blocks, for each costs an exponential more, if a higher score was met."""
    most = tl.full((BLOCK,), -1e37, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SIZE, DEEP * BLOCK):
        at = first + tl.arange(0, DEEP)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        s = tl.load(row + at, mask=at < SIZE, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(s, 0))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(s - higher[None, :]), 0)
        most = higher
    top = tl.max(most, 0)
    return top + tl.log(tl.sum(total * tl.exp(most - top), 0))


@triton.jit
def rows_summed(scores, wanted, sums, picked, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEEP: tl.constexpr):
    n = tl.program_id(0)
    row = scores + n.to(tl.int64) * SIZE
    tl.store(picked + n, tl.load(row + tl.load(wanted + n)).to(tl.float32))
    tl.store(sums + n, row_lse(row, SIZE, BLOCK, DEEP))


@triton.jit
def tiles_turned(
    scores, wanted, sums, counts, parts, rows, share, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """A program has some words, and every so-manieth block of rows; the sums are made as in `column_kernel`."""
    at, many = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.num_programs(1)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(1) * ROWS, rows, many * ROWS):
        row = first + tl.arange(0, ROWS)
        there = row < rows
        place = scores + row.to(tl.int64)[:, None] * SIZE + at[None, :]
        inside = there[:, None] & (at < SIZE)[None, :]
        lse, count = tl.load(sums + row, mask=there, other=0.0), tl.load(counts + row, mask=there, other=0.0)
        hit = at[None, :] == tl.load(wanted + row, mask=there, other=-1)[:, None]
        p = tl.exp(tl.load(place, mask=inside, other=-float("inf")).to(tl.float32) - lse[:, None])
        p -= tl.where(hit, share, 0.0)
        tl.store(place, p.to(scores.dtype.element_ty), mask=inside)
        total += p * count[:, None]
    tl.store(parts + tl.program_id(1) * SIZE + at, tl.sum(total, 0), mask=at < SIZE)


@triton.jit
def pairs_turned(
    scores, wanted, costs, picked, pairs, share, weight, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEEP: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0)
    one, other = scores + n.to(tl.int64) * SIZE, scores + (n + pairs).to(tl.int64) * SIZE
    word = tl.load(wanted + n)
    score_p, score_q = tl.load(one + word).to(tl.float32), tl.load(other + word).to(tl.float32)
    lse_p, lse_q = row_lse(one, SIZE, BLOCK, DEEP), row_lse(other, SIZE, BLOCK, DEEP)
    mean_p, mean_q = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        a = tl.load(one + at, mask=at < SIZE, other=-1e30).to(tl.float32) - lse_p
        b = tl.load(other + at, mask=at < SIZE, other=-1e30).to(tl.float32) - lse_q
        apart = tl.where(at < SIZE, a - b, 0.0)
        mean_p += tl.exp(a) * apart
        mean_q += tl.exp(b) * apart
    far_p, far_q = tl.sum(mean_p, 0), tl.sum(mean_q, 0)
    both = 0.5 * weight * (far_p - far_q)
    tl.store(costs + n, 0.5 * (lse_p - score_p) + both)
    tl.store(costs + n + pairs, 0.5 * (lse_q - score_q))
    tl.store(picked + n, score_p)
    tl.store(picked + n + pairs, score_q)
    tl.debug_barrier()
    for first in range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        a = tl.load(one + at, mask=at < SIZE, other=-1e30).to(tl.float32) - lse_p
        b = tl.load(other + at, mask=at < SIZE, other=-1e30).to(tl.float32) - lse_q
        p, q, hit = tl.exp(a), tl.exp(b), tl.where(at == word, share, 0.0)
        dp = 0.5 * (p - hit) + 0.5 * weight * (p * (a - b - far_p) + p - q)
        dq = 0.5 * (q - hit) + 0.5 * weight * (q * (far_q - a + b) + q - p)
        tl.store(one + at, dp.to(scores.dtype.element_ty), mask=at < SIZE)
        tl.store(other + at, dq.to(scores.dtype.element_ty), mask=at < SIZE)


@triton.jit
def numbers_scaled(x, by, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32) * tl.load(by).to(tl.float32)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=at < size)


def scale(x: Tensor, by: Tensor) -> Tensor:
    """All of x times one number, which the device knows; torch's own kernel for that takes three times as long."""
    assert x.is_contiguous()
    out = torch.empty_like(x)
    if x.numel():
        numbers_scaled[(-(-x.numel() // 2048),)](x, by, out, x.numel(), BLOCK=2048, num_warps=8)  # type: ignore[arg-type]
    return out


def constants(scores: Tensor, turning: Turning) -> dict[str, Any]:
    return {"SIZE": scores.shape[1], "BLOCK": turning.block, "DEEP": turning.deep, "num_warps": turning.warps}


def turn_rows(
    scores: Tensor, wanted: Tensor, counts: Tensor, share: float, summing: Turning = SUMMING, walk: Walk = TURNING
) -> tuple[Tensor, Tensor, Tensor]:
    """In place. What each row costs, the score of its wanted word, and the sum of the rows' gradients, each as often
    as it counts; `share` is 1 − ε."""
    assert scores.is_contiguous()
    rows, size = scores.shape
    sums, picked = (torch.empty(rows, dtype=torch.float32, device=scores.device) for _ in range(2))
    if not rows:
        return sums, picked, sums.new_zeros(size)
    rows_summed[(rows,)](scores, wanted, sums, picked, **constants(scores, summing))
    blocks = -(-size // walk.columns)
    many = min(-(-walk.programs // blocks), -(-rows // walk.rows))
    parts = torch.empty((many, size), dtype=torch.float32, device=scores.device)
    how: dict[str, Any] = {"SIZE": size, "ROWS": walk.rows, "COLUMNS": walk.columns, "num_warps": walk.warps}
    tiles_turned[(blocks, many)](scores, wanted, sums, counts, parts, rows, share, **how)
    return sums - picked, picked, add_parts(parts, torch.float32)


def turn_pairs(
    scores: Tensor, wanted: Tensor, share: float, weight: float, turning: Turning = PAIRS
) -> tuple[Tensor, Tensor]:
    """In place. Row n and the row as far behind the middle are two passes of one word, `wanted[n]`."""
    assert scores.is_contiguous()
    pairs = len(scores) // 2
    costs = torch.empty(len(scores), dtype=torch.float32, device=scores.device)
    picked = torch.empty_like(costs)
    if pairs:
        pairs_turned[(pairs,)](scores, wanted, costs, picked, pairs, share, weight, **constants(scores, turning))
    return costs, picked
