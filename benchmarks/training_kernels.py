"""Kernels of a training step one by one, beside torch's, in several launch shapes.

    python benchmarks/training_kernels.py                            on a GPU, about half a minute
    python benchmarks/training_kernels.py --only residual columns    only these parts

Rows and texts as `training_speed.py` packs them (Transformer-base: width 512 and 2,048, 8 heads of 64, 32,000 tokens,
dropout 0.1, bfloat16). Microseconds of one call, by a CUDA graph of many, whose inputs take turns, so that they come
from memory and not from a cache. Kernels are compiled beforehand by several processes at once.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, layer_norm

from machine import write
from regard.attention import AttentionDropout, Causal, Documents, Recipe, attend
from regard.attention.backends.packed import empty_logsumexp
from regard.attention.kernels import packed
from regard.attention.kernels.packed import PackedLaunch, launch_backward, launch_forward
from regard.ops import (
    dropout_triton,
    flat_adamw_triton,
    linear_triton,
)
from regard.ops.dropout_triton import ResidualInputs
from regard.ops.linear_triton import RowLaunch, cross_entropy_rows
from regard.training.config import TrainSettings
from regard.training.packed_corpus import PackedCorpus
from regard.training.step import gradient_norm
from timing import Work, cuda_graph_milliseconds
from training_speed import SIDE, WORDS, say
from training_variants import sentences

HEADS, HEAD, WIDTH, HIDDEN, DROPOUT, TIMES, PROCESSES = 8, 64, 512, 2048, 0.1, 20, 12


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


# --- the parts ---


def residual(rows: int) -> dict[str, Work]:
    """layer_norm(x + dropout(f + b)) of all tokens."""
    sets = [[drawn(rows, WIDTH) for _ in range(4)] for _ in range(2)]
    weight, shift, bias = (drawn(WIDTH) for _ in range(3))
    seed, out, into = torch.tensor([3, 5], dtype=torch.int32, device="cuda"), drawn(rows, WIDTH), drawn(2, rows, WIDTH)
    stats, turns = torch.ones(2, rows, device="cuda"), cycle(sets)

    def forward(shape: dropout_triton.ResidualLaunch) -> None:
        x, f, *_ = next(turns)
        dropout_triton.launch_residual_forward(
            ResidualInputs(x, f, bias, weight, seed, DROPOUT), shift, 1e-5, out, stats, shape
        )

    def backward(shape: dropout_triton.ResidualLaunch) -> Tensor:
        x, f, grad, more = next(turns)
        given = ResidualInputs(x, f, bias, weight, seed, DROPOUT)
        return dropout_triton.launch_residual_backward(given, grad, more, stats, (into[0], into[1]), shape)

    def eager(*, back: bool) -> object:
        x, f, grad, more = (part.detach().requires_grad_() for part in next(turns))
        learnt = [part.requires_grad_() for part in (weight, shift, bias)]
        with torch.set_grad_enabled(back):
            y = layer_norm(x + dropout(f + bias, DROPOUT), (WIDTH,), weight, shift)
        return torch.autograd.grad(y, [x, f, *learnt], grad.detach() + more.detach()) if back else y

    found: dict[str, Work] = {
        "residual, torch, forwards": partial(eager, back=False),
        "residual, torch, forwards and backwards": partial(eager, back=True),
    }
    for step, warps in ((1, 1), (1, 2), (2, 4), (4, 4), (4, 8), (8, 8)):
        shape = dropout_triton.ResidualLaunch(step, warps)
        found[f"residual forwards, {step} rows, {warps} warps"] = partial(forward, shape)
    for step, warps, programs, stages in (
        *((2, 4, 528, 2), (2, 4, 528, 1), (2, 4, 660, 1), (2, 4, 396, 2), (2, 4, 264, 3), (2, 4, 528, 3)),
        *((1, 1, 1056, 1), (1, 1, 1584, 1), (1, 1, 1056, 2), (1, 2, 1056, 1), (1, 2, 1056, 2), (2, 2, 792, 1)),
        *((4, 8, 264, 1), (4, 8, 264, 2), (4, 4, 396, 1), (4, 4, 264, 2)),
    ):
        shape = dropout_triton.ResidualLaunch(step, warps, programs, stages)
        name = f"residual backwards, {step} rows, {warps} warps, {programs} programs, {stages} stages"
        found[name] = partial(backward, shape)
    return found


def columns(rows: int) -> dict[str, Work]:
    """Column sums, which are the gradients of biases, and the backward pass of ReLU."""
    found: dict[str, Work] = {}
    for width in (WIDTH, 3 * WIDTH, HIDDEN):
        turns = cycle([drawn(rows, width) for _ in range(2 if width > WIDTH else 6)])
        found[f"columns of {width}, torch"] = lambda turns=turns: next(turns).sum(0)
        for shape in (
            linear_triton.ColumnLaunch(),
            linear_triton.ColumnLaunch(528, 32, 128),
            linear_triton.ColumnLaunch(1056, 16, 256),
            linear_triton.ColumnLaunch(264, 16, 512),
            linear_triton.ColumnLaunch(792, 16, 128, 4),
        ):
            name = f"columns of {width}, {shape.programs} programs, {shape.rows} × {shape.columns}, {shape.warps} warps"
            found[name] = lambda turns=turns, shape=shape: linear_triton.sum_columns(next(turns), shape)
    inputs, turns = drawn(rows, HIDDEN), cycle([drawn(rows, HIDDEN) for _ in range(2)])

    def torch_relu_backward() -> Tensor:
        left = torch.where(inputs > 0, next(turns), 0.0)
        return left.sum(0)

    found["relu's gradient and its sum, torch"] = torch_relu_backward
    for shape in (
        linear_triton.ColumnLaunch(),
        linear_triton.ColumnLaunch(1056, 16, 256),
        linear_triton.ColumnLaunch(1056, 8, 512),
        linear_triton.ColumnLaunch(792, 16, 128, 4),
    ):
        name = f"relu's gradient, {shape.programs} programs, {shape.rows} × {shape.columns}, {shape.warps} warps"
        found[name] = lambda shape=shape: linear_triton.relu_backward_sum(next(turns), inputs, shape)
    return found


def attention(corpus: PackedCorpus) -> dict[str, Work]:
    """Attention within packed texts."""
    source, target = corpus.at(0, 0)[0][0].source, corpus.at(0, 0)[0][0].target
    rows, length = source.tokens.shape
    q, k, v, grad = (drawn(rows, length, HEADS * HEAD) for _ in range(4))
    found: dict[str, Work] = {}
    recipe = Recipe(pattern=Causal() & Documents(target.segment_ids), normaliser=AttentionDropout(DROPOUT))
    for name, backend in (("dense", "sdpa"), ("tiled", "packed")):
        given = [x.detach().requires_grad_() for x in (q, k, v)]

        def both(backend=backend, given=given):
            q, k, v = (x.unflatten(2, (HEADS, HEAD)).transpose(1, 2) for x in given)
            output = attend(q, k, v, recipe, backend=backend).transpose(1, 2).flatten(2)
            return torch.autograd.grad(output, given, grad)

        found[f"attention, {name}, forwards and backwards"] = both
    seed, how = torch.tensor(3, device="cuda"), {"head": HEAD, "causal": True, "dropout": DROPOUT}
    into, out = tuple(torch.empty_like(x) for x in (q, k, v)), torch.empty_like(q)
    sums, segments = empty_logsumexp(q, k, HEAD), (target.segment_ids, target.segment_ids, seed)
    launch_forward(q, k, v, out, sums, *segments, **how)
    for launch in (
        PackedLaunch(8, 128),
        PackedLaunch(4, None, 64),
        PackedLaunch(4, 128, 64),
        PackedLaunch(4, None, 32),
    ):
        name = f"attention forwards, {launch.num_warps} warps, {launch.maxnreg} registers, {launch.part} queries"
        found[name] = partial(launch_forward, q, k, v, out, sums, *segments, launch=launch, **how)
    for launch in (
        PackedLaunch(8, 128, 64),
        PackedLaunch(8, None, 64),
        PackedLaunch(8, 128, 32),
        PackedLaunch(8, 128, 64, 2),
        PackedLaunch(8, 128, 32, 2),
        PackedLaunch(4, None, 32),
        PackedLaunch(8),
    ):
        name = f"{launch.num_warps} warps, {launch.maxnreg} registers, {launch.part} keys, {launch.num_stages} stages"
        back = partial(launch_backward, grad, q, k, v, out, sums, into, *segments, launch=launch, **how)
        found[f"attention backwards, {name}"] = back
    return found


def vocabulary() -> dict[str, Work]:
    """Cross-entropy of 4,096 tokens: logits to gradients in place, and the matrix products around it."""
    logits, targets = drawn(4096, WORDS), torch.randint(0, WORDS, (4096,), device="cuda")
    ones, table, states = torch.ones(4096, device="cuda"), drawn(WORDS, WIDTH), drawn(4096, WIDTH)
    found: dict[str, Work] = {}
    for block, warps, deep in ((4096, 16, 4), (4096, 16, 1), (2048, 8, 4), (2048, 8, 8), (4096, 16, 8), (8192, 32, 4)):
        work = partial(cross_entropy_rows, logits, targets, ones, 0.9, RowLaunch(block, warps, deep))
        found[f"cross-entropy of 4096 rows, summed by {deep} × {block} logits, {warps} warps"] = work
    sixteen, eight = ((1056, 16, 128, 4), (2112, 16, 128, 4)), ((1056, 8, 256, 4), (2112, 8, 256, 4))
    shapes = *sixteen, *eight, (1056, 16, 256, 8), (1056, 4, 512, 4)
    for shape in (linear_triton.ColumnLaunch(*shape) for shape in shapes):
        work = partial(cross_entropy_rows, logits, targets, ones, 0.9, RowLaunch(), shape)
        tile = f"{shape.rows} × {shape.columns}, {shape.warps} warps"
        found[f"cross-entropy of 4096 rows, {shape.programs} programs, {tile}"] = work
    found["4096 rows' logits"] = lambda: torch.mm(states, table.T)
    found["4096 rows' gradient of the hidden states"] = lambda: torch.mm(logits, table)
    found["4096 rows' gradient of the embedding"] = lambda: torch.mm(logits.T, states, out_dtype=torch.float32)
    return found


def optimiser() -> dict[str, Work]:
    """AdamW of 60 million weights, and the gradient norm before it."""
    size = 60 * 2**20
    grads, copies = (drawn(size) for _ in range(2))
    weights, first, second = (torch.rand(size, device="cuda") for _ in range(3))
    one, fixes = torch.ones((), device="cuda"), torch.ones(2, device="cuda")
    given = one * 1e-4, one, one * 0, fixes, 0.0, 0.9, 0.98, 1e-9
    float_grads = grads.float()
    how: dict[str, Any] = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.98, "weight_decay": 0.0, "eps": 1e-9}
    how |= {"amsgrad": False, "maximize": False, "grad_scale": one, "found_inf": one * 0}
    buffers = [weights], [float_grads], [first], [second], [], [one]
    found: dict[str, Work] = {
        "AdamW, torch's": lambda: torch._fused_adamw_(*buffers, **how),  # type: ignore[reportPrivateImportUsage]
        "gradient norm, bfloat16": lambda: gradient_norm([grads]),
        "gradient norm, float32": lambda: gradient_norm([float_grads]),
        "gradients to float32": lambda: float_grads.copy_(grads),
    }
    for block in (1024, 2048, 4096):
        step = partial(flat_adamw_triton.launch_adamw, weights, grads, first, second, copies, *given, block=block)
        found[f"AdamW, {block} at a time"] = step
    return found


# --- all of them ---


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="*", default=["residual", "columns", "attention", "vocabulary", "optimiser"])
    parser.add_argument("--warm", type=int, default=-1, help="only compile the kernels that are this process' share")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    helpers = []
    if args.warm < 0:
        for n in range(PROCESSES):
            command = [sys.executable, __file__, "--only", *args.only, "--warm", str(n)]
            helpers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    settings = TrainSettings(batch_size=round(SIDE * 1.04), max_length=256, packed=True)
    corpus = PackedCorpus.of(sentences(20_000, WORDS), settings, "cuda")
    rows = corpus.rows_per_batch * corpus.labels.shape[1]
    makers: dict[str, Callable[[], dict[str, Work]]] = {
        "residual": lambda: residual(rows),
        "columns": lambda: columns(rows),
        "attention": lambda: attention(corpus),
        "vocabulary": vocabulary,
        "optimiser": optimiser,
    }
    if args.warm >= 0:
        works = [work for part in args.only for work in makers[part]().values()]
        for work in works[args.warm :: PROCESSES]:
            tried(work)
        return
    say(
        f"{corpus.rows_per_batch} rows of {corpus.labels.shape[1]} tokens; padding {corpus.padding:.3f}; "
        "kernels are compiled"
    )
    for helper in helpers:
        try:
            helper.wait(timeout=45)
        except subprocess.TimeoutExpired:
            helper.kill()
    say(
        "ours by default:",
        packed.FORWARD,
        packed.BACKWARD,
        dropout_triton.FORWARD,
    )
    say(dropout_triton.BACKWARD, linear_triton.ColumnLaunch(), linear_triton.RowLaunch())
    table: list[dict[str, object]] = []
    keep = partial(write, "training-kernels", " ".join(["python", *sys.argv]), table)
    best: dict[str, tuple[float, str]] = {}
    for part in args.only:
        for name, work in makers[part]().items():
            if (took := cuda_graph_milliseconds(work, TIMES, seconds=0.03)) is None:
                say(f"{name:66}", "was not measured")
                continue
            table.append({"kernel": name, "microseconds": 1e3 * took})
            kind = name.split(",")[0]
            best[kind] = min(best.get(kind, (took, name)), (took, name))
            say(f"{name:66}", f"{1e3 * took:8.1f} µs")
            if args.write:  # as they come, so that a run that is stopped has written most
                keep()
        torch.cuda.empty_cache()
    for took, name in best.values():
        say(f"the fastest: {name:66} {1e3 * took:8.1f} µs")
    if args.write:
        print(keep())


def tried(work: Work) -> object:
    """What comes of it; of one that fails, why: it must not hide the others."""
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {[*str(error).splitlines(), ''][0][:200]}"


if __name__ == "__main__":
    main()
