"""Causal linear attention on a GPU: our kernels, the same in chunks of plain torch, dense attention, and fla-core.

    python benchmarks/linear.py              8,192 and 32,768 tokens, forwards and backwards
    python benchmarks/linear.py --sweep      first the shapes of the kernels' tiles, to choose from

12 heads of 64, bfloat16, batch 1. Milliseconds are medians by the GPU's own clock, of calls that follow one another and
of the same work captured in a CUDA graph, which does not wait for the processor; MiB are peak memory beyond the inputs.
Dense is torch's fused causal softmax attention, which gives something else: a yardstick, not a peer. fla-core, where it
is installed, computes the same sums (`chunk_linear_attn`, normalised). `off` is the norm of the difference of output
and gradients from the definition in float64 at 2,048 tokens, relative to it.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import astuple
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu, scaled_dot_product_attention

from machine import write
from regard.attention import Causal, Feature, Recipe, attend
from regard.attention.backends import linear
from regard.attention.backends.linear import causal, key_value_state, map_keys
from regard.attention.kernels.state import StateTiles, chunked_state
from regard.attention.normaliser import Proportional
from timing import cuda_graph_milliseconds, mib, milliseconds

HEADS, WIDTH, CHECKED = 12, 64, 2048
LENGTHS = (8192, 32768)
RECIPE = Recipe(score=Feature(), normaliser=Proportional(), pattern=Causal())
Run = Callable[[Tensor, Tensor, Tensor], Tensor]


# --- the implementations ---


def kernels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, RECIPE, backend="linear")


def chunks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    nothing = key_value_state(map_keys(RECIPE, k[:, :, :0]), v[:, :, :0].float())
    return causal(RECIPE, q, k, v, nothing)[0]


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def flash_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    chunk_linear_attn = import_module("fla.ops.linear_attn").chunk_linear_attn
    tokens_first = (x.transpose(1, 2) for x in (elu(q) + 1, elu(k) + 1, v))
    return chunk_linear_attn(*tokens_first, scale=1.0, normalize=True)[0].transpose(1, 2)


def definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, RECIPE, backend="reference")


def implementations() -> dict[str, Run]:
    found = {"regard, kernels": kernels, "regard, plain torch": chunks, "dense, fused softmax": dense}
    return found | ({"fla-core": flash_linear_attention} if find_spec("fla") else {})


# --- measuring ---


def inputs(tokens: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    torch.manual_seed(0)
    made = (torch.randn(1, HEADS, tokens, WIDTH, device="cuda").bfloat16() for _ in range(3))
    return [x.to(dtype).requires_grad_() for x in made]


def forwards_and_backwards(run: Run, given: list[Tensor]) -> tuple[Tensor, ...]:
    out = run(*given)
    return out.detach(), *torch.autograd.grad(out, given, torch.ones_like(out))


def difference(run: Run) -> float:
    exact = forwards_and_backwards(definition, inputs(CHECKED, torch.double))
    found = forwards_and_backwards(run, inputs(CHECKED))
    return max(float((x - y.double()).norm() / x.norm()) for x, y in zip(exact, found, strict=True))


def rows() -> Iterator[dict[str, Any]]:
    for name, run in implementations().items():
        off = None if run is dense else difference(run)
        for tokens in LENGTHS:
            given = inputs(tokens)

            def once(run: Run = run, given: list[Tensor] = given) -> tuple[Tensor, ...]:
                return forwards_and_backwards(run, given)

            row = {
                "implementation": name,
                "tokens": tokens,
                "ms": milliseconds(once),
                "cuda_graph_ms": cuda_graph_milliseconds(once),
                "mib": mib(once),
                "off": off,
            }
            print(row, flush=True)
            yield row


def sweep() -> None:
    """The time of each shape of tiles, captured in a CUDA graph."""
    for tokens in LENGTHS:
        given = inputs(tokens)
        for chunk, warps, gradient_warps in product((64, 128), (4, 8), (4, 8)):
            shape = StateTiles(chunk, warps, gradient_warps)

            def run(q: Tensor, k: Tensor, v: Tensor, shape: StateTiles = shape) -> Tensor:
                score = RECIPE.score
                assert isinstance(score, Feature)
                return chunked_state(score.fold_q(q), score.fold_k(k), v, normalised=True, tiles=shape)

            def once(run: Run = run, given: list[Tensor] = given) -> tuple[Tensor, ...]:
                return forwards_and_backwards(run, given)

            print(tokens, astuple(shape), cuda_graph_milliseconds(once), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    q, _, v = inputs(16)
    assert not linear.triton_objections(q, v)
    if args.sweep:
        sweep()
    found = list(rows())
    best = {(row["implementation"], row["tokens"]): row["ms"] for row in found}
    for tokens in LENGTHS:
        ratio = best["dense, fused softmax", tokens] / best["regard, kernels", tokens]
        print(f"{tokens:,} tokens: {ratio:.2f} times the speed of dense attention")
    print(write("linear", "python benchmarks/linear.py", found))


if __name__ == "__main__":
    main()
