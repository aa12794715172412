"""States of fixed size on a GPU: our kernels, the same in chunks of plain torch, dense attention, and fla-core.

    python benchmarks/state.py               8,192 and 32,768 tokens, forwards and backwards; decoding to 131,072
    python benchmarks/state.py --sweep       first how the kernels cut their work, to choose from
    python benchmarks/state.py --peers       the kernels beside dense attention and fla-core alone, of all kinds or some
    python benchmarks/state.py --limit 15    the seconds that one implementation may take, 300 unless said

Every kind and implementation has a time limit, and the file of results is written after each: what refuses, crashes or
never ends is a row that says so. fla-core first tunes hundreds of configurations of its kernels, for minutes:
`benchmarks/state_tuning.py` does that ahead.

12 heads of 64, bfloat16, batch 1. Milliseconds are medians by the GPU's own clock, of calls that follow one another and
of the same work captured in a CUDA graph, which does not wait for the processor; MiB are peak memory beyond the inputs.
Dense is torch's fused causal softmax attention, which gives something else: a yardstick, not a peer. fla-core, where it
can be imported, computes each of them too, by its functions for training (`FLASH_LINEAR`); KDA also in the form
that assumes decays of at least e⁻⁵ a token, as these are (ours assumes nothing). Where it refuses, the row says why.
`off` is the largest of the relative errors, in norm, of the output and of every gradient, against plain torch in
float64 at 2,048 tokens; `eager` the same of the definition in bfloat16.

Decoding: one token of a layer of width 768 after so many others, with a state and with a cache of keys and values; `ms`
with the processor's launches, `cuda_graph_ms` without.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from machine import write
from regard.attention import (
    Causal,
    Cosine,
    Delta,
    Dot,
    Feature,
    GatedDelta,
    KimiDelta,
    MultiHeadAttention,
    NoGate,
    Recipe,
    Retention,
    ScalarDecay,
    Unnormalised,
    VectorDecay,
    attend,
)
from regard.attention.backends import state
from regard.attention.backends.linear import causal, key_value_state, map_keys, triton_objections
from regard.attention.kernels.state import StateTiles, chunked_state
from regard.attention.kv_cache import KVCache
from regard.attention.normaliser import Proportional
from timing import cuda_graph_milliseconds, mib, milliseconds

HEADS, WIDTH, CHECKED = 12, 64, 2048
LENGTHS = 8192, 32768
CONTEXTS = 1024, 8192, 32768, 131072
PLAIN: dict[str, Any] = {"score": Dot(), "pattern": Causal(), "normaliser": Unnormalised()}
RECIPES = {
    "causal linear": Recipe(score=Feature(), normaliser=Proportional(), pattern=Causal()),
    "retention": Recipe(**PLAIN, gate=Retention()),
    "scalar decay": Recipe(**PLAIN, gate=ScalarDecay()),
    "vector decay": Recipe(**PLAIN, gate=VectorDecay()),
    "delta rule": Recipe(**PLAIN, gate=Delta()),
    "gated delta rule": Recipe(**PLAIN, gate=GatedDelta()),
    "KDA": Recipe(**PLAIN, gate=KimiDelta()),
}
FLASH_LINEAR = {  # module and function of fla-core
    "causal linear": "linear_attn.chunk_linear_attn",
    "retention": "retention.chunk_retention",
    "scalar decay": "simple_gla.chunk_simple_gla",
    "vector decay": "gla.chunk_gla",
    "delta rule": "delta_rule.chunk_delta_rule",
    "gated delta rule": "gated_delta_rule.chunk_gated_delta_rule",
    "KDA": "kda.chunk_kda",
}
FLASH_GATES = {"log_decay": "g", "beta": "beta"}  # how fla-core calls what a gate wants
STARTUP = 60  # seconds that a process may take to import and to open the GPU
Run = Callable[..., Tensor]  # of q, k, v and what the gate wants
Unit = tuple[str, str]  # kind and implementation


# --- the implementations ---


def bind(recipe: Recipe, gates: tuple[Tensor, ...]) -> Recipe:
    named: dict[str, Any] = dict(zip(recipe.gate.values, gates, strict=True))
    return recipe.with_gate(**named) if named else recipe


def kernels(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
    backend = "linear" if isinstance(recipe.gate, NoGate) else "state"
    return attend(q, k, v, bind(recipe, gates), backend=backend)


def chunks(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
    if isinstance(recipe.gate, NoGate):
        nothing = key_value_state(map_keys(recipe, k[:, :, :0]), v[:, :, :0].float())
        return causal(recipe, q, k, v, nothing)[0]
    bound = bind(recipe, gates)
    at = torch.arange(q.shape[2], device=q.device)
    return state.run(bound, state.GatedInputs.of(bound, q, k, v, at), None)[0].to(q.dtype)


def definition(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
    return attend(q, k, v, bind(recipe, gates), backend="reference")


def dense(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def flash_linear_attention(
    kind: str, recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, *gates: Tensor, **options: Any
) -> Tensor:
    """The same by fla-core, which wants tokens before heads."""
    module, name = FLASH_LINEAR[kind].split(".")
    function = getattr(import_module(f"fla.ops.{module}"), name)
    named = {FLASH_GATES[of]: x.transpose(1, 2) for of, x in zip(recipe.gate.values, gates, strict=True)}
    if isinstance(recipe.score, Feature):
        q, k, named = recipe.score.fold_q(q), recipe.score.fold_k(k), {"normalize": True}
    return function(*(x.transpose(1, 2) for x in (q, k, v)), scale=1.0, **named, **options)[0].transpose(1, 2)


def implementations(kind: str, recipe: Recipe, *, peers: bool) -> dict[str, Run]:
    found: dict[str, Run] = {"regard, kernels": kernels} | ({} if peers else {"regard, plain torch": chunks})
    if isinstance(recipe.gate, NoGate):
        found["dense, fused softmax"] = dense
    if find_spec("fla"):
        found["fla-core"] = partial(flash_linear_attention, kind)
        if kind == "KDA":
            found["fla-core, bounded decay"] = partial(flash_linear_attention, kind, safe_gate=True)
    elif isinstance(recipe.gate, NoGate):
        print("fla-core is not installed, and is left out")
    return found


# --- measuring ---


def inputs(recipe: Recipe, tokens: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Keys of length 1 for the delta rule; decays as Mamba-2's at first, and β from 0 to 1, in float32."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, tokens, WIDTH, device="cuda") for _ in range(3))
    k = normalize(k, dim=-1) if recipe.gate.delta else k
    width = (WIDTH,) if recipe.gate.decay == "vector" else ()
    made = {"log_decay": -0.1 * torch.rand(1, HEADS, tokens, *width, device="cuda"), "beta": torch.rand_like(q[..., 0])}
    gates = [made[name] if dtype == torch.bfloat16 else made[name].to(dtype) for name in recipe.gate.values]
    return [x.requires_grad_() for x in (*(x.bfloat16().to(dtype) for x in (q, k, v)), *gates)]


def lay_tokens_first(x: Tensor) -> Tensor:
    """In memory as fla-core wants it, so that it copies nothing."""
    return x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()


def forwards_and_backwards(run: Run, given: list[Tensor]) -> tuple[Tensor, ...]:
    out = run(*given)
    return out.detach(), *torch.autograd.grad(out, given, torch.ones_like(out))


def difference(recipe: Recipe, run: Run) -> float:
    exact = forwards_and_backwards(partial(chunks, recipe), inputs(recipe, CHECKED, torch.double))
    found = forwards_and_backwards(partial(run, recipe), inputs(recipe, CHECKED))
    return max(float((x - y.double()).norm() / x.norm()) for x, y in zip(exact, found, strict=True))


def rows(kind: str, name: str, *, peers: bool) -> Iterator[dict[str, Any]]:
    recipe = RECIPES[kind]
    run = implementations(kind, recipe, peers=peers)[name]
    row: dict[str, Any] = {"kind": kind, "implementation": name}
    try:
        off = None if run is dense else difference(recipe, run)
    except Exception as error:  # one that refuses must not hide the others
        yield row | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        return
    for tokens in LENGTHS:
        given = inputs(recipe, tokens)
        if name.startswith("fla-core"):
            given = [lay_tokens_first(x) for x in given]
        once = partial(forwards_and_backwards, partial(run, recipe), given)
        found = row | {"tokens": tokens, "ms": milliseconds(once)}
        if run is not chunks:  # thousands of launches
            found["cuda_graph_ms"] = cuda_graph_milliseconds(once)
        found |= {"mib": mib(once), "off": off}
        if run is kernels and recipe.gate.decay != "vector" and not peers:  # the definition goes by features
            found["eager"] = difference(recipe, definition)
        yield found


def send_rows(to: Connection, units: list[Unit], *, peers: bool) -> None:
    """Of unit after unit, and None after each; ends where a crash has spoilt the process for the units that follow."""
    to.send(None)
    for kind, name in units:
        for row in rows(kind, name, peers=peers):
            to.send(row)
        to.send(None)
        torch.cuda.synchronize()


def limited_rows(units: list[Unit], limit: float, *, peers: bool, send: Any = send_rows) -> Iterator[dict[str, Any]]:
    """The rows of units measured one after the other in a process of their own; a new one where it crashes or hangs."""
    units = list(units)
    while units:
        ours, theirs = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=send, args=(theirs, units), kwargs={"peers": peers}, daemon=True)
        process.start()
        theirs.close()
        deadline, started, error = time.monotonic() + STARTUP, False, None
        while error is None and units:
            if not ours.poll(max(0.0, deadline - time.monotonic())):
                error = f"did not end in {limit if started else STARTUP:g} s"
                break
            try:
                row = ours.recv()
            except EOFError:
                process.join()
                error = f"its process ended with exit code {process.exitcode}"
                break
            if row is not None:
                yield row
                continue
            if started:
                units.pop(0)
            started, deadline = True, time.monotonic() + limit
        process.kill()
        process.join()
        if error:
            kind, name = units.pop(0)
            yield {"kind": kind, "implementation": name, "error": error}


def decoding_rows() -> Iterator[dict[str, Any]]:
    """One more token, after so many; of what went before, only the size matters."""
    delta = Recipe(score=Cosine(temperature=1.0), pattern=Causal(), normaliser=Unnormalised(), gate=GatedDelta())
    recipes = {"KV cache": Recipe(pattern=Causal())} | {"causal linear": RECIPES["causal linear"]}
    for name, recipe in (recipes | {"gated delta rule": delta}).items():
        layer = MultiHeadAttention(HEADS * WIDTH, heads=HEADS, recipe=recipe).to("cuda", torch.bfloat16).eval()
        x = torch.randn(1, 1, HEADS * WIDTH, device="cuda", dtype=torch.bfloat16)
        for context in CONTEXTS:
            with torch.inference_mode():
                past = layer.extend(x)[1].past
                if isinstance(past, tuple):
                    past = tuple(part.expand(-1, -1, context, -1).clone() for part in past)
                cache = KVCache(past, context)
                once = partial(layer.extend, x, cache)
                row = {"layer": name, "context": context, "ms": milliseconds(once)}
                row |= {"cuda_graph_ms": cuda_graph_milliseconds(once), "cache_mib": cache.nbytes / 2**20}
            print(row, flush=True)
            yield row


def sweep() -> None:
    """The time of each way to cut the work, captured in a CUDA graph."""
    for kind in ("causal linear", "scalar decay", "gated delta rule"):
        recipe = RECIPES[kind]
        q, k, v, *gates = inputs(recipe, LENGTHS[0])
        for chunk, warps, gradient_warps, columns in product((64, 128), (4, 8), (4, 8), (16, 32)):
            if columns == 16 or recipe.gate.delta:
                tiles = StateTiles(chunk, warps, gradient_warps, columns)
                feature = recipe.score.map if isinstance(recipe.score, Feature) else None
                run = partial(chunked_state, normalised=feature is not None, feature=feature, tiles=tiles)
                once = partial(forwards_and_backwards, run, [q, k, v, *gates])
                print(kind, tiles, cuda_graph_milliseconds(once), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--peers", nargs="*", choices=[*RECIPES], metavar="KIND")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS")
    args = parser.parse_args()
    q, _, v = inputs(RECIPES["causal linear"], 16)
    if why := triton_objections(q, v):
        raise SystemExit("; ".join(why))
    if args.sweep:
        sweep()
    peers = args.peers is not None
    kinds = args.peers or [*RECIPES]
    units = [(kind, name) for kind in kinds for name in implementations(kind, RECIPES[kind], peers=peers)]
    saved = partial(write, "state", "python benchmarks/state.py")
    if peers:
        saved = partial(write, "state-peers", " ".join(["python benchmarks/state.py --peers", *map(repr, args.peers)]))
    found = []
    for row in limited_rows(units, args.limit, peers=peers):
        print(row, flush=True)
        found.append(row)
        saved(found)
    print_ratios(found, kinds)
    print(saved(found) if peers else saved(found, decoding=list(decoding_rows())))


def print_ratios(found: list[dict[str, Any]], kinds: list[str]) -> None:
    best = {
        (row["kind"], row["implementation"], row["tokens"]): row["cuda_graph_ms"]
        for row in found
        if row.get("cuda_graph_ms")
    }
    for tokens, kind in product(LENGTHS, kinds):
        others = {"dense attention": ("causal linear", "dense, fused softmax"), "fla-core": (kind, "fla-core")}
        others["fla-core, bounded decay"] = kind, "fla-core, bounded decay"
        for other, (of, how) in others.items():
            if (of, how, tokens) in best and (kind, "regard, kernels", tokens) in best:
                ratio = best[of, how, tokens] / best[kind, "regard, kernels", tokens]
                print(f"{kind}, {tokens:,} tokens: {ratio:.2f} times the speed of {other}")


if __name__ == "__main__":
    main()
