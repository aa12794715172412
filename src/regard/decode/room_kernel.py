"""Triton kernels of the beam KV cache: slot visibility, writing keys and values, and attention.

All that reads the same keys, the beams of a sentence and the heads of a group, is one tile, so keys and values are
read once, and only those that somebody sees: of 64 slots or a padded source that is often less than half. Torch's fused
kernels are made for many queries: with four they take several times as long as the memory does.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

KEYS, NUMBERS = 64, 4096  # keys at a time, but no more than so many numbers
TILE = 16  # the least that a product of tiles takes


@triton.jit
def looking(
    q, k, v, added, out, q_b, q_h, q_t, k_b, k_g, k_c, added_b, added_t, groups, keys,
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
            added + sentence * added_b + (beam * added_t)[:, None] + at[None, :],
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


@triton.jit
def keeping(
    past, key, value, slots, new_b, new_g, new_t, all_keys, many,
    BEAMS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WW: tl.constexpr,
):  # fmt: skip
    """The key and the value of one beam, of all heads."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, WW)
    sentence, beam, group, wide, inside = row // BEAMS, row % BEAMS, at // WIDTH, at % WIDTH, at < GROUPS * WIDTH
    new = sentence * new_b + beam * new_t + group * new_g + wide
    place = ((sentence * GROUPS + group) * many + tl.load(slots + row)) * WIDTH + wide
    tl.store(past + place, tl.load(key + new, mask=inside, other=0.0), mask=inside)
    tl.store(past + all_keys + place, tl.load(value + new, mask=inside, other=0.0), mask=inside)


@triton.jit
def following(
    seen, parents, slots, added, BEAMS: tl.constexpr, SLOTS: tl.constexpr, BB: tl.constexpr, SS: tl.constexpr
):  # fmt: skip
    """One sentence."""
    sentence, beam, slot = tl.program_id(0).to(tl.int64), tl.arange(0, BB), tl.arange(0, SS)
    real = beam < BEAMS
    parent = tl.load(parents + sentence * BEAMS + beam, mask=real, other=0)
    inside = real[:, None] & (slot < SLOTS)[None, :]
    sees = tl.load(seen + ((sentence * BEAMS + parent) * SLOTS)[:, None] + slot[None, :], mask=inside, other=0)
    tl.debug_barrier()  # every thread has read what its parent saw before any writes
    free = (tl.max(sees.to(tl.int32), 0) == 0).to(tl.int32)
    new = (free[None, :] > 0) & (tl.cumsum(free, 0)[None, :] == beam[:, None] + 1)  # the first free, the second, ...
    tl.store(slots + sentence * BEAMS + beam, tl.sum(tl.where(new, slot[None, :], 0), 1).to(tl.int64), mask=real)
    sees = (sees != 0) | new
    place = ((sentence * BEAMS + beam) * SLOTS)[:, None] + slot[None, :]
    tl.store(seen + place, sees.to(tl.uint8), mask=inside)
    tl.store(added + place, tl.where(sees, 0.0, -float("inf")).to(added.dtype.element_ty), mask=inside)


def looked(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b g c d"],
    v: Float[Tensor, "b g c d"],
    added: Float[Tensor, "b 1 _ c"],
) -> Float[Tensor, "b h t d"]:
    """softmax(q kᵀ + added) v, for few queries; keys that nobody sees are not read."""
    (b, h, t, d), groups = q.shape, k.shape[1]
    q = q if q.stride(3) == 1 else q.contiguous()
    assert k.stride() == v.stride()
    assert k.stride(3) == added.stride(3) == 1
    (q_b, q_h, q_t, _), (k_b, k_g, k_c, _) = q.stride(), k.stride()
    added_b, _, added_t, _ = added.expand(b, 1, t, k.shape[2]).stride()
    out, wide = q.new_empty(b, t, h, d), max(TILE, triton.next_power_of_2(d))
    looking[(b * groups,)](
        q, k, v, added, out, q_b, q_h, q_t, k_b, k_g, k_c, added_b, added_t, groups, k.shape[2],
        BEAMS=t, HEADS=h // groups, WIDTH=d, WW=wide, KEYS=min(KEYS, max(TILE, NUMBERS // wide)),
        QUERIES=max(TILE, triton.next_power_of_2(h // groups * t)),
        num_warps=4, num_stages=2,  # type: ignore[call-arg]
    )  # fmt: skip
    return out.transpose(1, 2)


def keep(
    past: Float[Tensor, "2 b g c d"],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k d"],
    slots: Int[Tensor, "b k"],
) -> None:
    """Each beam's new key and value into its slot."""
    b, groups, beams, d = key.shape
    key, value = (new if new.stride(3) == 1 else new.contiguous() for new in (key, value))
    if key.stride() != value.stride():  # a turned key lies otherwise than a value
        key, value = key.contiguous(), value.contiguous()
    assert all(part.is_contiguous() for part in (past, slots))
    new_b, new_g, new_t, _ = key.stride()
    keeping[(b * beams,)](
        past, key, value, slots, new_b, new_g, new_t, past.stride(0), past.shape[3],
        BEAMS=beams, GROUPS=groups, WIDTH=d, WW=triton.next_power_of_2(groups * d),
        num_warps=2,  # type: ignore[call-arg]
    )  # fmt: skip


def followed(
    seen: Bool[Tensor, "b k c"], parents: Int[Tensor, "b k"], dtype: torch.dtype
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k c"]]:
    """As `room.follow`: the slots of the new words, and 0 where a beam sees a slot, -∞ elsewhere."""
    b, beams, slots = seen.shape
    assert all(part.is_contiguous() for part in (seen, parents))
    found, added = torch.empty_like(parents), torch.empty(seen.shape, dtype=dtype, device=seen.device)
    following[(b,)](
        seen.view(torch.uint8), parents, found, added, BEAMS=beams, SLOTS=slots,
        BB=triton.next_power_of_2(beams), SS=triton.next_power_of_2(slots),
        num_warps=1 if beams * slots <= 512 else 8,  # type: ignore[call-arg]
    )  # fmt: skip
    return found, added
