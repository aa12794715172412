"""Queries, keys and values of packed rows in; each word's look at its own text, and the way back, out. Triton kernels.

A row is short, so a tile holds all of a query's scores: a program has a row and a head to itself, and softmax is done
at once. For the way back each query keeps one number, L = log₂ Σ 2^s (s holds log₂ e). With w = 2^(s − L) over the
words of the same text, m = mask / (1 − dropout) and g the gradient of the output:

    o = (w m) v        dv = (w m)ᵀ g        dw = (g vᵀ) m        ds = w (dw − g·o)        dq = ds k        dk = dsᵀ q

since Σ w dw = g·o (Dao 2023). So no query needs all its keys at once there: they are taken in parts, and two programs
find room on a processor. No two add to one place, so the bits are always the same. What fills up a row sees nothing
and has L = +∞: 0, gradient 0.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.attention.kernels.dropout_hash import key_of, mixed, passes
from regard.layers.packed_rows import tile_size

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def kept(seed, tile, i, j, CUT: tl.constexpr, TILE: tl.constexpr):
    """Which of these queries' weights of these keys dropout leaves, a cut's part of 2²⁴ being dropped."""
    low = tl.load(seed).to(tl.uint32)
    x = (tile * (TILE * TILE)).to(tl.uint32) + low + i.to(tl.uint32)[:, None] * TILE + j.to(tl.uint32)[None, :]
    return passes(mixed(x, key_of(low)), CUT)


@triton.jit
def tile_of(x, words, WORDS, STEP, DD: tl.constexpr, D: tl.constexpr):
    """The numbers of these words of a row in one head."""
    at = tl.arange(0, DD)
    inside = (words < WORDS)[:, None] & (at < D)[None, :]
    return tl.load(x + words[:, None] * STEP + at[None, :], mask=inside, other=0.0)


@triton.jit
def put_tile(x, tile, words, WORDS, STEP, DD: tl.constexpr, D: tl.constexpr):
    at = tl.arange(0, DD)
    inside = (words < WORDS)[:, None] & (at < D)[None, :]
    tl.store(x + words[:, None] * STEP + at[None, :], tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def asking_of(asking, i, queries, causal, TILE: tl.constexpr):
    """Each query's text, -1 if it is in none, and the last place it may look at."""
    text = tl.load(asking + i, mask=i < queries, other=-1).to(tl.int32)
    # within a text, words stand in the row as they do in the text
    return tl.where(text > 0, text, -1), tl.where(causal == 0, TILE, i)


@triton.jit
def scores_of(q, k, text, last, asked, j, keys, scale, WIDE: tl.constexpr):
    """In base 2, and -∞ for what is not seen."""
    texts = tl.load(asked + j, mask=j < keys, other=-2).to(tl.int32)
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3", out_dtype=WIDE) * (scale * LOG2E)  # type: ignore[arg-type]
    return tl.where((text[:, None] == texts[None, :]) & (last[:, None] >= j[None, :]), s, -float("inf"))


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["seed"])
def rows_forward(
    q, k, v, out, sums, asking, asked, seed, q_row, q_step, k_row, k_step, v_row, v_step, o_row, o_step,
    queries, keys, scale, share_kept, causal,
    HEADS: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, DD: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    row, head = (tile // HEADS).to(tl.int64), tile % HEADS
    i, j, group = tl.program_id(1) * PART + tl.arange(0, PART), tl.arange(0, TILE), head // SHARE
    text, last = asking_of(asking + row * queries, i, queries, causal, TILE)  # type: ignore[misc]
    qs = tile_of(q + row * q_row + head * D, i, queries, q_step, DD, D)
    ks = tile_of(k + row * k_row + group * D, j, keys, k_step, DD, D)
    vs = tile_of(v + row * v_row + group * D, j, keys, v_step, DD, D)
    s = scores_of(qs, ks, text, last, asked + row * keys, j, keys, scale, WIDE)
    top = tl.max(s, 1)
    top = tl.where(top == -float("inf"), 0.0, top)
    w = tl.exp2(s - top[:, None])
    total = tl.sum(w, 1)
    tl.store(sums + tile.to(tl.int64) * TILE + i, tl.where(total > 0.0, top + tl.log2(total), float("inf")))
    w /= tl.where(total > 0.0, total, 1.0)[:, None]
    if CUT > 0:
        w = tl.where(kept(seed, tile, i, j, CUT, TILE), w * share_kept, 0.0)
    found = tl.dot(w.to(vs.dtype), vs, input_precision="tf32x3", out_dtype=WIDE)
    put_tile(out + row * o_row + head * D, found, i, queries, o_step, DD, D)


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["seed"])
def rows_backward(
    grad, q, k, v, out, sums, dq, dk, dv, asking, asked, seed,
    g_row, g_step, q_row, q_step, k_row, k_step, v_row, v_step, o_row, o_step,
    dq_row, dq_step, dk_row, dk_step, dv_row, dv_step, queries, keys, scale, share_kept, causal,
    HEADS: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, DD: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = HEADS // SHARE
    row, group, i = (tl.program_id(0) // GROUPS).to(tl.int64), tl.program_id(0) % GROUPS, tl.arange(0, TILE)
    text, last = asking_of(asking + row * queries, i, queries, causal, TILE)  # type: ignore[misc]
    j, k_sum, v_sum = tl.arange(0, PART), tl.zeros((PART, DD), WIDE), tl.zeros((PART, DD), WIDE)
    for n in range(SHARE):  # heads that share their keys have them in one part, to add their gradients up
        head = group * SHARE + n
        tile = (row * HEADS + head).to(tl.int32)
        qs = tile_of(q + row * q_row + head * D, i, queries, q_step, DD, D)
        gs = tile_of(grad + row * g_row + head * D, i, queries, g_step, DD, D)
        found = tile_of(out + row * o_row + head * D, i, queries, o_step, DD, D)
        inner = tl.sum(gs.to(WIDE) * found.to(WIDE), 1)
        total = tl.load(sums + tile.to(tl.int64) * TILE + i)
        q_sum = tl.zeros((TILE, DD), WIDE)
        for part in range(TILE // PART):
            j = part * PART + tl.arange(0, PART)
            ks = tile_of(k + row * k_row + group * D, j, keys, k_step, DD, D)
            vs = tile_of(v + row * v_row + group * D, j, keys, v_step, DD, D)
            w = tl.exp2(scores_of(qs, ks, text, last, asked + row * keys, j, keys, scale, WIDE) - total[:, None])
            dw, left = tl.dot(gs, tl.trans(vs), input_precision="tf32x3", out_dtype=WIDE), w
            if CUT > 0:
                seen = kept(seed, tile, i, j, CUT, TILE)
                dw, left = tl.where(seen, dw * share_kept, 0.0), tl.where(seen, w * share_kept, 0.0)
            ds = (w * (dw - inner[:, None]) * scale).to(qs.dtype)
            v_sum += tl.dot(tl.trans(left.to(gs.dtype)), gs, input_precision="tf32x3", out_dtype=WIDE)
            k_sum += tl.dot(tl.trans(ds), qs, input_precision="tf32x3", out_dtype=WIDE)
            q_sum += tl.dot(ds, ks, input_precision="tf32x3", out_dtype=WIDE)
            if SHARE == 1:
                put_tile(dk + row * dk_row + group * D, k_sum, j, keys, dk_step, DD, D)
                put_tile(dv + row * dv_row + group * D, v_sum, j, keys, dv_step, DD, D)
                k_sum, v_sum = tl.zeros((PART, DD), WIDE), tl.zeros((PART, DD), WIDE)
        put_tile(dq + row * dq_row + head * D, q_sum, i, queries, dq_step, DD, D)
    if SHARE > 1:
        put_tile(dk + row * dk_row + group * D, k_sum, j, keys, dk_step, DD, D)
        put_tile(dv + row * dv_row + group * D, v_sum, j, keys, dv_step, DD, D)


@dataclass(frozen=True)
class Told:
    """What the compiler is told, and how many are looked at together: forwards queries, backwards keys. Speed alone."""

    num_warps: int = 8
    maxnreg: int | None = None
    part: int = 128
    num_stages: int = 1

    def told(self, tile: int) -> dict[str, Any]:
        how = {"num_warps": self.num_warps, "maxnreg": self.maxnreg, "num_stages": self.num_stages}
        return {"PART": min(self.part, tile), **how}


FORWARD, BACKWARD, WHOLE = Told(4, 128, 64), Told(8, 128, 64), Told(8)


def look_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, asking: Tensor, asked: Tensor, seed: Tensor,
    *, told: Told = FORWARD, **how: Any,
) -> None:  # fmt: skip
    """Into `out`, and into `sums` what the way back needs. `how`: head, causal and dropout."""
    given = [q, k, v, out, sums, asking, asked, seed, *steps(q, k, v, out), q.shape[1], k.shape[1]]
    fixed = constants(q, k, **how)
    fixed |= told.told(fixed["TILE"])
    if len(q):
        rows_forward[(len(q) * fixed["HEADS"], fixed["TILE"] // fixed["PART"])](*given, *scales(**how), **fixed)


def look_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, found: tuple[Tensor, Tensor, Tensor],
    asking: Tensor, asked: Tensor, seed: Tensor, *, told: Told = BACKWARD, **how: Any,
) -> None:  # fmt: skip
    """Into `found`: the gradients of q, k and v."""
    fixed = constants(q, k, **how)
    fixed |= (told if fixed["SHARE"] == 1 else WHOLE).told(fixed["TILE"])
    given = [grad, q, k, v, out, sums, *found, asking, asked, seed, *steps(grad, q, k, v, out, *found)]
    given += [q.shape[1], k.shape[1], *scales(**how)]
    if len(q):
        rows_backward[(len(q) * fixed["HEADS"] // fixed["SHARE"],)](*given, **fixed)


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
