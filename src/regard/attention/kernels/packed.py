"""Packed attention: Triton kernels of the forward and the backward pass, one tile for each row and head.

A row is short, so a tile holds all of a query's scores: a program has a row and a head to itself, and softmax is
computed at once. For the backward pass one number is stored for each query, L = log₂ Σ 2^s (s includes log₂ e). With
w = 2^(s − L) over the tokens of the same text, m = mask / (1 − dropout) and g the gradient of the output:

    o = (w m) v        dv = (w m)ᵀ g        dw = (g vᵀ) m        ds = w (dw − g·o)        dq = ds k        dk = dsᵀ q

since Σ w dw = g·o (Dao 2023). So no query needs all its keys at once there: they are taken in parts, and two programs
fit on a multiprocessor. No two programs add to one address, so the result is deterministic. Padding sees nothing and
has L = +∞: output 0, gradient 0.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.attention.backends.packed import tile_size
from regard.ops.dropout_triton import hash_key, is_kept, mix_bits

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def keep_mask(seed, tile, i, j, CUT: tl.constexpr, TILE: tl.constexpr):
    """Which attention weights of these queries and keys are kept; CUT / 2²⁴ is the dropout probability."""
    low = tl.load(seed).to(tl.uint32)
    x = (tile * (TILE * TILE)).to(tl.uint32) + low + i.to(tl.uint32)[:, None] * TILE + j.to(tl.uint32)[None, :]
    return is_kept(mix_bits(x, hash_key(low)), CUT)


@triton.jit
def load_tile(x, index, LENGTH, STEP, DD: tl.constexpr, D: tl.constexpr):
    """The vectors of these tokens of a row in one head."""
    at = tl.arange(0, DD)
    inside = (index < LENGTH)[:, None] & (at < D)[None, :]
    return tl.load(x + index[:, None] * STEP + at[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(x, tile, index, LENGTH, STEP, DD: tl.constexpr, D: tl.constexpr):
    at = tl.arange(0, DD)
    inside = (index < LENGTH)[:, None] & (at < D)[None, :]
    tl.store(x + index[:, None] * STEP + at[None, :], tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def load_query_segments(q_segments, i, queries, causal, TILE: tl.constexpr):
    """Each query's segment, and the last position it may attend to."""
    text = tl.load(q_segments + i, mask=i < queries, other=-2147483648).to(tl.int32)
    # within a text, tokens have the same order in the row as in the text
    return text, tl.where(causal == 0, TILE, i)


@triton.jit
def masked_scores(q, k, text, last, k_segments, j, keys, scale, WIDE: tl.constexpr):
    """In base 2, and -∞ for what is not visible."""
    texts = tl.load(k_segments + j, mask=j < keys, other=-2147483647).to(tl.int32)
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3", out_dtype=WIDE) * (scale * LOG2E)  # type: ignore[arg-type]
    return tl.where((text[:, None] == texts[None, :]) & (last[:, None] >= j[None, :]), s, -float("inf"))


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["seed"])
def packed_forward_kernel(
    q, k, v, out, sums, q_segments, k_segments, seed, q_row, q_step, k_row, k_step, v_row, v_step, o_row, o_step,
    queries, keys, scale, keep_scale, causal,
    HEADS: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, DD: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    row, head = (tile // HEADS).to(tl.int64), tile % HEADS
    i, j, group = tl.program_id(1) * PART + tl.arange(0, PART), tl.arange(0, TILE), head // SHARE
    text, last = load_query_segments(q_segments + row * queries, i, queries, causal, TILE)  # type: ignore[misc]
    qs = load_tile(q + row * q_row + head * D, i, queries, q_step, DD, D)
    ks = load_tile(k + row * k_row + group * D, j, keys, k_step, DD, D)
    vs = load_tile(v + row * v_row + group * D, j, keys, v_step, DD, D)
    s = masked_scores(qs, ks, text, last, k_segments + row * keys, j, keys, scale, WIDE)
    top = tl.max(s, 1)
    top = tl.where(top == -float("inf"), 0.0, top)
    w = tl.exp2(s - top[:, None])
    total = tl.sum(w, 1)
    tl.store(sums + tile.to(tl.int64) * TILE + i, tl.where(total > 0.0, top + tl.log2(total), float("inf")))
    w /= tl.where(total > 0.0, total, 1.0)[:, None]
    if CUT > 0:
        w = tl.where(keep_mask(seed, tile, i, j, CUT, TILE), w * keep_scale, 0.0)
    output = tl.dot(w.to(vs.dtype), vs, input_precision="tf32x3", out_dtype=WIDE)
    store_tile(out + row * o_row + head * D, output, i, queries, o_step, DD, D)


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["seed"])
def packed_backward_kernel(
    grad, q, k, v, out, sums, dq, dk, dv, q_segments, k_segments, seed,
    g_row, g_step, q_row, q_step, k_row, k_step, v_row, v_step, o_row, o_step,
    dq_row, dq_step, dk_row, dk_step, dv_row, dv_step, queries, keys, scale, keep_scale, causal,
    HEADS: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, DD: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = HEADS // SHARE
    row, group, i = (tl.program_id(0) // GROUPS).to(tl.int64), tl.program_id(0) % GROUPS, tl.arange(0, TILE)
    text, last = load_query_segments(q_segments + row * queries, i, queries, causal, TILE)  # type: ignore[misc]
    j, k_sum, v_sum = tl.arange(0, PART), tl.zeros((PART, DD), WIDE), tl.zeros((PART, DD), WIDE)
    for n in range(SHARE):  # heads that share keys take them in one part, to add up their gradients
        head = group * SHARE + n
        tile = (row * HEADS + head).to(tl.int32)
        qs = load_tile(q + row * q_row + head * D, i, queries, q_step, DD, D)
        gs = load_tile(grad + row * g_row + head * D, i, queries, g_step, DD, D)
        output = load_tile(out + row * o_row + head * D, i, queries, o_step, DD, D)
        inner = tl.sum(gs.to(WIDE) * output.to(WIDE), 1)
        total = tl.load(sums + tile.to(tl.int64) * TILE + i)
        q_sum = tl.zeros((TILE, DD), WIDE)
        for part in range(TILE // PART):
            j = part * PART + tl.arange(0, PART)
            ks = load_tile(k + row * k_row + group * D, j, keys, k_step, DD, D)
            vs = load_tile(v + row * v_row + group * D, j, keys, v_step, DD, D)
            w = tl.exp2(
                masked_scores(qs, ks, text, last, k_segments + row * keys, j, keys, scale, WIDE) - total[:, None]
            )
            dw, dropped_w = tl.dot(gs, tl.trans(vs), input_precision="tf32x3", out_dtype=WIDE), w
            if CUT > 0:
                keep = keep_mask(seed, tile, i, j, CUT, TILE)
                dw, dropped_w = tl.where(keep, dw * keep_scale, 0.0), tl.where(keep, w * keep_scale, 0.0)
            ds = (w * (dw - inner[:, None]) * scale).to(qs.dtype)
            v_sum += tl.dot(tl.trans(dropped_w.to(gs.dtype)), gs, input_precision="tf32x3", out_dtype=WIDE)
            k_sum += tl.dot(tl.trans(ds), qs, input_precision="tf32x3", out_dtype=WIDE)
            q_sum += tl.dot(ds, ks, input_precision="tf32x3", out_dtype=WIDE)
            if SHARE == 1:
                store_tile(dk + row * dk_row + group * D, k_sum, j, keys, dk_step, DD, D)
                store_tile(dv + row * dv_row + group * D, v_sum, j, keys, dv_step, DD, D)
                k_sum, v_sum = tl.zeros((PART, DD), WIDE), tl.zeros((PART, DD), WIDE)
        store_tile(dq + row * dq_row + head * D, q_sum, i, queries, dq_step, DD, D)
    if SHARE > 1:
        store_tile(dk + row * dk_row + group * D, k_sum, j, keys, dk_step, DD, D)
        store_tile(dv + row * dv_row + group * D, v_sum, j, keys, dv_step, DD, D)


@dataclass(frozen=True)
class PackedLaunch:
    """Compiler options, and the size of a part: of queries forwards, of keys backwards. They affect speed alone."""

    num_warps: int = 8
    maxnreg: int | None = None
    part: int = 128
    num_stages: int = 1

    def launch_options(self, tile: int) -> dict[str, Any]:
        options = {"num_warps": self.num_warps, "maxnreg": self.maxnreg, "num_stages": self.num_stages}
        return {"PART": min(self.part, tile), **options}


FORWARD, BACKWARD, UNSPLIT = PackedLaunch(4, 128, 64), PackedLaunch(8, 128, 64), PackedLaunch(8)


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, q_segments: Tensor, k_segments: Tensor, seed: Tensor,
    *, launch: PackedLaunch = FORWARD, **options: Any,
) -> None:  # fmt: skip
    """Into `out`, and into `sums` what the backward pass needs. `options`: head, causal and dropout."""
    args = [q, k, v, out, sums, q_segments, k_segments, seed, *steps(q, k, v, out), q.shape[1], k.shape[1]]
    fixed = constants(q, k, **options)
    fixed |= launch.launch_options(fixed["TILE"])
    if len(q):
        packed_forward_kernel[(len(q) * fixed["HEADS"], fixed["TILE"] // fixed["PART"])](
            *args, *scales(**options), **fixed
        )


def launch_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, grads: tuple[Tensor, Tensor, Tensor],
    q_segments: Tensor, k_segments: Tensor, seed: Tensor, *, launch: PackedLaunch = BACKWARD, **options: Any,
) -> None:  # fmt: skip
    """Into `grads`: the gradients of q, k and v."""
    fixed = constants(q, k, **options)
    fixed |= (launch if fixed["SHARE"] == 1 else UNSPLIT).launch_options(fixed["TILE"])
    args = [grad, q, k, v, out, sums, *grads, q_segments, k_segments, seed, *steps(grad, q, k, v, out, *grads)]
    args += [q.shape[1], k.shape[1], *scales(**options)]
    if len(q):
        packed_backward_kernel[(len(q) * fixed["HEADS"] // fixed["SHARE"],)](*args, **fixed)


def steps(*tensors: Tensor) -> list[int]:
    assert all(x.stride(2) == 1 for x in tensors)
    return [x.stride(axis) for x in tensors for axis in (0, 1)]


def scales(*, head: int, causal: bool, dropout: float) -> list[float]:
    return [head**-0.5, 1 / (1 - dropout), int(causal)]


def constants(q: Tensor, k: Tensor, *, head: int, causal: bool, dropout: float) -> dict[str, Any]:
    return {
        "HEADS": q.shape[2] // head,
        "SHARE": q.shape[2] // k.shape[2],
        "D": head,
        "DD": max(16, triton.next_power_of_2(head)),
        "TILE": tile_size(q.shape[1], k.shape[1]),
        "CUT": round(dropout * 2**24),
        "WIDE": tl.float64 if q.dtype == torch.float64 else tl.float32,
    }
