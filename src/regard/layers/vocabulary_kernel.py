"""Rows of scores in; in their place the gradients of what the wanted words cost, and these costs, out. Triton kernels.

A program has a row (or a row and its twin) to itself and walks over it two (or three) times; a row of a vocabulary fits
into a multiprocessor's cache, so memory sees each score read once and each gradient written once. With a = log p:

    turn_rows    pass 1: lse;  pass 2: p_j − (1 − ε)[j = y].  Costs lse − s_y.
    turn_pairs   two passes p and q of one word: pass 1: both lse;  pass 2: A = Σ p (a − b), B = Σ q (a − b);
                 pass 3: half of the above for each, and w/2 times
                     p_j ((a_j − b_j) − A) + p_j − q_j        for p's scores,
                     q_j (B − (a_j − b_j)) + q_j − p_j        for q's.
                 Costs half of both costs, and w/2 (A − B) for the pair: R-Drop (Liang et al. 2021).

What smoothing takes from every word alike, ε/v, is left to the caller, who knows it without looking at the scores.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Turning:
    """How a row is turned: so many words at a time (all of them, and the registers hold the row). Speed alone.

    Many warps make few programs at a time, and the rows of few stay in the cache between two passes.
    """

    block: int = 4096
    warps: int = 16


@triton.jit
def row_lse(row, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """log Σ exp of a row of scores."""
    most = tl.full((BLOCK,), -1e37, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        s = tl.load(row + at, mask=at < SIZE, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, s)
        total = total * tl.exp(most - higher) + tl.exp(s - higher)
        most = higher
    top = tl.max(most, 0)
    return top + tl.log(tl.sum(total * tl.exp(most - top), 0))


@triton.jit
def rows_turned(scores, wanted, costs, picked, share, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    row = scores + n.to(tl.int64) * SIZE
    word = tl.load(wanted + n)
    score = tl.load(row + word).to(tl.float32)
    lse = row_lse(row, SIZE, BLOCK)
    tl.store(costs + n, lse - score)
    tl.store(picked + n, score)
    tl.debug_barrier()  # the wanted score is read before another thread writes there
    for first in range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        s = tl.load(row + at, mask=at < SIZE, other=-float("inf")).to(tl.float32)
        p = tl.exp(s - lse) - tl.where(at == word, share, 0.0)
        tl.store(row + at, p.to(scores.dtype.element_ty), mask=at < SIZE)


@triton.jit
def rows_turned_whole(scores, wanted, costs, picked, share, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The same, of a row that the registers hold: memory sees each score once, whatever the caches do."""
    n = tl.program_id(0)
    row, at = scores + n.to(tl.int64) * SIZE, tl.arange(0, BLOCK)
    word = tl.load(wanted + n)
    s = tl.load(row + at, mask=at < SIZE, other=-float("inf")).to(tl.float32)
    score = tl.sum(tl.where(at == word, s, 0.0), 0)
    top = tl.max(s, 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    p = tl.exp(s - top)
    total = tl.sum(p, 0)
    tl.store(costs + n, top + tl.log(total) - score)
    tl.store(picked + n, score)
    p = p / total - tl.where(at == word, share, 0.0)
    tl.store(row + at, p.to(scores.dtype.element_ty), mask=at < SIZE)


@triton.jit
def pairs_turned(scores, wanted, costs, picked, pairs, share, weight, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    one, other = scores + n.to(tl.int64) * SIZE, scores + (n + pairs).to(tl.int64) * SIZE
    word = tl.load(wanted + n)
    score_p, score_q = tl.load(one + word).to(tl.float32), tl.load(other + word).to(tl.float32)
    lse_p, lse_q = row_lse(one, SIZE, BLOCK), row_lse(other, SIZE, BLOCK)
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


def constants(scores: Tensor, turning: Turning) -> dict[str, Any]:
    return {"SIZE": scores.shape[1], "BLOCK": turning.block, "num_warps": turning.warps}


def turn_rows(scores: Tensor, wanted: Tensor, share: float, turning: Turning = Turning()) -> tuple[Tensor, Tensor]:
    """In place. What each row costs, and the score of its wanted word; `share` is 1 − ε."""
    assert scores.is_contiguous()
    costs = torch.empty(len(scores), dtype=torch.float32, device=scores.device)
    picked = torch.empty_like(costs)
    if len(scores):
        kernel = rows_turned_whole if turning.block >= scores.shape[1] else rows_turned
        kernel[(len(scores),)](scores, wanted, costs, picked, share, **constants(scores, turning))
    return costs, picked


def turn_pairs(
    scores: Tensor, wanted: Tensor, share: float, weight: float, turning: Turning = Turning()
) -> tuple[Tensor, Tensor]:
    """In place. Row n and the row as far behind the middle are two passes of one word, `wanted[n]`."""
    assert scores.is_contiguous()
    pairs = len(scores) // 2
    costs = torch.empty(len(scores), dtype=torch.float32, device=scores.device)
    picked = torch.empty_like(costs)
    if pairs:
        pairs_turned[(pairs,)](scores, wanted, costs, picked, pairs, share, weight, **constants(scores, turning))
    return costs, picked
