"""A seed and four counters in; Gumbel noise out, the same on every device and in whatever order it is asked for.

The bits are Philox's (Salmon et al. 2011), as Triton's `tl.philox` makes them on a GPU.
"""

from jaxtyping import Float, Int
from torch import Tensor

ROUNDS = 7  # the fewest that pass every known test

Word = Tensor | int


def gumbel(bits: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """−log(−log u) with u in (0, 1), from 32 random bits; the winners' side of u is the fine one."""
    u = (bits.double() + 0.5) * 2.0**-32
    return -u.clamp(max=1 - 2.0**-24).neg().log1p().neg().log()


def philox(seed: Tensor, c0: Word, c1: Word, c2: Word, c3: Word) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of Philox 4×32, as numbers below 2³². What overflows is cut off by `low`."""
    low = 2**32 - 1
    k0, k1 = seed & low, (seed >> 32) & low
    for _ in range(ROUNDS):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32 & low) ^ c1 ^ k0, b & low, (a >> 32 & low) ^ c3 ^ k1, a & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return c0, c1, c2, c3  # type: ignore[return-value]
