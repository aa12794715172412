"""FlexAttention backend: patterns and biases are passed to torch as they are, with our block map, not its builder."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask, flex_attention

from regard.attention.backends.reference import fold_query
from regard.attention.backends.sdpa import runs_dense
from regard.attention.batch_patterns import Edges
from regard.attention.block_map import FULL, MIXED, cached_for, planning_objections
from regard.attention.gate import BoundForget, state_objections
from regard.attention.normaliser import Softmax
from regard.attention.parts import leaves, tensors
from regard.attention.pattern import Pattern, Positions
from regard.attention.position import Bias
from regard.attention.position_variants import RelativeBias
from regard.attention.recipe import Recipe
from regard.attention.scaled_score import split_cap
from regard.attention.score import InnerProduct
from regard.attention.softmax_variants import split_sinks

Columns = tuple[Tensor, Tensor, Tensor, Tensor]  # how many blocks of each row are mixed, which, how many full, which
SIZE = 128
NARROWEST = 16  # numbers in a head, for the compiled kernel
MAX_RECIPES = 256  # that a process compiles FlexAttention for
SHORTEST = 1024  # below this torch's dense kernels with a mask do as well, and nothing has to be compiled


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return planning_objections() or [
        *([] if isinstance(split_cap(recipe.score)[0], InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *(f"{scheme} is more than a bias" for scheme in recipe.score_positions if not isinstance(scheme, Bias)),
        *(
            f"{scheme} learns, and its gradient can be compiled only for numbers read by an index (RelativeBias)"
            for scheme in (*recipe.score_positions, recipe.pattern)
            if any(x.requires_grad for x in tensors(scheme))
            and type(scheme) is not RelativeBias
            and (torch.is_grad_enabled() or scheme is recipe.pattern)  # no mask may hold such, whatever is wanted
        ),
        *([] if split_sinks(recipe.normaliser)[0] == Softmax() else [f"{recipe.normaliser} is not softmax"]),
        *state_objections(recipe.gate),
        *([] if positions.start is not None else ["its block map needs consecutive positions"]),
        *(f"{p} is a search, which it cannot trace" for p in leaves(recipe.pattern) if isinstance(p, Edges)),
        *([f"{recipe.pattern} differs from head to head"] if recipe.pattern.depends_on_head else []),
        *([f"on a GPU it compiles heads of width {NARROWEST} and more"] if q.is_cuda and is_narrow(recipe, q) else []),
        *(["it has no backward pass on the CPU"] if q.device.type == "cpu" and torch.is_grad_enabled() else []),
    ]


def is_narrow(recipe: Recipe, q: Tensor) -> bool:
    folded = fold_query(replace(recipe, score=split_cap(recipe.score)[0]), q[:0])
    return min(q.shape[-1], folded.shape[-1]) < NARROWEST


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    if q.device.type == "cpu":
        return ["on the CPU it runs uncompiled and forms every score"]
    if min(q.shape[2], k.shape[2]) < SHORTEST:
        return [f"{q.shape[2]} queries and {k.shape[2]} keys are too few to compile for"]
    dense = split_cap(recipe.score)[1] is None and runs_dense(recipe, q, k, positions)
    return ["without a mask or bias, torch's dense kernels are faster"] if dense else []


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    score, cap = split_cap(recipe.score)
    assert isinstance(score, InnerProduct)  # or it objected
    start, (_, sinks) = positions.start or 0, split_sinks(recipe.normaliser, q.device)
    if not torch.is_grad_enabled():  # on the CPU it refuses whatever could have a gradient, even if none is wanted
        q, k, v = q.detach(), k.detach(), v.detach()

    schemes = [scheme.summed() if isinstance(scheme, BoundForget) else scheme for scheme in recipe.score_positions]

    def mask_mod(b, h, i, j):
        return recipe.pattern.sees(b, h, i + start, j)

    def score_mod(score, b, h, i, j):
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        for scheme in schemes:
            assert isinstance(scheme, Bias)  # or it objected
            score = score + scheme.bias(b, h, i + start, j).to(score.dtype)
        return score

    run = flex_attention if q.device.type == "cpu" else compile_per_recipe(flex_attention)
    out = run(
        score.fold_q(q),
        score.fold_k(k),
        v,
        score_mod=score_mod if schemes or cap is not None else None,
        block_mask=block_mask(recipe, q, k, start, mask_mod),
        scale=1.0,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=None if sinks is None else AuxRequest(lse=True),
    )
    if sinks is None:
        assert isinstance(out, Tensor)  # it returns a tuple only when more is requested
        return out
    output, more = out
    assert isinstance(more, AuxOutput)
    assert more.lse is not None  # as requested
    kept = torch.sigmoid(more.lse - sinks.to(more.lse)[:, None])  # what the sink leaves of each row
    return output * kept[..., None].to(output.dtype)


def compile_per_recipe(function: Callable[..., Any], **options) -> Callable[..., Any]:
    """The function compiled anew for each recipe that a process runs; by default torch refuses the ninth.

    It is compiled as a whole (fullgraph) or raises, instead of running 40 times slower in silence.
    """
    compiled = torch.compile(function, fullgraph=True, **options)

    def run(*args, **more):
        if torch.compiler.is_compiling():  # a part of what is compiled around it
            return compiled(*args, **more)
        with torch._dynamo.config.patch(recompile_limit=MAX_RECIPES):
            return compiled(*args, **more)

    return run


def block_mask(recipe: Recipe, q: Tensor, k: Tensor, start: int, mask_mod) -> BlockMask:
    """Our block map in FlexAttention's words: for each row, which columns are mixed and which are full."""
    made: Columns = cached_for(recipe.pattern, visible_columns)(recipe.pattern, q.shape[2], k.shape[2], start, q.device)
    return BlockMask.from_kv_blocks(*made, SIZE, mask_mod, seq_lengths=(q.shape[2], k.shape[2]))


@lru_cache(maxsize=64)
def visible_columns(pattern: Pattern, n_q: int, n_k: int, start: int, device: torch.device) -> Columns:
    with torch.inference_mode(mode=False):  # or what was made while predicting could not be used for training
        states = pattern.blocks(n_q, n_k, SIZE, start=start).dense().to(device)
        return *sorted_columns(states == MIXED), *sorted_columns(states == FULL)


def sorted_columns(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are chosen, and their columns first in line."""
    order = chosen.to(torch.int8).sort(dim=1, descending=True, stable=True).indices
    return chosen.sum(1).to(torch.int32)[None, None], order.to(torch.int32)[None, None].contiguous()
