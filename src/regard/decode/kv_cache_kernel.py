"""Triton kernels of the beam KV cache: which slots each beam sees, and writing keys and values to them."""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor


@triton.jit
def write_slots_kernel(
    keys, values, key, value, slots, new_b, new_g, new_t, many,
    BEAMS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WW: tl.constexpr,
):  # fmt: skip
    """The key and the value of one beam, of all heads."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, WW)
    sentence, beam, group, wide, inside = row // BEAMS, row % BEAMS, at // WIDTH, at % WIDTH, at < GROUPS * WIDTH
    new = sentence * new_b + beam * new_t + group * new_g + wide
    place = ((sentence * GROUPS + group) * many + tl.load(slots + row)) * WIDTH + wide
    tl.store(keys + place, tl.load(key + new, mask=inside, other=0.0), mask=inside)
    tl.store(values + place, tl.load(value + new, mask=inside, other=0.0), mask=inside)


@triton.jit
def follow_parents_kernel(
    seen, parents, slots, visible, BEAMS: tl.constexpr, SLOTS: tl.constexpr, BB: tl.constexpr, SS: tl.constexpr
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
    tl.store(visible + place, tl.where(sees, 0.0, -float("inf")).to(visible.dtype.element_ty), mask=inside)


def write_slots_triton(
    past: tuple[Float[Tensor, "b g c d"], Float[Tensor, "b g c d"]],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k d"],
    slots: Int[Tensor, "b k"],
) -> None:
    """Each beam's new key and value into its slot."""
    b, groups, beams, d = key.shape
    key, value = (new if new.stride(3) == 1 else new.contiguous() for new in (key, value))
    if key.stride() != value.stride():  # a rotated key lies otherwise than a value
        key, value = key.contiguous(), value.contiguous()
    keys, values = past
    assert all(part.is_contiguous() for part in (keys, values, slots))
    new_b, new_g, new_t, _ = key.stride()
    write_slots_kernel[(b * beams,)](
        keys, values, key, value, slots, new_b, new_g, new_t, keys.shape[2],
        BEAMS=beams, GROUPS=groups, WIDTH=d, WW=triton.next_power_of_2(groups * d),
        num_warps=2,  # type: ignore[call-arg]
    )  # fmt: skip


def follow_parents_triton(
    seen: Bool[Tensor, "b k c"], parents: Int[Tensor, "b k"], dtype: torch.dtype
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k c"]]:
    """As `follow_parents`."""
    b, beams, slots = seen.shape
    assert all(part.is_contiguous() for part in (seen, parents))
    found, mask = torch.empty_like(parents), torch.empty(seen.shape, dtype=dtype, device=seen.device)
    follow_parents_kernel[(b,)](
        seen.view(torch.uint8), parents, found, mask, BEAMS=beams, SLOTS=slots,
        BB=triton.next_power_of_2(beams), SS=triton.next_power_of_2(slots),
        num_warps=1 if beams * slots <= 512 else 8,  # type: ignore[call-arg]
    )  # fmt: skip
    return found, mask
