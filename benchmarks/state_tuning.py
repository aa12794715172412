"""fla-core's tuning ahead of its measurement: every configuration compiled by many processes, then each kernel's tried.

    python benchmarks/state_tuning.py                     for all kinds of benchmarks/state.py --peers
    python benchmarks/state_tuning.py KDA --jobs 8 --limit 120

fla-core tries up to 48 configurations of each of its kernels at the first call, some 1,100 for all kinds, and compiles
each with one thread. Here they are compiled by --jobs processes into Triton's cache, which the kinds then share; then
the kinds run beside each other, forwards and backwards at 8,192 tokens, and choose. All configurations are tried, each
20 times, and the one whose least time is smallest is taken, where fla-core takes the median of 0.1 s: beside other work
on the GPU the least is what repeats. Triton keeps the choice on disk (fla-core asks it to), and any later process with
the same TRITON_CACHE_DIR, Triton and fla-core finds it there. Our own kernels are compiled too. What is not done within
--limit seconds a phase is stopped; a later call goes on from there.
"""

import argparse
import time
from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner

from state import LENGTHS, RECIPES, forwards_and_backwards, implementations, inputs, kernels, lay_tokens_first

TRIES = 20
CACHE = 2**28  # bytes, more than the L2 of any GPU


def forward_and_backward(kind: str) -> None:
    """By every form that fla-core has of it."""
    for name, run in implementations(kind, RECIPES[kind], peers=True).items():
        if not name.startswith("fla-core"):
            continue
        given = [lay_tokens_first(x) for x in inputs(RECIPES[kind], LENGTHS[0])]
        try:
            forwards_and_backwards(partial(run, RECIPES[kind]), given)
        except Exception as error:  # what it refuses is a row of the measurement
            print(f"{kind}, {name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


def compile_own(kinds: list[str]) -> None:
    for kind in kinds:
        forwards_and_backwards(partial(kernels, RECIPES[kind]), inputs(RECIPES[kind], LENGTHS[0]))


def compile_share(kinds: list[str], share: int, shares: int) -> None:
    """Every so-manieth configuration of every kernel; nothing is launched, and the outputs mean nothing."""
    numbers, seen = count(), set()

    def run(self: Autotuner, *args: Any, **kwargs: Any) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        named = {name: value for name, value in {**self.nargs, **kwargs}.items() if name in self.arg_names}
        key = self.base_fn.__name__, *(str(named.get(name)) for name in self.keys)
        key += tuple(str(value.dtype) for value in named.values() if isinstance(value, torch.Tensor))
        if key not in seen:
            seen.add(key)
            for config in self.prune_configs(kwargs):
                if next(numbers) % shares == share:
                    try:
                        self.fn.run(*args, **{**kwargs, **config.all_kwargs(), "warmup": True})
                    except Exception as error:  # one that does not compile is left to the trial, which skips it
                        print(f"{key[0]}, {config}: {type(error).__name__}", flush=True)
        self.nargs = None

    Autotuner.run = run
    for kind in kinds:
        forward_and_backward(kind)


def least_time(launch: Any, quantiles: Any) -> list[float]:
    """Of so many launches that found the L2 cache emptied, in milliseconds."""
    launch()
    emptied = torch.empty(CACHE, dtype=torch.int8, device="cuda")
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(TRIES)]
    for begun, ended in marks:
        emptied.zero_()
        begun.record()
        launch()
        ended.record()
    torch.cuda.synchronize()
    return [min(begun.elapsed_time(ended) for begun, ended in marks)] * 3


def tune(kind: str) -> None:
    Autotuner.do_bench = property(lambda _: least_time)  # type: ignore[assignment]
    forward_and_backward(kind)


def together(work: list[tuple[Any, tuple[Any, ...]]], limit: float) -> list[int | None]:
    """The exit codes of processes that run beside each other, None for those that had to be stopped."""
    processes = [get_context("spawn").Process(target=do, args=args, daemon=True) for do, args in work]
    for process in processes:
        process.start()
    deadline = time.monotonic() + limit
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    found = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[[], *RECIPES], metavar="KIND")
    parser.add_argument("--jobs", type=int, default=12, metavar="PROCESSES")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="of each of the two phases")
    args = parser.parse_args()
    kinds = args.kinds or [*RECIPES]
    began = time.monotonic()
    shares: list[tuple[Any, tuple[Any, ...]]] = [(compile_share, (kinds, n, args.jobs)) for n in range(args.jobs)]
    codes = together([*shares, (compile_own, (kinds,))], args.limit)
    print(f"{time.monotonic() - began:.0f} s: compiled; exit codes {codes}", flush=True)
    codes = together([(tune, (kind,)) for kind in kinds], args.limit)
    print(f"{time.monotonic() - began:.0f} s: tuned; exit codes {dict(zip(kinds, codes, strict=True))}", flush=True)


if __name__ == "__main__":
    main()
