"""Numbers in; the same numbers, a share of them dropped, out, by noise that may be a thread's own.

On a CPU torch draws one number at a time, a whole one for each bit it needs. Here four numbers share a draw of 64 bits,
so that a share is a multiple of 2⁻¹⁶; a fifth of the time. And torch has one generator for all threads, which would
get its numbers in the order of the moment: a thread that works on its own part of a batch draws from its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

LEVELS = 2**16

own = threading.local()


@contextmanager
def drawing(generator: torch.Generator) -> Iterator[None]:
    """Inside, dropout of this thread draws from here."""
    own.generator = generator
    try:
        yield
    finally:
        own.generator = None


class Dropout(nn.Dropout):
    """As torch's."""

    def forward(self, input: Tensor) -> Tensor:
        dropped = round(self.p * LEVELS)
        drawn_here = input.device.type == "cpu" and input.is_floating_point() and not torch.compiler.is_compiling()
        if not (self.training and 0 < dropped < LEVELS and drawn_here):
            return super().forward(input)
        return input * kept(input, dropped)


def kept(x: Float[Tensor, "*shape"], dropped: int) -> Float[Tensor, "*shape"]:
    """0 where a number is dropped, `dropped` times in 2¹⁶, and elsewhere what leaves the mean as it was."""
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
    draws.random_(-(2**63), None, generator=getattr(own, "generator", None))
    left = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
    return left.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
