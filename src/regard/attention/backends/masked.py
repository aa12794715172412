"""Masked attention: softmax(q kᵀ + mask) v under a mask that is there already, as decoding with a KV cache has it.

For a few queries torch's fused kernel is slower than its three parts on a CPU, and than a kernel made for them on a
GPU; a kernel in C is faster than both where it can be compiled. For many it is torch's own.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.batch_patterns import FloatMask
from regard.attention.gate import NoGate, state_objections
from regard.attention.normaliser import Softmax
from regard.attention.pattern import Positions
from regard.attention.recipe import Recipe
from regard.attention.score import Dot, InnerProduct
from regard.ops import dispatch
from regard.ops.c_kernels import compile_kernels

KERNEL_QUERIES = 32  # that read the same keys, at most, for our own kernel; torch's is made for more
CPU_QUERIES = 64  # at most, for the three parts one by one


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    if not isinstance(recipe.pattern, FloatMask):
        return [f"{recipe.pattern} is not a mask that is there already"]
    score = recipe.score
    return [
        *([] if isinstance(score, InnerProduct) else [f"{score} is not an inner product"]),
        *([f"{score} may be ∞"] if isinstance(score, InnerProduct) and score.overflows else []),
        *([] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]),
        *(f"{scheme} adds to single scores" for scheme in recipe.score_positions),
        *([] if positions.start == 0 else ["the mask begins at index 0"]),
        *state_objections(recipe.gate),
        *(["its kernel has no backward pass"] if q.is_cuda and torch.is_grad_enabled() else []),
    ]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return []


def is_decoding(recipe: Recipe) -> bool:
    """Is it a step of decoding with a KV cache, so that there is nothing to check and to choose at every step?"""
    return (
        type(recipe.pattern) is FloatMask
        and not recipe.position.parts()
        and not torch.is_grad_enabled()
        and type(recipe.normaliser) is Softmax
        and type(recipe.gate) is NoGate
        and (type(recipe.score) is Dot or (isinstance(recipe.score, InnerProduct) and not recipe.score.overflows))
    )


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions | None = None) -> Tensor:
    score, mask = recipe.score, recipe.pattern.mask  # type: ignore[attr-defined]  (or it objected)
    return softmax_attention(score.fold_q(q), score.fold_k(k), v, mask)  # type: ignore[attr-defined]


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q kᵀ + mask) v."""
    shared, few = q.shape[1] // k.shape[1], q.shape[2]
    if q.is_cuda and shared * few <= KERNEL_QUERIES and k.shape == v.shape and dispatch.use_fused(q):
        from regard.attention.kernels.masked import masked_attention

        return masked_attention(q, k, v, mask)
    if q.is_cuda or few > CPU_QUERIES:
        mask = mask.expand(q.shape[0], q.shape[1] if q.is_cuda else 1, few, k.shape[2])
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=shared != 1)
    if use_kernels(q, k, v, mask) and (kernels := masked_kernels()) is not None:
        return attend_by_kernels(kernels, q, k, v, mask)
    if shared != 1:
        k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    return (q @ k.mT).add_(mask).softmax(-1) @ v


# --- kernels in C ---


def use_kernels(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> bool:
    """Nobody differentiates, compiles or exports it, and all is float32 with rows in one piece."""
    plain = type(q) is Tensor and q.dtype == k.dtype == v.dtype == mask.dtype == torch.float32
    return (
        plain
        and not torch.is_grad_enabled()
        and k.stride() == v.stride()
        and k.shape == v.shape
        and q.stride(3) == k.stride(3) == mask.stride(3) == 1
        and mask.shape[1] == 1
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[reportPrivateImportUsage]
    )


def attend_by_kernels(kernels: ctypes.CDLL, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    (b, h, t, d), (g, c) = q.shape, k.shape[1:3]
    mask_b, _, mask_t, _ = mask.expand(b, 1, t, c).stride()
    out = q.new_empty(b, t, h, d)
    kernels.masked_attention(
        q.data_ptr(), *q.stride()[:3], k.data_ptr(), v.data_ptr(), *k.stride()[:3], mask.data_ptr(), mask_b, mask_t,
        out.data_ptr(), b, h, t, g, c, d,
    )  # fmt: skip
    return out.transpose(1, 2)


@cache
def masked_kernels() -> ctypes.CDLL | None:
    kernels = compile_kernels(Path(__file__).parents[1] / "kernels" / "masked.c")
    if kernels is not None:
        pointer, number = ctypes.c_void_p, ctypes.c_long
        matrices = [pointer, *3 * [number], pointer, pointer, *3 * [number], pointer, number, number, pointer]
        kernels.masked_attention.argtypes, kernels.masked_attention.restype = [*matrices, *6 * [number]], None
    return kernels
