"""The kernels of a training step one by one: attention within packed rows in three ways, scores turned to gradients.

    python benchmarks/training_kernels.py            on a GPU, about half a minute

Rows and texts as `training_speed.py` packs them (Transformer-base: 8 heads of 64, dropout 0.1, bfloat16). Microseconds
of one call, by a recording of many; for our kernels also with other numbers of warps, registers and words at a time.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial

import torch

from machine import write
from regard.layers import packed_kernel
from regard.layers.packed_kernel import Told, look_backward, look_forward
from regard.layers.packed_looks import Dense, Tiled, Varlen
from regard.layers.vocabulary_kernel import Turning, turn_rows
from regard.tasks.packed import PackedCorpus
from regard.tasks.settings import TrainSettings
from training_speed import SIDE, WORDS, say, sentences

HEADS, HEAD, DROPOUT, TIMES = 8, 64, 0.1, 20


def micros(work: Callable[[], object]) -> float:
    """Of one, where many are recorded and told at once."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TIMES):
            work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    torch.cuda.synchronize()
    begin.record()  # type: ignore[no-untyped-call]
    for _ in range(5):
        graph.replay()
    end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / (5 * TIMES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    corpus = PackedCorpus.of(
        sentences(20_000, WORDS), TrainSettings(tokens=round(SIDE * 1.04), longest=256, packed=True), "cuda"
    )
    source, target = (corpus.at(0, 0)[0][0].source, corpus.at(0, 0)[0][0].target)
    rows, length = source.words.shape
    say(f"{rows} rows of {length} words, at most {corpus.texts} texts in one; padding {corpus.padding:.3f}")
    made = [torch.randn(rows, length, HEADS * HEAD, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    table: list[dict[str, object]] = []

    def tell(name: str, sides: str, work: Callable[[], object]) -> None:
        try:
            found = micros(work)
            table.append({"way": name, "sides": sides, "microseconds": found})
            say(f"{name:44} {sides:7} {found:8.1f} µs")
        except Exception as error:  # one that fails must not hide the others
            say(f"{name:44} {sides:7} {type(error).__name__}: {str(error).splitlines()[0][:200]}")

    cases = {"itself": (source, source, False), "back": (target, target, True), "across": (target, source, False)}
    for sides, (asking, looked, causal) in cases.items():
        for name, way in (("dense", Dense()), ("tiled", Tiled()), ("varlen", Varlen(corpus.texts))):
            (sight,) = way.sights(asking, looked, torch.bfloat16, causal=causal)
            given = [x.detach().requires_grad_() for x in made[:3]]

            def forward(sight=sight, given=given):
                return sight.attend(*given, head=HEAD, dropout=DROPOUT)

            def both(forward=forward, given=given):
                return torch.autograd.grad(forward(), given, made[3])

            tell(f"{name}, forwards", sides, torch.no_grad()(forward))
            tell(f"{name}, forwards and backwards", sides, both)
    seed, how = torch.tensor(3, device="cuda"), {"head": HEAD, "causal": True, "dropout": DROPOUT}
    q, k, v, grad = made
    found, out = tuple(torch.empty_like(x) for x in (q, k, v)), torch.empty_like(q)
    say("ours by default:", packed_kernel.FORWARD, packed_kernel.BACKWARD)
    for warps in (4, 8, 16):
        for most in (None, 96, 128, 168):
            if most and most * warps * 32 > 65_536:
                continue
            told = Told(warps, most)
            there = partial(look_forward, q, k, v, out, target.text, target.text, seed, told=told, **how)
            back = partial(look_backward, grad, q, k, v, found, target.text, target.text, seed, told=told, **how)
            tell(f"kernel forwards, {warps} warps, {most} registers", "back", there)
            tell(f"kernel backwards, {warps} warps, {most} registers", "back", back)
    scores = torch.randn(4096, WORDS, device="cuda").bfloat16()
    wanted = torch.randint(0, WORDS, (4096,), device="cuda")
    for block, warps in ((2048, 8), (2048, 4), (4096, 8), (4096, 16), (8192, 16), (32_768, 16), (32_768, 32)):
        turn = partial(turn_rows, scores, wanted, 0.9, Turning(block, warps))
        tell(f"4,096 rows turned, {block} words, {warps} warps", "", turn)
    ones, table16 = torch.ones(4096, device="cuda").bfloat16(), torch.randn(WORDS, 512, device="cuda").bfloat16()
    states = torch.randn(4096, 512, device="cuda").bfloat16()
    tell("4,096 rows' gradient of the bias", "", lambda: scores.T @ ones)
    tell("4,096 rows' scores", "", lambda: torch.mm(states, table16.T))
    tell("4,096 rows' gradient of the states", "", lambda: torch.mm(scores, table16))
    tell("4,096 rows' gradient of the table, narrow", "", lambda: torch.mm(scores.T, states))
    tell("4,096 rows' gradient of the table, wide", "", lambda: torch.mm(scores.T, states, out_dtype=torch.float32))
    if asked.write:
        print(write("training-kernels", " ".join(["python", *sys.argv]), table))


if __name__ == "__main__":
    main()
