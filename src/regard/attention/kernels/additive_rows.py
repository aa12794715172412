"""A row of scores as Triton kernels: scores in, weights out; and back, weights and their gradients in, g out.

    p_j = e^{s_j} / Σ e^s,        g_j = p_j (∂L/∂p_j − Σ p ∂L/∂p / Σ p).

Σ p is 1 but for rounding, since p is kept as it was used; dividing by it makes Σ g = 0 all the same. A hidden key
weighs 0 and pulls nothing, whatever its value, and so does every key of a row that sees none.
"""

import triton
import triton.language as tl


@triton.jit
def row_weigh(s, out, high, wide, stride, WIDE: tl.constexpr):
    n, i = tl.program_id(1).to(tl.int64), tl.program_id(0)
    s += (n * high + i) * wide
    out += n * stride + i.to(tl.int64) * wide
    top, total = tl.max(tl.full([WIDE], float("-inf"), tl.float32), 0), 0.0
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        x = tl.load(s + j, j < wide, float("-inf"))
        new = tl.maximum(top, tl.max(x, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base), 0)
        top = new
    base, total = tl.where(top == float("-inf"), 0.0, top), tl.where(total == 0.0, 1.0, total)
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        x = tl.load(s + j, j < wide, float("-inf"))
        tl.store(out + j, tl.exp(x - base) / total, j < wide)


@triton.jit
def row_bend(p, pulled, g, high, wide, stride, WIDE: tl.constexpr):
    n, i = tl.program_id(1).to(tl.int64), tl.program_id(0)
    p += n * stride + i.to(tl.int64) * wide
    pulled += (n * high + i) * wide
    g += (n * high + i) * wide
    pull, whole = 0.0, 0.0
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        weight = tl.load(p + j, j < wide, 0.0).to(tl.float32)
        slope = tl.load(pulled + j, j < wide, 0.0).to(tl.float32)
        pull += tl.sum(tl.where(weight == 0.0, 0.0, weight * slope), 0)
        whole += tl.sum(weight, 0)
    mean = pull / tl.where(whole == 0.0, 1.0, whole)
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        weight = tl.load(p + j, j < wide, 0.0).to(tl.float32)
        slope = tl.load(pulled + j, j < wide, 0.0).to(tl.float32)
        tl.store(g + j, tl.where(weight == 0.0, 0.0, weight * (slope - mean)), j < wide)
