"""Queries, keys and values of packed rows in; each word's look at its own text, and the way back, out. Triton kernels.

A row is short, so a tile holds all of a query's scores: a program has a row and a head to itself, softmax is done at
once, and nothing is kept for the way back, which makes the weights again from q and k. With w = softmax(s) over the
words of the same text, m = mask / (1 − dropout) and g the gradient of the output:

    o = (w m) v        dv = (w m)ᵀ g        dw = (g vᵀ) m        ds = w (dw − Σ w dw)        dq = ds k        dk = dsᵀ q

No two programs add to one place, so the bits are always the same. What fills up a row sees nothing: 0, gradient 0.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def mixed(x, key):
    """32 bits that look random, of a counter and a key (a finaliser of two rounds, keyed in between)."""
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= key
    x ^= x >> 15
    x *= 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def kept(seed, tile, asking, CUT: tl.constexpr, TILE: tl.constexpr):
    """Which weights of these queries dropout leaves, a cut's part of 2²⁴ being dropped."""
    low = tl.load(seed).to(tl.uint32)
    key = mixed(low + 0x5BD1E995, low)
    i, j = asking.to(tl.uint32), tl.arange(0, TILE).to(tl.uint32)
    x = (tile * (TILE * TILE)).to(tl.uint32) + low + i[:, None] * TILE + j[None, :]
    return (mixed(x, key) >> 8).to(tl.int32) >= CUT


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
def weights_of(q, k, asking, asked, i, j, scale, causal, WIDE: tl.constexpr):
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3", out_dtype=WIDE) * (scale * LOG2E)  # type: ignore[arg-type]
    # within a text, words stand in the row as they do in the text
    seen = (asking[:, None] == asked[None, :]) & (asking > 0)[:, None] & ((i[:, None] >= j[None, :]) | (causal == 0))
    s = tl.where(seen, s, -float("inf"))
    top = tl.max(s, 1)
    w = tl.exp2(s - tl.where(top == -float("inf"), 0.0, top)[:, None])
    total = tl.sum(w, 1)
    return w / tl.where(total > 0.0, total, 1.0)[:, None]


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["seed"])
def rows_forward(
    q, k, v, out, asking, asked, seed, q_row, q_step, k_row, k_step, v_row, v_step, o_row, o_step,
    queries, keys, scale, share_kept, causal,
    HEADS: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, DD: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    row, head = (tile // HEADS).to(tl.int64), tile % HEADS
    i, j, group = tl.program_id(1) * PART + tl.arange(0, PART), tl.arange(0, TILE), head // SHARE
    a = tl.load(asking + row * queries + i, mask=i < queries, other=-1).to(tl.int32)
    b = tl.load(asked + row * keys + j, mask=j < keys, other=-2).to(tl.int32)
    qs = tile_of(q + row * q_row + head * D, i, queries, q_step, DD, D)
    ks = tile_of(k + row * k_row + group * D, j, keys, k_step, DD, D)
    vs = tile_of(v + row * v_row + group * D, j, keys, v_step, DD, D)
    w = weights_of(qs, ks, a, b, i, j, scale, causal, WIDE)
    if CUT > 0:
        w = tl.where(kept(seed, tile, i, CUT, TILE), w * share_kept, 0.0)
    found = tl.dot(w.to(vs.dtype), vs, input_precision="tf32x3", out_dtype=WIDE)
    put_tile(out + row * o_row + head * D, found, i, queries, o_step, DD, D)


@triton.jit(do_not_specialize=["causal"], do_not_specialize_on_alignment=["seed"])
def rows_backward(
    grad, q, k, v, dq, dk, dv, asking, asked, seed, g_row, g_step, q_row, q_step, k_row, k_step, v_row, v_step,
    dq_row, dq_step, dk_row, dk_step, dv_row, dv_step, queries, keys, scale, share_kept, causal,
    HEADS: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, DD: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = HEADS // SHARE
    row, group = (tl.program_id(0) // GROUPS).to(tl.int64), tl.program_id(0) % GROUPS
    j = tl.arange(0, TILE)
    b = tl.load(asked + row * keys + j, mask=j < keys, other=-2).to(tl.int32)
    ks = tile_of(k + row * k_row + group * D, j, keys, k_step, DD, D)
    vs = tile_of(v + row * v_row + group * D, j, keys, v_step, DD, D)
    k_sum, v_sum = tl.zeros((TILE, DD), WIDE), tl.zeros((TILE, DD), WIDE)
    for n in range(SHARE * (TILE // PART)):  # the queries of each head in parts, for the registers' sake
        head, i = group * SHARE + n // (TILE // PART), n % (TILE // PART) * PART + tl.arange(0, PART)
        a = tl.load(asking + row * queries + i, mask=i < queries, other=-1).to(tl.int32)
        qs = tile_of(q + row * q_row + head * D, i, queries, q_step, DD, D)
        gs = tile_of(grad + row * g_row + head * D, i, queries, g_step, DD, D)
        w = weights_of(qs, ks, a, b, i, j, scale, causal, WIDE)
        dw = tl.dot(gs, tl.trans(vs), input_precision="tf32x3", out_dtype=WIDE)
        if CUT > 0:
            left = kept(seed, (row * HEADS + head).to(tl.int32), i, CUT, TILE)
            dropped = tl.where(left, w * share_kept, 0.0)
            dw = tl.where(left, dw * share_kept, 0.0)
            v_sum += tl.dot(tl.trans(dropped.to(gs.dtype)), gs, input_precision="tf32x3", out_dtype=WIDE)
        else:
            v_sum += tl.dot(tl.trans(w.to(gs.dtype)), gs, input_precision="tf32x3", out_dtype=WIDE)
        ds = (w * (dw - tl.sum(w * dw, 1)[:, None]) * scale).to(qs.dtype)
        found = tl.dot(ds, ks, input_precision="tf32x3", out_dtype=WIDE)
        put_tile(dq + row * dq_row + head * D, found, i, queries, dq_step, DD, D)
        k_sum += tl.dot(tl.trans(ds), qs, input_precision="tf32x3", out_dtype=WIDE)
    put_tile(dk + row * dk_row + group * D, k_sum, j, keys, dk_step, DD, D)
    put_tile(dv + row * dv_row + group * D, v_sum, j, keys, dv_step, DD, D)


@dataclass(frozen=True)
class Told:
    """What the compiler is told, and how many of a row's queries are looked at together: speed alone."""

    num_warps: int = 8
    maxnreg: int | None = None
    part: int = 128
    num_stages: int = 1

    def told(self, tile: int) -> dict[str, Any]:
        how = {"num_warps": self.num_warps, "maxnreg": self.maxnreg, "num_stages": self.num_stages}
        return {"PART": min(self.part, tile), **how}


FORWARD, BACKWARD = Told(8, 128), Told(8, 128, 32)


def look_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, asking: Tensor, asked: Tensor, seed: Tensor,
    *, told: Told = FORWARD, **how: Any,
) -> None:  # fmt: skip
    """Into `out`. `how`: head, causal and dropout."""
    given = [q, k, v, out, asking, asked, seed, *steps(q, k, v, out), q.shape[1], k.shape[1]]
    fixed = constants(q, k, told, **how)
    if len(q):
        rows_forward[(len(q) * fixed["HEADS"], fixed["TILE"] // fixed["PART"])](*given, *scales(**how), **fixed)


def look_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, found: tuple[Tensor, Tensor, Tensor],
    asking: Tensor, asked: Tensor, seed: Tensor, *, told: Told = BACKWARD, **how: Any,
) -> None:  # fmt: skip
    """Into `found`: the gradients of q, k and v."""
    groups = k.shape[2] // how["head"]
    given = [grad, q, k, v, *found, asking, asked, seed, *steps(grad, q, k, v, *found), q.shape[1], k.shape[1]]
    if len(q):
        rows_backward[(len(q) * groups,)](*given, *scales(**how), **constants(q, k, told, **how))


def steps(*tensors: Tensor) -> list[int]:
    assert all(x.stride(2) == 1 for x in tensors)
    return [x.stride(axis) for x in tensors for axis in (0, 1)]


def scales(*, head: int, causal: bool, dropout: float) -> list[float]:
    return [head**-0.5, 1 / (1 - dropout), int(causal)]


def constants(q: Tensor, k: Tensor, told: Told, *, head: int, causal: bool, dropout: float) -> dict[str, Any]:
    tile = max(16, 1 << (max(q.shape[1], k.shape[1]) - 1).bit_length())
    return {
        "HEADS": q.shape[2] // head,
        "SHARE": q.shape[2] // k.shape[2],
        "D": head,
        "DD": max(16, triton.next_power_of_2(head)),
        "TILE": tile,
        "CUT": round(dropout * 2**24),
        "WIDE": tl.float64 if q.dtype == torch.float64 else tl.float32,
        **told.told(tile),
    }
