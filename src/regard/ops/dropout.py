"""Dropout: a module that is fast on CPUs and may use a thread's own generator, and hashed dropout for fused kernels.

`Dropout`: on a CPU torch draws a whole random number for each element. Here four elements share a draw of 64 bits, so
that p is a multiple of 2⁻¹⁶; this takes a fifth of the time. And torch has one generator for all threads, whose numbers
would depend on which thread comes first: a thread that works on its own part of a batch draws from its own.

`hashed_dropout`: a compiler that fuses dropout with what surrounds it draws Philox's noise anew for each element, a
hundred instructions, of which it uses a quarter of the bits. A hash of the element's index and a seed takes a dozen.
Uncompiled it is a dozen kernels, and torch's own dropout is the better one.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

LEVELS = 2**16

thread_state = threading.local()


@contextmanager
def use_generator(generator: torch.Generator) -> Iterator[None]:
    """Inside, dropout of this thread draws from this generator."""
    thread_state.generator = generator
    try:
        yield
    finally:
        thread_state.generator = None


class Dropout(nn.Dropout):
    """As torch's, faster on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return input
        dropped = round(self.p * LEVELS)
        drawn_here = input.device.type == "cpu" and input.is_floating_point() and not torch.compiler.is_compiling()
        if not (0 < dropped < LEVELS and drawn_here):
            return super().forward(input)
        return input * dropout_scale(input, dropped)


def dropout_scale(x: Float[Tensor, "*shape"], dropped: int) -> Float[Tensor, "*shape"]:
    """0 where an element is dropped, with probability dropped / 2¹⁶, elsewhere 1 / (1 − p), which keeps the mean."""
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
    draws.random_(-(2**63), None, generator=getattr(thread_state, "generator", None))
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
    return keep.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))


# --- hashed dropout ---


Seeds = Int[Tensor, "dropouts 2"] | None  # of one layer, int32; None: torch's own dropout


def no_seeds(layers: int, dropouts: int, device: torch.device) -> list[Seeds]:
    return [None] * layers


def draw_seeds(layers: int, dropouts: int, device: torch.device) -> list[Seeds]:
    """For each layer, a seed of two numbers for each of its dropouts."""
    return list(torch.randint(2**31 - 1, (layers, dropouts, 2), dtype=torch.int32, device=device).unbind())


def hashed_dropout(x: Float[Tensor, "*shape"], p: float, seed: Int[Tensor, " 2"]) -> Float[Tensor, "*shape"]:
    """x with elements set to 0 with probability p, the rest scaled by 1 / (1 − p)."""
    if not p:
        return x
    check_index_range(x)
    index = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    keep = shift_right(mix_bits(index + seed[0], seed[1]), 8) >= round(p * 2**24)
    return torch.where(keep, x * (1 / (1 - p)), 0.0)


def check_index_range(x: Tensor) -> None:
    if x.numel() >= 2**31:
        raise ValueError(f"{x.numel():,} elements are more than a 31-bit index can count; use torch's dropout")


def mix_bits(x: Int[Tensor, "*shape"], key: Int[Tensor, ""]) -> Int[Tensor, "*shape"]:
    """32 bits that look random, of a counter and a key: as in `dropout_triton`, with int32 for its uint32."""
    x = x ^ shift_right(x, 16)
    x = (x * 0x21F0AAAD) ^ key
    x = x ^ shift_right(x, 15)
    x = x * 0x735A2D97
    return x ^ shift_right(x, 15)


def shift_right(x: Int[Tensor, "*shape"], bits: int) -> Int[Tensor, "*shape"]:
    """Logical shift: zeros come in from the left."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
