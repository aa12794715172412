"""Dropout in Triton kernels: whether an element is kept, as a hash of its index and a seed.

Such a mask is never stored: the backward pass computes it again, in whatever order its tiles come. A dozen
instructions an element, where Philox takes a hundred.
"""

import triton
import triton.language as tl


@triton.jit
def mix_bits(x, key):
    """32 bits that look random, of a counter and a key: a finaliser of two rounds, keyed in between."""
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= key
    x ^= x >> 15
    x *= 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def hash_key(low):
    """The key, from the lower half of a seed."""
    return mix_bits(low + 0x5BD1E995, low)


@triton.jit
def is_kept(bits, CUT: tl.constexpr):
    """CUT / 2²⁴ is the probability of being dropped."""
    return (bits >> 8).to(tl.int32) >= CUT


@triton.jit
def first_counters(seed, row):
    """The first counter of each query of each head: a matrix of weights may have more entries than 32 bits count."""
    low = tl.load(seed).to(tl.uint32)
    return mix_bits(row.to(tl.uint32) + low, hash_key(low))


@triton.jit
def weight_keep_mask(seed, first, j, CUT: tl.constexpr):
    """Which attention weights of these keys are kept; queries and keys broadcast, either way round."""
    return is_kept(mix_bits(first + j.to(tl.uint32), hash_key(tl.load(seed).to(tl.uint32))), CUT)


@triton.jit
def keep_mask(seed, index, CUT: tl.constexpr):
    """Which elements are kept: as in `hashed_dropout`."""
    x = index.to(tl.uint32) + tl.load(seed).to(tl.uint32)
    return is_kept(mix_bits(x, tl.load(seed + 1).to(tl.uint32)), CUT)
