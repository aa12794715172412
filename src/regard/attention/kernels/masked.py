"""Triton kernel of the masked backend: softmax(q kᵀ + mask) v for few queries of each group of heads.

All that reads the same keys, the beams of a sentence and the heads of a group, is one tile, so keys and values are
read once, and only those that somebody sees: of 64 slots or a padded source that is often less than half. Torch's fused
kernels are made for many queries: with four they take several times as long as the memory does.
"""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

KEYS, NUMBERS = 64, 4096  # keys at a time, but no more than so many numbers
TILE = 16  # the least that a product of tiles takes


@triton.jit
def masked_attention_kernel(
    q, k, v, mask, out, q_b, q_h, q_t, k_b, k_g, k_c, mask_b, mask_t, groups, keys,
    BEAMS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WW: tl.constexpr,
):  # fmt: skip
    """One group of heads of one sentence; HEADS and BEAMS are counted within it."""
    sentence, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    row, wide, near = tl.arange(0, QUERIES), tl.arange(0, WW), tl.arange(0, KEYS)
    head, beam, real = group * HEADS + row // BEAMS, row % BEAMS, row < BEAMS * HEADS
    here = real[:, None] & (wide < WIDTH)[None, :]
    query = tl.load(q + sentence * q_b + (head * q_h + beam * q_t)[:, None] + wide[None, :], mask=here, other=0.0)
    first = sentence * k_b + group * k_g
    highest = tl.full((QUERIES,), -1e30, tl.float32)  # not -∞, which less itself is no number
    total, found = tl.zeros((QUERIES,), tl.float32), tl.zeros((QUERIES, WW), tl.float32)
    for start in range(0, keys, KEYS):
        at = start + near
        sees = tl.load(
            mask + sentence * mask_b + (beam * mask_t)[:, None] + at[None, :],
            mask=real[:, None] & (at < keys)[None, :],
            other=-float("inf"),
        ).to(tl.float32)
        seen = tl.max(sees, 0) > -float("inf")
        place = first + at[:, None] * k_c + wide[None, :]
        read = seen[:, None] & (wide < WIDTH)[None, :]
        key, value = tl.load(k + place, mask=read, other=0.0), tl.load(v + place, mask=read, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") + sees
        top = tl.maximum(highest, tl.max(scores, 1))
        weights, shrunk = tl.exp(scores - top[:, None]), tl.exp(highest - top)
        total = total * shrunk + tl.sum(weights, 1)
        found = found * shrunk[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        highest = top
    found /= total[:, None]
    place = ((sentence * BEAMS + beam) * (groups * HEADS) + head) * WIDTH
    tl.store(out + place[:, None] + wide[None, :], found.to(out.dtype.element_ty), mask=here)


def masked_attention(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g c d"],
    v: Float[Tensor, "b g c d"],
    mask: Float[Tensor, "b 1 _ c"],
) -> Float[Tensor, "b h t d"]:
    """softmax(q kᵀ + mask) v, for few queries; keys that nobody sees are not read."""
    (b, h, t, d), groups = q.shape, k.shape[1]
    q = q if q.stride(3) == 1 else q.contiguous()
    if k.stride() != v.stride() or k.stride(3) != 1:
        k, v = k.contiguous(), v.contiguous()
    assert mask.stride(3) == 1
    (q_b, q_h, q_t, _), (k_b, k_g, k_c, _) = q.stride(), k.stride()
    mask_b, _, mask_t, _ = mask.expand(b, 1, t, k.shape[2]).stride()
    out, wide = q.new_empty(b, t, h, d), max(TILE, triton.next_power_of_2(d))
    masked_attention_kernel[(b * groups,)](
        q, k, v, mask, out, q_b, q_h, q_t, k_b, k_g, k_c, mask_b, mask_t, groups, k.shape[2],
        BEAMS=t, HEADS=h // groups, WIDTH=d, WW=wide, KEYS=min(KEYS, max(TILE, NUMBERS // wide)),
        QUERIES=max(TILE, triton.next_power_of_2(h // groups * t)),
        num_warps=4, num_stages=2,  # type: ignore[call-arg]
    )  # fmt: skip
    return out.transpose(1, 2)
