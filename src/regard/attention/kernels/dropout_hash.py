"""The hash behind dropout masks, as Triton functions: a weight's place and a seed in; whether dropout leaves it, out.

A mask that is a function of place and seed is never kept: the backward pass finds it again, in whatever order its tiles
come. A dozen instructions a weight, where Philox takes a hundred.
"""

import triton
import triton.language as tl


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
def key_of(low):
    """The key that the lower half of a seed gives."""
    return mixed(low + 0x5BD1E995, low)


@triton.jit
def passes(bits, CUT: tl.constexpr):
    """A cut's part of 2²⁴ is dropped."""
    return (bits >> 8).to(tl.int32) >= CUT


@triton.jit
def first_places(seed, row):
    """Where each query of each head begins to count: a whole matrix of weights has more places than 32 bits tell."""
    low = tl.load(seed).to(tl.uint32)
    return mixed(row.to(tl.uint32) + low, key_of(low))


@triton.jit
def left(seed, first, j, CUT: tl.constexpr):
    """Which weights of these keys dropout leaves; queries and keys broadcast, either way round."""
    return passes(mixed(first + j.to(tl.uint32), key_of(tl.load(seed).to(tl.uint32))), CUT)
