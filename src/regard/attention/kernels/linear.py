"""Causal linear attention as Triton kernels: chunks in registers, and running sums of φ(k) vᵀ between them.

With q and k already mapped by φ, the output of query i is

    o_i = Σ_{j≤i} (q_i·k_j) v_j / β_i,    β_i = Σ_{j≤i} q_i·k_j.

A chunk's own pairs are materialised; of the chunks before it only S = Σ k vᵀ and z = Σ k are needed, so

    β_i o_i = Σ_{j in chunk, j≤i} (q_i·k_j) v_j + q_i S,    β_i = Σ_{j in chunk, j≤i} q_i·k_j + q_i·z.

With ō the gradient of the output, c_i = −ō_i·o_i, and, of the chunks after, R = Σ q ōᵀ / β and r = Σ q c / β:

    p_ij = (ō_i·v_j + c_i) / β_i for j ≤ i in the chunk
    ∂q_i = Σ_j p_ij k_j + (S ō_i + c_i z) / β_i,   ∂k_j = Σ_i p_ij q_i + R v_j + r,
    ∂v_j = Σ_i (q_i·k_j / β_i) ō_i + k_j R.

Three kernels each way: the sums of every chunk, their running sums, and the chunks themselves. No two programs write to
one address, so there are no atomics and the gradients are the same every time. Sums are kept in float32, and read in
TF32 at least: all keys before pass through them, and bfloat16 would be coarser than the plain form.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.kernels.elementwise import load_block, precision, store_block, tile_count, widths

Q = Float[Tensor, "b h t d"]
V = Float[Tensor, "b h t e"]


@dataclass(frozen=True)
class LinearTileShape:
    """How the work is cut, a matter of speed alone.

    Args:
        chunk: tokens of a chunk, which a program owns.
        warps: of the kernels of sums and outputs, and of gradients.
    """

    chunk: int = 128
    warps: int = 4
    gradient_warps: int = 8

    @staticmethod
    def of(q: Tensor, v: Tensor) -> "LinearTileShape":
        """What fits into the registers and the shared memory of one multiprocessor."""
        if q.dtype == torch.float32:
            return LinearTileShape(chunk=32, gradient_warps=4)
        return LinearTileShape() if max(q.shape[3], v.shape[3]) <= 64 else LinearTileShape(chunk=64)


class CausalLinearAttention(torch.autograd.Function):
    """Keeps its inputs, its output, β, and S and z before every chunk."""

    @staticmethod
    def forward(ctx, q: Q, k: Q, v: V, shape: LinearTileShape | None = None) -> V:  # type: ignore[override]
        q, k, v = (x.contiguous() for x in (q, k, v))
        launch = Launch.of(q, v, shape)
        out, below = torch.empty_like(v), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        before = launch.new_sums(q)
        launch.run(chunk_key_sums, k, v, before)
        launch.accumulate(before, reverse=False)
        launch.run(chunk_outputs, q, k, v, before, out, below)
        ctx.save_for_backward(q, k, v, out, below, before)
        ctx.launch = launch
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, out, below, before), launch = ctx.saved_tensors, ctx.launch
        grad, after = grad.contiguous(), launch.new_sums(q)
        launch.run(chunk_query_sums, q, out, grad, below, after)
        launch.accumulate(after, reverse=True)
        gradients = [torch.empty_like(x) for x in (q, k, v)]
        warps = launch.shape.gradient_warps
        launch.run(chunk_gradients, q, k, v, out, grad, below, before, after, *gradients, warps=warps)
        return *gradients, None


@dataclass(frozen=True, eq=False)
class Launch:
    """What all kernels of one call are launched with, batch and heads side by side.

    Args:
        heads: of all sentences.
        sum_size: numbers of one S and one z.
        options: constants of the kernels of chunks.
    """

    shape: LinearTileShape
    heads: int
    tokens: int
    chunks: int
    sum_size: int
    options: dict[str, Any]

    @staticmethod
    def of(q: Q, v: V, shape: LinearTileShape | None) -> "Launch":
        (b, h, t, d), shape = q.shape, shape or LinearTileShape.of(q, v)
        sizes = widths(d, v.shape[3])
        sums = precision(q) if q.dtype == torch.float32 else "tf32"
        options = sizes | {"CHUNK": shape.chunk, "PRECISION": precision(q), "SUMS": sums}
        return Launch(shape, b * h, t, tile_count(t, shape.chunk), sizes["DP"] * (sizes["EP"] + 1), options)

    def new_sums(self, like: Tensor) -> Tensor:
        return like.new_empty(self.heads, self.chunks, self.sum_size, dtype=torch.float32)

    def run(self, kernel: Any, *tensors: Tensor, warps: int | None = None) -> None:
        """One program for each chunk of each head."""
        warps = warps or self.shape.warps
        kernel[self.heads * self.chunks,](*tensors, self.tokens, self.chunks, **self.options, num_warps=warps)

    def accumulate(self, sums: Tensor, *, reverse: bool) -> None:
        """Each chunk's sum becomes that of the chunks before it, or in reverse after it."""
        kernel: Any = running_sums
        grid = self.heads, tile_count(self.sum_size, SCAN_WIDTH)
        kernel[grid](sums, self.chunks, SIZE=self.sum_size, BLOCK=SCAN_WIDTH, STEP=SCAN_STEP, REVERSE=reverse)


SCAN_WIDTH, SCAN_STEP = 128, 16  # numbers and chunks that a program of `running_sums` reads at once
NUMBERS = ["n", "chunks"]


# --- sums of chunks ---


@triton.jit
def chunk_tokens(chunks, CHUNK: tl.constexpr):
    """A program's head, its chunk of all, and its tokens."""
    program = tl.program_id(0)
    head = (program // chunks).to(tl.int64)
    return head, program.to(tl.int64), program % chunks * CHUNK + tl.arange(0, CHUNK)


@triton.jit
def store_sums(sums, program, matrix, vector, DP: tl.constexpr, EP: tl.constexpr):
    """S and behind it z, or R and r."""
    d, e = tl.arange(0, DP), tl.arange(0, EP)
    first = sums + program * (DP * (EP + 1))
    tl.store(first + d[:, None] * EP + e[None, :], matrix)
    tl.store(first + DP * EP + d, vector)


@triton.jit
def load_sums(sums, program, DP: tl.constexpr, EP: tl.constexpr):
    d, e = tl.arange(0, DP), tl.arange(0, EP)
    first = sums + program * (DP * (EP + 1))
    return tl.load(first + d[:, None] * EP + e[None, :]), tl.load(first + DP * EP + d)


@triton.jit(do_not_specialize=NUMBERS)
def chunk_key_sums(k, v, sums, n, chunks, D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr, EP: tl.constexpr,
                   CHUNK: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr):  # fmt: skip
    head, program, t = chunk_tokens(chunks, CHUNK)  # type: ignore[misc]
    keys = load_block(k + head * n * D, t, n, D, DP, MASKED=True)
    values = load_block(v + head * n * E, t, n, E, EP, MASKED=True)
    matrix = tl.dot(tl.trans(keys), values, input_precision=PRECISION)
    store_sums(sums, program, matrix, tl.sum(keys.to(tl.float32), 0), DP, EP)


@triton.jit
def load_upstream(out, grad, below, head, t, n, E: tl.constexpr, EP: tl.constexpr):
    """ō, c and 1 / β; where β is 0 the output is 0 whatever β: nothing is divided, and β has no gradient."""
    upstream = load_block(grad + head * n * E, t, n, E, EP, MASKED=True)
    outputs = load_block(out + head * n * E, t, n, E, EP, MASKED=True)
    total = tl.load(below + head * n + t, t < n, 0.0)
    c = tl.where(total == 0.0, 0.0, -tl.sum(upstream.to(tl.float32) * outputs.to(tl.float32), 1))
    return upstream, c, 1.0 / tl.where(total == 0.0, 1.0, total)


@triton.jit(do_not_specialize=NUMBERS)
def chunk_query_sums(q, out, grad, below, sums, n, chunks, D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr,
                     EP: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr):  # fmt: skip
    head, program, t = chunk_tokens(chunks, CHUNK)  # type: ignore[misc]
    upstream, c, share = load_upstream(out, grad, below, head, t, n, E, EP)  # type: ignore[misc]
    queries = load_block(q + head * n * D, t, n, D, DP, MASKED=True).to(tl.float32) * share[:, None]
    matrix = tl.dot(tl.trans(queries), upstream.to(tl.float32), input_precision=SUMS)
    store_sums(sums, program, matrix, tl.sum(queries * c[:, None], 0), DP, EP)


@triton.jit(do_not_specialize=["chunks"])
def running_sums(sums, chunks, SIZE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = sums + tl.program_id(0).to(tl.int64) * chunks * SIZE + at[None, :]
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, chunks, STEP):
        step = begin + tl.arange(0, STEP)
        chunk = chunks - 1 - step if REVERSE else step
        inside = (step < chunks)[:, None] & (at < SIZE)[None, :]
        here = tl.load(first + chunk[:, None].to(tl.int64) * SIZE, inside, 0.0)
        through = tl.cumsum(here, 0) + total[None, :]
        tl.store(first + chunk[:, None].to(tl.int64) * SIZE, through - here, inside)
        total += tl.sum(here, 0)


# --- the chunks themselves ---


@triton.jit(do_not_specialize=NUMBERS)
def chunk_outputs(q, k, v, before, out, below, n, chunks, D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr,
                  EP: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr):  # fmt: skip
    head, program, t = chunk_tokens(chunks, CHUNK)  # type: ignore[misc]
    queries = load_block(q + head * n * D, t, n, D, DP, MASKED=True)
    keys = load_block(k + head * n * D, t, n, D, DP, MASKED=True)
    values = load_block(v + head * n * E, t, n, E, EP, MASKED=True)
    matrix, vector = load_sums(before, program, DP, EP)  # type: ignore[misc]
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    scores = tl.where(t[:, None] >= t[None, :], scores, 0.0).to(values.dtype)
    # of the scores as they are used: rounded in one place and not in the other, even a single key would not weigh 1
    total = tl.sum(scores.to(tl.float32), 1) + tl.sum(queries.to(tl.float32) * vector[None, :], 1)
    above = tl.dot(queries.to(tl.float32), matrix, input_precision=SUMS)
    above = tl.dot(scores, values, above, input_precision=PRECISION)
    store_block(out + head * n * E, t, n, above / tl.where(total == 0.0, 1.0, total)[:, None], E, EP)
    tl.store(below + head * n + t, total, t < n)


@triton.jit(do_not_specialize=NUMBERS)
def chunk_gradients(q, k, v, out, grad, below, before, after, dq, dk, dv, n, chunks, D: tl.constexpr,
                    DP: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr,
                    PRECISION: tl.constexpr, SUMS: tl.constexpr):  # fmt: skip
    head, program, t = chunk_tokens(chunks, CHUNK)  # type: ignore[misc]
    queries = load_block(q + head * n * D, t, n, D, DP, MASKED=True)
    keys = load_block(k + head * n * D, t, n, D, DP, MASKED=True)
    values = load_block(v + head * n * E, t, n, E, EP, MASKED=True)
    upstream, c, share = load_upstream(out, grad, below, head, t, n, E, EP)  # type: ignore[misc]
    seen = t[:, None] >= t[None, :]

    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * share[:, None]
    scores = tl.where(seen, scores, 0.0).to(upstream.dtype)
    later, later_vector = load_sums(after, program, DP, EP)  # type: ignore[misc]
    by_v = tl.dot(keys.to(tl.float32), later, input_precision=SUMS)
    by_v = tl.dot(tl.trans(scores), upstream, by_v, input_precision=PRECISION)
    store_block(dv + head * n * E, t, n, by_v, E, EP)

    pulls = (tl.dot(upstream, tl.trans(values), input_precision=PRECISION) + c[:, None]) * share[:, None]
    pulls = tl.where(seen, pulls, 0.0).to(keys.dtype)
    by_k = tl.dot(values.to(tl.float32), tl.trans(later), input_precision=SUMS) + later_vector[None, :]
    by_k = tl.dot(tl.trans(pulls), queries, by_k, input_precision=PRECISION)
    store_block(dk + head * n * D, t, n, by_k, D, DP)

    matrix, vector = load_sums(before, program, DP, EP)  # type: ignore[misc]
    by_q = tl.dot(upstream.to(tl.float32), tl.trans(matrix), input_precision=SUMS) + c[:, None] * vector[None, :]
    by_q = tl.dot(pulls, keys, by_q * share[:, None], input_precision=PRECISION)
    store_block(dq + head * n * D, t, n, by_q, D, DP)
