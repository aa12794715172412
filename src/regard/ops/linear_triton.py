"""Linear layers as Triton kernels: the column sums of a bias' gradient, and rows of logits turned into their gradients.

Column sums, one of which also applies the gradient of relu: every row is read once, and that is all the work there is.
Each program takes every n-th block of rows and leaves a partial sum; a second, small kernel adds these. How many
programs there are depends on the shape alone and nothing is added atomically, so the result is deterministic.

Linear cross-entropy, in place, also for R-Drop. With a = log p, and the ε/v that smoothing takes from all classes alike
left to the caller:

    cross_entropy_rows    lse of each row;  then, by tiles of rows and classes, p_j − (1 − ε)[j = y], and its sum over
                          the rows that are not ignored, the gradient of the bias.  Loss lse − s_y.
    rdrop_rows            two passes p and q of one token: pass 1: both lse;  pass 2: A = Σ p (a − b), B = Σ q (a − b);
                          pass 3: half of the above for each, and w/2 times
                              p_j ((a_j − b_j) − A) + p_j − q_j        for p's scores,
                              q_j (B − (a_j − b_j)) + q_j − p_j        for q's.
                          Loss: half of both losses, and w/2 (A − B) for the pair: R-Drop (Liang et al. 2021).

cross_entropy_rows reads the scores twice, at the speed of memory; in one pass it takes longer, since the bias then
needs another one. rdrop_rows has a program for a row and its pair, which the caches of a multiprocessor hold.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class ColumnLaunch:
    """Launch options, which affect speed alone.

    Args:
        programs: that share the rows.
        rows, columns: of a tile.
    """

    programs: int = 792
    rows: int = 16
    columns: int = 128
    warps: int = 4


@triton.jit
def column_sum_kernel(
    x, output, out, partials, rows, width, x_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RELU: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    at, many = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.num_programs(1)
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for first in range(tl.program_id(1) * ROWS, rows, many * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & (at < width)[None, :]
        g = tl.load(x + row[:, None] * x_row + at[None, :], mask=inside, other=0.0)
        if RELU:
            place = row[:, None] * width + at[None, :]
            g = tl.where(tl.load(output + place, mask=inside, other=0.0) > 0.0, g, 0.0)
            tl.store(out + place, g, mask=inside)
        total += g.to(WIDE)
    tl.store(partials + tl.program_id(1) * width + at, tl.sum(total, 0), mask=at < width)


@triton.jit
def partial_sum_kernel(partials, out, many, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for first in range(0, many, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < many)[:, None] & (at < width)[None, :]
        total += tl.load(partials + row[:, None] * width + at[None, :], mask=inside, other=0.0)
    tl.store(out + at, tl.sum(total, 0).to(out.dtype.element_ty), mask=at < width)


def sum_partials(partials: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first axis."""
    out = torch.empty(partials.shape[1:], dtype=dtype, device=partials.device)
    width, many = out.numel(), len(partials)
    options: dict[str, Any] = {"ROWS": 128, "COLUMNS": 16, "WIDE": accumulation_type(partials.dtype), "num_warps": 8}
    partial_sum_kernel[(-(-width // 16),)](partials, out, many, width, **options)
    return out


def sum_columns(x: Tensor, launch: ColumnLaunch = ColumnLaunch(), *, dtype: torch.dtype | None = None) -> Tensor:
    """Σ over the rows of x, rounded to its own dtype or to another."""
    return sum_partials(partial_sums(x, x, x, launch, relu=False), x.dtype if dtype is None else dtype)


def relu_backward_sum(x: Tensor, output: Tensor, launch: ColumnLaunch = ColumnLaunch()) -> tuple[Tensor, Tensor]:
    """x where relu's `output` is above 0, else 0; and Σ over its rows."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return out, sum_partials(partial_sums(x, output, out, launch, relu=True), x.dtype)


def partial_sums(x: Tensor, output: Tensor, out: Tensor, launch: ColumnLaunch, *, relu: bool) -> Tensor:
    """One partial sum for each program."""
    rows, width = x.shape
    assert x.stride(1) == 1
    assert not relu or output.is_contiguous()
    blocks = -(-width // launch.columns)
    many = min(-(-launch.programs // blocks), -(-rows // launch.rows))
    wide = torch.promote_types(x.dtype, torch.float32)
    partials = torch.empty((many, width), dtype=wide, device=x.device)
    options: dict[str, Any] = {
        "ROWS": launch.rows,
        "COLUMNS": launch.columns,
        "RELU": relu,
        "WIDE": accumulation_type(wide),
        "num_warps": launch.warps,
    }
    column_sum_kernel[(blocks, many)](x, output, out, partials, rows, width, x.stride(0), **options)
    return partials


def accumulation_type(dtype: torch.dtype) -> Any:
    return tl.float64 if dtype == torch.float64 else tl.float32


@dataclass(frozen=True)
class RowLaunch:
    """Launch options: the columns and the rows of the tiles that a row is read in. They affect speed alone.

    Many warps make few programs run at a time, and the rows of few stay in the cache between two passes.
    """

    block: int = 4096
    warps: int = 16
    deep: int = 4


LOGSUMEXP, GRADIENT, PAIRS = (
    RowLaunch(2048, 8, 8),
    ColumnLaunch(programs=2112, rows=16, columns=256, warps=8),
    RowLaunch(),
)


@triton.jit
def row_lse(row, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEEP: tl.constexpr):
    """log Σ exp of a row of scores. Deep tiles, since each costs one more exponential, to rescale the running sum."""
    running_max = tl.full((BLOCK,), -1e37, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SIZE, DEEP * BLOCK):
        at = first + tl.arange(0, DEEP)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        s = tl.load(row + at, mask=at < SIZE, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(running_max, tl.max(s, 0))
        total = total * tl.exp(running_max - higher) + tl.sum(tl.exp(s - higher[None, :]), 0)
        running_max = higher
    top = tl.max(running_max, 0)
    return top + tl.log(tl.sum(total * tl.exp(running_max - top), 0))


@triton.jit
def logsumexp_kernel(scores, targets, sums, target_scores, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEEP: tl.constexpr):
    n = tl.program_id(0)
    row = scores + n.to(tl.int64) * SIZE
    tl.store(target_scores + n, tl.load(row + tl.load(targets + n)).to(tl.float32))
    tl.store(sums + n, row_lse(row, SIZE, BLOCK, DEEP))


@triton.jit
def cross_entropy_kernel(
    scores, targets, sums, row_mask, partials, rows, target_weight,
    SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program has some columns, and every n-th block of rows; the sums are computed as in `sum_columns`."""
    at, many = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.num_programs(1)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(1) * ROWS, rows, many * ROWS):
        row = first + tl.arange(0, ROWS)
        valid = row < rows
        address = scores + row.to(tl.int64)[:, None] * SIZE + at[None, :]
        inside = valid[:, None] & (at < SIZE)[None, :]
        lse, count = tl.load(sums + row, mask=valid, other=0.0), tl.load(row_mask + row, mask=valid, other=0.0)
        hit = at[None, :] == tl.load(targets + row, mask=valid, other=-1)[:, None]
        p = tl.exp(tl.load(address, mask=inside, other=-float("inf")).to(tl.float32) - lse[:, None])
        p -= tl.where(hit, target_weight, 0.0)
        tl.store(address, p.to(scores.dtype.element_ty), mask=inside)
        total += p * count[:, None]
    tl.store(partials + tl.program_id(1) * SIZE + at, tl.sum(total, 0), mask=at < SIZE)


@triton.jit
def rdrop_kernel(
    scores, targets, losses, target_scores, pairs, target_weight, weight,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    one, other = scores + n.to(tl.int64) * SIZE, scores + (n + pairs).to(tl.int64) * SIZE
    target = tl.load(targets + n)
    score_p, score_q = tl.load(one + target).to(tl.float32), tl.load(other + target).to(tl.float32)
    lse_p, lse_q = row_lse(one, SIZE, BLOCK, DEEP), row_lse(other, SIZE, BLOCK, DEEP)
    mean_p, mean_q = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        a = tl.load(one + at, mask=at < SIZE, other=-1e30).to(tl.float32) - lse_p
        b = tl.load(other + at, mask=at < SIZE, other=-1e30).to(tl.float32) - lse_q
        difference = tl.where(at < SIZE, a - b, 0.0)
        mean_p += tl.exp(a) * difference
        mean_q += tl.exp(b) * difference
    kl_p, kl_q = tl.sum(mean_p, 0), tl.sum(mean_q, 0)
    both = 0.5 * weight * (kl_p - kl_q)
    tl.store(losses + n, 0.5 * (lse_p - score_p) + both)
    tl.store(losses + n + pairs, 0.5 * (lse_q - score_q))
    tl.store(target_scores + n, score_p)
    tl.store(target_scores + n + pairs, score_q)
    tl.debug_barrier()
    for first in range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        a = tl.load(one + at, mask=at < SIZE, other=-1e30).to(tl.float32) - lse_p
        b = tl.load(other + at, mask=at < SIZE, other=-1e30).to(tl.float32) - lse_q
        p, q, hit = tl.exp(a), tl.exp(b), tl.where(at == target, target_weight, 0.0)
        dp = 0.5 * (p - hit) + 0.5 * weight * (p * (a - b - kl_p) + p - q)
        dq = 0.5 * (q - hit) + 0.5 * weight * (q * (kl_q - a + b) + q - p)
        tl.store(one + at, dp.to(scores.dtype.element_ty), mask=at < SIZE)
        tl.store(other + at, dq.to(scores.dtype.element_ty), mask=at < SIZE)


@triton.jit
def scale_kernel(x, by, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    scaled = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32) * tl.load(by).to(tl.float32)
    tl.store(out + at, scaled.to(out.dtype.element_ty), mask=at < size)


def scale(x: Tensor, by: Tensor) -> Tensor:
    """x times a number on the device; torch's own kernel for that takes three times as long."""
    assert x.is_contiguous()
    out = torch.empty_like(x)
    if x.numel():
        scale_kernel[(-(-x.numel() // 2048),)](x, by, out, x.numel(), BLOCK=2048, num_warps=8)  # type: ignore[arg-type]
    return out


def constants(scores: Tensor, launch: RowLaunch) -> dict[str, Any]:
    return {"SIZE": scores.shape[1], "BLOCK": launch.block, "DEEP": launch.deep, "num_warps": launch.warps}


def cross_entropy_rows(
    scores: Tensor,
    targets: Tensor,
    row_mask: Tensor,
    target_weight: float,
    logsumexp_launch: RowLaunch = LOGSUMEXP,
    launch: ColumnLaunch = GRADIENT,
) -> tuple[Tensor, Tensor, Tensor]:
    """In place. Each row's loss and the score of its target, and the sum of the gradients of the rows that are not
    ignored; `target_weight` is 1 − ε."""
    assert scores.is_contiguous()
    rows, size = scores.shape
    sums, target_scores = (torch.empty(rows, dtype=torch.float32, device=scores.device) for _ in range(2))
    if not rows:
        return sums, target_scores, sums.new_zeros(size)
    logsumexp_kernel[(rows,)](scores, targets, sums, target_scores, **constants(scores, logsumexp_launch))
    blocks = -(-size // launch.columns)
    many = min(-(-launch.programs // blocks), -(-rows // launch.rows))
    partials = torch.empty((many, size), dtype=torch.float32, device=scores.device)
    options: dict[str, Any] = {"SIZE": size, "ROWS": launch.rows, "COLUMNS": launch.columns, "num_warps": launch.warps}
    cross_entropy_kernel[(blocks, many)](scores, targets, sums, row_mask, partials, rows, target_weight, **options)
    return sums - target_scores, target_scores, sum_partials(partials, torch.float32)


def rdrop_rows(
    scores: Tensor, targets: Tensor, target_weight: float, weight: float, launch: RowLaunch = PAIRS
) -> tuple[Tensor, Tensor]:
    """In place. Row n and row n + pairs are two passes of one token, whose target is `targets[n]`."""
    assert scores.is_contiguous()
    pairs = len(scores) // 2
    losses = torch.empty(len(scores), dtype=torch.float32, device=scores.device)
    target_scores = torch.empty_like(losses)
    if pairs:
        rdrop_kernel[(pairs,)](
            scores, targets, losses, target_scores, pairs, target_weight, weight, **constants(scores, launch)
        )
    return losses, target_scores
