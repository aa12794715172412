"""Numbers and a seed in; the same numbers, a share of them dropped, out, by noise that costs less than to read them.

A compiler that joins dropout with what stands around it draws Philox's noise anew for each number, a hundred
instructions, of which it uses a quarter of the bits. A hash of a number's place and a seed takes a dozen. Uncompiled it
is a dozen kernels, and torch's own dropout is the better one.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

Seeds = Int[Tensor, "dropouts 2"] | None  # of one layer, int32; None: torch draws the noise


def by_torch(layers: int, dropouts: int, device: torch.device) -> list[Seeds]:
    return [None] * layers


def by_hash(layers: int, dropouts: int, device: torch.device) -> list[Seeds]:
    """For each layer, two numbers for each of its dropouts."""
    return list(torch.randint(2**31 - 1, (layers, dropouts, 2), dtype=torch.int32, device=device).unbind())


def hashed_dropout(x: Float[Tensor, "*shape"], share: float, seed: Int[Tensor, " 2"]) -> Float[Tensor, "*shape"]:
    """A part `share` of x set to 0, and the rest made so much larger that the mean stays."""
    if not share:
        return x
    too_many(x)
    at = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    left = shifted(mixed(at + seed[0], seed[1]), 8) >= round(share * 2**24)
    return torch.where(left, x * (1 / (1 - share)), 0.0)


def too_many(x: Tensor) -> None:
    if x.numel() >= 2**31:
        raise ValueError(f"{x.numel():,} numbers are more than 2³¹ places can tell apart; use torch's dropout")


def mixed(x: Int[Tensor, "*shape"], key: Int[Tensor, ""]) -> Int[Tensor, "*shape"]:
    """As in `packed_rows`, in 32 bits, of which the highest is a sign and what overflows is lost."""
    x = x ^ shifted(x, 16)
    x = (x * 0x21F0AAAD) ^ key
    x = x ^ shifted(x, 15)
    x = x * 0x735A2D97
    return x ^ shifted(x, 15)


def shifted(x: Int[Tensor, "*shape"], places: int) -> Int[Tensor, "*shape"]:
    """To the right, zeros coming in."""
    return (x >> places) & ((1 << (32 - places)) - 1)
